"""Records that leave their queue without being acknowledged, and what their callers are told."""

from __future__ import annotations

from twisted.logger import Logger

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.producer.answers import Answers
from sampleapp.brokers.kafka.producer.numbering import Numbering
from sampleapp.brokers.kafka.producer.pending import Pending
from sampleapp.brokers.kafka.producer.queue import PartitionQueue, State
from sampleapp.errors import (
    BrokerIncompatible,
    BrokerUnavailable,
    OutcomeUnknown,
    PublishError,
    PublishTimedOut,
)

__all__ = ["Leaving", "unavailable"]

_TIMED_OUT = "The broker did not say in time whether the record was stored."


def unavailable(reason: FailureReason | None) -> PublishError:
    """The error for the caller of a record that was certainly not stored."""
    if reason is None:
        return BrokerUnavailable("The record's turn did not come in time; it was not published.")
    kind = BrokerIncompatible if reason.incompatible else BrokerUnavailable
    return kind(f"{reason.public} The record was not published.")


class Leaving:
    """
    Takes records out of queues.

    The one question is whether the broker may have them: a batch that is in flight, or unresolved, it
    may have; everything else it has not.
    """

    _log = Logger()

    def __init__(self, *, answers: Answers, numbering: Numbering) -> None:
        """:param numbering: of a queue that lost a batch which may have been stored, begins anew."""
        self._answers = answers
        self._numbering = numbering

    def expire(self, queue: PartitionQueue, now_s: float) -> None:
        """Answer the callers whose time is over."""
        if queue.batch is not None and queue.state is State.READY and not queue.batch.unresolved:
            # It was made, and then found no room in its request.
            self.take_back(queue)
        batch = queue.batch
        if batch is not None:
            records = batch.records
            while batch.expired < len(records) and records[batch.expired].deadline_s <= now_s:
                self._report(queue)
                self._answers.give_up(records[batch.expired], PublishTimedOut(_TIMED_OUT))
                batch.expired += 1
            if batch.expired == len(records) and queue.state is not State.IN_FLIGHT:
                # Nobody waits for it any more, so it is not tried again.
                self.fail_sent(queue, PublishTimedOut(_TIMED_OUT))
        waiting = queue.waiting
        late: list[Pending] = []
        while waiting and waiting[0].deadline_s <= now_s:
            late.append(waiting.popleft())
        if late:
            self._report(queue)
            self._fail_waiting(queue, late, unavailable(queue.reason))

    def fail_unsent(self, queue: PartitionQueue, error: PublishError) -> None:
        """Answer the callers of everything that was certainly not stored."""
        if queue.batch is not None and queue.state is not State.IN_FLIGHT and not queue.batch.unresolved:
            self.take_back(queue)
        waiting = list(queue.waiting)
        queue.waiting.clear()
        self._fail_waiting(queue, waiting, error)

    def fail_sent(self, queue: PartitionQueue, error: PublishError) -> None:
        """Answer the callers of the batch, which may have been stored."""
        if queue.batch is not None:
            records = self.drop(queue)
            self._numbering.fence(queue)
            self._answers.fail(records, error)

    def take_back(self, queue: PartitionQueue) -> None:
        """A batch was certainly not stored: let its records wait again."""
        expired = queue.take_back()
        if expired:
            # Their callers have their answers already.
            self._answers.fail(expired, OutcomeUnknown(_TIMED_OUT))

    def drop(self, queue: PartitionQueue) -> list[Pending]:
        """Take the batch out of a queue; its records are still to be answered."""
        batch, queue.batch = queue.batch, None
        if batch is None:
            return []
        queue.held -= batch.held
        return batch.records

    def forget(self, queue: PartitionQueue) -> None:
        """
        A queue is no more; if its partition gets another one, that begins to count anew.

        With the same producer id, the broker would take the new batches for those that it has.
        """
        self._numbering.renumber(queue)

    def _report(self, queue: PartitionQueue) -> None:
        """Once, until it works again: a line for each record would say no more."""
        if not queue.reported:
            queue.reported = True
            self._log.warn(
                "Records for partition {partition} of {topic} are not acknowledged in time: {reason}",
                partition=queue.partition,
                topic=queue.topic,
                reason="the broker is slow." if queue.reason is None else queue.reason.sentence,
            )

    def _fail_waiting(self, queue: PartitionQueue, records: list[Pending], error: PublishError) -> None:
        if records:
            queue.held -= sum(pending.size for pending in records)
            self._answers.fail(records, error)
