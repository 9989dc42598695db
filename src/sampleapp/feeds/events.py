"""Records as events of a stream (``text/event-stream``), in parts: the id differs between subscribers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sampleapp.model import ConsumerRecord
from sampleapp.records.event_stream import END_OF_EVENT, begin_event
from sampleapp.records.record_lines import record_line

__all__ = ["MAX_FREQUENT_ID", "id_line", "record_events"]

MAX_FREQUENT_ID: Final = 128
"""Bytes of the longest id that each event has. A longer one is only on the last event of a group."""

_START: Final = begin_event()


def id_line(position: bytes) -> bytes:
    """Return the line with the id of an event; the rest of the event follows."""
    return b"id: %b\n" % position


def record_events(records: Iterable[ConsumerRecord]) -> list[bytes]:
    """Encode the event of each record, without an id."""
    return [b"%b%b%b" % (_START, record_line(record), END_OF_EVENT) for record in records]
