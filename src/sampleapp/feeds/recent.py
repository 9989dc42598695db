"""The last records of a feed: subscribers join with positions that are a little behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from sampleapp.model import ConsumerRecord

__all__ = ["Recent", "memory_of"]

_MAX_RECORDS: Final = 500
_MAX_BYTES: Final = 256 * 1024
_OVERHEAD: Final = 200
"""Bytes of an object for a record, or for one of its headers."""


class Recent:
    """
    The last records of a topic, of all partitions together: up to 500, in about 256 KiB of memory.

    Without them, a subscriber could not join a busy topic: while it reads, the feed goes on.
    """

    def __init__(self, begins_at: Mapping[int, int] | None = None) -> None:
        """:param begins_at: the first offset that is known, by partition."""
        self.records: deque[ConsumerRecord] = deque()
        """In the order in which they came."""
        self._bytes = 0
        self._begins_at: dict[int, int] = {} if begins_at is None else dict(begins_at)

    def begins_at(self, partition: int, end: int) -> int:
        """Return the offset from which on all records of a partition up to ``end`` are here."""
        return self._begins_at.get(partition, end)

    def begin_at(self, partition: int, offset: int) -> None:
        """Note that records before an offset are missing."""
        self._begins_at[partition] = offset

    def add(self, records: Sequence[ConsumerRecord]) -> None:
        """Add the next records of a partition, and drop the oldest ones."""
        self._begins_at.setdefault(records[0].partition, records[0].offset)
        self.records.extend(records)
        self._bytes += sum(map(memory_of, records))
        while self.records and (len(self.records) > _MAX_RECORDS or self._bytes > _MAX_BYTES):
            dropped = self.records.popleft()
            self._bytes -= memory_of(dropped)
            if self._begins_at[dropped.partition] <= dropped.offset:
                self._begins_at[dropped.partition] = dropped.offset + 1


def memory_of(record: ConsumerRecord) -> int:
    """Return about how many bytes of memory a record takes."""
    size = _OVERHEAD + len(record.value or b"") + len(record.key or b"")
    if record.headers:
        size += sum(_OVERHEAD + len(value or b"") for _, value in record.headers)
    return size
