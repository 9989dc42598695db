"""
The records of one partition: a queue that is the only owner of its state.

Rule: whatever changes what a queue holds, or what may happen to it next, is a method here, and is listed
in `TRANSITIONS`. A method returns the records that leave the queue by it; the caller answers them.

Theory
======

A producer must store each record once, and those of a partition in order, although an answer may be lost.
Kafka helps with idempotence (KIP-98): a batch carries a producer id, an epoch and the sequence number of
its first record. The broker appends the next number of the newest epoch, answers a repetition of one of
the last batches as it did the first time, and refuses everything else. Three rules follow.

1. *One batch of a partition in flight.* With a second one behind it, a failure of the first would leave
   the second out of sequence, or, without idempotence, in front of it.

2. *An attempt of which the outcome is unknown is repeated with the same bytes.* Its records and its
   sequence number stay together: the broker recognises the batch, or appends it. So there are two kinds
   of each state that a batch can be in. In `IN_FLIGHT` an answer that the batch was not stored is final,
   and its records go back in front of the others (`WAITING_RETRY`). In `RESENT` it is about this attempt
   only: an earlier one may have been stored, and so the batch stays as it is (`UNRESOLVED`).

3. *An unknown outcome that is given up is fenced.* The next batch has the next epoch (KIP-360): should
   the one that was given up still arrive, as it may from the socket of a broker that was stopped for a
   while, the broker refuses it. Without that, records would change their order, and their sequence
   number could be taken for that of the next batch, which would then be lost.

::

          append        begin_attempt            stored, refuse, split
    IDLE ───────> READY ─────────────> IN_FLIGHT ──────────────────────> READY or IDLE
                    ^                    │    │
                    │ retry              │    │ unresolved
                    └── WAITING_RETRY <──┘    v
                                          UNRESOLVED <─> RESEND <─> RESENT ──> READY or IDLE
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct
from twisted.internet.defer import Deferred

from sampleapp.brokers.kafka.batches import BATCH_OVERHEAD, Codec, encode_batch
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.producer.outcomes import Outcomes
from sampleapp.brokers.shared.backoff import Backoff
from sampleapp.model import Record, RecordMetadata

__all__ = [
    "TRANSITIONS",
    "Batch",
    "Event",
    "Expired",
    "Hurry",
    "IllegalTransition",
    "PartitionQueue",
    "Pending",
    "State",
    "take_late",
]

_BACKOFF: Final = Backoff(first_s=0.05, max_s=0.4)
_SUSPECT_S: Final = 10.0
_MAX_EPOCH: Final = 2**15 - 2
_SEQUENCES: Final = 2**31
"""After the greatest 32-bit number comes 0 again."""


class State(Enum):
    """What a queue waits for."""

    IDLE = "for records"
    READY = "for a request to its leader"
    IN_FLIGHT = "for the answer to the first attempt of a batch"
    WAITING_RETRY = "for time to pass, or another leader; nothing of it is stored"
    UNRESOLVED = "for time to pass, or another leader; its batch may be stored"
    RESEND = "for a request to its leader, with a batch that may be stored"
    RESENT = "for the answer to another attempt of a batch that may be stored"
    ABANDONED = "for the answer to a batch whose callers are answered"
    CLOSED = "for nothing: its partition is gone"

    # Enum's own is Python code, which takes longer than everything else that a transition does.
    __hash__ = object.__hash__


class Event(Enum):
    """What may happen to a queue; each is named after the method that does it."""

    APPEND = "append"
    EXTEND = "extend"
    NUMBER = "number"
    FORGET_NUMBER = "forget_number"
    BEGIN_ATTEMPT = "begin_attempt"
    STORED = "stored"
    TRY_AGAIN_AFTER = "try_again_after"
    UNRESOLVED = "unresolved"
    RETRY = "retry"
    SPLIT = "split"
    REFUSE = "refuse"
    LOST = "lost"
    EXPIRE = "expire"
    GIVE_UP_UNSENT = "give_up_unsent"
    ABANDON = "abandon"
    ANSWERED_LATE = "answered_late"
    CLOSE = "close"

    __hash__ = object.__hash__


def _to(state: State) -> tuple[State, State]:
    return state, state


_NEXT_BATCH: Final = (State.READY, State.IDLE)

TRANSITIONS: Final[Mapping[State, Mapping[Event, tuple[State, State]]]] = {
    # state: {event: (the next state if records wait, the next state if none do)}
    State.IDLE: {
        Event.APPEND: _to(State.READY),
        Event.EXTEND: _to(State.READY),
        Event.FORGET_NUMBER: _to(State.IDLE),
        Event.EXPIRE: _to(State.IDLE),
        Event.GIVE_UP_UNSENT: _to(State.IDLE),
        Event.ABANDON: _to(State.IDLE),
        Event.CLOSE: _to(State.CLOSED),
    },
    State.READY: {
        Event.APPEND: _to(State.READY),
        Event.EXTEND: _to(State.READY),
        Event.NUMBER: _to(State.READY),
        Event.FORGET_NUMBER: _to(State.READY),
        Event.BEGIN_ATTEMPT: _to(State.IN_FLIGHT),
        Event.TRY_AGAIN_AFTER: _to(State.WAITING_RETRY),
        Event.EXPIRE: _NEXT_BATCH,
        Event.GIVE_UP_UNSENT: _to(State.IDLE),
        Event.ABANDON: _to(State.READY),
        Event.CLOSE: _to(State.CLOSED),
    },
    State.IN_FLIGHT: {
        Event.APPEND: _to(State.IN_FLIGHT),
        Event.EXTEND: _to(State.IN_FLIGHT),
        Event.STORED: _NEXT_BATCH,
        Event.TRY_AGAIN_AFTER: (State.WAITING_RETRY, State.IDLE),
        Event.UNRESOLVED: _to(State.UNRESOLVED),
        Event.SPLIT: _NEXT_BATCH,
        Event.REFUSE: _NEXT_BATCH,
        Event.LOST: _NEXT_BATCH,
        Event.EXPIRE: _to(State.IN_FLIGHT),
        Event.GIVE_UP_UNSENT: _to(State.IN_FLIGHT),
        Event.ABANDON: _to(State.ABANDONED),
        Event.CLOSE: _to(State.CLOSED),
    },
    State.WAITING_RETRY: {
        Event.APPEND: _to(State.WAITING_RETRY),
        Event.EXTEND: _to(State.WAITING_RETRY),
        Event.FORGET_NUMBER: _to(State.WAITING_RETRY),
        Event.RETRY: _to(State.READY),
        Event.EXPIRE: (State.WAITING_RETRY, State.IDLE),
        Event.GIVE_UP_UNSENT: _to(State.IDLE),
        Event.ABANDON: _to(State.WAITING_RETRY),
        Event.CLOSE: _to(State.CLOSED),
    },
    State.UNRESOLVED: {
        Event.APPEND: _to(State.UNRESOLVED),
        Event.EXTEND: _to(State.UNRESOLVED),
        Event.RETRY: _to(State.RESEND),
        Event.LOST: _NEXT_BATCH,
        Event.EXPIRE: _to(State.UNRESOLVED),
        Event.GIVE_UP_UNSENT: _to(State.UNRESOLVED),
        Event.ABANDON: _NEXT_BATCH,
        Event.CLOSE: _to(State.CLOSED),
    },
    State.RESEND: {
        Event.APPEND: _to(State.RESEND),
        Event.EXTEND: _to(State.RESEND),
        Event.BEGIN_ATTEMPT: _to(State.RESENT),
        Event.TRY_AGAIN_AFTER: _to(State.UNRESOLVED),
        Event.LOST: _NEXT_BATCH,
        Event.EXPIRE: _to(State.RESEND),
        Event.GIVE_UP_UNSENT: _to(State.RESEND),
        Event.ABANDON: _NEXT_BATCH,
        Event.CLOSE: _to(State.CLOSED),
    },
    State.RESENT: {
        Event.APPEND: _to(State.RESENT),
        Event.EXTEND: _to(State.RESENT),
        Event.STORED: _NEXT_BATCH,
        Event.TRY_AGAIN_AFTER: _to(State.UNRESOLVED),
        Event.UNRESOLVED: _to(State.UNRESOLVED),
        Event.LOST: _NEXT_BATCH,
        Event.EXPIRE: _to(State.RESENT),
        Event.GIVE_UP_UNSENT: _to(State.RESENT),
        Event.ABANDON: _to(State.ABANDONED),
        Event.CLOSE: _to(State.CLOSED),
    },
    State.ABANDONED: {
        Event.APPEND: _to(State.ABANDONED),
        Event.EXTEND: _to(State.ABANDONED),
        Event.EXPIRE: _to(State.ABANDONED),
        Event.GIVE_UP_UNSENT: _to(State.ABANDONED),
        Event.ABANDON: _to(State.ABANDONED),
        Event.ANSWERED_LATE: _NEXT_BATCH,
        Event.CLOSE: _to(State.CLOSED),
    },
    # Who goes through all queues may meet one that was closed meanwhile; it has no records.
    State.CLOSED: {
        Event.EXPIRE: _to(State.CLOSED),
        Event.GIVE_UP_UNSENT: _to(State.CLOSED),
        Event.ABANDON: _to(State.CLOSED),
        Event.ANSWERED_LATE: _to(State.CLOSED),
    },
}


def _after(event: Event) -> dict[State, tuple[State, State]]:
    return {state: events[event] for state, events in TRANSITIONS.items() if event in events}


# The same for what happens with every record, or with every batch: before Python 3.12 it takes longer to look
# up a member of an Enum than all the rest of such a transition.
_AFTER_APPEND: Final = _after(Event.APPEND)
_AFTER_EXTEND: Final = _after(Event.EXTEND)
_AFTER_BEGIN_ATTEMPT: Final = _after(Event.BEGIN_ATTEMPT)
_AFTER_STORED: Final = _after(Event.STORED)


class IllegalTransition(Exception):
    """Something was to happen to a queue that may not happen in its state: a fault of ours."""

    def __init__(self, state: State, event: Event) -> None:
        """:param event: what was to happen."""
        super().__init__(f"{event.name} is not possible in the state {state.name}.")
        self.state = state
        self.event = event


class Pending(Struct, gc=False):
    """
    One record, and who waits for it.

    It needs no garbage collector: it leaves its queue when it is answered, and so every cycle.
    """

    record: Record
    size: int
    """The bytes that it takes in the buffer."""
    deadline_s: float
    """When its caller has to be answered, in seconds of the reactor's clock."""
    answer: Deferred[RecordMetadata] | Outcomes
    """Who waits: for this record alone, or for all that were published together."""
    index: int = -1
    """Which of those it is."""


