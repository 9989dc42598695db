"""Places for reads: a bounded number at once, with a bounded sum of bytes; the others wait in line."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Final

from twisted.internet.defer import Deferred, succeed
from typing_extensions import Self

__all__ = ["Place", "Places"]


class Places:
    """
    A first-come, first-served limit for all reads together.

    A read takes a place for each of its rounds, and leaves it in between, so that reads of many rounds and
    short ones take turns.
    """

    def __init__(self, *, most_reads: int, most_bytes: int) -> None:
        """
        :param most_reads: maximum number of places.
        :param most_bytes: maximum sum of their bytes. A place that is larger is taken alone.
        """
        self._most_reads: Final = most_reads
        self._most_bytes: Final = most_bytes
        self._reads = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, Deferred[None]]] = deque()
        self._is_admitting = False

    @property
    def waiting(self) -> int:
        """The number of reads that wait for a place."""
        return len(self._waiting)

    def place(self, size: int) -> Place:
        """
        Return a place to enter with ``async with``.

        :param size: the bytes that the read is expected to need.
        """
        return Place(self, size)

    def enter(self, size: int) -> Deferred[None]:
        """:return: fires when there is room. Cancelling it gives up waiting."""
        if not self._waiting and self._has_room(size):
            self._take(size)
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._give_up)
        self._waiting.append((size, waiting))
        return waiting

    def grow(self, size: int) -> None:
        """Count more bytes than were expected; later reads wait for them."""
        self._bytes += size

    def leave(self, size: int) -> None:
        """Let the next reads in."""
        self._reads -= 1
        self._bytes -= size
        self._admit()

    def _has_room(self, size: int) -> bool:
        return not self._reads or (self._reads < self._most_reads and self._bytes + size <= self._most_bytes)

    def _take(self, size: int) -> None:
        self._reads += 1
        self._bytes += size

    def _admit(self) -> None:
        # A read that fails at once leaves its place inside `callback`.
        if self._is_admitting:
            return
        self._is_admitting = True
        try:
            while self._waiting and self._has_room(self._waiting[0][0]):
                size, waiting = self._waiting.popleft()
                self._take(size)
                waiting.callback(None)
        finally:
            self._is_admitting = False

    def _give_up(self, waiting: Deferred[None]) -> None:
        self._waiting = deque(each for each in self._waiting if each[1] is not waiting)
        # The next one may need less room.
        self._admit()


class Place:
    """The place of one read, for one round."""

    def __init__(self, places: Places, size: int) -> None:
        """:param size: see `Places.place`."""
        self._places = places
        self._size = size

    async def __aenter__(self) -> Self:
        await self._places.enter(self._size)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._places.leave(self._size)

    def grow_to(self, size: int) -> None:
        """Count this number of bytes, if it is larger than the expected one."""
        if size > self._size:
            self._places.grow(size - self._size)
            self._size = size
