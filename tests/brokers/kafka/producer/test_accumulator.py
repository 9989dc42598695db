"""The buffer: its limit, deadlines, draining, and log lines about partitions that fail."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import record_size
from sampleapp.errors import (
    BrokerIncompatible,
    BrokerStopped,
    BrokerUnavailable,
    BufferFull,
    OutcomeUnknown,
    RecordTooLarge,
)
from sampleapp.model import RecordMetadata
from tests.support.brokers import record
from tests.support.kafka_simulator import Fate, reason
from tests.support.kafka_simulator.publishing import (
    TIMEOUT_S,
    ProducerSetup,
    assert_true,
    keys_of,
    publish_now,
    warm,
)
from tests.support.logs import logged_lines


def test_a_new_leader_is_used_while_the_old_one_wants_nothing():
    world = warm(partitions=1, brokers=(1, 2))
    world.cluster.throttle_ms = 60_000
    publish_now(world, b"1")
    world.cluster.throttle_ms = 0
    waiting = world.publish(b"2")
    world.advance(0.1)
    assert waiting == []
    world.cluster.elect(2)
    # As when another partition, or a probe, has asked.
    world.client.load_metadata(["t"])
    world.advance(0.5)
    assert isinstance(waiting[0], RecordMetadata)


def test_the_buffer_is_bounded_and_one_partition_cannot_take_all_of_it():
    world = warm(partitions=2, buffer_bytes=100_000)
    world.decide(lambda: Fate.NOT_SENT)
    keys = keys_of(2)
    for number in range(20):
        assert world.publish(b"x", key=b"%d" % number) == []
        world.advance(0)
    for _ in range(100):
        world.publish(b"x" * 2000, key=keys[0])
    rejected = [o for _, _, o in world.published if o and isinstance(o[0], Failure)]
    assert rejected
    assert all(type(o[0].value) is BufferFull for o in rejected)
    assert 40_000 < world.producer.buffered_bytes <= 60_000
    # There is room left for the other one.
    assert world.publish(b"x" * 2000, key=keys[1]) == []
    world.advance(2 * TIMEOUT_S)
    assert world.producer.buffered_bytes == 0


def test_what_can_never_fit_is_too_large_and_not_asked_to_come_again():
    world = warm(buffer_bytes=1000)
    outcome = world.publish(b"x" * 1000)
    assert type(outcome[0].value) is RecordTooLarge


def test_what_fits_into_an_empty_buffer_only_is_asked_to_come_again():
    value = b"x" * 1000
    world = warm(partitions=1, buffer_bytes=record_size(record("t", value, key=b"k")))
    publish_now(world, value)
    world.publish(b"waits")
    assert type(world.publish(value)[0].value) is BufferFull


def test_a_cluster_that_cannot_be_used_fails_those_who_wait_at_once():
    world = ProducerSetup()
    world.cluster.cut_off(reason(lasting=True, incompatible=True))
    outcome = world.publish(b"1")
    world.advance(0.2)
    assert type(outcome[0].value) is BrokerIncompatible


def test_a_leader_that_cannot_be_used_fails_its_records_at_once():
    world = warm(partitions=1, brokers=(1, 2))
    world.cluster.cut_off(reason(lasting=True), brokers={1})
    outcome = world.publish(b"1")
    world.advance(0.2)
    assert type(outcome[0].value) is BrokerUnavailable


def test_records_wait_for_a_leader_that_cannot_be_reached_and_are_sent_when_it_can():
    world = warm(partitions=1, brokers=(1, 2))
    world.cluster.cut_off(reason(), brokers={1})
    outcome = world.publish(b"1")
    world.advance(1)
    assert outcome == []
    world.cluster.mend()
    world.advance(0.9)
    assert isinstance(outcome[0], RecordMetadata)


def test_a_broker_that_wants_nothing_for_a_while_is_left_alone_for_so_long():
    world = warm()
    world.cluster.throttle_ms = 700
    publish_now(world, b"1")
    world.cluster.throttle_ms = 0
    requests = len(world.cluster.produces)
    waiting = world.publish(b"2")
    world.advance(0.1)
    assert waiting == []
    assert len(world.cluster.produces) == requests
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
        world.decide(lambda: Fate.TOO_FEW_REPLICAS)
        for number in range(5):
            world.publish(b"%d" % number)
            world.advance(0.5)
        world.advance(TIMEOUT_S)
        world.decide(lambda: Fate.ANSWERED)
        publish_now(world, b"works")
        publish_now(world, b"still works")
    finally:
        globalLogPublisher.removeObserver(events.append)
    lines = [formatEvent(event) for event in events]
    assert len(lines) == 2
    assert "partition 0 of t" in lines[0]
    assert "NOT_ENOUGH_REPLICAS" in lines[0]
    assert "again" in lines[1]


def test_draining_finishes_what_was_accepted_and_rejects_the_rest():
    world = warm()
    accepted = world.publish(b"1")
    drained = world.producer.drain()
    rejected = world.publish(b"2")
    assert type(rejected[0].value) is BrokerStopped
    assert not drained.called
    world.advance(0.1)
    assert isinstance(accepted[0], RecordMetadata)
    assert drained.called
    world.producer.stop()
    assert world.clock.getDelayedCalls() == []


@pytest.mark.parametrize("fate", [Fate.LATE, Fate.NOT_LEADER])
def test_giving_up_tells_what_was_sent_from_what_was_not(fate):
    world = warm(partitions=1)
    world.decide(lambda: fate)
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
    assert world.cluster.values()[0] == [b"first", b"1", b"2"]


def test_one_line_of_the_log_tells_of_all_partitions_that_fail_and_one_of_all_that_work_again():
    world = warm(partitions=30)
    keys = keys_of(30)
    world.decide(lambda: Fate.TOO_FEW_REPLICAS)
    with logged_lines() as lines:
        for _ in range(3):
            for key in keys:
                world.publish(b"fails", key=key)
            world.advance(TIMEOUT_S + 1)
        world.decide(lambda: Fate.ANSWERED)
        for key in keys:
            world.publish(b"works", key=key)
        world.advance(1)
    assert len(lines) == 2
    failing = [line for line in lines if "not acknowledged" in line]
    named = ", ".join(map(str, range(20)))
    reason = (
        "not acknowledged in time, and their callers get 503 or 504: The leader answers NOT_ENOUGH_REPLICAS."
    )
    assert failing == [f"Records for partitions {named} of t; and 10 more are {reason}"]


def test_another_reason_why_a_partition_fails_is_logged_too():
    world = warm(partitions=1)
    with logged_lines() as lines:
        for fate in (Fate.TOO_FEW_REPLICAS, Fate.NOT_LEADER, Fate.TOO_FEW_REPLICAS):
            world.decide(lambda fate=fate: fate)
            world.publish(b"fails")
            world.advance(TIMEOUT_S + 1)
    assert [line.rpartition("answers ")[2] for line in lines] == [
        "NOT_ENOUGH_REPLICAS.",
        "NOT_LEADER_OR_FOLLOWER.",
    ]


def test_partitions_that_begin_to_work_at_the_same_time_are_told_of_in_one_line():
    world = warm(partitions=3)
    world.decide(lambda: Fate.NOT_LEADER)
    with logged_lines() as lines:
        for key in keys_of(3):
            world.publish(b"fails", key=key)
        world.advance(TIMEOUT_S + 1)
        world.decide(lambda: Fate.ANSWERED)
        for key in keys_of(3):
            world.publish(b"works", key=key)
        world.advance(1)
    assert lines[1:] == ["Records for partitions 0, 1, 2 of t are acknowledged again."]


def test_what_is_to_be_said_of_partitions_is_said_before_the_producer_stops():
    world = warm(partitions=1)
    world.decide(lambda: Fate.NOT_LEADER)
    with logged_lines() as lines:
        world.publish(b"fails")
        world.advance(TIMEOUT_S + 0.15)
        assert lines == []
        world.producer.stop()
    assert len(lines) == 1
    assert world.clock.getDelayedCalls() == []


def test_the_producer_looks_at_deadlines_ten_times_a_second_however_much_fails():
    world = warm(partitions=2)
    world.decide(lambda: Fate.NOT_SENT)
    for _ in range(20):
        world.publish(b"fails")
        world.publish(b"fails", key=b"other")
        world.advance(0.3)
        ticks = [call for call in world.clock.getDelayedCalls() if "_tick" in str(call)]
        assert len(ticks) == 1


def test_what_is_reserved_for_many_records_counts_for_the_share_that_single_ones_have():
    world = warm(partitions=2, buffer_bytes=1_000_000)
    one, other = keys_of(2)
    world.cluster.silent.add(1)
    world.publish_many([b"%05d" % n * 50 for n in range(1600)], keys=[one])
    world.advance(0.005, step_s=0.001)
    for _ in range(30):
        world.publish(b"x" * 10_000, key=one)
    assert 450_000 < world.producer.buffered_bytes < 520_000
    assert world.publish(b"x" * 10_000, key=other) == []


def test_records_for_any_partition_do_not_go_beyond_the_buffer_that_other_topics_fill():
    world = warm(partitions=10, buffer_bytes=100_000)
    world.cluster.add_partitions(20, topic="other")
    publish_now(world, b"first", topic="other")
    world.decide(lambda: Fate.NOT_LEADER)
    for key in keys_of(20) * 5:
        world.publish(b"x" * 1000, key=key, topic="other")
    left = 100_000 - world.producer.buffered_bytes
    assert 0 < left < 10_000
    small = record_size(record("t", b"", key=None))
    [small_one, large_one] = world.publish_many([b"", b"x" * (left - 2 * small + 100)], keys=[None])
    assert {type(outcome[0].value) for outcome in (small_one, large_one)} == {BufferFull}
    assert world.producer.buffered_bytes == 100_000 - left


def test_records_for_any_partition_may_take_the_shares_of_all_of_them_together():
    world = warm(partitions=4, buffer_bytes=100_000)
    outcomes = world.publish_many([b"x" * 1000] * 70, keys=[None])
    world.advance(1)
    assert all(isinstance(outcome[0], RecordMetadata) for outcome in outcomes)


def test_records_that_wait_for_a_topic_to_be_made_again_count_for_its_share():
    world = warm(partitions=1, buffer_bytes=100_000, auto_create=True, delivery_timeout_s=20.0)
    for _ in range(20):
        world.publish(b"x" * 2000)
    world.cluster.creates_topics = False
    world.cluster.delete()
    world.producer.cluster_reached()
    world.advance(1.5)
    for _ in range(50):
        world.publish(b"x" * 2000)
    assert 40_000 < world.producer.buffered_bytes < 60_000


def test_records_that_gave_up_waiting_for_their_topic_give_back_their_room():
    world = ProducerSetup(buffer_bytes=100_000)
    world.cluster.cut_off(reason())
    for _ in range(40):
        world.publish(b"x" * 5000)
        world.advance(0.5)
    world.advance(TIMEOUT_S + 0.2)
    assert {type(answer) for answer in world.settled()} == {BrokerUnavailable}