class Batch(Struct):
    """Records of one partition that are, or were, sent together."""

    records: list[Pending]
    held: int
    """The bytes of all records."""
    data: bytes = b""
    """As it is on the wire. Kept for as long as the broker may have it: it must not change then."""
    expired: int = 0
    """How many of the records, from the first on, have callers who were told that time is over."""


class Hurry(Struct, frozen=True):
    """A shorter wait for records that came since a moment and are not sent, while no broker is reachable."""

    from_deadline_s: float
    """The deadline of the first record that it is for, in seconds of the reactor's clock."""
    earlier_s: float
    """By how much earlier than at their deadlines they are given up, in seconds."""


class Expired(Struct, frozen=True):
    """Records of one queue whose time is over."""

    unsent: list[Pending]
    """They have left the queue, and were certainly not stored."""
    unanswered: list[Pending]
    """Their callers are to be told that the outcome is unknown; they stay, since their batch does."""
    dropped: list[Pending]
    """They have left the queue: their batch, for which nobody waits any more, was given up."""


class _Sequence(Struct):
    """The numbering of a partition's records (KIP-98)."""

    producer_id: int
    epoch: int
    next: int = 0
    """The number of the next record that is sent for the first time."""


def take_late(waiting: deque[Pending], now_s: float, hurry: Hurry | None) -> list[Pending]:
    """
    Take those out of a queue whose time is over.

    :param waiting: in the order of their deadlines.
    :param now_s: the time by the reactor's clock, in seconds.
    """
    late = []
    while waiting and waiting[0].deadline_s <= now_s:
        late.append(waiting.popleft())
    if hurry is not None and waiting and waiting[-1].deadline_s >= hurry.from_deadline_s:
        # Records that came before, with more time, may be in front of them.
        first = bisect_left(waiting, hurry.from_deadline_s, key=_deadline_s)
        end = bisect_right(waiting, now_s + hurry.earlier_s, lo=first, key=_deadline_s)
        if end > first:
            waiting.rotate(-first)
            late += [waiting.popleft() for _ in range(end - first)]
            waiting.rotate(first)
    return late


