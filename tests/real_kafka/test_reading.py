"""`IBroker.read` on real Kafka: transactions, retention, elections, and topics that change."""

from __future__ import annotations

import pytest
import pytest_twisted

from sampleapp.errors import BrokerUnavailable, TopicNotAuthorized, UnknownTopic
from sampleapp.model import EARLIEST, FromEnd, FromTime, GoneRecords, ReadRequest
from tests.real_kafka.admin import new_topic
from tests.real_kafka.listeners import USER, write_credentials
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import in_thread, kafka_url, ready, running
from tests.real_kafka.versions import ACLS, CODECS, TOPIC_IDS, needs
from tests.real_kafka.writing import open_transaction, produce
from tests.support.brokers import within
from tests.support.waiting import wait_until

LATEST = FromEnd(0)


async def read(broker, topic, starts=(), *, others=EARLIEST, limit=500, max_bytes=2**20):
    request = ReadRequest(topic=topic, starts=dict(starts), others=others, limit=limit, max_bytes=max_bytes)
    return await within(broker.read(request))


async def read_to_the_end(broker, topic, **options):
    """All records, page by page, and the last page."""
    page = await read(broker, topic, **options)
    found = list(page.records)
    while not page.is_up_to_date:
        assert not page.gone
        assert not page.beyond
        before = page.positions
        page = await read(broker, topic, page.positions, **options)
        assert page.positions != before
        found += page.records
    return found, page


def places(records):
    """By partition: the offset and the value of each record."""
    found = {}
    for each in records:
        found.setdefault(each.partition, []).append((each.offset, each.value))
    return found


@pytest_twisted.ensureDeferred
async def test_pages_have_what_a_committed_reader_reads(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("pages"), partitions=3)

    def write():
        for round_ in range(4):
            for codec in CODECS:
                some = [b"%d" % number * 20 for number in range(200)]
                produce(one_node, topic, some, **{"compression.type": codec})
                produce(one_node, topic, some, transaction=f"{topic}-{round_}", commit=bool(round_ % 2))

    await in_thread(write)
    count = 6 * 200 * len(CODECS)

    def committed():
        found = read_all(one_node.bootstrap, topic)
        return len(found) == count and found

    # The markers of a transaction are written a moment after its commit was answered.
    expected = places(await in_thread(wait_until, committed, "the last transaction can be read"))
    async with running(kafka_url(one_node)) as broker:
        for limit, max_bytes in ((10_000, 2**20), (500, 2**20), (97, 2**20), (10_000, 5000)):
            found, page = await read_to_the_end(broker, topic, limit=limit, max_bytes=max_bytes)
            assert places(found) == expected
            assert not page.held


@pytest_twisted.ensureDeferred
async def test_an_open_transaction_is_held_and_an_aborted_one_is_passed(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("open"))
    await in_thread(produce, one_node, topic, [b"1", b"2"])
    producer = await in_thread(open_transaction, one_node, topic, b"3")
    await in_thread(produce, one_node, topic, [b"4"])
    async with running(kafka_url(one_node)) as broker:
        page = await read(broker, topic)
        assert [each.value for each in page.records] == [b"1", b"2"]
        assert (page.positions, page.ends, page.held) == ({0: 2}, {0: 2}, {0})
        assert page.is_up_to_date
        latest = await read(broker, topic, others=LATEST, limit=0)
        assert latest.positions == {0: 2}
        await in_thread(producer.abort_transaction, 30)
        # The marker is written a moment later.
        while page.held:
            page = await read(broker, topic, page.positions)
        assert [each.value for each in page.records] == [b"4"]
        # The marker has an offset, too.
        assert page.positions == page.ends == {0: 5}
        assert not page.held


@pytest_twisted.ensureDeferred
async def test_deleted_records_and_a_position_beyond_the_end_are_told(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("gone"), partitions=2)
    for partition in range(2):
        await in_thread(produce, one_node, topic, [b"x"] * 10, partition=partition)
    await in_thread(one_node.admin.delete_records, topic, 0, 7)
    async with running(kafka_url(one_node)) as broker:
        page = await read(broker, topic, {0: 3, 1: 9})
        assert page.gone == (GoneRecords(0, 3, 7),)
        assert page.positions[0] == 3
        earliest = await read(broker, topic, limit=0)
        assert earliest.positions == {0: 7, 1: 0}
        page = await read(broker, topic, {0: 7, 1: 11})
        assert page.beyond == {1: 10}
        assert [each.partition for each in page.records] == [0] * 3


@pytest_twisted.ensureDeferred
async def test_times_are_found_in_each_partition(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("times"), partitions=2)
    await in_thread(produce, one_node, topic, [b"old"], partition=0)
    stored = await in_thread(read_all, one_node.bootstrap, topic)
    after = stored[0].timestamp_ms + 1
    await in_thread(produce, one_node, topic, [b"new"], partition=0)
    async with running(kafka_url(one_node)) as broker:
        page = await read(broker, topic, others=FromTime(after))
        assert [each.value for each in page.records] == [b"new"]
        page = await read(broker, topic, others=FromTime(after + 10**9), limit=0)
        assert page.positions == {0: 2, 1: 0}


