"""Share groups: their settings, their first members, and their backlogs."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec import Struct
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed, ask_one_of
from sampleapp.brokers.kafka.consumer.discovery import TopicView
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    JOIN_GROUP,
    LEAVE_GROUP,
    OF_BROKER,
    OF_GROUP,
    DescribeConfigsRequest,
    DescribedConfig,
    DescribeShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    Request,
    SetGroupConfigsRequest,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatRequest,
    ShareGroupOffsets,
)
from sampleapp.brokers.kafka.work.failures import rejected, unanswered
from sampleapp.concurrency.failures import LogLimit
from sampleapp.concurrency.waiting import Waiters
from sampleapp.errors import BrokerUnavailable, PublishError, WorkError
from sampleapp.model import EARLIEST, ReadRequest, ReadResult

A = TypeVar("A", ShareGroupHeartbeat, ShareGroupOffsets)
R = TypeVar("R")

_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 0.1
_DEADLINE_S: Final = 10.0
"""Seconds for a new group. The first one of a cluster takes three: its state gets a topic of its own."""
_REST_S: Final = 0.5
"""Seconds to wait for further partitions after the first ones: other members may have them."""
_STOP_S: Final = 1.0
"""Seconds for members to leave at the end."""
_SETTINGS_AGE_S: Final = 60.0
_MOST_GROUPS: Final = 1000

_OF_NEW_GROUP: Final = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
_ATTEMPTS: Final = "share.delivery.count.limit"
_ATTEMPTS_OF_BROKER: Final = "group.share.delivery.count.limit"
_STARTING: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class GroupSettings(Struct, frozen=True):
    """The settings of a group, as far as this service may read them."""

    most_attempts: int | None
    """The attempts after which a message is given up."""
    own: frozenset[str]
    """The names of those that are not the brokers'."""
    error: int
    """Kafka's error code, if they cannot be read."""
    read_at_s: float


