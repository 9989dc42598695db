"""Doing something again and again, for as long as there is a need."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

__all__ = ["Repeating"]


class Repeating:
    """One step at a time, with a pause between two of them that may be cut short."""

    _log = Logger()

    def __init__(
        self,
        *,
        step: Callable[[], Coroutine[Deferred[Any], Any, None]],
        is_needed: Callable[[], bool],
        interval_s: float,
        clock: IReactorTime,
    ) -> None:
        """
        :param step: what is done.
        :param is_needed: is asked before each step; when it is not, that is the end.
        :param interval_s: the length of the pauses, in seconds.
        """
        self._step = step
        self._is_needed = is_needed
        self._interval_s = interval_s
        self._clock = clock
        self._is_running = False
        self._pause: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None

    def begin(self) -> None:
        """There may be a need."""
        if not self._is_running:
            self._is_running = True
            Deferred.fromCoroutine(self._run()).addErrback(
                lambda failure: self._log.failure("A step has failed", failure=failure)
            )

    def wake(self) -> None:
        """Cut the pause short, if there is one."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.callback(None)

    async def _run(self) -> None:
        try:
            while self._is_needed():
                await self._step()
                if self._is_needed():
                    self._pause = Deferred()
                    self._timer = self._clock.callLater(self._interval_s, self.wake)
                    await self._pause
        finally:
            self._is_running = False
