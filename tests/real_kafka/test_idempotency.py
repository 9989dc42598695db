"""A record with an identity is in its topic once, whichever instance sends it, and whatever breaks."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import deferLater

from sampleapp.brokers import IdempotencySettings, from_url
from sampleapp.errors import IdempotencyKeyReused
from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.model import FINGERPRINT_HEADER, RecordMetadata, ReplayedRecord
from tests.real_kafka.admin import new_topic
from tests.real_kafka.configuration import PLAIN
from tests.real_kafka.dropping_proxy import DroppingProxy, Loss
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import in_thread, kafka_url
from tests.real_kafka.writing import open_transaction
from tests.support.brokers import eventually, record, settled, within
from tests.support.waiting import wait_until

SETTINGS = IdempotencySettings(is_enabled_for=lambda _: True, records_per_s=1e6, burst=10**6)
KEYS = 20


@asynccontextmanager
async def running(cluster, *, listener=PLAIN.name, addresses=None, **options):
    """One more instance."""
    url = kafka_url(cluster, listener, addresses=addresses, **options)
    broker = from_url(url, reactor=reactor, idempotency=SETTINGS)
    broker.start()
    try:
        yield broker
    finally:
        await within(broker.stop(deadline_s=20))


def identified(topic, name, value=b"value", *, key=b"k"):
    identity = IdempotencyScope(caller="", key=f"{name}").identity(0, topic=topic, key=key, value=value)
    return record(topic, value, key=key, identity=identity)


def replayed(metadata):
    return ReplayedRecord(topic=metadata.topic, partition=metadata.partition, offset=metadata.offset)


async def publish_until_known(broker, each):
    """As a caller does who sends the same request again."""
    while True:
        [outcome] = await settled(broker, [each])
        if isinstance(outcome, RecordMetadata):
            return outcome
        assert outcome.retriable, outcome
        await deferLater(reactor, 0.2)


def read_uncommitted(cluster, topic):
    """All records that kcat would show, by librdkafka."""
    return read_all(cluster.bootstrap, topic, isolation="read_uncommitted")


@pytest_twisted.ensureDeferred
async def test_a_repeat_through_another_instance_is_answered_with_the_first(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("keys"), partitions=3)
    async with running(one_node, compression="gzip") as one, running(one_node) as two:
        for key in (b"k", None):
            first = await one.publish(identified(topic, key, key=key))
            assert type(first) is RecordMetadata
            assert await two.publish(identified(topic, key, key=key)) == replayed(first)
            assert await one.publish(identified(topic, key, key=key)) == replayed(first)
            with pytest.raises(IdempotencyKeyReused):
                await two.publish(identified(topic, key, b"another", key=key))
    stored = await in_thread(read_uncommitted, one_node, topic)
    assert [each.value for each in stored] == [b"value"] * 2
    assert [[name for name, _ in each.headers] for each in stored] == [[FINGERPRINT_HEADER]] * 2


@pytest_twisted.ensureDeferred
async def test_many_are_completed_behind_an_open_transaction(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("half"), partitions=2)
    transaction = await in_thread(open_transaction, one_node, topic, b"open")
    records = [identified(topic, n, b"%d" % n, key=b"%d" % n) for n in range(300)]
    async with running(one_node) as one, running(one_node) as two:
        firsts = await within(one.publish_many(records[:150]))
        outcomes = await within(two.publish_many(records))
    assert [type(each) for each in outcomes] == [ReplayedRecord] * 150 + [RecordMetadata] * 150
    assert outcomes[:150] == [replayed(each) for each in firsts]
    await in_thread(transaction.abort_transaction)

    def stored():
        found = read_all(one_node.bootstrap, topic)
        return len(found) >= 300 and found

    # The marker is written a moment later.
    found = await in_thread(wait_until, stored, "the transaction has ended")
    assert sorted(int(each.value) for each in found) == [*range(300)]


@pytest_twisted.ensureDeferred
async def test_a_repeat_whose_first_was_deleted_is_answered_with_its_place(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("gone"))
    async with running(one_node) as broker:
        first = await broker.publish(identified(topic, "gone"))
        await broker.publish(identified(topic, "kept"))
        await in_thread(one_node.admin.delete_records, topic, 0, 1)
        assert await broker.publish(identified(topic, "gone")) == replayed(first)


@pytest_twisted.ensureDeferred
async def test_a_repeat_whose_first_was_compacted_away_is_answered_with_its_place(one_node):
    topic = await in_thread(
        one_node.admin.create,
        new_topic("compacted"),
        cleanup_policy="compact",
        segment_bytes=2**20,
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms=100,
    )
    async with running(one_node) as broker:
        first = await broker.publish(identified(topic, "first"))
        filling = [record(topic, b"x" * 100_000, key=b"k") for _ in range(25)]
        await settled(broker, filling)

        async def is_compacted():
            stored = await in_thread(read_uncommitted, one_node, topic)
            return all(each.value != b"value" for each in stored)

        while not await is_compacted():
            # The segment in use is not compacted.
            await settled(broker, filling)
            await deferLater(reactor, 0.2)
        assert await broker.publish(identified(topic, "first")) == replayed(first)


@pytest_twisted.ensureDeferred
async def test_dozens_of_lost_connections_repeat_nothing(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("dropped"), partitions=3)
    ports = one_node.node(1).ports
    proxy = DroppingProxy(port=ports["PROXIED-ADVERTISED"], target=ports["PROXIED"], loss_of_one_in=8, seed=1)
    places, number = {}, 0
    try:
        async with (
            running(one_node, addresses=proxy.address, idempotence="false") as one,
            running(one_node, addresses=proxy.address) as two,
        ):
            while min(proxy.losses[loss] for loss in Loss) < 8:
                for broker in (one, two, one):
                    each = identified(topic, number, b"%d" % number, key=b"%d" % (number % KEYS))
                    found = await publish_until_known(broker, each)
                    place = (found.partition, found.offset)
                    assert places.setdefault(each.value, place) == place
                number += 1
    finally:
        proxy.close()
    await assert_each_once(one_node, topic, places)


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest_twisted.ensureDeferred
async def test_neither_killed_nor_frozen_leaders_nor_a_restart_of_all_repeat_anything(three_nodes, is_frozen):
    admin = three_nodes.admin
    topic = await in_thread(admin.create, new_topic("faults"), partitions=6)
    await in_thread(admin.wait_until_in_sync, topic, 3)
    places = {}

    async def publish(broker, numbers):
        records = [identified(topic, n, b"%d" % n, key=b"%d" % (n % KEYS)) for n in numbers]
        while records:
            outcomes = await within(broker.publish_many(records))
            for each, outcome in zip(records, outcomes, strict=True):
                if isinstance(outcome, RecordMetadata):
                    place = (outcome.partition, outcome.offset)
                    assert places.setdefault(each.value, place) == place
                else:
                    assert outcome.retriable, outcome
            records = [each for each in records if each.value not in places]

    async with (
        running(three_nodes, delivery_timeout=10) as one,
        running(three_nodes, delivery_timeout=10) as two,
    ):
        await publish(one, range(100))
        first = three_nodes.nodes[0]
        (first.freeze if is_frozen else first.kill9)()
        await publish(two, range(200))
        if is_frozen:
            first.thaw()
        else:
            first.start()
        await in_thread(admin.wait_until_in_sync, topic, 3)
        await in_thread(admin.elect, topic, partitions=range(6))
        await publish(one, range(300))
        three_nodes.kill9()
        # Not in a thread: see Node.start.
        three_nodes.restore()
        await eventually(lambda: two.health().ready)
        places_before = dict(places)
        places.clear()
        await publish(two, range(400))
        assert places_before.items() <= places.items()
    await assert_each_once(three_nodes, topic, places)


async def assert_each_once(cluster, topic, places):
    stored = await in_thread(read_uncommitted, cluster, topic)
    assert {each.value: (each.partition, each.offset) for each in stored} == places
    assert len(stored) == len(places)
