"""The state of one read: that of its partitions, and the records that it has taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from twisted.internet.interfaces import IReactorTime

from sampleapp.brokers.kafka.batches import TooLargeBatch
from sampleapp.brokers.kafka.consumer.offsets import Extent, first_offset
from sampleapp.brokers.kafka.protocol import follow_divergence
from sampleapp.concurrency.rates import Backoff
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.model import (
    ConsumerRecord,
    FromOffset,
    GoneRecords,
    OffsetAndEpoch,
    ReadStart,
    epoch_of,
    with_epoch,
)

_RETRY: Final = Backoff(first_s=0.05, max_s=0.5)
_BEYOND_AFTER_S: Final = 2.0
"""A position counts as beyond the end after this time, in seconds: a former leader may still answer."""
_SLICE_S: Final = 0.002
_RECORDS_BETWEEN_CLOCK_READS: Final = 32
"""Records and headers."""


class PartitionRead:
    """One partition: its position, its end, its records, and the reason for which it cannot be read."""

    def __init__(self, number: int, start: ReadStart, *, check: bool, log_start: int = 0) -> None:
        """
        :param check: compare the position with the extent of the partition before anything is read.
        :param log_start: the first offset of the partition, as far as it is known from earlier reads.
        """
        self.number = number
        self.start = start
        self.position: int | None = start if isinstance(start, int) else None
        """The offset to read next; ``None`` until the start is resolved."""
        self.assumed: int | None = None
        """An offset that is fetched in order to resolve the start: the response confirms it."""
        if isinstance(start, FromOffset) and not check:
            self.assumed = max(start.offset, log_start)
        self.end: int | None = None
        """The last stable offset."""
        self.is_held = False
        """``True`` if there are records after the last stable offset."""
        self.is_settled = False
        """``True`` if there is nothing more to do in this read."""
        self.is_unverified = check and epoch_of(self.position or 0) >= 0
        """``True`` if a response to a Fetch must confirm that the log was not cut before the position."""
        self.is_suspect = (check and not self.is_unverified) or (
            self.position is None and self.assumed is None
        )
        """``True`` if its extent must be asked for before it is read."""
        self.gone: GoneRecords | None = None
        self.beyond: int | None = None
        """The end of the log, or of the leader epoch of the position, if the position is beyond it."""
        self.records: list[ConsumerRecord] = []
        self.source: Iterator[ConsumerRecord | TooLargeBatch | int | None] = iter(())
        """The undecoded rest of the last response; see `sampleapp.brokers.kafka.batches.read_gradually`."""
        self.failures = 0
        self.failure: str | None = None
        """The reason why it could not be read at the last attempt, for any caller."""
        self.retry_at_s = 0.0
        self.empty_responses = 0
        """Answers in a row without a record before the end."""
        self.short_responses = 0
        """Answers in a row with no whole batch."""
        self._beyond_since_s: float | None = None

    @property
    def offset(self) -> int | None:
        """The offset to fetch from, with its epoch; ``None`` while ListOffsets must resolve the start."""
        if self.position is None:
            return self.assumed
        # Not at each record, since that would be slow.
        last = self.records[-1] if self.records else None
        return self.position if last is None or last.offset + 1 != self.position else last.next_offset

    @property
    def is_being_confirmed(self) -> bool:
        """``True`` while its position seems to be beyond the end."""
        return self._beyond_since_s is not None

    @property
    def is_up_to_date(self) -> bool:
        """``True`` if the position is at the last stable offset."""
        return self.position is not None and self.end is not None and self.position >= self.end

    @property
    def has_moved(self) -> bool:
        """``True`` unless it is still where the caller has asked for it."""
        return self.position != self.start

    def fail(self, failure: str, *, now_s: float) -> None:
        """Note an error, and back off: each time longer."""
        self.failures += 1
        self.failure = failure
        self.retry_at_s = now_s + _RETRY.delay_s(self.failures)

    def succeed(self) -> None:
        """Note a response without an error."""
        self.failures = 0
        self.failure = None

    def confirm(self, log_start: int) -> bool:
        """
        Resolve the start, an offset that is in the log.

        :param log_start: the first offset of the log; -1 if it is not known.
        :return: ``False`` if the log begins earlier than was known: then fetch from there.
        """
        if self.position is not None or self.assumed is None:
            return True
        first = max(log_start, self.start.offset if isinstance(self.start, FromOffset) else 0)
        if first < self.assumed:
            self.assumed = first
            return False
        self.position = self.assumed if self.end is None else min(self.assumed, self.end)
        return True

    def follow_divergence(self, end: OffsetAndEpoch) -> None:
        """Compare the position with the end of its leader epoch in the log; see `Fetched.diverging`."""
        position = follow_divergence(self.offset or 0, end)
        if position is None:
            self._settle_beyond(end)
        else:
            self.position = position

    def locate(self, extent: Extent, *, now_s: float) -> bool:
        """
        Resolve the start, or compare the position with the extent.

        :return: ``False`` if the position is beyond the end, as far as this broker knows. It counts as
            beyond after a while, in which other brokers should be asked.
        """
        self.end = extent.stable
        self.is_held = extent.stable < extent.latest
        if self.position is None:
            self.position = self._first_offset(extent)
        elif self.position < extent.earliest:
            # Records that were read before are returned first, and the next read tells of the others.
            if not self.records:
                self.gone = GoneRecords(self.number, int(self.position), extent.earliest)
            self.is_settled = True
        elif self.position > extent.latest or 0 <= extent.leader_epoch < epoch_of(self.offset or 0):
            if self._beyond_since_s is None:
                self._beyond_since_s = now_s
            if now_s - self._beyond_since_s < _BEYOND_AFTER_S:
                return False
            self._settle_beyond(with_epoch(extent.latest, extent.leader_epoch))
        else:
            # The leader may have no epochs, as with `message.format.version` 0.10.
            self.position = int(self.position)
        self._beyond_since_s = None
        self.is_suspect = False
        return True

    def _first_offset(self, extent: Extent) -> int:
        if isinstance(self.start, int):
            return self.start
        first, end = first_offset(self.start, extent), extent.readable_end
        return first if first <= end else with_epoch(end, extent.leader_epoch)

    def _settle_beyond(self, end: int) -> None:
        # Records that were read before are returned first, and the next read tells of the others.
        if not self.records:
            self.beyond = end
        self.is_settled = True


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
