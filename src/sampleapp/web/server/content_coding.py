"""
Incremental decoding of content codings (RFC 9110, section 8.4.1), within a limit.

Pure: bodies are stored as they come, and decoded step by step on request.
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

from sampleapp.decompression import Decompressor, GzipDecompressor
from sampleapp.web.errors import (
    BodyTooLarge,
    RequestError,
    UndecodableBody,
    UnsupportedContentCoding,
)
from sampleapp.web.server.fields import BLANKS, Fields

_KEPT_PART: Final = 64 * 1024
"""The size of the parts in which a compressed body is kept, in bytes; each is dropped once it is decoded."""

# Limits on one call into a library, in bytes, so that no call takes a millisecond, whatever its input.
_MAX_IN: Final = 16 * 1024
_MAX_OUT: Final = 64 * 1024

# The cost of a step, counted in bytes of output. A byte of input that yields nothing costs more than a byte
# of output, and the start of a stream costs as much as some kilobytes of output.
_COST_OF_BYTE_READ: Final = 8
_COST_OF_STREAM: Final = 8 * 1024

_MAX_STREAMS: Final = 10_000
"""An empty frame of zstd has 9 bytes, and takes 10 µs: a body of 16 MiB full of them would take 20 s."""

_WINDOWS: Final[Mapping[bytes, int]] = {b"zstd": 8 * 1024 * 1024}
"""The latest output that a decoder keeps, in bytes, for codings that keep much."""

_LARGEST_WINDOW_LOG: Final = 23
"""8 MiB: a decoder for HTTP must support this, and an encoder must not exceed it (RFC 9659, section 3)."""


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
    List the content codings of a body, in the order in which they were applied.

    :return: in lower case; empty if the body is not encoded.
    """
    values = fields.all(b"content-encoding")
    if not values:
        return ()
    elements = (element.strip(BLANKS).lower() for value in values for element in value.split(b","))
    codings = tuple(element for element in elements if element)
    # "identity" means that the body is not encoded, so it is not valid next to another coding.
    return () if all(coding == b"identity" for coding in codings) else codings


def coding_of(codings: tuple[bytes, ...]) -> bytes:
    """
    Return the only coding of a body.

    :param codings: at least one, as `content_codings` lists them.
    :raise UnsupportedContentCoding: it is not supported, or there are several.
    """
    if len(codings) != 1 or codings[0] not in _STREAMS:
        raise UnsupportedContentCoding(codings)
    return codings[0]


def check_content_coding(fields: Fields) -> None:
    """
    Check the content codings of a body.

    :raise UnsupportedContentCoding: the body could not be decoded.
    """
    codings = content_codings(fields)
    if codings:
        coding_of(codings)


def has_content(fields: Fields) -> bool:
    """Return whether a request declares a body, which may be empty (RFC 9112, section 6.3)."""
    return bool(fields.all(b"content-length") or fields.all(b"transfer-encoding"))


class CodedBody:
    """
    A body that comes compressed.

    Compressed parts are dropped as they are decoded: both forms together are never much more than the limit.
    """

    def __init__(self, coding: bytes, *, limit: int, reserve: Callable[[int], None]) -> None:
        """
        :param coding: as `coding_of` returns it.
        :param limit: the greatest length of the content, in bytes.
        :param reserve: called with the memory that the body needs in total, in bytes, before it is used; may
            raise a `RequestError`.
        """
        self._reserve = reserve
        self._window = _WINDOWS.get(coding, 0)
        self._coding = coding
        self._new_stream = _STREAMS[coding]
        self._limit = limit
        self._parts: deque[bytearray] = deque()
        self._position = 0
        self._rest = b""
        self._stream: Decompressor | None = None
        self._streams = 0
        # The number of bytes that have come and are not decoded yet.
        self._held = 0
        self._content = BytesIO()
        self.made = 0
        """The length of the content that was decoded, in bytes."""

    def write(self, data: bytes) -> None:
        """Store the next part of the compressed body."""
        self._held += len(data)
        if self._parts and len(self._parts[-1]) < _KEPT_PART:
            self._parts[-1] += data
        elif data:
            self._parts.append(bytearray(data))

    def encoded(self) -> bytes:
        """Return a copy of the compressed body, before any of it is decoded."""
        return b"".join(self._parts)

    def decode(self, most: int) -> bool:
        """
        Decode the next part, once the whole compressed body has come.

        :param most: the approximate number of bytes to make; fewer are made if they need much input.
        :return: whether the content is whole.
        :raise BodyTooLarge: the content is over the limit; little more than the limit was in memory.
        :raise UndecodableBody: the body does not follow the coding, is cut short, or continues after its end.
        """
        cost = 0
        while cost < most:
            stream = self._stream
            if stream is None:
                self._stream = stream = self._begin_stream()
                cost += _COST_OF_STREAM
            # A stream may still hold some of the content after the end of the input.
            data = self._next() if stream.needs_input else b""
            needed = stream.needs_input and not data
            try:
                content = stream.decompress(data, _MAX_OUT)
            except (zlib.error, zstd.ZstdError) as error:
                # The messages of both libraries begin with a general part, up to ": ".
                raise self._undecodable(str(error).rpartition(": ")[2]) from error
            try:
                self._keep(content)
            except RequestError:
                # Its traceback keeps this frame in memory for some time, but must not keep the decoder.
                del stream, content
                raise
            cost += len(content) + _COST_OF_BYTE_READ * len(data)
            if stream.eof:
                self._stream = None
                self._rest = stream.unused_data
                if not (self._rest or self._parts):
                    return True
                cost -= _COST_OF_BYTE_READ * len(self._rest)
            elif needed and not content:
                raise self._undecodable("it is cut short")
        return False

    def content(self) -> bytes:
        """Return the whole content, and forget it."""
        content, self._content = self._content, BytesIO()
        return content.getvalue()

    def _begin_stream(self) -> Decompressor:
        self._streams += 1
        if self._streams > _MAX_STREAMS:
            raise self._undecodable(f"it has more than {_MAX_STREAMS} gzip members or zstd frames")
        return self._new_stream()

    def _next(self) -> bytes:
        """Return the next compressed bytes, and forget them."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        if not self._parts:
            return b""
        part = self._parts[0]
        data = bytes(memoryview(part)[self._position : self._position + _MAX_IN])
        self._position += len(data)
        self._held -= len(data)
        if self._position == len(part):
            self._parts.popleft()
            self._position = 0
        return data

    def _keep(self, content: bytes) -> None:
        self.made = length = self.made + len(content)
        try:
            if length > self._limit:
                raise BodyTooLarge(self._limit, is_decoded=True)
            window = min(length, self._window) if length > _MAX_OUT else 0
            self._reserve(self._held + length + window)
        except RequestError:
            # The request may stay in memory for some time after its rejection: its body must not.
            self._content = BytesIO()
            self._parts.clear()
            self._stream = None
            raise
        self._content.write(content)

    def _undecodable(self, reason: str) -> UndecodableBody:
        return UndecodableBody(self._coding.decode("ascii"), reason)
