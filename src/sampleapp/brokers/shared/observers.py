"""Calling observers of records, whose mistakes must not stop a broker."""

from __future__ import annotations

from twisted.logger import Logger

from sampleapp.interfaces import IRecordObserver
from sampleapp.model import ConsumerRecord

__all__ = ["deliver", "tell_caught_up", "tell_reset"]

_log = Logger()


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
