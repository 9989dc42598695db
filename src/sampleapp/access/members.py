"""The members of a TOML table, taken out one by one; what is wrong with them is noted, and told together."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from difflib import get_close_matches
from typing import Any, Final

from sampleapp.access.tokens import PREFIX
from sampleapp.access.toml_lines import Path

__all__ = ["Faults", "Members", "in_words"]

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")

# What TOML has; a bool is an int as well, and a datetime a date.
_KINDS: Final[tuple[tuple[type, str], ...]] = (
    (bool, "true or false"),
    (str, "a string"),
    (int, "a number"),
    (float, "a number"),
    (datetime, "a date-time"),
    (date, "a date"),
    (time, "a time"),
    (list, "an array"),
    (dict, "a table"),
)


def _kind(value: object) -> str:
    return next(words for kind, words in _KINDS if isinstance(value, kind))


def in_words(path: Path) -> str:
    """Return where something is, as TOML writes keys; elements of arrays count from 1, as people do."""
    words = ""
    for step in path:
        if isinstance(step, int):
            words += f"[{step + 1}]"
        else:
            # JSON quotes as TOML does.
            key = step if _BARE_KEY.fullmatch(step) else json.dumps(step)
            if PREFIX in key:
                # A token that has come to the wrong place is not repeated.
                key = f"{PREFIX}…"
            words += f".{key}" if words else key
    return words


class Faults:
    """What is wrong with a document, by the places where it is."""

    def __init__(self) -> None:
        self.found: list[tuple[Path, str]] = []
        """Where, and what, as a sentence without its subject's place."""

    def add(self, path: Path, sentence: str) -> None:
        """
        Note one more.

        :param path: where; it is there.
        :param sentence: what is wrong, and what would be right. It does not repeat what may be a secret.
        """
        self.found.append((path, sentence))


class Members:
    """The members of one table. Each method notes what is wrong with the member, and goes on without it."""

    def __init__(self, table: Mapping[str, Any], *, path: Path, faults: Faults) -> None:
        """
        :param path: of the table.
        :param faults: where to note what is wrong.
        """
        self.path = path
        self._table = table
        self._faults = faults
        self._known: list[str] = []

    def has(self, name: str) -> bool:
        """Whether there is such a member, right or wrong."""
        return name in self._table

    def fault(self, sentence: str, *within: str | int) -> None:
        """
        Note that something is wrong.

        :param within: where in this table; nothing for the table itself.
        """
        self._faults.add((*self.path, *within), sentence)

    def _take(self, name: str, kinds: type | tuple[type, ...], words: str) -> Any:
        self._known.append(name)
        value = self._table.get(name)
        if value is None:
            return None
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            self.fault(f"has to be {words}, not {_kind(value)}", name)
            return None
        return value

    def boolean(self, name: str, *, default: bool = False) -> bool:
        """Take true or false."""
        value: bool | None = self._take(name, bool, "true or false")
        return default if value is None else value

    def string(self, name: str) -> str | None:
        """Take a string."""
        value: str | None = self._take(name, str, 'a string, such as "…"')
        return value

    def required_string(self, name: str, example: str) -> str | None:
        """Take a string that has to be there."""
        value = self.string(name)
        if not self.has(name):
            self.fault(f"has no {name}; add one, such as {name} = {json.dumps(example)}")
        return value

    def above_zero(self, name: str) -> float | None:
        """Take a number above zero."""
        value = self._take(name, (int, float), "a number above zero")
        if value is None:
            return None
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number <= 0:
            self.fault("has to be a number above zero that has an end, such as 50 or 0.5", name)
            return None
        return number

    def strings(self, name: str) -> list[tuple[int, str]]:
        """Take an array of strings; returns each with its place in the array."""
        values: list[Any] = self._take(name, list, 'an array of strings, such as ["…"]') or []
        found = []
        for place, value in enumerate(values):
            if isinstance(value, str):
                found.append((place, value))
            else:
                self.fault(f"has to be a string, not {_kind(value)}", name, place)
        return found

    def tables(self, name: str) -> list[Members]:
        """Take an array of tables."""
        header = f"[[{in_words((*self.path, name))}]]"
        values: list[Any] = self._take(name, list, f"an array of tables: {header}") or []
        found = []
        for place, value in enumerate(values):
            if isinstance(value, dict):
                found.append(Members(value, path=(*self.path, name, place), faults=self._faults))
            else:
                self.fault(f"has to be a table, not {_kind(value)}: begin one with {header}", name, place)
        return found

    def named_tables(self, name: str) -> Iterator[tuple[str, Members]]:
        """Take a table of tables; gives each with its name."""
        header = f"[{in_words((*self.path, name))}.NAME]"
        values: dict[str, Any] = self._take(name, dict, f"a table for each: {header}") or {}
        for key, value in values.items():
            if isinstance(value, dict):
                yield key, Members(value, path=(*self.path, name, key), faults=self._faults)
            else:
                self.fault(f"has to be a table, not {_kind(value)}: begin one with {header}", name, key)

    def moment_s(self, name: str) -> float | None:
        """
        Take the end of something: a date, which it includes, or a date-time with an offset.

        :return: the first moment after it, in seconds since the epoch.
        """
        value: date | None = self._take(name, date, "a date such as 2027-01-31, without quotes")
        if value is None:
            return None
        if not isinstance(value, datetime):
            return (value.toordinal() + 1 - _EPOCH_DAY) * _DAY_S
        if value.tzinfo is None:
            self.fault("is a date-time without an offset; write one such as 2027-01-31T12:00:00Z", name)
            return None
        return value.timestamp()

    def end(self) -> None:
        """Note every member that was not asked for."""
        for name in self._table:
            if name not in self._known:
                close = get_close_matches(name, self._known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(self._known)}"
                self.fault(f"is not known here; {hint}", name)


_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86400.0
