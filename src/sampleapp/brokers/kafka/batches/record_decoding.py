"""
Decoding of the records in a batch of format 2, and of messages in the formats 0 and 1.

aiokafka's decoder in C is several times as fast as Python, but has two faults: it reads a few bytes beyond
the end of records that are cut short, and it rejects a batch in which the name of a header is not UTF-8.
Padding solves the first. A batch that it rejects is decoded again in Python, which decides, and names the
fault.

Topics from before Kafka 0.11 still have the formats 0 and 1, and topics with an old
``message.format.version``. They are decoded in Python, with every length checked: aiokafka's decoder in C is
not as careful, and no current client writes these formats (KIP-724). Layout:
https://kafka.apache.org/documentation/#messageset.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import cast

import msgspec
from aiokafka.errors import CorruptRecordException  # type: ignore[import-untyped] # it has no py.typed
from aiokafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped] # as above

from sampleapp.brokers.kafka.batches.compression import (
    CODEC,
    BatchTooLarge,
    Codec,
    codec_in,
    decompress,
    decompressed_chunks,
    with_valid_lz4_header,
)
from sampleapp.brokers.kafka.batches.encoding import (
    FORMAT_AT,
    HEADER,
    LENGTH,
    LENGTH_AT,
    LENGTH_COUNTS_FROM,
)
from sampleapp.model import ConsumerRecord

_MAX_HEADERS = 10_000
"""The most headers of one record. A header takes two bytes in a batch, and many times that in memory."""
_MAX_IN_C_BYTES = 4 * 1024 * 1024
"""Longer batches are decoded in Python, which counts the headers first; aiokafka decodes all headers."""

# About a millisecond each.
_UNWANTED_AT_ONCE = 2000
_SLOWLY_AT_ONCE = 200

_LOG_APPEND_TIME = 0x08
"""The bit of the attributes that tells that the timestamps are the broker's."""

# Longer than any sequence of variable-length numbers that aiokafka reads between two checks of the end.
_PADDING = bytes(64)
_LONGEST_VARINT = 63
_CONTINUED = 0x80
_MAX_UINT64 = 2**64 - 1


class RecordsError(ValueError):
    """The records of a batch are damaged or invalid."""


class Where(msgspec.Struct, frozen=True, gc=False):
    """The origin of records, and the first one that is wanted."""

    topic: str
    partition: int
    position: int
    """The first offset that is wanted."""


def read_records(header: tuple[int, ...], body: bytes, where: Where) -> Iterator[ConsumerRecord]:
    """
    Decode the records of a decompressed batch.

    A record with more than 10,000 headers is returned without them.

    :param header: the fields of `HEADER`.
    :param body: the bytes after the header.
    :return: the wanted records, in the order of the batch, decoded during iteration.
    :raise RecordsError: during iteration: a record is cut short or invalid, or their number is not that in
        the header.
    """
    return cast("Iterator[ConsumerRecord]", _read(header, body, where, has_pauses=False))


def read_records_slowly(header: tuple[int, ...], body: bytes, where: Where) -> Iterator[ConsumerRecord]:
    """
    Decode like `read_records`, in Python, with U+FFFD for bytes that are not UTF-8, as Java's clients do.

    Rejecting such a batch would stop every consumer of the topic for good because of one producer.
    """
    return cast("Iterator[ConsumerRecord]", _read_slowly(header, body, where, has_pauses=False))


def read_records_gradually(
    header: tuple[int, ...], codec: Codec, body: bytes, where: Where, *, max_bytes: int
) -> Iterator[ConsumerRecord | None]:
    """
    Decompress and decode the records of a batch, with pauses, and no more of them than are asked for.

    Records that take more than 4 MiB are never in memory as a whole.

    :param codec: the compression of the body.
    :param body: the bytes after the header, as they are in the batch.
    :param max_bytes: the maximum size of the records after decompression.
    :return: as of `read_records`, with ``None`` about after each millisecond without a record, for a pause.
    :raise BatchTooLarge: during iteration, perhaps after some of the records.
    :raise CompressionError: during iteration.
    :raise RecordsError: during iteration.
    """
    if codec is Codec.NONE:
        yield from _read(header, body, where, has_pauses=True)
        return
    kept: deque[bytes] = deque()
    size = 0
    chunks = decompressed_chunks(codec, body)
    for chunk in chunks:
        kept.append(chunk)
        size += len(chunk)
        yield None
        if size > min(_MAX_IN_C_BYTES, max_bytes):
            yield from _read_chunks(header, _within(max_bytes, kept, chunks), where)
            return
    yield from _read(header, b"".join(kept), where, has_pauses=True)


def _read(
    header: tuple[int, ...], body: bytes, where: Where, *, has_pauses: bool
) -> Iterator[ConsumerRecord | None]:
    """:param has_pauses: yield ``None`` after some records that are not wanted."""
    if len(body) > _MAX_IN_C_BYTES:
        yield from _read_slowly(header, body, where, has_pauses=has_pauses)
        return
    base, _, epoch, magic, crc, attributes, *rest = header
    plain = HEADER.pack(
        base, HEADER.size - LENGTH_COUNTS_FROM + len(body), epoch, magic, crc, attributes & ~CODEC, *rest
    )
    padded = b"".join((plain, body, _PADDING))
    topic, partition, position = where.topic, where.partition, where.position
    count = unwanted = 0
    try:
        for record in DefaultRecordBatch(memoryview(padded)[: -len(_PADDING)]):
            offset = record.offset
            if offset < position:
                unwanted += 1
                if has_pauses and unwanted % _UNWANTED_AT_ONCE == 0:
                    yield None
                continue
            yield ConsumerRecord(
                topic=topic,
                partition=partition,
                offset=offset,
                timestamp_ms=-1 if record.timestamp is None else record.timestamp,
                key=record.key,
                value=record.value,
                headers=_headers(record.headers) if record.headers else (),
                leader_epoch=epoch,
            )
            count += 1
    except (CorruptRecordException, ValueError, OverflowError, IndexError, MemoryError):
        # From the beginning, without the records that are yielded already.
        for decoded in _read_slowly(header, body, where, has_pauses=has_pauses):
            if decoded is not None and count:
                count -= 1
            else:
                yield decoded


