"""A topic that is published to: its queues, and the choice of a partition for each record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import randrange
from typing import Final

from msgspec import Struct, field
from twisted.internet.defer import Deferred

from sampleapp.brokers.kafka.producer.partition_queue import PartitionQueue, Pending, QueueState
from sampleapp.brokers.kafka.producer.partitioner import number_of, partition_for_key
from sampleapp.errors import PublishError
from sampleapp.model import Record

_COMPARED: Final = 12
"""Maximum partitions compared for a record without a key; comparing all of them would take too long."""


class Distributed(Struct, frozen=True):
    """The result of `Topic.distribute`."""

    ready: list[PartitionQueue]
    """The queues that became ready for an attempt."""
    misplaced: list[Pending]
    """Records that name a partition which the topic does not have; their callers must be answered."""


class TopicCheck:
    """One `sampleapp.interfaces.IBroker.check_topics`, until the partitions of its topics are known."""

    __slots__ = ("_copies", "_errors", "_missing", "deadline_s", "done")

    def __init__(self, *, deadline_s: float) -> None:
        """:param deadline_s: the time by which it must be answered, in seconds of the reactor's clock."""
        self.deadline_s = deadline_s
        self.done: Deferred[dict[str, PublishError]] = Deferred()
        """Fires with the error of each topic that cannot be used. Cancelling it stops only the waiting."""
        self._errors: dict[str, PublishError] = {}
        self._copies: dict[tuple[type[PublishError], tuple[object, ...]], PublishError] = {}
        """By type and arguments: topics with the same error share one exception."""
        self._missing = 1

    def expect(self) -> None:
        """Wait for the result of another topic."""
        self._missing += 1

    def begin(self) -> None:
        """Note that `expect` was called for all topics to wait for: fire as soon as all have results."""
        self._count_down()

    def add_error(self, name: str, error: PublishError) -> None:
        """Add the error of a topic that `expect` was not called for."""
        self._errors[name] = error

    def set_result(self, name: str, error: PublishError | None) -> None:
        """
        Set the result of a topic that `expect` was called for.

        :param error: the reason why it cannot be published to; ``None`` if it can.
        """
        if error is not None:
            key = type(error), error.args
            copy = self._copies.get(key)
            if copy is None:
                # No other check has it, since raising and chaining change it.
                copy = self._copies[key] = type(error)(*error.args)
            self._errors[name] = copy
        self._count_down()

    def _count_down(self) -> None:
        self._missing -= 1
        if not self._missing and not self.done.called:
            self.done.callback(self._errors)


