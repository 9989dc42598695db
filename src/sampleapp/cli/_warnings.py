"""Warnings from reading a topic, shown on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from zope.interface import provider

from sampleapp.cli._output import note

__all__ = ["warnings_on_stderr"]

_KAFKA = "sampleapp.brokers.kafka.consumer"
_NAMESPACES: Final = frozenset(
    {f"{_KAFKA}.delivery.Delivery", f"{_KAFKA}.fetcher._NotWaiting", f"{_KAFKA}.subscription.Subscription"}
)
"""Loggers of warnings about records. The state of the broker is in its health instead."""


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Show warnings about skipped records, and about a topic that is read again from its start."""
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
