"""
Patterns of the topics that a caller may publish to or read.

In a pattern, ``*`` matches any run of characters, also an empty one and one with dots. No other character is
special, and patterns are case-sensitive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["TopicPatterns", "is_legal_pattern"]

_ANY: Final = "*"
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*-]{1,249}")


def is_legal_pattern(pattern: str) -> bool:
    """Return whether a pattern has only characters of topic names and ``*``, so that it can match one."""
    return _PATTERN.fullmatch(pattern) is not None and pattern not in {".", ".."}


class TopicPatterns:
    """A set of names and patterns of topics."""

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
