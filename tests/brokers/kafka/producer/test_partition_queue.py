"""The queue of a partition, against a model of Kafka's idempotence."""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace
from twisted.internet.defer import Deferred

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.partition_queue import (
    TRANSITIONS,
    BatchResult,
    IllegalTransition,
    PartitionQueue,
    Pending,
    QueueEvent,
    QueueState,
    ShortenedDeadlines,
)
from sampleapp.model import RecordIdentity
from tests.support.brokers import record
from tests.support.examples import examples
from tests.support.kafka_simulator import Log

WHY = FailureReason(sentence="Why.", public="Why.", lasting=False)
TIMEOUT_S = 10.0
BATCH_BYTES = 300
FATES = [
    "stored",
    "stored",
    "arrives",
    "vanishes",
    "late",
    "cannot be found out",
    "try again",
    "no connection",
    "too large",
    "some rejected",
]
"""What may become of an attempt: with its answer, without it, or without having been made."""
IDENTIFIED = 17
"""The size of a value whose record has an identity."""
SIZES = [0, 0, 50, 200, IDENTIFIED]
REQUESTS = [BatchResult(1), BatchResult(1)]
"""Requests with a key for many records. A single record is a request of its own."""
IN_THE_MANUAL = Path(__file__).parents[4] / "docs/explanation/queue-states.csv"
ON_THE_WAY = (QueueState.IN_FLIGHT, QueueState.RESENT, QueueState.ABANDONED)


