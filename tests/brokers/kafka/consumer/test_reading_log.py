"""Log lines about topics that cannot be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from sampleapp.brokers.kafka.consumer.read_failures import no_leader, rejected, unanswered
from sampleapp.brokers.kafka.consumer.reading_log import ReadingLog
from sampleapp.brokers.kafka.error_code import ErrorCode
from tests.support.kafka_simulator import Cluster, reason
from tests.support.logs import logged_lines

TOPICS = [f"topic-{number:02}" for number in range(50)]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(clock):
    return ReadingLog(clock)


def test_one_cause_is_one_line_for_all_topics_and_so_is_its_end(log, clock):
    with logged_lines() as lines:
        for topic in TOPICS:
            log.failed(topic, topic, unanswered(topic, reason(), node_id=1))
            clock.advance(0.01)
        clock.advance(10)
        for topic in TOPICS:
            log.recovered(topic)
    sentence = unanswered(TOPICS[0], reason(), node_id=1).sentence
    topics = f"{', '.join(TOPICS[:5])} and 45 more"
    assert lines == [
        f"Reading is interrupted for the topics {topics}; trying again: {sentence}",
        f"Reading continues. Before: {sentence}",
    ]
    assert clock.getDelayedCalls() == []


def test_a_failure_that_is_over_soon_is_not_logged(log, clock):
    with logged_lines() as lines:
        log.failed("s", "t", no_leader("t", 0))
        clock.advance(1)
        log.recovered("s")
        clock.advance(100)
    assert lines == []
    assert clock.getDelayedCalls() == []


def test_another_cause_is_logged_although_one_was_logged_within_the_minute(log, clock):
    denied = rejected("t", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with logged_lines() as lines:
        log.failed("s", "t", no_leader("t", 0))
        clock.advance(2)
        log.failed("s", "t", denied)
        clock.advance(2)
    assert lines[1:] == [f"Reading is interrupted for the topic t; trying again: {denied.sentence}"]


def test_leaders_that_change_again_and_again_are_a_line_a_minute_and_one_that_lasts_is_not_lost(log, clock):
    with logged_lines() as lines:
        for _ in range(30):
            for topic in TOPICS:
                log.failed(topic, topic, no_leader(topic, 0))
            clock.pump([0.5] * 8)
            for topic in TOPICS:
                log.recovered(topic)
        assert len(lines) == 4
        log.failed("last", "last", no_leader("last", 0))
        clock.pump([1] * 62)
    assert lines[-1].startswith("Reading is interrupted for the topic last;")


def test_a_subscription_that_ends_is_not_one_that_reads_on(log, clock):
    with logged_lines() as lines:
        log.failed("s", "t", no_leader("t", 0))
        clock.advance(5)
        log.ended("s")
    assert len(lines) == 1
    assert clock.getDelayedCalls() == []


CAUSES = st.sampled_from([None, 1, 2, 3])


@given(st.lists(st.tuples(st.integers(0, 4), CAUSES, st.floats(0.1, 40)), max_size=60))
def test_what_lasts_is_logged_and_no_cause_more_than_once_a_minute(steps):
    clock = Clock()
    log = ReadingLog(clock)
    failing = {}
    with logged_lines() as lines:
        for number, node_id, seconds in steps:
            if node_id is None:
                log.recovered(number)
                failing.pop(number, None)
            else:
                log.failed(number, f"t{number}", unanswered(f"t{number}", reason(f"node {node_id}.")))
                failing[number] = node_id
            clock.pump([1] * int(seconds) + [seconds % 1])
        clock.pump([1] * 70)
        interruptions = [line for line in lines if line.startswith("Reading is interrupted")]
        for node_id in (1, 2, 3):
            of_cause = [line for line in interruptions if f"node {node_id}." in line]
            assert len(of_cause) <= 1 + clock.seconds() / 60
            assert of_cause or node_id not in failing.values()
        for number in range(5):
            log.recovered(number)
        assert len(lines) <= 2 * len(interruptions)
    if interruptions:
        assert lines[-1].startswith("Reading continues.")
    assert clock.getDelayedCalls() == []


def test_an_outage_of_a_broker_is_one_line_for_the_topics_that_are_followed(setup):
    cluster = Cluster(partitions=1, brokers=(1,))
    following = setup(cluster)
    following.catch_up()
    with logged_lines() as lines:
        cluster.elect(None)
        cluster.run(30)
        cluster.elect(1)
        cluster.run(10)
    reason_of_it = no_leader("t", 0).sentence
    assert lines == [
        f"Reading is interrupted for the topic t; trying again: {reason_of_it}",
        f"Reading continues. Before: {reason_of_it}",
    ]
