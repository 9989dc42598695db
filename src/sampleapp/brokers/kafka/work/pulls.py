"""Pulls: attempts that do not wait, and one fetch that waits for each group and node."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from copy import copy
from typing import Any, Final, TypeVar

from msgspec import Struct
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from sampleapp.brokers.kafka.consumer.discovery import Topics, TopicView
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.work.failures import NOT_SUPPORTED, rejected
from sampleapp.brokers.kafka.work.groups import Groups
from sampleapp.brokers.kafka.work.sessions import TIMEOUT_S, Member, Sessions
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    PublishError,
    TopicNotAuthorized,
    UnknownTopic,
    WorkError,
    WorkNotSupported,
)
from sampleapp.model import Lease

T = TypeVar("T")

METADATA_AGE_S: Final = 5.0
"""Seconds after which the state of a topic is loaded again."""
_READY_S: Final = 10.0
"""Seconds until a group can be read, after which a pull fails."""
_RETRY_S: Final = 0.1
_STATE_WAIT_MS: Final = 500
"""How long every pull waits at least, if it finds nothing: until nodes have loaded the state of the group."""
_PATIENCE_S: Final = 1.0
"""Seconds to wait for one of several nodes."""
_FAILED_S: Final = 5.0
"""Seconds for which a node that has failed is not asked, if there are others."""
_WATCH_RETRY_S: Final = 0.5
_UNCLAIMED_S: Final = 1.0
"""Seconds for which messages that came for nobody wait for a pull: a release would cost them an attempt."""
_WAIT_MS: Final = 1000
"""
How long a broker keeps a fetch, in milliseconds.