class QueueMachine(RuleBasedStateMachine):
    """
    Records come, attempts are made, answers are lost, time passes: in any order that the table allows.

    What a broker would answer is taken from the model, so that the queue is told nothing that is not so.
    """

    def __init__(self):
        super().__init__()
        self.log = Log()
        self.log.rejects_unknown_ids = True
        self.now_s = 0.0
        self.count = 0
        self.pending = {}
        self.inside = {}
        self.left = {}
        """What every record that has left was said to be: stored, unsent, or unknown."""
        self.told = set()
        self.flying = None
        """The bytes of the attempt that is under way."""
        self.batch = []
        """The values of the last batch."""
        self.requests = {}
        """The request of each record with an identity."""
        self.late = []
        """Batches that are still on their way, although nobody waits for their answers."""
        self.next_id = 1000
        self.is_forgotten = False
        self.last_data = None

    @initialize(has_producer_id=st.sampled_from([True, True, False]))
    def begin(self, has_producer_id):
        self.has_producer_id = has_producer_id
        self.queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)

    # What happens

    @precondition(lambda self: self.queue.state is not QueueState.CLOSED)
    @rule(
        sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=6),
        request=st.sampled_from([None, *REQUESTS]),
    )
    def append(self, sizes, request):
        self.put(sizes, request)

    @precondition(lambda self: self.queue.state is not QueueState.CLOSED)
    @rule(sizes=st.lists(st.sampled_from(SIZES[:-1]), min_size=1, max_size=6))
    def extend(self, sizes):
        made = [self.make(size) for size in sizes]
        was_idle = self.queue.state is QueueState.IDLE
        size = sum(pending.size for pending in made)
        assert self.queue.extend(made, size) is was_idle

    def put(self, sizes, request=None):
        for size in sizes:
            pending = self.make(size, request)
            was_idle = self.queue.state is QueueState.IDLE
            assert self.queue.append(pending) is was_idle

    def make(self, size, request=None):
        value = b"%d:" % self.count + b"x" * size
        self.count += 1
        made = record("t", value, key=None)
        if size == IDENTIFIED:
            made = replace(made, identity=identity(value))
        pending = Pending(made, 36 + len(value), self.now_s + TIMEOUT_S, Deferred(), request=request)
        if size == IDENTIFIED:
            self.requests[value] = pending.request or pending.response
        self.inside[value] = pending
        return pending

    @rule(fates=st.lists(st.sampled_from(FATES), min_size=6, max_size=20), data=st.data())
    def proceed(self, fates, data):
        """Do the next step, some times in a row, each with another outcome."""
        for fate in fates:
            state = self.queue.state
            if state is QueueState.IDLE:
                self.put([0, 200, 200, 0])
            elif state is QueueState.READY or state is QueueState.RESEND:
                if fate == "no connection":
                    assert self.queue.try_again_after(self.now_s, reason=WHY) == []
                else:
                    self.begin_attempt()
            elif state is QueueState.WAITING_RETRY or state is QueueState.UNRESOLVED:
                assert self.queue.may_retry(self.now_s + 0.5, leader=1)
                assert self.queue.may_retry(self.now_s, leader=2)
                self.queue.retry()
            elif state is QueueState.ABANDONED or (state is QueueState.CLOSED and self.flying is not None):
                if fate != "vanishes":
                    self.log.append_batch(self.flying)
                self.flying = None
                self.queue.answered_late()
            elif state is QueueState.IN_FLIGHT or state is QueueState.RESENT:
                self.be_answered(fate, data)

    def begin_attempt(self):
        if self.has_producer_id and not self.queue.has_producer_id:
            self.next_id += 1
            self.queue.assign_producer_id(producer_id=self.next_id, epoch=0)
        was_resend = self.queue.state is QueueState.RESEND
        most = self.queue.next_bytes()
        batch = self.queue.begin_attempt(Codec.NONE)
        data = batch.data
        numbers = struct.unpack_from(">qhi", data, 43)
        if any(pending.record.identity for pending in batch.records):
            assert self.queue.is_batch_identified
            [pending] = batch.records
            assert numbers == (own_producer_id(pending.record.identity), 0, 0)
        else:
            assert not self.queue.is_batch_identified
            assert numbers[0] < 2**62
        assert len(data) <= most
        if was_resend:
            assert data == self.last_data
        else:
            self.takes_turns(batch)
        assert len(data) <= max(BATCH_BYTES, 61 + 36 + 210)
        assert self.flying is None
        self.flying = self.last_data = data

    def takes_turns(self, batch):
        """No record without an identity waits for two with one."""
        was_identified = not self.requests.keys().isdisjoint(self.batch)
        self.batch = [pending.record.value for pending in batch.records]
        others_wait = not self.inside.keys() <= {*self.requests, *self.batch}
        assert not (was_identified and batch.is_identified and others_wait)

    def be_answered(self, fate, data):
        is_first = self.queue.state is QueueState.IN_FLIGHT
        flying, self.flying = self.flying, None
        if fate == "stored":
            self.arrive_and_be_answered(flying)
        elif fate in {"try again", "no connection"}:
            self.leave(self.queue.try_again_after(self.now_s, reason=WHY, leader=1), "unknown")
        elif fate == "too large" and is_first and self.queue.batch_records > 1:
            self.leave(self.queue.split(), "unknown")
        elif fate == "too large" and is_first:
            rejected, left = self.queue.reject()
            assert left == []
            self.leave(rejected, "unsent")
        elif fate == "some rejected" and is_first:
            indexes = data.draw(st.sets(st.integers(0, self.queue.batch_records - 1), min_size=1))
            expected = [self.batch[index] for index in sorted(indexes)]
            rejected, left = self.queue.reject(indexes)
            assert [each.record.value for each in rejected] == expected
            self.leave(rejected, "unsent")
            self.leave(left, "unknown")
        else:
            self.lose_the_answer(fate, flying)

    def arrive_and_be_answered(self, flying):
        error, offset = self.log.append_batch(flying)
        if error != ErrorCode.NONE:
            # No number of a queue's is wrong, unless the broker has forgotten those before.
            assert self.is_forgotten
            self.is_forgotten = False
            if self.queue.state is QueueState.RESENT:
                self.leave(self.queue.lost(), "unknown")
            else:
                self.leave(self.queue.try_again_after(self.now_s, reason=WHY), "unknown")
            self.queue.drop_producer_id()
            return
        batch = self.queue.stored()
        for enqueue, pending in enumerate(batch.records):
            assert self.log.values[offset + enqueue] == pending.record.value
        self.leave(batch.records, "stored")

    def lose_the_answer(self, fate, flying):
        if fate == "vanishes":
            pass
        elif fate == "late":
            self.late.append(flying)
        else:
            self.log.append_batch(flying)
        if fate == "cannot be found out":
            self.leave(self.queue.lost(), "unknown")
        elif self.queue.may_repeat_batch:
            self.queue.unresolved(self.now_s, reason=WHY, leader=1)
        else:
            with pytest.raises(IllegalTransition):
                self.queue.unresolved(self.now_s, reason=WHY, leader=1)
            self.leave(self.queue.lost(), "unknown")

    @precondition(lambda self: not self.late and self.queue.state in (QueueState.READY, QueueState.IDLE))
    @rule()
    def have_the_broker_forget(self):
        """As before Kafka 2.5, when the records of a producer id were deleted."""
        if self.log.knows_producers:
            self.log.forget_producers()
            self.is_forgotten = self.has_producer_id

    @precondition(lambda self: self.late)
    @rule()
    def have_a_batch_arrive_late(self):
        self.log.append_batch(self.late.pop(0))

    @rule(
        seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0, 11.0]),
        shortened_s=st.sampled_from([None, None, 0.0, 3.0]),
    )
    def expire(self, seconds, shortened_s):
        self.now_s += seconds
        shortened = (
            None
            if shortened_s is None
            else ShortenedDeadlines(self.now_s - shortened_s + TIMEOUT_S, TIMEOUT_S - 1.5)
        )
        on_the_way = self.batch if self.queue.batch_records else ()
        expired = self.queue.expire(self.now_s, shortened)
        if expired is not None:
            for pending in expired.unsent:
                assert shortened_deadline_s(pending, shortened) <= self.now_s
            for pending in expired.unanswered:
                assert pending.deadline_s <= self.now_s
                assert pending.record.value not in self.told
                self.told.add(pending.record.value)
            self.leave(expired.unsent, "unsent")
            self.leave(expired.dropped, "unknown")
            assert {each.record.value for each in expired.dropped} <= self.told
        for value, pending in self.inside.items():
            if pending.deadline_s <= self.now_s:
                assert value in self.told
                assert value in on_the_way
            elif value not in on_the_way:
                assert shortened_deadline_s(pending, shortened) > self.now_s

    @rule(which=st.sampled_from([*[None] * 8, "unsent", "sent", "all"]))
    def give_up(self, which):
        """Not often, so that there is something to give up."""
        if which == "unsent":
            self.leave(self.queue.give_up_unsent(), "unsent")
        elif which == "sent":
            self.leave(self.queue.abandon(), "unknown")
        elif which == "all" and self.count > 20 and self.queue.state is not QueueState.CLOSED:
            unsent, sent = self.queue.close()
            self.leave(unsent, "unsent")
            self.leave(sent, "unknown")
            assert not self.inside

    # What may not happen

    @rule(data=st.data())
    def do_what_the_table_forbids(self, data):
        state = self.queue.state
        forbidden = sorted(set(QueueEvent) - set(TRANSITIONS[state]), key=lambda event: event.name)
        event = data.draw(st.sampled_from(forbidden))
        held = self.queue.held
        with pytest.raises(IllegalTransition) as caught:
            CALLS[event](self.queue)
        assert (caught.value.state, caught.value.event) == (state, event)
        assert state.name in str(caught.value)
        assert event.name in str(caught.value)
        assert (self.queue.state, self.queue.held) == (state, held)

    def teardown(self):
        if hasattr(self, "queue") and self.queue.state is not QueueState.CLOSED:
            unsent, sent = self.queue.close()
            self.leave(unsent, "unsent")
            self.leave(sent, "unknown")
            assert not self.inside
            self.stores_each_record_once()

    # What is true at all times

    @invariant()
    def holds_what_it_holds(self):
        if hasattr(self, "queue"):
            assert self.queue.held == sum(pending.size for pending in self.inside.values())

    @invariant()
    def has_a_state_that_fits(self):
        if not hasattr(self, "queue"):
            return
        state = self.queue.state
        if state in (QueueState.IDLE, QueueState.CLOSED):
            assert not self.inside
        elif state in (QueueState.READY, QueueState.WAITING_RETRY):
            assert self.inside
        if state not in (*ON_THE_WAY, QueueState.CLOSED):
            # Never two batches in flight: the next attempt begins only after the answer to the last.
            assert self.flying is None

    @invariant()
    def stores_each_record_once(self):
        found = Counter(self.log.values)
        assert all(count == 1 for count in found.values())
        for value, became in self.left.items():
            if became == "stored":
                assert found[value] == 1
            elif became == "unsent":
                assert found[value] == 0

    @invariant()
    def stores_records_in_order(self):
        if getattr(self, "has_producer_id", False):
            by_request = defaultdict(list)
            for value in self.log.values:
                if not self.may_come_late(value):
                    by_request[self.requests.get(value)].append(int(value.partition(b":")[0]))
            assert all(numbers == sorted(numbers) for numbers in by_request.values())

    def may_come_late(self, value):
        """Only a record with an identity that was given up is not fenced."""
        return value.endswith(b":" + b"x" * IDENTIFIED) and self.left.get(value) == "unknown"

    def leave(self, records, became):
        for pending in records:
            value = pending.record.value
            # Each record leaves once, and was in the queue.
            del self.inside[value]
            self.left[value] = became


