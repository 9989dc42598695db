"""Requests of reads to the leaders of partitions, and the limits of all reads together."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from msgspec import Struct
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed, request_failed
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.protocol import Request

Responses: TypeAlias = "dict[int, list[Any] | RequestFailed]"
"""Those of leaders, by node id, in the order of the requests, or the failure of one of them."""

_TIMEOUT_S: Final = 5.0
_PATIENCE_S: Final = 1.0
"""The wait for the last of several leaders, in seconds; see `Leaders.ask`."""

_LATE: Final = FailureReason(
    sentence="The broker has not answered an earlier request in time.",
    public="A broker does not answer at the moment.",
    lasting=False,
)


class Leaders:
    """
    Asks several leaders at once, and does not let one that is slow, or frozen, delay every read.

    A leader that keeps a read waiting for longer than others is late. It is not asked again until it has
    answered, or its connection is given up, which takes some seconds.
    """

    def __init__(self, *, client: ClusterClient, clock: IReactorTime) -> None:
        """:param client: has connections for nothing but reading: brokers answer a connection in order."""
        self._client = client
        self._clock = clock
        self._late: Counter[int] = Counter()

    def ask(self, requests: Mapping[int, Sequence[Request[Any]]]) -> Deferred[Responses]:
        """
        Send requests, and wait for all responses; for one second only if several leaders are asked.

        :param requests: by the node id of the broker.
        :return: fires with the responses of each leader in the same order, or the `RequestFailed` of one of
            its requests. Never fails. Cancelling it stops the waiting only.
        """
        asking = _Asking(late=self._late, clock=self._clock)
        for node_id, some in requests.items():
            if self._late[node_id]:
                asking.responses[node_id] = RequestFailed(_LATE, sent=False)
            else:
                client = self._client
                asking.add(node_id, [client.request(node_id, each, timeout_s=_TIMEOUT_S) for each in some])
        return asking.begin(patience_s=_PATIENCE_S if len(requests) > 1 else None)


class _Asking:
    """The responses to some requests, until all are there."""

    def __init__(self, *, late: Counter[int], clock: IReactorTime) -> None:
        self.responses: Responses = {}
        self._late = late
        self._clock = clock
        self._missing: dict[int, int] = {}
        """The number of requests without a response, by node id."""
        self._timer: IDelayedCall | None = None
        self._done: Deferred[Responses] = Deferred(self._cancelled)
        self._has_begun = False
        self._is_over = False

    def add(self, node_id: int, asked: Sequence[Deferred[Any]]) -> None:
        self.responses[node_id] = [None] * len(asked)
        self._missing[node_id] = len(asked)
        for index, response in enumerate(asked):
            response.addErrback(request_failed)
            response.addCallback(self._responded, node_id, index)

    def begin(self, *, patience_s: float | None) -> Deferred[Responses]:
        self._has_begun = True
        if not self._missing:
            self._finish()
        elif patience_s is not None:
            self._timer = self._clock.callLater(patience_s, self._give_up)
        return self._done

    def _responded(self, response: object, node_id: int, index: int) -> None:
        if self._is_over:
            # The read has ended without this response, which is dropped.
            if node_id in self._missing:
                self._late[node_id] -= 1
            return
        self._missing[node_id] -= 1
        if not self._missing[node_id]:
            del self._missing[node_id]
        responses = self.responses[node_id]
        if isinstance(response, RequestFailed):
            self.responses[node_id] = response
        elif isinstance(responses, list):
            responses[index] = response
        if self._has_begun and not self._missing:
            self._finish()

    def _give_up(self) -> None:
        self._timer = None
        for node_id, count in self._missing.items():
            self._late[node_id] += count
            self.responses[node_id] = RequestFailed(_LATE, sent=True)
        self._finish()

    def _cancelled(self, _: Deferred[Responses]) -> None:
        self._missing.clear()
        self._end()

    def _finish(self) -> None:
        self._end()
        self._done.callback(self.responses)

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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
