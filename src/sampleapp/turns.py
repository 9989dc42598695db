"""Long work takes its turns: a piece in each turn of the reactor, so that others are served in between."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

__all__ = ["Turns"]

_LET_GO_AT_ONCE: Final = 2000


class Turns:
    """
    Gives each turn of the reactor to one of those who have long work to do, whoever has waited longest.

    So however many there are, others wait no longer than one piece of work takes.
    """

    def __init__(self, clock: IReactorTime) -> None:
        """:param clock: what is called after 0 seconds there is called in a later turn, not in the same."""
        self._clock: Final = clock
        self._waiting: deque[Deferred[None]] = deque()
        self._is_taken = False

    def next(self) -> Deferred[None]:
        """
        Wait for a turn, to work for some milliseconds at most, and then wait for the next one.

        :return: fires with ``None``; has fired already if nobody else has had this turn. Cancelling it stops
            the waiting only.
        """
        if not self._is_taken:
            self._take()
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        return waiting

    def let_go(self, many: list[Any]) -> None:
        """
        Empty a list, some at a time: to let go of a hundred thousand values at once takes milliseconds.

        :param many: nobody else may still need it.
        """
        if len(many) > _LET_GO_AT_ONCE:
            Deferred.fromCoroutine(self._let_go(many))

    async def _let_go(self, many: list[Any]) -> None:
        while many:
            await self.next()
            del many[-_LET_GO_AT_ONCE:]

    def _take(self) -> None:
        self._is_taken = True
        self._clock.callLater(0, self._pass_on)

    def _pass_on(self) -> None:
        self._is_taken = False
        if self._waiting:
            self._take()
            self._waiting.popleft().callback(None)
