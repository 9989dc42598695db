"""
The tables of the callers file: their members, and the message for a member that is wrong, with its line.

The parser of TOML does not keep line numbers. But the first lines of a document, up to the end of a
statement, are a document as well: the line of a value is found by bisection, with the parser itself. That
takes some seconds for a file with 10,000 callers, and is only done for a mistake.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from sampleapp.access.caller import PREFIX
from sampleapp.concurrency.rates import Rate

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


# Of tokens, and of secrets of Standard Webhooks.
_PREFIXES: Final = (PREFIX, "whsec_")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_WRONG_KIND: Final = re.compile(r"Expected `(?P<wanted>\w+)(?: \| null)?`, got `(?P<got>\w+)`")
_MISSING: Final = re.compile("Object missing required field `(?P<member>.+?)`")
_KINDS: Final = {
    "bool": "true or false",
    "str": "a string",
    "int": "a number",
    "float": "a number",
    "datetime": "a date-time",
    "date": "a date",
    "time": "a time",
    "array": "an array",
    "object": "a table",
}
"""The words for msgspec's names of kinds."""
_EXAMPLES: Final = {
    "publish": '["readings", "sensors.*"]',
    "consume": '["readings", "sensors.*"]',
    "work": '["orders/billing", "invoices/*"]',
    "read": "true",
    "metrics": "true",
    "certificates": '["dns:thermometer.example"]',
    "subjects": '["example:auth0|123"]',
    "tokens": '[{ sha256 = "…" }]',
    "requests_per_second": "50",
    "requests_burst": "100",
    "bytes_per_second": "100_000",
    "bytes_burst": "1_000_000",
    "max_streams": "100",
    "sha256": '"…"',
    "until": "2027-01-31",
    "issuer": '"https://login.example/"',
    "audience": '"sampleapp"',
    "jwks": '"https://login.example/jwks.json"',
    "algorithms": '["RS256"]',
    "caller_claim": '"sub"',
    "names_callers": "true",
    "publish_claim": '"kafka_topics"',
    "consume_claim": '"kafka_topics"',
    "work_claim": '"work_groups"',
    "topic": '"github"',
    "scheme": '"github"',
    "secret_files": '["github.secret"]',
    "header": '"X-Signature"',
    "encoding": '"hex"',
    "prefix": '"sha256="',
    "signed": '"{timestamp}:{body}"',
    "timestamp_header": '"X-Timestamp"',
    "key_header": '"X-Device"',
    "idempotency_header": '"X-GitHub-Delivery"',
    "tolerance": "300",
}
_MOST_BITS: Final = 63
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86400.0

S = TypeVar("S", bound=Struct)


class Mistake(ValueError):
    """A mistake in the callers file. The message is a sentence that names the member."""

    def __init__(self, path: Path, said: str) -> None:
        """
        :param path: of a value that is there: the one that is wrong, or the table that lacks a member.
        :param said: what is wrong, and what would be right, without subject and full stop. It does not repeat
            a value, which may be a secret.
        """
        sentence = f"{in_words(path)} {said}" if path else said
        super().__init__(sentence if sentence.endswith("?") else f"{sentence}.")
        self.path = path


def in_words(path: Path) -> str:
    """Return a path as TOML writes keys, with elements of arrays counted from 1."""
    words = ""
    for step in path:
        if isinstance(step, int):
            words += f"[{step + 1}]"
        else:
            # JSON quotes as TOML does.
            key = step if _BARE_KEY.fullmatch(step) else json.dumps(step)
            for prefix in _PREFIXES:
                if prefix in key:
                    # Do not repeat a token or a secret that is in the wrong place.
                    key = f"{prefix}…"
            words += f".{key}" if words else key
    return words


class FileTable(Struct, forbid_unknown_fields=True):
    """The whole file."""

    issuers: dict[str, Any] = {}
    callers: dict[str, Any] = {}
    hooks: dict[str, Any] = {}


class TokenTable(Struct, forbid_unknown_fields=True):
    """``[[callers.NAME.tokens]]``."""

    sha256: str | None = None
    until: Any = None

    def until_s(self, path: Path) -> float | None:
        """
        Return the end of the token: the day after a date, or a date-time with an offset.

        :param path: of this table.
        :return: the first moment at which it is not valid any more, in seconds since the epoch.
        :raise Mistake: it is neither.
        """
        until, path = self.until, (*path, "until")
        if until is None:
            return None
        if not isinstance(until, date):
            raise Mistake(path, "must be a date such as 2027-01-31, without quotes")
        if not isinstance(until, datetime):
            return (until.toordinal() + 1 - _EPOCH_DAY) * _DAY_S
        if until.tzinfo is None:
            raise Mistake(path, "is a date-time without an offset; write one such as 2027-01-31T12:00:00Z")
        return until.timestamp()


