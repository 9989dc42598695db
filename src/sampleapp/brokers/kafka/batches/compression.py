"""How batches are compressed, in the framings that Kafka's own clients write and read."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from struct import Struct
from typing import Final

import cramjam
import lz4.frame  # type: ignore[import-untyped] # it has no py.typed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from sampleapp.brokers.kafka.batches.layout import CODEC
from sampleapp.decompressors import Decompressor, GzipDecompressor

__all__ = [
    "BatchTooLarge",
    "Codec",
    "CompressionError",
    "UnsupportedCodec",
    "codec_in",
    "compress",
    "decompress",
]

# Java's defaults, so that a topic compresses as well from here as from elsewhere; for lz4, which Java
# calls level 9, that is the fast compressor, and not the sixteen times slower one of that level.
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_LZ4_LEVEL = 1

_KEPT_BYTES: Final = 16 * 1024 * 1024
"""What is longer is kept only after it was found to be within the limit: until then it is counted."""
_PIECE_BYTES: Final = 256 * 1024
_SNAPPY_MAX_RATIO: Final = 64
"""No element of snappy makes more of each of its bytes: a copy of 64 bytes takes two."""

# The framing of xerial's snappy-java: a magic, its version, the oldest version that can read it.
_XERIAL = b"\x82SNAPPY\0" + b"\0\0\0\1" + b"\0\0\0\1"
_XERIAL_MAGIC = _XERIAL[:8]
_XERIAL_BLOCK = 32 * 1024
_BLOCK_LENGTH = Struct(">i")


class Codec(Enum):
    """How the records of a batch are compressed; the values are those of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
    """Kafka 2.1 and newer only (KIP-110)."""


class CompressionError(ValueError):
    """What is said to be compressed is not, or is cut short."""


class BatchTooLarge(Exception):
    """Decompressed, it would take more than the limit: it may be right, and is not read."""

    def __init__(self, limit_bytes: int) -> None:
        """:param limit_bytes: what it was not to exceed."""
        super().__init__(f"takes more than {limit_bytes} bytes after decompression")


class UnsupportedCodec(Exception):
    """Records are compressed in a way that is not known here: they may be right, and cannot be read."""


def codec_in(attributes: int) -> Codec:
    """
    The codec that the attributes of a batch, or of an old message, name.

    :raise UnsupportedCodec: if it is none of those that are known.
    """
    number = attributes & CODEC
    try:
        return Codec(number)
    except ValueError:
        raise UnsupportedCodec(f"compressed with codec {number}, which is not known here") from None


def compress(codec: Codec, data: bytes) -> bytes:
    """Compress the records of a batch; not necessarily into less than there was."""
    if codec is Codec.GZIP:
        return gzip.compress(data, _GZIP_LEVEL, mtime=0)
    if codec is Codec.SNAPPY:
        return _to_xerial(data)
    if codec is Codec.LZ4:
        # Java refuses blocks that refer to earlier ones, and checksums the content in a way of its own.
        return bytes(
            lz4.frame.compress(
                data,
                compression_level=_LZ4_LEVEL,
                block_linked=False,
                content_checksum=False,
                store_size=False,
            )
        )
    if codec is Codec.ZSTD:
        return zstd.compress(data, _ZSTD_LEVEL)
    return data


def decompress(codec: Codec, data: bytes, *, limit_bytes: int) -> bytes:
    """
    Return the records of a batch as they were before they were compressed.

    Decompression is bounded while it runs: of what is too large no more than 16 MiB are ever kept, beside the
    window of zstd, which is not larger than the limit.

    :param limit_bytes: how long the result may be.
    :raise BatchTooLarge: it would be longer.
    :raise CompressionError: it is not what the codec makes, or is cut short.
    """
    try:
        if codec is Codec.GZIP:
            return _bounded(lambda: _members(_Gunzip, data), limit_bytes)
        if codec is Codec.SNAPPY:
            return _unsnappied(data, limit_bytes)
        if codec is Codec.LZ4:
            return _bounded(lambda: _members(lz4.frame.LZ4FrameDecompressor, data), limit_bytes)
        if codec is Codec.ZSTD:
            return _bounded(lambda: _members(zstd.ZstdDecompressor, data), limit_bytes)
    except (
        cramjam.DecompressionError,
        zlib.error,
        zstd.ZstdError,
        EOFError,
        MemoryError,
        RuntimeError,
    ) as error:
        raise CompressionError(f"what should be {codec.name.lower()} is not") from error
    return data


class _Gunzip(GzipDecompressor):
    @property
    def unused_data(self) -> bytes:
        # As gzip does it: padding is not another member.
        return super().unused_data.lstrip(b"\0")


def _members(new_decompressor: Callable[[], Decompressor], data: bytes) -> Iterator[bytes]:
    """Decompress one or more streams after one another; the first piece is all, unless that is long."""
    most, left = _KEPT_BYTES, True
    while left:
        stream = new_decompressor()
        ended = False
        while not ended:
            piece = stream.decompress(data, most)
            ended = stream.eof
            if not piece and not ended and stream.needs_input:
                raise EOFError("cut short")
            yield piece
            data, most = b"", _PIECE_BYTES
        data = stream.unused_data
        left = bool(data)


def _bounded(pieces: Callable[[], Iterator[bytes]], limit_bytes: int) -> bytes:
    """
    Join pieces.

    :param pieces: is called twice if they are many, since what is too long is not to be kept.
    """
    kept: list[bytes] = []
    size = 0
    for piece in pieces():
        size += len(piece)
        if size > limit_bytes:
            raise BatchTooLarge(limit_bytes)
        if size <= _KEPT_BYTES:
            kept.append(piece)
        else:
            kept.clear()
    return b"".join(kept if size <= _KEPT_BYTES else pieces())


def _to_xerial(data: bytes) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _unsnappied(data: bytes, limit_bytes: int) -> bytes:
    # librdkafka and others write a single block without a frame.
    blocks = list(_xerial_blocks(data)) if data.startswith(_XERIAL_MAGIC) else [data]
    # Each block begins with its length, so nothing has to be decompressed to know.
    lengths = [int(cramjam.snappy.decompress_raw_len(block)) for block in blocks]
    if any(length > _SNAPPY_MAX_RATIO * len(block) for block, length in zip(blocks, lengths, strict=True)):
        raise CompressionError("a block of snappy cannot be as long as it says")
    if sum(lengths) > limit_bytes:
        raise BatchTooLarge(limit_bytes)
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _xerial_blocks(data: bytes) -> Iterator[bytes]:
    at = len(_XERIAL)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - at:
            raise CompressionError("a block of snappy reaches beyond the end")
        yield data[at : at + length]
        at += length
