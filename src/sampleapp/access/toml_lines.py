"""
On which line of a TOML document something is.

The parsers that there are do not keep that. But the lines before the end of a statement are a document, too,
and so are those between two headers: what is in which of them, the parser itself tells. So there is no second
opinion about the grammar. That takes longer than a look-up, and is only done for mistakes.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

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
        if data.startswith(codecs.BOM_UTF8):
            raise TOMLMistake(
                1, "begins with a byte order mark, which is not a part of TOML; save it as UTF-8 without one"
            )
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TOMLMistake(data.count(b"\n", 0, error.start) + 1, "is not UTF-8") from error
        # A line without its LF must not be left with a CR, which nothing may end with.
        self._lines = text.replace("\r\n", "\n").split("\n")
        self._tables: list[_Table] | None = None
        try:
            self.value: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self._mistake(str(error)) from error
        except (ValueError, RecursionError) as error:
            # What the parser did not think of: a number of thousands of digits, a thousand brackets.
            raise TOMLMistake(self._line_beyond_parser(), "has a value that cannot be read") from error

    def _mistake(self, said: str) -> TOMLMistake:
        place = _PLACE.search(said)
        line = int(place["line"]) if place and place["line"] else len(self._lines)
        sentence = _PLACE.sub("", said).partition("\n")[0].rstrip(".")
        return TOMLMistake(line, f"is no TOML: {sentence[:1].lower()}{sentence[1:]}")

    def _line_beyond_parser(self) -> int:
        """Find the line at which the parser fails otherwise than it should, as it does for all after that."""
        before, beyond = 0, len(self._lines)
        while beyond - before > 1:
            middle = (before + beyond) // 2
            try:
                tomllib.loads("\n".join(self._lines[:middle]))
            except tomllib.TOMLDecodeError:
                before = middle
            except (ValueError, RecursionError):
                beyond = middle
            else:
                before = middle
        return beyond

    def line_of(self, path: Path) -> int:
        """
        Find a value that is there.

        :return: the line of the statement that gives it, from 1; or in one of several lines, its own.
        """
        if self._tables is None:
            self._tables = list(_tables(self._lines))
        for table in self._tables:
            depth = len(table.path)
            if path == table.path[: len(path)]:
                return max(table.first, 1)
            if table.path == path[:depth]:
                line = _line_in(self._lines[table.first : table.last], path[depth:])
                if line is not None:
                    return table.first + line
        raise KeyError(path)


class _Table(NamedTuple):
    """The lines of one table, from its header to before the next one."""

    path: Path
    first: int
    """The line of its header, from 1; 0 for what is above all headers."""
    last: int


def _tables(lines: Sequence[str]) -> Iterator[_Table]:
    """Find the tables of a document."""
    path: Path = ()
    elements: dict[Path, int] = {}
    first = 0
    for number, line in enumerate(lines, 1):
        # In the middle of a value, what is above it is no document.
        if line.lstrip().startswith("[") and _parse(lines[first : number - 1]) is not None:
            yield _Table(path, first, number - 1)
            path = _path_of(line, elements)
            first = number
    yield _Table(path, first, len(lines))


def _path_of(header: str, elements: dict[Path, int]) -> Path:
    """
    Find out which table a header begins.

    :param elements: how many each array of tables has so far; is brought up to date.
    """
    path: Path = ()
    value: Any = _parse([header])
    while value:
        ((key, value),) = value.items()
        path = (*path, key)
        if isinstance(value, list):
            elements[path] = elements.get(path, 0) + 1
            (value,) = value
        if path in elements:
            # What is in an array of tables belongs to its last one.
            path = (*path, elements[path] - 1)
    return path


def _line_in(lines: Sequence[str], path: Path) -> int | None:
    """Find the line, from 1, of a value in a table without its header; ``None`` if it is not in it."""
    if not _has(_parse(lines), path):
        return None
    without, having = 0, len(lines)
    while (probe := _probe_between(lines, without, having)) is not None:
        count, value = probe
        if _has(value, path):
            having = count
        else:
            without = count
    return having if _is_element(path) else without + 1


def _probe_between(lines: Sequence[str], without: int, having: int) -> tuple[int, Any] | None:
    """Find a number of lines between two that are a document, near their middle, and parse it."""
    middle = (without + having) // 2
    for count in (*range(middle, without, -1), *range(middle + 1, having)):
        for end in _OPEN_ENDS:
            value = _parse(lines[:count], end)
            if value is not None:
                return count, value
    return None


def _parse(lines: Sequence[str], end: str = "") -> Any:
    """Return what lines say, or ``None`` if they are no document."""
    try:
        return tomllib.loads("\n".join(lines) + end)
    except (ValueError, RecursionError):
        return None


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
