"""A caller: its name, rights and rates."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from sampleapp.access.patterns import TopicPatterns
from sampleapp.access.rights import Right
from sampleapp.concurrency.token_bucket import Rate

__all__ = ["HOOK", "Caller", "is_legal_name"]

HOOK: Final = "hook"
"""The names of hooks as callers begin with this and a colon; those of an issuer's callers, with its name."""

_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")


def is_legal_name(name: str) -> bool:
    """Return whether this can name a caller: 1 to 100 of A-Z, a-z, 0-9, ``.``, ``_``, ``-`` and ``@``."""
    return _NAME.fullmatch(name) is not None


class Caller(Struct, frozen=True, kw_only=True):
    """One caller. Rights that are not granted are rejected."""

    name: str
    publish: TopicPatterns = TopicPatterns()
    """The topics that it may publish to."""
    consume: TopicPatterns = TopicPatterns()
    """The topics whose records it may read."""
    read: bool = False
    """True if it may read the readings."""
    metrics: bool = False
    """True if it may see metrics."""
    requests: Rate | None = None
    """The rate of its requests; unlimited if ``None``."""
    bytes: Rate | None = None
    """The rate of the bytes of its bodies; unlimited if ``None``."""
    max_streams: int | None = None
    """The most streams, and the most waiting pages, at once; ``None``: ``--max-streams-per-caller``."""

    @property
    def topics(self) -> TopicPatterns:
        """The topics that it may publish to or read."""
        if not self.consume:
            return self.publish
        return TopicPatterns(dict.fromkeys((*self.publish, *self.consume)))

    def has(self, right: Right) -> bool:
        """Return whether it has a right; `Right.PUBLISH` and `Right.CONSUME` if for any topic at all."""
        if right is Right.READ:
            return self.read
        if right is Right.METRICS:
            return self.metrics
        if right is Right.PUBLISH:
            return bool(self.publish)
        if right is Right.CONSUME:
            return bool(self.consume)
        return True

    def may_publish(self, topic: str) -> bool:
        """Return whether it may publish to a topic, which need not exist."""
        return topic in self.publish

    def may_consume(self, topic: str) -> bool:
        """Return whether it may read the records of a topic, which need not exist."""
        return topic in self.consume
