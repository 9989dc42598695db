"""The Kafka broker on librdkafka's mock cluster: the contract, and what goes over the wire."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, contextmanager
from signal import SIGTERM
from urllib.parse import urlencode

import pytest
import pytest_twisted
import treq
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.threads import deferToThread
from twisted.logger import LogLevel, formatEvent

from sampleapp.brokers import from_url
from sampleapp.errors import (
    BrokerIncompatible,
    BrokerStopped,
    BrokerUnavailable,
    PublishError,
    UnknownTopic,
)
from sampleapp.model import Verdicts
from sampleapp_testing.broker_contract import KEYS, TIMESTAMPS, VALUES, BrokerContract, new_topic
from tests.support import strategies
from tests.support.brokers import content, eventually, everything, record, settled, within
from tests.support.examples import examples
from tests.support.faster_time import FasterReactor
from tests.support.in_memory import InMemoryService, request_bytes
from tests.support.kafka_log import log_of, produced, topics_of
from tests.support.live_service import LiveService
from tests.support.logs import logged
from tests.support.mock_cluster import (
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    MockCluster,
    Tap,
)

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""The names in a URL, and the numbers in a batch: https://kafka.apache.org/documentation/#recordbatch"""
JSON = [(b"Content-Type", b"application/json")]
# For librdkafka a header's name ends at a NUL.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=20)), max_size=3).map(tuple)


pytestmark = pytest.mark.usefixtures("short_fetches")


@pytest.fixture(scope="module")
def shared():
    """A cluster that every test leaves as it was, but for topics of its own."""
    with MockCluster() as cluster:
        yield cluster


@pytest.fixture
def mock(clusters):
    with clusters.new() as cluster:
        yield cluster


def url(bootstrap, **options):
    return f"kafka://{bootstrap}?{urlencode({'auto_create': 'true'} | options)}"


@asynccontextmanager
async def running(bootstrap, **options):
    broker = from_url(url(bootstrap, **options), reactor=reactor)
    broker.check()
    broker.start()
    try:
        yield broker
    finally:
        await within(broker.stop(deadline_s=20))


class TestKafkaBroker(BrokerContract):
    durable = True
    # librdkafka's mock cluster does not look at times; Apache Kafka does (tests/real_kafka).
    finds_times = False
    # Nor does it recognise a record; Apache Kafka does (tests/real_kafka).
    idempotent = False

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def _on_the_mock(request, shared):
        request.cls.bootstrap = shared.bootstrap

    @contextmanager
    def new_broker(self):
        yield self.again(None)

    def again(self, broker):
        return from_url(url(self.bootstrap), reactor=FasterReactor())

    def new_plain_topic(self):
        return new_topic()


def assert_found(sent, answers, log):
    """Each record is where its answer says, as it was sent; and there are no others."""
    by_place = {(each.topic, each.partition, each.offset): each for each in log}
    assert len(by_place) == len(log) == len(sent)
    for each, metadata in zip(sent, answers, strict=True):
        found = by_place[metadata.topic, metadata.partition, metadata.offset]
        assert content(found) == content(each)


# --- what is written, and where ------------------------------------------------------------------------


@examples(15)
@given(
    contents=st.lists(st.tuples(KEYS, VALUES, HEADERS, TIMESTAMPS), min_size=1, max_size=12),
    compression=st.sampled_from(sorted(CODECS)),
)
@pytest_twisted.ensureDeferred
async def test_librdkafka_reads_each_record_as_it_was_published_where_the_answer_says(
    shared, contents, compression
):
    topic = new_topic()
    sent = [record(topic, v, key=k, headers=h, timestamp_ms=t) for k, v, h, t in contents]
    async with running(shared.bootstrap, compression=compression) as broker:
        answers = await settled(broker, sent)
    assert_found(sent, answers, await log_of(shared.bootstrap, topic))


