"""A counting semaphore whose waiters follow one another without recursion."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from twisted.internet.defer import Deferred, succeed

__all__ = ["Semaphore"]


class Semaphore:
    """
    A counting semaphore: first come, first served.

    Unlike `twisted.internet.defer.DeferredSemaphore`, it takes thousands of waiters that release at once, as
    when everything they wait for fails: there, each release runs inside the release before it, up to a
    RecursionError. A waiter can also be cancelled in constant time.
    """

    def __init__(self, count: int) -> None:
        """:param count: how many may hold it at one time, at least 1."""
        self._free = count
        self._waiting: Final[OrderedDict[Deferred[None], None]] = OrderedDict()
        self._is_passing_on = False

    def acquire(self) -> Deferred[None]:
        """
        Wait for the semaphore.

        :return: fires with ``None``, and then `release` must be called once. Cancelling it ends the waiting.
        """
        if self._free and not self._waiting:
            self._free -= 1
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._waiting.pop)
        self._waiting[waiting] = None
        return waiting

    def release(self) -> None:
        """Let the next waiter have it, when a release that is under way has let the waiters before it."""
        self._free += 1
        if self._is_passing_on:
            return
        self._is_passing_on = True
        try:
            while self._free and self._waiting:
                self._free -= 1
                self._waiting.popitem(last=False)[0].callback(None)
        finally:
            self._is_passing_on = False
