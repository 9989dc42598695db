"""A topic that is published to, and which of its partitions a record belongs to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import randrange
from typing import Final

from msgspec import Struct, field

from sampleapp.brokers.kafka.producer.partition_queue import PartitionQueue, Pending, State
from sampleapp.brokers.kafka.producer.partitioner import partition_for_key
from sampleapp.brokers.kafka.producer.topic_check import TopicCheck
from sampleapp.model import Record

__all__ = ["Distributed", "Load", "Topic"]

_COMPARED: Final = 12
"""How many partitions are compared to find one that is not behind: all of them would take too long."""


class Distributed(Struct, frozen=True):
    """What came of putting records into queues."""

    ready: list[PartitionQueue]
    """The queues that became ready for an attempt by it."""
    misplaced: list[Pending]
    """The records that are to go where there is no partition; they are to be failed."""


class Topic:
    """One topic that is published to: the queues of its partitions, and what waits until they are known."""

    __slots__ = (
        "_batch_bytes",
        "_sticky",
        "_sticky_turn",
        "checks",
        "held",
        "is_idempotent",
        "name",
        "queues",
        "used_s",
        "waiting",
    )

    def __init__(self, name: str, *, batch_bytes: int) -> None:
        """:param batch_bytes: how large a batch may become, unless a single record is larger."""
        self.name = name
        self._batch_bytes = batch_bytes
        self.queues: list[PartitionQueue] = []
        """One for each partition, by its number; none while it is not known how many there are."""
        self.waiting: deque[Pending] = deque()
        """What was published before that was known."""
        self.held = 0
        """The bytes of those."""
        self.checks: list[TopicCheck] = []
        """Who wants to know, until that is known, whether it can be published to."""
        self.is_idempotent = True
        """Whether no partition of it has refused a producer id yet."""
        self._sticky: PartitionQueue | None = None
        self._sticky_turn = -1
        self.used_s = 0.0
        """When a record was last published to it, or somebody wanted to know whether one can be."""

    def is_empty(self) -> bool:
        """Return whether no record of it waits, or is on its way, and nobody wants to know of it."""
        return (
            not self.waiting and not self.checks and all(queue.state is State.IDLE for queue in self.queues)
        )

    def add_partitions(self, count: int) -> None:
        """Note how many partitions there are: at least as many as there are queues."""
        for partition in range(len(self.queues), count):
            self.queues.append(
                PartitionQueue(topic=self.name, partition=partition, batch_bytes=self._batch_bytes)
            )

    def take_queues(self) -> list[PartitionQueue]:
        """Take all queues; how many partitions there are is not known any more."""
        queues, self.queues, self._sticky = self.queues, [], None
        return queues

    def queue_for(self, record: Record, *, turn: int, now_s: float) -> PartitionQueue | None:
        """
        Choose the queue of a record: as it says itself, by its key, or, without one, one that is not behind.

        So a slow or dead leader gets only what was on its way to it already (KIP-794). Until requests are
        made, records without a key stay together.

        :param turn: changes when requests are made.
        :return: ``None`` if there is no such partition.
        """
        queues, partition, key = self.queues, record.partition, record.key
        if partition is not None:
            return queues[partition] if 0 <= partition < len(queues) else None
        if key is not None:
            return queues[partition_for_key(key, len(queues))]
        sticky = self._sticky
        if sticky is None or self._sticky_turn != turn or sticky.has_full_batch:
            sticky = self._sticky = _least_behind(queues, now_s)
            self._sticky_turn = turn
        return sticky

    def distribute(self, records: Iterable[Pending], *, turn: int, now_s: float) -> Distributed:
        """
        Put records into the queues.

        :param turn: see `queue_for`.
        """
        ready: list[PartitionQueue] = []
        misplaced: list[Pending] = []
        sticky: PartitionQueue | None = None
        together: list[Pending] = []
        size = room = 0

        def extend() -> None:
            nonlocal together, size
            if sticky is not None and together and sticky.extend(together, size):
                ready.append(sticky)
            together, size = [], 0

        for pending in records:
            record = pending.record
            if record.key is None and record.partition is None:
                # Of many of these a batch is filled before another partition's is begun.
                if sticky is None or size > room:
                    extend()
                    sticky = self.queue_for(record, turn=turn, now_s=now_s)
                    room = self._batch_bytes - (sticky.held if sticky else 0) % self._batch_bytes
                together.append(pending)
                size += pending.size
                continue
            queue = self.queue_for(record, turn=turn, now_s=now_s)
            if queue is not None and queue is sticky:
                # A queue is in the order of the deadlines.
                extend()
            if queue is None:
                misplaced.append(pending)
            elif queue.append(pending):
                ready.append(queue)
        extend()
        return Distributed(ready, misplaced)


class Load(Struct):
    """Records that were published together, and go the same way. Only the accumulator places them."""

    topic: Topic
    queue: PartitionQueue | None
    """``None`` if any partition may get them, or if it is not known yet which there are."""
    records: deque[Pending] = field(default_factory=deque)
    """Those that are not placed yet, in their order."""
    size: int = 0
    """The bytes of those."""

    def is_behind(self, size: int) -> bool:
        """Whether every queue that may get the next ones holds more than so many bytes already."""
        if self.queue is not None:
            return self.queue.held > size
        queues = self.topic.queues
        return bool(queues) and all(queue.held > size for queue in queues)

    def reserve(self) -> None:
        """Note in the queue that the records will be placed there, or taken without."""
        if self.queue is not None:
            self.queue.reserved += self.size

    def take(self, count: int) -> tuple[Sequence[Pending], int]:
        """Take so many of them, at most, from the first on, which are reserved; return their bytes, too."""
        records = self.records
        if len(records) <= count:
            some: Sequence[Pending]
            some, self.records = records, deque()
            size, self.size = self.size, 0
        else:
            # So that they are let go of a few at a time, too.
            some = [records.popleft() for _ in range(count)]
            size = sum(pending.size for pending in some)
            self.size -= size
        if self.queue is not None:
            self.queue.reserved -= size
        return some, size


def _least_behind(queues: list[PartitionQueue], now_s: float) -> PartitionQueue:
    count = len(queues)
    first = randrange(count)  # noqa: S311 -- it spreads load, and keeps no secret
    best, best_rank = queues[first], queues[first].rank(now_s)
    for index in range(1, min(count, _COMPARED)):
        if best_rank == _NOT_BEHIND:
            break
        queue = queues[(first + index) % count]
        rank = queue.rank(now_s)
        if rank < best_rank:
            best, best_rank = queue, rank
    return best


_NOT_BEHIND: Final = (False, False, 0)
