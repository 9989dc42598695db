"""Waiting: for a time, or until somebody says that there is something to do."""

from __future__ import annotations

from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

__all__ = ["Pause", "backoff_s"]

_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0


def backoff_s(failures: int) -> float:
    """How long to wait, in seconds, after so many failures in a row, of which there is one at least."""
    # The exponent is bounded because failures are not, and a float is.
    return min(_BACKOFF_S * 2.0 ** min(failures - 1, 10), _MAX_BACKOFF_S)


class Pause:
    """A sleep of one coroutine, which others may shorten."""

    def __init__(self, clock: IReactorTime) -> None:
        """:param clock: says when time is up."""
        self._clock = clock
        self._ended = False
        self._sleeping: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None

    async def sleep(self, delay_s: float | None) -> None:
        """Wait for so many seconds at most, or without ``delay_s`` until `wake` or `end`."""
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
        """End the sleep, and every one to come at once."""
        self._ended = True
        self.wake()

    def _timed_out(self) -> None:
        self._timer = None
        self.wake()
