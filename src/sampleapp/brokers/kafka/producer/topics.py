"""Which queue a record goes to, and the records of topics of which nothing is known yet."""

from __future__ import annotations

from collections import deque
from random import randrange
from typing import Final

from sampleapp.brokers.kafka.producer.partitioner import murmur2
from sampleapp.brokers.kafka.producer.pending import Pending
from sampleapp.brokers.kafka.producer.queue import PartitionQueue, State

__all__ = ["Topic"]

_LOOKED_AT: Final = 12
"""How many partitions are compared to find one that is not behind: all of them would take too long."""
_HASHES: Final = 16_384

_hashes: dict[bytes, int] = {}
"""Keys come again, and a hash in Python takes as long as all the rest of accepting a record."""


def _hash(key: bytes) -> int:
    found = _hashes.get(key)
    if found is None:
        found = murmur2(key) & 0x7FFFFFFF
        if len(_hashes) >= _HASHES:
            _hashes.clear()
        if len(key) <= 64:  # noqa: PLR2004 -- the cache stays below three megabytes
            _hashes[key] = found
    return found


class Topic:
    """One topic that is published to."""

    __slots__ = (
        "fewer_since_s",
        "held",
        "missing_since_s",
        "name",
        "queues",
        "sticky",
        "sticky_turn",
        "used_s",
        "waiting",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        """One for each partition, by its number; none while it is not known how many there are."""
        self.waiting: deque[Pending] = deque()
        """What was published before that was known."""
        self.held = 0
        """The bytes of those."""
        self.missing_since_s: float | None = None
        """When a broker first said that there is no such topic, by the reactor's clock."""
        self.fewer_since_s: float | None = None
        """When a broker first said that it has fewer partitions than are known, by the reactor's clock."""
        self.sticky: PartitionQueue | None = None
        """Where records without a key go, in one turn of the producer."""
        self.sticky_turn = -1
        self.used_s = 0.0
        """When a record was last published to it."""

    def queue_for(self, key: bytes | None, *, turn: int, now_s: float) -> PartitionQueue:
        """
        The queue of a record: by its key as the Java client does, or, without one, one that is not behind.

        So a slow or dead leader gets only what was on its way to it already (KIP-794).

        :param turn: changes whenever requests are made; until then records without a key stay together.
        :param now_s: the time by the reactor's clock, in seconds.
        """
        queues = self.queues
        if key is not None:
            return queues[_hash(key) % len(queues)]
        sticky = self.sticky
        if sticky is None or self.sticky_turn != turn or sticky.held > sticky.batch_bytes:
            sticky = self.sticky = self._least_behind(now_s)
            self.sticky_turn = turn
        return sticky

    def _least_behind(self, now_s: float) -> PartitionQueue:
        queues = self.queues
        count = len(queues)
        first = randrange(count)  # noqa: S311 -- it spreads load, and keeps no secret
        best = queues[first]
        for index in range(1, min(count, _LOOKED_AT)):
            if best.state is State.IDLE and best.suspect_until_s <= now_s:
                break
            queue = queues[(first + index) % count]
            if _behind(queue, now_s) < _behind(best, now_s):
                best = queue
        return best


def _behind(queue: PartitionQueue, now_s: float) -> tuple[bool, bool, int]:
    return (queue.state is State.PARKED, queue.suspect_until_s > now_s, queue.held)
