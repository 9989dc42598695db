"""A service whose clock differs from that of the brokers."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager

import pytest
import pytest_twisted
from msgspec.structs import replace
from twisted.internet import reactor

from sampleapp.brokers.kafka import config
from sampleapp.brokers.kafka.broker import KafkaBroker
from sampleapp.errors import BrokerUnavailable, RecordRefused
from sampleapp.model import RecordMetadata
from tests.real_kafka.admin import new_topic
from tests.real_kafka.service import in_thread, kafka_url, ready
from tests.support.brokers import eventually, outcomes, record, within

pytestmark = pytest.mark.release


@asynccontextmanager
async def running_ahead(cluster, ahead_s):
    """Our broker, with another time of day than Kafka has."""
    broker = KafkaBroker(config.parse(kafka_url(cluster)), reactor=reactor, now=lambda: time.time() + ahead_s)
    broker.check()
    broker.start()
    try:
        await ready(broker)
        yield broker
    finally:
        await within(broker.stop(deadline_s=20))


def stamped(topic, *, ahead_s, value=b"v", **fields):
    """A record with the time of such a service."""
    return record(topic, value, timestamp_ms=int((time.time() + ahead_s) * 1000), **fields)


@pytest_twisted.ensureDeferred
async def test_a_record_is_not_rejected_for_the_clock_of_the_service(one_node):
    topic = await in_thread(
        one_node.admin.create, new_topic("clock"), **{"message.timestamp.after.max.ms": 60_000}
    )
    async with running_ahead(one_node, 7200) as broker:
        [own] = await outcomes([broker.publish(stamped(topic, ahead_s=7200))])
        assert isinstance(own, BrokerUnavailable)
        assert not own.possibly_published
        assert "clocks" in str(own)
        await eventually(lambda: broker.health().warnings)
        [warning] = broker.health().warnings
        assert "rejected the time" in warning
        given = replace(stamped(topic, ahead_s=7200), has_own_time=True)
        [refused] = await outcomes([broker.publish(given)])
        assert isinstance(refused, RecordRefused)
        mixed = [stamped(topic, ahead_s=7200), stamped(topic, ahead_s=0, value=b"now"), given]
        found = await within(broker.publish_many(mixed))
        assert [type(each) for each in found] == [BrokerUnavailable, RecordMetadata, RecordRefused]
        assert broker.health().ready


@pytest.mark.parametrize("ahead_s", [7200, -90_000])
@pytest_twisted.ensureDeferred
async def test_a_difference_is_found_out_without_any_record(one_node, ahead_s):
    async with running_ahead(one_node, ahead_s) as broker:
        assert broker.measures().clock_ahead_s is None
        await eventually(lambda: broker.health().warnings)
        [warning] = broker.health().warnings
        assert ("ahead of" if ahead_s > 0 else "behind") in warning
        assert abs(broker.measures().clock_ahead_s - ahead_s) < 30
        assert broker.health().ready


@pytest.mark.parametrize("ahead_s", [0, 7200])
@pytest_twisted.ensureDeferred
async def test_a_difference_is_found_out_by_a_record_in_a_topic_with_the_time_of_appending(one_node, ahead_s):
    topic = await in_thread(
        one_node.admin.create, new_topic("clock"), **{"message.timestamp.type": "LogAppendTime"}
    )
    async with running_ahead(one_node, ahead_s) as broker:
        [stored] = await outcomes([broker.publish(stamped(topic, ahead_s=ahead_s))])
        assert isinstance(stored, RecordMetadata)
        assert abs(broker.measures().clock_ahead_s - ahead_s) < 30
        assert bool(broker.health().warnings) is (ahead_s > 0)
