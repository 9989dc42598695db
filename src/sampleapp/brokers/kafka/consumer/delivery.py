"""Handing what was fetched to an observer, in turns of the reactor that are short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import Page, Transactions, decode_batches
from sampleapp.brokers.kafka.consumer.positions import Partition, Positions
from sampleapp.brokers.kafka.protocol import Fetched
from sampleapp.brokers.shared.pause import Pause
from sampleapp.interfaces import IRecordObserver

__all__ = ["Delivery"]

# What happens in one turn of the reactor: whichever is used up first.
_TURN_RECORDS: Final = 500
_TURN_S: Final = 0.005

_LENGTH_AT: Final = 8
_COUNTS_FROM: Final = 12


class Delivery:
    """The way of the records of one following to its observer, one partition at a time."""

    _log = Logger()

    def __init__(
        self, *, topic: str, observer: IRecordObserver, positions: Positions, clock: IReactorTime
    ) -> None:
        """
        :param positions: say when the observer has caught up.
        :param clock: measures the turns, and gives the reactor its turns in between.
        """
        self._topic = topic
        self._observer = observer
        self._positions = positions
        self._clock = clock
        self._pause = Pause(clock)
        self._one = DeferredLock()
        self._stopped = False
        self._told = False
        self._turn_began_s = 0.0
        self._turn_records = 0

    def stop(self) -> None:
        """Deliver nothing more, from now on."""
        self._stopped = True
        self._pause.end()

    def begin_turn(self) -> None:
        """The reactor has just called: the turn is as long as it may be."""
        self._turn_began_s = self._clock.seconds()
        self._turn_records = 0

    async def deliver(self, partition: Partition, fetched: Fetched) -> None:
        """
        Decode what was fetched, and deliver it; the partition's position is up to date at any moment.

        :raise CorruptBatch: a batch cannot be right. Those before it were delivered.
        :raise UnsupportedCodec: as `CorruptBatch`.
        """
        async with self._one:
            transactions = Transactions(fetched.aborted)
            for piece in _pieces(fetched):
                await self._deliver_piece(partition, piece, transactions)
                if self._stopped:
                    return
        self.check_caught_up()

    def check_caught_up(self) -> None:
        """Tell the observer that it has caught up, once that is so."""
        if self._told or self._stopped or not self._positions.caught_up:
            return
        self._told = True
        try:
            self._observer.caught_up()
        except Exception:  # noqa: BLE001 -- whatever it was, the following goes on
            self._log.failure("An observer failed on catching up with {topic}", topic=self._topic)

    async def _deliver_piece(self, partition: Partition, piece: bytes, transactions: Transactions) -> None:
        position = partition.position
        if position is None or not await self._may_go_on():
            return
        page: Page = decode_batches(
            piece, topic=self._topic, partition=partition.number, position=position, aborted=transactions
        )
        for record in page.records:
            if not await self._may_go_on():
                return
            # Kept up here, since the observer may stop the following at any record.
            partition.position = record.offset + 1
            self._turn_records += 1
            try:
                self._observer.record_received(record)
            except Exception:  # noqa: BLE001 -- whatever it was, the next record is delivered
                self._log.failure(
                    "An observer failed on record {offset} of partition {partition} of {topic}",
                    offset=record.offset,
                    partition=record.partition,
                    topic=self._topic,
                )
        partition.position = max(position, page.next_offset)

    async def _may_go_on(self) -> bool:
        """Let the reactor do other work if the turn is over."""
        if self._turn_records >= _TURN_RECORDS or self._clock.seconds() - self._turn_began_s >= _TURN_S:
            await self._pause.sleep(0)
            self.begin_turn()
        return not self._stopped


def _pieces(fetched: Fetched) -> Iterator[bytes]:
    """What was fetched, batch by batch: nobody waits for more than one to be decoded."""
    data = fetched.records
    start = 0
    while start < len(data):
        # In every format an offset of 8 bytes comes first, then how much follows. Decoding finds what is
        # wrong with a length that cannot be.
        length = int.from_bytes(data[start + _LENGTH_AT : start + _COUNTS_FROM], "big", signed=True)
        end = start + _COUNTS_FROM + length if length > 0 else len(data)
        yield data[start:end]
        start = end
