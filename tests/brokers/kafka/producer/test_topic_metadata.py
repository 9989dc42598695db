"""The metadata of topics: unknown, created, deleted and created again."""

from __future__ import annotations

import pytest

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.errors import (
    BrokerUnavailable,
    IllegalTopic,
    OutcomeUnknown,
    UnknownTopic,
)
from sampleapp.model import RecordMetadata
from tests.support.brokers import record
from tests.support.kafka_simulator import Fate
from tests.support.kafka_simulator.publishing import (
    TIMEOUT_S,
    ProducerSetup,
    assert_true,
    keys_of,
    publish_now,
    warm,
)
from tests.support.logs import logged_lines


def test_a_topic_that_does_not_exist_is_told_soon_and_is_not_made():
    world = ProducerSetup()
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
    world = ProducerSetup(auto_create=True)
    outcome = world.publish(b"1", topic="new")
    world.advance(1)
    assert isinstance(outcome[0], RecordMetadata)


def test_a_topic_that_was_deleted_is_told_apart_from_one_without_a_leader():
    world = warm()
    world.cluster.elect(None)
    waiting = world.publish(b"1")
    world.advance(1.5)
    assert waiting == []
    world.cluster.elect(1)
    world.advance(0.5)
    assert isinstance(waiting[0], RecordMetadata)
    world.decide(lambda: Fate.NOT_LEADER)
    world.cluster.topics.clear()
    deleted = world.publish(b"2")
    world.advance(1.9)
    assert type(deleted[0].value) is UnknownTopic


def two_partitions():
    """A world with two partitions that were published to, and a key for each."""
    world = ProducerSetup(partitions=2)
    keys = keys_of(2)
    for partition, key in enumerate(keys):
        [metadata] = publish_now(world, b"before %d" % partition, key=key)
        assert metadata.partition == partition
    return world, keys


def shrink(world):
    world.cluster.make_again(partitions=1)
    world.producer.cluster_reached()
    # Twice: one answer that says so might come from a broker that is behind.
    world.advance(1.2)
    world.producer.cluster_reached()
    world.advance(0.2)


def test_what_is_published_from_a_callback_while_a_topic_shrinks_is_not_taken_for_something_else():
    world, keys = two_partitions()
    world.decide(lambda: Fate.LATE)
    again = []
    answer = world.producer.publish(record("t", b"in flight", key=keys[1]))
    answer.addErrback(lambda _: again.append(world.publish(b"again", key=keys[0])))
    world.advance(0.02)
    world.decide(lambda: Fate.ANSWERED)
    shrink(world)
    second = world.publish(b"second", key=keys[0])
    world.advance(2 * TIMEOUT_S)
    assert len(again) == 1
    for value, outcome in ((b"again", again[0]), (b"second", second)):
        assert world.cluster.values()[0][outcome[0].offset] == value


def test_a_topic_that_shrinks_while_something_is_in_flight_leaves_nothing_behind():
    world, keys = two_partitions()
    world.decide(lambda: Fate.LATE)
    world.publish(b"in flight", key=keys[1])
    world.advance(0.02)
    world.decide(lambda: Fate.ANSWERED)
    shrink(world)
    world.advance(5 * TIMEOUT_S, step_s=0.05)
    publish_now(world, b"after", key=keys[1])
    assert world.producer.buffered_bytes == 0
    assert world.producer.drain().called
    world.producer.stop()
    assert world.clock.getDelayedCalls() == []


def test_records_that_change_their_partition_keep_their_deadlines():
    world, keys = two_partitions()
    world.cluster.elect(None)
    early = world.publish(b"early", key=keys[1])
    world.advance(0.4)
    late = world.publish(b"late", key=keys[0])
    world.cluster.make_again(partitions=1)
    world.cluster.elect(None)
    world.producer.cluster_reached()
    world.advance(1.2)
    world.producer.cluster_reached()
    world.advance(TIMEOUT_S - 1.8)
    assert early == []
    world.advance(0.4)
    assert type(early[0].value) is BrokerUnavailable
    assert late == []
    world.cluster.elect(1)
    world.producer.cluster_reached()
    world.advance(0.2)
    assert late[0] == RecordMetadata(topic="t", partition=0, offset=0)


def test_one_answer_of_a_broker_that_is_behind_does_not_make_a_topic_another_one():
    world, keys = two_partitions()
    ids = world.cluster.ids_given
    world.cluster.unmentioned = {1}
    world.producer.cluster_reached()
    outcome = world.publish(b"1", key=keys[1])
    world.advance(0.02)
    world.cluster.unmentioned = set()
    world.advance(0.5)
    assert outcome[0].partition == 1
    assert world.cluster.ids_given == ids


def test_names_that_were_made_up_are_not_remembered():
    world = warm(buffer_bytes=1000)
    for number in range(50):
        world.publish(b"x" * 200, topic=f"made-up-{number}")
    world.publish(b"x" * 2000, topic="too-large")
    world.advance(TIMEOUT_S)
    # The topics in memory show nowhere else.
    assert set(world.producer._accumulator.topics) == {"t"}  # noqa: SLF001 -- for this


@pytest.mark.parametrize("name", ["x" * 250, "", "a b", "\ud800", ".."])
def test_a_name_that_kafka_does_not_allow_is_rejected_at_once(name):
    outcome = ProducerSetup().publish(b"1", topic=name)
    assert type(outcome[0].value) is IllegalTopic


def old_format(world):
    """Have the brokers keep the topic in a format that has no room for producer ids."""
    for log in world.cluster.logs.values():
        log.has_old_format = True


def test_a_topic_in_an_old_format_is_published_to_without_a_producer_id_and_the_log_says_so_once():
    world = ProducerSetup(partitions=2)
    old_format(world)
    with logged_lines() as lines:
        for number in range(20):
            publish_now(world, b"%d" % number, key=b"%d" % number)
    assert len(lines) == 1
    assert "topic t " in lines[0]
    assert "message.format.version" in lines[0]
    assert_true(world)


def test_in_a_topic_in_an_old_format_what_may_be_stored_is_not_sent_again():
    world = ProducerSetup(partitions=1)
    old_format(world)
    publish_now(world, b"1")
    fates = iter([Fate.ANSWER_LOST])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    outcome = world.publish(b"2")
    world.advance(1)
    assert type(outcome[0].value) is OutcomeUnknown
    assert world.cluster.values() == [[b"1", b"2"]]


def test_a_topic_that_is_not_made_since_its_name_collides_with_another_says_so():
    world = ProducerSetup(auto_create=True)
    world.cluster.topic_errors = {"a_b": ErrorCode.INVALID_TOPIC_EXCEPTION}
    outcome = world.publish(b"1", topic="a_b")
    world.advance(0.5)
    assert type(outcome[0].value) is IllegalTopic
    assert ". and _" in str(outcome[0].value)


@pytest.mark.parametrize(("name", "is_hinted"), [("a_b", True), ("a.b", True), ("ab", False)])
def test_a_topic_that_is_not_made_says_what_may_keep_it_from_being_made(name, is_hinted):
    world = ProducerSetup(auto_create=True, delivery_timeout_s=20.0)
    world.cluster.creates_topics = False
    outcome = world.publish(b"1", topic=name)
    world.advance(6, step_s=0.05)
    assert type(outcome[0].value) is UnknownTopic
    assert ("more than . and _" in str(outcome[0].value)) is is_hinted
