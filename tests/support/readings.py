"""Records of readings."""

from __future__ import annotations

from itertools import count

from sampleapp.model import ConsumerRecord
from sampleapp.readings import Readings

_offsets = count()


def reading_record(key, value, *, partition=0, offset=0, timestamp_ms=0):
    return ConsumerRecord(
        topic="readings",
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        key=key,
        value=value,
    )


def apply_next(readings: Readings, key: bytes | None, value: bytes | None, **place) -> None:
    """Apply a record that comes after all that were applied so, in the only partition unless it is given."""
    readings.apply(next_record(key, value, **place))


def next_record(key: bytes | None, value: bytes | None, **place) -> ConsumerRecord:
    """Return a record that comes after all that were made so."""
    return reading_record(key, value, offset=next(_offsets), **place)
