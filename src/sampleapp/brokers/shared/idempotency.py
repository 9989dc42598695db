"""The operator's settings for records that are sent again."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

__all__ = ["IdempotencySettings"]


def _no_topic(_topic: str) -> bool:
    return False


class IdempotencySettings(Struct, frozen=True, kw_only=True):
    """How long identities are remembered, and where they are allowed."""

    window_s: float = 86_400.0
    """Brokers of this service alone remember an identity for this time from the first record, in seconds."""
    is_enabled_for: Callable[[str], bool] = _no_topic
    """Whether records for a topic of a shared broker may have an identity. Other brokers always allow it."""
    records_per_s: float = 20.0
    """The average rate of records with an identity for a shared broker, which has to remember them."""
    burst: int = 5_000
    """The most of these records at once."""
