"""
The line numbers of values in a TOML document.

The parser does not keep them. But the first lines of a document, up to the end of a statement, are a document
as well: the line of a value is found by bisection, with the parser itself. That takes some seconds for a file
with 10,000 callers, and is only done for a mistake.
"""

from __future__ import annotations

import codecs
import re
import sys
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Path", "TOMLDocument", "TOMLMistake"]

Path: TypeAlias = tuple["str | int", ...]
"""The path of a value: names of members, and indexes of elements from 0."""

_PLACE: Final = re.compile(r" \(at (?:line (?P<line>[0-9]+), column [0-9]+|end of document)\)")
_OPEN_ENDS: Final = ("", "\n]")
"""Texts that complete the first lines of a statement. An inline table has only one line."""


class TOMLMistake(ValueError):
    """A text is not a TOML document."""

    def __init__(self, line: int, sentence: str) -> None:
        """:param line: from 1."""
        super().__init__(sentence)
        self.line = line


class TOMLDocument:
    """A parsed document that finds the lines of its values."""

    def __init__(self, data: bytes) -> None:
        """
        Parse a document.

        :raise TOMLMistake: it is not TOML.
        """
        if data.startswith(codecs.BOM_UTF8):
            raise TOMLMistake(
                1, "begins with a byte order mark, which is not a part of TOML; save it as UTF-8 without one"
            )
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TOMLMistake(data.count(b"\n", 0, error.start) + 1, "is not UTF-8") from error
        self._text = text
        try:
            self.value: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self._mistake(str(error)) from error
        except (ValueError, RecursionError) as error:
            # Not an error of the parser itself: a number with thousands of digits, a thousand brackets.
            raise TOMLMistake(self._line_beyond_parser(), "has a value that cannot be read") from error

    def free(self) -> None:
        """Free the values one by one: at once, those of ten thousand callers stop all threads for 15 ms."""
        for table in self.value.values():
            while table and isinstance(table, dict):
                table.popitem()

    @cached_property
    def _lines(self) -> list[str]:
        # Without its LF, a line must not keep its CR, which is not allowed at the end of a document.
        return self._text.replace("\r\n", "\n").split("\n")

    def _mistake(self, said: str) -> TOMLMistake:
        found = _PLACE.search(said)
        line = int(found["line"]) if found and found["line"] else len(self._lines)
        sentence = _PLACE.sub("", said).partition("\n")[0].rstrip(".")
        return TOMLMistake(line, f"is not TOML: {sentence[:1].lower()}{sentence[1:]}")

    def _line_beyond_parser(self) -> int:
        """Return the first line with which the parser fails in a way that is not its own error."""

        def is_beyond(count: int) -> bool:
            try:
                tomllib.loads("\n".join(self._lines[:count]))
            except tomllib.TOMLDecodeError:
                return False
            except (ValueError, RecursionError):
                return True
            return False

        return bisect_left(range(len(self._lines)), 1, key=is_beyond)

    def line_of(self, path: Path) -> int:
        """
        Return the line, from 1, of a value that is there.

        That is the first line of its statement, or of its element in an array of several lines.
        """
        without, having = 0, len(self._lines)
        while (probe := self._probe_between(without, having)) is not None:
            count, value = probe
            if _has(value, path):
                having = count
            else:
                without = count
        return without + 1

    def _probe_between(self, without: int, having: int) -> tuple[int, Any] | None:
        """Find a number of lines between two that are a document, near their middle, and parse it."""
        middle = (without + having) // 2
        for count in (*range(middle, without, -1), *range(middle + 1, having)):
            for end in _OPEN_ENDS:
                with suppress(ValueError, RecursionError):
                    return count, tomllib.loads("\n".join(self._lines[:count]) + end)
        return None


def _has(value: Any, path: Path) -> bool:
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return False
        elif not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    return True
