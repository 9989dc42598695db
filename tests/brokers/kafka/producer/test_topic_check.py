"""Checking topics before anything is published to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.errors import (
    BrokerIncompatible,
    BrokerStopped,
    BrokerUnavailable,
    IllegalTopic,
    TopicNotAuthorized,
    UnknownTopic,
)
from sampleapp.model import RecordMetadata
from tests.support.kafka_simulator import Fate, reason
from tests.support.kafka_simulator.publishing import TIMEOUT_S, ProducerSetup, publish_now, warm


def check(world, *topics):
    """Begin a check; return a list that gets its result."""
    results = []
    world.producer.check_topics(topics).addBoth(results.append)
    return results


def kinds(results):
    [errors] = results
    return {name: type(error) for name, error in errors.items()}


def remembered(world):
    # The topics in memory show nowhere else.
    return set(world.producer._accumulator.topics)  # noqa: SLF001 -- for this


def test_of_a_topic_that_is_known_nobody_is_asked():
    world = warm()
    loads = len(world.cluster.loads)
    assert check(world, "t") == [{}]
    assert check(world) == [{}]
    world.advance(1)
    assert len(world.cluster.loads) == loads


def test_a_topic_that_is_not_known_is_learnt_and_then_known():
    world = ProducerSetup()
    results = check(world, "t")
    assert results == []
    world.advance(0.1)
    assert results == [{}]
    loads = len(world.cluster.loads)
    publish_now(world, b"1")
    assert len(world.cluster.loads) == loads


def test_what_keeps_topics_from_being_published_to_is_told_as_publishing_would_all_at_once():
    world = warm()
    world.cluster.topic_errors = {
        "secret": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "wrong": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    loads = len(world.cluster.loads)
    results = check(world, "t", "absent", "secret", "wrong", "no name", "absent-too")
    world.advance(0.5)
    assert results == []
    world.advance(1)
    assert kinds(results) == {
        "absent": UnknownTopic,
        "absent-too": UnknownTopic,
        "secret": TopicNotAuthorized,
        "wrong": IllegalTopic,
        "no name": IllegalTopic,
    }
    assert set(world.cluster.loads[loads][1]) == {"t", "absent", "secret", "wrong", "absent-too"}
    assert remembered(world) == {"t"}


TOPICS = [f"topic-{number}" for number in range(4)]


@given(
    checked=st.sets(st.sampled_from(TOPICS), min_size=2),
    deleted=st.sets(st.sampled_from(TOPICS)),
    ago_s=st.sampled_from([0.03, 0.5, 9]),
)
def test_of_several_topics_those_that_were_deleted_a_moment_ago_are_told(checked, deleted, ago_s):
    world = ProducerSetup()
    for topic in TOPICS:
        world.cluster.add_partitions(1, topic=topic)
        publish_now(world, b"first", topic=topic)
    world.advance(ago_s, step_s=0.03)
    for topic in deleted:
        world.cluster.topics[topic] = {}
    results = check(world, *checked)
    world.advance(1.5)
    assert kinds(results) == dict.fromkeys(checked & deleted, UnknownTopic)
    # Those that exist can be published to as before.
    for topic in checked - deleted:
        publish_now(world, b"second", topic=topic)
    world.producer.drain()
    world.producer.stop()
    assert world.clock.getDelayedCalls() == []


def test_several_topics_are_loaded_again_but_not_by_each_of_many_checks():
    world = warm()
    world.cluster.add_partitions(1, topic="other")
    publish_now(world, b"first", topic="other")
    loads = len(world.cluster.loads)
    checks = 0
    for _ in range(200):
        results = [check(world, "t", "other") for _ in range(10)]
        world.advance(0.03, step_s=0.001)
        assert results == [[{}]] * 10
        checks += 10
    assert len(world.cluster.loads) - loads <= checks / 10


def test_a_deleted_topic_that_may_be_made_again_is_made_by_checking_several():
    world = warm(auto_create=True)
    publish_now(world, b"first", topic="other")
    world.cluster.topics["other"] = {}
    results = check(world, "t", "other")
    world.advance(1.5)
    assert results == [{}]
    assert world.cluster.topics["other"]


def test_several_topics_cannot_be_published_to_while_no_broker_answers():
    world = warm()
    world.cluster.add_partitions(1, topic="other")
    publish_now(world, b"first", topic="other")
    world.cluster.cut_off(reason())
    results = check(world, "t", "other")
    world.advance(TIMEOUT_S + 0.5)
    assert kinds(results) == {"t": BrokerUnavailable, "other": BrokerUnavailable}


def test_publishing_and_checking_wait_for_the_same_answer():
    world = ProducerSetup()
    single = world.publish(b"1", topic="absent")
    results = check(world, "absent")
    world.advance(1.5)
    assert type(single[0].value) is UnknownTopic
    assert kinds(results) == {"absent": UnknownTopic}
    assert results[0]["absent"] is not single[0].value


def test_checking_makes_topics_that_are_made_by_publishing():
    world = ProducerSetup(auto_create=True)
    results = check(world, "new")
    world.advance(1)
    assert results == [{}]
    assert world.cluster.topics["new"]


def test_a_topic_that_is_not_made_is_told_to_be_absent_after_a_while():
    world = ProducerSetup(auto_create=True, delivery_timeout_s=20.0)
    world.cluster.creates_topics = False
    results = check(world, "new")
    world.advance(4, step_s=0.05)
    assert results == []
    world.advance(2, step_s=0.05)
    assert kinds(results) == {"new": UnknownTopic}


def test_a_cluster_that_does_not_answer_in_time_keeps_topics_from_being_published_to():
    world = ProducerSetup()
    world.cluster.cut_off(reason())
    results = check(world, "t", "u")
    world.advance(TIMEOUT_S - 0.2)
    assert results == []
    world.advance(0.4)
    assert kinds(results) == {"t": BrokerUnavailable, "u": BrokerUnavailable}
    assert remembered(world) == set()
    world.producer.stop()
    assert world.clock.getDelayedCalls() == []


def test_a_cluster_that_is_known_not_to_be_reachable_is_waited_for_as_shortly_as_by_publishing():
    world = ProducerSetup(delivery_timeout_s=20.0)
    world.cluster.cut_off(reason())
    world.producer.cluster_unreachable(reason())
    results = check(world, "t")
    world.advance(1.7)
    assert kinds(results) == {"t": BrokerUnavailable}


def test_a_cluster_that_cannot_be_used_is_told_at_once():
    world = ProducerSetup()
    world.cluster.cut_off(reason(lasting=True, incompatible=True))
    results = check(world, "t")
    world.advance(0.2)
    assert kinds(results) == {"t": BrokerIncompatible}


def test_a_thousand_topics_are_checked_at_once_and_no_more_after_some_that_do_not_exist():
    world = ProducerSetup()
    names = [f"made-up-{number}" for number in range(2500)]
    results = check(world, *names)
    world.advance(0.5)
    assert remembered(world) == set(names[:1000])
    world.advance(1)
    assert set(results[0]) == set(names[:1000])
    assert remembered(world) == set()
    for name in names:
        world.cluster.add_partitions(1, topic=name)
    found = check(world, *names)
    world.advance(1)
    assert found == [{}]


def test_cancelling_a_check_stops_the_waiting_only():
    world = ProducerSetup()
    results = []
    answer = world.producer.check_topics(["t"]).addBoth(results.append)
    answer.cancel()
    assert results[0].check(CancelledError)
    world.advance(0.5)
    assert check(world, "t") == [{}]


@pytest.mark.parametrize("how", ["drain", "give_up"])
def test_stopping_ends_a_check(how):
    world = ProducerSetup()
    results = check(world, "t", "u")
    getattr(world.producer, how)()
    assert kinds(results) == {"t": BrokerStopped, "u": BrokerStopped}
    assert kinds(check(world, "t")) == {"t": BrokerStopped}
    world.producer.stop()
    assert world.clock.getDelayedCalls() == []
    assert remembered(world) == set()


def test_a_topic_that_is_only_checked_is_forgotten_like_one_that_nobody_publishes_to():
    world = ProducerSetup()
    check(world, "t")
    world.advance(0.5)
    world.clock.advance(200)
    world.producer.cluster_reached()
    world.advance(0.5)
    assert remembered(world) == {"t"}
    world.clock.advance(200)
    world.producer.cluster_reached()
    assert remembered(world) == set()


def test_records_that_are_there_before_their_topic_is_known_do_not_keep_it_from_being_checked():
    world = ProducerSetup()
    world.decide(lambda: Fate.ANSWERED)
    outcome = world.publish(b"1")
    results = check(world, "t")
    world.advance(0.5)
    assert results == [{}]
    assert isinstance(outcome[0], RecordMetadata)


def test_a_check_is_answered_at_its_own_deadline_also_if_records_were_waiting_before_it():
    world = ProducerSetup()
    world.cluster.cut_off(reason())
    record = world.publish(b"1", topic="absent")
    world.advance(1)
    results = check(world, "absent")
    world.advance(TIMEOUT_S - 1 + 0.2)
    assert type(record[0].value) is BrokerUnavailable
    assert results == []
    world.advance(1)
    assert kinds(results) == {"absent": BrokerUnavailable}


def test_thousands_of_topics_are_asked_for_in_requests_of_a_few_hundred():
    world = warm()
    others = [check(world, *(f"{caller}-{number}" for number in range(990))) for caller in range(3)]
    known = check(world, *(f"new-{number}" for number in range(5)))
    world.cluster.loads.clear()
    world.advance(3)
    assert max(len(topics) for _, topics, _ in world.cluster.loads) <= 200
    assert [set(kinds(each).values()) for each in others] == [{UnknownTopic}] * 3
    assert [len(kinds(each)) for each in others] == [990] * 3
    assert set(kinds(known).values()) == {UnknownTopic}
    assert remembered(world) == {"t"}


def test_of_thousands_of_topics_whose_time_is_over_some_hundreds_are_answered_in_one_turn():
    world = warm()
    accumulator = world.producer._accumulator  # noqa: SLF001 -- a turn answers those of one call
    results = [check(world, *(f"{caller}-{number}" for number in range(990))) for caller in range(3)]
    world.clock.rightNow += TIMEOUT_S
    calls = 1
    accumulator.expire(reason=None)
    while accumulator.is_expiring:
        before = len(accumulator.unknown)
        accumulator.expire(reason=None)
        assert before - len(accumulator.unknown) <= 300
        calls += 1
    assert calls >= 10
    assert [set(kinds(each).values()) for each in results] == [{BrokerUnavailable}] * 3


def test_topics_that_cannot_be_used_for_one_reason_share_its_error_but_not_with_other_callers():
    world = warm()
    first, second = check(world, "x", "y"), check(world, "x", "y")
    world.advance(3)
    assert len(set(map(id, first[0].values()))) == len(set(map(id, second[0].values()))) == 1
    assert first[0]["x"] is not second[0]["x"]
