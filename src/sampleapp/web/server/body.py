"""
Parsers of request bodies: with a declared length, or in chunks.

Pure: they are given bytes as they come, and return the bytes after the body.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Final, Protocol

from sampleapp.web.errors import BodyTooLarge, HeaderTooLarge, MalformedRequest
from sampleapp.web.server.fields import FieldParser

__all__ = ["Body", "ChunkedBody", "Content", "SizedBody"]

_STEPS_AT_ONCE: Final = 1000
"""Lines and parts of content that are parsed in one turn of the reactor: about a millisecond."""
_STEPS_OF_TRAILER: Final = 5
_MAX_LINE_BYTES: Final = 16 * 1024
"""The greatest size of all extensions of chunks together, and of all trailers together, in bytes."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
# RFC 9112, section 7.1.1: a client must not send white space here, but a server must read it.
_EXTENSION = rb"[\t ]*;[\t ]*%b(?:[\t ]*=[\t ]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]+)((?:%b)*)\r\n" % _EXTENSION)
_CRLF: Final = b"\r\n"


class Content(Protocol):
    """A store for the content of a body."""

    def write(self, data: bytes, /) -> object:
        """Store the next part of the content."""


class Body(Protocol):
    """A parser of one body."""

    def receive(self, data: bytes) -> tuple[bool, bytes]:
        """
        Parse bytes that have come.

        :return: whether the body is whole now, and the bytes after it. While it is not whole, the bytes are
            those to be parsed in the next turn of the reactor.
        :raise RequestError: the body does not follow the grammar of HTTP, or is over the limit.
        """

    def content(self) -> bytes:
        """Return the content of the whole body; empty if it is not kept here."""


class SizedBody:
    """A body whose length was declared (RFC 9112, section 6.2)."""

    def __init__(self, length: int, *, keep: bool, content: Content | None = None) -> None:
        """
        :param length: in bytes.
        :param keep: whether the content is needed.
        :param content: stores the content, which `content()` does not return then.
        """
        self._left = length
        self._keep = keep
        # When the body is whole, its content is not copied again.
        self._content = BytesIO()
        self._write = (self._content if content is None else content).write

    def receive(self, data: bytes) -> tuple[bool, bytes]:
        """Parse bytes that have come; see `Body`."""
        rest = data[self._left :]
        if rest:
            data = data[: self._left]
        self._left -= len(data)
        if self._keep:
            self._write(data)
        return not self._left, rest

    def content(self) -> bytes:
        """Return the content; see `Body`."""
        return self._content.getvalue()


class ChunkedBody:
    """
    A body that comes in chunks (RFC 9112, section 7.1).

    Its extensions and trailers are checked, and not used.
    """

    def __init__(self, limit: int, *, keep: bool, content: Content | None = None) -> None:
        """
        :param limit: the greatest length of the content, in bytes.
        :param keep: whether the content is needed.
        :param content: stores the content, which `content()` does not return then.
        """
        self._limit = limit
        self._keep = keep
        self._content = BytesIO()
        self._write = (self._content if content is None else content).write
        self._length = 0
        self._extensions = 0
        self._line = b""
        self._left = 0
        self._is_after_chunk = False
        self._trailers: FieldParser | None = None
        self._trailer_size = 0

    def receive(self, data: bytes) -> tuple[bool, bytes]:
        """Parse bytes that have come; see `Body`."""
        position = 0
        steps = _STEPS_AT_ONCE
        while position < len(data) and steps > 0:
            steps -= 1 if self._trailers is None else _STEPS_OF_TRAILER
            if self._left:
                part = data[position : position + self._left]
                self._left -= len(part)
                position += len(part)
                if self._keep:
                    self._write(part)
                continue
            end = data.find(b"\n", position) + 1 or len(data)
            self._line += data[position:end]
            position = end
            if not self._line.endswith(b"\n"):
                self._check_length_of_line()
            elif self._line_is_last():
                return True, data[position:]
        return False, data[position:]

    def content(self) -> bytes:
        """Return the content; see `Body`."""
        return self._content.getvalue()

    def _count(self, size: int) -> None:
        self._length += size
        if self._length > self._limit:
            raise BodyTooLarge(self._limit)

    def _line_is_last(self) -> bool:
        self._check_length_of_line()
        line, self._line = self._line, b""
        if self._trailers is not None:
            self._trailer_size += len(line)
            self._trailers.feed(line)
            if line == _CRLF:
                self._trailers.fields()
                return True
        elif self._is_after_chunk:
            if line != _CRLF:
                raise MalformedRequest("A chunk is longer than its size, or does not end with CR LF.")
            self._is_after_chunk = False
        else:
            self._begin_chunk(line)
        return False

    def _begin_chunk(self, line: bytes) -> None:
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise MalformedRequest(
                "A chunk must begin with its size in hexadecimal digits, on a line that ends with CR LF."
            )
        self._extensions += len(match[2])
        size = int(match[1], 16)
        if size == 0:
            self._trailers = FieldParser()
            return
        self._count(size)
        self._left = size
        self._is_after_chunk = True

    def _check_length_of_line(self) -> None:
        if self._trailers is not None:
            if self._trailer_size + len(self._line) > _MAX_LINE_BYTES:
                raise HeaderTooLarge(
                    f"The trailers are longer than {_MAX_LINE_BYTES} bytes, which is the limit."
                )
        elif self._is_after_chunk and len(self._line) > len(_CRLF):
            raise MalformedRequest("A chunk is longer than its size, or does not end with CR LF.")
        elif self._extensions + len(self._line) > _MAX_LINE_BYTES:
            raise HeaderTooLarge(
                f"The extensions of the chunks are longer than {_MAX_LINE_BYTES} bytes, which is the limit."
            )
