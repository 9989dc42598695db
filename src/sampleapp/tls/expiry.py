"""Warnings of certificates that end soon, or have ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

__all__ = ["ExpiryWatch"]

_INTERVAL_S: Final = 24 * 60 * 60.0


class ExpiryWatch:
    """Logs what has to be renewed, at once and each day."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, complaints: Callable[[dt.datetime], Iterable[str]]) -> None:
        """
        :param clock: tells the time, in seconds since the epoch.
        :param complaints: tells what is wrong at a time (with an offset), in sentences.
        """
        self._clock = clock
        self._complaints = complaints
        self._next: IDelayedCall | None = None

    def look(self) -> None:
        """Log what is wrong now; and in a day again, until `stop`."""
        self.stop()
        self._next = self._clock.callLater(_INTERVAL_S, self.look)
        for sentence in self._complaints(dt.datetime.fromtimestamp(self._clock.seconds(), dt.timezone.utc)):
            self._log.warn("{sentence}", sentence=sentence)

    def stop(self) -> None:
        """Look no longer."""
        waiting, self._next = self._next, None
        if waiting is not None and waiting.active():
            waiting.cancel()
