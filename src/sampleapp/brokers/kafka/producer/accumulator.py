"""
The bounded buffer of accepted records: topics, with a queue for each of their partitions.

Four verbs carry a record through it: `Accumulator.append` accepts it, `Accumulator.drain` returns the queues
to send from, and `Accumulator.succeed` or `Accumulator.fail` answers its caller. The other methods are for
records published together (`reserve`, `enqueue`), for topics whose partitions change, and for deadlines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import record_size, record_sizes
from sampleapp.brokers.kafka.cluster_client import SERVICE_FAULT
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.producer.partition_queue import (
    Batch,
    BatchResult,
    PartitionQueue,
    Pending,
    QueueState,
    ShortenedDeadlines,
    is_late,
    take_late,
)
from sampleapp.brokers.kafka.producer.partitioner import HASHED_AT_ONCE, hash_keys
from sampleapp.brokers.kafka.producer.results import (
    illegal_header,
    illegal_topic,
    unavailable,
    unknown_partition,
)
from sampleapp.brokers.kafka.producer.topic import PartitionBatch, Topic, TopicCheck
from sampleapp.concurrency.waiting import Waiters
from sampleapp.errors import (
    BufferFull,
    OutcomeUnknown,
    PublishError,
    PublishTimedOut,
    RecordTooLarge,
)
from sampleapp.measures import Waiting
from sampleapp.model import Record, RecordMetadata, is_legal_topic

_FRESH_S: Final = 0.02
"""
The age of metadata, in seconds, up to which several topics need not be loaded again before a batch.

