"""
The records of one partition: a queue, as a state machine; and the outcomes of records for their callers.

Rule: every change of a queue's records or state is a method here, and is listed in `TRANSITIONS`. A method
returns the records that leave the queue; the calling code answers their callers.

Theory
======

A producer must store each record once, and the records of a partition in order, although answers may be lost.
Kafka helps with idempotence (KIP-98): a batch carries a producer id, an epoch and the sequence number of
its first record. The broker appends the next number of the newest epoch, answers a repetition of one of
the last batches as it did the first time, and rejects everything else. Four rules follow.

1. *One batch of a partition in flight.* With a second one behind it, a failure of the first would leave
   the second out of sequence, or, without idempotence, in front of it.

2. *An attempt with an unknown outcome is repeated with the same bytes.* Its records and its sequence number
   stay together: the broker recognises the batch, or appends it. So there are two kinds of each state that
   a batch can be in. In `IN_FLIGHT`, a response that the batch was not stored is final, and its records go
   back to the front of the queue (`WAITING_RETRY`). In `RESENT`, such a response is about this attempt only:
   an earlier attempt may have been stored, and so the batch stays as it is (`UNRESOLVED`).

3. *A batch that is given up with an unknown outcome is fenced.* The next batch has the next epoch (KIP-360).
   If the batch that was given up still arrives, for example from the socket of a broker that was stopped for
   a while, the broker rejects it. Otherwise records would change their order; or the broker could take the
   next batch, with the same sequence number, for a repetition, and it would be lost.

4. *A record with an identity is alone in its batch, which has its own producer id.* The id is made from the
   identity, with the epoch 0 and the sequence number 0, so that the broker recognises the batch, whichever
   instance has sent it before. (No broker assigns these ids; it does not check that it did.) So the batch may
   always be sent again, also without idempotence. It takes no sequence number of the queue. It needs no
   fence: if it arrives after it was given up, it is stored once, and its caller may repeat it. Such a late
   arrival is the only case in which the order is not kept. Otherwise the table below applies unchanged.

   So each of them takes a round trip. They wait in a line of their own, with one record of each request in
   turn, and a batch of the other records goes between two of them: a large request with a key does not delay
   other requests.

::

          append        begin_attempt            stored, reject, split
    IDLE ───────> READY ─────────────> IN_FLIGHT ──────────────────────> READY or IDLE
                    ^                    │    │
                    │ retry              │    │ unresolved
                    └── WAITING_RETRY <──┘    v
                                          UNRESOLVED <─> RESEND <─> RESENT ──> READY or IDLE
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Final, cast

from msgspec import Struct
from twisted.internet.defer import Deferred

from sampleapp.brokers.kafka.batches import BATCH_OVERHEAD, Codec, encode_batch
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.concurrency.rates import Backoff
from sampleapp.errors import PublishError
from sampleapp.interfaces import Outcome
from sampleapp.model import Record, RecordIdentity, RecordMetadata

_BACKOFF: Final = Backoff(first_s=0.05, max_s=0.4)
_SUSPECT_S: Final = 10.0
_MAX_EPOCH: Final = 2**15 - 2
_SEQUENCES: Final = 2**31
"""After the greatest 32-bit number, sequence numbers begin at 0 again."""
_OWN_ID_BIT: Final = 2**62
"""Set in the producer ids of identities. Brokers count up from 0, and so never assign one of these."""


class QueueState(Enum):
    """The state of a queue."""

    IDLE = "waits for records"
    READY = "waits for a request to its leader"
    IN_FLIGHT = "waits for the answer to the first attempt of a batch"
    WAITING_RETRY = "waits for the back-off, or another leader; none of its records is stored"
    UNRESOLVED = "waits for the back-off, or another leader; its batch may be stored"
    RESEND = "waits for a request to its leader, with a batch that may be stored"
    RESENT = "waits for the answer to another attempt of a batch that may be stored"
    ABANDONED = "waits for the answer to a batch whose callers are answered"
    CLOSED = "waits for nothing: its partition does not exist any longer"

    # Enum's __hash__ is Python code, and slower than the rest of a transition.
    __hash__ = object.__hash__


# A set, since looking up members of an Enum for every batch is slow before Python 3.12.
MAY_BE_SENT: Final = frozenset({QueueState.READY, QueueState.RESEND})
"""The states in which `PartitionQueue.begin_attempt` is possible."""


class QueueEvent(Enum):
    """An event in the life of a queue, named after its method."""

    APPEND = "append"
    EXTEND = "extend"
    ASSIGN_PRODUCER_ID = "assign_producer_id"
    DROP_PRODUCER_ID = "drop_producer_id"
    BEGIN_ATTEMPT = "begin_attempt"
    STORED = "stored"
    TRY_AGAIN_AFTER = "try_again_after"
    UNRESOLVED = "unresolved"
    RETRY = "retry"
    SPLIT = "split"
    REJECT = "reject"
    LOST = "lost"
    EXPIRE = "expire"
    GIVE_UP_UNSENT = "give_up_unsent"
    ABANDON = "abandon"
    ANSWERED_LATE = "answered_late"
    CLOSE = "close"

    __hash__ = object.__hash__


def _to(state: QueueState) -> tuple[QueueState, QueueState]:
    return state, state


_NEXT_BATCH: Final = (QueueState.READY, QueueState.IDLE)

TRANSITIONS: Final[Mapping[QueueState, Mapping[QueueEvent, tuple[QueueState, QueueState]]]] = {
    # state: {event: (the next state if records wait, the next state if none do)}
    QueueState.IDLE: {
        QueueEvent.APPEND: _to(QueueState.READY),
        QueueEvent.EXTEND: _to(QueueState.READY),
        QueueEvent.DROP_PRODUCER_ID: _to(QueueState.IDLE),
        QueueEvent.EXPIRE: _to(QueueState.IDLE),
        QueueEvent.GIVE_UP_UNSENT: _to(QueueState.IDLE),
        QueueEvent.ABANDON: _to(QueueState.IDLE),
        QueueEvent.CLOSE: _to(QueueState.CLOSED),
    },
    QueueState.READY: {
        QueueEvent.APPEND: _to(QueueState.READY),
        QueueEvent.EXTEND: _to(QueueState.READY),
        QueueEvent.ASSIGN_PRODUCER_ID: _to(QueueState.READY),
        QueueEvent.DROP_PRODUCER_ID: _to(QueueState.READY),
        QueueEvent.BEGIN_ATTEMPT: _to(QueueState.IN_FLIGHT),
        QueueEvent.TRY_AGAIN_AFTER: _to(QueueState.WAITING_RETRY),
        QueueEvent.EXPIRE: _NEXT_BATCH,
        QueueEvent.GIVE_UP_UNSENT: _to(QueueState.IDLE),
        QueueEvent.ABANDON: _to(QueueState.READY),
        QueueEvent.CLOSE: _to(QueueState.CLOSED),
    },
    QueueState.IN_FLIGHT: {
        QueueEvent.APPEND: _to(QueueState.IN_FLIGHT),
        QueueEvent.EXTEND: _to(QueueState.IN_FLIGHT),
        QueueEvent.STORED: _NEXT_BATCH,
        QueueEvent.TRY_AGAIN_AFTER: (QueueState.WAITING_RETRY, QueueState.IDLE),
        QueueEvent.UNRESOLVED: _to(QueueState.UNRESOLVED),
        QueueEvent.SPLIT: _NEXT_BATCH,
        QueueEvent.REJECT: _NEXT_BATCH,
        QueueEvent.LOST: _NEXT_BATCH,
        QueueEvent.EXPIRE: _to(QueueState.IN_FLIGHT),
        QueueEvent.GIVE_UP_UNSENT: _to(QueueState.IN_FLIGHT),
        QueueEvent.ABANDON: _to(QueueState.ABANDONED),
        QueueEvent.CLOSE: _to(QueueState.CLOSED),
    },
    QueueState.WAITING_RETRY: {
        QueueEvent.APPEND: _to(QueueState.WAITING_RETRY),
        QueueEvent.EXTEND: _to(QueueState.WAITING_RETRY),
        QueueEvent.DROP_PRODUCER_ID: _to(QueueState.WAITING_RETRY),
        QueueEvent.RETRY: _to(QueueState.READY),
        QueueEvent.EXPIRE: (QueueState.WAITING_RETRY, QueueState.IDLE),
        QueueEvent.GIVE_UP_UNSENT: _to(QueueState.IDLE),
        QueueEvent.ABANDON: _to(QueueState.WAITING_RETRY),
        QueueEvent.CLOSE: _to(QueueState.CLOSED),
    },
    QueueState.UNRESOLVED: {
        QueueEvent.APPEND: _to(QueueState.UNRESOLVED),
        QueueEvent.EXTEND: _to(QueueState.UNRESOLVED),
        QueueEvent.RETRY: _to(QueueState.RESEND),
        QueueEvent.LOST: _NEXT_BATCH,
        QueueEvent.EXPIRE: _to(QueueState.UNRESOLVED),
        QueueEvent.GIVE_UP_UNSENT: _to(QueueState.UNRESOLVED),
        QueueEvent.ABANDON: _NEXT_BATCH,
        QueueEvent.CLOSE: _to(QueueState.CLOSED),
    },
    QueueState.RESEND: {
        QueueEvent.APPEND: _to(QueueState.RESEND),
        QueueEvent.EXTEND: _to(QueueState.RESEND),
        QueueEvent.BEGIN_ATTEMPT: _to(QueueState.RESENT),
        QueueEvent.TRY_AGAIN_AFTER: _to(QueueState.UNRESOLVED),
        QueueEvent.LOST: _NEXT_BATCH,
        QueueEvent.EXPIRE: _to(QueueState.RESEND),
        QueueEvent.GIVE_UP_UNSENT: _to(QueueState.RESEND),
        QueueEvent.ABANDON: _NEXT_BATCH,
        QueueEvent.CLOSE: _to(QueueState.CLOSED),
    },
    QueueState.RESENT: {
        QueueEvent.APPEND: _to(QueueState.RESENT),
        QueueEvent.EXTEND: _to(QueueState.RESENT),
        QueueEvent.STORED: _NEXT_BATCH,
        QueueEvent.TRY_AGAIN_AFTER: _to(QueueState.UNRESOLVED),
        QueueEvent.UNRESOLVED: _to(QueueState.UNRESOLVED),
        QueueEvent.LOST: _NEXT_BATCH,
        QueueEvent.EXPIRE: _to(QueueState.RESENT),
        QueueEvent.GIVE_UP_UNSENT: _to(QueueState.RESENT),
        QueueEvent.ABANDON: _to(QueueState.ABANDONED),
        QueueEvent.CLOSE: _to(QueueState.CLOSED),
    },
    QueueState.ABANDONED: {
        QueueEvent.APPEND: _to(QueueState.ABANDONED),
        QueueEvent.EXTEND: _to(QueueState.ABANDONED),
        QueueEvent.EXPIRE: _to(QueueState.ABANDONED),
        QueueEvent.GIVE_UP_UNSENT: _to(QueueState.ABANDONED),
        QueueEvent.ABANDON: _to(QueueState.ABANDONED),
        QueueEvent.ANSWERED_LATE: _NEXT_BATCH,
        QueueEvent.CLOSE: _to(QueueState.CLOSED),
    },
    # A loop over all queues may reach one that was closed since it began; it has no records.
    QueueState.CLOSED: {
        QueueEvent.EXPIRE: _to(QueueState.CLOSED),
        QueueEvent.GIVE_UP_UNSENT: _to(QueueState.CLOSED),
        QueueEvent.ABANDON: _to(QueueState.CLOSED),
        QueueEvent.ANSWERED_LATE: _to(QueueState.CLOSED),
    },
}


def _after(event: QueueEvent) -> dict[QueueState, tuple[QueueState, QueueState]]:
    return {state: events[event] for state, events in TRANSITIONS.items() if event in events}


# Tables for the events of every record and every batch: before Python 3.12, looking up a member of an Enum
# takes longer than the rest of such a transition.
_AFTER_APPEND: Final = _after(QueueEvent.APPEND)
_AFTER_EXTEND: Final = _after(QueueEvent.EXTEND)
_AFTER_BEGIN_ATTEMPT: Final = _after(QueueEvent.BEGIN_ATTEMPT)
_AFTER_STORED: Final = _after(QueueEvent.STORED)


class IllegalTransition(Exception):
    """A method of a queue was called in a state that does not allow it: a fault in our code."""

    def __init__(self, state: QueueState, event: QueueEvent) -> None:
        """:param event: the event that is not allowed."""
        super().__init__(f"{event.name} is not possible in the state {state.name}.")
        self.state = state
        self.event = event


class BatchResult:
    """
    Collects the outcomes of one `sampleapp.interfaces.IBroker.publish_many`, and answers its caller.

    All records share it, so that they need no Deferreds of their own. A record may outlive it: a batch stays
    at the broker after its callers were answered at their deadline. So the caller gets the list itself, and
    later outcomes are dropped.
    """

    __slots__ = ("_missing", "_outcomes", "done")

    def __init__(self, count: int) -> None:
        """:param count: the number of records, at least one."""
        self._outcomes: list[Outcome | None] = [None] * count
        """In the order of the records; ``None`` while unknown. Empty after the caller was answered."""
        self._missing = count
        self.done: Deferred[list[Outcome]] = Deferred()
        """Fires with all outcomes, in a list that the caller may keep. Cancelling stops only the waiting."""

    def put(self, indexes: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        """Set the outcomes of records, unless they have one or the caller was answered."""
        known = self._outcomes
        if not self._missing:
            return
        for index, outcome in zip(indexes, outcomes, strict=True):
            if known[index] is None:
                known[index] = outcome
                self._missing -= 1
        if not self._missing:
            self._close()
            if not self.done.called:
                self.done.callback(cast("list[Outcome]", known))

    def reject(self, error: PublishError) -> None:
        """Answer the caller with one error: none of the records was published."""
        self._close()
        if not self.done.called:
            self.done.errback(error)

    def _close(self) -> None:
        self._outcomes, self._missing = [], 0


class Pending(Struct, gc=False):
    """
    A record, and the caller that waits for it.

    It needs no garbage collector: when it is answered, it leaves its queue and so any reference cycle.
    """

    record: Record
    size: int
    """The bytes that it uses in the buffer."""
    deadline_s: float
    """The time by which its caller must be answered, in seconds of the reactor's clock."""
    response: Deferred[RecordMetadata] | BatchResult
    """The caller's answer: for this record alone, or for all records published together."""
    index: int = -1
    """The record's index in `BatchResult`."""
    request: BatchResult | None = None
    """Of a record with an identity: the request of which it keeps the order."""
    key_hash: int | None = None
    """Of a record with a long key, or one that waits for partitions: the hash of its key without the sign."""


