"""
On which line of a TOML document something is.

The parsers that there are do not keep that. But the lines before a statement are a document, too: the first
of these documents that has a value ends with the statement that gives it. So the parser itself is asked,
and there is no second opinion about the grammar. That takes longer than a look-up, and is only done for
mistakes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Path", "TOMLDocument", "TOMLMistake"]

Path: TypeAlias = tuple["str | int", ...]
"""Where a value is: names of members, and numbers of elements from 0."""

_PLACE: Final = re.compile(r" \(at (?:line (?P<line>[0-9]+), column [0-9]+|end of document)\)")
_OPEN_ENDS: Final = ("", "\n]")
"""What may be missing after a part of a statement. An inline table has only one line."""


class TOMLMistake(ValueError):
    """A text is no TOML document."""

    def __init__(self, line: int, sentence: str) -> None:
        """:param line: from 1."""
        super().__init__(sentence)
        self.line = line


class TOMLDocument:
    """A document, and where its values are."""

    def __init__(self, data: bytes) -> None:
        """
        Parse a document.

        :raise TOMLMistake: it is none.
        """
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TOMLMistake(data.count(b"\n", 0, error.start) + 1, "is not UTF-8") from error
        self._lines = text.split("\n")
        self._beginnings: dict[int, Any] = {}
        try:
            self.value: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self._mistake(str(error)) from error
        except (ValueError, RecursionError) as error:
            # What the parser did not think of: a number of thousands of digits, a thousand brackets.
            raise TOMLMistake(self._first_bad_line(), "has a value that cannot be read") from error

    def _mistake(self, said: str) -> TOMLMistake:
        place = _PLACE.search(said)
        line = int(place["line"]) if place and place["line"] else len(self._lines)
        sentence = _PLACE.sub("", said).partition("\n")[0].rstrip(".")
        return TOMLMistake(line, f"is no TOML: {sentence[:1].lower()}{sentence[1:]}")

    def _first_bad_line(self) -> int:
        return next(n for n in reversed(range(len(self._lines))) if self._beginning(n) is not None) + 1

    def line_of(self, path: Path) -> int:
        """
        Find a value that is there.

        :return: the line of the statement that gives it, from 1; or in one of several lines, its own.
        """
        without, having = 0, len(self._lines)
        while (middle := self._document_between(without, having)) is not None:
            if _has(self._beginning(middle), path):
                having = middle
            else:
                without = middle
        for line in range(without + 1, having):
            if any(_has(self._beginning(line, end), path) for end in _OPEN_ENDS):
                return line
        return having if _is_element(path) else without + 1

    def _document_between(self, without: int, having: int) -> int | None:
        """Find a number of lines between two that are a document, near their middle."""
        middle = (without + having) // 2
        nearby = (*range(middle, without, -1), *range(middle + 1, having))
        return next((n for n in nearby if self._beginning(n) is not None), None)

    def _beginning(self, lines: int, end: str = "") -> Any:
        """Return what so many lines say, or ``None`` if they are no document."""
        if end or lines not in self._beginnings:
            try:
                value = tomllib.loads("\n".join(self._lines[:lines]) + end)
            except (ValueError, RecursionError):
                value = None
            if end:
                return value
            self._beginnings[lines] = value
        return self._beginnings[lines]


def _is_element(path: Path) -> bool:
    return any(isinstance(step, int) for step in path)


def _has(value: Any, path: Path) -> bool:
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return False
        elif not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    return True