@examples(8)
@given(
    contents=st.lists(st.tuples(KEYS, VALUES, HEADERS, TIMESTAMPS), min_size=1, max_size=12),
    count=st.sampled_from([0, 3000]),
)
@pytest_twisted.ensureDeferred
async def test_librdkafka_reads_each_of_many_records_as_it_was_published_where_its_outcome_says(
    shared, contents, count
):
    topic = new_topic()
    sent = [record(topic, v, key=k, headers=h, timestamp_ms=t) for k, v, h, t in contents]
    sent += [record(topic, b"%d" % number, key=b"%d" % (number % 7)) for number in range(count)]
    async with running(shared.bootstrap) as broker:
        outcomes = await within(broker.publish_many(sent))
    assert_found(sent, outcomes, await log_of(shared.bootstrap, topic))


@pytest_twisted.ensureDeferred
async def test_topics_are_checked_described_and_made(mock):
    mock.create_topic("b", partitions=2)
    mock.create_topic("a", partitions=1)
    async with running(mock.bootstrap, auto_create="false") as broker:
        errors = await within(broker.check_topics(["a", "b", "absent"]))
        found = await within(broker.check_topics(["a", "b", "absent"], create=False))
        names = await within(broker.list_topics())
        described = await within(broker.describe_topics(names))
        one = await within(broker.describe_topics(["b", "absent"]))
    assert {name: type(error) for name, error in errors.items()} == {"absent": UnknownTopic}
    assert [topic.name for topic in described] == names == ["a", "b"]
    assert one == described[1:]
    for partition in described[1].partitions:
        assert partition.leader in partition.in_sync
        assert set(partition.in_sync) <= set(partition.replicas)
    assert [partition.partition for partition in described[1].partitions] == [0, 1]
    assert {name: type(error) for name, error in found.items()} == {"absent": UnknownTopic}
    async with running(mock.bootstrap) as broker:
        await eventually(lambda: broker.health().ready)
        assert await within(broker.check_topics(["a", "made"], create=False)) == {}
        assert await within(broker.list_topics()) == ["a", "b"]
        assert await within(broker.check_topics(["made"])) == {}
        assert [topic.name for topic in await within(broker.describe_topics(["made"]))] == ["made"]


@pytest_twisted.ensureDeferred
async def test_before_it_is_started_and_after_it_is_stopped_nothing_is_published_or_known(shared):
    broker = from_url(url(shared.bootstrap), reactor=reactor)

    def work(groups):
        return (
            groups.pull("t", "g", most=1, wait_s=0),
            groups.acknowledge("t", "g", b"", Verdicts()),
            groups.extend("t", "g", b""),
            groups.backlog("t", "g"),
        )

    async def rejections():
        for answer in (
            broker.publish_many([record("t")]),
            broker.list_topics(),
            broker.describe_topics(["t"]),
            *(() if broker.work is None else work(broker.work)),
        ):
            with pytest.raises(PublishError) as caught:
                await within(answer)
            yield type(caught.value)
        yield type((await within(broker.check_topics(["t"])))["t"])

    assert [each async for each in rejections()] == [BrokerUnavailable] * 4
    assert broker.work is None
    broker.check()
    broker.start()
    await within(broker.stop(deadline_s=5))
    assert [each async for each in rejections()] == [
        BrokerStopped,
        BrokerUnavailable,
        BrokerUnavailable,
        *[BrokerStopped] * 5,
    ]


@pytest.mark.parametrize("compression", CODECS)
@pytest_twisted.ensureDeferred
async def test_batches_are_compressed_as_the_url_says(mock, compression):
    mock.create_topic("t", partitions=3)
    sent = [record("t", b"%d " % n * 50, key=b"%d" % (n % 7)) for n in range(300)]
    async with Tap(mock, reactor) as tap:
        async with running(tap.bootstrap, compression=compression) as broker:
            answers = await settled(broker, sent)
        batches = tap.batches()
    assert {each.codec for each in batches} == {CODECS[compression]}
    assert sum(each.count for each in batches) == 300
    assert_found(sent, answers, await log_of(mock.bootstrap, "t"))