class Batch(Struct):
    """Records of one partition that are, or were, sent together."""

    records: list[Pending]
    held: int
    """The bytes of all records."""
    data: bytes = b""
    """The encoded batch. Kept while the broker may have it: the next attempt must repeat the same bytes."""
    expired: int = 0
    """The number of records, from the first on, whose callers were answered at their deadlines."""
    is_identified: bool = False
    """``True`` if its only record has an identity, and so the batch has a producer id of its own."""


class ShortenedDeadlines(Struct, frozen=True):
    """Earlier deadlines for records that are not sent, while no broker can be reached."""

    from_deadline_s: float
    """The deadline of a record accepted when the outage was noticed, in seconds of the reactor's clock."""
    earlier_s: float
    """The seconds by which later deadlines are earlier; no earlier deadline is later than that one."""

    def of(self, deadline_s: float) -> float:
        """Return the deadline of a record that is not sent, which increases with its own."""
        return min(deadline_s, max(deadline_s, self.from_deadline_s) - self.earlier_s)


class Expired(Struct, frozen=True):
    """Records of one queue whose deadlines have passed."""

    unsent: list[Pending]
    """Records that have left the queue, and are certainly not stored."""
    unanswered: list[Pending]
    """Records that stay with their batch; their callers must be told that the outcome is unknown."""
    dropped: list[Pending]
    """Records that have left the queue with their batch, after the deadlines of all its callers."""


