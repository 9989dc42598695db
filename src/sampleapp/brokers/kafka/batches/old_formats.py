"""
Messages of the formats 0 and 1, which brokers before Kafka 0.11 wrote, and topics as old still have.

They are read here, in Python and with every length checked: what there is in C for them is not as careful,
and nobody writes them any more (KIP-724). Layout: https://kafka.apache.org/documentation/#messageset.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

import msgspec

from sampleapp.brokers.kafka.batches.compression import Codec, UnsupportedCodec, codec_in, decompress
from sampleapp.brokers.kafka.batches.layout import (
    FORMAT_AT,
    LENGTH,
    LENGTH_AT,
    LENGTH_COUNTS_FROM,
    LOG_APPEND_TIME,
)
from sampleapp.brokers.kafka.batches.records import RecordsError, Where
from sampleapp.model import ConsumerRecord

__all__ = ["OLD_FORMATS", "read_message"]

OLD_FORMATS = (0, 1)

# Offset, length, CRC, magic, attributes and, in format 1, the timestamp.
_HEADERS = (Struct(">qiIbb"), Struct(">qiIbbq"))
_CRC_COUNTS_FROM = 16
_SMALLEST = 26
_NO_TIMESTAMP = -1


class _Message(msgspec.Struct, frozen=True, gc=False):
    magic: int
    offset: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def read_message(data: bytes, where: Where, max_bytes: int) -> Iterator[ConsumerRecord]:
    """
    Read one message, which holds others if it is compressed.

    :param data: from its offset to its end.
    :param max_bytes: how much those that it holds may take after decompression.
    :return: those that are wanted, in their order. They are read, and errors in them raised, as they are
        asked for.
    :raise RecordsError: it is not what it says it is, or its checksum is wrong.
    :raise CompressionError: likewise.
    :raise BatchTooLarge: it holds more than that.
    :raise UnsupportedCodec: it is compressed in a way that is not known, or with lz4 in format 0: its
        frames had a wrong checksum then (KAFKA-3160).
    """
    outer = _parse(data)
    codec = codec_in(outer.attributes)
    messages = iter([outer]) if codec is Codec.NONE else _inside(outer, codec, max_bytes)
    return (
        ConsumerRecord(
            topic=where.topic,
            partition=where.partition,
            offset=message.offset,
            timestamp_ms=message.timestamp_ms,
            key=message.key,
            value=message.value,
        )
        for message in messages
        if message.offset >= where.position
    )


def _inside(outer: _Message, codec: Codec, max_bytes: int) -> Iterator[_Message]:
    if outer.value is None:
        raise RecordsError("a compressed message is null")
    if codec is Codec.LZ4 and outer.magic == 0:
        raise UnsupportedCodec("compressed with lz4 in format 0, whose frames were not right")
    data = decompress(codec, outer.value, limit_bytes=max_bytes)
    last = b""
    for last in _split(data):  # noqa: B007 -- the last one is what is wanted
        pass
    if not last:
        raise RecordsError("a compressed message holds none")
    # Since format 1 the offsets inside are relative, and the one outside is that of the last (KIP-31).
    base = 0 if outer.magic == 0 else outer.offset - _parse(last).offset
    if base < 0:
        raise RecordsError("the offsets of a compressed message would be negative")
    return _unwrapped(data, outer, base)


def _unwrapped(data: bytes, outer: _Message, base: int) -> Iterator[_Message]:
    stamped = outer.magic > 0 and outer.attributes & LOG_APPEND_TIME
    for message in map(_parse, _split(data)):
        if message.magic != outer.magic or codec_in(message.attributes) is not Codec.NONE:
            raise RecordsError("a compressed message holds another format, or another compressed one")
        yield msgspec.structs.replace(
            message,
            offset=base + message.offset,
            timestamp_ms=outer.timestamp_ms if stamped else message.timestamp_ms,
        )


def _split(data: bytes) -> Iterator[bytes]:
    """As `layout.split`, but strict: nothing is cut short inside of a message."""
    start = 0
    while start < len(data):
        if len(data) - start < _SMALLEST:
            raise RecordsError("a message is cut short")
        (length,) = LENGTH.unpack_from(data, start + LENGTH_AT)
        end = start + LENGTH_COUNTS_FROM + length
        if length < 0 or end > len(data):
            raise RecordsError("a message reaches beyond the end")
        yield data[start:end]
        start = end


def _parse(data: bytes) -> _Message:
    magic = data[FORMAT_AT] if len(data) >= _SMALLEST else -1
    if magic not in OLD_FORMATS or len(data) < _HEADERS[magic].size:
        raise RecordsError("a message is cut short, or of a format that is not known")
    offset, _, crc, _, attributes, *timestamp = _HEADERS[magic].unpack_from(data)
    if zlib.crc32(memoryview(data)[_CRC_COUNTS_FROM:]) != crc:
        raise RecordsError("its checksum is wrong")
    key, at = _nullable_bytes(data, _HEADERS[magic].size)
    value, at = _nullable_bytes(data, at)
    if at != len(data):
        raise RecordsError("a message does not have the length that it says")
    return _Message(magic, offset, attributes, timestamp[0] if timestamp else _NO_TIMESTAMP, key, value)


def _nullable_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    start = at + LENGTH.size
    if start > len(data):
        raise RecordsError("a message is cut short")
    (length,) = LENGTH.unpack_from(data, at)
    if length == -1:
        return None, start
    if not 0 <= length <= len(data) - start:
        raise RecordsError("a key or value reaches beyond the end of its message")
    return data[start : start + length], start + length
