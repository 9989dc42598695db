"""Failures that nobody handles, which would otherwise pass a test by."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.python.failure import Failure
from zope.interface import provider

__all__ = ["failures_collected"]


@contextmanager
def failures_collected() -> Iterator[list[Failure]]:
    """
    Collect each failure that is logged meanwhile, or left unhandled in a `Deferred`.

    At the end, garbage is collected: an unhandled failure is logged when its Deferred goes.

    :return: a context manager that yields the list, which goes on growing.
    :raise AssertionError: at the end, if the list is not empty. Take out what you expected.
    """
    failures: list[Failure] = []

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        failure = event.get("log_failure")
        if failure is not None:
            failures.append(failure)

    globalLogPublisher.addObserver(observe)
    try:
        yield failures
        gc.collect()
    finally:
        globalLogPublisher.removeObserver(observe)
    if failures:
        raise AssertionError("\n".join(failure.getTraceback() for failure in failures))
