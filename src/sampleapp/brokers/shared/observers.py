"""Calling observers of records, whose mistakes must not stop a broker."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.logger import Logger

from sampleapp.interfaces import IRecordBatchObserver, IRecordObserver
from sampleapp.model import ConsumerRecord

__all__ = ["batch_observer", "deliver", "deliver_batch", "tell_caught_up", "tell_reset"]

_log = Logger()


def batch_observer(observer: IRecordObserver) -> IRecordBatchObserver | None:
    """Return the observer if it takes many records at once."""
    found: IRecordBatchObserver | None = IRecordBatchObserver(observer, None)
    return found


def deliver(observer: IRecordObserver, record: ConsumerRecord) -> None:
    """Call `IRecordObserver.record_received`; what it raises is logged."""
    try:
        observer.record_received(record)
    except Exception:  # noqa: BLE001 -- whatever it was, the next record is delivered
        _log.failure(
            "An observer failed on record {offset} of partition {partition} of {topic}",
            offset=record.offset,
            partition=record.partition,
            topic=record.topic,
        )


def deliver_batch(observer: IRecordBatchObserver, records: Sequence[ConsumerRecord]) -> None:
    """Call `IRecordBatchObserver.records_received`; what it raises is logged."""
    try:
        observer.records_received(records)
    except Exception:  # noqa: BLE001 -- whatever it was, the next records are delivered
        _log.failure(
            "An observer failed on records {first} to {last} of partition {partition} of {topic}",
            first=records[0].offset,
            last=records[-1].offset,
            partition=records[0].partition,
            topic=records[0].topic,
        )


def tell_caught_up(observer: IRecordObserver, *, topic: str) -> None:
    """Call `IRecordObserver.caught_up`; what it raises is logged."""
    try:
        observer.caught_up()
    except Exception:  # noqa: BLE001 -- whatever it was, the following goes on
        _log.failure("An observer failed on catching up with {topic}", topic=topic)


def tell_reset(observer: IRecordObserver, *, topic: str) -> None:
    """Call `IRecordObserver.reset`; what it raises is logged."""
    try:
        observer.reset()
    except Exception:  # noqa: BLE001 -- whatever it was, the records of the new topic are delivered
        _log.failure("An observer failed on beginning anew with {topic}", topic=topic)
