"""
Decoding of messages in the formats 0 and 1, from before Kafka 0.11.

Topics that are as old still have them, and topics with an old ``message.format.version``. They are decoded
in Python, with every length checked: aiokafka's decoder in C is not as careful, and no current client writes
these formats (KIP-724). Layout: https://kafka.apache.org/documentation/#messageset.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

import msgspec

from sampleapp.brokers.kafka.batches.compression import (
    Codec,
    codec_in,
    decompress,
    with_valid_lz4_header,
)
from sampleapp.brokers.kafka.batches.layout import (
    FORMAT_AT,
    LENGTH,
    LENGTH_AT,
    LENGTH_COUNTS_FROM,
    LOG_APPEND_TIME,
)
from sampleapp.brokers.kafka.batches.record_decoding import RecordsError, Where
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
    Decode one message, which holds further messages if it is compressed.

    :param data: the message, from its offset to its end.
    :param max_bytes: the limit of the inner messages after decompression.
    :return: the wanted records, in their order, decoded during iteration, which raises errors in them.
    :raise RecordsError: the message is invalid, or its checksum is wrong.
    :raise CompressionError: its compressed data is damaged.
    :raise BatchTooLarge: the inner messages exceed the limit.
    :raise UnsupportedCodec: the codec is unknown.
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
    data = outer.value
    if codec is Codec.LZ4 and outer.magic == 0:
        data = with_valid_lz4_header(data)
    data = decompress(codec, data, limit_bytes=max_bytes)
    last = b""
    for last in _split(data):  # noqa: B007 -- only the last one is needed
        pass
    if not last:
        raise RecordsError("a compressed message is empty")
    # Since format 1 inner offsets are relative, and the outer one is that of the last message (KIP-31).
    base = 0 if outer.magic == 0 else outer.offset - _parse(last).offset
    if base < 0:
        raise RecordsError("the offsets of a compressed message would be negative")
    return _unwrapped(data, outer, base)


def _unwrapped(data: bytes, outer: _Message, base: int) -> Iterator[_Message]:
    stamped = outer.magic > 0 and outer.attributes & LOG_APPEND_TIME
    for message in map(_parse, _split(data)):
        if message.magic != outer.magic or codec_in(message.attributes) is not Codec.NONE:
            raise RecordsError(
                "a compressed message has an inner message of another format, or a compressed one"
            )
        yield msgspec.structs.replace(
            message,
            offset=base + message.offset,
            timestamp_ms=outer.timestamp_ms if stamped else message.timestamp_ms,
        )


def _split(data: bytes) -> Iterator[bytes]:
    """Split inner messages. Unlike `layout.split`, reject one that is cut short."""
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
        raise RecordsError("a message is cut short, or of an unknown format")
    offset, _, crc, _, attributes, *timestamp = _HEADERS[magic].unpack_from(data)
    if zlib.crc32(memoryview(data)[_CRC_COUNTS_FROM:]) != crc:
        raise RecordsError("its checksum is wrong")
    key, at = _nullable_bytes(data, _HEADERS[magic].size)
    value, at = _nullable_bytes(data, at)
    if at != len(data):
        raise RecordsError("a message has a wrong length")
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