It bounds the requests of many batches; to delete a topic takes longer.
"""
_MISPLACED_S: Final = 1.0
"""The time for which a partition that is not known is asked for: brokers learn of it one after another."""
_EXPIRED_AT_ONCE: Final = 300
"""The topics and queues whose late records are answered in one turn: up to 10 µs for each."""

_response_of: Final = attrgetter("response")


class Accumulator:
    """
    Holds every accepted record until its caller is answered and it is not at a broker any more.

    The buffer is bounded in bytes, and one queue cannot fill it: a queue may hold no more than is left free.
    So one partition whose leader is dead takes at most half of the buffer, two take at most a third each, and
    the others always have room. (Dynamic queue thresholds: Choudhury and Hahne, IEEE/ACM Transactions on
    Networking 6(2), 1998.)
    """

    _log = Logger()

    def __init__(
        self, *, limit_bytes: int, delivery_timeout_s: float, batch_bytes: int, clock: IReactorTime
    ) -> None:
        """
        :param limit_bytes: the size of the buffer.
        :param delivery_timeout_s: maximum time until a caller is answered, in seconds.
        :param batch_bytes: maximum size of a batch, unless a single record is larger.
        """
        self._limit_bytes = limit_bytes
        self._used = 0
        self._reserved = 0
        self._pending_batches = 0
        self.delivery_timeout_s = delivery_timeout_s
        """Maximum time until a caller is answered, in seconds."""
        self._batch_bytes = batch_bytes
        self._clock = clock
        self._idle: Waiters[None] = Waiters()
        self._drains = 0
        self._ready: dict[PartitionQueue, None] = {}
        self._active: dict[PartitionQueue, None] = {}
        self._shortened: ShortenedDeadlines | None = None
        self._outage: FailureReason | None = None
        self._unexpired: list[PartitionQueue | Topic] = []
        """Those that the present round of `expire` has not come to."""
        self.topics: dict[str, Topic] = {}
        """By name. Only the accumulator changes it."""
        self.unknown: dict[str, Topic] = {}
        """Topics with records or checks that wait until the partitions are loaded."""
        self.has_work = False
        """``True`` if the sender has something to do: a queue is ready, or a topic is unknown."""
        self.has_new_topic = False
        """``True`` after a topic was added to `unknown`. The sender resets it."""

    @property
    def buffered_bytes(self) -> int:
        """The bytes of all records held."""
        return self._used

    @property
    def waiting(self) -> Waiting:
        """The records and bytes held. The records are counted at each call."""
        return Waiting(
            records=self._reserved
            + sum(len(topic.waiting) for topic in self.unknown.values())
            + sum(queue.records for queue in self._active),
            bytes=self._used,
            limit_bytes=self._limit_bytes,
        )

    @property
    def outage(self) -> FailureReason | None:
        """The reason for which no broker can be reached; ``None`` while one can be."""
        return self._outage

    @property
    def active(self) -> list[PartitionQueue]:
        """The queues with records, as a new list."""
        return list(self._active)

    def when_empty(self) -> Deferred[None]:
        """Return a Deferred that fires with ``None`` when no record is held and no batch is running."""
        return self._idle.wait() if self._used or self._pending_batches else succeed(None)

    # Accepting records

    def append(self, record: Record, *, key_hash: int | None = None) -> Deferred[RecordMetadata]:
        """
        Accept a record into the queue of its partition.

        :param key_hash: of a long key; see `Pending.key_hash`.
        :return: fires with its partition and offset, or fails with a `PublishError`.
        """
        topic = self.topics.get(record.topic) or self.topic(record.topic)
        if topic is None:
            return fail(illegal_topic())
        topic.used_s = now_s = self._clock.seconds()
        try:
            size = record_size(record)
        except UnicodeEncodeError:
            self.forget_unused(topic.name)
            return fail(illegal_header())
        queue = None
        if topic.queues:
            queue = topic.queue_for(record, generation=self._drains, now_s=now_s, key_hash=key_hash)
        # Every record has a size above 0, so 0 bytes are used exactly when no record is held.
        held = topic.held if queue is None else queue.held + queue.reserved
        if held + size > self._limit_bytes - self._used:
            self.forget_unused(topic.name)
            if size > self._limit_bytes:
                return fail(RecordTooLarge("The record is larger than the buffer for the broker."))
            return fail(
                BufferFull("Too much is waiting for the broker already; the record was not published.")
            )
        self._used += size
        response: Deferred[RecordMetadata] = Deferred()
        pending = Pending(record, size, now_s + self.delivery_timeout_s, response)
        if key_hash is not None:
            pending.key_hash = key_hash
        if queue is None:
            self._wait_for_partitions(topic, pending)
        elif queue.append(pending):
            self.mark_ready(queue)
        return response

    def topic(self, name: str) -> Topic | None:
        """Return a topic, and create it if necessary; ``None`` if Kafka does not allow its name."""
        topic = self.topics.get(name)
        if topic is None and is_legal_topic(name):
            topic = self.topics[name] = Topic(name, batch_bytes=self._batch_bytes)
        return topic

    def to_check(self, names: Collection[str]) -> list[str]:
        """
        Return the topics that `check` must look up. The others count as used now.

        One topic that was known is not looked up: if it was deleted, none of its records is published. Of
        several, the records of the others would be, so all of them must have existed just now.
        """
        now_s, unknown = self._clock.seconds(), []
        loaded_since_s = now_s - _FRESH_S if len(names) > 1 else -math.inf
        for name in names:
            topic = self.topics.get(name)
            if topic is None or not topic.queues or topic.loaded_s < loaded_since_s:
                unknown.append(name)
            else:
                topic.used_s = now_s
        return unknown

    def check(self, names: Iterable[str]) -> Deferred[dict[str, PublishError]]:
        """
        Check which topics cannot be published to, after loading them.

        :return: fires with their errors, when for each topic the partitions are loaded, or loading failed.
        """
        now_s = self._clock.seconds()
        check = TopicCheck(deadline_s=now_s + self.delivery_timeout_s)
        for name in names:
            topic = self.topic(name)
            if topic is None:
                check.add_error(name, illegal_topic())
                continue
            topic.used_s = now_s
            check.expect()
            topic.checks.append(check)
            self._need_partitions(topic)
        check.begin()
        return check.done

    def append_all(self, records: Sequence[Record]) -> BatchResult | None:
        """
        Accept a few records into the queues of their partitions: all of them or none.

        :return: collects their outcomes; ``None`` if none was accepted, and a `PendingBatch` must take them:
            there may be too little room, a topic is not known, their keys take too long to hash, or a record
            has an identity or is illegal.
        """
        now_s = self._clock.seconds()
        queues: list[PartitionQueue] = []
        room = HASHED_AT_ONCE
        for record in records:
            room -= len(record.key or b"")
            topic = self.topics.get(record.topic)
            if topic is None or not topic.queues or record.identity is not None or room < 0:
                return None
            queue = topic.queue_for(record, generation=self._drains, now_s=now_s)
            if queue is None:
                return None
            topic.used_s = now_s
            queues.append(queue)
        try:
            sizes = record_sizes(records)
        except UnicodeEncodeError:
            return None
        total = sum(sizes)
        # A `PendingBatch` spreads records without keys over the partitions.
        if total > self._batch_bytes:
            return None
        # As if all went into the longest queue.
        if (
            max([each.held + each.reserved for each in queues]) + total
            > self._limit_bytes - self._used - total
        ):
            return None
        self._used += total
        outcomes, deadline_s = BatchResult(len(records)), now_s + self.delivery_timeout_s
        for index, queue in enumerate(queues):
            if queue.append(Pending(records[index], sizes[index], deadline_s, outcomes, index)):
                self.mark_ready(queue)
        return outcomes

    # Accepting many records together

    def begin_batch(self) -> None:
        """Note that a batch has begun; `when_empty` waits until `end_batch`."""
        self._pending_batches += 1

    def end_batch(self) -> None:
        """Note that a batch has queued all its records, or never will."""
        self._pending_batches -= 1
        self._notify_if_empty()

    def reserve(self, batches: Collection[PartitionBatch]) -> PublishError | None:
        """
        Reserve the room for records; each batch must then go to `enqueue`, or to `fail_unqueued`.

        There is room for all of them exactly if `append` would accept the last one after all the others.

        :return: the error if the buffer is too full or too small; nothing is reserved then.
        """
        total = sum(batch.size for batch in batches)
        if total > self._limit_bytes:
            return RecordTooLarge(
                "Together the records are larger than the buffer for the broker. Publish fewer at once."
            )
        left = self._limit_bytes - self._used - total
        is_full = left < 0
        for batch in batches:
            # As in `append`, the free room does not include the last record itself.
            last = batch.records[-1].size
            queues = batch.topic.queues if batch.queue is None else [batch.queue]
            # Records for any partition spread over all of them.
            held = sum(queue.held_or_reserved for queue in queues) if queues else batch.topic.held
            most, spread = left + last, max(1, len(queues))
            if queues and batch.size / spread > self._limit_bytes - total + last:
                return RecordTooLarge(
                    "Together the records are larger than the part of the buffer that one partition may use. "
                    "Publish fewer of them at once."
                )
            is_full |= (held + batch.size) / spread > most
        if is_full:
            return BufferFull(
                "Too much is waiting for the broker already; none of the records was published."
            )
        self._used += total
        self._reserved += sum(len(batch.records) for batch in batches)
        for batch in batches:
            batch.reserve()
        return None

    def enqueue(self, batch: PartitionBatch, count: int, *, now_s: float) -> None:
        """
        Append the next records of a batch to their queue. `reserve` must have reserved their room.

        :param count: maximum number of records.
        :param now_s: the time of the reactor's clock, in seconds; their deadlines are counted from it.
        """
        records, size = batch.take(count)
        self._reserved -= len(records)
        deadline_s = now_s + self.delivery_timeout_s
        if records[0].deadline_s != deadline_s:
            # The deadline was set in an earlier slice, and a queue is in the order of the deadlines.
            for pending in records:
                pending.deadline_s = deadline_s
        batch.topic.used_s = now_s
        queue = batch.queue
        if queue is None or queue.state is QueueState.CLOSED:
            self._place(records, now_s)
        elif batch.has_identities:
            # `any` would stop at the first one.
            if sum(map(queue.append, records)):
                self.mark_ready(queue)
        elif queue.extend(records, size):
            self.mark_ready(queue)

    def fail_unqueued(self, batch: PartitionBatch, error: PublishError) -> None:
        """Answer the callers of the records that were not queued yet."""
        records, _ = batch.take(len(batch.records))
        self._reserved -= len(records)
        self.fail(records, error)

    def _place(self, records: Sequence[Pending], now_s: float) -> None:
        name = records[0].record.topic
        # The topic may have been forgotten since the room was reserved.
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name, batch_bytes=self._batch_bytes)
        topic.used_s = now_s
        if not topic.queues:
            for pending in records:
                self._wait_for_partitions(topic, pending)
            return
        self._distribute(topic, records)

    def _distribute(self, topic: Topic, records: Iterable[Pending]) -> None:
        distributed = topic.distribute(records, generation=self._drains, now_s=self._clock.seconds())
        for queue in distributed.ready:
            self.mark_ready(queue)
        now_s = self._clock.seconds()
        for pending in distributed.misplaced:
            if pending.deadline_s - self.delivery_timeout_s + _MISPLACED_S <= now_s:
                self.fail([pending], unknown_partition(pending.record.partition, len(topic.queues)))
            else:
                # The partition may have been added since.
                self._wait_for_partitions(topic, pending)

    def _wait_for_partitions(self, topic: Topic, pending: Pending) -> None:
        if pending.key_hash is None and pending.record.partition is None:
            # Now: as soon as the partitions are known, all waiting records are distributed in one turn.
            (pending.key_hash,) = hash_keys([pending.record.key])
        topic.waiting.append(pending)
        topic.held += pending.size
        self._need_partitions(topic)

    def _need_partitions(self, topic: Topic) -> None:
        if topic.name not in self.unknown:
            self.unknown[topic.name] = topic
            self.has_new_topic = self.has_work = True

    # Queues to send from

    def mark_ready(self, queue: PartitionQueue) -> None:
        """Include a queue in the next `drain`."""
        self._active[queue] = None
        self._ready[queue] = None
        self.has_work = True

    def drain(self) -> Iterable[PartitionQueue]:
        """Return the queues that became ready since the last `drain`, in that order."""
        ready, self._ready = self._ready, {}
        self._drains += 1
        self.has_work = False
        return ready

    # Changes of partitions

    def set_partitions(self, topic: Topic, count: int) -> None:
        """
        Set the number of partitions of a topic, and distribute the records that waited for it.

        Records for a partition that it does not have go on waiting, up to `_MISPLACED_S` in all.

        :param count: at least the number of its queues.
        """
        topic.add_partitions(count)
        if not topic.queues or not (topic.waiting or topic.checks):
            return
        waiting, topic.waiting, topic.held = topic.waiting, deque(), 0
        checks, topic.checks = topic.checks, []
        self._distribute(topic, waiting)
        self._remove_if_not_needed(topic)
        for check in checks:
            check.set_result(topic.name, None)

    def close_queues(self, topic: Topic) -> tuple[list[int], list[Pending]]:
        """
        Close all queues of a topic; records that were not sent wait for its new partitions.

        :return: the producer ids of the queues, which the new queues must not use; and the records that may
            be stored, which leave the queues, and must go to `fail`.
        """
        queues = topic.take_queues()
        waiting = list(topic.waiting)
        producer_ids: list[int] = []
        possibly_stored: list[Pending] = []
        for queue in queues:
            if queue.producer_id is not None:
                producer_ids.append(queue.producer_id)
            unsent, sent = queue.close()
            waiting += unsent
            possibly_stored += sent
            self._active.pop(queue, None)
        # Deadlines are in the order of publishing, so that the records of one key stay in order.
        waiting.sort(key=lambda pending: pending.deadline_s)
        topic.waiting = deque(waiting)
        topic.held = sum(pending.size for pending in waiting)
        if waiting:
            self.unknown[topic.name] = topic
        return producer_ids, possibly_stored

    def take_waiting(self, topic: Topic) -> list[Pending]:
        """Remove and return the records that wait for a topic's partitions; they must go to `fail`."""
        waiting = list(topic.waiting)
        topic.waiting.clear()
        topic.held = 0
        self._remove_if_not_needed(topic)
        return waiting

    def take_checks(self, topic: Topic) -> list[TopicCheck]:
        """Remove and return the checks that wait for a topic's partitions; they must be answered."""
        checks, topic.checks = topic.checks, []
        self._remove_if_not_needed(topic)
        return checks

    def _remove_if_not_needed(self, topic: Topic) -> None:
        if not topic.waiting and not topic.checks:
            self.unknown.pop(topic.name, None)

    def forget_unused(self, name: str) -> None:
        """Forget a topic without partitions, records and checks: callers may invent names."""
        topic = self.topics.get(name)
        if topic is not None and not topic.queues and not topic.waiting and not topic.checks:
            del self.topics[name]

    # Answering callers

    def succeed(self, batch: Batch, *, topic: str, partition: int, offset: int) -> None:
        """
        Answer the callers of all records of a batch that has left its queue.

        :param offset: of the first record; each of the others has the next one.
        """
        self._used -= batch.held
        records, answered = batch.records, 0
        try:
            for response, some in _by_response(records):
                first = offset + answered
                try:
                    if isinstance(response, BatchResult):
                        stored = [
                            RecordMetadata(topic=topic, partition=partition, offset=each)
                            for each in range(first, first + len(some))
                        ]
                        response.put([pending.index for pending in some], stored)
                    elif not response.called:
                        response.callback(RecordMetadata(topic=topic, partition=partition, offset=first))
                except Exception:  # noqa: BLE001 -- such as MemoryError; the other callers are answered
                    self._log.failure("Answering for a record of {topic} failed", topic=topic)
                    _respond_with(some, OutcomeUnknown(SERVICE_FAULT.public))
                answered += len(some)
        except Exception:  # noqa: BLE001 -- dividing them failed, and no queue has them any more
            self._log.failure("Answering for records of {topic} failed", topic=topic)
            _respond_with(islice(records, answered, None), OutcomeUnknown(SERVICE_FAULT.public))
        self._notify_if_empty()

    def fail(self, records: Iterable[Pending], error: PublishError) -> None:
        """Answer the callers of records that have left their queue, unless they were answered already."""
        records = list(records)
        self._used -= sum(pending.size for pending in records)
        _respond_with(records, error)
        self._notify_if_empty()

    def _notify_if_empty(self) -> None:
        if not self._used and not self._pending_batches:
            self._idle.succeed(None)

    def disable_idempotence(self, name: str) -> bool:
        """
        Note that a topic does not accept producer ids.

        :return: ``True`` the first time.
        """
        topic = self.topics.get(name)
        if topic is None:
            return False
        is_new, topic.is_idempotent = topic.is_idempotent, False
        return is_new

    def fail_unsent(self, error: PublishError) -> None:
        """Answer the callers of all records that are certainly not stored, and all checks."""
        self.fail_waiting(error)
        for queue in self.active:
            self.fail(queue.give_up_unsent(), error)

    def fail_waiting(self, error: PublishError) -> None:
        """Answer the callers of all records and checks that wait for a topic's partitions."""
        self.fail_checks(error)
        for topic in list(self.unknown.values()):
            waiting = self.take_waiting(topic)
            self.forget_unused(topic.name)
            self.fail(waiting, error)

    def fail_checks(self, error: PublishError) -> None:
        """Answer all checks."""
        for topic in list(self.unknown.values()):
            checks = self.take_checks(topic)
            self.forget_unused(topic.name)
            for check in checks:
                check.set_result(topic.name, error)

    def fail_sent(self, error: PublishError) -> None:
        """Answer the callers of all records that may be stored."""
        for queue in self.active:
            self.fail(queue.abandon(), error)
            if queue.state is QueueState.READY:
                self.mark_ready(queue)

    # Deadlines

    def shorten_deadlines(self, wait_s: float, *, reason: FailureReason) -> None:
        """
        Shorten the deadlines of records that wait, now or later, until `restore_deadlines`.

        A record that has been sent keeps its whole time.

        :param wait_s: the time that they may wait before they are sent, in seconds.
        :param reason: the reason to give for a record that no attempt was made for.
        """
        self._outage = reason
        earlier_s = self.delivery_timeout_s - wait_s
        if self._shortened is None and earlier_s > 0:
            self._shortened = ShortenedDeadlines(self._clock.seconds() + self.delivery_timeout_s, earlier_s)

    def restore_deadlines(self) -> None:
        """End the effect of `shorten_deadlines`, also for records that still wait."""
        self._shortened = self._outage = None

    def expire(self, *, reason: FailureReason | None) -> list[PartitionQueue]:
        """
        Answer the callers whose deadlines have passed: of the next topics and queues, while `is_expiring`.

        :param reason: the reason for which partitions are not known, for records that wait for them.
        :return: the queues that had such records.
        """
        now_s, shortened = self._clock.seconds(), self._shortened
        late_queues: list[PartitionQueue] = []
        error = unavailable(reason or self.outage)
        if not self._unexpired:
            self._unexpired = [*self.active, *self.unknown.values()]
        for _ in range(min(_EXPIRED_AT_ONCE, len(self._unexpired))):
            topic_or_queue = self._unexpired.pop()
            if isinstance(topic_or_queue, Topic):
                self._expire_waiting(topic_or_queue, now_s, shortened, error)
                continue
            queue = topic_or_queue
            try:
                if self._expire(queue, now_s, shortened):
                    late_queues.append(queue)
            except Exception:  # noqa: BLE001 -- any fault; the callers of the other queues are answered
                self._log.failure("Expiring records of {topic} failed", topic=queue.topic)
                self.fail(queue.abandon(), OutcomeUnknown(SERVICE_FAULT.public))
                self.fail(queue.give_up_unsent(), unavailable(SERVICE_FAULT))
        return late_queues

    @property
    def is_expiring(self) -> bool:
        """``True`` if `expire` has topics and queues left, and should be called in the next turn."""
        return bool(self._unexpired)

    def _expire_waiting(
        self, topic: Topic, now_s: float, shortened: ShortenedDeadlines | None, error: PublishError
    ) -> None:
        late = take_late(topic.waiting, now_s, shortened)
        late_checks = dict.fromkeys(
            check for check in topic.checks if is_late(check.deadline_s, now_s, shortened)
        )
        if late or late_checks:
            topic.held -= sum(pending.size for pending in late)
            topic.checks = [check for check in topic.checks if check not in late_checks]
            self._remove_if_not_needed(topic)
            self.forget_unused(topic.name)
            self.fail(late, error)
            for check in late_checks:
                check.set_result(topic.name, error)

    def _expire(self, queue: PartitionQueue, now_s: float, shortened: ShortenedDeadlines | None) -> bool:
        expired = queue.expire(now_s, shortened)
        if expired is not None:
            if queue.state is QueueState.READY:
                self.mark_ready(queue)
            timed_out = PublishTimedOut("The broker did not say in time whether the record was stored.")
            _respond_with(expired.unanswered, timed_out)
            self.fail(expired.dropped, timed_out)
            self.fail(expired.unsent, unavailable(queue.reason or self.outage))
        if queue.state is QueueState.IDLE or queue.state is QueueState.CLOSED:
            self._active.pop(queue, None)
        return expired is not None


def _by_response(
    records: Sequence[Pending],
) -> Iterable[tuple[Deferred[RecordMetadata] | BatchResult, Sequence[Pending]]]:
    """Divide records into runs that share a response."""
    if len(records) == 1:
        # Most batches; grouping takes longer than the rest of answering.
        return ((records[0].response, records),)
    return ((response, list(some)) for response, some in groupby(records, _response_of))


def _respond_with(records: Iterable[Pending], error: PublishError) -> None:
    for pending in records:
        response = pending.response
        if isinstance(response, BatchResult):
            response.put((pending.index,), (error,))
        elif not response.called:
            # Each caller gets an exception of its own, since raising and chaining change it.
            response.errback(type(error)(*error.args))
