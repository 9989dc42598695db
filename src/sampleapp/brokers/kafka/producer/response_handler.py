"""
Applies the result of each attempt to its queue, answers the callers, and logs partitions that fail.

A result is the leader's answer, a request that failed, or an exception in our own code. What a response means
is decided in `results`; the state of a queue then changes in `partition_queue`.

Rule: an exception in the work for one queue ends that work alone (`ResponseHandler.for_each`). It is logged,
and the outcome of a batch that is at the broker is unknown. So everything that may raise comes before a queue
changes, and only answering the callers comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.clock_check import ClockCheck
from sampleapp.brokers.kafka.cluster_client import SERVICE_FAULT, RequestFailed
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.idempotence import ProducerIds
from sampleapp.brokers.kafka.producer.partition_queue import (
    MAY_BE_SENT,
    PartitionQueue,
    Pending,
    QueueState,
)
from sampleapp.brokers.kafka.producer.produce_requests import BatchToSend
from sampleapp.brokers.kafka.producer.results import (
    Action,
    decide,
    not_recognised,
    rejection,
    unavailable,
    wrong_clock,
)
from sampleapp.brokers.kafka.producer.topic_metadata import TopicMetadata
from sampleapp.brokers.kafka.protocol import Produced
from sampleapp.concurrency.failures import LogLimit
from sampleapp.errors import BrokerUnavailable, OutcomeUnknown, PublishError

Responses: TypeAlias = Mapping[tuple[str, int], Produced]
"""A leader's answer for each partition, by topic and number."""

_Errors: TypeAlias = tuple[PublishError, "BrokerUnavailable | None"]
"""The errors for records with a time of their own, and for the others if their time is rejected."""

# Looked up for every batch: before Python 3.12, looking up a member of an Enum is slow.
_GIVEN_UP: Final = frozenset({QueueState.ABANDONED, QueueState.CLOSED})
_AT_BROKER: Final = frozenset({QueueState.IN_FLIGHT, QueueState.RESENT})
_IN_FLIGHT: Final = QueueState.IN_FLIGHT
_READY: Final = QueueState.READY
_STORED: Final = int(ErrorCode.NONE)


_GATHERING_S: Final = 0.5
"""The delay of a line, in seconds, so that it names all partitions that fail at the same time."""
_NAMED: Final = 20
"""Maximum partitions named in a line: an outage of a large cluster concerns thousands."""

_SLOW: Final = "The broker is slow."
"""The reason if no attempt has failed."""


class DeliveryLog:
    """
    Logs partitions whose records are not acknowledged in time.

    A broker that fails is the leader of many partitions, so they are gathered for `_GATHERING_S`.
    """

    _log = Logger()

    def __init__(self, *, clock: IReactorTime) -> None:
        """:param clock: times the lines."""
        self._clock = clock
        self.failing: set[tuple[str, int]] = set()
        """The partitions that fail, by topic and number. Only this object changes it."""
        self._limit = LogLimit(clock)
        self._new: dict[str, list[tuple[str, int]]] = {}
        self._again: list[tuple[str, int]] = []
        self._due_s: float | None = None

    def failed(self, topic: str, partition: int, reason: FailureReason | None) -> None:
        """Log that records of a partition were not acknowledged in time; each reason, see `LogLimit`."""
        self.failing.add((topic, partition))
        sentence = _SLOW if reason is None else reason.sentence
        if self._limit.is_news((topic, partition), sentence):
            self._new.setdefault(sentence, []).append((topic, partition))
            self._begin()

    def acknowledged(self, topic: str, partition: int) -> None:
        """Log that a partition works again, if it had failed."""
        if (topic, partition) in self.failing:
            self.failing.discard((topic, partition))
            self._limit.forget((topic, partition))
            self._again.append((topic, partition))
            self._begin()

    def forget(self, topics: set[str]) -> None:
        """Forget the partitions of all topics except these."""
        for each in [each for each in self.failing if each[0] not in topics]:
            self.failing.discard(each)
            self._limit.forget(each)

    def is_waiting(self) -> bool:
        """Return ``True`` if a line is still to be written."""
        return self._due_s is not None

    def write(self, *, at_once: bool = False) -> None:
        """Write the lines that are due; with `at_once`, all."""
        if self._due_s is None or (self._clock.seconds() < self._due_s and not at_once):
            return
        self._due_s = None
        new, self._new = self._new, {}
        again, self._again = self._again, []
        for reason, partitions in new.items():
            self._log.warn(
                "Records for {partitions} are not acknowledged in time, and their callers get 503 or 504: "
                "{reason}",
                partitions=_named(partitions),
                reason=reason,
            )
        if again:
            self._log.info("Records for {partitions} are acknowledged again.", partitions=_named(again))

    def _begin(self) -> None:
        if self._due_s is None:
            self._due_s = self._clock.seconds() + _GATHERING_S