class _Sequence(Struct):
    """The numbering of a partition's records (KIP-98)."""

    producer_id: int
    epoch: int
    next: int = 0
    """The sequence number of the next new record."""


class IdentifiedRecords:
    """Records with identities that wait for one partition: one of each request in turn."""

    __slots__ = ("_by_request", "held")

    def __init__(self) -> None:
        self._by_request: dict[object, deque[Pending]] = {}
        """None of the queues is empty; the first one has the next turn."""
        self.held = 0
        """The bytes of all records."""

    def __len__(self) -> int:
        """Return the number of records."""
        return sum(map(len, self._by_request.values()))

    @property
    def next_size(self) -> int:
        """The bytes of the record that `take` would return."""
        return next(iter(self._by_request.values()))[0].size

    def append(self, pending: Pending) -> None:
        """Append a record to those of its request."""
        self._by_request.setdefault(pending.request or pending.response, deque()).append(pending)
        self.held += pending.size

    def take(self) -> Pending:
        """Remove and return the next record; its request gets its next turn after the others."""
        request = next(iter(self._by_request))
        records = self._by_request.pop(request)
        pending = records.popleft()
        self.held -= pending.size
        if records:
            self._by_request[request] = records
        return pending

    def put_back(self, taken: Iterable[Pending]) -> None:
        """Let a record that `take` has returned be the next of its request."""
        for pending in taken:
            self._by_request.setdefault(pending.request or pending.response, deque()).appendleft(pending)
            self.held += pending.size

    def take_late(self, now_s: float, shortened: ShortenedDeadlines | None) -> list[Pending]:
        """Remove and return the records whose deadlines have passed, as `take_late` does."""
        late = [
            pending
            for records in self._by_request.values()
            for pending in take_late(records, now_s, shortened)
        ]
        if late:
            self._by_request = {request: records for request, records in self._by_request.items() if records}
            self.held -= sum(pending.size for pending in late)
        return late

    def take_all(self) -> list[Pending]:
        """Remove and return all records."""
        found = list(chain.from_iterable(self._by_request.values()))
        self._by_request.clear()
        self.held = 0
        return found


