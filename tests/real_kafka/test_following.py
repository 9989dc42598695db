"""Topics that others have written, in every way that there is, as our broker follows them."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import pytest_twisted

from tests.real_kafka.admin import new_topic
from tests.real_kafka.dropping_proxy import DroppingProxy
from tests.real_kafka.listeners import USER, write_credentials
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import in_thread, kafka_url, running
from tests.real_kafka.versions import ACLS, CODECS, ELECT_LEADERS, needs
from tests.real_kafka.writing import open_transaction, produce
from tests.support.brokers import Recorder, eventually, everything, record, settled, within


def numbers(begin, end):
    return [b"%d" % n for n in range(begin, end)]


@contextmanager
def following(broker, topic):
    """A recorder that is told of a topic."""
    recorder = Recorder()
    broker.follow(topic=topic, observer=recorder)
    yield recorder


def assert_same(records, stored):
    """What we were told of is what librdkafka reads, in the same order in each partition."""
    assert sorted((r.partition, r.offset, r.key, r.value, r.timestamp_ms, r.headers) for r in records) == [
        (s.partition, s.offset, s.key, s.value, s.timestamp_ms, s.headers) for s in sorted(stored)
    ]
    for partition in {each.partition for each in records}:
        offsets = [each.offset for each in records if each.partition == partition]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("codec", CODECS)
@pytest_twisted.ensureDeferred
async def test_every_codec_of_librdkafka_is_read(one_node, codec):
    topic = await in_thread(one_node.admin.create, new_topic("codec"), partitions=3)
    values = [b"%d " % n + b"abc" * 100 for n in range(3000)]
    options = {"compression.type": codec, "batch.num.messages": 500}
    await in_thread(produce, one_node, topic, values, key=lambda value: value[:2], **options)
    async with running(kafka_url(one_node)) as broker:
        records = await everything(broker, topic)
    assert len(records) == 3000
    assert_same(records, await in_thread(read_all, one_node.bootstrap, topic))


@pytest_twisted.ensureDeferred
async def test_a_compacted_topic_is_followed_over_its_gaps(one_node):
    topic = await in_thread(
        one_node.admin.create,
        new_topic("compacted"),
        cleanup_policy="compact",
        # A segment is closed as soon as a record is a moment younger, and compacted as soon as it is closed.
        segment_ms=50,
        min_cleanable_dirty_ratio=0.001,
        delete_retention_ms=0,
    )
    async with running(kafka_url(one_node)) as broker:
        live = Recorder()
        broker.follow(topic=topic, observer=live)
        written = 0

        async def compacted():
            """Write a little more, which closes the segment before, and see what is left."""
            nonlocal written
            values = numbers(written, written + 100)
            written += 100
            await in_thread(produce, one_node, topic, values, key=lambda value: b"%d" % (int(value) % 5))
            # Live, nothing has been compacted yet.
            await live.until(written)
            return len(await in_thread(read_all, one_node.bootstrap, topic)) < written / 2

        while not await compacted():
            assert written < 20_000, "it was never compacted"
        assert live.values() == numbers(0, written)
        before, stored = None, await in_thread(read_all, one_node.bootstrap, topic)
        while stored != before:
            # It may be compacted further while it is read.
            before, records = stored, await everything(broker, topic)
            stored = await in_thread(read_all, one_node.bootstrap, topic)
    assert_same(records, stored)
    latest = {each.key: each.value for each in records}
    assert latest == {b"%d" % (n % 5): b"%d" % n for n in range(written - 5, written)}


@pytest_twisted.ensureDeferred
async def test_a_deleted_key_of_a_compacted_topic_has_no_value(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("tombstone"), cleanup_policy="compact")
    await in_thread(produce, one_node, topic, [b"1", None], key=lambda _: b"k")
    async with running(kafka_url(one_node)) as broker:
        assert [(each.key, each.value) for each in await everything(broker, topic)] == [
            (b"k", b"1"),
            (b"k", None),
        ]


@pytest_twisted.ensureDeferred
async def test_of_transactions_only_what_was_committed_is_shown(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("transactions"), partitions=2)
    async with running(kafka_url(one_node)) as broker:
        with following(broker, topic) as live:
            for n in range(12):
                values = numbers(10 * n, 10 * n + 10)
                options = {"key": lambda value: value, "transaction": f"id-{n % 3}", "commit": n % 3 != 1}
                await in_thread(produce, one_node, topic, values, **options)
            await in_thread(produce, one_node, topic, [b"last"])
            shown = sorted([b"%d" % n for n in range(120) if n // 10 % 3 != 1] + [b"last"])
            await live.until(len(shown))
        # It ends with a control batch in some partition, which is no record, and is passed all the same.
        await in_thread(produce, one_node, topic, [b"aborted"], transaction="id-1", commit=False)
        again = await everything(broker, topic)
        assert sorted(live.values()) == sorted(each.value for each in again) == shown
    assert_same(again, await in_thread(read_all, one_node.bootstrap, topic))


@pytest_twisted.ensureDeferred
async def test_a_topic_of_aborted_transactions_alone_is_empty_and_caught_up_with(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("aborted"))
    for _ in range(3):
        await in_thread(produce, one_node, topic, numbers(0, 50), transaction="aborted", commit=False)
    async with running(kafka_url(one_node)) as broker:
        assert await everything(broker, topic) == []
        with following(broker, topic) as live:
            await in_thread(produce, one_node, topic, [b"committed"], transaction="aborted")
            await live.until(1)
        assert live.values() == [b"committed"]


@pytest_twisted.ensureDeferred
async def test_what_is_in_an_open_transaction_is_shown_once_it_is_committed(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("open"))
    producer = await in_thread(open_transaction, one_node, topic, b"within")
    async with running(kafka_url(one_node)) as broker:
        with following(broker, topic) as live:
            # Behind the open transaction nothing is shown (KIP-98), so that the order is the same for all.
            await within(broker.publish(record(topic, b"behind")))
            await in_thread(producer.commit_transaction, 30)
            await live.until(2)
        assert live.values() == [b"within", b"behind"]


@needs(ACLS)
@pytest_twisted.ensureDeferred
async def test_a_topic_that_may_not_be_read_is_followed_once_it_may(one_node, tmp_path):
    topic = await in_thread(one_node.admin.create, new_topic("unreadable"))
    await in_thread(one_node.admin.rule, topic, USER, allow=["DESCRIBE", "WRITE"])
    options = {"sasl": "PLAIN", "credentials": write_credentials(tmp_path)}
    async with running(kafka_url(one_node, "SASL", **options)) as broker:
        with following(broker, topic) as live:
            await eventually(
                lambda: any(topic in each and "READ" in each for each in broker.health().reasons)
            )
            await within(broker.publish(record(topic, b"1")))
            assert live.records == []
            await in_thread(one_node.admin.rule, topic, USER, allow=["READ"])
            await live.until(1)
            await eventually(lambda: broker.health().ready)
        assert live.values() == [b"1"]


@pytest_twisted.ensureDeferred
async def test_partitions_that_are_added_are_followed_from_their_first_record(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("grown"))
    async with running(kafka_url(one_node)) as broker:
        with following(broker, topic) as live:
            await in_thread(produce, one_node, topic, numbers(0, 10))
            await live.until(10)
            await in_thread(one_node.admin.add_partitions, topic, 4)
            for partition in range(4):
                values = numbers(100 * partition, 100 * partition + 10)
                await in_thread(produce, one_node, topic, values, partition=partition)
            await live.until(50)
            # And they are published to.
            keys = [b"%d" % n for n in range(40)]
            found = await settled(broker, [record(topic, key, key=key) for key in keys])
            await live.until(90)
    assert {each.partition for each in found} == {0, 1, 2, 3}
    assert len(live.caught_up_at) == 1
    assert live.caught_up_at[0] <= 10
    assert_same(live.records, await in_thread(read_all, one_node.bootstrap, topic))


@pytest_twisted.ensureDeferred
async def test_a_topic_whose_first_records_are_gone_is_read_from_the_first_that_is_left(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("trimmed"))
    await in_thread(produce, one_node, topic, numbers(0, 100))
    await in_thread(one_node.admin.delete_records, topic, 0, 60)
    async with running(kafka_url(one_node)) as broker:
        assert [each.value for each in await everything(broker, topic)] == numbers(60, 100)
        await in_thread(one_node.admin.delete_records, topic, 0, 100)
        assert await everything(broker, topic) == []


@pytest_twisted.ensureDeferred
async def test_a_follower_that_was_too_slow_goes_on_with_the_first_record_that_is_left(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("overtaken"))
    ports = one_node.node(1).ports
    proxy = DroppingProxy(port=ports["PROXIED-ADVERTISED"], target=ports["PROXIED"])
    try:
        async with running(kafka_url(one_node, addresses=proxy.address)) as broker:
            with following(broker, topic) as live:
                await in_thread(produce, one_node, topic, numbers(0, 10))
                await live.until(10)
                proxy.hold()
                # A fetch that is waiting for records already gets the first of them.
                proxy.drop_all()
                await in_thread(produce, one_node, topic, numbers(10, 100))
                await in_thread(one_node.admin.delete_records, topic, 0, 60)
                proxy.resume()
                await eventually(lambda: live.values()[-1] == b"99")
                await in_thread(produce, one_node, topic, numbers(100, 110))
                await live.until(60)
            assert live.values() == numbers(0, 10) + numbers(60, 110)
            assert len(live.caught_up_at) == 1
            assert live.caught_up_at[0] <= 10
    finally:
        proxy.close()


@pytest.mark.one_version
@pytest.mark.release
@needs(ELECT_LEADERS)
@pytest_twisted.ensureDeferred
async def test_nothing_is_missed_or_repeated_while_leaders_change(three_nodes):
    admin = three_nodes.admin
    topic = await in_thread(admin.create, new_topic("leaders"), partitions=6)
    await in_thread(admin.wait_until_in_sync, topic, 3)
    values = 0
    async with running(kafka_url(three_nodes)) as broker:
        with following(broker, topic) as live:

            async def publish():
                nonlocal values
                more = numbers(values, values + 60)
                values += 60
                await settled(broker, [record(topic, value, key=value) for value in more])

            await publish()
            for node in three_nodes.nodes:
                await in_thread(node.stop)
                await publish()
                node.start()
                await in_thread(three_nodes.wait_until_ready)
                await in_thread(admin.wait_until_in_sync, topic, 3)
                await publish()
            await in_thread(admin.elect, topic, partitions=range(6))
            await publish()
            await live.until(values)
            assert sorted(int(value) for value in live.values()) == list(range(values))
    assert_same(live.records, await in_thread(read_all, three_nodes.bootstrap, topic))
