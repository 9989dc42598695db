"""Publishing and reading back, in as few words as a test wants to spend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sampleapp.interfaces import IBroker
from sampleapp.model import ConsumerRecord, Record
from sampleapp.testing.recorder import Recorder
from sampleapp.testing.waiting import eventually, outcomes, within

__all__ = ["content", "everything", "record", "settled"]

Content = tuple[str, int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]


def record(
    topic: str,
    value: bytes | None = b"v",
    *,
    key: bytes | None = None,
    timestamp_ms: int = 1_700_000_000_000,
    headers: tuple[tuple[str, bytes], ...] = (),
    partition: int | None = None,
) -> Record:
    """Make a record, of which a test says only what matters to it."""
    return Record(
        topic=topic,
        key=key,
        value=value,
        timestamp_ms=timestamp_ms,
        headers=headers,
        partition=partition,
    )


def content(record: Record | ConsumerRecord) -> Content:
    """Return what a record carries, whether it goes in or comes out."""
    return (record.topic, record.timestamp_ms, record.key, record.value, record.headers)


async def settled(broker: IBroker, records: Sequence[Record]) -> list[Any]:
    """Publish all records at the same time, and return every result or exception, in order."""
    return await outcomes([broker.publish(each) for each in records])


async def everything(broker: IBroker, topic: str) -> list[ConsumerRecord]:
    """Return all records that are in a topic now."""
    recorder = Recorder()
    following = broker.follow(topic=topic, observer=recorder)
    await eventually(lambda: recorder.caught_up_at)
    await within(following.stop())
    return recorder.records