def _named(partitions: list[tuple[str, int]]) -> str:
    """Format partitions, as in ``partitions 0, 3, 7 of t``; up to `_NAMED` of them."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions))[:_NAMED]:
        by_topic.setdefault(topic, []).append(partition)
    parts = [
        f"{'partition' if len(numbers) == 1 else 'partitions'} {', '.join(map(str, numbers))} of {topic}"
        for topic, numbers in by_topic.items()
    ]
    more = len(set(partitions)) - _NAMED
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


class ResponseHandler:
    """Settles batches: acknowledge, retry, resend, split, reject or give up."""

    _log = Logger()

    def __init__(
        self,
        *,
        accumulator: Accumulator,
        producer_ids: ProducerIds,
        metadata: TopicMetadata,
        delivery_log: DeliveryLog,
        clock_check: ClockCheck,
        clock: IReactorTime,
    ) -> None:
        """
        :param metadata: is told which topics have stale metadata.
        :param clock_check: is told the times in responses.
        """
        self._accumulator = accumulator
        self._producer_ids = producer_ids
        self._metadata = metadata
        self._delivery_log = delivery_log
        self._clock_check = clock_check
        self._clock = clock

    def settle(
        self, batches: Iterable[BatchToSend], node_id: int, responses: Responses | RequestFailed
    ) -> None:
        """
        Settle the batches of one request.

        :param node_id: the broker that it was sent to.
        :param responses: the broker's response, or the error.
        """
        for queue, _ in batches:
            try:
                if queue.state in _GIVEN_UP:
                    self._answered_late(queue)
                elif isinstance(responses, RequestFailed):
                    self._not_answered(queue, node_id, responses)
                else:
                    produced = responses.get((queue.topic, queue.partition))
                    if produced is not None and produced.error == _STORED and produced.offset >= 0:
                        self._stored(queue, produced)
                    else:
                        self._not_stored(queue, node_id, produced)
            except Exception:  # noqa: BLE001 -- as in `for_each`; its extra call is saved for each batch
                self._contain_fault(queue)

    def not_sent(self, queue: PartitionQueue, node_id: int, reason: FailureReason) -> None:
        """Settle an attempt of which no byte has reached the leader."""
        self._metadata.invalidate(queue.topic)
        left = queue.try_again_after(self._clock.seconds(), reason=reason, leader=node_id)
        self._accumulator.fail(left, _ALREADY_ANSWERED)
        if reason.lasting:
            self._delivery_log.failed(queue.topic, queue.partition, reason)
            self._accumulator.fail(queue.give_up_unsent(), unavailable(reason))

    def not_encoded(self, queue: PartitionQueue) -> None:
        """Settle an attempt whose batch could not be encoded."""
        if queue.state is not QueueState.IN_FLIGHT:
            self.recover(queue)
            return
        records, _ = queue.reject()
        self._mark_ready(queue)
        # 503, not a rejection: most of the records, or all, are good.
        self._accumulator.fail(records, unavailable(SERVICE_FAULT))

    def for_each(self, queues: Iterable[PartitionQueue], work: Callable[[PartitionQueue], None]) -> None:
        """Call a function for each queue; an exception for one queue does not affect the others."""
        for queue in queues:
            try:
                work(queue)
            except Exception:  # noqa: BLE001 -- any fault
                self._contain_fault(queue)

    def recover(self, queue: PartitionQueue) -> None:
        """Let a queue go on after an exception. If its batch is at the broker, the outcome is unknown."""
        state = queue.state
        if state in _AT_BROKER:
            self._unresolved(queue, SERVICE_FAULT)
        elif state in MAY_BE_SENT:
            queue.try_again_after(self._clock.seconds(), reason=SERVICE_FAULT)
        elif state is QueueState.ABANDONED:
            self._answered_late(queue)

    def _contain_fault(self, queue: PartitionQueue) -> None:
        self._log.failure(
            "The work for partition {partition} of {topic} failed",
            topic=queue.topic,
            partition=queue.partition,
        )
        try:
            self.recover(queue)
        except Exception:  # noqa: BLE001 -- such as MemoryError; once the batch is dropped, there may be memory
            self._log.failure("Recovering the queue of {topic} failed", topic=queue.topic)
            records = queue.abandon()
            if queue.state is QueueState.ABANDONED:
                self._answered_late(queue)
            self._accumulator.fail(records, OutcomeUnknown(SERVICE_FAULT.public))

    def _not_answered(self, queue: PartitionQueue, node_id: int, error: RequestFailed) -> None:
        if error.sent:
            self._unresolved(queue, error.reason, leader=node_id)
        else:
            self.not_sent(queue, node_id, error.reason)

    def _stored(self, queue: PartitionQueue, produced: Produced) -> None:
        # Of a batch that the broker has recognised, it is the time of the first attempt, or of the records.
        if produced.timestamp_ms >= 0 and queue.state is _IN_FLIGHT and not queue.is_batch_identified:
            self._clock_check.observe(produced.timestamp_ms)
        batch = queue.stored()
        if queue.state is _READY:
            self._accumulator.mark_ready(queue)
        self._accumulator.succeed(batch, topic=queue.topic, partition=queue.partition, offset=produced.offset)
        if self._delivery_log.failing:
            self._delivery_log.acknowledged(queue.topic, queue.partition)

    def _not_stored(self, queue: PartitionQueue, node_id: int, response: Produced | None) -> None:
        decision = decide(
            response,
            records=queue.batch_records,
            has_producer_id=queue.may_repeat_batch,
            is_resent=queue.state is QueueState.RESENT,
            is_identified=queue.is_batch_identified,
        )
        if decision.has_stale_metadata:
            self._metadata.invalidate(queue.topic)
        now_s, action, reason = self._clock.seconds(), decision.action, decision.reason
        if action is Action.RESEND:
            queue.unresolved(now_s, reason=reason, leader=node_id)
        elif action is Action.GIVE_UP or response is None:
            self._lost(queue, f"{reason.public} Whether it was stored cannot be known.")
            if decision.needs_new_id:
                self._drop_producer_id(queue)
        elif action is Action.SPLIT:
            self._split(queue, response)
        elif action is Action.REJECT:
            self._reject(queue, response)
        elif action is Action.REJECT_IDENTITY:
            rejected, _ = queue.reject()
            self._mark_ready(queue)
            self._accumulator.fail(rejected, not_recognised(response.error))
        else:
            left = queue.try_again_after(now_s, reason=reason, leader=node_id)
            self._accumulator.fail(left, _ALREADY_ANSWERED)
            if action is Action.NEW_PRODUCER_ID:
                self._drop_producer_id(queue)
            elif action is Action.STOP_IDEMPOTENCE:
                self._stop_idempotence(queue)

    def _unresolved(self, queue: PartitionQueue, reason: FailureReason, *, leader: int | None = None) -> None:
        """Settle an attempt whose batch the leader may have stored."""
        self._metadata.invalidate(queue.topic)
        if queue.may_repeat_batch:
            queue.unresolved(self._clock.seconds(), reason=reason, leader=leader)
        else:
            self._lost(queue, "The broker did not say whether the record was stored.")

    def _lost(self, queue: PartitionQueue, why: str) -> None:
        records = queue.lost()
        self._mark_ready(queue)
        self._accumulator.fail(records, OutcomeUnknown(why))

    def _split(self, queue: PartitionQueue, response: Produced) -> None:
        """Reject the records that the broker names, or halve the batch to find them; publish the others."""
        messages = {
            index: message for index, message in response.record_errors if 0 <= index < queue.batch_records
        }
        if not messages:
            left = queue.split()
            self._mark_ready(queue)
            self._accumulator.fail(left, _ALREADY_ANSWERED)
            return
        # While the queue has the records, so that a fault leaves none of them without a response.
        errors = [_errors(response.error, messages[index]) for index in sorted(messages)]
        rejected, left = queue.reject(messages)
        self._mark_ready(queue)
        self._accumulator.fail(left, _ALREADY_ANSWERED)
        for pending, of_record in zip(rejected, errors, strict=True):
            self._fail_rejected(pending, of_record)

    def _reject(self, queue: PartitionQueue, response: Produced) -> None:
        message = response.message
        if queue.batch_records == 1 and response.record_errors:
            message = response.record_errors[0][1] or message
        errors = _errors(response.error, message)
        rejected, _ = queue.reject()
        self._mark_ready(queue)
        for pending in rejected:
            self._fail_rejected(pending, errors)

    def _fail_rejected(self, pending: Pending, errors: _Errors) -> None:
        error, of_clock = errors
        if of_clock is None or pending.record.has_own_time:
            self._accumulator.fail([pending], error)
        else:
            self._accumulator.fail([pending], of_clock)
            self._clock_check.rejected()

    def _drop_producer_id(self, queue: PartitionQueue) -> None:
        self._producer_ids.retire(queue.drop_producer_id())

    def _stop_idempotence(self, queue: PartitionQueue) -> None:
        queue.drop_producer_id(for_good=True)
        if self._accumulator.disable_idempotence(queue.topic):
            self._log.warn(
                "The topic {topic} has a message format from before Kafka 0.11, without idempotence. If a "
                "request for it is not answered, its records are not sent again, and their callers get 504. "
                "To change that, set message.format.version of the topic to 0.11.0 or newer.",
                topic=queue.topic,
            )

    def _answered_late(self, queue: PartitionQueue) -> None:
        queue.answered_late()
        self._mark_ready(queue)

    def _mark_ready(self, queue: PartitionQueue) -> None:
        if queue.state is _READY:
            self._accumulator.mark_ready(queue)


def _errors(code: int, message: str | None) -> _Errors:
    return rejection(code, message), wrong_clock(code, message)


_ALREADY_ANSWERED: Final = OutcomeUnknown("The broker did not say in time whether the record was stored.")
"""For records whose callers were answered at their deadlines: no caller gets it."""
