"""Several callers that wait for one event, each with a Deferred of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred

__all__ = ["Waiters"]

T = TypeVar("T")


class Waiters(Generic[T]):
    """
    Callers that wait.

    Each has a Deferred of its own, since what one of them does with it (cancel it, add a callback that
    fails) is nothing to the others.
    """

    def __init__(self) -> None:
        self._waiting: list[Deferred[T]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self) -> Deferred[T]:
        """
        Wait for the event.

        :return: fires as `succeed` or `fail` says. Cancelling it ends this wait only.
        """
        waiter: Deferred[T] = Deferred()
        self._waiting.append(waiter)
        return waiter

    def succeed(self, value: T) -> None:
        """The event has come: fire all who wait now; those who wait from now on are for the next event."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.called:
                waiter.callback(value)

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """
        Fail all who wait now.

        :param make_error: makes the exception, one for each, which may raise and chain it as it likes.
        """
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.called:
                waiter.errback(make_error())
