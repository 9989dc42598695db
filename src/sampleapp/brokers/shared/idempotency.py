"""Records that are sent again: the operator's settings, and the outcome."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from sampleapp.errors import IdempotencyKeyReused
from sampleapp.model import Record, ReplayedRecord


def _no_topic(_topic: str) -> bool:
    return False


class IdempotencySettings(Struct, frozen=True, kw_only=True):
    """Limits for records with an identity: time, topics and rate."""

    window_s: float = 86_400.0
    """Brokers of this service alone remember an identity for this time from the first record, in seconds."""
    is_enabled_for: Callable[[str], bool] = _no_topic
    """Whether records for a topic of a shared broker may have an identity. Other brokers always allow it."""
    records_per_s: float = 20.0
    """The average rate of records with an identity for a shared broker, which has to remember them."""
    burst: int = 5_000
    """The most of these records at once."""


def replayed(record: Record, *, fingerprint: bytes | None, partition: int, offset: int) -> ReplayedRecord:
    """
    Return the outcome of a record whose id was used before.

    :param fingerprint: that of the first record with this id.
    :param partition: of the first record.
    :param offset: of the first record.
    :raise IdempotencyKeyReused: the first was another record.
    """
    if record.identity is None or record.identity.fingerprint != fingerprint:
        raise IdempotencyKeyReused("Another record was published with this idempotency key; use a new one.")
    return ReplayedRecord(topic=record.topic, partition=partition, offset=offset)
