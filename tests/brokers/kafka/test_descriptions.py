"""Which topics a cluster has, and where their partitions are."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError

from sampleapp.brokers.kafka.descriptions import IDLE_S, Descriptions
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.errors import BrokerUnavailable
from sampleapp.interfaces import CHECK_TIMEOUT_S
from sampleapp.model import PartitionDescription
from tests.support.kafka_simulator import Cluster, SimulatedClient, reason


@pytest.fixture
def cluster():
    cluster = Cluster(2, brokers=(1, 2))
    cluster.add_partitions(1, topic="b")
    cluster.add_partitions(1, topic="__consumer_offsets")
    return cluster


def descriptions_of(cluster):
    return Descriptions(new_client=lambda: SimulatedClient(cluster), clock=cluster.clock)


def described(cluster, topics):
    results = []
    descriptions_of(cluster).describe_topics(topics).addBoth(results.append)
    cluster.run(6)
    return results[0]


def listed(cluster):
    results = []
    descriptions_of(cluster).list_topics().addBoth(results.append)
    cluster.run(6)
    return results[0]


def names(topics):
    return [topic.name for topic in topics]


def test_all_topics_are_those_that_are_not_kafkas_own(cluster):
    assert listed(cluster) == ["b", "t"]


def test_of_those_that_are_asked_for_those_are_told_that_there_are(cluster):
    asked = {"t", "absent", "no name", "__consumer_offsets"}
    assert names(described(cluster, asked)) == ["__consumer_offsets", "t"]
    assert cluster.topics.keys() == {"t", "b", "__consumer_offsets"}


@pytest.mark.parametrize("topics", [[], ["no name", ""]])
def test_without_a_name_that_can_be_nobody_is_asked(cluster, topics):
    cluster.cut_off(reason())
    assert described(cluster, topics) == []


def test_a_topic_that_must_not_be_seen_is_not_told(cluster):
    cluster.topic_errors = {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert listed(cluster) == ["b"]
    assert names(described(cluster, ["b", "t"])) == ["b"]


def test_partitions_are_in_order_and_one_without_a_leader_has_none(cluster):
    cluster.logs[1].leader = None
    [topic] = described(cluster, ["t"])
    assert topic.partitions == (
        PartitionDescription(partition=0, leader=1, replicas=(1, 2), in_sync=(1,)),
        PartitionDescription(partition=1, leader=None, replicas=(1, 2), in_sync=(1,)),
    )


def test_a_cluster_that_cannot_be_asked_is_unavailable(cluster):
    cluster.cut_off(reason())
    for failure in (listed(cluster), described(cluster, ["t"])):
        assert type(failure.value) is BrokerUnavailable


def test_cancelling_stops_the_waiting(cluster):
    results = []
    answer = descriptions_of(cluster).list_topics().addBoth(results.append)
    answer.cancel()
    cluster.run(6)
    assert results[0].check(CancelledError)


def test_connections_are_made_when_they_are_needed_and_closed_when_nobody_has_asked_for_a_minute(cluster):
    clients = []

    def new_client():
        clients.append(SimulatedClient(cluster))
        return clients[-1]

    descriptions = Descriptions(new_client=new_client, clock=cluster.clock)
    cluster.run(1)
    assert clients == []
    for _ in range(3):
        descriptions.list_topics()
        descriptions.describe_topics(["t"])
        cluster.run(IDLE_S - 10)
    assert [client.closed for client in clients] == [False]
    cluster.run(20)
    assert [client.closed for client in clients] == [True]
    results = []
    descriptions.list_topics().addBoth(results.append)
    cluster.run(1)
    assert results == [["b", "t"]]
    descriptions.list_topics().addBoth(results.append)
    stopped = descriptions.stop()
    descriptions.list_topics().addBoth(results.append)
    cluster.run(6)
    assert [client.closed for client in clients] == [True, True]
    assert [type(failure.value) for failure in results[1:]] == [BrokerUnavailable] * 2
    assert stopped.called
    assert cluster.clock.getDelayedCalls() == []


def test_many_topics_and_partitions_take_many_turns_of_the_reactor(cluster, monkeypatch):
    for number in range(9000):
        cluster.add_partitions(1, topic=f"x{number}")
    cluster.add_partitions(10_000, topic="large")
    turns = []
    call_later = cluster.clock.callLater

    def count(delay_s, *call):
        turns.append(delay_s)
        return call_later(delay_s, *call)

    monkeypatch.setattr(cluster.clock, "callLater", count)
    assert len(listed(cluster)) == 9003
    # One after each pause of the decoder, and those for sorting.
    assert turns.count(0) > 9003 + 5
    turns.clear()
    (topic,) = described(cluster, ["large"])
    assert [each.partition for each in topic.partitions] == list(range(10_000))
    assert turns.count(0) >= 5


def errors_of(cluster, topics, *, after_s=6.0):
    results = []
    descriptions_of(cluster).topic_errors(topics).addBoth(results.append)
    cluster.run(after_s)
    return results[0]


def test_errors_of_topics_are_found_without_creating_any(cluster):
    cluster.topic_errors = {"b": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert errors_of(cluster, ["t", "b", "absent", "no name"]) == {
        "b": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert "absent" not in cluster.topics


def test_a_cluster_that_does_not_answer_is_waited_for_no_longer_than_a_second(cluster):
    cluster.latency_s = CHECK_TIMEOUT_S + 0.1
    assert errors_of(cluster, ["absent"], after_s=CHECK_TIMEOUT_S) == {}
    cluster.cut_off(reason())
    assert errors_of(cluster, ["absent"]) == {}
