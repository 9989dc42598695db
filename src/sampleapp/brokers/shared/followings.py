"""The followings of a broker: each begins when the broker has started, and ends with it at the latest."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred

__all__ = ["Followings", "RunningFollowing"]


class RunningFollowing(Protocol):
    """What the registry asks of a following."""

    def begin(self) -> None:
        """Begin to read; does nothing when it has begun or was stopped."""

    def stop(self) -> Deferred[None]:
        """See `sampleapp.interfaces.IFollowing.stop`."""


F = TypeVar("F", bound=RunningFollowing)


class Followings(Generic[F]):
    """All followings that have not ended."""

    def __init__(self) -> None:
        self._all: list[F] = []
        self._is_started = False
        self._is_stopped = False

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def is_running(self) -> bool:
        """Whether the broker has started, and has not stopped."""
        return self._is_started and not self._is_stopped

    def current(self) -> list[F]:
        """Return those that have not ended; the list is the caller's own."""
        return list(self._all)

    def add(self, following: F) -> None:
        """Take in one more: begin it if the broker has started, and stop it if the broker has stopped."""
        if self._is_stopped:
            following.stop()
            return
        self._all.append(following)
        if self._is_started:
            following.begin()

    def ended(self, following: F) -> None:
        """Forget one of which nothing is left running."""
        if following in self._all:
            self._all.remove(following)

    def start(self) -> None:
        """Begin all that are there, and each that comes."""
        self._is_started = True
        for following in self.current():
            following.begin()

    async def stop(self) -> None:
        """Stop all of them, for ever; returns when nothing of them is left running."""
        self._is_stopped = True
        for stopping in [following.stop() for following in self.current()]:
            await stopping
