"""While no broker can be reached, new records are not kept waiting for long."""

from __future__ import annotations

import pytest

from sampleapp.errors import BrokerUnavailable, PublishTimedOut
from sampleapp.model import RecordMetadata
from tests.support.kafka_simulator import Fate, reason
from tests.support.kafka_simulator.publishing import ProducerSetup, publish_now, warm

DELIVERY_TIMEOUT_S = 30.0


def cut_off(world):
    world.cluster.cut_off(reason("no connection"))


def mend(world):
    world.cluster.mend()


@pytest.fixture(params=["a topic that is known", "a topic of which nothing is known"])
def world(request):
    is_known = request.param == "a topic that is known"
    make = warm if is_known else ProducerSetup
    world = make(partitions=1, delivery_timeout_s=DELIVERY_TIMEOUT_S)
    cut_off(world)
    return world


def test_records_fail_within_two_seconds_also_those_that_were_waiting_before(world):
    before = world.publish(b"before")
    world.advance(5, step_s=0.05)
    world.producer.cluster_unreachable(reason("no connection"))
    new = world.publish(b"new")
    world.advance(1.4, step_s=0.05)
    assert new == []
    later = world.publish(b"later")
    world.advance(0.5, step_s=0.05)
    assert type(new[0].value) is BrokerUnavailable
    assert "Something is wrong." in str(new[0].value)
    assert "not published" in str(new[0].value)
    assert type(before[0].value) is BrokerUnavailable
    assert "not published" in str(before[0].value)
    assert later == []
    world.advance(1.5, step_s=0.05)
    assert type(later[0].value) is BrokerUnavailable
    assert world.producer.buffered_bytes == 0


def test_no_deadline_becomes_later_by_an_outage():
    world = ProducerSetup(partitions=1, delivery_timeout_s=DELIVERY_TIMEOUT_S)
    cut_off(world)
    before = world.publish(b"before")
    world.advance(DELIVERY_TIMEOUT_S - 0.5, step_s=0.05)
    world.producer.cluster_unreachable(reason("no connection"))
    world.advance(0.8, step_s=0.05)
    assert type(before[0].value) is BrokerUnavailable


def test_a_check_of_topics_that_waits_when_the_outage_is_noticed_ends_within_two_seconds():
    world = ProducerSetup(partitions=1, delivery_timeout_s=DELIVERY_TIMEOUT_S)
    cut_off(world)
    checks = []
    world.producer.check_topics(["t"]).addCallback(checks.append)
    world.advance(5, step_s=0.05)
    assert checks == []
    world.producer.cluster_unreachable(reason("no connection"))
    world.advance(2, step_s=0.05)
    assert [type(error) for error in checks[0].values()] == [BrokerUnavailable]


def test_a_record_that_comes_when_a_broker_is_back_is_stored_before_anybody_says_so(world):
    world.producer.cluster_unreachable(reason("no connection"))
    lost = world.publish(b"lost")
    world.advance(5, step_s=0.05)
    assert type(lost[0].value) is BrokerUnavailable
    mend(world)
    taken = world.publish(b"taken")
    world.advance(0.2)
    assert isinstance(taken[0], RecordMetadata)


def test_records_that_still_wait_when_the_cluster_is_back_have_their_whole_time_again(world):
    world.producer.cluster_unreachable(reason("no connection"))
    waiting = world.publish(b"waiting")
    world.advance(1)
    world.producer.cluster_reached()
    world.advance(10, step_s=0.05)
    assert waiting == []
    mend(world)
    world.advance(1)
    assert isinstance(waiting[0], RecordMetadata)


def test_what_may_have_been_sent_is_never_said_not_to_be():
    world = warm(partitions=1, delivery_timeout_s=DELIVERY_TIMEOUT_S)
    world.producer.cluster_unreachable(reason("no connection"))
    world.decide(lambda: Fate.LATE)
    sent = world.publish(b"sent")
    world.advance(0.05)
    behind = world.publish(b"behind")
    world.advance(2)
    assert type(behind[0].value) is BrokerUnavailable
    assert sent == []
    world.advance(DELIVERY_TIMEOUT_S, step_s=0.05)
    assert type(sent[0].value) is PublishTimedOut


def test_the_second_news_of_the_same_outage_changes_nothing():
    world = warm(partitions=1, delivery_timeout_s=DELIVERY_TIMEOUT_S)
    cut_off(world)
    world.producer.cluster_unreachable(reason("no connection"))
    first = world.publish(b"first one")
    world.advance(1)
    world.producer.cluster_unreachable(reason("no connection"))
    world.advance(0.8)
    assert type(first[0].value) is BrokerUnavailable
    world.producer.cluster_reached()
    mend(world)
    publish_now(world, b"after")


def test_a_delivery_timeout_that_is_shorter_still_counts():
    world = warm(partitions=1, delivery_timeout_s=0.5)
    cut_off(world)
    world.producer.cluster_unreachable(reason("no connection"))
    outcome = world.publish(b"1")
    world.advance(0.7)
    assert type(outcome[0].value) is BrokerUnavailable


def test_a_frozen_leader_is_given_up_after_five_seconds_however_long_callers_wait():
    world = warm(partitions=1, delivery_timeout_s=DELIVERY_TIMEOUT_S)
    fates = iter([Fate.LATE])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    outcome = world.publish(b"1")
    world.advance(4.9, step_s=0.05)
    assert outcome == []
    world.advance(1, step_s=0.05)
    assert isinstance(outcome[0], RecordMetadata)
    assert world.cluster.values()[0] == [b"first", b"1"]


def test_the_reason_of_an_outage_is_not_told_after_its_end():
    world = warm()
    world.producer.cluster_unreachable(reason("gone"))
    world.producer.cluster_reached()
    world.cluster.throttle_ms = 60_000
    publish_now(world, b"1")
    not_sent = world.publish(b"2")
    world.advance(2.2)
    assert type(not_sent[0].value) is BrokerUnavailable
    assert "could not be sent in time" in str(not_sent[0].value)
