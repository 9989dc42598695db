"""The rights of callers."""

from __future__ import annotations

from enum import Enum

__all__ = ["Right"]


class Right(Enum):
    """The right that a route requires."""

    NONE = "none"
    """No right, and no credentials."""
    ANY = "any"
    """Credentials, and no further right."""
    READ = "read"
    """The right to read the readings."""
    METRICS = "metrics"
    """The right to read metrics."""
    CONSUME = "consume"
    """The right to read the records of at least one topic. `Caller.may_consume` checks a topic."""
    PUBLISH = "publish"
    """The right to publish to at least one topic. `Caller.may_publish` checks the topic of each record."""
