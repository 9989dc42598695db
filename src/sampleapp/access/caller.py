"""
A caller: its name, tokens, rights and rates.

In a pattern of topics, ``*`` matches any run of characters, also an empty one and one with dots. No other
character is special, and patterns are case-sensitive.

Tokens are random texts that callers send with ``Authorization: Bearer`` (RFC 6750). The callers file has only
their SHA-256, so a reader of the file cannot use them. Unlike for a password, a plain hash is enough: 2**256
possible tokens are too many to try.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from enum import Enum
from hashlib import sha256
from typing import Final

from msgspec import Struct

from sampleapp.concurrency.rates import Rate


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
    WORK = "work"
    """The right to work in at least one group of workers. `Caller.may_work` checks a group."""


_ANY: Final = "*"
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*-]{1,249}")


def is_legal_pattern(pattern: str) -> bool:
    """Return whether a pattern has only characters of topic names and ``*``, so that it can match one."""
    return _PATTERN.fullmatch(pattern) is not None and pattern not in {".", ".."}


def is_legal_group_pattern(pattern: str) -> bool:
    """Return whether a pattern of groups of workers is ``*``, or ``TOPIC/GROUP`` with a pattern for each."""
    topic, _, group = pattern.partition("/")
    return pattern == _ANY or (is_legal_pattern(topic) and is_legal_pattern(group))


class TopicPatterns:
    """A set of names and patterns of topics, or of groups of workers as ``TOPIC/GROUP``."""

    __slots__ = ("_names", "_patterns", "_texts")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """:param patterns: each a name, or a pattern."""
        self._texts = tuple(patterns)
        self._names = frozenset(text for text in self._texts if _ANY not in text)
        self._patterns = tuple(tuple(text.split(_ANY)) for text in self._texts if _ANY in text)

    def __contains__(self, topic: str) -> bool:
        """Return whether one of them matches a topic."""
        return topic in self._names or any(_fits(parts, topic) for parts in self._patterns)

    def __bool__(self) -> bool:
        """Return whether there is at least one."""
        return bool(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPatterns) and set(self._texts) == set(other._texts)

    def __hash__(self) -> int:
        return hash(frozenset(self._texts))

    def __repr__(self) -> str:
        return f"TopicPatterns({list(self._texts)!r})"


NO_TOPICS: Final = TopicPatterns()
"""The patterns of a right that is not granted: one object for all callers."""


def _fits(parts: tuple[str, ...], topic: str) -> bool:
    """
    Return whether a topic consists of these parts with any text between them.

    Not a regular expression: with several ``*`` it can backtrack for minutes, and callers choose the topics.
    Since ``*`` is the only wildcard, taking the leftmost match of each part is enough.
    """
    first, last = parts[0], parts[-1]
    end = len(topic) - len(last)
    position = len(first)
    if position > end or not topic.startswith(first) or not topic.endswith(last):
        return False
    for part in parts[1:-1]:
        found = topic.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True


PREFIX: Final = "sampleapp_"
"""The beginning of each token, so that a token published by mistake can be found."""
_RANDOM_BYTES: Final = 32
_DIGEST: Final = re.compile(r"[0-9A-Fa-f]{64}")


def new_token() -> str:
    """Return a new token with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: bytes) -> bytes:
    """Return the SHA-256 of a token's text, 32 bytes."""
    return sha256(token).digest()


def parse_digest(text: str) -> bytes:
    """
    Parse 64 hexadecimal digits.

    :raise ValueError: the text is something else. The message does not repeat it, since it may be a token.
    """
    if _DIGEST.fullmatch(text) is None:
        raise ValueError("not 64 hexadecimal digits")
    return bytes.fromhex(text)


HOOK: Final = "hook"
"""The names of hooks as callers begin with this and a colon; those of an issuer's callers, with its name."""

_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")


def is_legal_name(name: str) -> bool:
    """Return whether this can name a caller: 1 to 100 of A-Z, a-z, 0-9, ``.``, ``_``, ``-`` and ``@``."""
    return _NAME.fullmatch(name) is not None


class Caller(Struct, frozen=True, kw_only=True, gc=False):
    """One caller. Rights that are not granted are rejected. It is in no cycle."""

    name: str
    publish: TopicPatterns = NO_TOPICS
    """The topics that it may publish to."""
    consume: TopicPatterns = NO_TOPICS
    """The topics whose records it may read."""
    work: TopicPatterns = NO_TOPICS
    """The groups in which it may work, as ``TOPIC/GROUP``."""
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
        """The topics that it may publish to or read, and those of its groups."""
        of_groups = [group.partition("/")[0] for group in self.work]
        return TopicPatterns(dict.fromkeys((*self.publish, *self.consume, *of_groups)))

    def has(self, right: Right) -> bool:
        """Return whether it has a right; those to topics and groups if for any at all."""
        if right is Right.READ:
            return self.read
        if right is Right.METRICS:
            return self.metrics
        if right is Right.PUBLISH:
            return bool(self.publish)
        if right is Right.CONSUME:
            return bool(self.consume)
        if right is Right.WORK:
            return bool(self.work)
        return True

    def may_publish(self, topic: str) -> bool:
        """Return whether it may publish to a topic, which need not exist."""
        return topic in self.publish

    def may_consume(self, topic: str) -> bool:
        """Return whether it may read the records of a topic, which need not exist."""
        return topic in self.consume

    def may_work(self, group: str) -> bool:
        """Return whether it may work in a group, ``TOPIC/GROUP``, which need not exist."""
        return group in self.work
