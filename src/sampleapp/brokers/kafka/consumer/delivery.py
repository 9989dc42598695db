"""Handing what was fetched to an observer, in turns of the reactor that are short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import Page, UnreadableBatch, read_batches
from sampleapp.brokers.kafka.consumer.positions import Partition, Positions
from sampleapp.brokers.kafka.protocol import Fetched
from sampleapp.brokers.shared.observers import (
    batch_observer,
    deliver,
    deliver_batch,
    tell_caught_up,
    tell_reset,
)
from sampleapp.brokers.shared.pause import Pause
from sampleapp.interfaces import IRecordObserver
from sampleapp.model import ConsumerRecord

__all__ = ["Delivery"]

# What happens in one turn of the reactor: whichever is used up first.
_TURN_RECORDS: Final = 500
_TURN_BATCHED_RECORDS: Final = 2000
_BATCH_RECORDS: Final = 250
"""And headers of records."""
_TURN_S: Final = 0.005
_LOG_INTERVAL_S: Final = 10.0
"""At most so often is a line logged for batches that are skipped: a topic may hold nothing else."""


class Delivery:
    """The way of the records of one following to its observer, one partition at a time."""

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
        :param positions: say when the observer has caught up.
        :param clock: measures the turns, and gives the reactor its turns in between.
        :param max_batch_bytes: how much a batch may take after decompression.
        """
        self.skipped_batches = 0
        """How many batches were too large to be read, since the start."""
        self._topic = topic
        self._observer = observer
        self._batch_observer = batch_observer(observer)
        self._most_records = _TURN_RECORDS if self._batch_observer is None else _TURN_BATCHED_RECORDS
        self._positions = positions
        self._clock = clock
        self._max_batch_bytes = max_batch_bytes
        self._pause = Pause(clock)
        self._one = DeferredLock()
        self._stopped = False
        self._told_something = False
        self._told_caught_up = False
        self._turn_began_s = 0.0
        self._turn_records = 0
        self._skipped_since_logged = 0
        self._last_skipped = (0, 0, 0)
        self._log_again: IDelayedCall | None = None

    def stop(self) -> None:
        """Deliver nothing more, from now on."""
        self._stopped = True
        self._pause.end()
        if self._log_again is not None:
            self._log_again.cancel()
            self._log_again = None
            self._log_skipped()

    def begin_anew(self) -> None:
        """Tell the observer that what was delivered is void; catching up is told once more."""
        told, self._told_something, self._told_caught_up = self._told_something, False, False
        if told and not self._stopped:
            tell_reset(self._observer, topic=self._topic)

    def begin_turn(self) -> None:
        """The reactor has just called: the turn is as long as it may be."""
        self._turn_began_s = self._clock.seconds()
        self._turn_records = 0

    async def deliver(self, partition: Partition, fetched: Fetched) -> None:
        """
        Decode what was fetched, and deliver it; the partition's position is up to date at any moment.

        :raise sampleapp.brokers.kafka.batches.UnreadableBatch: a batch cannot be read. What stands before it
            was delivered.
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
                # Nothing waits for more than one batch to be decompressed.
                if not await self._may_go_on(partition):
                    return
        self.check_caught_up()

    def check_caught_up(self) -> None:
        """Tell the observer that it has caught up, once that is so."""
        if self._told_caught_up or self._stopped or not self._positions.caught_up:
            return
        self._told_caught_up = self._told_something = True
        tell_caught_up(self._observer, topic=self._topic)

    async def _deliver_page(self, partition: Partition, page: Page) -> None:
        position = partition.position
        if page.too_large and position is not None:
            self._skip(partition.number, position, page.next_offset - 1)
        if self._batch_observer is None:
            for record in page.records:
                if not await self._may_go_on(partition):
                    return
                # Kept up here, since the observer may stop the following at any record.
                partition.position = record.offset + 1
                self._turn_records += 1
                self._told_something = True
                deliver(self._observer, record)
        else:
            for records in _batches(page.records):
                partition.position = records[-1].offset + 1
                self._turn_records += len(records)
                self._told_something = True
                deliver_batch(self._batch_observer, records)
                if not await self._may_go_on(partition):
                    return
        if not self._stopped:
            partition.position = page.next_offset

    async def _may_go_on(self, partition: Partition) -> bool:
        """Let the reactor do other work if the turn is over."""
        if self._turn_records >= self._most_records or self._clock.seconds() - self._turn_began_s >= _TURN_S:
            await self._pause.sleep(0)
            self.begin_turn()
        return not self._stopped and not partition.dropped

    def _skip(self, partition: int, first_offset: int, last_offset: int) -> None:
        self.skipped_batches += 1
        self._skipped_since_logged += 1
        self._last_skipped = partition, first_offset, last_offset
        if self._log_again is None:
            self._log_skipped()

    def _log_skipped(self) -> None:
        """Log what was skipped since the last line, and look again after a while if there was something."""
        self._log_again = None
        if self._skipped_since_logged == 0:
            return
        partition, first_offset, last_offset = self._last_skipped
        self._log.warn(
            "Skipped {count} batch(es) of the topic {topic}, whose records take more than max_batch_bytes, "
            "{limit} bytes, after decompression; the last one in partition {partition}, from offset {offset} "
            "to {last_offset}",
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
    """:return: all of them; what could be read before an error, too."""
    batch: list[ConsumerRecord] = []
    room = _BATCH_RECORDS
    try:
        for record in records:
            batch.append(record)
            # Headers take many times the memory that they take in what was fetched.
            room -= 1 + len(record.headers)
            if room <= 0:
                yield batch
                batch, room = [], _BATCH_RECORDS
    except UnreadableBatch:
        # What stands before it counts.
        if batch:
            yield batch
        raise
    if batch:
        yield batch
