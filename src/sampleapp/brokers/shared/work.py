"""Groups of workers of brokers that keep the leases themselves: pulls that wait, and what wakes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.brokers.shared.deliveries import LEASE_LOST, Deliveries, GivenLeases
from sampleapp.concurrency.failures import LogLimit
from sampleapp.concurrency.waiting import Waiters
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    LeaseLost,
    OutcomeUnknown,
    PublishError,
    UnknownTopic,
    WorkError,
)
from sampleapp.interfaces import IWorkBroker
from sampleapp.model import ALL, Acknowledged, Extended, Lease, Record, Verdicts

_LOOK_S: Final = 0.2
"""The interval in which pulls that wait find ended leases, and what other processes have done."""
MOST_GROUPS: Final = 1000
"""The most groups of a topic: callers choose their names, and a group that is removed would begin again."""
_CALLS_AT_ONCE: Final = 16
"""Maximum calls in a transaction, since publishing waits for it."""

NOT_KNOWN: Final = (
    "It is not known whether the broker has done this. Messages that were neither accepted nor rejected are "
    "given again when their lease has ended."
)
"""The message of a `sampleapp.errors.OutcomeUnknown`."""

NOT_DONE: Final = "The broker could not do this now, and nothing was changed. Send the request again."
"""The message of a `sampleapp.errors.BrokerUnavailable`."""

TOO_MANY_GROUPS: Final = (
    f"The topic has {MOST_GROUPS:,} groups of workers: the maximum. Pull in one of them. An operator can "
    "remove others."
)

T = TypeVar("T")

_Key: TypeAlias = "tuple[str, str]"


class Operation(Struct, frozen=True):
    """The use of a group in a transaction. It raises its errors before it changes anything."""

    key: _Key
    """The topic and the group."""
    use: Callable[[Deliveries], Any]
    missing: LeaseLost | None = None
    """The result if there is no such group."""
    is_pull: bool = False
    """True if it creates the group."""
    is_read: bool = False
    """True if it changes nothing, so that its outcome is never unknown."""


class FindGroup(Protocol):
    """Finds the deliveries of a group, in one transaction."""

    def __call__(self, key: tuple[str, str], *, create: bool) -> Deliveries | None:
        """
        Find a group, or create it.

        :param key: the topic and the group.
        :raise UnknownTopic: the topic does not exist.
        :raise BrokerUnavailable: it has too many groups.
        """


def run_all(operations: Sequence[Operation], find: FindGroup) -> list[tuple[Any, int]]:
    """Return the result of each operation, or its own error, and the number of messages it has given up."""
    empty: set[_Key] = set()
    return [_outcome(operation, find, empty) for operation in operations]


def _outcome(operation: Operation, find: FindGroup, empty: set[_Key]) -> tuple[Any, int]:
    """:param empty: the groups in which the pulls before have found no more messages."""
    key = operation.key
    if operation.is_pull and key in empty:
        return None, 0
    try:
        deliveries = find(key, create=operation.is_pull)
        if deliveries is None:
            return operation.missing, 0
        result = operation.use(deliveries)
    except UnknownTopic as error:
        # It was the lease of a topic that is no longer there.
        return operation.missing or error, 0
    except (WorkError, PublishError) as error:
        return error, 0
    if operation.is_pull and result is None:
        empty.add(key)
    return result, deliveries.given_up


class _Call(Struct, eq=False):
    """A call that has no result yet."""

    operation: Operation
    result: Deferred[Any]
    waits: bool
    """True for a pull that waits for messages if there are none."""
    is_sent: bool = False
    """True while the broker works on it."""

    def error(self) -> PublishError:
        """Return a new error if the broker does not tell whether it has carried it out."""
        if self.operation.is_read or not self.is_sent:
            return BrokerUnavailable(NOT_DONE)
        return OutcomeUnknown(NOT_KNOWN)


class GivenUp:
    """Counts the messages that are given up, and logs them, at most once a minute for each group."""

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._limit = LogLimit(clock)
        self.total = 0
        """The messages that this process has given up since the start, as far as it knows."""

    def add(self, topic: str, group: str, count: int) -> None:
        """Count messages that had their last attempt."""
        self.total += count
        if count and self._limit.is_due((topic, group)):
            self._log.warn(
                "{count} messages of topic {topic} are given up: no attempt of group {group} was accepted. "
                "They stay in the topic. More within a minute are only counted.",
                count=count,
                topic=topic,
                group=group,
            )


@implementer(IWorkBroker)
class Work:
    """
    Implements `IWorkBroker` over transactions.

    One transaction is under way at a time, with the calls that came during the one before. Timers run, and
    the broker is asked again, only while a pull waits.
    """

    _log = Logger()

    def __init__(
        self,
        run: Callable[[Sequence[Operation]], Deferred[list[tuple[Any, int]]]],
        clock: IReactorTime,
        leases: GivenLeases,
        *,
        timeout_s: float = 15.0,
    ) -> None:
        """
        :param run: runs operations in one transaction, with `run_all`, and fires at its end, in order with
            calls of `stored`. Fails with `sampleapp.errors.BrokerUnavailable` if nothing was done, or
            `sampleapp.errors.OutcomeUnknown`.
        :param clock: for waits.
        :param leases: those of this instance.
        :param timeout_s: seconds after which a call fails; waits for messages are added.
        """
        self._run = run
        self._clock = clock
        self._leases = leases
        self._timeout_s = timeout_s
        self._calls: list[_Call] = []
        """The next calls, in order. Those that were cancelled meanwhile are left out later."""
        self._waiting: dict[_Key, list[_Call]] = {}
        """The pulls that found no messages, in order, with those that were cancelled since the last look."""
        self._is_busy = self._is_stopped = False
        self._look: IDelayedCall | None = None
        self._idle: Waiters[None] = Waiters()
        self._given_up = GivenUp(clock)

    @property
    def given_up(self) -> int:
        """See `IWorkBroker.given_up`."""
        return self._given_up.total

    @property
    def leases(self) -> int:
        """See `IWorkBroker.leases`."""
        return self._leases.count()

    def pull(self, topic: str, group: str, *, most: int, wait_s: float) -> Deferred[Lease | None]:
        """See `IWorkBroker.pull`."""
        use = partial(Deliveries.pull, most=most)
        return self._add(Operation((topic, group), use, is_pull=True), wait_s)

    def acknowledge(self, topic: str, group: str, lease: bytes, verdicts: Verdicts) -> Deferred[Acknowledged]:
        """See `IWorkBroker.acknowledge`."""
        use = partial(Deliveries.acknowledge, token=lease, verdicts=verdicts)
        return self._add(Operation((topic, group), use, LeaseLost(LEASE_LOST)))

    def extend(self, topic: str, group: str, lease: bytes) -> Deferred[Extended]:
        """See `IWorkBroker.extend`."""
        use = partial(Deliveries.extend, token=lease)
        return self._add(Operation((topic, group), use, LeaseLost(LEASE_LOST)))

    def backlog(self, topic: str, group: str) -> Deferred[int | None]:
        """See `IWorkBroker.backlog`."""
        return self._add(Operation((topic, group), Deliveries.backlog, is_read=True))

    def stored(self, records: Sequence[Record]) -> None:
        """Serve the pulls that wait for the topics of these records."""
        if self._waiting:
            topics = {record.topic for record in records}
            self._wake([key for key in self._waiting if key[0] in topics])

    async def stop(self) -> None:
        """End the pulls that wait, and reject calls from now on. Returns after those that were accepted."""
        self._is_stopped = True
        for call in chain(*self._waiting.values()):
            if not call.result.called:
                call.result.callback(None)
        self._waiting.clear()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._is_busy:
            await self._idle.wait()

    def _add(self, operation: Operation, wait_s: float = 0.0) -> Deferred[Any]:
        call = _Call(operation, Deferred(), waits=wait_s > 0)
        if call.waits:
            timer = self._clock.callLater(wait_s, self._end_wait, call)
            call.result.addBoth(_cancel, timer)
        if self._is_stopped:
            call.result.errback(BrokerStopped("The service is stopping."))
        else:
            self._calls.append(call)
            self._begin()
        return call.result.addTimeout(
            self._timeout_s + wait_s, self._clock, onTimeoutCancel=lambda *_: Failure(call.error())
        )

    def _wake(self, keys: Iterable[_Key]) -> None:
        for key in keys:
            self._calls += self._waiting.pop(key, ())
        self._begin()

    def _look_again(self) -> None:
        self._look = None
        self._wake([*self._waiting])

    def _begin(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            Deferred.fromCoroutine(self._serve())

    async def _serve(self) -> None:
        while pending := [call for call in self._calls if not call.result.called]:
            # Reads are apart: they succeed also while nothing can be written.
            is_read = pending[0].operation.is_read
            calls = [call for call in pending if call.operation.is_read is is_read][:_CALLS_AT_ONCE]
            chosen = set(calls)
            self._calls = [call for call in pending if call not in chosen]
            results = await self._results(calls)
            for call, (result, given_up) in zip(calls, results, strict=True):
                call.is_sent = False
                self._given_up.add(*call.operation.key, given_up)
                self._settle(call, result)
            # They may have released messages.
            self._wake({call.operation.key for call in calls if not call.operation.is_pull})
        self._calls = []
        self._is_busy = False
        if self._waiting and self._look is None:
            self._look = self._clock.callLater(_LOOK_S, self._look_again)
        self._idle.succeed(None)

    async def _results(self, calls: Sequence[_Call]) -> list[tuple[Any, int]]:
        for call in calls:
            call.is_sent = True
        try:
            return await self._run([call.operation for call in calls])
        except OutcomeUnknown:
            failed: PublishError | None = None
        except PublishError as error:
            failed = error
        except Exception:  # noqa: BLE001 -- nothing cancels this, and each caller gets a response
            self._log.failure("Giving messages to workers, or acknowledging them, failed unexpectedly")
            failed = None
        # One for each caller, which may raise and chain it.
        return [(call.error() if failed is None else copy(failed), 0) for call in calls]

    def _settle(self, call: _Call, result: Any) -> None:
        key = call.operation.key
        if call.result.called:
            if isinstance(result, Lease):
                # The pull has been cancelled. If this fails, the lease ends by itself.
                self.acknowledge(*key, result.token, Verdicts(release=ALL)).addErrback(lambda _: None)
        elif result is None and call.waits and not self._is_stopped:
            self._waiting.setdefault(key, []).append(call)
        elif isinstance(result, Exception):
            call.result.errback(result)
        else:
            call.result.callback(result)

    def _end_wait(self, call: _Call) -> None:
        call.waits = False
        if call in self._waiting.get(call.operation.key, ()):
            call.result.callback(None)


def _cancel(result: T, timer: IDelayedCall) -> T:
    if timer.active():
        timer.cancel()
    return result