def shortened_deadline_s(pending, shortened):
    """The deadline of a record that was not sent, as the rule says it, without the order of the queue."""
    if shortened is None:
        return pending.deadline_s
    outage_s = shortened.from_deadline_s - TIMEOUT_S
    accepted_s = pending.deadline_s - TIMEOUT_S
    return min(pending.deadline_s, max(accepted_s, outage_s) + 1.5)


def identity(value):
    digest = sha256(value).digest()
    return RecordIdentity(id=digest, fingerprint=digest)


def own_producer_id(of):
    return 2**62 + int.from_bytes(of.id[:8], "big") % 2**62


def _number(queue):
    queue.assign_producer_id(producer_id=1, epoch=0)


CALLS = {
    QueueEvent.APPEND: lambda queue: queue.append(Pending(record("t", b""), 36, 0.0, Deferred())),
    QueueEvent.EXTEND: lambda queue: queue.extend([Pending(record("t", b""), 36, 0.0, Deferred())], 36),
    QueueEvent.ASSIGN_PRODUCER_ID: _number,
    QueueEvent.DROP_PRODUCER_ID: lambda queue: queue.drop_producer_id(),
    QueueEvent.BEGIN_ATTEMPT: lambda queue: queue.begin_attempt(Codec.NONE),
    QueueEvent.STORED: lambda queue: queue.stored(),
    QueueEvent.TRY_AGAIN_AFTER: lambda queue: queue.try_again_after(0.0, reason=WHY),
    QueueEvent.UNRESOLVED: lambda queue: queue.unresolved(0.0, reason=WHY),
    QueueEvent.RETRY: lambda queue: queue.retry(),
    QueueEvent.SPLIT: lambda queue: queue.split(),
    QueueEvent.REJECT: lambda queue: queue.reject(),
    QueueEvent.LOST: lambda queue: queue.lost(),
    QueueEvent.EXPIRE: lambda queue: queue.expire(0.0),
    QueueEvent.GIVE_UP_UNSENT: lambda queue: queue.give_up_unsent(),
    QueueEvent.ABANDON: lambda queue: queue.abandon(),
    QueueEvent.ANSWERED_LATE: lambda queue: queue.answered_late(),
    QueueEvent.CLOSE: lambda queue: queue.close(),
}

TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = examples(100, stateful_step_count=30)


def test_every_event_has_a_method_of_its_name_and_every_state_a_row():
    assert set(TRANSITIONS) == set(QueueState)
    for event in QueueEvent:
        assert callable(getattr(PartitionQueue, event.value))
    assert set(CALLS) == set(QueueEvent)


def test_every_state_can_be_reached_and_left_but_for_the_last():
    reached = {state for row in TRANSITIONS.values() for to in row.values() for state in to}
    assert reached == set(QueueState)
    for state, row in TRANSITIONS.items():
        leaves = {each for to in row.values() for each in to} - {state}
        assert bool(leaves) is (state is not QueueState.CLOSED)


def table_for_the_manual():
    """Make the table: of each state, the next states, each with the events that lead there."""
    lines = []
    for state, row in TRANSITIONS.items():
        events = defaultdict(list)
        for event, (if_records_wait, if_none) in row.items():
            if if_records_wait is if_none:
                events[if_none.name].append(event.value)
            else:
                events[f"{if_records_wait.name}, or {if_none.name} if no record waits"].append(event.value)
        stays = ", ".join(events.pop(state.name, []))
        leaves = "; ".join(f"{', '.join(names)} → {to}" for to, names in events.items())
        lines.append(f'``{state.name}``,"{state.value}","{leaves}","{stays}"\n')
    return "".join(lines)


