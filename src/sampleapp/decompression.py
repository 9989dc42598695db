"""Bounded, incremental decompression, for bodies of requests and for batches of Kafka."""

from __future__ import annotations

import zlib
from typing import Final, Protocol

__all__ = ["Decompressor", "GzipDecompressor"]

_GZIP: Final = 16 + zlib.MAX_WBITS
"""The argument of zlib for the format of gzip (RFC 1952), with any window."""


class Decompressor(Protocol):
    """A decompressor of one stream, with the interface of `bz2.BZ2Decompressor`."""

    @property
    def eof(self) -> bool:
        """True when the end of the stream was reached."""

    @property
    def needs_input(self) -> bool:
        """True when more input is needed for more output."""

    @property
    def unused_data(self) -> bytes:
        """The input after the end of the stream."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return the next ``max_length`` bytes at most; the rest of ``data`` is kept for the next call."""


class GzipDecompressor:
    """A `Decompressor` of one gzip member."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(_GZIP)

    @property
    def eof(self) -> bool:
        """See `Decompressor.eof`."""
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        """See `Decompressor.needs_input`."""
        return not self._zlib.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        """See `Decompressor.unused_data`."""
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """
        See `Decompressor.decompress`.

        :raise zlib.error: the data is not gzip.
        """
        return self._zlib.decompress(data or self._zlib.unconsumed_tail, max_length)