def _deadline_s(pending: Pending) -> float:
    return pending.deadline_s


class PartitionQueue:
    """What waits for one partition, and the one batch of it that may be at a broker."""

    __slots__ = (
        "_attempts",
        "_batch",
        "_batch_bytes",
        "_batch_bytes_at_most",
        "_failed_leader",
        "_is_idempotent",
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
        """:param batch_bytes: how large a batch may become, unless a single record is larger."""
        self.topic = topic
        self.partition = partition
        self._batch_bytes_at_most = batch_bytes
        self._batch_bytes = batch_bytes
        self._waiting: deque[Pending] = deque()
        self._batch: Batch | None = None
        self.held = 0
        """The bytes of all its records. Only the queue changes it."""
        self.reserved = 0
        """The bytes of records that will be put into it, for which there is room. Their `Load` changes it."""
        self.state = State.IDLE
        """What it waits for. Only the queue changes it."""
        self._sequence: _Sequence | None = None
        self._is_idempotent = True
        self._attempts = 0
        self._not_before_s = 0.0
        self._suspect_until_s = 0.0
        self._failed_leader: int | None = None
        self._reason: FailureReason | None = None

    # What others may know

    @property
    def held_or_reserved(self) -> int:
        """The bytes that it takes of the room for all."""
        return self.held + self.reserved

    @property
    def has_full_batch(self) -> bool:
        """Whether more is held than one batch takes."""
        return self.held > self._batch_bytes

    @property
    def reason(self) -> FailureReason | None:
        """Why the last attempt failed; ``None`` when the last one succeeded."""
        return self._reason

    @property
    def records(self) -> int:
        """How many records it has."""
        return len(self._waiting) + self.batch_records

    @property
    def batch_records(self) -> int:
        """How many records the batch has that may be at a broker."""
        return 0 if self._batch is None else len(self._batch.records)

    @property
    def is_numbered(self) -> bool:
        """Whether a broker recognises its batches, so that one may be sent again."""
        return self._sequence is not None

    @property
    def needs_number(self) -> bool:
        """Whether a producer id is needed before the next attempt."""
        return self._sequence is None and self._is_idempotent

    @property
    def producer_id(self) -> int | None:
        """The producer id that it is numbered with."""
        return None if self._sequence is None else self._sequence.producer_id

    def rank(self, now_s: float) -> tuple[bool, bool, int]:
        """Return how far it is behind: a record without a key goes where that is least (KIP-794)."""
        waits = self.state is State.WAITING_RETRY or self.state is State.UNRESOLVED
        return waits, self._suspect_until_s > now_s, self.held

    def may_retry(self, now_s: float, *, leader: int | None) -> bool:
        """
        Return whether a queue that waits for another attempt has waited long enough.

        :param leader: the node id of the partition's leader. If it is not the one that the last attempt
            failed at, there is nothing to wait for.
        """
        if self.state is not State.WAITING_RETRY and self.state is not State.UNRESOLVED:
            return False
        return now_s >= self._not_before_s or leader not in (None, self._failed_leader)

    def next_bytes(self) -> int:
        """Return how large the next batch is on the wire at most."""
        if self._batch is not None:
            return len(self._batch.data)
        first = self._waiting[0].size if self._waiting else 0
        return BATCH_OVERHEAD + min(self.held, max(self._batch_bytes, first))

    # What may happen to it

    def append(self, pending: Pending) -> bool:
        """
        Put a record behind all others.

        :return: whether that made the queue ready for an attempt.
        """
        state = self.state
        to = _AFTER_APPEND.get(state)
        if to is None:
            raise IllegalTransition(state, Event.APPEND)
        self._waiting.append(pending)
        self.held += pending.size
        if state is to[0]:
            return False
        self.state = to[0]
        return True

    def extend(self, records: Collection[Pending], size: int) -> bool:
        """
        Put records behind all others.

        :param records: at least one, in their order.
        :param size: the bytes of all of them.
        :return: as `append`.
        """
        state = self.state
        to = _AFTER_EXTEND.get(state)
        if to is None:
            raise IllegalTransition(state, Event.EXTEND)
        self._waiting.extend(records)
        self.held += size
        if state is to[0]:
            return False
        self.state = to[0]
        return True

    def number(self, *, producer_id: int, epoch: int) -> None:
        """Begin to number batches, from 0, with a producer id that this partition has not had."""
        to = self._check(Event.NUMBER)
        self._sequence = _Sequence(producer_id=producer_id, epoch=epoch)
        self._enter(to)

    def forget_number(self, *, for_good: bool = False) -> int | None:
        """
        Number no more batches with this producer id.

        :param for_good: not with another one either; a batch is then sent once, whatever becomes of it.
        :return: the producer id.
        """
        to = self._check(Event.FORGET_NUMBER)
        producer_id = self.producer_id
        self._sequence = None
        if for_good:
            self._is_idempotent = False
        self._enter(to)
        return producer_id

    def begin_attempt(self, codec: Codec) -> bytes:
        """
        Take the next batch, or the one that may be stored, for a request.

        :return: the batch on the wire; of one that may be stored, the same bytes as before.
        :raise Exception: whatever aiokafka raises for a record that it cannot encode. The queue is in
            flight all the same, and `refuse` is what is to follow.
        """
        to = _AFTER_BEGIN_ATTEMPT.get(self.state)
        if to is None:
            raise IllegalTransition(self.state, Event.BEGIN_ATTEMPT)
        batch = self._batch
        if batch is None:
            batch = self._batch = self._next_batch()
        self.state = to[0]
        if not batch.data:
            records = [pending.record for pending in batch.records]
            sequence = self._sequence
            if sequence is None:
                batch.data = encode_batch(records, codec=codec)
            else:
                batch.data = encode_batch(
                    records,
                    codec=codec,
                    producer_id=sequence.producer_id,
                    epoch=sequence.epoch,
                    base_sequence=sequence.next,
                )
        return batch.data

    def stored(self) -> Batch:
        """
        Note that the batch is in the partition.

        :return: the batch, whose records leave.
        """
        to, batch = _AFTER_STORED.get(self.state), self._batch
        if to is None or batch is None:
            raise IllegalTransition(self.state, Event.STORED)
        self._batch = None
        self.held -= batch.held
        if self._sequence is not None:
            self._sequence.next = (self._sequence.next + len(batch.records)) % _SEQUENCES
        self._attempts = 0
        self._suspect_until_s = 0.0
        self._reason = None
        self.state = to[0] if self._waiting else to[1]
        return batch

    def try_again_after(
        self, now_s: float, *, reason: FailureReason, leader: int | None = None
    ) -> list[Pending]:
        """
        Note that the attempt has stored nothing, and let some time pass before the next one.

        The records of a batch that was not sent before go back in front of the others. A batch that may
        have been stored by an earlier attempt stays as it is.

        :param leader: the node that the attempt failed at, if there was one.
        :return: records that leave, since their callers were told at their deadlines that the outcome is
            unknown.
        """
        to = self._check(Event.TRY_AGAIN_AFTER)
        left = self._take_back() if self.state is State.IN_FLIGHT else []
        self._back_off(now_s, reason=reason, leader=leader)
        self._enter(to)
        return left

    def unresolved(self, now_s: float, *, reason: FailureReason, leader: int | None = None) -> None:
        """
        Note that nobody knows whether the attempt has stored the batch: the same bytes again will tell.

        :param leader: the node that the attempt was sent to.
        :raise IllegalTransition: also if the batch is not numbered, since then it would become two.
        """
        to = self._check(Event.UNRESOLVED)
        if self._sequence is None:
            raise IllegalTransition(self.state, Event.UNRESOLVED)
        self._back_off(now_s, reason=reason, leader=leader)
        self._enter(to)

    def retry(self) -> None:
        """End the wait before another attempt."""
        self._enter(self._check(Event.RETRY))

    def split(self) -> list[Pending]:
        """
        Note that the broker does not take the batch as a whole: try smaller ones.

        :return: records that leave, as in `try_again_after`.
        """
        to = self._check(Event.SPLIT)
        held = 0 if self._batch is None else self._batch.held
        left = self._take_back()
        self._batch_bytes = max(1, held // 2)
        self._enter(to)
        return left

    def refuse(self, indexes: Collection[int] | None = None) -> tuple[list[Pending], list[Pending]]:
        """
        Note that the broker will not take the batch, or some of its records.

        :param indexes: places in the batch of the records that it will not take; ``None`` for all. The
            others go back in front of those that wait.
        :return: the records that are refused, in their order; and those that leave besides, as in
            `try_again_after`.
        """
        to = self._check(Event.REFUSE)
        batch = self._batch
        if indexes is None or batch is None:
            refused, left = self._drop_batch().records, []
            self._attempts = 0
            self._batch_bytes = self._batch_bytes_at_most
        else:
            refused = [pending for index, pending in enumerate(batch.records) if index in indexes]
            held = sum(pending.size for pending in refused)
            batch.expired = sum(index not in indexes for index in range(batch.expired))
            batch.records = [pending for index, pending in enumerate(batch.records) if index not in indexes]
            batch.held -= held
            self.held -= held
            left = self._take_back()
        self._enter(to)
        return refused, left

    def lost(self) -> list[Pending]:
        """
        Give the batch up, of which nobody knows, or can find out, whether it is stored; and fence it.

        :return: its records, which leave.
        """
        to = self._check(Event.LOST)
        records = self._drop_batch().records
        self._fence()
        self._enter(to)
        return records

    def expire(self, now_s: float, hurry: Hurry | None = None) -> Expired | None:
        """
        Look for records whose time is over.

        :return: ``None`` if there are none.
        """
        to = self._check(Event.EXPIRE)
        unanswered: list[Pending] = []
        dropped: list[Pending] = []
        unsent = take_late(self._waiting, now_s, hurry)
        if unsent:
            self.held -= sum(pending.size for pending in unsent)
        batch = self._batch
        if batch is not None:
            records = batch.records
            while batch.expired < len(records) and records[batch.expired].deadline_s <= now_s:
                unanswered.append(records[batch.expired])
                batch.expired += 1
            if batch.expired == len(records) and self.state in _NOT_ON_THE_WAY:
                # Nobody waits for it any more, so it is not tried again.
                dropped = self.lost()
                return Expired(unsent, unanswered, dropped)
        self._enter(to)
        return Expired(unsent, unanswered, dropped) if unsent or unanswered else None

    def give_up_unsent(self) -> list[Pending]:
        """
        Give up everything that was certainly not stored.

        :return: those records, which leave.
        """
        to = self._check(Event.GIVE_UP_UNSENT)
        unsent = list(self._waiting)
        self._waiting.clear()
        self.held -= sum(pending.size for pending in unsent)
        self._enter(to)
        return unsent

    def abandon(self) -> list[Pending]:
        """
        Give up the batch that may be stored, if there is one, and fence it.

        What is on its way stays so: nothing else is sent before the answer to it (`answered_late`).

        :return: its records, which leave.
        """
        to = self._check(Event.ABANDON)
        records: list[Pending] = []
        if self._batch is not None:
            records = self._drop_batch().records
            self._fence()
        self._enter(to)
        return records

    def answered_late(self) -> None:
        """Note the answer to an attempt that was abandoned meanwhile."""
        self._enter(self._check(Event.ANSWERED_LATE))

    def close(self) -> tuple[list[Pending], list[Pending]]:
        """
        End the queue for ever.

        :return: the records that were certainly not stored, and those that may be; all leave.
        """
        to = self._check(Event.CLOSE)
        unsent = list(self._waiting)
        self._waiting.clear()
        sent = [] if self._batch is None else self._drop_batch().records
        self.held = 0
        self._enter(to)
        return unsent, sent

    def reset_batch_bytes(self) -> None:
        """Try batches of the full size again."""
        self._batch_bytes = self._batch_bytes_at_most

    # How it happens

    def _check(self, event: Event) -> tuple[State, State]:
        to = TRANSITIONS[self.state].get(event)
        if to is None:
            raise IllegalTransition(self.state, event)
        return to

    def _enter(self, to: tuple[State, State]) -> None:
        self.state = to[0] if self._waiting else to[1]

    def _next_batch(self) -> Batch:
        waiting, limit = self._waiting, self._batch_bytes - BATCH_OVERHEAD
        if self.held <= limit:
            # No batch is on its way, so these are all that it holds.
            records = list(waiting)
            waiting.clear()
            return Batch(records, self.held)
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
        self._waiting.extendleft(reversed(batch.records[batch.expired :]))
        expired = batch.records[: batch.expired]
        self.held += batch.held - sum(pending.size for pending in expired)
        return expired

    def _back_off(self, now_s: float, *, reason: FailureReason, leader: int | None) -> None:
        self._attempts += 1
        self._not_before_s = now_s + _BACKOFF.delay_s(self._attempts)
        self._suspect_until_s = now_s + _SUSPECT_S
        self._failed_leader = leader
        self._reason = reason

    def _fence(self) -> None:
        sequence = self._sequence
        if sequence is None:
            return
        if sequence.epoch < _MAX_EPOCH:
            self._sequence = _Sequence(producer_id=sequence.producer_id, epoch=sequence.epoch + 1)
        else:
            # There is no next epoch. If the same producer id comes again, the broker refuses its first
            # epoch, and that takes another id.
            self._sequence = None


_NOT_ON_THE_WAY: Final = frozenset({State.UNRESOLVED, State.RESEND})
