"""What is published is in the topic as it was sent, as others read it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict

import pytest
import pytest_twisted
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from sampleapp.model import RecordMetadata
from sampleapp_testing.broker_contract import KEYS, TIMESTAMPS, VALUES
from tests.real_kafka.admin import new_topic
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import for_each_version, in_thread, kafka_url, post, running
from tests.real_kafka.versions import CODECS
from tests.support.brokers import record, settled, within

PARTITIONS = 6
# What people use for keys, beside what bytes there are.
TEXT_KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(str.encode)
# For librdkafka the name of a header ends at a NUL.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=20)), max_size=3).map(tuple)


def read_back_property():
    @settings(max_examples=40)
    @given(
        codec=st.sampled_from(CODECS),
        contents=st.lists(st.tuples(KEYS | TEXT_KEYS, VALUES, HEADERS, TIMESTAMPS), min_size=1, max_size=12),
    )
    @pytest_twisted.ensureDeferred
    async def test(self, codec, contents):
        topic = await in_thread(self.cluster.admin.create, new_topic("back"), partitions=PARTITIONS)
        records = [record(topic, v, key=k, headers=h, timestamp_ms=t) for k, v, h, t in contents]
        async with running(kafka_url(self.cluster, compression=codec)) as broker:
            found = await settled(broker, records)
        stored = {
            (s.partition, s.offset): s for s in await in_thread(read_all, self.cluster.bootstrap, topic)
        }
        assert len(stored) == len(records)
        for sent, metadata in zip(records, found, strict=True):
            assert isinstance(metadata, RecordMetadata), metadata
            back = stored[metadata.partition, metadata.offset]
            assert (back.key, back.value, back.headers, back.timestamp_ms) == (
                sent.key,
                sent.value,
                sent.headers,
                sent.timestamp_ms,
            )

    return test


def partition_property():
    @settings(max_examples=40)
    @given(keys=st.lists(KEYS.filter(lambda key: key is not None) | TEXT_KEYS, min_size=1, max_size=20))
    @pytest_twisted.ensureDeferred
    async def test(self, keys):
        async with running(kafka_url(self.cluster)) as broker:
            found = await settled(broker, [record(self.topic, b"", key=key) for key in keys])
        assert [each.partition for each in found] == await in_thread(self.librdkafkas_choice, keys)

    return test


@for_each_version
class ReadingBack:
    def __init_subclass__(cls):
        cls.test_librdkafka_reads_what_was_published = read_back_property()
        cls.test_a_key_goes_to_the_partition_that_javas_and_librdkafkas_partitioner_choose = (
            partition_property()
        )

    @pytest.fixture(autouse=True)
    def _cluster(self, one_node):
        self.cluster = one_node
        self.topic = one_node.admin.create(new_topic("partitions"), partitions=PARTITIONS)

    def librdkafkas_choice(self, keys):
        chosen = {}
        producer = Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "partitioner": "murmur2_random", "log_level": 0}
        )
        for number, key in enumerate(keys):
            producer.produce(
                self.topic,
                key=key,
                on_delivery=lambda _, message, n=number: chosen.__setitem__(n, message.partition()),
            )
        assert producer.flush(30) == 0
        return [chosen[number] for number in range(len(keys))]


@pytest_twisted.ensureDeferred
async def test_records_without_a_key_are_spread_over_the_partitions(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("spread"), partitions=PARTITIONS)
    async with running(kafka_url(one_node)) as broker:
        # One after the other: what waits together may go together.
        for n in range(60):
            await within(broker.publish(record(topic, b"%d" % n)))
    stored = await in_thread(read_all, one_node.bootstrap, topic)
    assert sorted(int(each.value) for each in stored) == list(range(60))
    assert len({each.partition for each in stored}) > 1


@pytest.mark.parametrize("codec", CODECS)
@pytest_twisted.ensureDeferred
async def test_many_records_at_once_are_all_there_in_the_order_of_their_keys(one_node, codec):
    topic = await in_thread(one_node.admin.create, new_topic("many"), partitions=PARTITIONS)
    async with running(kafka_url(one_node, compression=codec)) as broker:
        records = [record(topic, b"%d " % n + b"x" * 300, key=b"%d" % (n % 50)) for n in range(20_000)]
        found = await settled(broker, records)
    stored = await in_thread(read_all, one_node.bootstrap, topic)
    by_place = {(each.partition, each.offset): each.value for each in stored}
    assert {(m.partition, m.offset): r.value for m, r in zip(found, records, strict=True)} == by_place
    by_key = defaultdict(list)
    for each in stored:
        by_key[each.key].append(int(each.value.split()[0]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


@pytest.fixture
def kcat():
    found = shutil.which("kcat")
    if found is None:
        why = "there is no kcat; install it (Debian: kcat)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return found


# %K and %S are the lengths of key and value, -1 for null; -Z prints NULL for null, and for what is empty.
KCAT_FORMAT = "%p|%o|%K|%k|%S|%s|%h|%T\n"


def read_with_kcat(kcat, cluster, topic):
    """What kcat prints of a topic: a line for each record, in the order of its offsets."""
    command = [kcat, "-C", "-b", cluster.bootstrap, "-t", topic, "-e", "-q", "-Z", "-f", KCAT_FORMAT]
    answer = subprocess.run(command, check=True, capture_output=True, timeout=60)
    return answer.stdout.decode().splitlines()


@pytest_twisted.ensureDeferred
async def test_kcat_reads_back_keys_nulls_and_values_as_they_were_sent(one_node, kcat):
    topic = await in_thread(one_node.admin.create, new_topic("kcat"))
    contents = [
        (b"kitchen", b"21.5", ()),
        (None, b"no key", ()),
        (b"", b"the empty key", ()),
        (b"no value", None, ()),
        (None, None, ()),
        (b"", b"", ()),
        ("Küche 厨房".encode(), "21,5 °C".encode(), ()),
        (b"k", b"with headers", (("one", b"1"), ("two", b""), ("one", "zwei ü".encode()))),
    ]
    async with running(kafka_url(one_node)) as broker:
        for key, value, headers in contents:
            await within(
                broker.publish(record(topic, value, key=key, headers=headers, timestamp_ms=1234567890123))
            )
    assert await in_thread(read_with_kcat, kcat, one_node, topic) == [
        "0|0|7|kitchen|4|21.5||1234567890123",
        "0|1|-1|NULL|6|no key||1234567890123",
        "0|2|0|NULL|13|the empty key||1234567890123",
        "0|3|8|no value|-1|NULL||1234567890123",
        "0|4|-1|NULL|-1|NULL||1234567890123",
        "0|5|0|NULL|0|NULL||1234567890123",
        "0|6|13|Küche 厨房|8|21,5 °C||1234567890123",
        "0|7|1|k|12|with headers|one=1,two=,one=zwei ü|1234567890123",
    ]


def test_kcat_reads_what_was_posted(one_node, kcat, start_service):
    topic = one_node.admin.create(new_topic("posted"))
    service = start_service(one_node)
    for number, message in enumerate(
        [{"content": "21.5"}, {"content": "21.5", "key": "kitchen"}, {"content": "", "key": ""}]
    ):
        status, body = post(service, topic, **message)
        assert (status, body) == (200, {"topic": topic, "partition": 0, "offset": number})
    lines = [line.rpartition("|")[0] for line in read_with_kcat(kcat, one_node, topic)]
    assert lines == ["0|0|-1|NULL|4|21.5|", "0|1|7|kitchen|4|21.5|", "0|2|0|NULL|0|NULL|"]
