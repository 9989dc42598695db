"""Groups of workers of brokers that keep the leases themselves: pulls that wait, and what wakes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypeAlias

from msgspec import Struct
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.shared.deliveries import LEASE_LOST, Deliveries
from sampleapp.concurrency.waiting import Waiters
from sampleapp.errors import BrokerStopped, LeaseLost, OutcomeUnknown, PublishError, WorkError
from sampleapp.model import ALL, Acknowledged, Extended, Lease, Record, Verdicts

_LOOK_S: Final = 0.2
"""The interval in which pulls that wait find ended leases, and what other processes have done."""
_CALLS_AT_ONCE: Final = 16
_PULLS_AT_ONCE: Final = 8
"""Maximum calls in a transaction, and pulls besides, of one group: publishing waits for it."""

NOT_KNOWN: Final = (
    "It is not known whether the broker has done this. Messages that were neither accepted nor rejected are "
    "given again when their lease has ended."
)
"""The message of a `sampleapp.errors.OutcomeUnknown`."""

_Key: TypeAlias = "tuple[str, str]"


class Operation(Struct, frozen=True):
    """The use of a group in a transaction. It raises its errors before it changes anything."""

    key: _Key
    """The topic and the group."""
    use: Callable[[Deliveries], Any]
    missing: Callable[[], Any] | None = None
    """The use if there is no such group; ``None`` to create it."""


class FindGroup(Protocol):
    """Finds the deliveries of a group, in one transaction."""

    def __call__(self, topic: str, group: str, *, create: bool) -> Deliveries | None:
        """
        Find a group, or create it.

        :raise UnknownTopic: the topic does not exist.
        """


def run_all(operations: Sequence[Operation], find: FindGroup) -> list[tuple[Any, int]]:
    """Return the result of each operation, or its own error, and the number of messages it has given up."""
    return [_outcome(operation, find) for operation in operations]


class _Pull(Struct, eq=False):
    """A pull that has no messages yet."""

    most: int
    result: Deferred[Lease | None]
    timer: IDelayedCall | None = None
    is_asked: bool = False
    """True while a transaction that may have messages for it is under way."""
    is_over: bool = False
    """True if it does not wait for messages any more."""


class Work:
    """
    Implements `sampleapp.interfaces.IWorkBroker` over transactions.

    One transaction is under way at a time, with the calls that came during the one before. Pulls of a group
    are served in their order. While none waits, there is no timer, and nothing is looked up.
    """

    _log = Logger()

    def __init__(
        self, run: Callable[[Sequence[Operation]], Deferred[list[tuple[Any, int]]]], clock: IReactorTime
    ) -> None:
        """
        :param run: runs operations in one transaction, with `run_all`. Fails with
            `sampleapp.errors.BrokerUnavailable` if nothing was done, or `sampleapp.errors.OutcomeUnknown`.
        :param clock: for waits.
        """
        self._run = run
        self._clock = clock
        self._lines: dict[_Key, list[_Pull]] = {}
        self._ready: dict[_Key, None] = {}
        """The groups that may have free messages for their line, in order."""
        self._calls: list[tuple[Operation, Callable[[Any], None]]] = []
        self._is_busy = self._is_stopped = False
        self._look: IDelayedCall | None = None
        self._idle: Waiters[None] = Waiters()
        self.given_up = 0
        """The messages that were given up since the start."""

    def pull(self, topic: str, group: str, *, most: int, wait_s: float) -> Deferred[Lease | None]:
        """See `sampleapp.interfaces.IWorkBroker.pull`."""
        if self._is_stopped:
            return _fail_stopped()
        key = (topic, group)
        pull = _Pull(most, Deferred(lambda _: self._cancel(key, pull)))
        self._lines.setdefault(key, []).append(pull)
        if wait_s > 0:
            pull.timer = self._clock.callLater(wait_s, self._end_wait, key, pull)
        else:
            pull.is_over = True
        self._wake(key)
        return pull.result

    def acknowledge(self, topic: str, group: str, lease: bytes, verdicts: Verdicts) -> Deferred[Acknowledged]:
        """See `sampleapp.interfaces.IWorkBroker.acknowledge`."""
        use = partial(Deliveries.acknowledge, token=lease, verdicts=verdicts)
        return self._call(Operation((topic, group), use, _raise_lost))

    def extend(self, topic: str, group: str, lease: bytes) -> Deferred[Extended]:
        """See `sampleapp.interfaces.IWorkBroker.extend`."""
        return self._call(Operation((topic, group), partial(Deliveries.extend, token=lease), _raise_lost))

    def backlog(self, topic: str, group: str) -> Deferred[int | None]:
        """See `sampleapp.interfaces.IWorkBroker.backlog`."""
        return self._call(Operation((topic, group), Deliveries.backlog, lambda: None))

    def stored(self, records: Sequence[Record]) -> None:
        """Serve the pulls that wait for the topics of these records."""
        if self._lines:
            topics = {record.topic for record in records}
            for key in [key for key in self._lines if key[0] in topics]:
                self._wake(key)

    async def stop(self) -> None:
        """End the pulls that wait, and reject calls from now on. Returns after those that were accepted."""
        self._is_stopped = True
        for key, line in [*self._lines.items()]:
            for pull in [*line]:
                self._end_wait(key, pull)
        if self._is_busy:
            await self._idle.wait()

    def _call(self, operation: Operation) -> Deferred[Any]:
        if self._is_stopped:
            return _fail_stopped()
        # Without a canceller, it ignores the result after it is cancelled.
        result: Deferred[Any] = Deferred()
        self._calls.append((operation, partial(_fire, result)))
        self._begin()
        return result

    def _wake(self, key: _Key) -> None:
        if key in self._lines:
            self._ready[key] = None
            self._begin()

    def _look_again(self) -> None:
        self._look = None
        self._ready = dict.fromkeys(self._lines)
        self._begin()

    def _begin(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            Deferred.fromCoroutine(self._serve())

    async def _serve(self) -> None:
        while self._calls or self._ready:
            some, self._calls = self._calls[:_CALLS_AT_ONCE], self._calls[_CALLS_AT_ONCE:]
            for key in [*self._ready][:1]:
                del self._ready[key]
                some += self._pulls(key)
            results = await self._results([operation for operation, _ in some])
            for (operation, settle), (result, given_up) in zip(some, results, strict=True):
                self._count(operation.key, given_up)
                settle(result)
                if operation.missing is not None:
                    # It may have released messages.
                    self._wake(operation.key)
        self._is_busy = False
        if self._lines and self._look is None:
            self._look = self._clock.callLater(_LOOK_S, self._look_again)
        self._idle.succeed(None)

    async def _results(self, operations: Sequence[Operation]) -> list[tuple[Any, int]]:
        try:
            return await self._run(operations)
        except PublishError as error:
            failed = error
        except Exception:  # noqa: BLE001 -- nothing cancels this, and each caller gets a response
            self._log.failure("Giving messages to workers, or acknowledging them, failed unexpectedly")
            failed = OutcomeUnknown(NOT_KNOWN)
        # One for each caller, which may raise and chain it.
        return [(copy(failed), 0) for _ in operations]

    def _pulls(self, key: _Key) -> list[tuple[Operation, Callable[[Any], None]]]:
        pulls = [*self._lines.get(key, ())]
        for pull in pulls:
            pull.is_asked = True
        give = partial(_give, [pull.most for pull in pulls[:_PULLS_AT_ONCE]])
        return [(Operation(key, give), partial(self._served, key, pulls))] if pulls else []

    def _served(self, key: _Key, pulls: Sequence[_Pull], result: Sequence[Lease] | Exception) -> None:
        leases = () if isinstance(result, Exception) else result
        for at, pull in enumerate(pulls):
            pull.is_asked = False
            if isinstance(result, Exception):
                self._settle(key, pull, copy(result))
            elif at < len(leases):
                self._settle(key, pull, leases[at])
            elif pull.is_over and len(leases) < _PULLS_AT_ONCE:
                self._settle(key, pull, None)
        if len(leases) == _PULLS_AT_ONCE:
            self._wake(key)

    def _cancel(self, key: _Key, pull: _Pull) -> None:
        pull.is_over = True
        if not pull.is_asked:
            self._drop(key, pull)

    def _end_wait(self, key: _Key, pull: _Pull) -> None:
        pull.is_over = True
        if not pull.is_asked:
            self._settle(key, pull, None)

    def _settle(self, key: _Key, pull: _Pull, result: Lease | Exception | None) -> None:
        self._drop(key, pull)
        if not pull.result.called:
            _fire(pull.result, result)
        elif isinstance(result, Lease):
            # It was cancelled meanwhile. If this fails, the lease ends by itself.
            self.acknowledge(*key, result.token, Verdicts(release=ALL)).addErrback(lambda _: None)

    def _drop(self, key: _Key, pull: _Pull) -> None:
        """Take a pull out of its line."""
        if pull.timer is not None and pull.timer.active():
            pull.timer.cancel()
        self._lines[key].remove(pull)
        if not self._lines[key]:
            del self._lines[key]
        if not self._lines and self._look is not None:
            self._look.cancel()
            self._look = None

    def _count(self, key: _Key, given_up: int) -> None:
        self.given_up += given_up
        if given_up:
            self._log.warn(
                "{count} messages of topic {topic} are given up: no attempt of group {group} was accepted. "
                "They stay in the topic.",
                count=given_up,
                topic=key[0],
                group=key[1],
            )


def _outcome(operation: Operation, find: FindGroup) -> tuple[Any, int]:
    try:
        deliveries = find(*operation.key, create=operation.missing is None)
        if deliveries is None:
            return operation.missing and operation.missing(), 0
        return operation.use(deliveries), deliveries.given_up
    except (WorkError, PublishError) as error:
        return error, 0


def _give(mosts: Sequence[int], deliveries: Deliveries) -> list[Lease]:
    """Give messages to pulls in order until none is free; return the leases of the first of them."""
    leases: list[Lease] = []
    for most in mosts:
        lease = deliveries.pull(most)
        if lease is None:
            break
        leases.append(lease)
    return leases


def _fire(waiter: Deferred[Any], result: Any) -> None:
    (waiter.errback if isinstance(result, Exception) else waiter.callback)(result)


def _fail_stopped() -> Deferred[Any]:
    return fail(BrokerStopped("The service is stopping."))


def _raise_lost() -> NoReturn:
    raise LeaseLost(LEASE_LOST)