@pytest.mark.parametrize("compression", CODECS)
@pytest_twisted.ensureDeferred
async def test_a_following_reads_what_librdkafka_publishes(shared, compression):
    topic = new_topic()
    contents = [(None if n % 5 == 0 else b"%d" % (n % 7), b"%d " % n * 50) for n in range(300)]
    shared.create_topic(topic, partitions=3)
    partitions = await produced(shared.bootstrap, topic, contents, compression=compression)
    async with running(shared.bootstrap) as broker:
        read = await everything(broker, topic)
    assert sorted((r.partition, r.key, r.value) for r in read if r.key) == sorted(
        (partition, *each) for partition, each in zip(partitions, contents, strict=True) if each[0]
    )
    assert sorted(r.value for r in read) == sorted(value for _, value in contents)


@examples(8)
@given(
    keys=st.lists(st.binary(max_size=30), min_size=1, max_size=200, unique=True),
    partitions=st.integers(min_value=1, max_value=20),
)
@pytest_twisted.ensureDeferred
async def test_a_key_chooses_the_partition_that_librdkafka_chooses_in_java_s_way(shared, keys, partitions):
    topic = new_topic()
    shared.create_topic(topic, partitions=partitions)
    expected = await produced(shared.bootstrap, topic, [(key, b"v") for key in keys])
    async with running(shared.bootstrap) as broker:
        answers = await settled(broker, [record(topic, key=key) for key in keys])
    assert [each.partition for each in answers] == expected


@pytest_twisted.ensureDeferred
async def test_records_without_a_key_are_spread_over_the_partitions(shared):
    topic = new_topic()
    shared.create_topic(topic, partitions=4)
    async with running(shared.bootstrap) as broker:
        used = set()
        for _ in range(200):
            used.add((await within(broker.publish(record(topic)))).partition)
            if len(used) == 4:
                break
    assert used == {0, 1, 2, 3}


@pytest_twisted.ensureDeferred
async def test_a_record_is_published_with_one_request_and_many_records_with_few(mock):
    mock.create_topic("t", partitions=3)
    async with running(mock.bootstrap) as broker:
        await within(broker.publish(record("t", key=b"k")))
        mock.track_requests()
        await within(broker.publish(record("t", key=b"k")))
        assert len(mock.requests(PRODUCE)) == 1
        mock.track_requests()
        await settled(broker, [record("t", key=b"%d" % n) for n in range(3000)])
        assert len(mock.requests(PRODUCE)) <= 30
        assert mock.requests(INIT_PRODUCER_ID) == []
        # Some are asked for from time to time, whatever is published: more of them if the machine is slow.
        assert len(mock.requests(METADATA)) <= 30


@pytest_twisted.ensureDeferred
async def test_what_is_sent_is_numbered_without_a_gap_in_each_partition(mock):
    mock.create_topic("t", partitions=3)
    async with Tap(mock, reactor) as tap:
        async with running(tap.bootstrap) as broker:
            for _ in range(5):
                await settled(broker, [record("t", key=b"%d" % n) for n in range(40)])
        batches = tap.batches()
    assert len({(each.producer_id, each.epoch) for each in batches}) == 1
    assert batches[0].producer_id >= 0
    for partition in range(3):
        number = 0
        for each in batches:
            if each.partition == partition:
                assert each.base_sequence == number
                number += each.count
        assert number > 0


@pytest_twisted.ensureDeferred
async def test_without_idempotence_nothing_is_numbered(mock):
    mock.create_topic("t")
    async with Tap(mock, reactor) as tap:
        async with running(tap.bootstrap, idempotence="false") as broker:
            await settled(broker, [record("t") for _ in range(10)])
        assert {(each.producer_id, each.epoch, each.base_sequence) for each in tap.batches()} == {
            (-1, -1, -1)
        }
        assert tap.of(INIT_PRODUCER_ID) == []


# --- over HTTP -----------------------------------------------------------------------------------------


