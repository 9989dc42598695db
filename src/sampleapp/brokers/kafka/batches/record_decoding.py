"""
Decoding of the records in a batch of format 2.

aiokafka's decoder in C is several times as fast as Python, but has two faults: it reads a few bytes beyond
the end of records that are cut short, and it rejects a batch in which the name of a header is not UTF-8.
Padding solves the first. A batch that it rejects is decoded again in Python, which decides, and names the
fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import cast

import msgspec
from aiokafka.errors import CorruptRecordException  # type: ignore[import-untyped] # it has no py.typed
from aiokafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped] # as above

from sampleapp.brokers.kafka.batches.compression import BatchTooLarge, Codec, decompressed_chunks
from sampleapp.brokers.kafka.batches.layout import CODEC, HEADER, LENGTH_COUNTS_FROM, LOG_APPEND_TIME
from sampleapp.model import ConsumerRecord

__all__ = ["RecordsError", "Where", "read_records", "read_records_gradually", "read_records_slowly"]

_MAX_HEADERS = 10_000
"""The most headers of one record. A header takes two bytes in a batch, and many times that in memory."""
_MAX_IN_C_BYTES = 4 * 1024 * 1024
"""Longer batches are decoded in Python, which counts the headers first; aiokafka decodes all headers."""

# About a millisecond each.
_UNWANTED_AT_ONCE = 2000
_SLOWLY_AT_ONCE = 200

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
        timestamp_ms=max_timestamp if attributes & LOG_APPEND_TIME else base_timestamp + timestamp_delta,
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
