"""Many followed topics, which share one fetcher for each broker."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
import pytest_twisted

from tests.real_kafka.admin import new_topic
from tests.real_kafka.dropping_proxy import DroppingProxy
from tests.real_kafka.service import in_thread, kafka_url, running
from tests.real_kafka.writing import produce
from tests.support.brokers import Recorder, eventually, record, within

FETCH = 1
IDLE_S = 5
SOON_S = 5
"""Less than a request to a broker that does not answer may take."""


def follow_all(broker, topics):
    recorders = {topic: Recorder() for topic in topics}
    for topic, recorder in recorders.items():
        broker.follow(topic=topic, observer=recorder)
    return recorders


@pytest_twisted.ensureDeferred
async def test_fifty_idle_topics_take_few_requests_on_two_connections_and_a_record_arrives_at_once(one_node):
    topics = [new_topic(f"idle-{number}") for number in range(50)]
    for topic in topics:
        await in_thread(one_node.admin.create, topic, partitions=2)
    ports = one_node.node(1).ports
    proxy = DroppingProxy(port=ports["PROXIED-ADVERTISED"], target=ports["PROXIED"])
    with ExitStack() as stack:
        stack.callback(proxy.close)
        async with running(kafka_url(one_node, addresses=proxy.address)) as broker:
            recorders = follow_all(broker, topics)
            await eventually(lambda: all(each.caught_up_at for each in recorders.values()))
            connected = proxy.connections
            # On a busy machine, the broker still answers at once for partitions that it has just made.
            for _ in range(6):
                before = proxy.requests.copy()
                await in_thread(time.sleep, IDLE_S)
                found = proxy.requests - before
                if found[FETCH] < 10 * IDLE_S:
                    break
            # One that waits half a second is in flight at any time.
            assert 0 < found[FETCH] < 10 * IDLE_S
            assert found.total() - found[FETCH] <= 2 * IDLE_S
            await in_thread(produce, one_node, topics[7], [b"1"])
            await eventually(lambda: recorders[topics[7]].values() == [b"1"])
            assert not any(each.records for topic, each in recorders.items() if topic != topics[7])
            # One more is that of the cluster's state.
            assert connected <= 3


@pytest.mark.one_version
@pytest_twisted.ensureDeferred
async def test_a_frozen_broker_delays_only_the_partitions_that_it_leads(three_nodes):
    admin = three_nodes.admin
    topics = {leader: new_topic(f"led-by-{leader}") for leader in (1, 2, 3)}
    for leader, topic in topics.items():
        await in_thread(admin.create, topic, assignment=[[leader]])
    async with running(kafka_url(three_nodes)) as broker:
        recorders = follow_all(broker, topics.values())
        for topic in topics.values():
            await within(broker.publish(record(topic, b"before")))
            await recorders[topic].until(1)
        three_nodes.node(3).freeze()
        try:
            for number in range(20):
                for leader in (1, 2):
                    recorder = recorders[topics[leader]]
                    began_s = time.monotonic()
                    await within(broker.publish(record(topics[leader], b"%d" % number)))
                    await recorder.until(number + 2)
                    assert time.monotonic() - began_s < SOON_S
        finally:
            three_nodes.node(3).thaw()
        await within(broker.publish(record(topics[3], b"after")))
        await recorders[topics[3]].until(2)
