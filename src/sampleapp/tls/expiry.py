"""Warnings about certificates that expire soon, or have expired."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable
from typing import Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

__all__ = ["ExpiryWatch"]

_INTERVAL_S: Final = 24 * 60 * 60.0


class ExpiryWatch:
    """Logs warnings about certificates, at once and each day."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        warnings: Callable[[dt.datetime], Iterable[str]],
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        :param clock: schedules the next check.
        :param warnings: returns the sentences to log at a time (with an offset).
        :param now: the time of day, in seconds since the epoch.
        """
        self._clock = clock
        self._now = now
        self._warnings = warnings
        self._next: IDelayedCall | None = None

    def check(self) -> None:
        """Log the current warnings, and again each day until `stop`."""
        self.stop()
        self._next = self._clock.callLater(_INTERVAL_S, self.check)
        for sentence in self._warnings(dt.datetime.fromtimestamp(self._now(), dt.timezone.utc)):
            self._log.warn("{sentence}", sentence=sentence)

    def stop(self) -> None:
        """Stop checking."""
        waiting, self._next = self._next, None
        if waiting is not None and waiting.active():
            waiting.cancel()
