"""How batches are compressed, in the framings that Kafka's own clients write and read."""

from __future__ import annotations

import gzip
import zlib
from enum import Enum
from struct import Struct

import cramjam

__all__ = ["Codec", "CompressionError", "UnsupportedCodec", "codec_in", "compress", "decompress"]

# Java's defaults, so that a topic compresses as well from here as from elsewhere; for lz4, which Java
# calls level 9, that is the fast compressor, and not the sixteen times slower one of that level.
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_LZ4_LEVEL = 1

_CODEC_BITS = 0x07

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


class UnsupportedCodec(Exception):
    """Records are compressed in a way that is not known here: they may be right, and cannot be read."""


def codec_in(attributes: int) -> Codec:
    """
    The codec that the attributes of a batch, or of an old message, name.

    :raise UnsupportedCodec: if it is none of those that are known.
    """
    number = attributes & _CODEC_BITS
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
        frame = cramjam.lz4.Compressor(level=_LZ4_LEVEL, content_checksum=False, block_linked=False)
        frame.compress(data)
        return bytes(frame.finish())
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL))
    return data


def decompress(codec: Codec, data: bytes) -> bytes:
    """
    The records of a batch as they were before they were compressed.

    :raise CompressionError: if they never were.
    """
    try:
        if codec is Codec.GZIP:
            return gzip.decompress(data)
        if codec is Codec.SNAPPY:
            # librdkafka and others write a single block without a frame.
            framed = data.startswith(_XERIAL_MAGIC)
            return _from_xerial(data) if framed else bytes(cramjam.snappy.decompress_raw(data))
        if codec is Codec.LZ4:
            return bytes(cramjam.lz4.decompress(data))
        if codec is Codec.ZSTD:
            return bytes(cramjam.zstd.decompress(data))
    except (cramjam.DecompressionError, zlib.error, gzip.BadGzipFile, EOFError, MemoryError) as error:
        raise CompressionError(f"what should be {codec.name.lower()} is not") from error
    return data


def _to_xerial(data: bytes) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _from_xerial(data: bytes) -> bytes:
    parts = []
    at = len(_XERIAL)
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(data) - at:
            raise CompressionError("a block of snappy reaches beyond the end")
        parts.append(bytes(cramjam.snappy.decompress_raw(data[at : at + length])))
        at += length
    return b"".join(parts)
