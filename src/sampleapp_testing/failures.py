"""Detection of unhandled failures in tests."""

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
    Collect the failures that are logged inside the context, or left unhandled in a `Deferred`.

    At the end, the garbage collector runs: an unhandled failure is logged when its Deferred is collected.

    :return: a context manager that yields the list, to which failures are added as they are logged.
    :raise AssertionError: at the end, if the list is not empty. Remove the failures that you expect.
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
