"""The reactor's clock: one that only goes forward, at the pace of real time."""

from __future__ import annotations

import time
from typing import Any


def use_monotonic_time(reactor: Any) -> None:
    """
    Run a reactor's timers, and every deadline that is measured by its ``seconds``, on `time.monotonic`.

    Twisted's own clock is the time of day: a step forward, by NTP or by hand, would expire all timers, and a
    step back would delay them by as much. Code that needs the time of day calls `time.time`.

    :param reactor: a `twisted.internet.base.ReactorBase`. It asks its attribute ``seconds`` wherever it needs
        the time, and hands it to each `twisted.internet.base.DelayedCall`.
    """
    ahead_s = time.monotonic() - reactor.seconds()
    reactor.seconds = time.monotonic
    for call in reactor.getDelayedCalls():
        call.seconds = time.monotonic
        call.delay(ahead_s)
