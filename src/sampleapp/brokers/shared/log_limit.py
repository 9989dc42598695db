"""Logging why something does not work: each new reason, but no storm when reasons alternate."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Final

from twisted.internet.interfaces import IReactorTime

__all__ = ["LogLimit"]

_INTERVAL_S: Final = 60.0


class LogLimit:
    """
    Decides which reasons are worth a line in the log.

    The first reason for a subject is, and another one is that comes at least a minute after the last line.
    """

    def __init__(self, clock: IReactorTime | None = None) -> None:
        """:param clock: says what time it is; without one, the system does."""
        self._seconds = time.monotonic if clock is None else clock.seconds
        self._logged: dict[Hashable, tuple[str, float]] = {}

    def is_news(self, subject: Hashable, reason: str) -> bool:
        """Return whether to log this reason now; if so, it is taken for logged."""
        now_s = self._seconds()
        last = self._logged.get(subject)
        if last is not None:
            last_reason, at_s = last
            if reason == last_reason or now_s - at_s < _INTERVAL_S:
                return False
        self._logged[subject] = reason, now_s
        return True

    def forget(self, subject: Hashable) -> bool:
        """Begin anew with a subject; return whether a reason was logged for it."""
        return self._logged.pop(subject, None) is not None
