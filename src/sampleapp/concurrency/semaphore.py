"""A counting semaphore whose waiters follow one another without recursion."""

from __future__ import annotations

from collections import OrderedDict
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

    def __init__(self, count: int) -> None:
        """:param count: how many may hold it at one time, at least 1."""
        self._free = count
        self._lines: Final[OrderedDict[Hashable, OrderedDict[Deferred[None], None]]] = OrderedDict()
        """The waiters of each group that has any; the group whose turn is next comes first."""
        self._is_passing_on = False

    def acquire(self, group: Hashable = None) -> Deferred[None]:
        """
        Wait for the semaphore.

        :param group: such as a caller, whose waiters delay those of others by one at a time.
        :return: fires with ``None``, and then `release` must be called once. Cancelling it ends the waiting.
        """
        if self._free and not self._lines:
            self._free -= 1
            return succeed(None)
        waiting: Deferred[None] = Deferred(partial(self._give_up, group))
        self._lines.setdefault(group, OrderedDict())[waiting] = None
        return waiting

    def release(self) -> None:
        """Let the next waiter have it, when a release that is under way has let the waiters before it."""
        self._free += 1
        if self._is_passing_on:
            return
        self._is_passing_on = True
        try:
            while self._free and self._lines:
                self._free -= 1
                group, line = self._lines.popitem(last=False)
                waiting, _ = line.popitem(last=False)
                if line:
                    self._lines[group] = line
                waiting.callback(None)
        finally:
            self._is_passing_on = False

    def _give_up(self, group: Hashable, waiting: Deferred[None]) -> None:
        line = self._lines[group]
        del line[waiting]
        if not line:
            del self._lines[group]
