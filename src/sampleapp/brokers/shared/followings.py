"""A registry of a broker's followings, which begin after the broker has started and end with it."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred

__all__ = ["Followings", "RunningFollowing"]


class RunningFollowing(Protocol):
    """The methods that the registry calls."""

    def begin(self) -> None:
        """Begin to read, unless it has begun or was stopped."""

    def stop(self) -> Deferred[None]:
        """See `sampleapp.interfaces.IFollowing.stop`."""


F = TypeVar("F", bound=RunningFollowing)


class Followings(Generic[F]):
    """The followings that have not ended."""

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
        """Return a new list of the followings that have not ended."""
        return list(self._all)

    def add(self, following: F) -> None:
        """Add a following. Begin it if the broker has started; stop it if the broker has stopped."""
        if self._is_stopped:
            following.stop()
            return
        self._all.append(following)
        if self._is_started:
            following.begin()

    def ended(self, following: F) -> None:
        """Remove a following that has ended."""
        if following in self._all:
            self._all.remove(following)

    def start(self) -> None:
        """Begin all followings, and from now on each that is added."""
        self._is_started = True
        for following in self.current():
            following.begin()

    async def stop(self) -> None:
        """Stop all followings for good. Returns after they have ended."""
        self._is_stopped = True
        for stopping in [following.stop() for following in self.current()]:
            await stopping