def test_the_manual_has_the_table_of_transitions():
    """To write it again: ``python -m tests.brokers.kafka.producer.test_partition_queue``."""
    assert IN_THE_MANUAL.read_text("utf-8") == table_for_the_manual()


def test_records_from_before_an_outage_are_late_with_the_first_that_came_in_it():
    queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)
    for number, deadline_s in enumerate([7.0, 30.0, 36.0, 36.2, 37.0]):
        queue.append(Pending(record("t", b"%d" % number), 40, deadline_s, Deferred()))
    # Since 6.0 no broker can be reached, and records wait for 1.5 s of their 30 s.
    shortened = ShortenedDeadlines(36.0, 28.5)
    for now_s, late in [
        (6.9, []),
        (7.4, [b"0"]),
        (7.6, [b"1", b"2"]),
        (7.8, [b"3"]),
        (8.4, []),
        (8.5, [b"4"]),
    ]:
        expired = queue.expire(now_s, shortened)
        assert [each.record.value for each in expired.unsent if expired] == late if late else expired is None
    assert queue.held == 0


def test_after_the_last_epoch_another_producer_id_is_needed():
    queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)
    queue.append(Pending(record("t", b"0"), 40, 1.0, Deferred()))
    queue.assign_producer_id(producer_id=7, epoch=2**15 - 2)
    queue.begin_attempt(Codec.NONE)
    queue.lost()
    assert queue.needs_producer_id


def test_sequence_numbers_begin_at_0_again_after_the_greatest():
    queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)
    queue.append(Pending(record("t", b"0"), 40, 1.0, Deferred()))
    queue.assign_producer_id(producer_id=7, epoch=0)
    queue._sequence.next = 2**31 - 1  # noqa: SLF001 -- so many records would take days
    for expected in (2**31 - 1, 0, 1):
        _, _, first, _ = struct.unpack_from(">qhii", queue.begin_attempt(Codec.NONE).data, 43)
        assert first == expected
        queue.stored()
        queue.append(Pending(record("t", b"0"), 40, 1.0, Deferred()))


def test_records_whose_callers_were_told_leave_when_their_batch_is_taken_back():
    queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)
    for number in range(3):
        queue.append(Pending(record("t", b"%d" % number), 40, 1.0 + number, Deferred()))
    queue.begin_attempt(Codec.NONE)
    expired = queue.expire(2.5)
    assert [each.record.value for each in expired.unanswered] == [b"0", b"1"]
    assert expired.unsent == expired.dropped == []
    left = queue.try_again_after(2.5, reason=WHY)
    assert [each.record.value for each in left] == [b"0", b"1"]
    assert queue.held == 40
    assert [each.record.value for each in queue.give_up_unsent()] == [b"2"]


