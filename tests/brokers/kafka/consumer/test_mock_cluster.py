"""Following topics over real connections, on librdkafka's mock cluster."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec
import pytest
import pytest_twisted
from twisted.internet import reactor

from sampleapp.brokers.kafka.cluster_client import AfkakClient
from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.connections.endpoints import make_endpoint_factory
from sampleapp.brokers.kafka.connections.security import CurrentSecurity
from sampleapp.brokers.kafka.consumer import Consumer, Subscription
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.shared.health import HealthTracker
from tests.support.brokers import Recorder, eventually, within
from tests.support.connection_listener import Connections
from tests.support.faster_time import FasterReactor
from tests.support.kafka_log import log_of, produced
from tests.support.mock_cluster import DROP_CONNECTION, FETCH, LIST_OFFSETS, MockCluster

pytestmark = pytest.mark.usefixtures("short_fetches")


@pytest.fixture(scope="module")
def mock():
    with MockCluster() as cluster:
        yield cluster


@asynccontextmanager
async def following(cluster, topic, *, reactor=reactor):
    """A recorder that follows over real connections, and the condition."""
    config = parse(f"kafka://{cluster.bootstrap}")
    endpoint_factory = make_endpoint_factory(
        security=CurrentSecurity(config, environ={}, clock=reactor),
        client_id="tests",
        timeout_s=5.0,
    )
    recorder, health_tracker = Recorder(), HealthTracker()
    running = Subscription(
        topic=topic,
        observer=recorder,
        consumer=Consumer(
            new_client=lambda: AfkakClient(
                addresses=config.addresses,
                client_id="tests",
                endpoint_factory=endpoint_factory,
                reactor=reactor,
                listener=Connections(),
            ),
            clock=reactor,
        ),
        clock=reactor,
        health_tracker=health_tracker,
        ended=lambda _: None,
    )
    running.begin()
    try:
        yield recorder, health_tracker
    finally:
        await within(running.stop())


def by_place(records):
    """In order of partitions, and within each in the order of arrival; without epochs."""
    plain = [msgspec.structs.replace(each, leader_epoch=-1) for each in records]
    return sorted(plain, key=lambda each: each.partition)


async def write(cluster, topic, count):
    """Some records with keys, so that they spread over the partitions."""
    await produced(cluster.bootstrap, topic, [(b"%d" % n, b"value %d" % n) for n in range(count)])


@pytest_twisted.ensureDeferred
async def test_it_reads_what_librdkafka_reads(mock):
    mock.create_topic("plain", partitions=5)
    await write(mock, "plain", 2000)
    async with following(mock, "plain") as (recorder, health_tracker):
        await eventually(lambda: recorder.caught_up_at)
        assert recorder.caught_up_at == [2000]
        await write(mock, "plain", 500)
        await recorder.until(2500)
        assert not health_tracker.health().reasons
    assert by_place(recorder.records) == await log_of(mock.bootstrap, "plain")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest_twisted.ensureDeferred
async def test_it_reads_every_codec_of_librdkafka(mock, codec):
    mock.create_topic(codec, partitions=2)
    await produced(mock.bootstrap, codec, [(None, b"%d" % n * 200) for n in range(300)], compression=codec)
    async with following(mock, codec) as (recorder, _):
        await recorder.until(300)
    assert by_place(recorder.records) == await log_of(mock.bootstrap, codec)


@pytest_twisted.ensureDeferred
async def test_it_follows_leaders_that_move(mock):
    mock.create_topic("moving", partitions=3, replicas=3)
    async with following(mock, "moving", reactor=FasterReactor()) as (recorder, health_tracker):
        for step in range(3):
            for partition in range(3):
                mock.set_leader("moving", partition, 1 + (partition + step) % 3)
            await write(mock, "moving", 100)
            await eventually(lambda step=step: len(recorder.records) >= 100 * (step + 1))
        await eventually(lambda: not health_tracker.health().reasons)
    assert by_place(recorder.records) == await log_of(mock.bootstrap, "moving")


@pytest_twisted.ensureDeferred
async def test_it_survives_errors_and_lost_connections(mock):
    mock.create_topic("troubled", partitions=3)
    await write(mock, "troubled", 200)
    mock.push_errors(LIST_OFFSETS, ErrorCode.NOT_LEADER_OR_FOLLOWER, DROP_CONNECTION)
    mock.push_errors(
        FETCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        DROP_CONNECTION,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        DROP_CONNECTION,
    )
    async with following(mock, "troubled", reactor=FasterReactor()) as (recorder, health_tracker):
        await recorder.until(200)
        assert recorder.caught_up_at == [200]
        await eventually(lambda: not health_tracker.health().reasons)
    assert by_place(recorder.records) == await log_of(mock.bootstrap, "troubled")


@pytest_twisted.ensureDeferred
async def test_it_survives_brokers_that_go_and_come(clusters):
    with clusters.new() as mock:
        mock.create_topic("t", partitions=3)
        for partition in range(3):
            mock.set_leader("t", partition, partition + 1)
        async with following(mock, "t", reactor=FasterReactor()) as (recorder, health_tracker):
            await eventually(lambda: recorder.caught_up_at)
            mock.broker_down(2)
            await eventually(lambda: health_tracker.health().reasons)
            (reason,) = health_tracker.health().reasons
            # The metadata may be newer, and have no leader for the partition.
            assert reason.startswith(
                ("The topic t cannot be read from broker 2: ", "Partition 1 of the topic t has no leader")
            )
            mock.broker_down()
            mock.broker_up()
            await write(mock, "t", 100)
            await recorder.until(100)
            await eventually(lambda: not health_tracker.health().reasons)
        assert by_place(recorder.records) == await log_of(mock.bootstrap, "t")


@pytest_twisted.ensureDeferred
async def test_it_finds_a_topic_that_is_made_later(mock):
    async with following(mock, "later", reactor=FasterReactor()) as (recorder, health_tracker):
        await eventually(lambda: recorder.caught_up_at)
        assert not health_tracker.health().reasons
        mock.create_topic("later", partitions=2)
        await write(mock, "later", 50)
        await recorder.until(50)
    assert recorder.caught_up_at == [0]


@pytest_twisted.ensureDeferred
async def test_it_speaks_the_version_of_kafka_0_11():
    with MockCluster(brokers=1) as mock:
        mock.set_api_version(FETCH, 0, 4)
        mock.set_api_version(LIST_OFFSETS, 0, 1)
        mock.create_topic("t")
        await write(mock, "t", 10)
        async with following(mock, "t") as (recorder, _):
            await recorder.until(10)
