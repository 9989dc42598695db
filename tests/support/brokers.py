"""What the tests of brokers share: that which ships for tests of other brokers, and no more."""

from __future__ import annotations

from sampleapp_testing import (
    Recorder,
    content,
    eventually,
    everything,
    outcomes,
    record,
    settled,
    turns,
    within,
)
from sampleapp_testing.waiting import DEADLINE_S

__all__ = [
    "DEADLINE_S",
    "Recorder",
    "content",
    "eventually",
    "everything",
    "outcomes",
    "record",
    "settled",
    "turns",
    "within",
]