def take_late(waiting: deque[Pending], now_s: float, shortened: ShortenedDeadlines | None) -> list[Pending]:
    """
    Remove and return the records whose deadlines have passed.

    :param waiting: the records, in the order of their deadlines.
    :param now_s: the time of the reactor's clock, in seconds.
    """
    late = []
    while waiting and is_late(waiting[0].deadline_s, now_s, shortened):
        late.append(waiting.popleft())
    return late


def is_late(deadline_s: float, now_s: float, shortened: ShortenedDeadlines | None) -> bool:
    """Return whether the deadline of a record or check that is not sent has passed."""
    return (deadline_s if shortened is None else shortened.of(deadline_s)) <= now_s


class PartitionQueue:
    """The records that wait for one partition, and the batch that is, or may be, at a broker."""

    __slots__ = (
        "_attempts",
        "_batch",
        "_batch_bytes",
        "_batch_bytes_at_most",
        "_failed_leader",
        "_identified",
        "_is_idempotent",
        "_is_identified_next",
        "_not_before_s",
        "_reason",
        "_sequence",
        "_suspect_until_s",
        "_waiting",
        "held",
        "partition",
        "reserved",
        "state",
        "topic",
    )

    def __init__(self, *, topic: str, partition: int, batch_bytes: int) -> None:
        """:param batch_bytes: maximum size of a batch, unless a single record is larger."""
        self.topic = topic
        self.partition = partition
        self._batch_bytes_at_most = batch_bytes
        self._batch_bytes = batch_bytes
        self._waiting: deque[Pending] = deque()
        """Records without an identity."""
        self._identified = IdentifiedRecords()
        self._is_identified_next = False
        """``True`` after a batch of records without an identity."""
        self._batch: Batch | None = None
        self.held = 0
        """The bytes of all its records. Only the queue changes it."""
        self.reserved = 0
        """The bytes reserved for records that will be appended. Only their `PartitionBatch` changes it."""
        self.state = QueueState.IDLE
        """Only the queue changes it."""
        self._sequence: _Sequence | None = None
        self._is_idempotent = True
        self._attempts = 0
        self._not_before_s = 0.0
        self._suspect_until_s = 0.0
        self._failed_leader: int | None = None
        self._reason: FailureReason | None = None

    # Queries

    @property
    def held_or_reserved(self) -> int:
        """The bytes that it uses in the buffer."""
        return self.held + self.reserved

    @property
    def has_full_batch(self) -> bool:
        """``True`` if its records do not fit into one batch."""
        return self.bytes_ahead > self._batch_bytes

    @property
    def bytes_ahead(self) -> int:
        """The bytes that a record without an identity would wait for."""
        return self.held - self._identified.held

    @property
    def reason(self) -> FailureReason | None:
        """The reason why the last attempt failed; ``None`` if it succeeded."""
        return self._reason

    @property
    def records(self) -> int:
        """The number of its records, including those of the batch."""
        return len(self._waiting) + len(self._identified) + self.batch_records

    @property
    def batch_records(self) -> int:
        """The number of records in the batch that is, or may be, at a broker."""
        return 0 if self._batch is None else len(self._batch.records)

    @property
    def is_batch_identified(self) -> bool:
        """``True`` if the batch that is, or may be, at a broker is a record with an identity."""
        return self._batch is not None and self._batch.is_identified

    @property
    def may_repeat_batch(self) -> bool:
        """``True`` if a broker recognises its batch, so that it may be sent again."""
        return self._sequence is not None or self.is_batch_identified

    @property
    def has_producer_id(self) -> bool:
        """``True`` if a broker recognises its batches, also of records without an identity."""
        return self._sequence is not None

    @property
    def needs_producer_id(self) -> bool:
        """``True`` if it needs a producer id before the next attempt."""
        return self._sequence is None and self._is_idempotent

    @property
    def producer_id(self) -> int | None:
        """The producer id of its batches; ``None`` for none."""
        return None if self._sequence is None else self._sequence.producer_id

    def rank(self, now_s: float) -> tuple[bool, bool, int]:
        """Return a sort key for the backlog; keyless records go to the queue with the least (KIP-794)."""
        waits = self.state is QueueState.WAITING_RETRY or self.state is QueueState.UNRESOLVED
        return waits, self._suspect_until_s > now_s, self.bytes_ahead

    def may_retry(self, now_s: float, *, leader: int | None) -> bool:
        """
        Return ``True`` if the back-off is over, or there is another leader.

        :param leader: the node id of the partition's leader. If the last attempt failed at another one, the
            queue does not wait any longer.
        """
        if self.state is not QueueState.WAITING_RETRY and self.state is not QueueState.UNRESOLVED:
            return False
        return now_s >= self._not_before_s or leader not in (None, self._failed_leader)

    def next_bytes(self) -> int:
        """Return the maximum size of the next batch, in bytes on the wire."""
        if self._batch is not None:
            return len(self._batch.data)
        identified = self._identified
        if identified.held and self._takes_identified:
            return BATCH_OVERHEAD + identified.next_size
        first = self._waiting[0].size if self._waiting else 0
        return BATCH_OVERHEAD + min(self.held - identified.held, max(self._batch_bytes, first))

    # Events

    def append(self, pending: Pending) -> bool:
        """
        Append a record.

        :return: ``True`` if the queue became ready for an attempt.
        """
        state = self.state
        to = _AFTER_APPEND.get(state)
        if to is None:
            raise IllegalTransition(state, QueueEvent.APPEND)
        if pending.record.identity is None:
            self._waiting.append(pending)
        else:
            self._identified.append(pending)
        self.held += pending.size
        if state is to[0]:
            return False
        self.state = to[0]
        return True

    def extend(self, records: Collection[Pending], size: int) -> bool:
        """
        Append records without identities.

        :param records: at least one, in order.
        :param size: the bytes of all of them.
        :return: see `append`.
        """
        state = self.state
        to = _AFTER_EXTEND.get(state)
        if to is None:
            raise IllegalTransition(state, QueueEvent.EXTEND)
        self._waiting.extend(records)
        self.held += size
        if state is to[0]:
            return False
        self.state = to[0]
        return True

    def assign_producer_id(self, *, producer_id: int, epoch: int) -> None:
        """Use a producer id that this partition has not had; sequence numbers begin at 0."""
        to = self._check(QueueEvent.ASSIGN_PRODUCER_ID)
        self._sequence = _Sequence(producer_id=producer_id, epoch=epoch)
        self._enter(to)

    def drop_producer_id(self, *, for_good: bool = False) -> int | None:
        """
        Stop using the producer id.

        :param for_good: do not use another one either. A batch with an unknown outcome is then not repeated.
        :return: the producer id.
        """
        to = self._check(QueueEvent.DROP_PRODUCER_ID)
        producer_id = self.producer_id
        self._sequence = None
        if for_good:
            self._is_idempotent = False
        self._enter(to)
        return producer_id

    def begin_attempt(self, codec: Codec) -> Batch:
        """
        Begin to send the next batch, or the batch that may be stored.

        :return: the batch, encoded. A batch that may be stored has the same bytes as before.
        :raise Exception: anything that aiokafka raises for a record that it cannot encode. The queue is in
            flight nevertheless, and `reject` must follow.
        """
        to = _AFTER_BEGIN_ATTEMPT.get(self.state)
        if to is None:
            raise IllegalTransition(self.state, QueueEvent.BEGIN_ATTEMPT)
        batch = self._batch
        if batch is None:
            batch = self._batch = self._next_batch()
        self.state = to[0]
        if not batch.data:
            records = [pending.record for pending in batch.records]
            sequence = self._sequence
            identity = records[0].identity
            if identity is not None:
                batch.data = encode_batch(
                    records, codec=codec, producer_id=_producer_id_of(identity), epoch=0, base_sequence=0
                )
            elif sequence is None:
                batch.data = encode_batch(records, codec=codec)
            else:
                batch.data = encode_batch(
                    records,
                    codec=codec,
                    producer_id=sequence.producer_id,
                    epoch=sequence.epoch,
                    base_sequence=sequence.next,
                )
        return batch

    def stored(self) -> Batch:
        """
        Note that the batch is stored.

        :return: the batch; its records leave the queue.
        """
        to, batch = _AFTER_STORED.get(self.state), self._batch
        if to is None or batch is None:
            raise IllegalTransition(self.state, QueueEvent.STORED)
        self._batch = None
        self.held -= batch.held
        if self._sequence is not None and not batch.is_identified:
            self._sequence.next = (self._sequence.next + len(batch.records)) % _SEQUENCES
        self._attempts = 0
        self._suspect_until_s = 0.0
        self._reason = None
        self.state = to[0] if self.held else to[1]
        return batch

    def try_again_after(
        self, now_s: float, *, reason: FailureReason, leader: int | None = None
    ) -> list[Pending]:
        """
        Note that the attempt has stored nothing, and back off before the next one.

        After a first attempt, the records go back to the front of the queue. A batch that may be stored by an
        earlier attempt stays as it is.

        :param leader: the node at which the attempt failed, if there was one.
        :return: records that leave the queue, since their callers were answered at their deadlines.
        """
        to = self._check(QueueEvent.TRY_AGAIN_AFTER)
        left = self._take_back() if self.state is QueueState.IN_FLIGHT else []
        self._back_off(now_s, reason=reason, leader=leader)
        self._enter(to)
        return left

    def unresolved(self, now_s: float, *, reason: FailureReason, leader: int | None = None) -> None:
        """
        Note that the attempt may have stored the batch: after a back-off, the same bytes are sent again.

        :param leader: the node that the attempt was sent to.
        :raise IllegalTransition: also if no broker recognises the batch, since it could be stored twice.
        """
        to = self._check(QueueEvent.UNRESOLVED)
        if not self.may_repeat_batch:
            raise IllegalTransition(self.state, QueueEvent.UNRESOLVED)
        self._back_off(now_s, reason=reason, leader=leader)
        self._enter(to)

    def retry(self) -> None:
        """End the back-off before another attempt."""
        self._enter(self._check(QueueEvent.RETRY))

    def split(self) -> list[Pending]:
        """
        Note that the broker does not accept the batch as a whole: try smaller batches.

        :return: records that leave the queue, as in `try_again_after`.
        """
        to = self._check(QueueEvent.SPLIT)
        held = 0 if self._batch is None else self._batch.held
        left = self._take_back()
        self._batch_bytes = max(1, held // 2)
        self._enter(to)
        return left

    def reject(self, indexes: Collection[int] | None = None) -> tuple[list[Pending], list[Pending]]:
        """
        Note that the broker does not accept the batch, or some of its records.

        :param indexes: the indexes of these records in the batch; ``None`` for all. The others go back to the
            front of the queue.
        :return: the rejected records, in order; and other records that leave the queue, as in
            `try_again_after`.
        """
        to = self._check(QueueEvent.REJECT)
        batch = self._batch
        if indexes is None or batch is None:
            rejected, left = self._drop_batch().records, []
            self._attempts = 0
            self._batch_bytes = self._batch_bytes_at_most
        else:
            rejected = [pending for index, pending in enumerate(batch.records) if index in indexes]
            held = sum(pending.size for pending in rejected)
            batch.expired = sum(index not in indexes for index in range(batch.expired))
            batch.records = [pending for index, pending in enumerate(batch.records) if index not in indexes]
            batch.held -= held
            self.held -= held
            left = self._take_back()
        self._enter(to)
        return rejected, left

    def lost(self) -> list[Pending]:
        """
        Give up a batch that may be stored, where no other attempt can find out; and fence it.

        :return: its records, which leave the queue.
        """
        to = self._check(QueueEvent.LOST)
        batch = self._drop_batch()
        self._fence(batch)
        self._enter(to)
        return batch.records

    def expire(self, now_s: float, shortened: ShortenedDeadlines | None = None) -> Expired | None:
        """
        Return the records whose deadlines have passed.

        :return: ``None`` if there are none.
        """
        to = self._check(QueueEvent.EXPIRE)
        unanswered: list[Pending] = []
        dropped: list[Pending] = []
        unsent = take_late(self._waiting, now_s, shortened) + self._identified.take_late(now_s, shortened)
        if unsent:
            self.held -= sum(pending.size for pending in unsent)
        batch = self._batch
        if batch is not None:
            records = batch.records
            while batch.expired < len(records) and records[batch.expired].deadline_s <= now_s:
                unanswered.append(records[batch.expired])
                batch.expired += 1
            if batch.expired == len(records) and self.state in _NOT_IN_FLIGHT:
                # All its callers are answered, so it is not sent again.
                dropped = self.lost()
                return Expired(unsent, unanswered, dropped)
        self._enter(to)
        return Expired(unsent, unanswered, dropped) if unsent or unanswered else None

    def give_up_unsent(self) -> list[Pending]:
        """
        Give up all records that are certainly not stored.

        :return: these records, which leave the queue.
        """
        to = self._check(QueueEvent.GIVE_UP_UNSENT)
        unsent = self._take_waiting()
        self.held -= sum(pending.size for pending in unsent)
        self._enter(to)
        return unsent

    def abandon(self) -> list[Pending]:
        """
        Give up the batch that may be stored, if there is one, and fence it.

        If it is in flight, nothing else is sent before its response (`answered_late`).

        :return: its records, which leave the queue.
        """
        to = self._check(QueueEvent.ABANDON)
        records: list[Pending] = []
        if self._batch is not None:
            batch = self._drop_batch()
            records = batch.records
            self._fence(batch)
        self._enter(to)
        return records

    def answered_late(self) -> None:
        """Note the response to an attempt whose batch was abandoned."""
        self._enter(self._check(QueueEvent.ANSWERED_LATE))

    def close(self) -> tuple[list[Pending], list[Pending]]:
        """
        Close the queue for good.

        :return: the records that are certainly not stored, and those that may be; all leave the queue.
        """
        to = self._check(QueueEvent.CLOSE)
        unsent = self._take_waiting()
        sent = [] if self._batch is None else self._drop_batch().records
        self.held = 0
        self._enter(to)
        return unsent, sent

    def reset_batch_bytes(self) -> None:
        """Try batches of the full size again."""
        self._batch_bytes = self._batch_bytes_at_most

    # Helpers

    def _check(self, event: QueueEvent) -> tuple[QueueState, QueueState]:
        to = TRANSITIONS[self.state].get(event)
        if to is None:
            raise IllegalTransition(self.state, event)
        return to

    def _enter(self, to: tuple[QueueState, QueueState]) -> None:
        self.state = to[0] if self._waiting or self._identified.held else to[1]

    @property
    def _takes_identified(self) -> bool:
        """``True`` if the next batch is a record with an identity, where one waits."""
        return self._is_identified_next or not self._waiting

    def _take_waiting(self) -> list[Pending]:
        unsent = [*self._waiting, *self._identified.take_all()]
        self._waiting.clear()
        return unsent

    def _next_batch(self) -> Batch:
        is_identified = self._identified.held > 0 and self._takes_identified
        self._is_identified_next = not is_identified
        if is_identified:
            pending = self._identified.take()
            return Batch([pending], pending.size, is_identified=True)
        waiting, limit = self._waiting, self._batch_bytes - BATCH_OVERHEAD
        ahead = self.held - self._identified.held
        if ahead <= limit:
            # There is no other batch, so these are all records held.
            records = list(waiting)
            waiting.clear()
            return Batch(records, ahead)
        count = held = 0
        for pending in waiting:
            size = pending.size
            if held + size > limit and count:
                break
            held += size
            count += 1
        return Batch([waiting.popleft() for _ in range(count)], held)

    def _drop_batch(self) -> Batch:
        batch, self._batch = self._batch, None
        if batch is None:
            raise AssertionError("a state with a batch has none")
        self.held -= batch.held
        return batch

    def _take_back(self) -> list[Pending]:
        batch = self._drop_batch()
        left = batch.records[batch.expired :]
        if batch.is_identified:
            self._identified.put_back(left)
        else:
            self._waiting.extendleft(reversed(left))
        expired = batch.records[: batch.expired]
        self.held += batch.held - sum(pending.size for pending in expired)
        return expired

    def _back_off(self, now_s: float, *, reason: FailureReason, leader: int | None) -> None:
        self._attempts += 1
        self._not_before_s = now_s + _BACKOFF.delay_s(self._attempts)
        self._suspect_until_s = now_s + _SUSPECT_S
        self._failed_leader = leader
        self._reason = reason

    def _fence(self, batch: Batch) -> None:
        sequence = self._sequence
        if sequence is None or batch.is_identified:
            return
        if sequence.epoch < _MAX_EPOCH:
            self._sequence = _Sequence(producer_id=sequence.producer_id, epoch=sequence.epoch + 1)
        else:
            # The epochs are used up. If the same producer id is assigned again, the broker rejects its first
            # epoch, and the queue then takes another id.
            self._sequence = None


def _producer_id_of(identity: RecordIdentity) -> int:
    return _OWN_ID_BIT | int.from_bytes(identity.id[:8], "big") % _OWN_ID_BIT


_NOT_IN_FLIGHT: Final = frozenset({QueueState.UNRESOLVED, QueueState.RESEND})
