"""The layout of batches: https://kafka.apache.org/documentation/#messageformat."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

__all__ = [
    "ATTRIBUTES",
    "ATTRIBUTES_AT",
    "BATCH_OVERHEAD",
    "CODEC",
    "CRC",
    "CRC_AT",
    "FORMAT",
    "FORMAT_AT",
    "HEADER",
    "LEADER_EPOCH",
    "LEADER_EPOCH_AT",
    "LENGTH",
    "LENGTH_AT",
    "LENGTH_COUNTS_FROM",
    "LOG_APPEND_TIME",
    "OFFSET",
    "split",
]

# In every format: the offset, the length of the rest, and the position of the format's number.
OFFSET: Final = Struct(">q")
LENGTH: Final = Struct(">i")
LENGTH_AT: Final = OFFSET.size
LENGTH_COUNTS_FROM: Final = LENGTH_AT + LENGTH.size
FORMAT_AT: Final = 16
# Bits of the attributes: the codec, and whether the timestamps are the broker's.
CODEC: Final = 0x07
LOG_APPEND_TIME: Final = 0x08

FORMAT: Final = 2
"""The format that this service writes (KIP-98); the constants below are of this format."""
LEADER_EPOCH: Final = Struct(">i")
LEADER_EPOCH_AT: Final = LENGTH_COUNTS_FROM
CRC_AT: Final = 17
CRC: Final = Struct(">I")
ATTRIBUTES_AT: Final = 21
"""Also the begin of the bytes that the checksum covers."""
ATTRIBUTES: Final = Struct(">h")
HEADER: Final = Struct(">qiibIhiqqqhii")
"""
Base offset, length, leader epoch, format, CRC, attributes, last offset delta, base and maximum timestamp,
producer id, its epoch, base sequence, number of records.
"""
BATCH_OVERHEAD: Final = HEADER.size
"""The bytes of a batch's header."""


def split(data: bytes) -> Iterator[bytes]:
    """
    Split fetched data into batches.

    A batch at the end that is cut short is left out. A batch with an invalid length is the last one, and the
    decoder rejects it.
    """
    start = 0
    while len(data) - start > FORMAT_AT:
        (length,) = LENGTH.unpack_from(data, start + LENGTH_AT)
        end = start + LENGTH_COUNTS_FROM + length
        if end > len(data):
            return
        yield data[start : max(start, end)]
        if length < 0:
            return
        start = end
