"""Compression of batches in the framings of Kafka's own clients."""

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

from sampleapp.decompression import Decompressor, GzipDecompressor

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


CODEC: Final = 0x07
"""The bits of the attributes that have the codec."""

# Java's defaults, so that batches from here are as small as those from Java. For lz4, Java's level 9 is the
# fast compressor, not the 16 times slower one that this level means elsewhere.
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_LZ4_LEVEL = 1

_KEPT_BYTES: Final = 16 * 1024 * 1024
"""Longer data is first only counted, and kept once it is known to be within the limit."""
_CHUNK_BYTES: Final = 256 * 1024
_SNAPPY_MAX_RATIO: Final = 64
"""The most bytes that one byte of snappy expands to: a copy of 64 bytes takes two bytes."""

_DAMAGED: Final = (
    cramjam.DecompressionError,
    zlib.error,
    zstd.ZstdError,
    EOFError,
    MemoryError,
    RuntimeError,
)
"""The exceptions of the libraries for data that cannot be decompressed."""

# The framing of xerial's snappy-java: magic, version, oldest compatible version.
_XERIAL = b"\x82SNAPPY\0" + b"\0\0\0\1" + b"\0\0\0\1"
_XERIAL_MAGIC = _XERIAL[:8]
_XERIAL_BLOCK = 32 * 1024
_BLOCK_LENGTH = Struct(">i")
_LZ4_HEADER_BYTES: Final = 7
"""Magic number, flags, size of blocks, and a checksum; the size of the content may stand before it."""
_LZ4_BLOCK_SIZES: Final = range(4, 8)


class Codec(Enum):
    """The compression of a batch; the values are those in its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
    """Kafka 2.1 and newer only (KIP-110)."""


class CompressionError(ValueError):
    """Compressed data is damaged or cut short."""


class BatchTooLarge(Exception):
    """Decompressed data would exceed the limit. It may be valid, and is not read."""

    def __init__(self, limit_bytes: int) -> None:
        """:param limit_bytes: the limit."""
        super().__init__(f"takes more than {limit_bytes} bytes after decompression")


class UnsupportedCodec(Exception):
    """Records are compressed with an unknown codec. They may be valid, and cannot be read."""


def codec_in(attributes: int) -> Codec:
    """
    Return the codec in the attributes of a batch, or of an old message.

    :raise UnsupportedCodec: the codec is unknown.
    """
    number = attributes & CODEC
    try:
        return Codec(number)
    except ValueError:
        raise UnsupportedCodec(f"compressed with codec {number}, which this service does not know") from None


def compress(codec: Codec, data: bytes) -> bytes:
    """Compress the records of a batch; the result may be longer than the data."""
    if codec is Codec.GZIP:
        return gzip.compress(data, _GZIP_LEVEL, mtime=0)
    if codec is Codec.SNAPPY:
        return _to_xerial(data)
    if codec is Codec.LZ4:
        # Java rejects linked blocks, and has its own checksum of the content.
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
    Decompress the records of a batch.

    Decompression is bounded while it runs: of data that is too large no more than 16 MiB are ever kept,
    besides the window of zstd, which is not larger than the limit.

    :param limit_bytes: the maximum length of the result.
    :raise BatchTooLarge: the result would be longer.
    :raise CompressionError: the data is not of the codec, or is cut short.
    """
    try:
        if codec is Codec.GZIP:
            return _bounded(lambda: _members(_Gunzip, data), limit_bytes)
        if codec is Codec.SNAPPY:
            return _from_snappy(data, limit_bytes)
        if codec is Codec.LZ4:
            return _bounded(lambda: _members(lz4.frame.LZ4FrameDecompressor, data), limit_bytes)
        if codec is Codec.ZSTD:
            return _bounded(lambda: _members(zstd.ZstdDecompressor, data), limit_bytes)
    except _DAMAGED as error:
        raise CompressionError(f"its {codec.name.lower()} data is damaged") from error
    return data


def decompressed_chunks(codec: Codec, data: bytes) -> Iterator[bytes]:
    """
    Decompress the records of a batch in chunks, so that a caller may pause between them, or stop.

    A chunk has up to 256 KiB; only a block of snappy, which cannot be divided, may be longer.

    :return: the chunks, some of which may be empty. Iteration raises `CompressionError` where the data is
        damaged or cut short.
    """
    try:
        if codec is Codec.SNAPPY:
            yield from _snappy_chunks(data)
        elif codec is Codec.NONE:
            yield data
        else:
            yield from _members(_DECOMPRESSORS[codec], data, first_bytes=_CHUNK_BYTES)
    except _DAMAGED as error:
        raise CompressionError(f"its {codec.name.lower()} data is damaged") from error