class Topic:
    """A topic that is published to: the queues of its partitions, and the records that wait for them."""

    __slots__ = (
        "_batch_bytes",
        "_sticky",
        "_sticky_generation",
        "checks",
        "held",
        "is_idempotent",
        "loaded_s",
        "name",
        "queues",
        "used_s",
        "waiting",
    )

    def __init__(self, name: str, *, batch_bytes: int) -> None:
        """:param batch_bytes: maximum size of a batch, unless a single record is larger."""
        self.name = name
        self._batch_bytes = batch_bytes
        self.queues: list[PartitionQueue] = []
        """The queue of each partition, by its number. Empty while the partitions are not known."""
        self.waiting: deque[Pending] = deque()
        """Records published before their partition is known."""
        self.held = 0
        """The bytes of the records in `waiting`."""
        self.checks: list[TopicCheck] = []
        """Checks that wait until the partitions are known."""
        self.is_idempotent = True
        """``False`` after one of its partitions has rejected a producer id."""
        self._sticky: PartitionQueue | None = None
        """The queue for records without a key."""
        self._sticky_generation = -1
        self.used_s = 0.0
        """When a record was last published to it, or it was last checked, by the reactor's clock."""
        self.loaded_s = 0.0
        """When its metadata was last asked for, if it existed then, by the reactor's clock."""

    def is_empty(self) -> bool:
        """Return ``True`` if no record waits or is in flight, and no check waits."""
        return (
            not self.waiting
            and not self.checks
            and all(queue.state is QueueState.IDLE for queue in self.queues)
        )

    def add_partitions(self, count: int) -> None:
        """Add queues up to a number of partitions, which is at least the number of queues."""
        for partition in range(len(self.queues), count):
            self.queues.append(
                PartitionQueue(topic=self.name, partition=partition, batch_bytes=self._batch_bytes)
            )

    def take_queues(self) -> list[PartitionQueue]:
        """Remove and return all queues: the partitions are not known any longer."""
        queues, self.queues, self._sticky = self.queues, [], None
        return queues

    def queue_for(
        self, record: Record, *, generation: int, now_s: float, key_hash: int | None = None
    ) -> PartitionQueue | None:
        """
        Return the queue of a record: by its partition, key or identity, else one that is not behind.

        So a slow or dead leader gets no more records without any of them (KIP-794). Within one generation,
        such records stay together in one partition.

        :param generation: a number that changes whenever the queues are drained.
        :param key_hash: of a long key, which takes too long to hash here; see `hash_in_steps`.
        :return: ``None`` if the topic does not have the record's partition.
        """
        queues, partition, key = self.queues, record.partition, record.key
        if partition is not None:
            return queues[partition] if 0 <= partition < len(queues) else None
        if key_hash is not None:
            return queues[key_hash % len(queues)]
        if key is not None:
            return queues[partition_for_key(key, len(queues))]
        if record.identity is not None:
            return queues[number_of(record.identity) % len(queues)]
        sticky = self._sticky
        if sticky is None or self._sticky_generation != generation or sticky.has_full_batch:
            sticky = self._sticky = _least_behind(queues, now_s)
            self._sticky_generation = generation
        return sticky

    def distribute(self, records: Iterable[Pending], *, generation: int, now_s: float) -> Distributed:
        """
        Append records to the queues.

        :param generation: see `queue_for`.
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
            if record.key is None and record.partition is None and record.identity is None:
                # Fill a batch of one partition before going on to another one.
                if sticky is None or size > room:
                    extend()
                    sticky = self.queue_for(record, generation=generation, now_s=now_s)
                    room = self._batch_bytes - (sticky.bytes_ahead if sticky else 0) % self._batch_bytes
                together.append(pending)
                size += pending.size
                continue
            queue = self.queue_for(record, generation=generation, now_s=now_s, key_hash=pending.key_hash)
            if queue is not None and queue is sticky:
                # A queue is in the order of the deadlines.
                extend()
            if queue is None:
                misplaced.append(pending)
            elif queue.append(pending):
                ready.append(queue)
        extend()
        return Distributed(ready, misplaced)


class PartitionBatch(Struct):
    """Records published together that go to the same queue. Only the accumulator enqueues them."""

    topic: Topic
    queue: PartitionQueue | None
    """``None`` if they may go to any partition, or if the partitions are not known yet."""
    records: deque[Pending] = field(default_factory=deque)
    """The records that are not queued yet, in order."""
    size: int = 0
    """The bytes of the records that are not queued yet."""
    has_identities: bool = False
    """``True`` if a record may have an identity."""

    def is_queue_longer_than(self, size: int) -> bool:
        """Return ``True`` if more bytes than this are ahead in every queue that the records may go to."""
        if self.queue is not None:
            return self.queue.bytes_ahead > size
        queues = self.topic.queues
        return bool(queues) and all(queue.bytes_ahead > size for queue in queues)

    def reserve(self) -> None:
        """Reserve the room of all records in their queue, if it is known. `take` releases it."""
        if self.queue is not None:
            self.queue.reserved += self.size

    def take(self, count: int) -> tuple[Sequence[Pending], int]:
        """
        Remove the first records, and release the room that was reserved for them.

        :param count: maximum number of records.
        :return: the records and their bytes.
        """
        records = self.records
        if len(records) <= count:
            some: Sequence[Pending]
            some, self.records = records, deque()
            size, self.size = self.size, 0
        else:
            # Removed one by one, so that they can be freed gradually, too.
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
