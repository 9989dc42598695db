"""
Test support for brokers: the contract that every broker must pass, and helpers.

It needs pytest, pytest-twisted and hypothesis, which the extra ``testing`` installs. The service does not
import it.
"""

from sampleapp.testing.broker_contract import BrokerContract
from sampleapp.testing.failures import failures_collected
from sampleapp.testing.publishing import (
    content,
    everything,
    identity,
    new_topic,
    pages,
    record,
    settled,
    size,
)
from sampleapp.testing.recorder import BatchRecorder, PositionRecorder, Recorder
from sampleapp.testing.waiting import eventually, outcomes, turns, within

__all__ = [
    "BatchRecorder",
    "BrokerContract",
    "PositionRecorder",
    "Recorder",
    "content",
    "eventually",
    "everything",
    "failures_collected",
    "identity",
    "new_topic",
    "outcomes",
    "pages",
    "record",
    "settled",
    "size",
    "turns",
    "within",
]
