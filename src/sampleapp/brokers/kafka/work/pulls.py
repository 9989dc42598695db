"""Pulls: attempts that do not wait, and one fetch that waits for each group and node."""

from __future__ import annotations

from copy import copy
from enum import Enum
from typing import Final, TypeVar

from msgspec import Struct
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from sampleapp.brokers.kafka.consumer.discovery import Topics, TopicView
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.work.acquired_records import AcquiredRecords
from sampleapp.brokers.kafka.work.failures import NOT_SUPPORTED, rejected
from sampleapp.brokers.kafka.work.groups import Groups
from sampleapp.brokers.kafka.work.sessions import Session, Sessions
from sampleapp.concurrency.waiting import Waiters
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

_METADATA_AGE_S: Final = 5.0
_READY_S: Final = 10.0
"""Seconds until a group can be read, after which a pull fails."""
_RETRY_S: Final = 0.1
_FIRST_WAIT_MS: Final = 500
"""How long an attempt waits in a group that was made for it: its first fetch may be empty."""
_FAILED_S: Final = 5.0
"""Seconds for which a node that has failed is not asked, if there are others."""
_WATCH_RETRY_S: Final = 0.5
_WAIT_MS: Final = 1000
"""
How long a broker keeps a fetch, in milliseconds.

The time counts in the lease of what it finds. And as long, a session outlives its connection.
"""
_MOST_OF_GAPS: Final = 20
"""Fetches of an attempt that find only offsets without records."""


class _State(Enum):
    TRYING = "an attempt is under way, and more may follow"
    LAST_TRY = "an attempt is under way, and the pull does not wait after it"
    ABANDONED = "an attempt is under way, and its caller has gone"
    WAITING = "it is in the line of its group"
    OVER = "it was answered, or its caller has gone"


class _Event(Enum):
    EMPTY = "an attempt has found nothing"
    FOUND = "there is a lease, or an error"
    CHOSEN = "an attempt begins, or the fetch that waits has found records for it"
    TIME_UP = "it must not wait any longer"
    CANCELLED = "its caller has gone"


_S, _E = _State, _Event
_NEXT: Final = {
    (_S.TRYING, _E.EMPTY): _S.WAITING,
    (_S.TRYING, _E.FOUND): _S.OVER,
    (_S.TRYING, _E.TIME_UP): _S.LAST_TRY,
    (_S.TRYING, _E.CANCELLED): _S.ABANDONED,
    (_S.LAST_TRY, _E.EMPTY): _S.OVER,
    (_S.LAST_TRY, _E.FOUND): _S.OVER,
    (_S.LAST_TRY, _E.TIME_UP): _S.LAST_TRY,
    (_S.LAST_TRY, _E.CANCELLED): _S.ABANDONED,
    (_S.ABANDONED, _E.EMPTY): _S.OVER,
    (_S.ABANDONED, _E.FOUND): _S.OVER,
    (_S.ABANDONED, _E.TIME_UP): _S.ABANDONED,
    (_S.WAITING, _E.CHOSEN): _S.TRYING,
    (_S.WAITING, _E.FOUND): _S.OVER,
    (_S.WAITING, _E.TIME_UP): _S.OVER,
    (_S.WAITING, _E.CANCELLED): _S.OVER,
}


