"""What a caller may be granted."""

from __future__ import annotations

from enum import Enum

__all__ = ["Right"]


class Right(Enum):
    """What a caller has to have for a route."""

    NONE = "none"
    """Nothing: everybody may."""
    ANY = "any"
    """Credentials. What the handler does may take a right of its own: that to publish to a topic."""
    READ = "read"
    """That to read the readings."""
    METRICS = "metrics"
    """That to see metrics."""
