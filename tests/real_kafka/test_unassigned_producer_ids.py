"""Kafka recognises a batch by a producer id that it never assigned, on which idempotency keys rely."""

from __future__ import annotations

import random
import time

from sampleapp.brokers.kafka.batches import Codec, encode_batch
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import ProduceRequest
from tests.real_kafka.admin import new_topic
from tests.real_kafka.wire import connected
from tests.support.brokers import record
from tests.support.waiting import wait_until

VERSION = ProduceRequest.api.lowest
DAY_MS = 24 * 3600 * 1000
OTHERS = 1000
# Of a broker that has not heard of its partitions yet.
NOT_YET = ("NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION")


def unassigned_id():
    return 2**62 + random.getrandbits(62)


def now_ms():
    return int(time.time() * 1000)


def send(wire, topic, producer_id, **options):
    """Produce one record, alone in its batch, when there is a leader; return its offset."""
    answers = []

    def stored():
        answers.append(response_to(wire, topic, producer_id, **options))
        return answers[-1] not in NOT_YET

    wait_until(stored, f"the node leads {topic}")
    return answers[-1]


def response_to(wire, topic, producer_id, *, value=b"value", timestamp_ms=None, partition=0):
    """Produce one record, alone in its batch; return its offset, or the name of the error."""
    batch = encode_batch(
        [record(topic, value, timestamp_ms=now_ms() if timestamp_ms is None else timestamp_ms)],
        codec=Codec.NONE,
        producer_id=producer_id,
        epoch=0,
        base_sequence=0,
    )
    request = ProduceRequest(topics=[(topic, [(partition, batch)])], timeout_ms=10_000)
    [answer] = wire.ask(request, VERSION).partitions
    return answer.offset if answer.error == ErrorCode.NONE else ErrorCode.name_of(answer.error)


def send_to_leader(cluster, topic, producer_id, **options):
    """The same on a connection of its own, when there is a leader that knows that it is one."""
    found = []

    def stored():
        leader = cluster.admin.leaders(topic).get(0)
        if leader is None:
            return False
        try:
            with connected(cluster.address(leader)) as wire:
                found.append(response_to(wire, topic, producer_id, **options))
        except ConnectionRefusedError:
            # The node that was asked still names the leader that was killed.
            return False
        return found[-1] not in NOT_YET

    wait_until(stored, f"the leader of {topic} answers")
    return found[-1]


def test_a_repeat_on_another_connection_gets_the_offset_of_the_first(one_node):
    topic, producer_id = one_node.admin.create(new_topic("repeat")), unassigned_id()
    offsets = []
    for value in (b"first", b"first", b"another"):
        with connected(one_node.bootstrap) as wire:
            offsets.append(send(wire, topic, producer_id, value=value))
            send(wire, topic, unassigned_id())
    assert offsets == [0, 0, 0]


def test_in_another_partition_it_is_another_record(one_node):
    topic, producer_id = one_node.admin.create(new_topic("elsewhere"), partitions=2), unassigned_id()
    with connected(one_node.bootstrap) as wire:
        send(wire, topic, unassigned_id(), partition=0)
        assert [send(wire, topic, producer_id, partition=number) for number in (0, 1, 0, 1)] == [1, 0, 1, 0]


def test_it_is_recognised_after_many_other_ids(one_node):
    topic, producer_id = one_node.admin.create(new_topic("many")), unassigned_id()
    with connected(one_node.bootstrap) as wire:
        assert send(wire, topic, producer_id) == 0
        assert [send(wire, topic, unassigned_id()) for _ in range(OTHERS)] == [*range(1, OTHERS + 1)]
        assert send(wire, topic, producer_id) == 0


def test_it_is_recognised_after_its_record_was_deleted(one_node):
    topic, producer_id = one_node.admin.create(new_topic("deleted")), unassigned_id()
    with connected(one_node.bootstrap) as wire:
        assert send(wire, topic, producer_id) == 0
        send(wire, topic, unassigned_id())
        one_node.admin.delete_records(topic, 0, 2)
        assert send(wire, topic, producer_id) == 0


def test_it_is_recognised_after_a_crash_of_all_brokers_unless_its_time_is_over(three_nodes):
    """The broker's memory runs from the record's time, if records keep the producer's."""
    topic, recent, old = three_nodes.admin.create(new_topic("crash")), unassigned_id(), unassigned_id()
    three_nodes.admin.wait_until_in_sync(topic, 3)
    old_ms = now_ms() - 2 * DAY_MS
    assert send_to_leader(three_nodes, topic, recent) == 0
    assert send_to_leader(three_nodes, topic, old, timestamp_ms=old_ms) == 1
    assert send_to_leader(three_nodes, topic, old, timestamp_ms=old_ms) == 1
    three_nodes.kill9()
    three_nodes.restore()
    three_nodes.admin.wait_until_in_sync(topic, 3)
    assert send_to_leader(three_nodes, topic, recent) == 0
    assert send_to_leader(three_nodes, topic, old, timestamp_ms=old_ms) == 2


def test_each_new_leader_recognises_it(three_nodes):
    admin = three_nodes.admin
    topic, producer_id = admin.create(new_topic("elections")), unassigned_id()
    admin.wait_until_in_sync(topic, 3)
    assert send_to_leader(three_nodes, topic, producer_id) == 0
    led_by = admin.leaders(topic)[0]
    three_nodes.node(led_by).kill9()
    admin.wait_until_in_sync(topic, 2)
    assert send_to_leader(three_nodes, topic, producer_id, value=b"another") == 0
    assert send_to_leader(three_nodes, topic, unassigned_id()) == 1
    three_nodes.restore()
    admin.wait_until_in_sync(topic, 3)
    admin.elect(topic, partitions=[0])
    admin.wait_until_led_by(topic, led_by)
    assert send_to_leader(three_nodes, topic, producer_id) == 0
