"""
Header fields and trailer fields: a parser, and a mapping from names to values.

The grammar is that of llhttp, Node's parser. It rejects everything that two parsers could read in two ways:
lines without CR and LF, folded lines, white space before a colon (RFC 9112, sections 2.2 and 5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import httptools

from sampleapp.web.errors import BodyTooLarge, HeaderTooLarge, MalformedRequest

_MAX_FIELDS: Final = 500
_LONGEST_NAME: Final = 256

# llhttp parses whole requests, not fields alone. The real request line is parsed elsewhere.
_REQUEST_LINE: Final = b"POST / HTTP/1.1\r\n"

BLANKS: Final = b" \t"
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

# After "chunked", llhttp allows spaces but not tabs, though neither is a part of the value (RFC 9110, section
# 5.6.3). White space at the beginning of a line stays, so that llhttp rejects it.
_BLANKS_AT_END: Final = re.compile(rb"(?<![\n\t ])[\t ]+(?=\r)")

_TOO_LONG: Final = "Content-Length overflow"
"""llhttp's message for a number with more than 64 bits."""

_INVALID_VALUE: Final = "Invalid header value char"
"""llhttp's message for a control character."""


class Fields:
    """The fields of one message, found by their names without regard to case (RFC 9110, section 5.1)."""

    __slots__ = ("_values",)

    def __init__(self, fields: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """:param fields: names and values in their order; a name may repeat."""
        self._values: dict[bytes, tuple[bytes, ...]] = {}
        for name, value in fields:
            self.add(name, value)

    def add(self, name: bytes, value: bytes) -> None:
        """Append a field, without the white space around its value (RFC 9112, section 5.1)."""
        value = value.strip(BLANKS)
        lower = name.lower()
        values = self._values
        if lower not in values:
            values[lower] = (value,)
        elif len(values[lower]) <= _MAX_FIELDS:
            # More are rejected; each copies all before it.
            values[lower] = (*values[lower], value)

    def replace(self, name: bytes, *values: bytes) -> None:
        """Set the fields of a name, and remove all others of it."""
        self._values[name.lower()] = values

    def with_value(self, name: bytes, value: bytes) -> Fields:
        """Return a copy in which a field is replaced as by `replace`."""
        fields = Fields()
        fields._values = {**self._values, name.lower(): (value,)}
        return fields

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
        """Return the names of all fields, in lower case."""
        return self._values.keys()

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over names in lower case and values; fields of one name stand together."""
        return ((name, value) for name, values in self._values.items() for value in values)


def check_values(fields: Fields) -> None:
    """
    Reject control characters in values, as `FieldParser` does (RFC 9110, section 5.5).

    :raise MalformedRequest: a value has a control character.
    """
    for _, value in fields:
        if _CONTROL.search(value):
            raise _control_character()


class FieldParser:
    """An incremental parser of the lines after a request line, or after the last chunk."""

    def __init__(self) -> None:
        self._fields = Fields()
        # httptools calls this with the name and the value of each field.
        self.on_header = self._fields.add
        self._size = 0
        self._unread = _REQUEST_LINE
        self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """
        Parse the next bytes.

        :param data: must not end with white space, since more white space may follow.
        :raise MalformedRequest: the bytes do not follow the grammar.
        :raise BodyTooLarge: the declared length of the body has more than 64 bits.
        """
        self._size += len(data)
        if self._unread:
            data, self._unread = self._unread + data, b""
        if b"\t" in data:
            data = _BLANKS_AT_END.sub(lambda blanks: b" " * len(blanks[0]), data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # A server may ignore that a client asks for another protocol (RFC 9110, section 7.8).
            return
        except httptools.HttpParserError as error:
            reason = str(error)
            if reason == _TOO_LONG:
                raise BodyTooLarge(None) from error
            if reason == _INVALID_VALUE:
                raise _control_character() from error
            raise MalformedRequest(
                f"The request does not follow the grammar of HTTP: {_sentence(reason)}"
            ) from error

    def fields(self) -> Fields:
        """
        Return the fields, once the empty line was parsed.

        :raise HeaderTooLarge: there are too many fields, or a name is too long.
        """
        fields = self._fields
        if self._size <= _LONGEST_NAME:
            # Nearly all heads: too small for any of the limits.
            return fields
        if len(fields) > _MAX_FIELDS:
            raise HeaderTooLarge(
                f"The request has more than {_MAX_FIELDS} header fields, which is the limit."
            )
        if max(map(len, fields.names()), default=0) > _LONGEST_NAME:
            raise HeaderTooLarge(
                f"The name of a header field is longer than {_LONGEST_NAME} bytes, which is the limit."
            )
        return fields


def _control_character() -> MalformedRequest:
    return MalformedRequest("The value of a header field has a control character.")


def _sentence(reason: str) -> str:
    # llhttp puts names between grave accents.
    return f"{reason[:1].lower()}{reason[1:]}.".replace("`", "")