class Groups:
    """
    The share groups of a cluster.

    A session needs no member of the group, but the coordinator makes the state of a partition only for
    members. So a member joins, waits until it has partitions, and leaves: one that stayed would keep its
    partitions from Java's consumers.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        client: ClusterClient,
        read: Callable[[ReadRequest], Deferred[ReadResult]],
        clock: IReactorTime,
    ) -> None:
        """:param read: see `sampleapp.interfaces.IBroker.read`; for the extents of partitions."""
        self._client = client
        self._read = read
        self._clock = clock
        self._settings: OrderedDict[str, GroupSettings] = OrderedDict()
        """The one that was used last at the end."""
        self._busy: dict[object, Waiters[None]] = {}
        self._limit = LogLimit(clock)
        self._is_stopped = False

    def are_settings_old(self, group: str) -> bool:
        """Return true for a group without a pull in the last minute, and for each once a minute."""
        known = self._settings.get(group)
        return known is None or self._clock.seconds() - known.read_at_s >= _SETTINGS_AGE_S

    async def most_attempts(self, group: str) -> int | None:
        """Return the attempts after which a group gives a message up; ``None`` if not known."""
        if self.are_settings_old(group):
            await self._once(group, lambda: self._load_settings(group))
        known = self._settings.get(group)
        if known is None:
            return None
        self._settings.move_to_end(group)
        return known.most_attempts

    async def prepare(self, topic: str, group: str, view: TopicView) -> None:
        """
        Make the state of a group for all partitions of a topic; it begins at the first record.

        :raise BrokerUnavailable: or another error of `sampleapp.interfaces.IWorkBroker`.
        """
        await self._once((topic, group), lambda: self._prepare(topic, group, view))

    async def stop(self) -> None:
        """Let members that have joined leave, within a second."""
        self._is_stopped = True
        leaving = DeferredList([each.wait() for each in self._busy.values()], consumeErrors=True)
        await leaving.addTimeout(_STOP_S, self._clock, onTimeoutCancel=lambda *_: None)

    async def _once(self, key: object, work: Callable[[], Coroutine[Deferred[Any], Any, object]]) -> None:
        """Do some work, or wait for the end of the same, whose errors are for the first caller."""
        waiters = self._busy.get(key)
        if waiters is not None:
            await waiters.wait()
            return
        waiters = self._busy[key] = Waiters()
        try:
            await work()
        finally:
            del self._busy[key]
            waiters.succeed(None)

    async def _prepare(self, topic: str, group: str, view: TopicView) -> None:
        await self._configure(group, view)
        await self._join_and_leave(topic, group, view)

    async def backlog(self, topic: str, group: str, view: TopicView) -> int | None:
        """
        Count the messages that are not done.

        :return: ``None`` if the group has no state in the topic.
        :raise BrokerUnavailable: or another error of `sampleapp.interfaces.IWorkBroker`.
        """
        described = await self._ask_coordinator(group, DescribeShareGroupOffsetsRequest(group=group))
        lags = described.lags.get(topic)
        if lags is None:
            return None
        known = sum(each for each in lags.values() if each > 0)
        # Before the first acknowledgement in a partition, it is not known: it is the whole partition.
        rest = {number: EARLIEST for number in view.leaders if lags.get(number, -1) < 0}
        if not rest:
            return known
        whole = await self._read(ReadRequest(topic=topic, starts=rest, others=None, limit=0, max_bytes=1))
        return known + sum([end - whole.positions[number] for number, end in whole.ends.items()])

    async def _load_settings(self, group: str, *nodes: int) -> GroupSettings:
        """:param nodes: the brokers of which one is asked; by default, all."""
        names = [*_OF_NEW_GROUP, _ATTEMPTS]
        described = await self._ask_any(
            lambda node_id: DescribeConfigsRequest(
                resources=[(OF_GROUP, group, names), (OF_BROKER, str(node_id), [_ATTEMPTS_OF_BROKER])]
            ),
            *nodes,
        )
        by_type = {each.resource_type: each for each in described}
        of_group, of_broker = by_type.get(OF_GROUP, _NOTHING), by_type.get(OF_BROKER, _NOTHING)
        attempts = of_group.values.get(_ATTEMPTS) or of_broker.values.get(_ATTEMPTS_OF_BROKER)
        settings = self._settings[group] = GroupSettings(
            most_attempts=int(attempts) if attempts and attempts.isdecimal() else None,
            own=of_group.own,
            error=of_group.error,
            read_at_s=self._clock.seconds(),
        )
        if len(self._settings) > _MOST_GROUPS:
            forgotten, _ = self._settings.popitem(last=False)
            self._limit.forget(forgotten)
        return settings

    async def _configure(self, group: str, view: TopicView) -> None:
        """Let a new group begin at the first record, and read only committed ones."""
        settings = await self._load_settings(group)
        own, error = settings.own & _OF_NEW_GROUP.keys(), settings.error
        if not own and not error:
            request = SetGroupConfigsRequest(group=group, values=_OF_NEW_GROUP)
            own, error = frozenset(_OF_NEW_GROUP), await self._ask_any(lambda _: request)
        if error:
            self._warn(group, error)
            return
        # A leader that has not heard of them yet would begin at the end.
        for node_id in {each for each in view.leaders.values() if each is not None}:
            deadline_s = self._clock.seconds() + _DEADLINE_S
            while not (await self._load_settings(group, node_id)).own >= own:
                if self._clock.seconds() >= deadline_s:
                    raise BrokerUnavailable("A Kafka broker does not know the settings of the group yet.")
                await deferLater(self._clock, _RETRY_S)

    def _warn(self, group: str, error: int) -> None:
        sentence = (
            f"The settings of the share group {group} cannot be read or set: Kafka answers "
            f"{ErrorCode.name_of(error)}. With Kafka's defaults, a new group begins at the topic's end, and "
            "gets records of aborted transactions. The service needs the rights DescribeConfigs and "
            "AlterConfigs on the group; or set share.auto.offset.reset and share.isolation.level yourself."
        )
        if self._limit.is_news(group, sentence):
            self._log.warn("{sentence}", sentence=sentence)

    async def _join_and_leave(self, topic: str, group: str, view: TopicView) -> None:
        member_id, epoch = uuid.uuid4().hex, JOIN_GROUP
        assigned: frozenset[int] = frozenset()
        deadline_s = self._clock.seconds() + _DEADLINE_S
        try:
            while assigned != view.leaders.keys() and self._clock.seconds() < deadline_s:
                if self._is_stopped:
                    break
                answer = await self._beat(group, member_id, epoch, topic if epoch == JOIN_GROUP else None)
                epoch = answer.member_epoch
                if answer.assignment is not None:
                    if answer.assignment.get(view.topic_id) and not assigned:
                        deadline_s = min(deadline_s, self._clock.seconds() + _REST_S)
                    assigned = frozenset(answer.assignment.get(view.topic_id, ()))
                await deferLater(self._clock, _RETRY_S)
        finally:
            # It would keep its partitions for 45 seconds, also if only the answer to its join was lost.
            with suppress(PublishError, WorkError):
                await self._beat(group, member_id, LEAVE_GROUP, None)

    async def _beat(self, group: str, member_id: str, epoch: int, topic: str | None) -> ShareGroupHeartbeat:
        request = ShareGroupHeartbeatRequest(
            group=group, member_id=member_id, member_epoch=epoch, topic=topic
        )
        return await self._ask_coordinator(group, request)

    async def _ask_coordinator(self, group: str, request: Request[A]) -> A:
        """Ask a group's coordinator, again while it starts. Finding it makes the topic of coordinators."""
        finding = FindCoordinatorRequest(group=group)
        deadline_s = self._clock.seconds() + _DEADLINE_S
        while True:
            found = await self._ask_any(lambda _: finding)
            error = found.error
            if not error:
                answer = await self._ask_any(lambda _: request, found.node_id)
                error = answer.error
                if not error:
                    return answer
            if error not in _STARTING or self._clock.seconds() >= deadline_s:
                raise rejected(error)
            await deferLater(self._clock, _RETRY_S)

    async def _ask_any(self, make_request: Callable[[int], Request[R]], *nodes: int) -> R:
        """
        Ask one broker after another until one answers.

        :param make_request: returns the request for the broker with this node id.
        :param nodes: the brokers; by default, all.
        """
        try:
            if not self._client.node_ids():
                await self._client.load_metadata(())
            answer: R = await ask_one_of(
                nodes or self._client.node_ids(),
                ask=lambda node_id: self._client.request(
                    node_id, make_request(node_id), timeout_s=_TIMEOUT_S
                ),
                clock=self._clock,
            )
        except RequestFailed as error:
            raise unanswered(error) from error
        return answer


_NOTHING: Final = DescribedConfig(0, OF_GROUP, "", {})
