"""
Header fields and trailer fields: their grammar, and how they are found.

The grammar is that of llhttp, the parser of Node, which takes nothing that two parsers could read in two ways:
no line without CR, no white space before a colon (RFC 9112, sections 2.2 and 5.1). It is told to be lenient
with the values, in which other control characters do no harm (RFC 9110, section 5.5), and what it would then
take as well is refused here: NUL, and folded lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import httptools

from sampleapp.web.request_errors import BodyTooLarge, HeaderTooLarge, MalformedRequest, RequestError

__all__ = ["MOST_FIELDS", "FieldParser", "Fields"]

MOST_FIELDS: Final = 500
_LONGEST_NAME: Final = 256

# llhttp reads requests, not fields alone. What the real request line says is for others to judge.
_REQUEST_LINE: Final = b"POST / HTTP/1.1\r\n"

_NUL_OR_FOLDED = re.compile(rb"\x00|\n[\t ]")

_TOO_LONG: Final = "Content-Length overflow"
"""What llhttp says of a number that has more than 64 bits."""


class Fields:
    """The fields of one message, found by their names without regard to case (RFC 9110, section 5.1)."""

    __slots__ = ("_values",)

    def __init__(self, fields: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """:param fields: names and values in their order, as bytes; the same name may come again."""
        values: dict[bytes, tuple[bytes, ...]] = {}
        for name, value in fields:
            lower = name.lower()
            before = values.get(lower)
            values[lower] = (value,) if before is None else (*before, value)
        self._values = values

    def all(self, name: bytes) -> tuple[bytes, ...]:
        """Return the values of all fields of this name, in their order."""
        return self._values.get(name.lower(), ())

    def joined(self, name: bytes) -> bytes | None:
        """
        Return the values of all fields of this name as one, joined with commas (RFC 9110, section 5.3).

        :return: ``None`` if there is no such field.
        """
        values = self._values.get(name.lower())
        if values is None:
            return None
        return values[0] if len(values) == 1 else b", ".join(values)

    def __contains__(self, name: bytes) -> bool:
        return name.lower() in self._values

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Names in lower case with their values; those of one name together."""
        return ((name, value) for name, values in self._values.items() for value in values)


class FieldParser:
    """Parses the lines after a request line, or after the last chunk, as they come."""

    def __init__(self) -> None:
        self._pairs: list[tuple[bytes, bytes]] = []
        self._is_whole = False
        self._last = _REQUEST_LINE[-1:]
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_headers=True)
        self._parser.feed_data(_REQUEST_LINE)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one field; called by the parser."""
        self._pairs.append((name, value))

    def on_headers_complete(self) -> None:
        """Take note of the empty line; called by the parser."""
        self._is_whole = True

    def feed(self, data: bytes) -> None:
        """
        Read on.

        :raise MalformedRequest: this cannot become fields.
        :raise BodyTooLarge: the declared length of the body has more than 64 bits.
        """
        bad = _NUL_OR_FOLDED.search(self._last + data)
        self._last = data[-1:] or self._last
        try:
            # What is wrong before that is to be told first, in whatever pieces all of it comes.
            self._parser.feed_data(data if bad is None else data[: bad.start()])
        except httptools.HttpParserUpgrade:
            # A client may ask for another protocol, and it may stay with this one (RFC 9110, section 7.8).
            return
        except httptools.HttpParserError as error:
            reason = str(error)
            # What llhttp finds wrong with the body after the empty line, `head` finds too.
            if self._is_whole:
                return
            if reason == _TOO_LONG:
                raise BodyTooLarge(None) from error
            raise MalformedRequest(
                f"The request does not follow the grammar of HTTP: {_sentence(reason)}"
            ) from error
        if bad is not None:
            raise MalformedRequest(
                "The request does not follow the grammar of HTTP: a header field holds NUL, or a line of the "
                "header begins with white space."
            )

    def fields(self) -> Fields:
        """
        Return the fields, now that the empty line has come.

        :raise RequestError: it has not, or there are more fields, or longer names, than this service reads.
        """
        if not self._is_whole:
            raise MalformedRequest(
                "The request does not follow the grammar of HTTP: its header does not end."
            )
        error = _over_limits(self._pairs)
        if error is not None:
            raise error
        return Fields(self._pairs)


def _over_limits(pairs: list[tuple[bytes, bytes]]) -> RequestError | None:
    if len(pairs) > MOST_FIELDS:
        return HeaderTooLarge(f"There are more than {MOST_FIELDS} header fields.")
    if any(len(name) > _LONGEST_NAME for name, _ in pairs):
        return HeaderTooLarge(f"A field's name is over {_LONGEST_NAME} bytes.")
    return None


def _sentence(reason: str) -> str:
    # llhttp puts names between grave accents.
    return f"{reason[:1].lower()}{reason[1:]}.".replace("`", "")