class _Pull:
    """A pull, until it is answered."""

    def __init__(self, line: _Line, *, most: int, wait_s: float, clock: IReactorTime) -> None:
        self.most = most
        self.line = line
        self.state = _State.TRYING if wait_s > 0 else _State.LAST_TRY
        self.result: Deferred[Lease | None] = Deferred(lambda _: self.handle(_Event.CANCELLED))
        self.ends_s = clock.seconds() + wait_s
        self._timer: IDelayedCall | None = None
        if wait_s > 0:
            self._timer = clock.callLater(wait_s, self.end_wait)

    def handle(self, event: _Event) -> None:
        """Go on to the next state."""
        self.state = _NEXT[self.state, event]
        if self.state is _State.WAITING:
            self.line.waiting[self] = None
        else:
            self.line.waiting.pop(self, None)
        if self.state is _State.OVER and self._timer is not None and self._timer.active():
            self._timer.cancel()

    def end_wait(self) -> None:
        """Answer it with nothing, at once or after the attempt that is under way."""
        self.handle(_Event.TIME_UP)
        if self.state is _State.OVER:
            self.result.callback(None)

    def find_nothing(self) -> None:
        """Wait on after an attempt, or answer it."""
        is_last = self.state is _State.LAST_TRY
        self.handle(_Event.EMPTY)
        if is_last:
            self.result.callback(None)

    def answer(self, result: Lease | Exception) -> bool:
        """:return: ``False`` if its caller has gone."""
        is_gone = self.state is _State.ABANDONED
        self.handle(_Event.FOUND)
        if is_gone:
            return False
        if isinstance(result, Exception):
            self.result.errback(result)
        else:
            self.result.callback(result)
        return True