def test_records_with_identities_take_turns_with_the_others_and_take_no_sequence_number():
    queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)
    made = [record("t", b"%d" % number) for number in range(5)]
    made[1:3] = [replace(each, identity=identity(each.value)) for each in made[1:3]]
    for each in made:
        queue.append(Pending(each, 40, 1.0, Deferred()))
    queue.assign_producer_id(producer_id=7, epoch=3)
    found = []
    for _ in range(3):
        size = queue.next_bytes()
        batch = queue.begin_attempt(Codec.NONE)
        assert len(batch.data) <= size
        found.append((*struct.unpack_from(">qhi", batch.data, 43), len(batch.records)))
        queue.stored()
    own = [(own_producer_id(each.identity), 0, 0, 1) for each in made[1:3]]
    assert found == [(7, 3, 0, 3), *own]


def test_requests_with_identities_take_turns_and_keep_their_order():
    queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)
    large, small = BatchResult(4), BatchResult(2)
    for value, request in [(b"l0", large), (b"l1", large), (b"l2", large), (b"s0", small), (b"s1", small)]:
        made = replace(record("t", value), identity=identity(value))
        queue.append(Pending(made, 40, 1.0, Deferred(), request=request))
    found = []
    for fate in ["stored", "taken back", "stored", "stored", "stored", "stored"]:
        [pending] = queue.begin_attempt(Codec.NONE).records
        found.append(pending.record.value)
        if fate == "stored":
            queue.stored()
        else:
            queue.try_again_after(0.0, reason=WHY)
            queue.retry()
    assert found == [b"l0", b"s0", b"l1", b"s0", b"l2", b"s1"]


def test_a_record_with_an_identity_that_is_taken_back_still_takes_no_sequence_number():
    queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)
    queue.append(Pending(replace(record("t"), identity=identity(b"")), 40, 1.0, Deferred()))
    queue.assign_producer_id(producer_id=7, epoch=3)
    queue.begin_attempt(Codec.NONE)
    queue.try_again_after(0.0, reason=WHY)
    queue.retry()
    queue.begin_attempt(Codec.NONE)
    queue.stored()
    queue.append(Pending(record("t"), 40, 1.0, Deferred()))
    assert struct.unpack_from(">qhi", queue.begin_attempt(Codec.NONE).data, 43) == (7, 3, 0)


@pytest.mark.parametrize("give_up", ["lost", "abandon"])
def test_a_record_with_an_identity_that_is_given_up_fences_nothing(give_up):
    queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)
    queue.append(Pending(replace(record("t"), identity=identity(b"")), 40, 1.0, Deferred()))
    queue.assign_producer_id(producer_id=7, epoch=3)
    queue.begin_attempt(Codec.NONE)
    getattr(queue, give_up)()
    if queue.state is QueueState.ABANDONED:
        queue.answered_late()
    queue.append(Pending(record("t"), 40, 1.0, Deferred()))
    assert struct.unpack_from(">qhi", queue.begin_attempt(Codec.NONE).data, 43) == (7, 3, 0)


def test_records_that_are_neither_rejected_nor_late_stay_when_others_of_their_batch_are():
    queue = PartitionQueue(topic="t", partition=0, batch_bytes=BATCH_BYTES)
    for number in range(4):
        queue.append(Pending(record("t", b"%d" % number), 40, 1.0 + number, Deferred()))
    queue.begin_attempt(Codec.NONE)
    assert [each.record.value for each in queue.expire(2.5).unanswered] == [b"0", b"1"]
    rejected, left = queue.reject({1, 2})
    assert [each.record.value for each in rejected] == [b"1", b"2"]
    assert [each.record.value for each in left] == [b"0"]
    assert [each.record.value for each in queue.give_up_unsent()] == [b"3"]
    assert queue.held == 0


if __name__ == "__main__":
    IN_THE_MANUAL.write_text(table_for_the_manual(), "utf-8")
