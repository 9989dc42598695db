"""Who may call, and what."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from sampleapp.access.patterns import TopicPatterns
from sampleapp.access.rates import Rate
from sampleapp.access.rights import Right

__all__ = ["Caller", "is_legal_name"]

_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")


def is_legal_name(name: str) -> bool:
    """Whether a caller may have this name: 1 to 100 of A-Z, a-z, 0-9, ``.``, ``_``, ``-`` and ``@``."""
    return _NAME.fullmatch(name) is not None


class Caller(Struct, frozen=True, kw_only=True):
    """One caller. What is not granted is refused."""

    name: str
    publish: TopicPatterns = TopicPatterns()
    """The topics that it may publish to."""
    read: bool = False
    """Whether it may read the readings."""
    metrics: bool = False
    """Whether it may see metrics."""
    requests: Rate | None = None
    """How many requests it may make; any number if ``None``."""
    bytes: Rate | None = None
    """How many bytes of bodies it may send; any number if ``None``."""

    def has(self, right: Right) -> bool:
        """Whether it has what it takes."""
        if right is Right.READ:
            return self.read
        if right is Right.METRICS:
            return self.metrics
        if right is Right.PUBLISH:
            return bool(self.publish)
        return True

    def may_publish(self, topic: str) -> bool:
        """Whether it may publish to a topic, which need not exist."""
        return topic in self.publish
