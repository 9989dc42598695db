"""Calls of observers, whose exceptions are logged and do not stop a broker."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.logger import Logger

from sampleapp.interfaces import IPositionObserver, IRecordBatchObserver, IRecordObserver
from sampleapp.model import ConsumerRecord

__all__ = [
    "batch_observer",
    "deliver",
    "deliver_batch",
    "position_observer",
    "tell_begun_at",
    "tell_caught_up",
    "tell_passed",
    "tell_reset",
]

_log = Logger()


def batch_observer(observer: IRecordObserver) -> IRecordBatchObserver | None:
    """Return the observer if it takes batches of records, else ``None``."""
    found: IRecordBatchObserver | None = IRecordBatchObserver(observer, None)
    return found


def position_observer(observer: IRecordObserver) -> IPositionObserver | None:
    """Return the observer if it is told of positions, else ``None``."""
    found: IPositionObserver | None = IPositionObserver(observer, None)
    return found


def deliver(observer: IRecordObserver, record: ConsumerRecord) -> None:
    """Call `IRecordObserver.record_received`, and log an exception."""
    try:
        observer.record_received(record)
    except Exception:  # noqa: BLE001 -- after any error, the next record is delivered
        _log.failure(
            "Observer failed on record {offset} of partition {partition} of {topic}",
            offset=record.offset,
            partition=record.partition,
            topic=record.topic,
        )


def deliver_batch(observer: IRecordBatchObserver, records: Sequence[ConsumerRecord]) -> None:
    """Call `IRecordBatchObserver.records_received`, and log an exception."""
    try:
        observer.records_received(records)
    except Exception:  # noqa: BLE001 -- after any error, the next records are delivered
        _log.failure(
            "Observer failed on records {first} to {last} of partition {partition} of {topic}",
            first=records[0].offset,
            last=records[-1].offset,
            partition=records[0].partition,
            topic=records[0].topic,
        )


def tell_begun_at(observer: IPositionObserver | None, partition: int, offset: int) -> None:
    """Call `IPositionObserver.begun_at`, if there is such an observer, and log an exception."""
    if observer is None:
        return
    try:
        observer.begun_at(partition, offset)
    except Exception:  # noqa: BLE001 -- after any error, the records are delivered
        _log.failure("Observer failed on the start of partition {partition}", partition=partition)


def tell_passed(observer: IPositionObserver | None, partition: int, offset: int) -> None:
    """Call `IPositionObserver.passed`, if there is such an observer, and log an exception."""
    if observer is None:
        return
    try:
        observer.passed(partition, offset)
    except Exception:  # noqa: BLE001 -- after any error, the records are delivered
        _log.failure("Observer failed on the position of partition {partition}", partition=partition)


def tell_caught_up(observer: IRecordObserver, *, topic: str) -> None:
    """Call `IRecordObserver.caught_up`, and log an exception."""
    try:
        observer.caught_up()
    except Exception:  # noqa: BLE001 -- after any error, the following continues
        _log.failure("Observer failed while catching up with {topic}", topic=topic)


def tell_reset(observer: IRecordObserver, *, topic: str) -> None:
    """Call `IRecordObserver.reset`, and log an exception."""
    try:
        observer.reset()
    except Exception:  # noqa: BLE001 -- after any error, the records of the new topic are delivered
        _log.failure("Observer failed while resetting {topic}", topic=topic)
