"""A registry of a broker's subscriptions, which begin after the broker has started and end with it."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred

__all__ = ["RunningSubscription", "Subscriptions"]


class RunningSubscription(Protocol):
    """The methods that the registry calls."""

    def begin(self) -> None:
        """Begin to read, unless it has begun or was stopped."""

    def stop(self) -> Deferred[None]:
        """See `sampleapp.interfaces.ISubscription.stop`."""


F = TypeVar("F", bound=RunningSubscription)


class Subscriptions(Generic[F]):
    """The subscriptions that have not ended."""

    def __init__(self) -> None:
        self._all: list[F] = []
        self._is_started = False
        self._is_stopped = False

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def is_running(self) -> bool:
        """True between the start and the stop of the broker."""
        return self._is_started and not self._is_stopped

    def current(self) -> list[F]:
        """Return a new list of the subscriptions that have not ended."""
        return list(self._all)

    def add(self, subscription: F) -> None:
        """Add a subscription. Begin it if the broker has started; stop it if the broker has stopped."""
        if self._is_stopped:
            subscription.stop()
            return
        self._all.append(subscription)
        if self._is_started:
            subscription.begin()

    def ended(self, subscription: F) -> None:
        """Remove a subscription that has ended."""
        if subscription in self._all:
            self._all.remove(subscription)

    def start(self) -> None:
        """Begin all subscriptions, and from now on each that is added."""
        self._is_started = True
        for subscription in self.current():
            subscription.begin()

    async def stop(self) -> None:
        """Stop all subscriptions for good. Returns after they have ended."""
        self._is_stopped = True
        for stopping in [subscription.stop() for subscription in self.current()]:
            await stopping
