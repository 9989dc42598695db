"""What large batches do to others: those wait for a turn of the reactor, and not for all of the batches."""

from __future__ import annotations

import pytest

from sampleapp.errors import BrokerUnavailable
from sampleapp.model import RecordMetadata
from tests.brokers.kafka.producer.world import (
    TIMEOUT_S,
    assert_true,
    keys_of,
    stop_and_assert_nothing_is_left,
    warm,
)
from tests.support.kafka_simulator import Fate, reason

LARGE = 60_000


def values(count):
    return [(b"%d" % number).ljust(LARGE, b".") for number in range(count)]


def partitions_of(request):
    return [partition for _, batches in request.topics for partition, _ in batches]


def size_of(request):
    return sum(len(data) for _, batches in request.topics for _, data in batches)


@pytest.fixture
def slow(monkeypatch):
    """Make every look at the clock of a world take as long as a turn may take."""

    def slow_down(world):
        look = world.clock.seconds

        def look_slowly():
            world.clock.rightNow += 0.0005
            return look()

        monkeypatch.setattr(world.clock, "seconds", look_slowly)

    return slow_down


def test_a_record_by_itself_goes_before_large_batches_that_came_earlier(slow):
    world = warm(partitions=10)
    *keys, last = keys_of(10)
    world.publish_many(values(9), keys=keys)
    world.publish(b"alone", key=last)
    slow(world)
    world.clock.advance(0)
    _, first, *others = world.cluster.produces
    assert partitions_of(first) == [9]
    assert 9 not in [partition for request in others for partition in partitions_of(request)]
    world.advance(1)
    assert all(isinstance(answer, RecordMetadata) for answer in world.settled())
    assert_true(world)


def test_a_record_by_itself_is_sent_while_requests_with_large_batches_are_not_answered():
    world = warm(partitions=10)
    *keys, last = keys_of(10)
    world.publish_many(values(9), keys=keys)
    world.clock.pump([0] * 10)
    before = len(world.cluster.produces)
    world.publish(b"alone", key=last)
    world.clock.pump([0] * 10)
    assert [partitions_of(request) for request in world.cluster.produces[before:]] == [[9]]


def test_few_large_batches_are_on_their_way_to_a_broker_at_once():
    world = warm(partitions=20)
    world.publish_many(values(20), keys=keys_of(20))
    world.clock.pump([0] * 20)
    sent = world.cluster.produces[1:]
    assert len(sent) == 2
    world.advance(1)
    assert all(size_of(request) <= 256 * 1024 for request in world.cluster.produces)
    assert all(isinstance(answer, RecordMetadata) for answer in world.settled())
    assert_true(world)


def test_a_batch_that_is_larger_than_such_a_request_goes_alone():
    world = warm(partitions=2)
    one, other = keys_of(2)
    world.publish(b"x" * 500_000, key=one)
    world.publish(b"y" * 500_000, key=other)
    world.advance(1)
    assert [len(partitions_of(request)) for request in world.cluster.produces[1:]] == [1, 1]
    assert_true(world)


def test_a_large_batch_is_sent_while_requests_with_single_records_are_not_answered():
    world = warm(partitions=8)
    *keys, last = keys_of(8)
    for key in keys:
        world.publish(b"alone " + key, key=key)
        world.clock.pump([0] * 3)
    world.publish_many(values(1), keys=[last])
    world.clock.pump([0] * 3)
    assert [partitions_of(request) for request in world.cluster.produces[1:]] == [[0], [1], [2], [7]]
    world.advance(1)
    assert_true(world)


def test_single_records_that_come_without_end_do_not_keep_large_batches_waiting(slow):
    world = warm(partitions=8)
    *keys, last = keys_of(8)
    large = world.publish_many(values(1), keys=[last])
    slow(world)
    for _ in range(100):
        for key in keys:
            world.publish(b"alone", key=key)
        world.clock.advance(0)
        if large[0]:
            break
    assert isinstance(large[0][0], RecordMetadata)


def test_large_batches_go_to_one_broker_and_the_other_in_turn(slow):
    world = warm(partitions=8, brokers=(1, 2))
    world.publish_many(values(8), keys=keys_of(8))
    slow(world)
    world.clock.pump([0] * 20)
    leaders = [world.cluster.logs[partitions_of(request)[0]].leader for request in world.cluster.produces[1:]]
    assert leaders in ([1, 2] * 4, [2, 1] * 4)