def with_valid_lz4_header(frame: bytes) -> bytes:
    """
    Return an lz4 frame with the header checksum of its specification.

    In messages of format 0, it was calculated from the magic number as well (KIP-57).

    :param frame: with either checksum. A damaged one is returned as it is, or is damaged nevertheless.
    """
    flags, block_size = frame[4:6] if len(frame) > _LZ4_HEADER_BYTES else (0, 0)
    if block_size >> 4 not in _LZ4_BLOCK_SIZES:
        return frame
    header = bytes(
        lz4.frame.LZ4FrameCompressor(
            block_size=block_size >> 4,
            block_linked=not flags & 0x20,
            block_checksum=bool(flags & 0x10),
            content_checksum=bool(flags & 0x04),
        ).begin()
    )
    # The size of the content may be left out.
    has_size = bool(flags & 0x08)
    if frame[:4] + bytes((flags & ~0x08, block_size)) != header[:-1]:
        return frame
    return header + frame[_LZ4_HEADER_BYTES + 8 * has_size :]


class _Gunzip(GzipDecompressor):
    @property
    def unused_data(self) -> bytes:
        # As in Python's gzip: padding is not another member.
        return super().unused_data.lstrip(b"\0")


_DECOMPRESSORS: Final[dict[Codec, Callable[[], Decompressor]]] = {
    Codec.GZIP: _Gunzip,
    Codec.LZ4: lz4.frame.LZ4FrameDecompressor,
    Codec.ZSTD: zstd.ZstdDecompressor,
}


def _members(
    new_decompressor: Callable[[], Decompressor], data: bytes, *, first_bytes: int = _KEPT_BYTES
) -> Iterator[bytes]:
    """
    Decompress one or more concatenated streams.

    :param first_bytes: the limit of the first chunk: by default it is everything, unless that is long.
    """
    most, left = first_bytes, True
    while left:
        stream = new_decompressor()
        ended = False
        while not ended:
            chunk = stream.decompress(data, most)
            ended = stream.eof
            if not chunk and not ended and stream.needs_input:
                raise EOFError("cut short")
            yield chunk
            data, most = b"", _CHUNK_BYTES
        data = stream.unused_data
        left = bool(data)


def _bounded(chunks: Callable[[], Iterator[bytes]], limit_bytes: int) -> bytes:
    """
    Join chunks.

    :param chunks: called twice for long data, which is not kept before it is known to be within the limit.
    """
    kept: list[bytes] = []
    size = 0
    for chunk in chunks():
        size += len(chunk)
        if size > limit_bytes:
            raise BatchTooLarge(limit_bytes)
        if size <= _KEPT_BYTES:
            kept.append(chunk)
        else:
            kept.clear()
    return b"".join(kept if size <= _KEPT_BYTES else chunks())


def _to_xerial(data: bytes) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _from_snappy(data: bytes, limit_bytes: int) -> bytes:
    # librdkafka and other clients write a single block without framing.
    blocks = list(_xerial_blocks(data)) if data.startswith(_XERIAL_MAGIC) else [data]
    # Each block begins with its uncompressed length.
    lengths = [int(cramjam.snappy.decompress_raw_len(block)) for block in blocks]
    if any(length > _SNAPPY_MAX_RATIO * len(block) for block, length in zip(blocks, lengths, strict=True)):
        raise CompressionError("a block of snappy has an impossible length")
    if sum(lengths) > limit_bytes:
        raise BatchTooLarge(limit_bytes)
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _snappy_chunks(data: bytes) -> Iterator[bytes]:
    for block in _xerial_blocks(data) if data.startswith(_XERIAL_MAGIC) else (data,):
        if cramjam.snappy.decompress_raw_len(block) > _SNAPPY_MAX_RATIO * len(block):
            raise CompressionError("a block of snappy has an impossible length")
        yield bytes(cramjam.snappy.decompress_raw(block))


def _xerial_blocks(data: bytes) -> Iterator[bytes]:
    at = len(_XERIAL)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - at:
            raise CompressionError("a block of snappy reaches beyond the end")
        yield data[at : at + length]
        at += length