@examples(8)
@given(messages=st.lists(st.tuples(strategies.keys, strategies.texts), min_size=1, max_size=8))
@pytest_twisted.ensureDeferred
async def test_a_post_is_answered_with_the_place_where_librdkafka_finds_its_text(shared, messages):
    topic = new_topic()
    async with running(shared.bootstrap) as broker:
        service = InMemoryService(broker=broker)
        connections = [service.connect() for _ in messages]
        for connection, (key, text) in zip(connections, messages, strict=True):
            body = json.dumps({"topic": topic, "key": key, "content": text}).encode()
            connection.send(request_bytes("POST", "/messages", JSON, body))
        await eventually(lambda: all(connection.sent for connection in connections))
        responses = [connection.responses(["POST"])[0] for connection in connections]
    assert [response.status for response in responses] == [200] * len(messages)
    places = [json.loads(response.body) for response in responses]
    found = {(r.partition, r.offset): (r.key, r.value) for r in await log_of(shared.bootstrap, topic)}
    assert len(found) == len(messages)
    for place, (key, text) in zip(places, messages, strict=True):
        assert place["topic"] == topic
        assert found[place["partition"], place["offset"]] == (
            None if key is None else key.encode(),
            text.encode(),
        )


@pytest_twisted.ensureDeferred
async def test_the_service_serves_what_was_posted_to_it_from_kafka(shared, tmp_path):
    topic = new_topic()
    shared.create_topic(topic, partitions=2)

    async def post(topic, text):
        message = {"topic": topic, "key": "kitchen", "content": text}
        return await within(treq.post(service.url + "messages", json=message, persistent=False))

    async def readings():
        return await treq.json_content(await within(treq.get(service.url, persistent=False)))

    service = await within(
        deferToThread(
            LiveService,
            directory=tmp_path,
            broker=f"kafka://{shared.bootstrap}",
            options=["--readings-topic", topic],
        )
    )
    with service:
        answer = await post(topic, "21.5")
        assert answer.code == 200
        [stored] = await log_of(shared.bootstrap, topic)
        assert await treq.json_content(answer) == {
            "topic": topic,
            "partition": stored.partition,
            "offset": stored.offset,
        }
        assert (stored.key, stored.value) == (b"kitchen", b"21.5")
        assert (await post("absent", "1")).code == 404
        assert (await post("not a topic", "1")).code == 422
        assert "absent" not in await topics_of(shared.bootstrap)
        while not (found := await readings()):
            pass
        assert found == [21.5]
        assert await deferToThread(service.stop) == -SIGTERM
        assert "Traceback" not in service.output


# --- versions ------------------------------------------------------------------------------------------

OLDEST = {PRODUCE: (0, 7), FETCH: (0, 10), LIST_OFFSETS: (0, 4), METADATA: (0, 7), INIT_PRODUCER_ID: (0, 1)}
"""The versions that Kafka 2.1 supports."""


@pytest.mark.parametrize(
    ("offered", "spoken"),
    [
        (OLDEST, {PRODUCE: 7, FETCH: 10, LIST_OFFSETS: 4, METADATA: 7, INIT_PRODUCER_ID: 1}),
        ({}, {PRODUCE: 8, FETCH: 13, LIST_OFFSETS: 5, METADATA: 12, INIT_PRODUCER_ID: 1}),
    ],
    ids=["like 2.1", "the newest"],
)
@pytest_twisted.ensureDeferred
async def test_the_highest_version_that_both_sides_have_is_spoken(mock, offered, spoken):
    mock.create_topic("t", partitions=3)
    for api_key, versions in offered.items():
        mock.set_api_version(api_key, *versions)
    sent = [record("t", b"%d" % n, key=b"%d" % n, headers=(("h", b"\0"),)) for n in range(50)]
    async with Tap(mock, reactor) as tap:
        async with running(tap.bootstrap) as broker:
            answers = await settled(broker, sent)
            read = await everything(broker, "t")
        versions = {api_key: {each.version for each in tap.of(api_key)} for api_key in spoken}
    assert versions == {api_key: {version} for api_key, version in spoken.items()}
    assert_found(sent, answers, read)
    # Some versions of librdkafka always use a newer one.
    mock.restore_api_version(FETCH)
    assert_found(sent, answers, await log_of(mock.bootstrap, "t"))


