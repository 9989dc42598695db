"""Delivery of fetched records to an observer, in short slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import FetchedPage, UnreadableBatch, read_batches
from sampleapp.brokers.kafka.consumer.partition import SLICE_S, FollowedPartition, Positions
from sampleapp.brokers.kafka.protocol import Fetched
from sampleapp.brokers.shared.following import (
    batch_observer,
    deliver,
    deliver_batch,
    position_observer,
    tell_begun_at,
    tell_caught_up,
    tell_passed,
    tell_reset,
)
from sampleapp.concurrency.waiting import Pause
from sampleapp.interfaces import IRecordObserver
from sampleapp.model import ConsumerRecord

# The limits of one slice. Whichever is reached first ends it.
_SLICE_RECORDS: Final = 500
_SLICE_BATCHED_RECORDS: Final = 2000
_BATCH_RECORDS: Final = 250
"""Maximum records and headers in one call of the observer."""
_LOG_INTERVAL_S: Final = 10.0
"""Minimum time between two lines about skipped batches, in seconds: a topic may hold nothing else."""


class Delivery:
    """Delivers the records of one subscription to its observer, one partition at a time."""

    _log = Logger()

    def __init__(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        positions: Positions,
        clock: IReactorTime,
        max_batch_bytes: int,
    ) -> None:
        """
        :param positions: know when the observer has caught up.
        :param clock: measures the slices, and schedules the next one.
        :param max_batch_bytes: maximum size of a batch after decompression.
        """
        self.skipped_batches = 0
        """The number of batches that were too large to be read, since the start."""
        self._topic = topic
        self._observer = observer
        self._batch_observer = batch_observer(observer)
        self._position_observer = position_observer(observer)
        self._most_records = _SLICE_RECORDS if self._batch_observer is None else _SLICE_BATCHED_RECORDS
        self._positions = positions
        self._clock = clock
        self._max_batch_bytes = max_batch_bytes
        self._pause = Pause(clock)
        self._one = DeferredLock()
        self._stopped = False
        self._told_something = False
        self._told_caught_up = False
        self._slice_began_s = 0.0
        self._slice_records = 0
        self._skipped_since_logged = 0
        self._last_skipped = (0, 0, 0)
        self._log_again: IDelayedCall | None = None

    def stop(self) -> None:
        """Deliver nothing more."""
        self._stopped = True
        self._pause.end()
        if self._log_again is not None:
            self._log_again.cancel()
            self._log_again = None
            self._log_skipped()

    def reset(self) -> None:
        """Tell the observer to discard all records; it is told again when it has caught up."""
        told, self._told_something, self._told_caught_up = self._told_something, False, False
        if told and not self._stopped:
            tell_reset(self._observer, topic=self._topic)

    def tell_located(self, partition: FollowedPartition, *, before: int | None) -> None:
        """Tell the observer from which offset on records are delivered, if the position has changed."""
        position = partition.position
        if self._position_observer is None or self._stopped or position is None or position == before:
            return
        self._told_something = True
        tell_begun_at(self._position_observer, partition.number, position)

    def begin_slice(self, began_s: float) -> None:
        """
        Begin a slice.

        :param began_s: when this turn of the reactor began its work.
        """
        self._slice_began_s = began_s
        self._slice_records = 0

    async def ended(self) -> None:
        """Wait for the end of deliveries that are under way, which is near after `stop`."""
        async with self._one:
            pass

    async def deliver(self, partition: FollowedPartition, fetched: Fetched) -> None:
        """
        Decode fetched batches, and deliver their records; the partition's position is always up to date.

        :raise sampleapp.brokers.kafka.batches.UnreadableBatch: a batch cannot be read. The records before it
            have been delivered.
        """
        async with self._one:
            if partition.position is None or not await self._may_go_on(partition):
                return
            pages = read_batches(
                fetched.records,
                topic=self._topic,
                partition=partition.number,
                position=partition.position,
                aborted=fetched.aborted,
                max_batch_bytes=self._max_batch_bytes,
            )
            for page in pages:
                await self._deliver_page(partition, page)
                # Between batches, so that a slice decompresses at most one more than its limit.
                if not await self._may_go_on(partition):
                    return
        self.check_caught_up()

    def check_caught_up(self) -> None:
        """Tell the observer, once, that it has caught up, if it has."""
        if self._told_caught_up or self._stopped or not self._positions.is_caught_up(self._clock.seconds()):
            return
        self._told_caught_up = self._told_something = True
        tell_caught_up(self._observer, topic=self._topic)

    async def _deliver_page(self, partition: FollowedPartition, page: FetchedPage) -> None:
        position = partition.position
        if page.too_large and position is not None:
            self._skip(partition.number, position, page.next_offset - 1)
        if self._batch_observer is None:
            for record in page.records:
                if not await self._may_go_on(partition):
                    return
                # Before the call, since the observer may stop the following at any record.
                partition.position = record.next_offset
                self._slice_records += 1
                self._told_something = True
                deliver(self._observer, record)
        else:
            for records in _batches(page.records):
                partition.position = records[-1].next_offset
                self._slice_records += len(records)
                self._told_something = True
                deliver_batch(self._batch_observer, records)
                if not await self._may_go_on(partition):
                    return
        if self._stopped or partition.dropped:
            return
        passed, partition.position = partition.position, page.next_offset
        if page.too_large:
            tell_begun_at(self._position_observer, partition.number, page.next_offset)
        elif passed != page.next_offset:
            tell_passed(self._position_observer, partition.number, page.next_offset)

    async def _may_go_on(self, partition: FollowedPartition) -> bool:
        """Wait for the next slice if this one is over. Return ``False`` if nothing more may be delivered."""
        if (
            self._slice_records >= self._most_records
            or self._clock.seconds() - self._slice_began_s >= SLICE_S
        ):
            await self._pause.sleep(0)
            self.begin_slice(self._clock.seconds())
        return not self._stopped and not partition.dropped

    def _skip(self, partition: int, first_offset: int, last_offset: int) -> None:
        self.skipped_batches += 1
        self._skipped_since_logged += 1
        self._last_skipped = partition, first_offset, last_offset
        if self._log_again is None:
            self._log_skipped()

    def _log_skipped(self) -> None:
        """Log the batches skipped since the last line. If there were any, schedule the next line."""
        self._log_again = None
        if self._skipped_since_logged == 0:
            return
        partition, first_offset, last_offset = self._last_skipped
        self._log.warn(
            "Skipped {count} batch(es) of the topic {topic}: after decompression they are larger than "
            "max_batch_bytes, {limit} bytes. Their records are not read. The last one is in partition "
            "{partition}, from offset {offset} to {last_offset}",
            count=self._skipped_since_logged,
            topic=self._topic,
            limit=self._max_batch_bytes,
            partition=partition,
            offset=first_offset,
            last_offset=last_offset,
        )
        self._skipped_since_logged = 0
        if not self._stopped:
            self._log_again = self._clock.callLater(_LOG_INTERVAL_S, self._log_skipped)


def _batches(records: Iterable[ConsumerRecord]) -> Iterator[Sequence[ConsumerRecord]]:
    """:return: all records, including those before one that cannot be read."""
    batch: list[ConsumerRecord] = []
    room = _BATCH_RECORDS
    try:
        for record in records:
            batch.append(record)
            # Decoded headers need many times the memory that they need in the fetched batch.
            room -= 1 + len(record.headers)
            if room <= 0:
                yield batch
                batch, room = [], _BATCH_RECORDS
    except UnreadableBatch:
        # The records before the error are delivered.
        if batch:
            yield batch
        raise
    if batch:
        yield batch