def _read_slowly(
    header: tuple[int, ...], body: bytes, where: Where, *, has_pauses: bool
) -> Iterator[ConsumerRecord | None]:
    at = 0
    try:
        for number in range(header[-1]):
            record, at = _record_at(header, body, at, where)
            if record is not None:
                yield record
            if has_pauses and number % _SLOWLY_AT_ONCE == 0:
                yield None
    except IndexError as error:
        raise RecordsError("a record is cut short") from error
    if at != len(body):
        raise RecordsError(f"{len(body) - at} bytes are left over after its records")


def _within(max_bytes: int, first: deque[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    """
    Return all chunks, up to a limit.

    :param first: the first chunks, which are taken out of it.
    :raise BatchTooLarge: there are more bytes.
    """
    size = 0
    while True:
        chunk = first.popleft() if first else next(rest, None)
        if chunk is None:
            return
        size += len(chunk)
        if size > max_bytes:
            raise BatchTooLarge(max_bytes)
        yield chunk


def _read_chunks(
    header: tuple[int, ...], chunks: Iterator[bytes], where: Where
) -> Iterator[ConsumerRecord | None]:
    """Decode records from the chunks of a body, of which only what one record needs is kept."""
    body, at = b"", 0
    for number in range(header[-1]):
        if number % _SLOWLY_AT_ONCE == 0:
            yield None
        end = _end_of_record(body, at)
        while end > len(body):
            kept, size = [body[at:]], len(body) - at
            needed = end - at
            while size < needed:
                chunk = next(chunks, None)
                if chunk is None:
                    raise RecordsError("a record is cut short")
                kept.append(chunk)
                size += len(chunk)
                yield None
            body, at = b"".join(kept), 0
            end = _end_of_record(body, at)
        try:
            record, at = _record_at(header, body, at, where)
        except IndexError as error:
            raise RecordsError("a record is cut short") from error
        if record is not None:
            yield record
    if at != len(body) or any(chunks):
        raise RecordsError("bytes are left over after its records")


def _end_of_record(body: bytes, at: int) -> int:
    """Return the position after a record; one beyond the end of the body if its length is cut short."""
    try:
        length, start = _varint(body, at)
    except IndexError:
        return len(body) + 1
    if length < 0:
        raise RecordsError("a record has a wrong length")
    return start + length


def _record_at(
    header: tuple[int, ...], body: bytes, at: int, where: Where
) -> tuple[ConsumerRecord | None, int]:
    """
    Decode one record.

    :return: the record, ``None`` if it is before the position that is wanted; and the position after it.
    :raise IndexError: it is cut short.
    """
    base, _, epoch, _, _, attributes, _, base_timestamp, max_timestamp, _, _, _, _ = header
    length, at = _varint(body, at)
    end = at + length
    _, at = _varint(body, at)  # attributes: none is in use
    timestamp_delta, at = _varint(body, at)
    offset_delta, at = _varint(body, at)
    offset = base + offset_delta
    if offset < where.position:
        return None, end
    key, at = _nullable_bytes(body, at)
    value, at = _nullable_bytes(body, at)
    header_count, at = _varint(body, at)
    headers = []
    if header_count > _MAX_HEADERS:
        header_count, at = 0, end
    for _ in range(header_count):
        name, at = _nullable_bytes(body, at)
        content, at = _nullable_bytes(body, at)
        if name is None:
            raise RecordsError("the name of a header is null")
        headers.append((name.decode(errors="replace"), content))
    if at != end or header_count < 0:
        raise RecordsError("a record has a wrong length")
    record = ConsumerRecord(
        topic=where.topic,
        partition=where.partition,
        offset=offset,
        timestamp_ms=max_timestamp if attributes & _LOG_APPEND_TIME else base_timestamp + timestamp_delta,
        key=key,
        value=value,
        headers=tuple(headers),
        leader_epoch=epoch,
    )
    return record, end


def _headers(some: list[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    return () if len(some) > _MAX_HEADERS else tuple(some)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    shift = number = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & ~_CONTINUED) << shift
        if byte < _CONTINUED:
            number &= _MAX_UINT64
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > _LONGEST_VARINT:
            raise RecordsError("a number is longer than 64 bits")


def _nullable_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    if length < 0:
        return None, at
    if length > len(data) - at:
        raise RecordsError("a key, value or header reaches beyond the end")
    return data[at : at + length], at + length


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
    stamped = outer.magic > 0 and outer.attributes & _LOG_APPEND_TIME
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
    key, at = _old_nullable_bytes(data, _HEADERS[magic].size)
    value, at = _old_nullable_bytes(data, at)
    if at != len(data):
        raise RecordsError("a message has a wrong length")
    return _Message(magic, offset, attributes, timestamp[0] if timestamp else _NO_TIMESTAMP, key, value)


def _old_nullable_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    start = at + LENGTH.size
    if start > len(data):
        raise RecordsError("a message is cut short")
    (length,) = LENGTH.unpack_from(data, at)
    if length == -1:
        return None, start
    if not 0 <= length <= len(data) - start:
        raise RecordsError("a key or value reaches beyond the end of its message")
    return data[start : start + length], start + length
