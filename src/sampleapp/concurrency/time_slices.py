"""Cooperative scheduling of coroutines: one slice of long work in each turn of the reactor."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

__all__ = ["TimeSlices"]

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
            self._is_taken = True
            # A call that is scheduled while sockets are read comes in the same turn.
            self._clock.callLater(0, self._take)
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        return waiting

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
