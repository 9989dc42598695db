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
_MOST_REASONS: Final = 10
"""The most reasons of a subject that are logged within a minute: some have figures that change."""


class LogLimit:
    """
    Decides which failures are logged.

    A reason that is new for its subject is logged at once, whatever was logged before: it may be the one that
    lasts. One that was given within the last minute, or was the last one given, is not logged again, so that
    reasons that alternate are one line each.
    """

    def __init__(self, clock: IReactorTime | None = None) -> None:
        """:param clock: measures the minute; by default `time.monotonic` does."""
        self._seconds = time.monotonic if clock is None else clock.seconds
        self._given: dict[Hashable, dict[str, float]] = {}
        """The reasons of each subject and the times when they were last given, in their order."""
        self._logged_s: dict[Hashable, float] = {}
        """The times of the last lines, in their order, for `is_due`."""

    def is_news(self, subject: Hashable, reason: str) -> bool:
        """Return whether to log this reason now; if so, remember it as logged."""
        now_s = self._seconds()
        given = self._given.setdefault(subject, {})
        is_last = bool(given) and next(reversed(given)) == reason
        given_s = given.pop(reason, None)
        is_known = given_s is not None and (is_last or now_s - given_s < _INTERVAL_S)
        if len(given) >= _MOST_REASONS:
            oldest = next(iter(given))
            if now_s - given[oldest] < _INTERVAL_S:
                return False
            del given[oldest]
        given[reason] = now_s
        return not is_known

    def is_due(self, subject: Hashable) -> bool:
        """Return whether the last line about a subject is a minute old; if so, remember one as logged now."""
        now_s = self._seconds()
        while self._logged_s and now_s - self._logged_s[oldest := next(iter(self._logged_s))] >= _INTERVAL_S:
            del self._logged_s[oldest]
        if subject in self._logged_s:
            return False
        self._logged_s[subject] = now_s
        return True

    def forget(self, subject: Hashable) -> bool:
        """Forget the reasons of a subject; return whether one was logged."""
        return self._given.pop(subject, None) is not None
