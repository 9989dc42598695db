"""For how long Kafka remembers an idempotency key, and what the service knows of it before it takes one."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest_twisted
from twisted.logger import LogLevel, formatEvent

from sampleapp.errors import IdempotencyNotEnabled
from sampleapp.model import RecordMetadata
from tests.real_kafka.admin import new_topic
from tests.real_kafka.listeners import USER, write_credentials
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import connect, in_thread, wait_until_ready
from tests.real_kafka.test_idempotency import identified, replayed, running
from tests.real_kafka.versions import ACLS, needs
from tests.support.brokers import eventually, settled
from tests.support.logs import logged

KEYS = 40
DAY_MS = 24 * 3600 * 1000


def post(service, topic, key):
    """Publish with an idempotency key; return the status, whether it was a repeat, and the document."""
    connection = connect(service)
    try:
        fields = {"Content-Type": "application/json", "Idempotency-Key": key}
        connection.request("POST", "/messages", json.dumps({"topic": topic, "content": key}), fields)
        response = connection.getresponse()
        return response.status, response.getheader("Idempotent-Replayed"), json.load(response)
    finally:
        connection.close()


def restart(cluster):
    """As a rolling restart does: in order."""
    for node in cluster.nodes:
        node.stop()
        cluster.restore()


def expiration_of(version):
    name, days = (
        ("producer.id", 1) if tuple(map(int, version.split(".")[:2])) >= (3, 4) else ("transactional.id", 7)
    )
    return f"{name}.expiration.ms", days * DAY_MS


def test_a_topic_of_short_retention_takes_no_keys_and_one_that_keeps_records_knows_them_after_restarts(
    one_node, version, start_service
):
    setting, expires_ms = expiration_of(version)
    short = one_node.admin.create(new_topic("short"), retention_ms=3000)
    long_enough = one_node.admin.create(new_topic("long"), retention_ms=expires_ms)
    service = start_service(one_node, service_options=["--idempotent-topic", "*"])
    for number in range(KEYS):
        status, _, problem = post(service, short, f"{number}")
        assert (status, problem["type"]) == (422, "urn:sampleapp:problem:idempotency-not-enabled")
        assert "retention.ms=3000" in problem["detail"]
        assert f"{setting}={expires_ms}" in problem["detail"]
    assert read_all(one_node.bootstrap, short) == []
    firsts = [post(service, long_enough, f"{number}") for number in range(KEYS)]
    assert {each[:2] for each in firsts} == {(HTTPStatus.OK, None)}
    restart(one_node)
    wait_until_ready(service)
    repeats = [post(service, long_enough, f"{number}") for number in range(KEYS)]
    assert repeats == [(HTTPStatus.OK, "true", place) for _, _, place in firsts]
    assert len(read_all(one_node.bootstrap, long_enough)) == KEYS


def test_after_a_retention_was_lowered_and_a_broker_has_restarted_no_repeat_is_a_new_record(
    one_node, start_service
):
    topic = one_node.admin.create(new_topic("lowered"), retention_ms=-1)
    services = [start_service(one_node, service_options=["--idempotent-topic", "*"]) for _ in range(2)]
    for number in range(KEYS):
        assert post(services[number % 2], topic, f"{number}")[:2] == (HTTPStatus.OK, None)
    one_node.admin.configure(topic, retention_ms=3000)
    restart(one_node)
    for service in services:
        wait_until_ready(service)
        for number in range(KEYS):
            status, _, problem = post(service, topic, f"{number}")
            assert (status, problem["type"]) == (422, "urn:sampleapp:problem:idempotency-not-enabled")


@pytest_twisted.ensureDeferred
async def test_a_retention_that_is_raised_is_noticed(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("raised"), retention_ms=3000)
    async with running(one_node) as broker:
        [error] = await settled(broker, [identified(topic, "k")])
        assert type(error) is IdempotencyNotEnabled
        await in_thread(one_node.admin.configure, topic, retention_ms=-1)
        found = []

        async def takes_keys():
            found[:] = await settled(broker, [identified(topic, "k")])
            return type(found[0]) is RecordMetadata

        while not await takes_keys():
            assert type(found[0]) is IdempotencyNotEnabled


@pytest_twisted.ensureDeferred
async def test_retention_by_size_is_a_warning_once(one_node):
    topic = await in_thread(one_node.admin.create, new_topic("size"), retention_bytes=100_000)
    with logged(LogLevel.warn) as events:
        async with running(one_node) as broker:
            for number in range(3):
                assert type(await broker.publish(identified(topic, number))) is RecordMetadata
    [line] = map(formatEvent, events)
    assert "retention.bytes=100000" in line


@pytest_twisted.ensureDeferred
async def test_keys_of_records_that_were_deleted_are_known_until_another_replica_leads(three_nodes):
    """Kafka may forget them then: that is said in the manual, and by the warning."""
    admin = three_nodes.admin
    topic = await in_thread(admin.create, new_topic("deleted"), assignment=[[1, 2, 3]])
    await in_thread(admin.wait_until_in_sync, topic, 3)
    records = [identified(topic, number, key=None) for number in range(KEYS)]
    with logged(LogLevel.warn) as events:
        async with running(three_nodes) as broker:
            firsts = [await broker.publish(each) for each in records]
            await in_thread(admin.delete_records, topic, 0, KEYS)
            assert [await broker.publish(each) for each in records] == [replayed(each) for each in firsts]
            [line] = map(formatEvent, events)
            assert "deleted" in line
            # Each has the records only up to where they begin for the leader.
            # Not in a thread: see Node.start.
            restart(three_nodes)
            await in_thread(admin.wait_until_in_sync, topic, 3)
            await in_thread(admin.elect, topic, partitions=[0])
            await eventually(lambda: broker.health().ready)
            again = [(await settled(broker, [each]))[0] for each in records]
    assert [type(each) for each in again] == [RecordMetadata] * KEYS


@needs(ACLS)
@pytest_twisted.ensureDeferred
async def test_a_configuration_that_may_not_be_read_is_a_warning_once(one_node, tmp_path):
    topic = await in_thread(one_node.admin.create, new_topic("hidden"), retention_ms=3000)
    await in_thread(one_node.admin.rule, topic, USER, allow=["READ", "WRITE"])
    options = {"listener": "SASL", "sasl": "PLAIN", "credentials": write_credentials(tmp_path)}
    with logged(LogLevel.warn) as events:
        async with running(one_node, **options) as broker:
            first = await broker.publish(identified(topic, "k"))
            assert type(first) is RecordMetadata
            assert await broker.publish(identified(topic, "k")) == replayed(first)
    # Another warning is about the password, which is sent unencrypted.
    [line] = [line for line in map(formatEvent, events) if topic in line]
    assert "the right DescribeConfigs on the topic" in line


@needs(ACLS)
@pytest_twisted.ensureDeferred
async def test_without_the_right_to_read_nothing_is_published_with_a_key(one_node, tmp_path):
    topic = await in_thread(one_node.admin.create, new_topic("unreadable"))
    await in_thread(one_node.admin.rule, topic, USER, allow=["WRITE", "DESCRIBE_CONFIGS"])
    options = {"listener": "SASL", "sasl": "PLAIN", "credentials": write_credentials(tmp_path)}
    async with running(one_node, **options) as broker:
        records = [identified(topic, number) for number in range(KEYS)]
        for outcome in [(await settled(broker, [each]))[0] for each in records]:
            assert type(outcome) is IdempotencyNotEnabled
            assert "not allowed to read" in str(outcome)
        assert await in_thread(read_all, one_node.bootstrap, topic) == []
