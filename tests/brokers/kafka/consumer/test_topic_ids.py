"""Topics that the brokers do not know for a while, and what the ids of topics say of them then."""

from __future__ import annotations

import pytest

from tests.support.kafka_simulator import TOPIC, Cluster

pytestmark = pytest.mark.usefixtures("bytes_on_the_wire")


def test_a_topic_that_no_broker_knew_for_a_while_is_followed_on_when_it_turns_out_to_be_the_same(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    following = setup(cluster)
    following.catch_up()
    logs = cluster.logs
    # So it is for as long as brokers that have just started have not heard of it (Kafka with ZooKeeper).
    cluster.delete()
    cluster.run(5)
    assert following.recorder.reset_at == [1]
    cluster.topics[TOPIC] = logs
    following.until(1)
    # Whatever happens to it from then on is noticed: another leader, and more partitions.
    logs[0].leader = 2
    logs[0].append(b"b")
    following.until(2)
    cluster.add_partitions(1)[1].append(b"c")
    cluster.until(lambda: len(following.values) == 3, within_s=11)
    assert following.values == [b"a", b"b", b"c"]
    assert following.reasons == ()


def test_a_broker_that_still_knows_a_topic_that_was_deleted_and_made_again_does_not_bring_it_back(setup):
    cluster = Cluster(partitions=3)
    cluster.logs[0].append(b"old")
    following = setup(cluster)
    following.catch_up()
    cluster.delete()
    cluster.run(5)
    cluster.make(3)[0].append(b"new")
    following.until(1)
    cluster.lagging = {2}
    cluster.run(30)
    assert following.values == [b"new"]
    assert following.recorder.reset_at == [1]
