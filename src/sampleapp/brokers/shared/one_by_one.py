"""Many records, published one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, DeferredList

from sampleapp.interfaces import Outcome
from sampleapp.model import Record, RecordMetadata

__all__ = ["publish_one_by_one"]


def publish_one_by_one(
    publish: Callable[[Record], Deferred[RecordMetadata]], records: Sequence[Record]
) -> Deferred[list[Outcome]]:
    """Publish each of some records; see `IBroker.publish_many`."""
    return DeferredList([publish(record) for record in records], consumeErrors=True).addCallback(_outcomes)


def _outcomes(results: Iterable[tuple[bool, Any]]) -> list[Outcome]:
    return [result if succeeded else result.value for succeeded, result in results]