The time counts in the lease of what it finds. And as long, a session outlives its connection.
"""
_NEW: Final = ErrorCode.UNKNOWN_SERVER_ERROR
"""The error of a partition of which the group has no state."""


class _Pull(Struct, eq=False):
    """A pull that has no result yet, unless its caller has gone."""

    key: tuple[str, str]
    """The topic and the group."""
    most: int
    ends_s: float
    result: Deferred[Lease | None]
    waits: bool = True
    """False when its time to wait for messages is over."""
    timer: IDelayedCall | None = None
    """Ends its wait; from when it first joins the line of its group."""
    view: TopicView | None = None
    """The last known state of the topic."""


class _Unclaimed(Struct, eq=False):
    """A lease that no pull has."""

    lease: Lease
    timer: IDelayedCall
    """Releases it."""


class Pulls:
    """
    Gives messages to pulls.

    A pull first asks the nodes that lead partitions in turn, without waiting. If it finds nothing, it joins
    the line of its group, for half a second at least: a node finds nothing until it has loaded the state of
    the group. For the whole line, one fetch waits at each node, for messages for the first pull; its success
    lets the next one make an attempt of its own. So pulls that wait cost neither sessions nor connections,
    and many that find messages run side by side.
    """

    _log = Logger()

    def __init__(self, *, topics: Topics, groups: Groups, sessions: Sessions, clock: IReactorTime) -> None:
        """:param clock: for waits."""
        self._topics = topics
        self._groups = groups
        self._sessions = sessions
        self._clock = clock
        self._waiting: dict[tuple[str, str], dict[_Pull, None]] = {}
        """The lines of groups in which pulls wait, by topic and group."""
        self._unclaimed: dict[tuple[str, str], list[_Unclaimed]] = {}
        """By topic and group."""
        self._watched: set[tuple[tuple[str, str], int]] = set()
        """The groups and nodes with a fetch that waits."""
        self._running: set[Deferred[None]] = set()
        self._turn = 0
        """Each attempt begins at the next node."""
        self._failed_at_s: dict[int, float] = {}
        """When nodes have failed last, or were asked since. One that is frozen must not delay every pull."""
        self._is_stopped = False

    def pull(self, topic: str, group: str, *, most: int, wait_s: float) -> Deferred[Lease | None]:
        """See `sampleapp.interfaces.IWorkBroker.pull`."""
        # Without a canceller, it ignores the result after it is cancelled.
        pull = _Pull((topic, group), most, self._clock.seconds() + wait_s, Deferred())
        pull.result.addBoth(self._ended, pull)
        self._run(self._try(pull))
        return pull.result

    def stop(self) -> None:
        """End the pulls that wait; those with an attempt under way end after it."""
        self._is_stopped = True
        for line in [*self._waiting.values()]:
            for pull in [*line]:
                self._end_wait(pull)
        for key, unclaimed in [*self._unclaimed.items()]:
            for each in [*unclaimed]:
                self._release_unclaimed(key, each)

    def wait_until_idle(self) -> Deferred[Any]:
        """Wait until no attempt and no fetch is under way."""
        return DeferredList([*self._running])

    def _run(self, work: Coroutine[Deferred[Any], Any, None]) -> None:
        running = Deferred.fromCoroutine(work)
        self._running.add(running)
        running.addErrback(lambda failure: self._log.failure("A bug in the service", failure=failure))
        running.addBoth(lambda _: self._running.discard(running))

    def _ended(self, result: T, pull: _Pull) -> T:
        if pull.timer is not None and pull.timer.active():
            pull.timer.cancel()
        line = self._waiting.get(pull.key, {})
        line.pop(pull, None)
        if not line:
            self._waiting.pop(pull.key, None)
        return result

    def _end_wait(self, pull: _Pull) -> None:
        pull.waits = False
        if pull in self._waiting.get(pull.key, ()):
            pull.result.callback(None)

    async def _try(self, pull: _Pull) -> None:
        found: Lease | Exception | None = self._claim(pull)
        try:
            found = found or await self._attempt(pull) or self._claim(pull)
        except (PublishError, WorkError) as error:
            found = None if self._is_stopped else error
        except Exception:  # noqa: BLE001 -- after any error, the caller gets a response
            self._log.failure("A bug in the service: a pull failed")
            found = BrokerUnavailable("The service has a fault.")
        if found is None and pull.waits and not pull.result.called and not self._is_stopped:
            if pull.timer is None:
                now_s = self._clock.seconds()
                pull.ends_s = max(pull.ends_s, now_s + _STATE_WAIT_MS / 1000)
                pull.timer = self._clock.callLater(pull.ends_s - now_s, self._end_wait, pull)
            self._waiting.setdefault(pull.key, {})[pull] = None
            self._watch(pull.key, pull.view)
        else:
            self._answer(pull, found)

    def _claim(self, pull: _Pull) -> Lease | None:
        for each in self._unclaimed.get(pull.key, ()):
            if len(each.lease.messages) <= pull.most and not pull.result.called:
                self._take_unclaimed(pull.key, each)
                return each.lease
        return None

    def _keep_unclaimed(self, key: tuple[str, str], lease: Lease) -> None:
        delay_s = _UNCLAIMED_S
        if self._sessions.has_last_attempts(lease):
            # A release would be the end of them, and a worker needs the other half.
            delay_s = max(delay_s, self._sessions.left_s(lease) / 2)
        each = _Unclaimed(lease, self._clock.callLater(delay_s, lambda: self._release_unclaimed(key, each)))
        self._unclaimed.setdefault(key, []).append(each)

    def _release_unclaimed(self, key: tuple[str, str], each: _Unclaimed) -> None:
        self._take_unclaimed(key, each)
        self._sessions.release(each.lease)

    def _take_unclaimed(self, key: tuple[str, str], each: _Unclaimed) -> None:
        if each.timer.active():
            each.timer.cancel()
        self._unclaimed[key].remove(each)
        if not self._unclaimed[key]:
            del self._unclaimed[key]

    def _answer(self, pull: _Pull, found: Lease | Exception | None) -> None:
        if pull.result.called:
            if isinstance(found, Lease):
                self._sessions.release(found)
        elif isinstance(found, Exception):
            pull.result.errback(found)
        else:
            pull.result.callback(found)

    def _wake(self, key: tuple[str, str]) -> None:
        """Let the first pull of a line make an attempt."""
        line = self._waiting.get(key)
        if line:
            first = next(iter(line))
            del line[first]
            self._run(self._try(first))

    # Attempts

    async def _attempt(self, pull: _Pull) -> Lease | None:
        deadline_s = self._clock.seconds() + _READY_S
        max_age_s, wait_ms = METADATA_AGE_S, 0
        # A node that has forgotten the group finds nothing at first. If fetches then waited at all nodes,
        # each would get messages, and all but those of one node would lose an attempt.
        may_be_forgotten = self._groups.are_settings_old(pull.key[1])
        while not pull.result.called:
            pull.view = await self._topics.get(pull.key[0], max_age_s=max_age_s)
            lease, errors = await self._ask_nodes(pull, pull.view, wait_ms=wait_ms)
            if lease is not None:
                return lease
            if errors:
                await self._mend(pull.key, pull.view, errors, is_late=self._clock.seconds() >= deadline_s)
                max_age_s, wait_ms = 0, _STATE_WAIT_MS
            elif may_be_forgotten:
                await deferLater(self._clock, _RETRY_S)
            else:
                break
            may_be_forgotten = False
        return None

    async def _ask_nodes(
        self, pull: _Pull, view: TopicView, *, wait_ms: int
    ) -> tuple[Lease | None, frozenset[int]]:
        """:return: the lease of the first node that has messages; and the errors of partitions."""
        nodes = _nodes(view)
        errors = frozenset[int]() if nodes else frozenset([int(ErrorCode.LEADER_NOT_AVAILABLE)])
        failures: list[BrokerUnavailable] = []
        self._turn += 1
        first = self._turn % max(1, len(nodes))
        rotated = [*nodes[first:], *nodes[:first]]
        now_s = self._clock.seconds()
        asked = [each for each in rotated if self._failed_at_s.get(each, -_FAILED_S) + _FAILED_S <= now_s]
        asked = asked or rotated
        for node_id in asked:
            if node_id in self._failed_at_s:
                # Only this pull finds out if it has recovered.
                self._failed_at_s[node_id] = now_s
            is_last_hope = len(failures) == len(asked) - 1
            try:
                lease, found = await self._fetch(
                    pull.key,
                    view,
                    node_id,
                    most=lambda: pull.most,
                    wait_ms=wait_ms,
                    timeout_s=TIMEOUT_S if is_last_hope else _PATIENCE_S,
                )
            except BrokerUnavailable as error:
                failures.append(error)
                self._failed_at_s[node_id] = self._clock.seconds()
                continue
            self._failed_at_s.pop(node_id, None)
            errors |= found
            if lease is not None:
                self._wake(pull.key)
                return lease, errors
        if failures and len(failures) == len(asked):
            raise failures[0]
        return None, errors

    async def _fetch(
        self,
        key: tuple[str, str],
        view: TopicView,
        node_id: int,
        *,
        most: Callable[[], int],
        wait_ms: int,
        timeout_s: float = TIMEOUT_S,
    ) -> tuple[Lease | None, frozenset[int]]:
        most_attempts = await self._groups.most_attempts(key[1])
        if self._is_stopped:
            raise BrokerStopped("The service is stopping.")
        if view.topic_id is None:
            raise WorkNotSupported(NOT_SUPPORTED)
        member = Member(
            node_id=node_id,
            group=key[1],
            topic=key[0],
            topic_id=view.topic_id,
            partitions=[each for each, leader in sorted(view.leaders.items()) if leader == node_id],
        )
        return await self._sessions.fetch(
            member, most=most, most_attempts=most_attempts, wait_ms=wait_ms, timeout_s=timeout_s
        )

    async def _mend(
        self, key: tuple[str, str], view: TopicView, errors: frozenset[int], *, is_late: bool = False
    ) -> None:
        """
        Do what the errors of partitions call for, before the next attempt.

        :raise PublishError: no attempt would help.
        """
        lasting = [each for each in errors if each != _NEW and not ErrorCode.is_transient(each)]
        if lasting or is_late or self._is_stopped:
            raise rejected(min(lasting or errors))
        if _NEW in errors:
            await self._groups.prepare(*key, view)
        else:
            await deferLater(self._clock, _RETRY_S)

    # The fetches that wait

    def _watch(self, key: tuple[str, str], view: TopicView | None) -> None:
        """Let a fetch wait at each node, while pulls wait."""
        for node_id in _nodes(view) if view is not None else ():
            if (key, node_id) not in self._watched:
                self._watched.add((key, node_id))
                self._run(self._run_watch(key, node_id))

    async def _run_watch(self, key: tuple[str, str], node_id: int) -> None:
        while self._waiting.get(key) and not self._is_stopped:
            try:
                view = await self._topics.get(key[0], max_age_s=METADATA_AGE_S)
                self._watch(key, view)
                nodes = _nodes(view)
                if node_id in nodes:
                    await self._watch_once(key, view, node_id)
                elif nodes:
                    break
                else:
                    await deferLater(self._clock, _WATCH_RETRY_S)
            except (UnknownTopic, TopicNotAuthorized, WorkNotSupported) as error:
                for pull in [*self._waiting.get(key, ())]:
                    self._answer(pull, copy(error))
            except Exception as error:  # noqa: BLE001 -- the pulls end at their time
                if not isinstance(error, (PublishError, WorkError)):
                    self._log.failure("A bug in the service: waiting for messages failed")
                await deferLater(self._clock, _WATCH_RETRY_S)
        self._watched.discard((key, node_id))

    async def _watch_once(self, key: tuple[str, str], view: TopicView, node_id: int) -> None:
        line = self._waiting.get(key)
        if not line:
            return
        began_s = self._clock.seconds()
        left_s = max([each.ends_s for each in line]) - began_s
        most = next(iter(line)).most
        may_wait = self._sessions.may_wait
        wait_ms = max(0, min(_WAIT_MS, int(1000 * left_s))) if may_wait else 0
        lease, errors = await self._fetch(
            key,
            view,
            node_id,
            most=lambda: next((each.most for each in self._waiting.get(key, ())), most),
            wait_ms=wait_ms,
        )
        if lease is not None:
            fitting = [each for each in self._waiting.get(key, ()) if each.most >= len(lease.messages)]
            if fitting:
                self._answer(fitting[0], lease)
            elif self._is_stopped:
                self._sessions.release(lease)
            else:
                self._keep_unclaimed(key, lease)
            self._wake(key)
        # A fetch that did not wait has found messages that cannot be read, and each time takes an attempt.
        has_waited = may_wait and 1000 * (self._clock.seconds() - began_s) >= wait_ms / 2
        if errors:
            await self._mend(key, view, errors)
        elif lease is None and not has_waited:
            await deferLater(self._clock, _WATCH_RETRY_S)


def _nodes(view: TopicView) -> list[int]:
    """Return the nodes that lead partitions."""
    return sorted({each for each in view.leaders.values() if each is not None})
