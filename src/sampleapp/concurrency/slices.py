"""Long work in slices of the reactor's time: of coroutines, generators, steps, or a changing set."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeAlias, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import Cooperator
from twisted.logger import Logger

Run: TypeAlias = Callable[[Callable[[], Any]], "Deferred[Any]"]
"""Calls a function in a thread. The `Deferred` fires with its result, or fails with its error."""


def cooperator_on(clock: IReactorTime) -> Cooperator:
    """Return a cooperator that runs one step of one of its tasks in each turn of the reactor, in rotation."""
    return Cooperator(
        terminationPredicateFactory=lambda: lambda: True, scheduler=lambda tick: clock.callLater(0, tick)
    )


_FREEING_S: Final = 0.001
_FREED_BETWEEN_CLOCK_READS: Final = 50
"""Values that are freed before the clock is read again: up to 3 ms for records with a thousand headers."""


class TimeSlices:
    """
    Gives each turn of the reactor to one of the coroutines with long work: the one that has waited longest.

    So everything else waits no longer than one slice takes, however many coroutines there are.
    """

    def __init__(self, clock: IReactorTime) -> None:
        """:param clock: a call after 0 seconds must run in a later turn of the reactor, not in the same."""
        self._clock: Final = clock
        self._waiting: deque[Deferred[None]] = deque()
        self._is_taken = False

    def next(self) -> Deferred[None]:
        """
        Wait for a slice: the caller may work for some milliseconds, and then must wait for the next one.

        :return: fires with ``None``; it has fired already if nothing else has worked in this turn of the
            reactor. Cancelling it stops the waiting only.
        """
        if not self._is_taken:
            self.take()
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        return waiting

    def take(self) -> None:
        """Note that there is work in this turn of the reactor which could not wait for a slice."""
        if not self._is_taken:
            self._is_taken = True
            # A call that is scheduled while sockets are read comes in the same turn.
            self._clock.callLater(0, self._take)

    async def free_gradually(self, many: list[Any]) -> None:
        """
        Empty a list, in slices: freeing 100,000 values, or records with as many headers, takes milliseconds.

        The first slice is the caller's own. A request is answered after this: values that are freed later
        than new ones come would have no limit.

        :param many: a list that nothing else refers to.
        """
        while True:
            until_s = self._clock.seconds() + _FREEING_S
            while many and self._clock.seconds() < until_s:
                del many[-_FREED_BETWEEN_CLOCK_READS:]
            if not many:
                return
            await self.next()

    def _take(self) -> None:
        self._is_taken = True
        self._clock.callLater(0, self._pass_on)

    def _pass_on(self) -> None:
        self._is_taken = False
        if self._waiting:
            self._take()
            self._waiting.popleft().callback(None)


_SLICE_S: Final = 0.002
_VISITS: Final = 5
"""Members that are visited between two looks at the clock."""
_STEPS_OF_ROUND: Final = 40

_AFTER_FAULTS_S: Final = 0.1
"""Between steps that fail one after the other, so that they do not take all the time."""

T = TypeVar("T")


class SlicedWork:
    """
    Work that is done step by step, a few steps in each turn of the reactor, so that it delays nothing else.

    It has one timer, which is not set while a step runs: a step may stop the work, and start it again.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        step: Callable[[], float | None],
        *,
        fault: str,
        on_fault: Callable[[], None] = lambda: None,
        steps: int = 8,
    ) -> None:
        """
        :param step: does some of the work, for less than a millisecond. Returns the seconds until the next
            step: 0 if there is more to do, ``None`` if there is nothing until `run` or `run_later` is called.
        :param fault: the line of the log for a step that failed. The next one follows all the same.
        :param on_fault: called after a step that failed.
        :param steps: the most steps in one turn of the reactor.
        """
        self._clock = clock
        self._step = step
        self._fault = fault
        self._on_fault = on_fault
        self._steps = steps
        self._call: IDelayedCall | None = None
        self._is_running = self._has_failed = False

    def run(self) -> None:
        """Begin now, or in the next turn of the reactor if there was something to do in this one."""
        if self._call is None and not self._is_running:
            self._run()

    def run_later(self, delay_s: float = 0.0) -> None:
        """Begin in the next turn of the reactor, or after a delay. Does nothing if it has begun, or will."""
        if self._call is None and not self._is_running:
            self._call = self._clock.callLater(delay_s, self._run)

    def stop(self) -> None:
        """Do nothing more until it is run again."""
        self._is_running = False
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _run(self) -> None:
        self._call = None
        self._is_running = True
        until_s = self._clock.seconds() + _SLICE_S
        delay_s: float | None = None
        for number in range(self._steps):
            delay_s = self._next_delay_s()
            if not self._is_running:
                return
            if delay_s is None:
                # Further work of this turn of the reactor is done together, in the next one.
                delay_s = 0.0 if number else None
                break
            if delay_s or self._clock.seconds() >= until_s:
                break
        self._is_running = False
        if delay_s is not None:
            self._call = self._clock.callLater(delay_s, self._run)

    def _next_delay_s(self) -> float | None:
        try:
            delay_s = self._step()
        except Exception:  # noqa: BLE001 -- whatever it was, the work goes on
            self._log.failure(self._fault)
        else:
            self._has_failed = False
            return delay_s
        delay_s, self._has_failed = _AFTER_FAULTS_S if self._has_failed else 0.0, True
        try:
            self._on_fault()
        except Exception:  # noqa: BLE001 -- as above
            self._log.failure(self._fault)
        return delay_s


