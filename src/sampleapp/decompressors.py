"""What undoes gzip and its like, in steps with a bound: for bodies of requests and for batches of Kafka."""

from __future__ import annotations

import zlib
from typing import Final, Protocol

__all__ = ["Decompressor", "GzipDecompressor"]

_GZIP: Final = 16 + zlib.MAX_WBITS
"""What zlib calls the format of gzip (RFC 1952), with any window."""


class Decompressor(Protocol):
    """What the standard library calls a decompressor, of bz2 for example; of one stream."""

    @property
    def eof(self) -> bool:
        """Whether the end of the stream was reached."""

    @property
    def needs_input(self) -> bool:
        """Whether there is nothing more to be had of what was given."""

    @property
    def unused_data(self) -> bytes:
        """What was given and stands after the end of the stream."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return what comes next, and no more than that; the rest of ``data`` is kept."""


class GzipDecompressor:
    """Of one member of gzip, as `Decompressor`, which zlib's own is nearly."""

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

        :raise zlib.error: it is no gzip.
        """
        return self._zlib.decompress(data or self._zlib.unconsumed_tail, max_length)