class _Line(Struct, eq=False):
    """The pulls of one group that wait, in their order."""

    topic: str
    group: str
    waiting: dict[_Pull, None] = {}
    watched: set[int] = set()
    """The nodes with a fetch that waits."""
    tries: int = 0
    """Attempts that are under way."""
    view: TopicView | None = None
    """The last known state of the topic."""

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to remember."""
        return not self.waiting and not self.watched and not self.tries


class Pulls:
    """
    Gives messages to pulls.

    A pull first asks the nodes that lead partitions in turn, without waiting. If it finds nothing, and may
    wait, it joins the line of its group. For the whole line, one fetch waits at each node, for messages for
    the first pull; its success lets the next one make an attempt of its own. So pulls that wait cost neither
    sessions nor connections, and many that find messages run side by side.
    """

    _log = Logger()

    def __init__(self, *, topics: Topics, groups: Groups, sessions: Sessions, clock: IReactorTime) -> None:
        """:param clock: for waits."""
        self._topics = topics
        self._groups = groups
        self._sessions = sessions
        self._clock = clock
        self._lines: dict[tuple[str, str], _Line] = {}
        self._pulls: set[_Pull] = set()
        self._turn = 0
        """Each attempt begins at the next node."""
        self._failed_at_s: dict[int, float] = {}
        """When nodes have failed last. One that is frozen must not delay every pull."""
        self._is_stopped = False
        self._idle: Waiters[None] = Waiters()

    def pull(self, topic: str, group: str, *, most: int, wait_s: float) -> Deferred[Lease | None]:
        """See `sampleapp.interfaces.IWorkBroker.pull`."""
        line = self._lines.setdefault((topic, group), _Line(topic, group))
        pull = _Pull(line, most=most, wait_s=wait_s, clock=self._clock)
        self._pulls.add(pull)
        pull.result.addBoth(self._ended, pull)
        self._begin_try(pull)
        return pull.result

    def stop(self) -> None:
        """End the pulls that wait; those with an attempt under way end after it."""
        self._is_stopped = True
        for pull in [*self._pulls]:
            pull.end_wait()

    def _ended(self, result: T, pull: _Pull) -> T:
        self._pulls.discard(pull)
        return result

    def wait_until_idle(self) -> Deferred[None]:
        """Wait until no attempt and no fetch is under way."""
        return self._idle.wait() if self._lines else succeed(None)

    def _begin_try(self, pull: _Pull) -> None:
        pull.line.tries += 1
        Deferred.fromCoroutine(self._try(pull))

    async def _try(self, pull: _Pull) -> None:
        line = pull.line
        try:
            found: Lease | Exception | None = await self._attempt(line, pull.most)
        except (PublishError, WorkError) as error:
            found = None if self._is_stopped else error
        except Exception:  # noqa: BLE001 -- after any error, the caller gets a response
            self._log.failure("A bug in the service: a pull failed")
            found = BrokerUnavailable("The service has a fault.")
        line.tries -= 1
        if found is None:
            pull.find_nothing()
            self._watch(line)
        else:
            self._give(pull, found)
        self._forget_idle(line)

    def _give(self, pull: _Pull, found: Lease | Exception) -> None:
        is_taken = pull.answer(found)
        if isinstance(found, Lease):
            if not is_taken:
                self._sessions.release(found)
            self._wake(pull.line)

    def _wake(self, line: _Line) -> None:
        """Let the first pull of a line make an attempt."""
        first = next(iter(line.waiting), None)
        if first is not None:
            first.handle(_Event.CHOSEN)
            self._begin_try(first)

    def _forget_idle(self, line: _Line) -> None:
        if line.is_idle and self._lines.get((line.topic, line.group)) is line:
            del self._lines[line.topic, line.group]
            if not self._lines:
                self._idle.succeed(None)

    # Attempts

    async def _attempt(self, line: _Line, most: int) -> Lease | None:
        deadline_s = self._clock.seconds() + _READY_S
        max_age_s, wait_ms = _METADATA_AGE_S, 0
        most_attempts = await self._groups.most_attempts(line.group)
        while True:
            view = line.view = await self._view(line.topic, max_age_s=max_age_s)
            lease, errors = await self._ask_nodes(line, view, most, most_attempts, wait_ms=wait_ms)
            if lease is not None or not errors:
                return lease
            await self._mend(line, view, errors, is_late=self._clock.seconds() >= deadline_s)
            max_age_s, wait_ms = 0, _FIRST_WAIT_MS

    async def _view(self, topic: str, *, max_age_s: float) -> TopicView:
        view = await self._topics.get(topic, max_age_s=max_age_s)
        if view.topic_id is None:
            raise WorkNotSupported(NOT_SUPPORTED)
        return view

    async def _ask_nodes(
        self, line: _Line, view: TopicView, most: int, most_attempts: int | None, *, wait_ms: int
    ) -> tuple[Lease | None, frozenset[int]]:
        """:return: the lease of the first node that has messages; and the errors of partitions."""
        nodes = _by_node(view)
        errors = frozenset[int]() if nodes else frozenset([int(ErrorCode.LEADER_NOT_AVAILABLE)])
        failures: list[BrokerUnavailable] = []
        self._turn += 1
        first = self._turn % max(1, len(nodes))
        rotated = [*[*nodes][first:], *[*nodes][:first]]
        after_s = self._clock.seconds() - _FAILED_S
        asked = [each for each in rotated if self._failed_at_s.get(each, after_s) <= after_s] or rotated
        for node_id in asked:
            try:
                session = await self._open(line, view, node_id)
                lease, found = await self._ask(session, most, most_attempts, wait_ms=wait_ms)
            except BrokerUnavailable as error:
                failures.append(error)
                self._failed_at_s[node_id] = self._clock.seconds()
                continue
            errors |= found
            if not found:
                self._groups.mark_used(line.topic, line.group)
            if lease is not None:
                return lease, errors
        if failures and len(failures) == len(asked):
            raise failures[0]
        return None, errors

    async def _ask(
        self, session: Session, most: int, most_attempts: int | None, *, wait_ms: int
    ) -> tuple[Lease | None, frozenset[int]]:
        lease = None
        try:
            for _ in range(_MOST_OF_GAPS):
                acquired = await self._sessions.acquire(session, most=most, wait_ms=wait_ms)
                lease = await self._sessions.lease(session, acquired, most=most, most_attempts=most_attempts)
                if lease is not None or not acquired.others:
                    break
        finally:
            if lease is None:
                self._sessions.end(session)
        return lease, acquired.errors

    async def _open(self, line: _Line, view: TopicView, node_id: int) -> Session:
        if self._is_stopped:
            raise BrokerStopped("The service is stopping.")
        assert view.topic_id is not None  # noqa: S101 -- `_view` has checked it
        topic = (line.topic, view.topic_id)
        return await self._sessions.open(
            node_id, group=line.group, topic=topic, partitions=_by_node(view)[node_id]
        )

    async def _mend(self, line: _Line, view: TopicView, errors: frozenset[int], *, is_late: bool) -> None:
        """
        Do what the errors of partitions call for, before the next attempt.

        :raise PublishError: no attempt would help.
        """
        lasting = [each for each in errors if each != _NEW and not ErrorCode.is_transient(each)]
        if lasting or is_late or self._is_stopped:
            raise rejected(min(lasting or errors))
        if _NEW in errors:
            await self._groups.prepare(line.topic, line.group, view)
        else:
            await deferLater(self._clock, _RETRY_S)

    # The fetches that wait

    def _watch(self, line: _Line) -> None:
        """Let a fetch wait at each node, while pulls wait."""
        if line.view is None or not line.waiting or self._is_stopped:
            return
        for node_id in _by_node(line.view).keys() - line.watched:
            line.watched.add(node_id)
            Deferred.fromCoroutine(self._run_watch(line, node_id))

    async def _run_watch(self, line: _Line, node_id: int) -> None:
        session: Session | None = None
        while line.waiting and not self._is_stopped:
            try:
                view = line.view = await self._view(line.topic, max_age_s=_METADATA_AGE_S)
                self._watch(line)
                if node_id not in _by_node(view):
                    break
                session = await self._watch_once(line, view, node_id, session)
            except (UnknownTopic, TopicNotAuthorized, WorkNotSupported) as error:
                self._sessions.end(session)
                session = None
                for pull in [*line.waiting]:
                    self._give(pull, copy(error))
            except Exception as error:  # noqa: BLE001 -- the pulls end at their time
                self._sessions.end(session)
                session = None
                if not isinstance(error, (PublishError, WorkError)):
                    self._log.failure("A bug in the service: waiting for messages failed")
                await deferLater(self._clock, _WATCH_RETRY_S)
        self._sessions.end(session)
        line.watched.discard(node_id)
        self._watch(line)
        self._forget_idle(line)

    async def _watch_once(
        self, line: _Line, view: TopicView, node_id: int, session: Session | None
    ) -> Session | None:
        """
        Wait for records once.

        :return: the session, if it goes on. After an error it has ended.
        """
        partitions = _by_node(view)[node_id]
        if session is not None and (session.topic[1], session.partitions) != (view.topic_id, partitions):
            self._sessions.end(session)
            session = None
        most_attempts = await self._groups.most_attempts(line.group)
        if session is None:
            session = await self._open(line, view, node_id)
        is_kept = False
        try:
            left_s = max((pull.ends_s for pull in line.waiting), default=0.0) - self._clock.seconds()
            most = next((pull.most for pull in line.waiting), 1)
            wait_ms = max(0, min(_WAIT_MS, int(1000 * left_s)))
            acquired = await self._sessions.acquire(session, most=most, wait_ms=wait_ms)
            if acquired.messages and line.waiting:
                await self._lease_to_first(line, session, acquired, most_attempts)
                is_kept = True
                return None
            if not acquired.messages:
                await self._sessions.lease(session, acquired, most=0, most_attempts=None)
                is_kept = not acquired.errors
            if acquired.errors:
                await self._mend(line, view, acquired.errors, is_late=False)
            return session if is_kept else None
        finally:
            if not is_kept:
                self._sessions.end(session)

    async def _lease_to_first(
        self, line: _Line, session: Session, acquired: AcquiredRecords, most_attempts: int | None
    ) -> None:
        pull = next(iter(line.waiting))
        pull.handle(_Event.CHOSEN)
        lease = None
        try:
            lease = await self._sessions.lease(session, acquired, most=pull.most, most_attempts=most_attempts)
        finally:
            if lease is None:
                pull.find_nothing()
        if lease is not None:
            self._give(pull, lease)


_NEW: Final = ErrorCode.UNKNOWN_SERVER_ERROR
"""The error of a partition of which the group has no state."""


def _by_node(view: TopicView) -> dict[int, list[int]]:
    """Return the partitions that each node leads."""
    found: dict[int, list[int]] = {}
    for number, node_id in sorted(view.leaders.items()):
        if node_id is not None:
            found.setdefault(node_id, []).append(number)
    return found
