"""One answer of a broker that is behind proves nothing, also if no other answer comes for long."""

from __future__ import annotations

import pytest

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.partitioner import partition_for_key
from sampleapp.model import RecordMetadata
from tests.support.kafka_simulator import reason
from tests.support.kafka_simulator.publishing import publish_now, warm

KEY = next(key for key in (b"%d" % number for number in range(50)) if partition_for_key(key, 2) == 1)
OUTAGE_S = 20


def hide_topic(cluster):
    """Let the brokers not know the topic."""
    cluster.ignorant = 10**6


def hide_partition(cluster):
    """Let the brokers not know the second partition."""
    cluster.unmentioned = {1}


def show(cluster):
    """Let the brokers know all."""
    cluster.ignorant = 0
    cluster.unmentioned = set()


@pytest.mark.parametrize("hide", [hide_topic, hide_partition])
def test_brokers_that_are_behind_before_and_after_an_outage_do_not_make_it_another_topic(hide):
    world = warm(partitions=2, delivery_timeout_s=60.0)
    publish_now(world, b"before", key=KEY)
    hide(world.cluster)
    world.cluster.logs[1].errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    outcome = world.publish(b"1", key=KEY)
    world.advance(0.3)
    world.cluster.cut_off(reason("no connection"))
    world.advance(OUTAGE_S, step_s=0.05)
    # So it is with Kafka that uses ZooKeeper: a broker that has just started does not know any topic.
    world.cluster.mend()
    world.advance(0.6)
    assert outcome == []
    show(world.cluster)
    world.advance(1)
    assert outcome == [RecordMetadata(topic="t", partition=1, offset=1)]
