"""What becomes of a partition's records after each attempt, and when their time is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.answers import Answers
from sampleapp.brokers.kafka.producer.leaving import Leaving, unavailable
from sampleapp.brokers.kafka.producer.numbering import Numbering
from sampleapp.brokers.kafka.producer.pending import Batch
from sampleapp.brokers.kafka.producer.queue import PartitionQueue, State
from sampleapp.brokers.kafka.producer.verdicts import Verdict, refusal, refusal_reason, verdict_on
from sampleapp.brokers.kafka.protocol import Produced
from sampleapp.errors import (
    OutcomeUnknown,
    RecordRefused,
)

__all__ = ["Outcomes"]

_RETRY_FIRST_S: Final = 0.05
_RETRY_MAX_S: Final = 0.4
_SUSPECT_S: Final = 10.0
_NO_LEADER: Final = FailureReason(
    sentence="The partition has no leader.",
    public="The topic's partition has no leader at the moment.",
    lasting=False,
)


class Outcomes:
    """Decides for each queue what is next: the next batch, another attempt, or an answer to its callers."""

    _log = Logger()

    def __init__(
        self,
        *,
        answers: Answers,
        leaving: Leaving,
        numbering: Numbering,
        ready: Callable[[PartitionQueue], None],
        stale: Callable[[str], None],
        batch_bytes: int,
        clock: IReactorTime,
    ) -> None:
        """
        :param ready: takes a queue that has something to send now.
        :param stale: is told of a topic whose metadata is out of date.
        :param batch_bytes: how large batches are, unless that was found to be too large.
        """
        self._answers = answers
        self._leaving = leaving
        self._numbering = numbering
        self._ready = ready
        self._stale = stale
        self._batch_bytes = batch_bytes
        self._clock = clock

    # What became of an attempt

    def answered(self, queue: PartitionQueue, batch: Batch, answer: Produced | None) -> None:
        """The leader has said something of a queue's batch; ``None``: it has not."""
        if queue.batch is not batch:
            # Given up meanwhile: at the end of the service, or with its topic.
            self._go_on(queue)
            return
        if answer is not None and answer.error == ErrorCode.NONE and answer.offset >= 0:
            self._stored(queue, batch, offset=answer.offset)
            return
        if answer is None:
            self._lost(queue, "The broker's answer does not mention the record.")
        else:
            self._not_stored(queue, batch, answer)

    def unanswered(self, queue: PartitionQueue, reason: FailureReason) -> None:
        """A batch was sent, and nobody knows what became of it."""
        if queue.batch is None:
            self._go_on(queue)
            return
        queue.reason = reason
        self._stale(queue.topic)
        self._unresolved(queue)

    def not_sent(self, queue: PartitionQueue, reason: FailureReason) -> None:
        """There is no connection to a queue's leader."""
        queue.reason = reason
        self._stale(queue.topic)
        if reason.lasting:
            self._leaving.fail_unsent(queue, unavailable(reason))
        self._again(queue)

    def leaderless(self, queue: PartitionQueue) -> None:
        """No leader is known."""
        queue.reason = _NO_LEADER
        self._stale(queue.topic)
        self._park(queue)

    def waits_for_connection(self, queue: PartitionQueue) -> None:
        """A queue's leader takes its time; meanwhile there may be another."""
        self._stale(queue.topic)

    def not_encoded(self, queue: PartitionQueue) -> None:
        """A queue's batch cannot be turned into bytes."""
        records = self._leaving.drop(queue)
        self._answers.fail(records, RecordRefused("The record cannot be encoded."))
        self._go_on(queue)

    # What happens then

    def _stored(self, queue: PartitionQueue, batch: Batch, *, offset: int) -> None:
        queue.batch = None
        queue.held -= batch.held
        queue.attempts = 0
        queue.suspect_until_s = 0.0
        queue.reason = None
        if queue.reported:
            queue.reported = False
            self._log.info(
                "Records for partition {partition} of {topic} are acknowledged again.",
                partition=queue.partition,
                topic=queue.topic,
            )
        if queue.sequence is not None:
            queue.sequence.advance(len(batch.records))
        self._go_on(queue)
        self._answers.stored(batch, topic=queue.topic, partition=queue.partition, offset=offset)

    def _not_stored(self, queue: PartitionQueue, batch: Batch, answer: Produced) -> None:
        if ErrorCode.says_stale_metadata(answer.error):
            self._stale(queue.topic)
        verdict = verdict_on(answer)
        if batch.unresolved and verdict in (Verdict.SEARCH, Verdict.REFUSE, Verdict.RENUMBER):
            # That it is refused now does not say that it was not stored before.
            verdict = Verdict.UNKNOWN
        queue.reason = refusal_reason(answer)
        if verdict is Verdict.TRY_AGAIN:
            self._again(queue)
        elif verdict is Verdict.UNRESOLVED:
            self._unresolved(queue)
        elif verdict is Verdict.SEARCH:
            self._search(queue, batch, answer)
        elif verdict is Verdict.RENUMBER:
            self._numbering.renumber(queue)
            self._again(queue)
        elif verdict is Verdict.REFUSE:
            self._refuse(queue, answer)
        else:
            if answer.error in _SEQUENCE_ERRORS:
                self._numbering.renumber(queue)
            self._lost(
                queue,
                f"The broker's answer ({ErrorCode.name_of(answer.error)}) does not tell whether the record "
                "was stored.",
            )

    def _again(self, queue: PartitionQueue) -> None:
        """Another attempt, after a while; in between, what was certainly not stored may still be given up."""
        if queue.batch is not None and not queue.batch.unresolved:
            self._leaving.take_back(queue)
        queue.attempts += 1
        self._park(queue)

    def _unresolved(self, queue: PartitionQueue) -> None:
        batch = queue.batch
        if batch is None:
            return
        if queue.sequence is None:
            self._lost(queue, "The broker did not say whether the record was stored.")
            return
        batch.unresolved = True
        queue.attempts += 1
        self._park(queue)

    def _search(self, queue: PartitionQueue, batch: Batch, answer: Produced) -> None:
        """Find those records for which the whole batch was refused, and publish the others."""
        culprits = dict(answer.record_errors)
        if len(batch.records) == 1:
            self._refuse(queue, answer)
            return
        if culprits:
            refused = [pending for index, pending in enumerate(batch.records) if index in culprits]
            if refused:
                batch.records = [
                    pending for index, pending in enumerate(batch.records) if index not in culprits
                ]
                batch.expired = sum(index not in culprits for index in range(batch.expired))
                held = sum(pending.size for pending in refused)
                batch.held -= held
                queue.held -= held
                self._leaving.take_back(queue)
                self._go_on(queue)
                for index, pending in zip(sorted(culprits), refused, strict=False):
                    self._answers.fail([pending], refusal(answer.error, culprits[index]))
                return
        self._leaving.take_back(queue)
        queue.batch_bytes = max(1, batch.held // 2)
        self._go_on(queue)

    def _refuse(self, queue: PartitionQueue, answer: Produced) -> None:
        records = self._leaving.drop(queue)
        message = answer.message
        if len(records) == 1 and answer.record_errors:
            message = answer.record_errors[0][1] or message
        queue.attempts = 0
        queue.batch_bytes = self._batch_bytes
        self._go_on(queue)
        self._answers.fail(records, refusal(answer.error, message))

    def _lost(self, queue: PartitionQueue, why: str) -> None:
        """Whether the batch is in the topic cannot be found out."""
        records = self._leaving.drop(queue)
        self._numbering.fence(queue)
        self._go_on(queue)
        self._answers.fail(records, OutcomeUnknown(why))

    def _go_on(self, queue: PartitionQueue) -> None:
        if queue:
            self._ready(queue)
        else:
            queue.state = State.IDLE

    def _park(self, queue: PartitionQueue) -> None:
        delay_s = 0.0
        if queue.attempts:
            delay_s = min(_RETRY_FIRST_S * 2 ** min(queue.attempts - 1, 10), _RETRY_MAX_S)
        now_s = self._clock.seconds()
        queue.not_before_s = now_s + delay_s
        queue.suspect_until_s = now_s + _SUSPECT_S
        queue.state = State.PARKED


_SEQUENCE_ERRORS: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    }
)
