"""Slots for reads: a bounded number at once, with a bounded sum of bytes; the others wait in line."""

from __future__ import annotations

from collections import defaultdict, deque
from types import TracebackType

from msgspec import Struct
from twisted.internet.defer import Deferred, succeed
from typing_extensions import Self


class ReadSlots:
    """
    A first-come, first-served limit for all reads together.

    A read takes a slot for each of its rounds, and leaves it in between, so that reads of many rounds and
    short ones take turns. Reads that ask the same leader, and no other, share half of the limit: if it is
    frozen, they keep their slots until their requests time out, and reads from other leaders go on.
    """

    def __init__(self, *, most_reads: int, most_bytes: int) -> None:
        """
        :param most_reads: maximum number of slots.
        :param most_bytes: maximum sum of their bytes. A slot that is larger is taken alone.
        """
        self._all = _Room(most_reads, most_bytes)
        self._shares: defaultdict[int, _Room] = defaultdict(
            lambda: _Room(max(1, most_reads // 2), most_bytes // 2)
        )
        """By leader."""
        self._lines: dict[int | None, deque[_Waiting]] = {}
        """The reads that wait, by leader, in the order of arrival."""
        self._arrivals = 0
        self._is_admitting = False

    def slot(self, size: int, *, leader: int | None) -> ReadSlot:
        """
        Return a slot to enter with ``async with``.

        :param size: the bytes that the read is expected to need.
        :param leader: the node id of the leader, if only one is asked. Reads that ask several wait for a late
            one only briefly, and count for none of them.
        """
        return ReadSlot(self, size, leader)

    def enter(self, size: int, leader: int | None) -> Deferred[None]:
        """:return: fires when there is room. Cancelling it gives up waiting."""
        if not self._lines and self._all.has(size) and self._has_share(size, leader):
            self._count(1, size, leader)
            return succeed(None)
        self._arrivals += 1
        entered: Deferred[None] = Deferred(lambda _: self._give_up(waiting))
        waiting = _Waiting(self._arrivals, leader, size, entered)
        self._lines.setdefault(leader, deque()).append(waiting)
        self._admit()
        return entered

    def grow(self, size: int, leader: int | None) -> None:
        """Count more bytes than were expected; later reads wait for them."""
        self._count(0, size, leader)

    def leave(self, size: int, leader: int | None) -> None:
        """Let the next reads in."""
        self._count(-1, -size, leader)
        if self._lines:
            self._admit()

    def _has_share(self, size: int, leader: int | None) -> bool:
        return leader is None or self._shares[leader].has(size)

    def _count(self, reads: int, size: int, leader: int | None) -> None:
        self._all.count(reads, size)
        if leader is not None:
            self._shares[leader].count(reads, size)

    def _admit(self) -> None:
        # A read that fails at once leaves its slot inside `callback`.
        if self._is_admitting:
            return
        self._is_admitting = True
        try:
            while (next_one := self._next()) is not None and self._all.has(next_one.size):
                self._remove(next_one)
                self._count(1, next_one.size, next_one.leader)
                next_one.entered.callback(None)
        finally:
            self._is_admitting = False

    def _next(self) -> _Waiting | None:
        """Return the read that has waited longest, of those whose leaders have room in their shares."""
        firsts = (line[0] for line in self._lines.values() if self._has_share(line[0].size, line[0].leader))
        return min(firsts, key=lambda each: each.number, default=None)

    def _give_up(self, waiting: _Waiting) -> None:
        self._remove(waiting)
        # The next one may need less room.
        self._admit()

    def _remove(self, waiting: _Waiting) -> None:
        line = self._lines[waiting.leader]
        line.remove(waiting)
        if not line:
            del self._lines[waiting.leader]


class ReadSlot:
    """The slot of one read, for one round."""

    def __init__(self, slots: ReadSlots, size: int, leader: int | None) -> None:
        """Take the parameters of `ReadSlots.slot`."""
        self._slots = slots
        self._size = size
        self._leader = leader

    async def __aenter__(self) -> Self:
        await self._slots.enter(self._size, self._leader)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slots.leave(self._size, self._leader)

    def grow_to(self, size: int) -> None:
        """Count this number of bytes, if it is larger than the expected one."""
        if size > self._size:
            self._slots.grow(size - self._size, self._leader)
            self._size = size


class _Room:
    """The slots of some reads, up to a number and a sum of bytes."""

    def __init__(self, most_reads: int, most_bytes: int) -> None:
        self.reads = self.bytes = 0
        self._most_reads = most_reads
        self._most_bytes = most_bytes

    def has(self, size: int) -> bool:
        """Return ``True`` if there is room for one more. There always is for the first."""
        return not self.reads or (self.reads < self._most_reads and self.bytes + size <= self._most_bytes)

    def count(self, reads: int, size: int) -> None:
        """Take this number of slots with this sum of bytes; negative numbers give them back."""
        self.reads += reads
        self.bytes += size


class _Waiting(Struct, frozen=True, eq=False):
    """A read that waits in line."""

    number: int
    """Grows with each arrival."""
    leader: int | None
    size: int
    entered: Deferred[None]
