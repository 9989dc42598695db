"""What the service logs while something happens."""

from __future__ import annotations

from contextlib import contextmanager

from twisted.logger import globalLogPublisher


@contextmanager
def logged(level):
    """The events of one level that sampleapp logs meanwhile."""
    events = []

    def observe(event):
        if event["log_level"] is level and "sampleapp" in event.get("log_namespace", ""):
            events.append(event)

    globalLogPublisher.addObserver(observe)
    try:
        yield events
    finally:
        globalLogPublisher.removeObserver(observe)
