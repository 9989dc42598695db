"""Fetching from one broker, the leader of some partitions: one request after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import UnreadableBatch
from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed
from sampleapp.brokers.kafka.consumer.delivery import Delivery
from sampleapp.brokers.kafka.consumer.positions import (
    Extent,
    FollowedPartition,
    Found,
    Positions,
    ReadFailure,
)
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import EARLIEST, LATEST, Fetched, FetchRequest, ListOffsetsRequest
from sampleapp.concurrency.pause import Pause
from sampleapp.model import FromEnd, FromTime

__all__ = ["Fetching"]

_MAX_WAIT_MS: Final = 500
_FETCH_TIMEOUT_S: Final = 10.0
_LIST_TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 16 * 1024 * 1024
_PARTITION_MAX_BYTES: Final = 1024 * 1024
_MAX_LISTED: Final = 5
_LEAST_PACE_S: Final = 0.1
"""Minimum time between two requests without records, in seconds, for a broker that does not wait itself."""


class Fetching:
    """A loop that reads from one broker until the following is stopped."""

    _log = Logger()

    def __init__(
        self,
        *,
        node_id: int,
        topic: str,
        client: ClusterClient,
        positions: Positions,
        delivery: Delivery,
        clock: IReactorTime,
        topic_id: Callable[[], UUID | None],
        changed: Callable[[], None],
        refresh_metadata: Callable[[], None],
        reset: Callable[[str], None],
    ) -> None:
        """
        :param node_id: the broker.
        :param topic_id: returns the id of the topic, if it has one.
        :param changed: called after each round.
        :param refresh_metadata: called when the metadata may be out of date.
        :param reset: called with the reason when the log of a partition was replaced.
        """
        self._node_id = node_id
        self._topic = topic
        self._client = client
        self._positions = positions
        self._delivery = delivery
        self._clock = clock
        self._topic_id = topic_id
        self._changed = changed
        self._reset = reset
        self._refresh_metadata = refresh_metadata
        self._idle = Pause(clock)
        self._pace = Pause(clock)
        self._stopped = False
        self._rounds = 0
        self._max_bytes = _MAX_BYTES

    def stop(self) -> None:
        """End `run`, as soon as the request in flight has failed."""
        self._stopped = True
        self._idle.end()
        self._pace.end()

    def wake(self) -> None:
        """Look for partitions that are due."""
        self._idle.wake()

    async def run(self) -> None:
        """Read until stopped."""
        while not self._stopped:
            due: Sequence[FollowedPartition] = ()
            try:
                due = await self._wait_for_due()
                if due:
                    await self._round(due)
            except Exception:  # noqa: BLE001 -- any fault: nothing cancels this, and the loop must go on
                self._log.failure("Reading topic {topic} failed", topic=self._topic)
                failure = ReadFailure(
                    f"The topic {self._topic} could not be read; see the log.", "The topic could not be read."
                )
                self._failed(due, failure)
                await self._pace.sleep(_LEAST_PACE_S)
            if due:
                self._changed()

    async def _wait_for_due(self) -> Sequence[FollowedPartition]:
        """:return: the partitions that are due. If none is, wait, and return none: there may be changes."""
        now_s = self._clock.seconds()
        led = [each for each in self._positions.led_by(self._node_id) if not each.delivering]
        due = [each for each in led if each.is_due(now_s)]
        if not due:
            await self._idle.sleep(min((each.retry_at_s - now_s for each in led), default=None))
        return due

    async def _round(self, due: Sequence[FollowedPartition]) -> None:
        unlocated = [each for each in due if not each.located]
        if unlocated:
            await self._locate(unlocated)
        now_s = self._clock.seconds()
        ready = [
            each for each in self._positions.led_by(self._node_id) if each.located and each.is_due(now_s)
        ]
        if ready and not self._stopped:
            await self._fetch(ready)

    async def _locate(self, partitions: Sequence[FollowedPartition]) -> None:
        mark = object()
        for partition in partitions:
            partition.expect_response(mark)
        try:
            extents = await self._list_extents([partition.number for partition in partitions])
        except RequestFailed as error:
            self._unanswered([each for each in partitions if each.expects_response(mark)], error)
            return
        now_s = self._clock.seconds()
        deleted: list[str] = []
        for partition in partitions:
            extent = extents.get(partition.number)
            if extent is None or not partition.expects_response(mark):
                continue
            if extent.error:
                self._rejected(partition, extent.error)
                continue
            position = partition.position
            found = partition.locate(extent, now_s=now_s, start=self._positions.start_in(partition.number))
            self._delivery.tell_located(partition, before=position)
            if found is Found.REPLACED:
                self._replaced(partition, extent)
                return
            if found is Found.UNCERTAIN:
                self._rejected(partition, ErrorCode.OFFSET_OUT_OF_RANGE, transient=True)
            elif found is Found.DELETED:
                deleted.append(f"{position} to {extent.earliest - 1} of partition {partition.number}")
        if deleted:
            more = f" and of {len(deleted) - _MAX_LISTED} more" if len(deleted) > _MAX_LISTED else ""
            self._log.warn(
                "Records of the topic {topic} were deleted by Kafka, as by retention, before they were read: "
                "offsets {deleted}{more}. Reading goes on after them",
                topic=self._topic,
                deleted=", ".join(deleted[:_MAX_LISTED]),
                more=more,
            )

    async def _list_extents(self, partitions: Sequence[int]) -> dict[int, Extent]:
        """
        Request the first and last offsets of partitions, and those that the start is relative to, if any.

        :return: by the partition's number.
        :raise RequestFailed: the leader did not respond.
        """
        found: list[dict[int, tuple[int, int]]] = []
        start = self._positions.start
        # The high watermark is the end of the log; reading ends at the first open transaction.
        wanted = [(EARLIEST, False), (LATEST, False)]
        if isinstance(start, FromTime):
            wanted.append((start.timestamp_ms, False))
        elif isinstance(start, FromEnd):
            wanted.append((LATEST, True))
        for which, read_committed in wanted:
            request = ListOffsetsRequest(
                topics=[(self._topic, [(number, which) for number in partitions])],
                read_committed=read_committed,
            )
            response = await self._client.request(self._node_id, request, timeout_s=_LIST_TIMEOUT_S)
            found.append(
                {each.partition: (each.error, each.offset) for each in response if each.topic == self._topic}
            )
        earliest, latest, *third = found
        is_time = isinstance(start, FromTime)
        return {
            number: Extent(
                error=next((each[number][0] for each in found if each[number][0]), 0),
                earliest=earliest[number][1],
                latest=latest[number][1],
                since=third[0][number][1] if third and is_time else -1,
                stable=third[0][number][1] if third and not is_time else -1,
            )
            for number in earliest
            if all(number in each for each in found)
        }

    def _replaced(self, partition: FollowedPartition, extent: Extent) -> None:
        self._reset(
            f"Partition {partition.number} ends at offset {extent.latest}, before the position "
            f"{partition.position}: its log was replaced, because the topic was deleted and created again, "
            "or by an unclean leader election"
        )
        self._refresh_metadata()

    async def _fetch(self, partitions: Sequence[FollowedPartition]) -> None:
        topic_id = self._topic_id()
        request = FetchRequest(
            topics=[(self._topic, [(each.number, each.position or 0) for each in partitions])],
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._max_bytes,
            partition_max_bytes=min(self._max_bytes, _PARTITION_MAX_BYTES),
            read_committed=True,
            topic_ids={} if topic_id is None else {self._topic: topic_id},
        )
        for partition in partitions:
            partition.expect_response(request)
        asked_at_s = self._clock.seconds()
        try:
            response = await self._client.request(self._node_id, request, timeout_s=_FETCH_TIMEOUT_S)
        except RequestFailed as error:
            # The response may have been too large for the timeout on this network.
            self._max_bytes = max(self._max_bytes // 2, _PARTITION_MAX_BYTES)
            self._unanswered([each for each in partitions if each.expects_response(request)], error)
            return
        self._max_bytes = min(self._max_bytes + _PARTITION_MAX_BYTES, _MAX_BYTES)
        self._rounds += 1
        self._delivery.begin_slice()
        has_content = await self._take(request, partitions, response)
        if not has_content and not self._stopped:
            await self._pace.sleep(max(0.0, asked_at_s + _LEAST_PACE_S - self._clock.seconds()))

    async def _take(
        self, request: FetchRequest, partitions: Sequence[FollowedPartition], response: Iterable[Fetched]
    ) -> bool:
        """:return: whether the response had records or errors."""
        by_number = {fetched.partition: fetched for fetched in response if fetched.topic == self._topic}
        nothing_before = True
        has_content = False
        for partition in partitions:
            # `pop`, so that delivered batches are freed. A broker that throttles leaves out every partition
            # (KIP-219).
            fetched = by_number.pop(partition.number, None)
            if fetched is None or self._stopped:
                continue
            has_content = has_content or bool(fetched.error or fetched.records)
            if partition.expects_response(request):
                await self._take_one(partition, fetched, nothing_before=nothing_before)
            nothing_before = nothing_before and not fetched.records
        return has_content

    async def _take_one(
        self, partition: FollowedPartition, fetched: Fetched, *, nothing_before: bool
    ) -> None:
        if not fetched.error:
            partition.set_end(fetched.high_watermark)
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            partition.mark_suspect()
        elif fetched.error:
            if fetched.error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID):
                partition.discard_unread_position()
            self._rejected(partition, fetched.error)
        elif fetched.records:
            await self._deliver(partition, fetched)
        else:
            partition.clear_failure()
            partition.note_empty_response(fetched, alone=nothing_before, now_s=self._clock.seconds())

    async def _deliver(self, partition: FollowedPartition, fetched: Fetched) -> None:
        position = partition.position
        partition.begin_delivery(self._rounds)
        fault = None
        try:
            await self._delivery.deliver(partition, fetched)
        except UnreadableBatch as error:
            fault = error.fault
        else:
            if partition.position == position:
                fault = "Kafka has not sent a whole batch"
        finally:
            partition.end_delivery()
        if fault is None or self._stopped or partition.dropped:
            partition.clear_failure()
            return
        rest = f"cannot be read on at offset {partition.position}: {fault}."
        number = partition.number
        self._failed(
            [partition],
            ReadFailure(
                f"Partition {number} of the topic {self._topic} {rest}", f"Partition {number} {rest}"
            ),
        )

    def _unanswered(self, partitions: Sequence[FollowedPartition], error: RequestFailed) -> None:
        reason, broker = error.reason, self._node_id
        self._failed(
            partitions,
            ReadFailure(
                f"The topic {self._topic} cannot be read from broker {broker}: {reason.sentence}",
                f"The topic cannot be read: {reason.public}",
            ),
            transient=True,
        )

    def _rejected(self, partition: FollowedPartition, code: int, *, transient: bool = False) -> None:
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            failure = ReadFailure(
                f"The service is not allowed to read the topic {self._topic}; it needs the right READ.",
                "The service is not allowed to read the topic.",
            )
        else:
            number, name = partition.number, ErrorCode.name_of(code)
            failure = ReadFailure(
                f"Partition {number} of the topic {self._topic} cannot be read: broker {self._node_id} "
                f"answers {name}.",
                f"Partition {number} cannot be read: Kafka answers {name}.",
            )
        self._failed([partition], failure, transient=transient or ErrorCode.is_transient(code))

    def _failed(
        self, partitions: Iterable[FollowedPartition], failure: ReadFailure, *, transient: bool = False
    ) -> None:
        now_s = self._clock.seconds()
        for partition in partitions:
            partition.mark_failed(failure, now_s=now_s, transient=transient)
        self._refresh_metadata()
