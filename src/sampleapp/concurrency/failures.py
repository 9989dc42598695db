"""Failures: their tracebacks, and a limit on the log lines about them."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from sampleapp.errors import forget_frames


def forget_frames_of(failure: Failure) -> None:
    """
    Drop the tracebacks of a failure, and of its error, as `sampleapp.errors.forget_frames` does.

    `Failure.cleanFailure` formats each frame, which takes as long as many requests.
    """
    failure.tb = None
    forget_frames(failure.value)


_INTERVAL_S: Final = 60.0


class LogLimit:
    """
    Decides which reasons of failures are logged.

    The first reason for a subject is logged, and then another one if the last line is at least a minute old.
    """

    def __init__(self, clock: IReactorTime | None = None) -> None:
        """:param clock: measures the minute; by default `time.monotonic` does."""
        self._seconds = time.monotonic if clock is None else clock.seconds
        self._logged: dict[Hashable, tuple[str, float]] = {}

    def is_news(self, subject: Hashable, reason: str) -> bool:
        """Return whether to log this reason now; if so, remember it as logged."""
        now_s = self._seconds()
        last = self._logged.get(subject)
        if last is not None:
            last_reason, at_s = last
            if reason == last_reason or now_s - at_s < _INTERVAL_S:
                return False
        self._logged[subject] = reason, now_s
        return True

    def forget(self, subject: Hashable) -> bool:
        """Forget the last reason of a subject; return whether one was logged."""
        return self._logged.pop(subject, None) is not None
