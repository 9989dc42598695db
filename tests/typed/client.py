"""How the client is typed, for mypy, which checks this file; nothing runs it."""

from __future__ import annotations

from typing import assert_type

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from sampleapp.client import Client, Gap, Lease, Message, Page, Rejected, Reset, Snapshot, Version
from sampleapp.model import Acknowledged, ConsumerRecord, LeasedRecord, Reading, RecordMetadata


def operations(reactor: IReactorTime) -> None:
    client = Client(base_url="http://127.0.0.1:8080/", reactor=reactor)
    assert_type(client.publish(topic="t", content="c"), Deferred[RecordMetadata])
    assert_type(client.publish(topic="t", content="c", key=None), Deferred[RecordMetadata])
    assert_type(client.publish(topic="t", content=b"c", key=b"k"), Deferred[RecordMetadata])
    assert_type(client.publish_many([Message(topic="t", content="c")]), Deferred[list[RecordMetadata]])
    assert_type(client.publish_raw(topic="t", body=b"b", key=b"k"), Deferred[RecordMetadata])
    assert_type(client.delete(topic="t", key="k"), Deferred[RecordMetadata])
    assert_type(client.close(), Deferred[None])
    client.publish(topic="t", content=1)  # type: ignore[arg-type]  # contents are text or bytes
    client.publish_raw(topic="t", body="b")  # type: ignore[arg-type]  # bodies are bytes


async def working(client: Client) -> None:
    lease = await client.pull(topic="t", group="g", most=3, wait_s=20)
    assert_type(lease, Lease | None)
    if lease is not None:
        assert_type(await client.ack(topic="t", group="g", lease=lease, accept="all"), Acknowledged)
        client.ack(topic="t", group="g", lease=lease, accept=lease.messages[:1], reject=lease.messages[1:])
        client.ack(topic="t", group="g", lease=lease, accept="0-1")  # type: ignore[arg-type]  # messages, or "all"
        assert_type(await client.extend(topic="t", group="g", lease=lease), Lease)

    async def handle(message: LeasedRecord) -> None:
        raise Rejected

    assert_type(client.work(topic="t", group="g", handler=handle), Deferred[None])
    client.work(topic="t", group="g", handler=lambda message: None)


async def reading_a_topic(client: Client) -> None:
    page = await client.read(topic="t", partitions=range(3), key=b"k")
    assert_type(page, Page)
    assert_type(page.records, tuple[ConsumerRecord, ...])
    async for item in client.stream(topic="t", start=page.position):
        assert_type(item, ConsumerRecord | Gap | Reset)


def versions_have_types_of_their_own(client: Client) -> None:
    assert_type(client.readings(), Deferred[list[float]])
    assert_type(client.readings(version=1), Deferred[list[float]])
    assert_type(client.readings(version=2), Deferred[list[Reading]])
    client.readings(version=3)  # type: ignore[call-overload]  # there are two
    client.readings(2)  # type: ignore[call-overload]  # keywords only


async def polling(client: Client) -> None:
    values = await client.poll(version=1)
    assert_type(values, Snapshot[list[float]])
    assert_type(values.readings, list[float])
    entries = await client.poll(version=2, after=None)
    assert_type(entries, Snapshot[list[Reading]])
    assert_type(await client.poll(version=2, after=entries), Snapshot[list[Reading]])
    await client.poll(version=2, after=values)  # type: ignore[call-overload]  # a snapshot of version 1


def a_version_that_is_known_only_when_it_runs(version: Version) -> Version:
    return 2 if version == 1 else 1
