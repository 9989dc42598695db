"""
Header fields and trailer fields: their grammar, and how they are found.

The grammar is that of llhttp, the parser of Node, which takes nothing that two parsers could read in two
ways: no line without CR and LF, no folded line, no white space before a colon (RFC 9112, sections 2.2 and 5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import httptools

from sampleapp.web.request_errors import BodyTooLarge, HeaderTooLarge, MalformedRequest

__all__ = ["BLANKS", "FieldParser", "Fields"]

_MOST_FIELDS: Final = 500
_LONGEST_NAME: Final = 256

# llhttp reads requests, not fields alone. What the real request line says is for others to judge.
_REQUEST_LINE: Final = b"POST / HTTP/1.1\r\n"

# A value may hold no control characters, but only NUL, CR and LF do harm (RFC 9110, section 5.5). llhttp
# refuses them all. So the others are replaced with an octet that it takes in values alone: no ASCII.
_HARMLESS: Final = bytes(octet for octet in (*range(1, 32), 127) if octet not in b"\t\r\n")
_WITHOUT_CONTROLS: Final = bytes.maketrans(_HARMLESS, b"\xff" * len(_HARMLESS))

BLANKS: Final = b" \t"

# After "chunked", llhttp takes spaces and no tab, though either is no part of a value (RFC 9110, section
# 5.6.3). White space at the beginning of a line is left for llhttp to refuse.
_BLANKS_AT_END: Final = re.compile(rb"(?<![\n\t ])[\t ]+(?=\r)")

_TOO_LONG: Final = "Content-Length overflow"
"""What llhttp says of a number that has more than 64 bits."""


class Fields:
    """The fields of one message, found by their names without regard to case (RFC 9110, section 5.1)."""

    __slots__ = ("_values",)

    def __init__(self, fields: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """:param fields: names and values in their order; a name may come again."""
        self._values: dict[bytes, tuple[bytes, ...]] = {}
        for name, value in fields:
            self.add(name, value)

    def add(self, name: bytes, value: bytes) -> None:
        """Add a field after all others, without the white space around its value (RFC 9112, section 5.1)."""
        value = value.strip(BLANKS)
        lower = name.lower()
        values = self._values
        values[lower] = (*values[lower], value) if lower in values else (value,)

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

    def names(self) -> Iterable[bytes]:
        """Return the names that there are, in lower case."""
        return self._values.keys()

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Names in lower case with their values; those of one name together."""
        return ((name, value) for name, values in self._values.items() for value in values)


class FieldParser:
    """Parses the lines after a request line, or after the last chunk, as they come."""

    def __init__(self) -> None:
        self._fields = Fields()
        # Called by the parser, with the name and the value of each field.
        self.on_header = self._fields.add
        self._size = 0
        self._unread = _REQUEST_LINE
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """
        Read on.

        :param data: does not end with white space, of which more may follow.
        :raise MalformedRequest: this cannot become fields.
        :raise BodyTooLarge: the declared length of the body has more than 64 bits.
        """
        self._size += len(data)
        if self._unread:
            data, self._unread = self._unread + data, b""
        if b"\t" in data:
            data = _BLANKS_AT_END.sub(lambda blanks: b" " * len(blanks[0]), data)
        try:
            self._parser.feed_data(data.translate(_WITHOUT_CONTROLS))
        except httptools.HttpParserUpgrade:
            # A client may ask for another protocol, and it may stay with this one (RFC 9110, section 7.8).
            return
        except httptools.HttpParserError as error:
            reason = str(error)
            if reason == _TOO_LONG:
                raise BodyTooLarge(None) from error
            raise MalformedRequest(
                f"The request does not follow the grammar of HTTP: {_sentence(reason)}"
            ) from error

    def fields(self) -> Fields:
        """
        Return the fields, now that the empty line has come.

        :raise HeaderTooLarge: there are more, or longer names, than this service reads.
        """
        fields = self._fields
        if self._size <= _LONGEST_NAME:
            # As nearly all are: too small for any of the limits.
            return fields
        if len(fields) > _MOST_FIELDS:
            raise HeaderTooLarge(f"There are more than {_MOST_FIELDS} header fields.")
        if max(map(len, fields.names()), default=0) > _LONGEST_NAME:
            raise HeaderTooLarge(f"A field's name is over {_LONGEST_NAME} bytes.")
        return fields


def _sentence(reason: str) -> str:
    # llhttp puts names between grave accents.
    return f"{reason[:1].lower()}{reason[1:]}.".replace("`", "")
