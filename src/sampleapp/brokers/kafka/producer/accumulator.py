"""Where records wait: a bounded buffer, the topics, and a queue for each of their partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime

from sampleapp.brokers.kafka.batches import record_size
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.producer.outcomes import Outcomes
from sampleapp.brokers.kafka.producer.partition_queue import (
    Batch,
    Hurry,
    PartitionQueue,
    Pending,
    State,
    take_late,
)
from sampleapp.brokers.kafka.producer.results import illegal_topic, unavailable, unknown_partition
from sampleapp.brokers.kafka.producer.topic import Load, Topic
from sampleapp.brokers.kafka.producer.topic_check import TopicCheck
from sampleapp.brokers.shared.waiters import Waiters
from sampleapp.errors import BufferFull, PublishError, PublishTimedOut, RecordTooLarge, UnknownPartition
from sampleapp.measures import Waiting
from sampleapp.messages import is_legal_topic
from sampleapp.model import Record, RecordMetadata

__all__ = ["Accumulator"]


class Accumulator:
    """
    Every record that was accepted, until it is answered and nothing more can become of it.

    The buffer is a bounded number of bytes, of which nobody can take all: a queue may hold no more than is
    left free. So one partition whose leader is dead takes at most half of the buffer, two of them at most a
    third each, and something is always left for those that move. (Dynamic queue thresholds: Choudhury and
    Hahne, IEEE/ACM Transactions on Networking 6(2), 1998.)
    """

    def __init__(
        self, *, limit_bytes: int, delivery_timeout_s: float, batch_bytes: int, clock: IReactorTime
    ) -> None:
        """
        :param limit_bytes: the size of the buffer.
        :param delivery_timeout_s: how long a caller waits for an answer at most, in seconds.
        :param batch_bytes: how large a batch may become, unless a single record is larger.
        """
        self._limit_bytes = limit_bytes
        self._used = 0
        self._reserved = 0
        self._intakes = 0
        self.delivery_timeout_s = delivery_timeout_s
        """How long a caller waits for an answer at most, in seconds."""
        self._batch_bytes = batch_bytes
        self._clock = clock
        self._idle: Waiters[None] = Waiters()
        self._turn = 0
        self._ready: dict[PartitionQueue, None] = {}
        self._active: dict[PartitionQueue, None] = {}
        self._hurry: Hurry | None = None
        self._outage: FailureReason | None = None
        self.topics: dict[str, Topic] = {}
        """By name. Only the accumulator changes it."""
        self.unknown: dict[str, Topic] = {}
        """Those with records, or checks, and of whose partitions nothing is known yet."""
        self.doubted: set[str] = set()
        """Those of which more partitions were asked for than are known. The sender takes them out."""
        self.has_work = False
        """Whether there is something for the sender to do: a queue that is ready, or a topic to learn of."""
        self.has_new_topic = False
        """Whether there is an unknown topic that the sender has not seen to; it says when it has."""

    @property
    def buffered_bytes(self) -> int:
        """How much was accepted and has not left."""
        return self._used

    @property
    def waiting(self) -> Waiting:
        """What was accepted and has not left; the records are counted when they are asked for."""
        return Waiting(
            records=self._reserved
            + sum(len(topic.waiting) for topic in self.unknown.values())
            + sum(queue.records for queue in self._active),
            bytes=self._used,
            limit_bytes=self._limit_bytes,
        )

    @property
    def outage(self) -> FailureReason | None:
        """Why no broker can be reached; ``None`` while one can be."""
        return self._outage

    @property
    def active(self) -> list[PartitionQueue]:
        """The queues with records; a list of the caller's own."""
        return list(self._active)

    def when_empty(self) -> Deferred[None]:
        """Return a Deferred that fires with ``None`` when no record is left, and none is being taken in."""
        return self._idle.wait() if self._used or self._intakes else succeed(None)

    # Records come

    def append(self, record: Record) -> Deferred[RecordMetadata]:
        """
        Accept a record.

        :return: fires with its place, or fails with a `PublishError`.
        """
        topic = self.topics.get(record.topic) or self.topic(record.topic)
        if topic is None:
            return fail(illegal_topic())
        topic.used_s = now_s = self._clock.seconds()
        size = record_size(record)
        queue = topic.queue_for(record, turn=self._turn, now_s=now_s) if topic.queues else None
        if queue is None and topic.queues and record.partition is not None:
            return fail(self.has_no_partition(topic, record.partition))
        # Every record takes some bytes, so nothing is used exactly when nothing waits.
        if (topic.held if queue is None else queue.held_or_reserved) + size > self._limit_bytes - self._used:
            self.forget_unused(topic.name)
            if size > self._limit_bytes:
                return fail(RecordTooLarge("The record is larger than all that may wait for the broker."))
            return fail(
                BufferFull("Too much is waiting for the broker already; the record was not published.")
            )
        self._used += size
        answer: Deferred[RecordMetadata] = Deferred()
        pending = Pending(record, size, now_s + self.delivery_timeout_s, answer)
        if queue is None:
            self._wait_for_partitions(topic, pending)
        elif queue.append(pending):
            self.ready(queue)
        return answer

    def topic(self, name: str) -> Topic | None:
        """Return a topic, a new one if it is not known; ``None`` if Kafka does not allow its name."""
        topic = self.topics.get(name)
        if topic is None and is_legal_topic(name):
            topic = self.topics[name] = Topic(name, batch_bytes=self._batch_bytes)
        return topic

    def has_no_partition(self, topic: Topic, partition: int) -> UnknownPartition:
        """Make the error for a partition that a topic does not have, as far as is known."""
        # It may have got more meanwhile.
        self.doubted.add(topic.name)
        self.has_work = True
        return unknown_partition(partition, len(topic.queues))

    def check(self, names: Iterable[str]) -> Deferred[dict[str, PublishError]]:
        """
        Find out which of some topics cannot be published to.

        :return: fires with the reasons, as soon as the partitions of all of them are known, or will not be.
        """
        now_s = self._clock.seconds()
        check = TopicCheck(deadline_s=now_s + self.delivery_timeout_s)
        for name in names:
            topic = self.topic(name)
            if topic is None:
                check.refused(name, illegal_topic())
                continue
            topic.used_s = now_s
            if not topic.queues:
                check.expect()
                topic.checks.append(check)
                self._want(topic)
        check.begin()
        return check.done

    # Many records come together

    def begin_intake(self) -> None:
        """Note that many records are being taken in, until `end_intake`."""
        self._intakes += 1

    def end_intake(self) -> None:
        """Note that the records are placed, or will not be."""
        self._intakes -= 1
        self._look_whether_empty()

    def reserve(self, loads: Collection[Load]) -> PublishError | None:
        """
        Reserve the room for records that are to be placed with `place`, or given back with `give_back`.

        There is room for all of them exactly if there would be for the last one after all the others.

        :return: why there is none, and nothing is reserved then.
        """
        total = sum(load.size for load in loads)
        if total > self._limit_bytes:
            return RecordTooLarge(
                "The records take more room together than all that may wait for the broker. Publish fewer "
                "of them at once."
            )
        left = self._limit_bytes - self._used - total
        is_full = left < 0
        for load in loads:
            # As for a single record, what is left for others does not count that record itself.
            last = load.records[-1].size
            queues = load.topic.queues if load.queue is None else [load.queue]
            # Records that any partition may get spread over all of them.
            held = sum(queue.held_or_reserved for queue in queues) if queues else load.topic.held
            most, spread = left + last, max(1, len(queues))
            if queues and load.size / spread > self._limit_bytes - total + last:
                return RecordTooLarge(
                    "The records take more room together than may wait for one partition of a topic. Publish "
                    "fewer of them at once."
                )
            is_full |= (held + load.size) / spread > most
        if is_full:
            return BufferFull(
                "Too much is waiting for the broker already; none of the records was published."
            )
        self._used += total
        self._reserved += sum(len(load.records) for load in loads)
        for load in loads:
            load.reserve()
        return None

    def place(self, load: Load, count: int, *, now_s: float) -> None:
        """
        Put some records, for which there is room, behind those that wait.

        :param count: how many, at most.
        :param now_s: the time by the reactor's clock, in seconds; their deadlines are counted from it.
        """
        records, size = load.take(count)
        self._reserved -= len(records)
        deadline_s = now_s + self.delivery_timeout_s
        if records[0].deadline_s != deadline_s:
            # They were looked at in an earlier turn. A queue is in the order of the deadlines.
            for pending in records:
                pending.deadline_s = deadline_s
        load.topic.used_s = now_s
        queue = load.queue
        if queue is None or queue.state is State.CLOSED:
            self._place(records, now_s)
        elif queue.extend(records, size):
            self.ready(queue)

    def give_back(self, load: Load, error: PublishError) -> None:
        """Give up the records that were not placed."""
        records, _ = load.take(len(load.records))
        self._reserved -= len(records)
        self.fail(records, error)

    def _place(self, records: Sequence[Pending], now_s: float) -> None:
        """Place records of one topic whose queues are not known yet."""
        name = records[0].record.topic
        # What was known of it when the room was reserved may have been forgotten.
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
        distributed = topic.distribute(records, turn=self._turn, now_s=self._clock.seconds())
        for queue in distributed.ready:
            self.ready(queue)
        for pending in distributed.misplaced:
            self.fail([pending], unknown_partition(pending.record.partition, len(topic.queues)))

    # Which way a record goes

    def _wait_for_partitions(self, topic: Topic, pending: Pending) -> None:
        topic.waiting.append(pending)
        topic.held += pending.size
        self._want(topic)

    def _want(self, topic: Topic) -> None:
        if topic.name not in self.unknown:
            self.unknown[topic.name] = topic
            self.has_new_topic = self.has_work = True

    # Queues that can be sent from

    def ready(self, queue: PartitionQueue) -> None:
        """Let the sender see to a queue."""
        self._active[queue] = None
        self._ready[queue] = None
        self.has_work = True

    def take_ready(self) -> Iterable[PartitionQueue]:
        """Return the queues that became ready since the last time, in that order."""
        ready, self._ready = self._ready, {}
        self._turn += 1
        self.has_work = False
        return ready

    # Partitions become known, or are gone

    def set_partitions(self, topic: Topic, count: int) -> None:
        """
        Note how many partitions a topic has.

        :param count: at least as many as there are queues.
        """
        topic.add_partitions(count)
        if not topic.queues or not (topic.waiting or topic.checks):
            return
        waiting, topic.waiting, topic.held = topic.waiting, deque(), 0
        checks = self.take_checks(topic)
        self.unknown.pop(topic.name, None)
        self._distribute(topic, waiting)
        for check in checks:
            check.answered(topic.name, None)

    def close_queues(self, topic: Topic) -> tuple[list[int], list[Pending]]:
        """
        Let the records that were not sent wait for the topic's new partitions.

        :return: the producer ids of the queues, with which their partitions must not be numbered again;
            and the records that may be stored, which leave, and are to be failed with `fail`.
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
        # By the time of publishing, in which deadlines are looked at; records of one key stay in order.
        waiting.sort(key=lambda pending: pending.deadline_s)
        topic.waiting = deque(waiting)
        topic.held = sum(pending.size for pending in waiting)
        if waiting:
            self.unknown[topic.name] = topic
        return producer_ids, possibly_stored

    def take_waiting(self, topic: Topic) -> list[Pending]:
        """Take the records that wait for a topic's partitions; they leave, and are to be failed."""
        waiting = list(topic.waiting)
        topic.waiting.clear()
        topic.held = 0
        self._want_no_more(topic)
        return waiting

    def take_checks(self, topic: Topic) -> list[TopicCheck]:
        """Take those who want to know of a topic; they leave, and are to be answered."""
        checks, topic.checks = topic.checks, []
        self._want_no_more(topic)
        return checks

    def _want_no_more(self, topic: Topic) -> None:
        if not topic.waiting and not topic.checks:
            self.unknown.pop(topic.name, None)

    def forget_unused(self, name: str) -> None:
        """Keep nothing of a topic that has no partitions, records or checks: its name may be made up."""
        topic = self.topics.get(name)
        if topic is not None and not topic.queues and not topic.waiting and not topic.checks:
            del self.topics[name]

    # Records leave

    def succeed(self, batch: Batch, *, topic: str, partition: int, offset: int) -> None:
        """
        Answer all records of a batch.

        :param offset: of its first record; each of the others has the next one.
        """
        self._used -= batch.held
        for pending in batch.records:
            answer, index = pending.answer, pending.index
            if isinstance(answer, Outcomes):
                # As Outcomes.put, which would take as long again.
                each = answer.each
                if each[index] is None:
                    each[index] = RecordMetadata(topic=topic, partition=partition, offset=offset)
                    answer.missing -= 1
                    if not answer.missing:
                        answer.finish()
            elif not answer.called:
                answer.callback(RecordMetadata(topic=topic, partition=partition, offset=offset))
            offset += 1
        self._look_whether_empty()

    def fail(self, records: Iterable[Pending], error: PublishError) -> None:
        """Answer records that have left their queue; those who were not answered yet."""
        records = list(records)
        self._used -= sum(pending.size for pending in records)
        _tell(records, error)
        self._look_whether_empty()

    def _look_whether_empty(self) -> None:
        if not self._used and not self._intakes:
            self._idle.succeed(None)

    def refuses_producer_ids(self, name: str) -> bool:
        """
        Note that a topic cannot be idempotent.

        :return: whether that is new.
        """
        topic = self.topics.get(name)
        if topic is None:
            return False
        is_new, topic.is_idempotent = topic.is_idempotent, False
        return is_new

    def fail_unsent(self, error: PublishError) -> None:
        """Answer everybody whose record is certainly not stored."""
        self.fail_waiting(error)
        for queue in self.active:
            self.fail(queue.give_up_unsent(), error)

    def fail_waiting(self, error: PublishError) -> None:
        """Answer everybody who waits for a topic's partitions."""
        self.fail_checks(error)
        for topic in list(self.unknown.values()):
            waiting = self.take_waiting(topic)
            self.forget_unused(topic.name)
            self.fail(waiting, error)

    def fail_checks(self, error: PublishError) -> None:
        """Answer everybody who wants to know whether a topic can be published to."""
        for topic in list(self.unknown.values()):
            checks = self.take_checks(topic)
            self.forget_unused(topic.name)
            for check in checks:
                check.answered(topic.name, error)

    def fail_sent(self, error: PublishError) -> None:
        """Answer everybody whose record may be stored."""
        for queue in self.active:
            self.fail(queue.abandon(), error)
            if queue.state is State.READY:
                self.ready(queue)

    # Time passes

    def hurry(self, wait_s: float, *, reason: FailureReason) -> None:
        """
        Let records that come from now on wait for a shorter time before they are sent.

        :param wait_s: so long, in seconds.
        :param reason: why, for those that no attempt was made for.
        """
        self._outage = reason
        earlier_s = self.delivery_timeout_s - wait_s
        if self._hurry is None and earlier_s > 0:
            self._hurry = Hurry(self._clock.seconds() + self.delivery_timeout_s, earlier_s)

    def end_hurry(self) -> None:
        """Give all that still wait their whole time again."""
        self._hurry = self._outage = None

    def expire(self, *, reason: FailureReason | None) -> list[PartitionQueue]:
        """
        Answer the callers whose time is over.

        :param reason: why partitions are not known, for those who wait for them.
        :return: the queues that had such records.
        """
        now_s, hurry = self._clock.seconds(), self._hurry
        late_queues: list[PartitionQueue] = []
        for topic in list(self.unknown.values()):
            late = take_late(topic.waiting, now_s, hurry)
            late_checks = [check for check in topic.checks if _is_late(check.deadline_s, now_s, hurry)]
            if late or late_checks:
                topic.held -= sum(pending.size for pending in late)
                topic.checks = [check for check in topic.checks if check not in late_checks]
                self._want_no_more(topic)
                self.forget_unused(topic.name)
                error = unavailable(reason or self.outage)
                self.fail(late, error)
                for check in late_checks:
                    check.answered(topic.name, error)
        for queue in self.active:
            expired = queue.expire(now_s, hurry)
            if expired is not None:
                if queue.state is State.READY:
                    self.ready(queue)
                late_queues.append(queue)
                timed_out = PublishTimedOut("The broker did not say in time whether the record was stored.")
                _tell(expired.unanswered, timed_out)
                self.fail(expired.dropped, timed_out)
                self.fail(expired.unsent, unavailable(queue.reason or self.outage))
            if queue.state is State.IDLE or queue.state is State.CLOSED:
                self._active.pop(queue, None)
        return late_queues


def _is_late(deadline_s: float, now_s: float, hurry: Hurry | None) -> bool:
    if hurry is not None and deadline_s >= hurry.from_deadline_s:
        deadline_s -= hurry.earlier_s
    return deadline_s <= now_s


def _tell(records: Iterable[Pending], error: PublishError) -> None:
    for pending in records:
        answer = pending.answer
        if isinstance(answer, Outcomes):
            answer.put(pending.index, error)
        elif not answer.called:
            # Each has an exception of its own, which it may raise and chain as it likes.
            answer.errback(type(error)(*error.args))
