"""
The codings that a body may have (RFC 9110, section 8.4.1), and how they are undone: within a limit, in steps.

Pure: what has come is handed in, and decoded when somebody asks for it.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Final

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from sampleapp.decompressors import Decompressor, GzipDecompressor
from sampleapp.web.request_errors import BodyTooLarge, UndecodableBody, UnsupportedContentCoding
from sampleapp.web.server.fields import BLANKS, Fields

__all__ = ["CodedBody", "check_content_coding", "coding_of", "content_codings", "has_content"]

_KEPT_PIECE: Final = 64 * 1024
"""What comes is kept in pieces of about so many bytes, so that each can be given up once it is decoded."""

# So little is decoded by one call into a library that none takes a millisecond, whatever it is given.
_MOST_IN: Final = 16 * 1024
_MOST_OUT: Final = 64 * 1024

# What a step has to do, in bytes that it makes. To read a byte costs more than to make one where it makes
# nothing, and to begin a stream as much as to make some kilobytes. Room for bytes may have to be cleared.
_COST_OF_BYTE_READ: Final = 8
_COST_OF_STREAM: Final = 8 * 1024
_BYTES_CLEARED_FOR_ONE: Final = 8

_MOST_STREAMS: Final = 10_000
"""An empty frame of zstd has 9 bytes, and takes 10 µs: in a body of 16 MiB there would be 20 s of them."""

_LARGEST_WINDOW_LOG: Final = 23
"""8 MiB, which is what a decoder of HTTP has to take, and an encoder may not exceed (RFC 9659, section 3)."""


def _zstd_frame() -> zstd.ZstdDecompressor:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW_LOG})


_STREAMS: Final[Mapping[bytes, Callable[[], Decompressor]]] = {
    b"gzip": GzipDecompressor,
    # RFC 9110, section 8.4.1.3.
    b"x-gzip": GzipDecompressor,
    b"zstd": _zstd_frame,
}


def content_codings(fields: Fields) -> tuple[bytes, ...]:
    """
    List what was done to a body, in the order in which it was done.

    :return: in lower case; nothing if the body is as it was.
    """
    values = fields.all(b"content-encoding")
    if not values:
        return ()
    elements = (element.strip(BLANKS).lower() for value in values for element in value.split(b","))
    codings = tuple(element for element in elements if element)
    # It says that nothing was done, and so has nothing to say beside another.
    return () if all(coding == b"identity" for coding in codings) else codings


def coding_of(codings: tuple[bytes, ...]) -> bytes:
    """
    Choose how a body is to be decoded.

    :param codings: as `content_codings` lists them; at least one.
    :raise UnsupportedContentCoding: it is none of those that are undone here, or there are several.
    """
    if len(codings) != 1 or codings[0] not in _STREAMS:
        raise UnsupportedContentCoding(codings)
    return codings[0]


def check_content_coding(fields: Fields) -> None:
    """
    Look at what was done to the body.

    :raise UnsupportedContentCoding: it is nothing that could be undone.
    """
    codings = content_codings(fields)
    if codings:
        coding_of(codings)


def has_content(fields: Fields) -> bool:
    """Whether a request says that it has a body, if perhaps an empty one (RFC 9112, section 6.3)."""
    return bool(fields.all(b"content-length") or fields.all(b"transfer-encoding"))


class _Content:
    """
    What has been decoded.

    A `BytesIO` that grows by itself does so by an eighth, and may move all that it has each time. This one
    makes room for four times as much where it may, so that little is moved, and no step takes long.
    """

    def __init__(self) -> None:
        self.length = 0
        self._room = 0
        self._buffer = BytesIO()

    def write(self, data: bytes, *, most: int) -> int:
        """
        Add what comes next.

        :param most: for so many bytes in all there may be room without any need.
        :return: for how many bytes room was made.
        """
        length = self.length + len(data)
        made = self._make_room(length, most) if length > self._room else 0
        self._buffer.write(data)
        self.length = length
        return made

    def _make_room(self, length: int, most: int) -> int:
        room = min(4 * length, most)
        if room < 2 * length:
            return 0
        # The system takes no memory for zeros, mostly, until they are written to. They are not copied here:
        # nobody else has them.
        buffer = BytesIO(bytes(room))
        buffer.write(self._buffer.getbuffer()[: self.length])
        self._buffer = buffer
        self._room = room
        return room

    def take(self) -> bytes:
        """Hand over all of it, which is not copied either; nothing is left."""
        buffer, self._buffer = self._buffer, BytesIO()
        buffer.truncate(self.length)
        self.length = self._room = 0
        return buffer.getvalue()


class CodedBody:
    """
    A body that comes compressed.

    What is decoded takes the place of what has come: both together are never much more than the limit.
    """

    def __init__(self, coding: bytes, *, limit: int) -> None:
        """
        :param coding: as `coding_of` chooses it.
        :param limit: the greatest length of the content, in bytes.
        """
        self._coding = coding
        self._new_stream = _STREAMS[coding]
        self._limit = limit
        self._pieces: deque[bytearray] = deque()
        self._position = 0
        self._rest = b""
        self._stream: Decompressor | None = None
        self._streams = 0
        # So much has come, and is not decoded yet.
        self._held = 0
        self._content = _Content()

    def write(self, data: bytes) -> None:
        """Keep what has come."""
        self._held += len(data)
        if self._pieces and len(self._pieces[-1]) < _KEPT_PIECE:
            self._pieces[-1] += data
        elif data:
            self._pieces.append(bytearray(data))

    def decode(self, most: int) -> bool:
        """
        Decode some more, now that all has come.

        :param most: so many bytes are made in about one step; fewer, if much has to be read for them.
        :return: whether it is whole.
        :raise BodyTooLarge: it is over the limit, of which it was found out with little more in memory.
        :raise UndecodableBody: it is not what the coding makes, is cut short, or goes on after its end.
        """
        cost = 0
        while cost < most:
            stream = self._stream
            if stream is None:
                self._stream = stream = self._begin_stream()
                cost += _COST_OF_STREAM
            # Also when there is none any more, a stream may hold some of the content back.
            data = self._next() if stream.needs_input else b""
            needed = stream.needs_input and not data
            try:
                content = stream.decompress(data, _MOST_OUT)
            except (zlib.error, zstd.ZstdError) as error:
                # Both libraries say first that they could not do it.
                raise self._undecodable(str(error).rpartition(": ")[2]) from error
            cost += len(content) + _COST_OF_BYTE_READ * len(data) + self._keep(content)
            if stream.eof:
                self._stream = None
                self._rest = stream.unused_data
                if not (self._rest or self._pieces):
                    return True
                cost -= _COST_OF_BYTE_READ * len(self._rest)
            elif needed and not content:
                raise self._undecodable("it is cut short")
        return False

    def content(self) -> bytes:
        """Hand over the body, now that it is whole; nothing of it is kept."""
        return self._content.take()

    def _begin_stream(self) -> Decompressor:
        self._streams += 1
        if self._streams > _MOST_STREAMS:
            raise self._undecodable(f"it has more than {_MOST_STREAMS} gzip members or zstd frames")
        return self._new_stream()

    def _next(self) -> bytes:
        """Return some of what has come, and give it up."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        if not self._pieces:
            return b""
        piece = self._pieces[0]
        data = bytes(memoryview(piece)[self._position : self._position + _MOST_IN])
        self._position += len(data)
        self._held -= len(data)
        if self._position == len(piece):
            self._pieces.popleft()
            self._position = 0
        return data

    def _keep(self, content: bytes) -> int:
        """Keep what was decoded; returns what that costs beside it."""
        if self._content.length + len(content) > self._limit:
            # Nobody knows when it will be forgotten: by then it takes no room.
            self._content = _Content()
            self._pieces.clear()
            raise BodyTooLarge(self._limit, is_decoded=True)
        made = self._content.write(content, most=self._limit - self._held)
        return made // _BYTES_CLEARED_FOR_ONE

    def _undecodable(self, reason: str) -> UndecodableBody:
        return UndecodableBody(self._coding.decode("ascii"), reason)
