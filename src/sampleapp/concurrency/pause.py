"""A sleep that can be ended early."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

__all__ = ["Pause"]


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
