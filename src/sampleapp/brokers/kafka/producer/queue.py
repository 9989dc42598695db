"""The records of one partition, in the order in which they were published."""

from __future__ import annotations

from collections import deque
from enum import Enum

from sampleapp.brokers.kafka.batches import BATCH_OVERHEAD, Codec, encode_batch
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.producer.pending import Batch, Pending
from sampleapp.brokers.kafka.producer.sequence import Sequence

__all__ = ["PartitionQueue", "State"]


class State(Enum):
    """What a queue waits for."""

    IDLE = "for records"
    READY = "for its turn in a request"
    IN_FLIGHT = "for an answer"
    PARKED = "for a leader, or for some time to pass"


class PartitionQueue:
    """What waits for one partition, and the one batch of it that is on its way."""

    __slots__ = (
        "attempts",
        "batch",
        "batch_bytes",
        "held",
        "not_before_s",
        "partition",
        "reason",
        "reported",
        "sequence",
        "state",
        "suspect_until_s",
        "topic",
        "tried",
        "waiting",
    )

    def __init__(self, *, topic: str, partition: int, batch_bytes: int) -> None:
        """:param batch_bytes: how large a batch may become, unless a single record is larger."""
        self.topic = topic
        self.partition = partition
        self.batch_bytes = batch_bytes
        self.waiting: deque[Pending] = deque()
        self.batch: Batch | None = None
        self.held = 0
        """The bytes of all its records."""
        self.state = State.IDLE
        self.not_before_s = 0.0
        """When it may be sent from again after an attempt failed, by the reactor's clock."""
        self.sequence: Sequence | None = None
        """What makes its attempts recognisable to the broker."""
        self.tried = -1
        """The node to which the last attempt was to go."""
        self.attempts = 0
        """How many attempts have failed in a row."""
        self.reported = False
        """Whether the log says that it does not take records."""
        self.suspect_until_s = 0.0
        """Until when what may go elsewhere should, since the leader was of no use, by the reactor's clock."""
        self.reason: FailureReason | None = None
        """Why the last attempt failed."""

    def __bool__(self) -> bool:
        """Whether anything has not been answered, or has to be sent again."""
        return self.batch is not None or bool(self.waiting)

    def encoded(self, codec: Codec) -> tuple[Batch, bytes]:
        """
        The batch to send next: the one that was sent before, or the first of those that wait.

        :return: the batch, and what it is on the wire.
        :raise Exception: whatever aiokafka raises for a record that it cannot encode.
        """
        batch = self.batch
        if batch is None:
            batch = self.batch = self._first()
        if batch.data is None:
            records = [pending.record for pending in batch.records]
            if self.sequence is None:
                batch.data = encode_batch(records, codec=codec)
            else:
                batch.data = encode_batch(
                    records,
                    codec=codec,
                    producer_id=self.sequence.producer_id,
                    epoch=self.sequence.epoch,
                    base_sequence=self.sequence.next,
                )
        return batch, batch.data

    def _first(self) -> Batch:
        waiting, limit = self.waiting, self.batch_bytes - BATCH_OVERHEAD
        if self.held <= limit:
            # No batch is on its way, so these are all that it holds.
            records = list(waiting)
            waiting.clear()
            return Batch(records, held=self.held)
        records = [waiting.popleft()]
        held = records[0].size
        while waiting and held + waiting[0].size <= limit:
            pending = waiting.popleft()
            held += pending.size
            records.append(pending)
        return Batch(records, held=held)

    def take_back(self) -> list[Pending]:
        """
        Put the records of a batch that certainly was not stored in front of the others again.

        :return: those that were given up while it was on its way, which are not put back.
        """
        batch, self.batch = self.batch, None
        if batch is None:
            return []
        self.waiting.extendleft(reversed(batch.records[batch.expired :]))
        expired = batch.records[: batch.expired]
        self.held -= sum(pending.size for pending in expired)
        return expired
