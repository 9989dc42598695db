"""A counting semaphore whose waiters follow one another without recursion."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred, succeed

__all__ = ["Semaphore"]


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
