"""A one-to-many event: each waiter has a Deferred of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred

__all__ = ["Waiters"]

T = TypeVar("T")


class Waiters(Generic[T]):
    """
    The waiters for an event that may happen again and again.

    A Deferred of its own for each keeps them independent: one may cancel it, or add a callback that fails.
    """

    def __init__(self) -> None:
        self._waiting: list[Deferred[T]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self) -> Deferred[T]:
        """
        Wait for the event.

        :return: fires with the value of `succeed`, or fails with an error of `fail`. Cancelling it ends this
            wait only.
        """
        waiter: Deferred[T] = Deferred()
        self._waiting.append(waiter)
        return waiter

    def succeed(self, value: T) -> None:
        """Fire the Deferreds of all waiters; later ones wait for the next event."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.called:
                waiter.callback(value)

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """
        Fail the Deferreds of all waiters.

        :param make_error: creates an exception for each waiter, so that each may raise and chain its own.
        """
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.called:
                waiter.errback(make_error())