@pytest_twisted.ensureDeferred
async def test_partitions_that_are_added_are_read(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("more"))
    async with running(kafka_url(one_node)) as broker:
        page = await read(broker, topic)
        assert page.partitions == 1
        await in_thread(one_node.admin.add_partitions, topic, 3)
        await in_thread(produce, one_node, topic, [b"x"], partition=2)
        # One that is named is looked for at once.
        page = await read(broker, topic, {2: 0})
        assert page.partitions == 3
        assert [each.partition for each in page.records] == [2]


@needs(TOPIC_IDS)
@pytest_twisted.ensureDeferred
async def test_a_topic_that_was_made_again_has_another_id(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("again"))
    await in_thread(produce, one_node, topic, [b"old"] * 5)
    async with running(kafka_url(one_node)) as broker:
        first = await read(broker, topic)
        await in_thread(one_node.admin.delete, topic)
        with pytest.raises(UnknownTopic):
            await read(broker, topic, first.positions)
        await in_thread(one_node.admin.create, topic)
        await in_thread(produce, one_node, topic, [b"new"] * 10)
        again = await read(broker, topic, {0: 0})
        assert again.topic_id != first.topic_id
        assert {each.value for each in again.records} == {b"new"}


@needs(ACLS)
@pytest_twisted.ensureDeferred
async def test_it_takes_the_rights_read_and_describe(one_node, tmp_path):
    topics = [new_topic("unreadable") for _ in range(2)]
    for topic, allowed in zip(topics, (["DESCRIBE", "WRITE"], ["READ"]), strict=True):
        await in_thread(one_node.admin.create, topic)
        await in_thread(produce, one_node, topic, [b"x"])
        await in_thread(one_node.admin.rule, topic, USER, allow=allowed)
    invisible = await in_thread(one_node.admin.create, new_topic("invisible"))
    await in_thread(one_node.admin.rule, invisible, USER, deny=["DESCRIBE"])
    options = {"sasl": "PLAIN", "credentials": write_credentials(tmp_path)}
    async with running(kafka_url(one_node, "SASL", **options)) as broker:
        for topic in (topics[0], invisible):
            with pytest.raises(TopicNotAuthorized, match="READ"):
                await read(broker, topic)
        # READ includes DESCRIBE.
        assert len((await read(broker, topics[1])).records) == 1


@pytest_twisted.ensureDeferred
async def test_a_topic_that_is_read_is_not_made(one_node):
    topic = new_topic("none")
    async with running(kafka_url(one_node, auto_create="true")) as broker:
        await ready(broker)
        with pytest.raises(UnknownTopic):
            await read(broker, topic)
    assert not await in_thread(one_node.admin.exists, topic)


@pytest_twisted.ensureDeferred
async def test_a_batch_of_many_megabytes_is_read_page_by_page(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("large"))
    some = [b"%05d" % number + b"x" * 995 for number in range(12_000)]
    config = {"compression.type": "gzip", "batch.size": 20_000_000, "batch.num.messages": 20_000}
    await in_thread(produce, one_node, topic, some, **config, **{"linger.ms": 500})
    async with running(kafka_url(one_node)) as broker:
        found, page = await read_to_the_end(broker, topic, limit=10_000)
        assert [each.value for each in found] == some
        assert page.positions == {0: 12_000}


@pytest.mark.one_version
@pytest.mark.release
@pytest_twisted.ensureDeferred
async def test_nothing_is_lost_or_repeated_while_leaders_are_killed_and_frozen(three_nodes):
    topic = await in_thread(three_nodes.admin.create, new_topic("leaders"), partitions=6)
    await in_thread(three_nodes.admin.wait_until_in_sync, topic, 3)
    found, positions = [], {}

    async def read_until(broker, count):
        nonlocal positions
        while len(found) < count:
            try:
                page = await read(broker, topic, positions, limit=50)
            except BrokerUnavailable:
                continue
            assert not page.gone
            assert not page.beyond
            found.extend(page.records)
            positions = page.positions

    async with running(kafka_url(three_nodes)) as broker:
        for round_ in range(3):
            some = [b"%d-%d" % (round_, number) for number in range(600)]
            await in_thread(produce, three_nodes, topic, some)
            await read_until(broker, 600 * round_ + 200)
            node = three_nodes.node(1 + round_ % 3)
            (node.freeze if round_ % 2 else node.kill9)()
            await read_until(broker, 600 * (round_ + 1))
            three_nodes.restore()
            await in_thread(three_nodes.admin.wait_until_in_sync, topic, 3)
    assert places(found) == places(await in_thread(read_all, three_nodes.bootstrap, topic))
