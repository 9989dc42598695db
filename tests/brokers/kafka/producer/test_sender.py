"""The sender: large batches do not delay single records, and callers share requests."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.errors import BrokerStopped, BrokerUnavailable, OutcomeUnknown
from sampleapp.model import RecordMetadata
from tests.support.kafka_simulator import Fate, reason
from tests.support.kafka_simulator.publishing import (
    TIMEOUT_S,
    assert_true,
    keys_of,
    publish_now,
    publish_one_by_one,
    warm,
)
from tests.support.logs import logged_lines

LARGE = 60_000


def values(count):
    return [(b"%d" % number).ljust(LARGE, b".") for number in range(count)]


def partitions_of(request):
    return [partition for _, batches in request.topics for partition, _ in batches]


def size_of(request):
    return sum(len(data) for _, batches in request.topics for _, data in batches)


@pytest.fixture
def slow(monkeypatch):
    """Make every look at the clock of a world take as long as a slice."""

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


def test_large_batches_go_to_one_broker_and_the_other_alternately(slow):
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


def test_a_single_caller_does_not_wait_for_another_turn_of_the_reactor():
    world = warm()
    publish_one_by_one(world, 12)
    requests = world.producer.requests
    world.publish(b"alone")
    assert world.producer.requests == requests + 1


@pytest.mark.parametrize("keys", [keys_of(3), [b"k", b"k"]], ids=["three keys", "one key"])
def test_callers_share_requests_again_once_there_are_several(keys):
    world = warm(partitions=3)
    publish_one_by_one(world, 12)
    requests = world.producer.requests
    for _ in range(3):
        for key in keys:
            world.publish(b"together", key=key)
        world.advance(0.5)
    # When they come together for the first time, the first one has left before the others come.
    assert world.producer.requests == requests + 4


def test_records_that_come_together_share_a_request_however_often_that_happens():
    world = warm(partitions=3)
    requests = world.producer.requests
    for _ in range(20):
        for _ in range(3):
            world.publish(b"one of three")
        world.advance(0.5)
    assert world.producer.requests == requests + 20


def test_nothing_is_sent_when_a_caller_comes_after_the_end():
    world = warm()
    publish_one_by_one(world, 12)
    requests = world.producer.requests
    world.producer.give_up()
    world.producer.stop()
    assert isinstance(world.publish(b"late")[0].value, BrokerStopped)
    assert world.producer.requests == requests


def test_batches_that_are_sent_again_together_are_no_larger_request_than_at_first():
    world = warm(partitions=20)
    fates = iter([Fate.ANSWER_LOST] * 5)
    world.decide(lambda: next(fates, Fate.ANSWERED))
    world.publish_many(values(20), keys=keys_of(20))
    world.advance(1)
    assert next(fates, None) is None
    assert all(size_of(request) <= 256 * 1024 for request in world.cluster.produces)
    assert all(isinstance(answer, RecordMetadata) for answer in world.settled())


def test_a_broker_is_connected_to_again_also_if_a_request_was_under_way_when_that_failed():
    world = warm(partitions=2)
    one, other = keys_of(2)
    world.cluster.latency_s = 1.0
    world.publish(b"under way", key=one)
    world.advance(0.02)
    world.cluster.latency_s = 0.01
    world.cluster.cut_off(reason())
    waiting = world.publish(b"waits", key=other)
    world.advance(0.1)
    world.cluster.mend()
    world.advance(0.6)
    assert isinstance(waiting[0], RecordMetadata)


def test_a_connection_that_fails_when_all_records_for_it_were_given_up_is_no_fault():
    world = warm(partitions=1)
    world.cluster.cut_off(reason())
    world.cluster.latency_s = TIMEOUT_S + 1
    given_up = world.publish(b"given up")
    world.advance(TIMEOUT_S + 0.2)
    assert type(given_up[0].value) is BrokerUnavailable
    world.advance(1)
    world.cluster.latency_s = 0.01
    world.cluster.mend()
    world.advance(TIMEOUT_S)
    publish_now(world, b"works")


def test_a_batch_that_has_grown_large_while_it_waited_does_not_delay_single_records():
    world = warm(partitions=8)
    *keys, growing, last = keys_of(8)[:5]
    for key in keys:
        world.publish(b"alone " + key, key=key)
        world.clock.pump([0] * 3)
    world.publish(b"waits", key=growing)
    world.clock.pump([0] * 3)
    world.publish_many(values(1), keys=[growing])
    world.publish(b"alone", key=last)
    world.advance(1)
    assert [partitions_of(request) for request in world.cluster.produces[1:]] == [[0], [1], [2], [4], [3]]
    assert_true(world)


def test_a_batch_that_has_grown_large_during_connecting_does_not_delay_single_records(monkeypatch):
    world = warm(partitions=4, brokers=(1,))
    *growing, last = keys_of(4)
    connected = Deferred()
    is_connected = world.client.is_connected
    monkeypatch.setattr(world.client, "when_connected", lambda _: connected)
    monkeypatch.setattr(world.client, "is_connected", lambda _: False)
    for key in (*growing, last):
        world.publish(b"alone " + key, key=key)
    world.clock.pump([0] * 3)
    world.publish_many(values(3), keys=growing)
    world.clock.pump([0] * 3)
    monkeypatch.setattr(world.client, "is_connected", is_connected)
    connected.callback(None)
    world.advance(1)
    assert partitions_of(world.cluster.produces[1]) == [3]
    assert_true(world)


def test_a_batch_that_has_grown_large_during_a_throttle_does_not_delay_single_records():
    world = warm(partitions=2, brokers=(1,))
    growing, last = keys_of(2)
    world.cluster.throttle_ms = 750
    publish_now(world, b"throttled", key=last)
    world.cluster.throttle_ms = 0
    requests = len(world.cluster.produces)
    world.publish(b"waits", key=growing)
    world.advance(0.21)
    # The throttle ends before the next tick.
    world.publish_many(values(1), keys=[growing])
    world.advance(0.06)
    world.publish(b"alone", key=last)
    world.clock.pump([0] * 3)
    assert [partitions_of(request) for request in world.cluster.produces[requests:]] == [[1], [0]]
    world.advance(1)
    assert_true(world)


@pytest.mark.parametrize("loads", [True, False], ids=["of the producer", "of others"])
def test_a_record_that_waits_for_a_broker_goes_to_the_new_leader(loads):
    world = warm(partitions=4, brokers=(1,))
    *keys, last = keys_of(4)
    world.cluster.latency_s = 0.2
    for key in keys:
        world.publish(b"alone " + key, key=key)
        world.clock.pump([0] * 3)
    waiting = world.publish(b"waits", key=last)
    world.clock.pump([0] * 3)
    world.cluster.brokers = (1, 2)
    world.cluster.elect(2)
    if loads:
        world.producer.cluster_reached()
    else:
        world.client.load_metadata(["t"])
    before = len(world.cluster.produces)
    world.advance(0.7)
    later = world.cluster.produces[before:]
    assert next(node_id for node_id, request in world.cluster.asked if request in later) == 2
    assert isinstance(waiting[0], RecordMetadata)
    assert_true(world)


def test_a_record_that_waits_for_a_connection_goes_to_the_new_leader(monkeypatch):
    world = warm(partitions=1, brokers=(1, 2))
    connect = world.client.when_connected
    monkeypatch.setattr(
        world.client, "when_connected", lambda node_id: Deferred() if node_id == 1 else connect(node_id)
    )
    world.cluster.cut_off(reason(), brokers=[1])
    waiting = world.publish(b"waits")
    world.advance(0.1)
    assert waiting == []
    world.cluster.elect(2)
    world.advance(1)
    assert isinstance(waiting[0], RecordMetadata)
    assert_true(world)


def test_queues_that_were_given_up_while_requests_are_sent_are_not_sent_from(monkeypatch):
    world = warm(partitions=2, brokers=(1, 2))
    for key in keys_of(2):
        publish_now(world, b"connects", key=key)
    rejected = Deferred()

    def request(*_, **__):
        world.producer.give_up()
        return rejected

    with logged_lines() as lines:
        for key in keys_of(2):
            world.publish(b"given up", key=key)
        monkeypatch.setattr(world.client, "request", request)
        world.advance(0.1)
    rejected.errback(RequestFailed(reason(), sent=False))
    assert lines == []
    assert all(isinstance(answer, BrokerStopped | OutcomeUnknown) for answer in world.settled()[3:])
    world.producer.stop()