@pytest.mark.parametrize(
    ("api_key", "versions", "said"),
    [
        (PRODUCE, (0, 2), ["Produce", "2.1"]),
        (FETCH, (0, 3), ["Fetch", "2.1"]),
        (LIST_OFFSETS, (0, 0), ["ListOffsets", "2.1"]),
        (METADATA, (0, 3), ["Metadata", "2.1"]),
        (PRODUCE, (-1, -1), ["Produce", "controller"]),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_broker_that_is_too_old_is_told_from_one_that_is_down_and_used_once_it_is_not(
    mock, api_key, versions, said
):
    mock.create_topic("t")
    mock.set_api_version(api_key, *versions)
    async with running(mock.bootstrap) as broker:
        [rejected] = await settled(broker, [record("t", b"too early")])
        assert type(rejected) is BrokerIncompatible
        await eventually(lambda: all(word in " ".join(broker.health().reasons) for word in said))
        mock.restore_api_version(api_key)
        await eventually(lambda: broker.health().ready)
        await within(broker.publish(record("t", b"in time")))
    assert [each.value for each in await log_of(mock.bootstrap, "t")] == [b"in time"]


@pytest_twisted.ensureDeferred
async def test_versions_are_agreed_upon_again_when_a_broker_comes_back_as_another_version(mock):
    mock.create_topic("t")
    mock.set_api_version(PRODUCE, 0, 3)
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        await within(broker.publish(record("t", b"1")))
        mock.set_api_version(PRODUCE, 3, 7)
        tap.drop_connections()
        await within(broker.publish(record("t", b"2")))
        # A downgrade. (To version 5 the mock answers in the form of version 4.)
        mock.set_api_version(PRODUCE, 0, 4)
        tap.drop_connections()
        await within(broker.publish(record("t", b"3")))
        assert [each.version for each in tap.of(PRODUCE)] == [3, 7, 4]
    assert [each.value for each in await log_of(mock.bootstrap, "t")] == [b"1", b"2", b"3"]


@pytest_twisted.ensureDeferred
async def test_zstd_is_not_sent_to_a_broker_that_does_not_know_it(mock):
    mock.create_topic("t")
    mock.set_api_version(PRODUCE, 0, 6)
    with logged(LogLevel.warn) as warnings:
        async with Tap(mock, reactor) as tap, running(tap.bootstrap, compression="zstd") as broker:
            [outcome] = await settled(broker, [record("t", b"x" * 1000)])
            assert tap.of(PRODUCE) == []
            assert type(outcome) is BrokerIncompatible
            assert "zstd" in str(outcome)
    assert len(warnings) == 1
    assert "zstd" in formatEvent(warnings[0])


@pytest_twisted.ensureDeferred
async def test_a_broker_without_idempotence_is_used_without_it(mock):
    mock.create_topic("t")
    mock.set_api_version(INIT_PRODUCER_ID, -1, -1)
    with logged(LogLevel.warn) as warnings:
        async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
            await settled(broker, [record("t", key=b"k") for _ in range(3)])
            assert {each.producer_id for each in tap.batches()} == {-1}
    assert len(warnings) == 1
    assert "dempotence" in warnings[0]["log_format"]


@pytest_twisted.ensureDeferred
async def test_requests_are_counted_by_their_api_and_the_node_that_got_them(mock):
    topic = new_topic()
    broker = from_url(url(mock.bootstrap), reactor=reactor)
    assert broker.measures().requests == {}
    assert broker.measures().waiting.limit_bytes > 0
    async with running(mock.bootstrap) as broker:
        await settled(broker, [record(topic, b"%d" % number) for number in range(50)])
        await everything(broker, topic)
        counted = broker.measures()
    assert {api for api, _ in counted.requests} >= {"Metadata", "Produce", "ListOffsets", "Fetch"}
    produced_by_node = [count for (api, node), count in counted.requests.items() if api == "Produce"]
    assert sum(produced_by_node) == sum(counted.acknowledgement_s.counts)
    assert {node for api, node in counted.requests if api != "Metadata"} <= {1, 2, 3}
    assert counted.batch_records.total == 50