def test_the_sender_rests_while_a_broker_has_all_large_batches_that_it_may_have(slow):
    world = warm(partitions=20)
    world.cluster.latency_s = 1
    world.publish_many(values(20), keys=keys_of(20))
    slow(world)
    world.clock.pump([0] * 50)
    assert len(world.cluster.produces) == 1 + 2
    assert min(call.getTime() for call in world.clock.getDelayedCalls()) > world.clock.rightNow


def begin_many(world, *, key=b"k", callers=1):
    """Publish thousands of records for each caller, until the first are stored; return how many are."""
    for caller in range(callers):
        world.publish_many([b"%d-%05d" % (caller, n) * 30 for n in range(3000)], keys=[key])
    while not world.values()[0][1:]:
        world.advance(0.001, step_s=0.001)
    return len(world.values()[0])


@pytest.mark.parametrize("key", [b"k", None])
@pytest.mark.parametrize("callers", [1, 3])
def test_a_record_of_another_caller_stands_behind_little_of_many_records(key, callers):
    world = warm(partitions=1)
    stored = begin_many(world, key=key, callers=callers)
    alone = world.publish(b"alone")
    world.advance(1, step_s=0.001)
    assert alone[0].offset < stored + 1000
    assert all(isinstance(answer, RecordMetadata) for answer in world.settled())


def test_the_same_is_true_after_a_moment_in_which_nothing_could_be_done():
    world = warm(partitions=1)
    begin_many(world)
    world.clock.advance(0.15)
    stored = len(world.values()[0])
    alone = world.publish(b"alone")
    world.advance(1, step_s=0.001)
    assert alone[0].offset < stored + 1000


def test_many_records_for_a_leader_that_is_silent_take_a_tenth_longer_than_one():
    world = warm(partitions=2, brokers=(1, 2))
    world.publish(b"first of the other", key=keys_of(2)[1])
    world.advance(0.5)
    world.cluster.slow[1] = 0.07
    world.cluster.silent.add(2)
    one, other = keys_of(2)
    many = world.publish_many([b"%05d" % n * 100 for n in range(6000)], keys=[*[one] * 9, other])
    world.advance(1.1 * TIMEOUT_S + 0.2)
    assert {type(outcome[0]) for outcome in many} > {RecordMetadata, BrokerUnavailable}
    assert_true(world)


def test_what_is_not_in_its_queue_yet_counts_for_the_share_of_its_partition():
    world = warm(partitions=2, brokers=(1, 2), buffer_bytes=4_000_000)
    one, other = keys_of(2)
    world.publish(b"first of the other", key=other)
    world.advance(0.5)
    world.cluster.silent.add(1)
    for caller in range(20):
        world.publish_many([b"%02d-%05d" % (caller, n) * 30 for n in range(1500)], keys=[one])
        world.advance(0.005, step_s=0.001)
    assert 1_000_000 < world.producer.buffered_bytes < 2_000_000
    healthy = world.publish_many([b"healthy %05d" % n * 10 for n in range(4000)], keys=[other])
    world.advance(0.5)
    assert all(isinstance(outcome[0], RecordMetadata) for outcome in healthy)
    world.advance(1.1 * TIMEOUT_S)
    # What was sent to the broker may still be stored.
    assert world.producer.buffered_bytes < 200_000
    assert_true(world)


def test_while_no_broker_can_be_reached_nothing_waits_for_queues_to_move():
    world = warm(partitions=1)
    world.decide(lambda: Fate.LATE)
    world.publish_many([b"%05d" % n * 20 for n in range(5000)])
    world.advance(0.05)
    [queue] = world.producer._accumulator.active  # noqa: SLF001 -- it shows nowhere else
    assert queue.records < 5000
    world.producer.cluster_unreachable(reason("gone"))
    world.advance(0.05)
    assert queue.records == 5000


@pytest.mark.parametrize("ends_after_s", [0, 0.001, 0.002, 0.005, 0.02])
def test_a_producer_that_stops_while_records_wait_for_room_tells_of_each(ends_after_s):
    world = warm(partitions=2)
    many = world.publish_many([b"%05d" % n * 20 for n in range(5000)], keys=keys_of(2))
    world.advance(ends_after_s, step_s=0.001)
    world.producer.drain()
    world.producer.give_up()
    assert all(len(outcome) == 1 for outcome in many)
    stop_and_assert_nothing_is_left(world)
