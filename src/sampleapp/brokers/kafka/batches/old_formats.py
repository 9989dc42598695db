"""
Messages of the formats 0 and 1, which brokers before Kafka 0.11 wrote, and topics as old still have.

They are read here, in Python and with every length checked: what there is in C for them is not as careful,
and nobody writes them any more (KIP-724). Layout: https://kafka.apache.org/documentation/#messageset.
"""

from __future__ import annotations

import zlib
from struct import Struct

import msgspec

from sampleapp.brokers.kafka.batches.compression import Codec, UnsupportedCodec, codec_in, decompress
from sampleapp.brokers.kafka.batches.records import RecordsError, Where
from sampleapp.model import ConsumerRecord

__all__ = ["OLD_FORMATS", "read_message"]

OLD_FORMATS = (0, 1)

# Offset, length, CRC, magic, attributes and, in format 1, the timestamp.
_HEADERS = (Struct(">qiIbb"), Struct(">qiIbbq"))
_LENGTH = Struct(">i")
_LENGTH_AT = 8
_LENGTH_COUNTS_FROM = 12
_CRC_COUNTS_FROM = 16
_SMALLEST = 26
_LOG_APPEND_TIME = 0x08
_NO_TIMESTAMP = -1


class _Message(msgspec.Struct, frozen=True, gc=False):
    magic: int
    offset: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def read_message(data: bytes, where: Where) -> list[ConsumerRecord]:
    """
    Read one message, which holds others if it is compressed.

    :param data: from its offset to its end.
    :return: those that are wanted, in their order.
    :raise RecordsError: if it is not what it says it is, or its checksum is wrong.
    :raise CompressionError: likewise.
    :raise UnsupportedCodec: if it is compressed in a way that is not known, or with lz4 in format 0: its
        frames had a wrong checksum then (KAFKA-3160).
    """
    outer = _parse(data)
    codec = codec_in(outer.attributes)
    return [
        ConsumerRecord(
            topic=where.topic,
            partition=where.partition,
            offset=message.offset,
            timestamp_ms=message.timestamp_ms,
            key=message.key,
            value=message.value,
        )
        for message in ([outer] if codec is Codec.NONE else _inside(outer, codec))
        if message.offset >= where.position
    ]


def _inside(outer: _Message, codec: Codec) -> list[_Message]:
    if outer.value is None:
        raise RecordsError("a compressed message is null")
    if codec is Codec.LZ4 and outer.magic == 0:
        raise UnsupportedCodec("compressed with lz4 in format 0, whose frames were not right")
    messages = _split(decompress(codec, outer.value))
    if not messages:
        raise RecordsError("a compressed message holds none")
    if any(
        message.magic != outer.magic or codec_in(message.attributes) is not Codec.NONE for message in messages
    ):
        raise RecordsError("a compressed message holds another format, or another compressed one")
    if outer.magic == 0:
        return messages
    # Since format 1 the offsets inside are relative, and the one outside is that of the last (KIP-31).
    base = outer.offset - messages[-1].offset
    if base < 0:
        raise RecordsError("the offsets of a compressed message would be negative")
    stamped = outer.attributes & _LOG_APPEND_TIME
    return [
        msgspec.structs.replace(
            message,
            offset=base + message.offset,
            timestamp_ms=outer.timestamp_ms if stamped else message.timestamp_ms,
        )
        for message in messages
    ]


def _split(data: bytes) -> list[_Message]:
    messages: list[_Message] = []
    start = 0
    while start < len(data):
        if len(data) - start < _SMALLEST:
            raise RecordsError("a message is cut short")
        (length,) = _LENGTH.unpack_from(data, start + _LENGTH_AT)
        end = start + _LENGTH_COUNTS_FROM + length
        if length < 0 or end > len(data):
            raise RecordsError("a message reaches beyond the end")
        messages.append(_parse(data[start:end]))
        start = end
    return messages


def _parse(data: bytes) -> _Message:
    magic = data[_CRC_COUNTS_FROM] if len(data) >= _SMALLEST else -1
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
    start = at + _LENGTH.size
    if start > len(data):
        raise RecordsError("a message is cut short")
    (length,) = _LENGTH.unpack_from(data, at)
    if length == -1:
        return None, start
    if not 0 <= length <= len(data) - start:
        raise RecordsError("a key or value reaches beyond the end of its message")
    return data[start : start + length], start + length
