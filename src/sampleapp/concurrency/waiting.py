"""Waiting that other code ends: for an event, for a turn, or for some time."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

T = TypeVar("T")


def shielded(waiting: Deferred[T]) -> Deferred[T]:
    """Return a Deferred with the same outcome; cancelling it does not cancel the first one."""
    shield: Deferred[T] = Deferred()
    waiting.addBoth(lambda outcome: outcome if shield.called else shield.callback(outcome))
    return shield


class Waiters(Generic[T]):
    """
    The waiters for an event that may happen again and again.

    A Deferred of its own for each keeps them independent: one may cancel it, or add a callback that fails.
    """

    def __init__(self) -> None:
        self._waiting: list[Deferred[T]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self) -> Deferred[T]:
        """
        Wait for the event.

        :return: fires with the value of `succeed`, or fails with an error of `fail`. Cancelling it ends this
            wait only.
        """
        waiter: Deferred[T] = Deferred()
        self._waiting.append(waiter)
        return waiter

    def succeed(self, value: T) -> None:
        """Fire the Deferreds of all waiters; later ones wait for the next event."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.called:
                waiter.callback(value)

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """
        Fail the Deferreds of all waiters.

        :param make_error: creates an exception for each waiter, so that each may raise and chain its own.
        """
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.called:
                waiter.errback(make_error())


class Semaphore:
    """
    A counting semaphore: groups of waiters take turns, and in each group it is first come, first served.

    Unlike `twisted.internet.defer.DeferredSemaphore`, it takes thousands of waiters that release at once, as
    when everything they wait for fails: there, each release runs inside the release before it, up to a
    RecursionError. A waiter can also be cancelled in constant time.
    """

    def __init__(self, count: int, *, most_of_group: int | None = None) -> None:
        """
        :param count: how many may hold it at one time, at least 1.
        :param most_of_group: how many of one group; by default as many.
        """
        self._free = count
        self._most_of_group = count if most_of_group is None else most_of_group
        self._held: Final[Counter[Hashable]] = Counter()
        self._lines: Final[OrderedDict[Hashable, OrderedDict[Deferred[None], None]]] = OrderedDict()
        """The waiters of each group that has any; the group whose turn is next comes first."""
        self._is_passing_on = False

    def acquire(self, group: Hashable = None) -> Deferred[None]:
        """
        Wait for the semaphore.

        :param group: such as a caller, whose waiters delay those of others by one at a time.
        :return: fires with ``None``, and then `release` must be called once. Cancelling it ends the waiting.
        """
        # While it is free, only groups that hold all they may are waiting.
        if self._free and self._held[group] < self._most_of_group and not self._is_passing_on:
            self._take(group)
            return succeed(None)
        waiting: Deferred[None] = Deferred(partial(self._give_up, group))
        self._lines.setdefault(group, OrderedDict())[waiting] = None
        return waiting

    def release(self, group: Hashable = None) -> None:
        """
        Let the next waiter have it, when a release that is under way has let the waiters before it.

        :param group: as for `acquire`.
        """
        self._free += 1
        self._held[group] -= 1
        if not self._held[group]:
            del self._held[group]
        if self._is_passing_on:
            return
        self._is_passing_on = True
        try:
            while (waiting := self._next()) is not None:
                waiting.callback(None)
        finally:
            self._is_passing_on = False

    def _take(self, group: Hashable) -> None:
        self._free -= 1
        self._held[group] += 1

    def _next(self) -> Deferred[None] | None:
        if not self._free:
            return None
        for group, line in self._lines.items():
            if self._held[group] < self._most_of_group:
                waiting, _ = line.popitem(last=False)
                if line:
                    self._lines.move_to_end(group)
                else:
                    del self._lines[group]
                self._take(group)
                return waiting
        return None

    def _give_up(self, group: Hashable, waiting: Deferred[None]) -> None:
        line = self._lines[group]
        del line[waiting]
        if not line:
            del self._lines[group]


class Pause:
    """A sleep of one coroutine, which other code may end."""

    def __init__(self, clock: IReactorTime) -> None:
        """:param clock: measures the sleep."""
        self._clock = clock
        self._ended = False
        self._sleeping: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None

    async def sleep(self, delay_s: float | None) -> None:
        """Wait until `wake` or `end` is called, at most ``delay_s`` seconds unless that is ``None``."""
        if self._ended:
            return
        self._sleeping = Deferred()
        if delay_s is not None:
            self._timer = self._clock.callLater(delay_s, self._timed_out)
        await self._sleeping

    def wake(self) -> None:
        """End the sleep, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None:
            sleeping.callback(None)

    def end(self) -> None:
        """End the sleep; every later one ends at once."""
        self._ended = True
        self.wake()

    def _timed_out(self) -> None:
        self._timer = None
        self.wake()
