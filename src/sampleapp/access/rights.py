"""What a caller may be granted."""

from __future__ import annotations

from enum import Enum

__all__ = ["Right"]


class Right(Enum):
    """What a caller has to have for a route."""

    NONE = "none"
    """Nothing: everybody may."""
    ANY = "any"
    """Credentials."""
    READ = "read"
    """That to read the readings."""
    METRICS = "metrics"
    """That to see metrics."""
    PUBLISH = "publish"
    """That to publish to some topic; to which one, the handler sees."""
