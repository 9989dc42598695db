"""The producer against a cluster in memory, in which everything may go wrong at any time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer import Producer, ProducerSettings
from sampleapp.brokers.kafka.producer.partitioner import partition_for_key
from sampleapp.errors import (
    BrokerIncompatible,
    BrokerStopped,
    BrokerUnavailable,
    BufferFull,
    IllegalTopic,
    OutcomeUnknown,
    PublishTimedOut,
    RecordTooLarge,
    UnknownTopic,
)
from sampleapp.model import RecordMetadata
from tests.support.brokers import record
from tests.support.fake_kafka import FakeCluster, Fate, reason

TIMEOUT_S = 2.0
SETTINGS = {
    "buffer_bytes": 64 * 1024 * 1024,
    "delivery_timeout_s": TIMEOUT_S,
    "codec": Codec.NONE,
    "idempotence": True,
    "auto_create": False,
}


class World:
    """A producer, its cluster, and the time that both live in."""

    def __init__(self, *, partitions=2, **settings):
        self.clock = Clock()
        self.cluster = FakeCluster(clock=self.clock, partitions=partitions)
        self.producer = Producer(
            client=self.cluster,
            settings=ProducerSettings(**{**SETTINGS, **settings}),
            clock=self.clock,
        )
        self.published = []

    def publish(self, value, *, key=b"k", topic="t"):
        answer = self.producer.publish(record(topic, value, key=key))
        outcome = []
        answer.addBoth(outcome.append)
        self.published.append((value, key, outcome))
        return outcome

    def advance(self, seconds, step_s=0.01):
        self.clock.pump([step_s] * max(1, round(seconds / step_s)))

    def values(self):
        return self.cluster.values()

    def settled(self):
        """Every answer, in order: metadata or exception."""
        return [
            outcome[0].value if isinstance(outcome[0], Failure) else outcome[0]
            for _, _, outcome in self.published
        ]


def warm(**settings):
    """A world in which the topic and the producer id are known already."""
    world = World(**settings)
    outcome = world.publish(b"first")
    world.advance(0.5)
    assert isinstance(outcome[0], RecordMetadata)
    return world


# Some in a row, so that there are records whose time is over in each state.
FATES = st.lists(
    st.tuples(st.sampled_from([*Fate, Fate.ANSWERED, Fate.ANSWERED]), st.integers(1, 12)),
    min_size=3,
    max_size=12,
).map(lambda runs: [fate for fate, length in runs for _ in range(length)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([b"a", b"b", b"c", None]), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]), st.none()),
    ),
    min_size=8,
    max_size=40,
)


@settings(deadline=None, max_examples=400)
@given(steps=STEPS, fates=FATES, idempotence=st.booleans())
def test_every_answer_is_true_whatever_happens_to_the_requests(steps, fates, idempotence):
    world = World(idempotence=idempotence)
    plan = iter(fates)
    world.cluster.next_fate = lambda: next(plan, Fate.ANSWERED)
    number = 0
    for step, what, count in steps:
        if step == "wait":
            world.advance(what)
        else:
            for _ in range(count):
                world.publish(b"%d" % number, key=what)
                number += 1
    # All deadlines, and the requests that arrive late.
    world.advance(5 * TIMEOUT_S, step_s=0.05)

    assert_true(world)
    for values in world.values():
        numbers = {}
        for value in values:
            key = world.published[int(value)][1]
            if key is not None:
                numbers.setdefault(key, []).append(int(value))
        if idempotence:
            # Also of those whose callers could not be told.
            assert all(each == sorted(each) for each in numbers.values())
    assert world.producer.buffered_bytes == 0


def assert_true(world):
    """What callers were told is what is in the log."""
    found = Counter(value for values in world.values() for value in values)
    for (value, _, outcome), answer in zip(world.published, world.settled(), strict=True):
        assert len(outcome) == 1
        assert found[value] <= 1, f"{value} was published twice"
        if isinstance(answer, RecordMetadata):
            assert world.values()[answer.partition][answer.offset] == value
        elif not answer.possibly_published:
            assert found[value] == 0, f"{value} is there, in spite of {answer!r}"
    for key in (b"a", b"b", b"c"):
        places = [
            (answer.partition, answer.offset)
            for (_, its_key, _), answer in zip(world.published, world.settled(), strict=True)
            if its_key == key and isinstance(answer, RecordMetadata)
        ]
        assert places == sorted(places)


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=30), limit=st.integers(400, 3000))
def test_batches_that_are_too_large_are_split_until_only_the_culprits_are_refused(sizes, limit):
    world = warm(partitions=1)
    world.cluster.batch_limit = limit
    for number, size in enumerate(sizes):
        world.publish(b"%d:" % number + b"x" * size)
    world.advance(TIMEOUT_S)
    answers = world.settled()[1:]
    for (value, _, _), answer in zip(world.published[1:], answers, strict=True):
        if isinstance(answer, RecordMetadata):
            assert world.values()[0][answer.offset] == value
        else:
            assert type(answer) is RecordTooLarge
            assert len(value) > limit - 200
    assert world.values()[0][1:] == [
        value
        for (value, _, _), answer in zip(world.published[1:], answers, strict=True)
        if isinstance(answer, RecordMetadata)
    ]


@pytest.mark.parametrize(
    "fate", [Fate.ANSWER_LOST, Fate.LOST_ON_THE_WAY, Fate.TIMED_OUT, Fate.LEADER_RESIGNED]
)
def test_a_batch_whose_outcome_is_unknown_is_sent_again_as_it_was(fate):
    world = warm()
    fates = iter([fate])
    world.cluster.next_fate = lambda: next(fates, Fate.ANSWERED)
    sent = len(world.cluster.requests)
    outcome = world.publish(b"1")
    world.advance(0.005)
    # What comes meanwhile is not put into the batch that the broker may have.
    later = world.publish(b"2")
    world.advance(1)
    assert isinstance(outcome[0], RecordMetadata)
    assert isinstance(later[0], RecordMetadata)
    first, second = world.cluster.requests[sent : sent + 2]
    assert first.topics == second.topics
    assert_true(world)


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.LOST_ON_THE_WAY, Fate.TIMED_OUT])
def test_without_idempotence_a_batch_whose_outcome_is_unknown_is_not_sent_again(fate):
    world = warm(idempotence=False)
    fates = iter([fate])
    world.cluster.next_fate = lambda: next(fates, Fate.ANSWERED)
    sent = len(world.cluster.requests)
    outcome = world.publish(b"1")
    world.advance(TIMEOUT_S)
    assert type(outcome[0].value) is OutcomeUnknown
    assert len(world.cluster.requests) == sent + 1


@pytest.mark.parametrize(
    ("fate", "error"),
    [
        (Fate.NOT_SENT, BrokerUnavailable),
        (Fate.TOO_FEW_REPLICAS, BrokerUnavailable),
        (Fate.NOT_LEADER, BrokerUnavailable),
        (Fate.TIMED_OUT, PublishTimedOut),
        (Fate.LOST_ON_THE_WAY, PublishTimedOut),
        (Fate.TOO_FEW_REPLICAS_AFTER_APPEND, PublishTimedOut),
        (Fate.LATE, PublishTimedOut),
    ],
)
def test_at_the_deadline_a_caller_is_told_whether_the_record_may_have_been_published(fate, error):
    world = warm()
    world.cluster.next_fate = lambda: fate
    outcome = world.publish(b"1")
    world.advance(TIMEOUT_S - 0.2)
    assert outcome == []
    world.advance(0.4)
    assert type(outcome[0].value) is error


def test_a_batch_that_was_given_up_is_refused_when_it_arrives_after_all():
    world = warm(partitions=1)
    fates = iter([Fate.LATE, Fate.LATE])
    world.cluster.next_fate = lambda: next(fates, Fate.ANSWERED)
    given_up = world.publish(b"given up")
    world.advance(TIMEOUT_S + 0.5)
    assert type(given_up[0].value) is PublishTimedOut
    later = world.publish(b"later")
    world.advance(1)
    assert isinstance(later[0], RecordMetadata)
    world.advance(5 * TIMEOUT_S, step_s=0.1)
    assert world.values()[0] == [b"first", b"later"]


@pytest.mark.parametrize(
    ("fate", "error"), [(Fate.ANSWER_LOST, PublishTimedOut), (Fate.FAULT, OutcomeUnknown)]
)
def test_a_record_after_one_whose_outcome_stayed_unknown_is_not_taken_for_it(fate, error):
    world = warm(partitions=1)
    world.cluster.next_fate = lambda: fate
    unknown = world.publish(b"unknown")
    world.advance(TIMEOUT_S + 0.5)
    assert type(unknown[0].value) is error
    world.cluster.next_fate = lambda: Fate.ANSWERED
    publish_now(world, b"next")
    assert world.values()[0] == [b"first", b"unknown", b"next"]
    assert_true(world)


def test_a_record_that_may_be_stored_is_not_said_not_to_be_when_its_leader_cannot_be_used_any_more():
    world = warm(partitions=1)
    fates = iter([Fate.ANSWER_LOST])
    world.cluster.next_fate = lambda: next(fates, Fate.ANSWERED)
    unknown = world.publish(b"unknown")
    world.advance(0.02)
    world.cluster.connected = False
    world.cluster.connect_failure = reason(lasting=True)
    behind = world.publish(b"behind")
    world.advance(0.5)
    assert type(behind[0].value) is BrokerUnavailable
    world.advance(TIMEOUT_S)
    assert type(unknown[0].value) is PublishTimedOut
    assert world.values()[0] == [b"first", b"unknown"]


def test_a_batch_that_is_refused_after_some_of_its_callers_were_answered_goes_on_with_the_others():
    world = warm(partitions=1)
    world.cluster.next_fate = lambda: Fate.NOT_LEADER
    early = world.publish(b"early")
    world.advance(TIMEOUT_S - 0.5)
    late = world.publish(b"late")
    world.cluster.next_fate = lambda: Fate.REFUSED_LATE
    world.advance(0.7)
    world.cluster.next_fate = lambda: Fate.ANSWERED
    world.advance(TIMEOUT_S)
    assert type(early[0].value) in (PublishTimedOut, BrokerUnavailable)
    assert isinstance(late[0], RecordMetadata)
    assert world.values()[0] == [b"first", b"late"]
    assert world.producer.buffered_bytes == 0


def test_one_producer_id_serves_for_as_long_as_nothing_goes_wrong():
    world = warm()
    for turn in range(20):
        for number in range(turn):
            world.publish(b"%d-%d" % (turn, number), key=b"%d" % number)
        world.advance(0.05)
    assert world.cluster.ids_given == 1
    assert_true(world)


def test_a_partition_whose_producer_id_is_not_taken_gets_a_new_one_and_the_others_keep_theirs():
    world = World(partitions=3)
    keys = {}
    for number in range(30):
        [metadata] = publish_now(world, b"%d" % number, key=b"%d" % number)
        keys[metadata.partition] = b"%d" % number
    assert set(keys) == {0, 1, 2}
    given = world.cluster.ids_given
    # As if all that it was told had been lost: the next number is not the one that it expects.
    world.cluster.partitions[0].batches[world.cluster.next_id][-1] = (1000, 1, 0)
    for partition in range(3):
        [metadata] = publish_now(world, b"after %d" % partition, key=keys[partition])
        assert metadata.partition == partition
    assert world.cluster.ids_given == given + 1
    assert_true(world)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
    ],
)
def test_an_epoch_or_sequence_error_after_an_unknown_outcome_is_not_taken_for_either(code):
    world = warm(partitions=1)
    fates = iter([Fate.ANSWER_LOST])
    world.cluster.next_fate = lambda: next(fates, Fate.ANSWERED)
    unknown = world.publish(b"unknown")
    world.advance(0.02)
    world.cluster.partitions[0].append = lambda data: (code, -1)
    world.advance(0.2)
    assert type(unknown[0].value) is OutcomeUnknown
    del world.cluster.partitions[0].append
    [metadata] = publish_now(world, b"next")
    assert world.values()[0] == [b"first", b"unknown", b"next"]
    assert metadata.offset == 2


def publish_now(world, value, **kwargs):
    outcome = world.publish(value, **kwargs)
    world.advance(0.5)
    assert isinstance(outcome[0], RecordMetadata), outcome
    return outcome


def test_a_broker_that_does_not_give_producer_ids_is_published_to_without():
    world = World()
    world.cluster.identity_error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    [metadata] = publish_now(world, b"1")
    assert world.values()[metadata.partition] == [b"1"]
    fates = iter([Fate.ANSWER_LOST])
    world.cluster.next_fate = lambda: next(fates, Fate.ANSWERED)
    outcome = world.publish(b"2")
    world.advance(1)
    assert type(outcome[0].value) is OutcomeUnknown


def test_a_topic_that_is_idle_for_long_begins_with_another_producer_id_when_it_is_used_again():
    world = warm(partitions=1)
    world.clock.advance(1000)
    world.producer.refresh()
    for number in range(3):
        # The same number of records as the very first batch: the broker must not take it for that one.
        [metadata] = publish_now(world, b"%d" % number)
        assert metadata.offset == number + 1
    assert world.values()[0] == [b"first", b"0", b"1", b"2"]


def test_a_topic_that_does_not_exist_is_told_soon_and_is_not_made():
    world = World()
    outcome = world.publish(b"1", topic="absent")
    world.advance(1.5)
    assert type(outcome[0].value) is UnknownTopic
    assert "absent" not in world.cluster.topics
    assert world.producer.buffered_bytes == 0


def test_a_topic_that_does_not_exist_holds_nothing_else_up():
    world = warm()
    world.publish(b"1", topic="absent")
    outcome = world.publish(b"2")
    world.advance(0.1)
    assert isinstance(outcome[0], RecordMetadata)
    world.advance(2)


def test_with_auto_create_a_topic_is_made_by_publishing_to_it():
    world = World(auto_create=True)
    outcome = world.publish(b"1", topic="new")
    world.advance(1)
    assert isinstance(outcome[0], RecordMetadata)


def test_a_topic_that_was_deleted_is_told_apart_from_one_without_a_leader():
    world = warm()
    world.cluster.leader = None
    waiting = world.publish(b"1")
    world.advance(1.5)
    assert waiting == []
    world.cluster.leader = 1
    world.advance(0.5)
    assert isinstance(waiting[0], RecordMetadata)
    world.cluster.next_fate = lambda: Fate.NOT_LEADER
    world.cluster.topics.clear()
    deleted = world.publish(b"2")
    world.advance(1.9)
    assert type(deleted[0].value) is UnknownTopic


def two_partitions():
    """A world with two partitions that were published to, and a key for each."""
    world = World(partitions=2)
    keys = {}
    for number in range(50):
        key = b"%d" % number
        keys.setdefault(partition_for_key(key, 2), key)
    for partition, key in keys.items():
        [metadata] = publish_now(world, b"before %d" % partition, key=key)
        assert metadata.partition == partition
    return world, keys


def shrink(world):
    world.cluster.create_anew(partitions=1)
    world.producer.refresh()
    # Twice: one answer that says so might come from a broker that is behind.
    world.advance(1.2)
    world.producer.refresh()
    world.advance(0.2)


def test_what_is_published_from_a_callback_while_a_topic_shrinks_is_not_taken_for_something_else():
    world, keys = two_partitions()
    world.cluster.next_fate = lambda: Fate.LATE
    again = []
    answer = world.producer.publish(record("t", b"in flight", key=keys[1]))
    answer.addErrback(lambda _: again.append(world.publish(b"again", key=keys[0])))
    world.advance(0.02)
    world.cluster.next_fate = lambda: Fate.ANSWERED
    shrink(world)
    second = world.publish(b"second", key=keys[0])
    world.advance(2 * TIMEOUT_S)
    assert len(again) == 1
    for value, outcome in ((b"again", again[0]), (b"second", second)):
        assert world.values()[0][outcome[0].offset] == value


def test_a_topic_that_shrinks_while_something_is_in_flight_leaves_nothing_behind():
    world, keys = two_partitions()
    world.cluster.next_fate = lambda: Fate.LATE
    world.publish(b"in flight", key=keys[1])
    world.advance(0.02)
    world.cluster.next_fate = lambda: Fate.ANSWERED
    shrink(world)
    world.advance(5 * TIMEOUT_S, step_s=0.05)
    publish_now(world, b"after", key=keys[1])
    assert not world.producer._accumulator.active
    assert world.producer.buffered_bytes == 0


def test_records_that_change_their_partition_keep_their_deadlines():
    world, keys = two_partitions()
    world.cluster.leader = None
    early = world.publish(b"early", key=keys[1])
    world.advance(TIMEOUT_S - 0.5)
    world.publish(b"late", key=keys[0])
    world.cluster.create_anew(partitions=1)
    world.producer.refresh()
    world.advance(0.7)
    assert type(early[0].value) is BrokerUnavailable


def test_one_answer_of_a_broker_that_is_behind_does_not_make_a_topic_another_one():
    world, keys = two_partitions()
    ids = world.cluster.ids_given
    behind = world.cluster.partitions_of
    world.cluster.partitions_of = lambda _: range(1)
    world.producer.refresh()
    outcome = world.publish(b"1", key=keys[1])
    world.advance(0.02)
    world.cluster.partitions_of = behind
    world.advance(0.5)
    assert outcome[0].partition == 1
    assert world.cluster.ids_given == ids


def test_a_record_is_not_refused_for_another_one_whose_time_was_over():
    world = warm(partitions=1)
    world.cluster.batch_limit = 400
    world.cluster.next_fate = lambda: Fate.NOT_SENT
    world.publish(b"x" * 300)
    world.advance(TIMEOUT_S - 0.8)
    small = world.publish(b"x" * 60)
    world.cluster.round_trip_s = 0.95
    world.cluster.next_fate = lambda: Fate.ANSWERED
    world.advance(0.95)
    world.cluster.round_trip_s = 0.01
    world.advance(TIMEOUT_S)
    assert isinstance(small[0], RecordMetadata)


def test_a_new_leader_is_used_while_the_old_one_wants_nothing():
    world = warm(partitions=1)
    world.cluster.throttle_ms = 60_000
    publish_now(world, b"1")
    world.cluster.throttle_ms = 0
    waiting = world.publish(b"2")
    world.advance(0.1)
    world.cluster.leader = 2
    world.advance(0.5)
    assert isinstance(waiting[0], RecordMetadata)


def test_names_that_were_made_up_are_not_remembered():
    world = warm(buffer_bytes=1000)
    for number in range(50):
        world.publish(b"x" * 200, topic=f"made-up-{number}")
    world.publish(b"x" * 2000, topic="too-large")
    world.advance(TIMEOUT_S)
    assert set(world.producer._accumulator.topics) == {"t"}


@pytest.mark.parametrize("name", ["x" * 250, "", "a b", "\ud800", ".."])
def test_a_name_that_kafka_does_not_allow_is_refused_at_once(name):
    outcome = World().publish(b"1", topic=name)
    assert type(outcome[0].value) is IllegalTopic


def test_the_buffer_is_bounded_and_one_partition_cannot_take_all_of_it():
    world = warm(partitions=2, buffer_bytes=100_000)
    world.cluster.next_fate = lambda: Fate.NOT_SENT
    keys = {}
    for number in range(20):
        key = b"%d" % number
        outcome = world.publish(b"x", key=key)
        world.advance(0)
        queue = next(
            q for q in world.producer._accumulator.active if any(p.record.key == key for p in q._waiting)
        )
        keys.setdefault(queue.partition, key)
        assert outcome == []
    for _ in range(100):
        world.publish(b"x" * 2000, key=keys[0])
    refused = [o for _, _, o in world.published if o and isinstance(o[0], Failure)]
    assert refused
    assert all(type(o[0].value) is BufferFull for o in refused)
    assert 40_000 < world.producer.buffered_bytes <= 60_000
    # There is room left for the other one.
    assert world.publish(b"x" * 2000, key=keys[1]) == []
    world.advance(2 * TIMEOUT_S)
    assert world.producer.buffered_bytes == 0


def test_what_can_never_fit_is_too_large_and_not_asked_to_come_again():
    world = warm(buffer_bytes=1000)
    outcome = world.publish(b"x" * 1000)
    assert type(outcome[0].value) is RecordTooLarge


def test_a_cluster_that_cannot_be_used_fails_those_who_wait_at_once():
    world = World()
    world.cluster.metadata_failure = reason(lasting=True, incompatible=True)
    outcome = world.publish(b"1")
    world.advance(0.2)
    assert type(outcome[0].value) is BrokerIncompatible


def test_a_leader_that_cannot_be_used_fails_its_records_at_once():
    world = warm()
    world.cluster.connected = False
    world.cluster.connect_failure = reason(lasting=True)
    outcome = world.publish(b"1")
    world.advance(0.2)
    assert type(outcome[0].value) is BrokerUnavailable


def test_records_wait_for_a_leader_that_cannot_be_reached_and_are_sent_when_it_can():
    world = warm()
    world.cluster.connected = False
    world.cluster.connect_failure = reason()
    outcome = world.publish(b"1")
    world.advance(1)
    assert outcome == []
    world.cluster.connect_failure = None
    world.advance(0.9)
    assert isinstance(outcome[0], RecordMetadata)


def test_a_broker_that_wants_nothing_for_a_while_is_left_alone_for_so_long():
    world = warm()
    world.cluster.throttle_ms = 700
    publish_now(world, b"1")
    world.cluster.throttle_ms = 0
    requests = len(world.cluster.requests)
    waiting = world.publish(b"2")
    world.advance(0.1)
    assert waiting == []
    assert len(world.cluster.requests) == requests
    world.advance(0.4)
    assert isinstance(waiting[0], RecordMetadata)


def test_what_a_busy_broker_does_not_get_in_time_was_not_published():
    world = warm()
    world.cluster.throttle_ms = 60_000
    publish_now(world, b"1")
    waiting = world.publish(b"2")
    world.advance(TIMEOUT_S + 0.2)
    assert type(waiting[0].value) is BrokerUnavailable
    assert_true(world)


def test_a_partition_that_takes_no_records_is_logged_once_and_again_when_it_does():
    events = []
    globalLogPublisher.addObserver(events.append)
    try:
        world = warm(partitions=1)
        world.cluster.next_fate = lambda: Fate.TOO_FEW_REPLICAS
        for number in range(5):
            world.publish(b"%d" % number)
            world.advance(0.5)
        world.advance(TIMEOUT_S)
        world.cluster.next_fate = lambda: Fate.ANSWERED
        publish_now(world, b"works")
        publish_now(world, b"still works")
    finally:
        globalLogPublisher.removeObserver(events.append)
    lines = [formatEvent(event) for event in events]
    assert len(lines) == 2
    assert "partition 0 of t" in lines[0]
    assert "NOT_ENOUGH_REPLICAS" in lines[0]
    assert "again" in lines[1]


def test_draining_finishes_what_was_accepted_and_refuses_the_rest():
    world = warm()
    accepted = world.publish(b"1")
    drained = world.producer.drain()
    refused = world.publish(b"2")
    assert type(refused[0].value) is BrokerStopped
    assert not drained.called
    world.advance(0.1)
    assert isinstance(accepted[0], RecordMetadata)
    assert drained.called
    world.producer.stop()
    assert world.clock.getDelayedCalls() == []


@pytest.mark.parametrize("fate", [Fate.LATE, Fate.NOT_LEADER])
def test_giving_up_tells_what_was_sent_from_what_was_not(fate):
    world = warm(partitions=1)
    world.cluster.next_fate = lambda: fate
    sent = world.publish(b"1")
    world.advance(0.02)
    waiting = world.publish(b"2")
    drained: Deferred[None] = world.producer.drain()
    world.producer.give_up()
    assert drained.called
    assert type(sent[0].value) is (OutcomeUnknown if fate is Fate.LATE else BrokerStopped)
    assert type(waiting[0].value) is BrokerStopped
    world.producer.stop()
    world.advance(3 * TIMEOUT_S)
    assert_true(world)


def test_an_answer_that_was_cancelled_by_its_caller_changes_nothing_for_the_record():
    world = warm(partitions=1)
    answer = world.producer.publish(record("t", b"1", key=b"k"))
    failures = []
    answer.addErrback(failures.append)
    answer.cancel()
    assert len(failures) == 1
    publish_now(world, b"2")
    assert world.values()[0] == [b"first", b"1", b"2"]
