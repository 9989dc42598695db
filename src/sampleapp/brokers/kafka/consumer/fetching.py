"""Reading the partitions that one broker leads: one Fetch after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import CorruptBatch, UnsupportedCodec
from sampleapp.brokers.kafka.client import Client, RequestFailed
from sampleapp.brokers.kafka.consumer.delivery import Delivery
from sampleapp.brokers.kafka.consumer.listing import list_extents, locate
from sampleapp.brokers.kafka.consumer.positions import Partition, Positions
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import Fetched, FetchRequest
from sampleapp.brokers.shared.pause import Pause

__all__ = ["Fetching"]

_MAX_WAIT_MS: Final = 500
_TIMEOUT_S: Final = 10.0
_MAX_BYTES: Final = 16 * 1024 * 1024
_PARTITION_MAX_BYTES: Final = 1024 * 1024
_LEAST_PACE_S: Final = 0.1
"""A broker that has nothing is expected to wait; should it not, it is not asked more often than this."""


class Fetching:
    """The loop that reads from one broker, for as long as the following runs."""

    _log = Logger()

    def __init__(
        self,
        *,
        node_id: int,
        topic: str,
        client: Client,
        positions: Positions,
        delivery: Delivery,
        clock: IReactorTime,
        changed: Callable[[], None],
        look_again: Callable[[], None],
    ) -> None:
        """
        :param node_id: the broker.
        :param changed: is called after each round.
        :param look_again: is called when the metadata may be out of date.
        """
        self._node_id = node_id
        self._topic = topic
        self._client = client
        self._positions = positions
        self._delivery = delivery
        self._clock = clock
        self._changed = changed
        self._look_again = look_again
        self._idle = Pause(clock)
        self._pace = Pause(clock)
        self._stopped = False
        self._rounds = 0
        self._max_bytes = _MAX_BYTES

    def stop(self) -> None:
        """End `run`, as soon as the request under way has failed."""
        self._stopped = True
        self._idle.end()
        self._pace.end()

    def wake(self) -> None:
        """There may be partitions to read from."""
        self._idle.wake()

    async def run(self) -> None:
        """Read until stopped."""
        while not self._stopped:
            now_s = self._clock.seconds()
            led = [each for each in self._positions.led_by(self._node_id) if not each.delivering]
            due = [each for each in led if each.is_due(now_s)]
            if not due:
                await self._idle.sleep(min((each.retry_at_s - now_s for each in led), default=None))
                continue
            try:
                await self._round(due)
            except Exception:  # noqa: BLE001 -- nothing cancels this, and reading has to go on
                self._log.failure("Reading topic {topic} failed unexpectedly", topic=self._topic)
                self._failed(due, f"The topic {self._topic} could not be read; see the log.")
            self._changed()

    async def _round(self, due: Sequence[Partition]) -> None:
        unlocated = [each for each in due if not each.located]
        if unlocated:
            await self._locate(unlocated)
        now_s = self._clock.seconds()
        ready = [
            each for each in self._positions.led_by(self._node_id) if each.located and each.is_due(now_s)
        ]
        if ready and not self._stopped:
            await self._fetch(ready)

    async def _locate(self, partitions: Sequence[Partition]) -> None:
        mark = object()
        for partition in partitions:
            partition.request = mark
        try:
            extents = await list_extents(
                self._client,
                self._node_id,
                topic=self._topic,
                partitions=partitions,
                start=self._positions.start,
            )
        except RequestFailed as error:
            self._unanswered([each for each in partitions if each.request is mark], error)
            return
        now_s = self._clock.seconds()
        for partition in partitions:
            extent = extents.get(partition.number)
            if extent is None or partition.request is not mark:
                continue
            if extent.error:
                self._refused(partition, extent.error)
            elif not locate(partition, extent, topic=self._topic, now_s=now_s, start=self._positions.start):
                self._refused(partition, ErrorCode.OFFSET_OUT_OF_RANGE, transient=True)

    async def _fetch(self, partitions: Sequence[Partition]) -> None:
        request = FetchRequest(
            topics=[(self._topic, [(each.number, each.position or 0) for each in partitions])],
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._max_bytes,
            partition_max_bytes=min(self._max_bytes, _PARTITION_MAX_BYTES),
            read_committed=True,
        )
        for partition in partitions:
            partition.request = request
        asked_at_s = self._clock.seconds()
        try:
            answer = await self._client.request(self._node_id, request, timeout_s=_TIMEOUT_S)
        except RequestFailed as error:
            # It may have been too much for the time, on this line.
            self._max_bytes = max(self._max_bytes // 2, _PARTITION_MAX_BYTES)
            self._unanswered([each for each in partitions if each.request is request], error)
            return
        self._max_bytes = min(self._max_bytes + _PARTITION_MAX_BYTES, _MAX_BYTES)
        self._rounds += 1
        self._delivery.begin_turn()
        said_something = await self._take(request, partitions, answer)
        if not said_something and not self._stopped:
            await self._pace.sleep(max(0.0, asked_at_s + _LEAST_PACE_S - self._clock.seconds()))

    async def _take(
        self, request: FetchRequest, partitions: Sequence[Partition], answer: Iterable[Fetched]
    ) -> bool:
        """:return: whether the answer had records or errors."""
        by_number = {fetched.partition: fetched for fetched in answer if fetched.topic == self._topic}
        nothing_before = True
        said_something = False
        for partition in partitions:
            # Taken out, so that what has been delivered is in memory no more. A broker that throttles
            # leaves out every partition (KIP-219).
            fetched = by_number.pop(partition.number, None)
            if fetched is None or self._stopped:
                continue
            said_something = said_something or bool(fetched.error or fetched.records)
            if partition.request is request:
                await self._take_one(partition, fetched, nothing_before=nothing_before)
            nothing_before = nothing_before and not fetched.records
        return said_something

    async def _take_one(self, partition: Partition, fetched: Fetched, *, nothing_before: bool) -> None:
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            partition.suspect = True
        elif fetched.error:
            self._refused(partition, fetched.error)
        elif fetched.records:
            await self._deliver(partition, fetched)
        else:
            partition.worked()
            if nothing_before:
                # Otherwise the limits may have left no room for it, or for a batch that is beyond them.
                partition.found_nothing(fetched, now_s=self._clock.seconds())

    async def _deliver(self, partition: Partition, fetched: Fetched) -> None:
        position = partition.position
        partition.turn = self._rounds
        partition.found_something()
        # Whoever leads it meanwhile has to wait until all of this has been delivered.
        partition.delivering = True
        try:
            await self._delivery.deliver(partition, fetched)
        except (CorruptBatch, UnsupportedCodec) as error:
            reason = str(error)
        else:
            reason = "Kafka has sent no whole batch." if partition.position == position else ""
        finally:
            partition.delivering = False
        if reason and not self._stopped:
            where = f"Partition {partition.number} of the topic {self._topic}"
            self._failed([partition], f"{where} cannot be read on at offset {partition.position}: {reason}")
        else:
            partition.worked()

    def _unanswered(self, partitions: Sequence[Partition], error: RequestFailed) -> None:
        self._failed(
            partitions,
            f"The topic {self._topic} cannot be read from broker {self._node_id}: {error.reason.sentence}",
            transient=True,
        )

    def _refused(self, partition: Partition, code: int, *, transient: bool = False) -> None:
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            sentence = f"The service is not allowed to read the topic {self._topic}; it needs the right READ."
        else:
            sentence = (
                f"Partition {partition.number} of the topic {self._topic} cannot be read: broker "
                f"{self._node_id} answers {ErrorCode.name_of(code)}."
            )
        self._failed([partition], sentence, transient=transient or ErrorCode.is_transient(code))

    def _failed(self, partitions: Iterable[Partition], sentence: str, *, transient: bool = False) -> None:
        now_s = self._clock.seconds()
        for partition in partitions:
            partition.failed(sentence, now_s=now_s, transient=transient)
        self._look_again()
