"""Helpers to publish records, to follow them, and to read them in pages."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from sampleapp.interfaces import IBroker, Outcome
from sampleapp.model import (
    EARLIEST,
    ConsumerRecord,
    ReadRequest,
    ReadResult,
    ReadStart,
    Record,
    RecordIdentity,
    RecordMetadata,
)
from sampleapp_testing.recorder import Recorder
from sampleapp_testing.waiting import eventually, outcomes, within

__all__ = [
    "NO_PARTITION",
    "content",
    "everything",
    "identity",
    "new_topic",
    "outcome_offset",
    "pages",
    "record",
    "record_offset",
    "settled",
    "size",
]

_ANY_TIME_MS = 1_700_000_000_000
NO_PARTITION = 999_999
"""A partition that no topic has."""

Content = tuple[str, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def new_topic() -> str:
    """Return the name of a new topic."""
    return f"contract-{uuid.uuid4().hex}"


def outcome_offset(outcome: Outcome, *, topic: str | None = None) -> tuple[int, int]:
    """Return the partition and offset of a record; fail if it was not stored, or not in the topic."""
    assert isinstance(outcome, RecordMetadata), repr(outcome)
    assert topic is None or outcome.topic == topic
    return outcome.partition, outcome.offset


def record_offset(record: ConsumerRecord) -> tuple[int, int]:
    """Return the partition and offset of a record."""
    return record.partition, record.offset


def identity(topic: str, name: str = "", *, sent: str = "") -> RecordIdentity:
    """
    Create an identity.

    :param name: stands for the idempotency key.
    :param sent: stands for what the caller sent.
    """
    return RecordIdentity(
        id=sha256(f"{topic} {name}".encode()).digest(), fingerprint=sha256(sent.encode()).digest()
    )


def record(
    topic: str,
    value: bytes | None = b"v",
    *,
    key: bytes | None = None,
    timestamp_ms: int | None = None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
    partition: int | None = None,
    identity: RecordIdentity | None = None,
) -> Record:
    """
    Create a record with default values.

    :param timestamp_ms: by default any time; of a record with an identity, now, since a shared broker may
        forget an identity by the time of its record.
    """
    if timestamp_ms is None:
        timestamp_ms = _ANY_TIME_MS if identity is None else int(time.time() * 1000)
    return Record(
        topic=topic,
        key=key,
        value=value,
        timestamp_ms=timestamp_ms,
        headers=headers,
        partition=partition,
        identity=identity,
    )


def content(record: Record | ConsumerRecord) -> Content:
    """Return the content of a record, for comparing published with read records."""
    return (record.topic, record.timestamp_ms, record.key, record.value, record.headers)


async def settled(broker: IBroker, records: Sequence[Record]) -> list[Any]:
    """Publish all records at the same time, and return every result or exception, in order."""
    return await outcomes([broker.publish(each) for each in records])


async def everything(broker: IBroker, topic: str) -> list[ConsumerRecord]:
    """Return all records that are in a topic now."""
    recorder = Recorder()
    subscription = broker.follow(topic=topic, observer=recorder)
    await eventually(lambda: recorder.caught_up_at)
    await within(subscription.stop())
    return recorder.records


async def pages(
    broker: IBroker,
    topic: str,
    start: Mapping[int, ReadStart] | ReadStart = EARLIEST,
    *,
    limit: int = 100,
    max_bytes: int = 1_000_000,
    key: bytes | None = None,
) -> list[ReadResult]:
    """
    Read a topic page by page, up to its end.

    :param start: of each partition; of a mapping, only its partitions are read.
    :param key: see `ReadRequest`.
    :return: the pages; the last one is up to date.
    :raise AssertionError: a page has neither a record nor a new position, or is rejected in part.
    """
    is_mapping = isinstance(start, Mapping)
    starts: Mapping[int, ReadStart] = start if isinstance(start, Mapping) else {}
    others = None if isinstance(start, Mapping) else start
    found: list[ReadResult] = []
    while not found or not found[-1].is_up_to_date:
        page = await within(
            broker.read(
                ReadRequest(
                    topic=topic, starts=starts, others=others, limit=limit, max_bytes=max_bytes, key=key
                )
            )
        )
        assert not page.gone
        assert not page.beyond
        assert page.records or page.is_up_to_date or page.positions != dict(starts), "no progress"
        found.append(page)
        starts, others = page.positions, None if is_mapping else EARLIEST
    return found


def size(record: ConsumerRecord) -> int:
    """Return the bytes of the key, the value and the headers of a record."""
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
