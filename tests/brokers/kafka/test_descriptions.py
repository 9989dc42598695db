"""Which topics a cluster has, and where their partitions are."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError

from sampleapp.brokers.kafka.descriptions import describe_topics
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.errors import BrokerUnavailable
from sampleapp.model import PartitionDescription
from tests.support.kafka_simulator import Cluster, SimulatedClient, reason


@pytest.fixture
def cluster():
    cluster = Cluster(2, brokers=(1, 2))
    cluster.add_partitions(1, topic="b")
    cluster.add_partitions(1, topic="__consumer_offsets")
    return cluster


def described(cluster, topics=None):
    results = []
    describe_topics(SimulatedClient(cluster), topics).addBoth(results.append)
    cluster.run(6)
    return results[0]


def names(topics):
    return [topic.name for topic in topics]


def test_all_topics_are_those_that_are_not_kafkas_own(cluster):
    assert names(described(cluster)) == ["b", "t"]


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
    assert names(described(cluster)) == ["b"]


def test_partitions_are_in_order_and_one_without_a_leader_has_none(cluster):
    cluster.logs[1].leader = None
    [topic] = described(cluster, ["t"])
    assert topic.partitions == (
        PartitionDescription(partition=0, leader=1, replicas=(1, 2), in_sync=(1,)),
        PartitionDescription(partition=1, leader=None, replicas=(1, 2), in_sync=(1,)),
    )


def test_a_cluster_that_cannot_be_asked_is_unavailable(cluster):
    cluster.cut_off(reason())
    failure = described(cluster)
    assert type(failure.value) is BrokerUnavailable


def test_cancelling_stops_the_waiting(cluster):
    results = []
    answer = describe_topics(SimulatedClient(cluster), None).addBoth(results.append)
    answer.cancel()
    cluster.run(6)
    assert results[0].check(CancelledError)
