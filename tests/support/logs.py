"""What the service logs while something happens."""

from __future__ import annotations

from contextlib import contextmanager

from twisted.logger import formatEvent, globalLogPublisher


@contextmanager
def logged(level):
    """The events of one level that sampleapp logs meanwhile."""
    with _observed(lambda event: event if event["log_level"] is level else None) as events:
        yield events


@contextmanager
def logged_lines():
    """All that sampleapp logs meanwhile, as an operator sees it."""
    with _observed(formatEvent) as lines:
        yield lines


@contextmanager
def _observed(look):
    seen = []

    def observe(event):
        if "sampleapp" in event.get("log_namespace", ""):
            shown = look(event)
            if shown is not None:
                seen.append(shown)

    globalLogPublisher.addObserver(observe)
    try:
        yield seen
    finally:
        globalLogPublisher.removeObserver(observe)
