"""The records of one read, up to its limits."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from twisted.internet.interfaces import IReactorTime

from sampleapp.brokers.kafka.batches import TooLargeBatch
from sampleapp.brokers.kafka.consumer.partition_read import PartitionRead
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.model import ConsumerRecord, GoneRecords

_SLICE_S: Final = 0.002
_RECORDS_BETWEEN_CLOCK_READS: Final = 32
"""Records and headers."""


class _Taken(Enum):
    ALL = "the answer has nothing more"
    SHARE = "the share of the partition is used up"
    SLICE = "the slice of the reactor's time is used up"


class PageBuilder:
    """Takes records from the responses for partitions: as many as it has room for, from each its share."""

    def __init__(self, *, limit: int, max_bytes: int, slices: TimeSlices, clock: IReactorTime) -> None:
        """
        :param limit: maximum number of records.
        :param max_bytes: maximum size of their keys, values and headers. A larger record is taken alone.
        """
        self.count = 0
        self.bytes = 0
        self.is_full = limit <= 0
        self._limit = limit
        self._max_bytes = max_bytes
        self._slices = slices
        self._clock = clock
        self._until_s = 0.0

    @property
    def room(self) -> int:
        """The number of records that it still has room for."""
        return self._limit - self.count

    @property
    def room_bytes(self) -> int:
        """The number of bytes that it still has room for."""
        return max(0, self._max_bytes - self.bytes)

    async def fill(self, partitions: Iterable[PartitionRead]) -> None:
        """
        Take records from the sources of partitions, in turns, until nothing is left or the page is full.

        :raise sampleapp.brokers.kafka.batches.UnreadableBatch: a batch cannot be read, that of the first of
            the remaining partitions. To be called again for the others.
        """
        left = list(partitions)
        await self._next_slice()
        while left:
            share, share_bytes = max(1, self.room // len(left)), self.room_bytes // len(left)
            for partition in left[:]:
                if self.is_full:
                    return
                if not await self._take_share(partition, share, share_bytes):
                    left.remove(partition)

    async def _take_share(self, partition: PartitionRead, share: int, share_bytes: int) -> bool:
        """:return: ``True`` if the partition may have more records."""
        count, size = min(self._limit, self.count + share), self.bytes + share_bytes
        while True:
            taken = self._take(partition, count, size)
            if taken is not _Taken.SLICE:
                return taken is _Taken.SHARE
            await self._next_slice()

    async def _next_slice(self) -> None:
        await self._slices.next()
        self._until_s = self._clock.seconds() + _SLICE_S

    def _take(self, partition: PartitionRead, count: int, size: int) -> _Taken:
        """Take records until the page has this count or size."""
        records, ticks = partition.records, 0
        for each in partition.source:
            if each.__class__ is ConsumerRecord:
                record_bytes = each.size
                if self.count and self.bytes + record_bytes > self._max_bytes:
                    self.is_full = True
                    return _Taken.SHARE
                records.append(each)
                partition.position = each.offset + 1
                self.count += 1
                self.bytes += record_bytes
                if self.count >= count or self.bytes >= size:
                    self.is_full = self.count >= self._limit or self.bytes >= self._max_bytes
                    return _Taken.SHARE
                ticks += 1 + len(each.headers)
                if ticks < _RECORDS_BETWEEN_CLOCK_READS:
                    continue
                ticks = 0
            elif isinstance(each, int):
                partition.position = each
            elif isinstance(each, TooLargeBatch):
                if not records:
                    asked, earliest = int(partition.position or 0), int(each.next_offset)
                    partition.gone = GoneRecords(partition.number, asked, earliest)
                # Records before the batch are returned first.
                partition.is_settled = True
                return _Taken.ALL
            if self._clock.seconds() >= self._until_s:
                return _Taken.SLICE
        return _Taken.ALL