class _RatesTable(Struct, forbid_unknown_fields=True, kw_only=True):
    requests_per_second: float | None = None
    requests_burst: float | None = None
    bytes_per_second: float | None = None
    bytes_burst: float | None = None

    def requests(self, path: Path) -> Rate | None:
        """
        Return the rate of requests.

        :param path: of this table.
        :raise Mistake: it is none.
        """
        return _rate("requests", self.requests_per_second, self.requests_burst, path)

    def bytes(self, path: Path) -> Rate | None:
        """Return the rate of bytes; see `requests`."""
        return _rate("bytes", self.bytes_per_second, self.bytes_burst, path)


class HookTable(_RatesTable):
    """``[hooks.NAME]``."""

    topic: str
    scheme: str
    secret_files: list[str]
    header: str | None = None
    encoding: str | None = None
    prefix: str | None = None
    signed: str | None = None
    timestamp_header: str | None = None
    key_header: str | None = None
    idempotency_header: str | None = None
    tolerance: float | None = None


class _RightsTable(_RatesTable, kw_only=True):
    read: bool = False
    metrics: bool = False
    max_streams: int | None = None

    def streams(self, path: Path) -> int | None:
        """
        Return the most streams at once; ``None`` if it has no limit of its own.

        :param path: of this table.
        :raise Mistake: it is negative.
        """
        if self.max_streams is not None and self.max_streams < 0:
            raise Mistake((*path, "max_streams"), "must be a whole number, such as 100, or 0 for none")
        return self.max_streams


class CallerTable(_RightsTable):
    """``[callers.NAME]``."""

    publish: list[str] = []
    consume: list[str] = []
    work: list[str] = []
    certificates: list[str] = []
    subjects: list[str] = []
    tokens: list[Any] = []


class IssuerTable(_RightsTable):
    """``[issuers.NAME]``."""

    issuer: str
    audience: str
    jwks: str
    algorithms: list[str] | None = None
    caller_claim: str | None = None
    names_callers: bool = False
    publish_claim: str | None = None
    consume_claim: str | None = None
    work_claim: str | None = None


def _rate(what: str, per_second: float | None, burst: float | None, path: Path) -> Rate | None:
    """By default the burst is what may come in a second, and at least 1."""
    rate_path, burst_path = (*path, f"{what}_per_second"), (*path, f"{what}_burst")
    for number, at in ((per_second, rate_path), (burst, burst_path)):
        # A NaN is not above zero either.
        if number is not None and not 0 < number < math.inf:
            raise Mistake(at, "must be a finite number above zero, such as 50 or 0.5")
    if burst is not None and burst < 1:
        raise Mistake(burst_path, "must be at least 1")
    if per_second is None:
        if burst is not None:
            raise Mistake(
                burst_path, f"is the most that may come at once, and needs {rate_path[-1]} beside it"
            )
        return None
    return Rate(per_second, max(1.0, math.ceil(per_second)) if burst is None else burst)


def convert(value: object, kind: type[S], path: Path) -> S:
    """
    Convert a table of TOML.

    :param path: of the table.
    :raise Mistake: it is not a table, or one of its members is not known, missing or of another kind.
    """
    if isinstance(value, Mapping):
        known = kind.__struct_fields__
        for name, member in value.items():
            require_known(name, known, (*path, name))
            # For some of these, msgspec 0.19 raises SystemError.
            if isinstance(member, int) and member.bit_length() > _MOST_BITS:
                raise Mistake((*path, name), f"is too large: a number may have {_MOST_BITS} bits")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _mistake(str(error), path) from error


def require_known(name: str, known: tuple[str, ...], path: Path) -> None:
    """
    Check that a name is one of those that are known.

    :param path: of the name.
    :raise Mistake: it is not; the message has the one that was probably meant, or all.
    """
    if name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"
        raise Mistake(path, f"is not known here; {hint}")


def _mistake(message: str, path: Path) -> Mistake:
    """Translate an error of msgspec, which names types of Python and JSON."""
    said, _, place = message.partition(" - at `$.")
    member, _, index = place.rstrip("`]").partition("[")
    missing = _MISSING.match(said)
    if missing is not None:
        name = missing["member"]
        return Mistake(path, f"has no {name}; add one, such as {name} = {_EXAMPLES[name]}")
    example = ""
    if member:
        path = (*path, member)
        if member in _EXAMPLES:
            example = f"; for example {member} = {_EXAMPLES[member]}"
    if index:
        path = (*path, int(index))
    wrong = _WRONG_KIND.fullmatch(said)
    if wrong is None:
        return Mistake(path, f"cannot be used: {said[0].lower()}{said[1:]}{example}")
    if wrong["wanted"] == "object":
        example = f"; begin it with {_header(path)}"
    return Mistake(path, f"must be {_KINDS[wrong['wanted']]}, not {_KINDS[wrong['got']]}{example}")


def _header(path: Path) -> str:
    if isinstance(path[-1], int):
        return f"[[{in_words(path[:-1])}]]"
    return f"[{in_words(path)}.NAME]" if len(path) == 1 else f"[{in_words(path)}]"
