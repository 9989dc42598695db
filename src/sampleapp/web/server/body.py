"""
The body of a request, taken out of the bytes that come: of a declared length, or in chunks.

Pure: what comes is handed in, and what comes after the body is handed back.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import Final, Protocol

from sampleapp.web.request_errors import BodyTooLarge, HeaderTooLarge, MalformedRequest
from sampleapp.web.server.fields import FieldParser

__all__ = ["Body", "ChunkedBody", "Content", "SizedBody"]

_MAX_LINES: Final = 16 * 1024
"""All extensions of chunks together, and all trailers together, have at most so many bytes."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
# RFC 9112, section 7.1.1, where white space is bad, but to be read.
_EXTENSION = rb"[\t ]*;[\t ]*%b(?:[\t ]*=[\t ]*(?:%b|%b))?" % (_TOKEN, _TOKEN, _QUOTED)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]+)((?:%b)*)\r\n" % _EXTENSION)
_PLAIN_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_CRLF: Final = b"\r\n"


class Content(Protocol):
    """Keeps a body for somebody, as it comes."""

    def write(self, data: bytes, /) -> object:
        """Keep what has come."""


class Body(Protocol):
    """A body as it comes."""

    def receive(self, data: bytes) -> bytes | None:
        """
        Take what belongs to the body.

        :return: what comes after it; ``None`` while it is not whole.
        :raise RequestError: it does not follow the grammar of HTTP, or is over the limit.
        """

    def content(self) -> bytes:
        """Return the body, now that it is whole; empty if it was not to be kept."""


class SizedBody:
    """A body whose length was declared (RFC 9112, section 6.2)."""

    def __init__(self, length: int, *, keep: bool, content: Content | None = None) -> None:
        """
        :param length: in bytes.
        :param keep: whether anybody wants the content.
        :param content: is given it as it comes, instead of `content`.
        """
        self._left = length
        self._keep = keep
        # What has come is not copied again when all of it is there.
        self._content = BytesIO()
        self._write = (self._content if content is None else content).write

    def receive(self, data: bytes) -> bytes | None:
        """Take what belongs to the body; see `Body`."""
        size = len(data)
        if size < self._left:
            self._left -= size
            rest = None
        else:
            data, rest = data[: self._left], data[self._left :]
            self._left = 0
        if self._keep:
            self._write(data)
        return rest

    def content(self) -> bytes:
        """Return the body; see `Body`."""
        return self._content.getvalue()


class ChunkedBody:
    """
    A body that comes in chunks (RFC 9112, section 7.1).

    Its extensions and trailers are checked, and what they say is not used.
    """

    def __init__(self, limit: int, *, keep: bool, content: Content | None = None) -> None:
        """
        :param limit: the greatest length of the content, in bytes.
        :param keep: whether anybody wants the content.
        :param content: is given it as it comes, instead of `content`.
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

    def receive(self, data: bytes) -> bytes | None:
        """Take what belongs to the body; see `Body`."""
        position = 0 if self._is_amid_line() else self._receive_whole_chunks(data)
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                self._left -= len(piece)
                position += len(piece)
                if self._keep:
                    self._write(piece)
                continue
            end = data.find(b"\n", position) + 1 or len(data)
            self._line += data[position:end]
            position = end
            if not self._line.endswith(b"\n"):
                self._check_length_of_line()
            elif self._line_is_last():
                return data[position:]
        return None

    def content(self) -> bytes:
        """Return the body; see `Body`."""
        return self._content.getvalue()

    def _is_amid_line(self) -> bool:
        return bool(self._line or self._left or self._is_after_chunk or self._trailers)

    def _receive_whole_chunks(self, data: bytes) -> int:
        """Take the chunks without extensions that are there as a whole, of which there may be thousands."""
        position = 0
        while (line := _PLAIN_CHUNK_LINE.match(data, position)) is not None:
            size, start = int(line[1], 16), line.end()
            end = start + size
            if size == 0 or data[end : end + 2] != _CRLF:
                break
            self._count(size)
            if self._keep:
                self._write(data[start:end])
            position = end + 2
        return position

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
                "A chunk begins with its size in hexadecimal digits, on a line that ends with CR LF."
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
            if self._trailer_size + len(self._line) > _MAX_LINES:
                raise HeaderTooLarge(f"The trailers are over {_MAX_LINES} bytes.")
        elif self._is_after_chunk and len(self._line) > len(_CRLF):
            raise MalformedRequest("A chunk is longer than its size, or does not end with CR LF.")
        elif self._extensions + len(self._line) > _MAX_LINES:
            raise HeaderTooLarge(f"The extensions of the chunks are over {_MAX_LINES} bytes.")
