"""What a broker warns of while it reads a topic, shown to the person at the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from zope.interface import provider

from sampleapp.cli._output import note

__all__ = ["warnings_on_stderr"]

_KAFKA = "sampleapp.brokers.kafka.consumer"
_NAMESPACES: Final = frozenset(
    {f"{_KAFKA}.delivery.Delivery", f"{_KAFKA}.fetching.Fetching", f"{_KAFKA}.following.Following"}
)
"""Those who log what is missing in, or wrong with, what is read. The state of the broker is its health."""


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Show warnings about records that are skipped, or a topic that is read anew."""
    from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogPublisher

    @provider(ILogObserver)
    def show(event: LogEvent) -> None:
        if event.get("log_level") is LogLevel.warn and event.get("log_namespace") in _NAMESPACES:
            note(f"{formatEvent(event)}.")

    globalLogPublisher.addObserver(show)
    try:
        yield
    finally:
        globalLogPublisher.removeObserver(show)