class Rounds(Generic[T]):
    """
    A set whose members are visited in rounds, in the order in which they came.

    Members may come and go at any time, also in a visit. One that comes during a round is visited in the next
    one. A visit that fails is logged, and the others follow all the same.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        visit: Callable[[T], None],
        *,
        fault: str,
        on_fault: Callable[[T], None],
        every_s: float | None = None,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """
        :param visit: called for each member.
        :param fault: the line of the log for a visit that failed.
        :param on_fault: called for its member.
        :param every_s: the seconds from one round to the next; by default there are those of `begin` only.
        :param on_begin: called at the beginning of each round.
        """
        self._visit = visit
        self._fault = fault
        self._on_fault = on_fault
        self._every_s = every_s
        self._on_begin = on_begin
        self._members: dict[T, None] = {}
        self._left: list[T] = []
        self._is_due = False
        self._work = SlicedWork(clock, self._step, fault=fault, steps=_STEPS_OF_ROUND)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[T]:
        return iter(self._members)

    def __contains__(self, member: T) -> bool:
        return member in self._members

    def add(self, member: T) -> None:
        """Add a member."""
        self._members[member] = None
        if self._every_s is not None:
            self._work.run_later(self._every_s)

    def discard(self, member: T) -> None:
        """Remove a member, which is not visited any more. Does nothing if it is not there."""
        self._members.pop(member, None)
        if not self._members:
            self._left.clear()
            self._is_due = False
            self._work.stop()

    def begin(self) -> None:
        """Begin a round in the next turn of the reactor, or after the present one."""
        self._is_due = True
        self._work.run_later()

    def visit_again(self, member: T) -> None:
        """Visit one member in the next turn of the reactor."""
        self._left.append(member)
        self._work.run_later()

    def _step(self) -> float | None:
        left = self._left
        if not left and (self._is_due or self._every_s is not None):
            self._is_due = False
            self._on_begin()
            left += reversed(self._members)
        for _ in range(min(_VISITS, len(left))):
            member = left.pop()
            if member in self._members:
                self._visit_safely(member)
            if not left:
                break
        if left or self._is_due:
            return 0.0
        return self._every_s if self._members else None

    def _visit_safely(self, member: T) -> None:
        try:
            self._visit(member)
        except Exception:  # noqa: BLE001 -- whatever it was, the others are visited
            self._log.failure(self._fault)
            self._on_fault(member)
