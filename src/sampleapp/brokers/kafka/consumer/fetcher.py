"""The fetcher of one broker: reads the partitions that it leads, for all subscriptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from msgspec import structs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import UnreadableBatch
from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed, request_failed
from sampleapp.brokers.kafka.consumer.fetch_session import FetchSession, SessionKey
from sampleapp.brokers.kafka.consumer.offsets import Name, extent_requests, extents_in
from sampleapp.brokers.kafka.consumer.partition import (
    SLICE_S,
    FollowedPartition,
    Follower,
    Found,
    PartitionEvent,
    PartitionState,
)
from sampleapp.brokers.kafka.consumer.read_failures import (
    NO_WHOLE_BATCH,
    ReadFailure,
    rejected,
    unanswered,
    unreadable,
)
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    Fetched,
    FetchRequest,
    SessionFetched,
    SessionFetchRequest,
)
from sampleapp.concurrency.waiting import Pause
from sampleapp.model import FromTime, OffsetAndEpoch, epoch_of, with_epoch

_MAX_WAIT_MS: Final = 500
_POLL_S: Final = 0.05
"""The interval for a partition without records until the Fetch that waits has returned and can name it."""
_TIERED_WAIT_MS: Final = 300
"""The wait for records that should be there: with tiered storage (KIP-405), a broker may have to get them."""
_FETCH_TIMEOUT_S: Final = 10.0
_LIST_TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 16 * 1024 * 1024
_PARTITION_MAX_BYTES: Final = 1024 * 1024
_MAX_LISTED: Final = 5
_LEAST_PACE_S: Final = 0.1
"""Minimum time between two requests without records, in seconds, for a broker that does not wait itself."""


class Fetcher:
    """
    Reads from one broker, with two requests at a time, each on a connection of its own.

    One Fetch waits at the broker until there are new records. It is sent in a fetch session, so it names only
    the partitions that have changed. A broker answers the requests of one connection in order, so partitions
    that become ready in the meantime, such as new ones, are read with other requests, which do not wait, and
    are named by the next Fetch that does.
    """

    def __init__(
        self, *, node_id: int, waiting: ClusterClient, not_waiting: ClusterClient, clock: IReactorTime
    ) -> None:
        """:param waiting: has the connection for the Fetch that waits; nothing else is sent on it."""
        self.ready: dict[FollowedPartition, None] = {}
        """The partitions that no request names and that are not being delivered, in the order of arrival."""
        self._waiting = _Waiting(self, node_id=node_id, client=waiting, clock=clock)
        self._not_waiting = _NotWaiting(self, node_id=node_id, client=not_waiting, clock=clock)
        self._loops = (self._waiting, self._not_waiting)
        self.max_bytes = _MAX_BYTES
        """The limit of one request, and of records that are being delivered when another one is sent."""
        self.undelivered_bytes = 0

    @property
    def is_full(self) -> bool:
        """``True`` if no more may be requested for now."""
        return self.undelivered_bytes >= self.max_bytes

    def share(self, fetchers: int) -> None:
        """
        Take this fetcher's share of the memory for records.

        Two requests may have been sent before the records of earlier ones are delivered, so all fetchers
        together hold three times `_MAX_BYTES`, or more if each has its minimum.
        """
        self.max_bytes = max(_MAX_BYTES // fetchers, _PARTITION_MAX_BYTES)

    def run(self) -> list[Deferred[None]]:
        """Read until stopped; each Deferred fires with ``None`` when a part has ended."""
        return [Deferred.fromCoroutine(each.run()) for each in self._loops]

    def stop(self) -> None:
        """End `run`, as soon as the requests in flight have failed."""
        for each in self._loops:
            each.stop()

    def add(self, partition: FollowedPartition) -> None:
        """Read a partition; to be followed by `wake`."""
        partition.holder = self
        if partition.state is not PartitionState.DELIVERING:
            self.ready[partition] = None

    def release(self, partition: FollowedPartition) -> None:
        """See `Holder.release`."""
        partition.holder = None
        if partition in self.ready:
            del self.ready[partition]
        elif partition.state is not PartitionState.DELIVERING:
            for each in self._loops:
                each.forget(partition)
        partition.handle(PartitionEvent.RELEASED)

    def wake(self) -> None:
        """Look for partitions that are ready."""
        # The Fetch that waits is given partitions first: in ordinary times, no other request is needed.
        if not self._waiting.is_taking:
            self._waiting.wake()
            self._not_waiting.wake()

    def wake_not_waiting(self) -> None:
        """Look for partitions that the Fetch that waits does not name."""
        self._not_waiting.wake()


class _Loop:
    """One request after another, on one connection."""

    _log = Logger()

    def __init__(self, fetcher: Fetcher, *, node_id: int, client: ClusterClient, clock: IReactorTime) -> None:
        self._fetcher = fetcher
        self._node_id = node_id
        self._client = client
        self._clock = clock
        self._named: dict[Name, list[FollowedPartition]] = {}
        """
        The partitions of the request, which may name each only once.

        More than one of a name are of several subscriptions.
        """
        self._asked: dict[Name, int] = {}
        """The offsets in the request, with their epochs."""
        self._changed: set[Follower] = set()
        self._idle = Pause(clock)
        self._pace = Pause(clock)
        self._stopped = False
        self._rounds = 0
        self._max_bytes = _MAX_BYTES
        self.is_taking = False
        """``True`` from the response to a Fetch that waits to the next request."""

    def stop(self) -> None:
        self._stopped = True
        self._idle.end()
        self._pace.end()

    def wake(self) -> None:
        self._idle.wake()

    async def run(self) -> None:
        while not self._stopped:
            try:
                if self._fetcher.is_full:
                    self.is_taking = False
                    await self._idle.sleep(None)
                elif not await self._round():
                    await self._idle.sleep(self._idle_s())
            except Exception:  # noqa: BLE001 -- any fault: nothing cancels this, and the loop must go on
                self._log.failure("Reading from broker {broker} failed", broker=self._node_id)
                self._failed(self._all_named(), _faulty)
                await self._pace.sleep(_LEAST_PACE_S)
            self._tell_changes()
            if self._fetcher.ready:
                self._fetcher.wake()

    async def _round(self) -> bool:
        """:return: ``False`` if there was nothing to ask for."""
        raise NotImplementedError

    def _idle_s(self) -> float | None:
        raise NotImplementedError

    def forget(self, partition: FollowedPartition) -> None:
        """Ignore the response for a partition, and do not name it again."""
        name = _name(partition)
        some = self._named.get(name, [])
        if partition in some:
            some.remove(partition)
            if not some:
                del self._named[name]
                self._asked.pop(name, None)

    def _take(self, partition: FollowedPartition) -> None:
        """Name a partition that is ready in the next request."""
        self._named.setdefault(_name(partition), []).append(partition)
        del self._fetcher.ready[partition]
        partition.handle(PartitionEvent.ASKED)

    def _put_back(self, partition: FollowedPartition, event: PartitionEvent) -> None:
        """Let a partition be named by any request, or by a ListOffsets."""
        self.forget(partition)
        partition.handle(event)
        self._fetcher.add(partition)

    def _tell_changes(self) -> None:
        changed, self._changed = self._changed, set()
        for each in changed:
            each.changed()

    # Responses

    async def _take_response(self, response: Iterable[Fetched]) -> bool:
        """:return: whether the response had records or errors."""
        self._rounds += 1
        began_s = self._clock.seconds()
        is_alone, has_content = True, False
        for fetched in response:
            if self._clock.seconds() - began_s >= SLICE_S:
                await self._pace.sleep(0)
                began_s = self._clock.seconds()
            name = fetched.topic, fetched.partition
            asked_from = self._asked.get(name, 0)
            for partition in list(self._named.get(name, ())):
                # Delivering to one may have ended the others.
                if partition.state is not PartitionState.FETCHING:
                    continue
                try:
                    self._take_one(partition, fetched, asked_from, is_alone=is_alone, began_s=began_s)
                except Exception:  # noqa: BLE001 -- any fault of one must not end the reading of others
                    self._log.failure("Reading topic {topic} failed", topic=fetched.topic)
                    self._failed([partition], _faulty)
            has_content = has_content or bool(fetched.error or fetched.records)
            is_alone = is_alone and not fetched.records
        return has_content

    def _take_one(
        self,
        partition: FollowedPartition,
        fetched: Fetched,
        asked_from: int,
        *,
        is_alone: bool,
        began_s: float,
    ) -> None:
        self._changed.add(partition.follower)
        partition.note_end(fetched, now_s=self._clock.seconds())
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._put_back(partition, PartitionEvent.OUT_OF_RANGE)
        elif fetched.error:
            self._rejected(partition, fetched.error)
            if fetched.error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID):
                partition.discard_unread_position()
        elif fetched.diverging is not None:
            self._diverged(partition, fetched.diverging)
        elif fetched.records:
            self.forget(partition)
            partition.begin_delivery(self._rounds)
            Deferred.fromCoroutine(self._deliver(partition, fetched, asked_from, began_s))
        else:
            partition.clear_failure()
            partition.note_nothing(is_alone=is_alone, now_s=self._clock.seconds())
            self._nothing(partition, is_alone=is_alone)

    def _diverged(self, partition: FollowedPartition, end: OffsetAndEpoch) -> None:
        position = partition.position
        if partition.note_diverging(end):
            _reset(
                partition,
                f"Partition {partition.number} was cut at offset {end}, before the position {position!r}, by "
                "an unclean leader election, or by the loss of a disk or its replacement by an older copy",
            )
        else:
            self._put_back(partition, PartitionEvent.RELEASED)

    def _nothing(self, partition: FollowedPartition, *, is_alone: bool) -> None:
        """Handle a response without records."""
        raise NotImplementedError

    async def _deliver(
        self, partition: FollowedPartition, fetched: Fetched, asked_from: int, began_s: float
    ) -> None:
        follower, failure = partition.follower, None
        self._fetcher.undelivered_bytes += len(fetched.records)
        try:
            await follower.deliver(partition, fetched, began_s=began_s)
            if partition.position == asked_from and not partition.dropped and not self._stopped:
                failure = _unreadable(partition, NO_WHOLE_BATCH)
            else:
                partition.clear_failure()
        except UnreadableBatch as error:
            failure = _unreadable(partition, error.fault)
        except Exception:  # noqa: BLE001 -- any fault: the partition must be read again
            self._log.failure("Reading topic {topic} failed", topic=follower.topic)
            failure = _faulty(partition)
        partition.end_delivery(self._clock.seconds())
        if failure is not None:
            partition.mark_failed(failure, now_s=self._clock.seconds())
            follower.refresh_metadata()
        self._fetcher.undelivered_bytes -= len(fetched.records)
        # Another broker may lead it by now.
        holder = partition.holder
        if holder is not None:
            holder.add(partition)
            holder.wake()
        if holder is not self._fetcher:
            self._fetcher.wake()
        follower.changed()

    # Errors

    def _unanswered(self, partitions: Collection[FollowedPartition], error: RequestFailed) -> None:
        self._failed(
            partitions,
            lambda each: unanswered(each.follower.topic, error.reason, node_id=self._node_id),
            transient=True,
        )

    def _rejected(self, partition: FollowedPartition, code: int, *, transient: bool = False) -> None:
        failure = rejected(partition.follower.topic, partition.number, code, node_id=self._node_id)
        self._failed([partition], lambda _: failure, transient=transient or ErrorCode.is_transient(code))

    def _failed(
        self,
        partitions: Collection[FollowedPartition],
        failure: Callable[[FollowedPartition], ReadFailure],
        *,
        transient: bool = False,
    ) -> None:
        now_s = self._clock.seconds()
        for partition in partitions:
            self._put_back(partition, PartitionEvent.RELEASED)
            partition.mark_failed(failure(partition), now_s=now_s, transient=transient)
            self._changed.add(partition.follower)
        for follower in {each.follower for each in partitions}:
            follower.refresh_metadata()

    def _adapt_size(self, *, has_failed: bool) -> None:
        if has_failed:
            # The response may have been too large for the timeout on this network.
            self._max_bytes = max(self._most_bytes() // 2, _PARTITION_MAX_BYTES)
        else:
            self._max_bytes += _PARTITION_MAX_BYTES

    def _most_bytes(self) -> int:
        self._max_bytes = min(self._max_bytes, self._fetcher.max_bytes)
        return self._max_bytes

    def _limits(self, *, max_wait_ms: int) -> dict[str, Any]:
        return {
            "max_wait_ms": max_wait_ms,
            "min_bytes": 1,
            "max_bytes": self._most_bytes(),
            "partition_max_bytes": _PARTITION_MAX_BYTES,
            "read_committed": True,
        }

    def _all_named(self) -> list[FollowedPartition]:
        return [each for some in self._named.values() for each in some]


class _Waiting(_Loop):
    """A Fetch that waits at the broker, in a session."""

    def __init__(self, fetcher: Fetcher, *, node_id: int, client: ClusterClient, clock: IReactorTime) -> None:
        super().__init__(fetcher, node_id=node_id, client=client, clock=clock)
        self._session = FetchSession()
        self._has_failed = False
        self._keys: dict[Name, SessionKey] = {}
        """The partitions that the session has."""

    def forget(self, partition: FollowedPartition) -> None:
        super().forget(partition)
        name = _name(partition)
        if name in self._keys and name not in self._named:
            self._session.remove(self._keys.pop(name))

    def _take(self, partition: FollowedPartition) -> None:
        name, position = _name(partition), partition.position or 0
        if position < self._asked.get(name, position):
            # A quota may have left the responses for their own positions empty.
            for each in list(self._named[name]):
                self._put_back(each, PartitionEvent.RELEASED)
        super()._take(partition)
        key = self._keys.setdefault(name, SessionKey(name[0], partition.follower.topic_id, name[1]))
        self._asked.setdefault(name, position)
        self._session.put(key, self._asked[name], leader_epoch=partition.leader_epoch)

    def _idle_s(self) -> float | None:
        return None

    async def _round(self) -> bool:
        now_s = self._clock.seconds()
        # Those that wait first: they may share a position only with others that the leader's log has, too.
        for partition in sorted(self._fetcher.ready, key=lambda each: each.state is PartitionState.READY):
            if self._may_name(partition, now_s):
                self._take(partition)
        self.is_taking = False
        if self._fetcher.ready:
            self._fetcher.wake_not_waiting()
        if not self._named:
            return False
        request = SessionFetchRequest(
            **structs.asdict(self._session.next_request()), **self._limits(max_wait_ms=_MAX_WAIT_MS)
        )
        asked_at_s = self._clock.seconds()
        try:
            response = await self._ask(request)
        except RequestFailed as error:
            self._has_failed = True
            self._session.lost()
            self._adapt_size(has_failed=True)
            self._unanswered(self._all_named(), error)
            return True
        self._has_failed = False
        self._adapt_size(has_failed=False)
        if response.error:
            self._session.lost(response.error)
            # Otherwise, the next request has everything.
            if request.session_epoch == 0:
                for partition in self._all_named():
                    self._rejected(partition, response.error)
            return True
        self._session.responded(response.session_id)
        self.is_taking = True
        self.is_taking = has_content = await self._take_response(response.partitions)
        if not has_content and not self._stopped:
            await self._pace.sleep(max(0.0, asked_at_s + _LEAST_PACE_S - self._clock.seconds()))
        return True

    async def _ask(self, request: SessionFetchRequest) -> SessionFetched:
        if self._has_failed or self._node_id not in self._client.node_ids():
            # The topics' metadata is loaded by the other client; this one must know the addresses.
            await self._client.load_metadata(())
        return await self._client.request(self._node_id, request, timeout_s=_FETCH_TIMEOUT_S)

    def _nothing(self, partition: FollowedPartition, *, is_alone: bool) -> None:
        """Go on: the session keeps the partition."""

    def _may_name(self, partition: FollowedPartition, now_s: float) -> bool:
        if partition.is_awaited(now_s) and not partition.has_open_transaction():
            # In a session, a broker does not say that there is nothing.
            return False
        name = _name(partition)
        others = self._named.get(name)
        if partition.state is PartitionState.READY:
            # One that is behind others of its name is read by itself until it has come to the end.
            return partition.retry_at_s <= now_s and others is None
        is_of_another_topic = name in self._keys and self._keys[name].topic_id != partition.follower.topic_id
        # The log of one leader only grows, and another leader rejects the epoch.
        may_share = (
            others is None
            or partition.leader_epoch == others[0].leader_epoch >= 0
            or _asks_the_same(partition, others[0])
        )
        return partition.state is PartitionState.WAITING and not is_of_another_topic and may_share


class _NotWaiting(_Loop):
    """Requests that the broker answers at once."""

    def _idle_s(self) -> float | None:
        now_s = self._clock.seconds()
        return min((max(0.0, each.retry_at_s - now_s) for each in self._fetcher.ready), default=None)

    async def _round(self) -> bool:
        now_s = self._clock.seconds()
        due = sorted(
            (each for each in self._fetcher.ready if each.retry_at_s <= now_s),
            key=lambda each: (each.last_round, each.number),
        )
        lost = [each for each in due if each.state is PartitionState.LOST]
        for partition in lost or due:
            name = _name(partition)
            if name not in self._named or (not lost and _asks_the_same(partition, self._named[name][0])):
                self._take(partition)
                self._asked[name] = partition.position or 0
        if lost:
            await self._locate(self._all_named())
        elif due:
            await self._fetch(self._all_named())
        for partition in self._all_named():
            # A broker that throttles leaves out every partition (KIP-219).
            self._put_back(partition, PartitionEvent.RELEASED)
            partition.retry_at_s = self._clock.seconds() + _LEAST_PACE_S
        return bool(due)

    async def _fetch(self, partitions: Collection[FollowedPartition]) -> None:
        topics: defaultdict[str, dict[int, int]] = defaultdict(dict)
        leader_epochs: dict[Name, int] = {}
        for each in partitions:
            topics[each.follower.topic][each.number] = each.position or 0
            leader_epochs[_name(each)] = each.leader_epoch
        request = FetchRequest(
            topics=[(topic, list(offsets.items())) for topic, offsets in topics.items()],
            topic_ids={
                each.follower.topic: each.follower.topic_id
                for each in partitions
                if each.follower.topic_id is not None
            },
            leader_epochs=leader_epochs,
            **self._limits(
                max_wait_ms=_TIERED_WAIT_MS if all(each.has_nothing() for each in partitions) else 0
            ),
        )
        try:
            response = await self._client.request(self._node_id, request, timeout_s=_FETCH_TIMEOUT_S)
        except RequestFailed as error:
            self._adapt_size(has_failed=True)
            self._unanswered(self._all_named(), error)
            return
        self._adapt_size(has_failed=False)
        await self._take_response(response)

    def _nothing(self, partition: FollowedPartition, *, is_alone: bool) -> None:
        if is_alone or not partition.lag:
            self._put_back(partition, PartitionEvent.NOTHING)
            partition.retry_at_s = self._clock.seconds() + _POLL_S
        else:
            self._put_back(partition, PartitionEvent.RELEASED)

    async def _locate(self, partitions: Sequence[FollowedPartition]) -> None:
        starts = {
            _name(each): each.follower.start_in(each.number) for each in partitions if each.position is None
        }
        times = {name: start.timestamp_ms for name, start in starts.items() if isinstance(start, FromTime)}
        asked = [
            self._client.request(self._node_id, request, timeout_s=_LIST_TIMEOUT_S).addErrback(request_failed)
            for request in extent_requests(map(_name, partitions), times=times, leader_epochs={})
        ]
        responses: list[Any] = [await each for each in asked]
        for each in responses:
            if isinstance(each, RequestFailed):
                self._unanswered(self._all_named(), each)
                return
        extents = extents_in(responses, times=times)
        now_s = self._clock.seconds()
        deleted: defaultdict[str, list[str]] = defaultdict(list)
        for partition in self._all_named():
            extent = extents.get(_name(partition))
            if extent is None or partition.state is not PartitionState.LOCATING:
                continue
            if extent.error:
                self._rejected(partition, extent.error)
                continue
            follower, position = partition.follower, partition.position
            self._changed.add(follower)
            found = partition.locate(extent, now_s=now_s, start=follower.start_in(partition.number))
            if found is Found.REPLACED:
                _reset(
                    partition,
                    f"Partition {partition.number} ends at offset "
                    f"{with_epoch(extent.latest, extent.leader_epoch)!r}, before the position {position!r}: "
                    "its log was replaced, because the topic was deleted and created again, or by an unclean "
                    "leader election",
                )
                continue
            follower.tell_located(partition, before=position)
            if found is Found.UNCERTAIN:
                self._rejected(partition, ErrorCode.OFFSET_OUT_OF_RANGE, transient=True)
                continue
            if found is Found.DELETED:
                deleted[follower.topic].append(
                    f"{position} to {extent.earliest - 1} of partition {partition.number}"
                )
            self._put_back(partition, PartitionEvent.RELEASED)
        for topic, some in deleted.items():
            more = f" and of {len(some) - _MAX_LISTED} more" if len(some) > _MAX_LISTED else ""
            self._log.warn(
                "Records of the topic {topic} were deleted by Kafka, as by retention, before they were read: "
                "offsets {deleted}{more}. Reading goes on after them",
                topic=topic,
                deleted=", ".join(some[:_MAX_LISTED]),
                more=more,
            )


def _name(partition: FollowedPartition) -> Name:
    return partition.follower.topic, partition.number


def _asks_the_same(partition: FollowedPartition, other: FollowedPartition) -> bool:
    """Return ``True`` if one request is right for both."""
    one, another = partition.position or 0, other.position or 0
    return (
        one == another and epoch_of(one) == epoch_of(another) and partition.leader_epoch == other.leader_epoch
    )


def _reset(partition: FollowedPartition, why: str) -> None:
    partition.follower.reset(why)
    partition.follower.refresh_metadata()


def _faulty(partition: FollowedPartition) -> ReadFailure:
    return ReadFailure(
        f"The topic {partition.follower.topic} could not be read; see the log.",
        "The topic could not be read.",
        "fault",
    )


def _unreadable(partition: FollowedPartition, fault: str) -> ReadFailure:
    return unreadable(partition.follower.topic, partition.number, partition.position, fault)
