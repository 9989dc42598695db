"""
The records inside a batch of format 2.

aiokafka reads them in C, several times as fast as can be done here, but not everything as it should: it
looks a few bytes beyond the end of what is cut short, and it refuses a batch in which the name of a header
is not UTF-8. Padding takes care of the first. What it refuses is read again by the slower reader here, which
has the last word, and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
from aiokafka.errors import CorruptRecordException  # type: ignore[import-untyped] # it has no py.typed
from aiokafka.record.default_records import DefaultRecordBatch  # type: ignore[import-untyped] # as above

from sampleapp.brokers.kafka.batches.layout import CODEC, HEADER, LENGTH_COUNTS_FROM, LOG_APPEND_TIME
from sampleapp.model import ConsumerRecord

__all__ = ["RecordsError", "Where", "read_records", "read_records_slowly"]

_MAX_HEADERS = 10_000
"""Of one record. In memory each takes many times the two bytes that it takes at least in a batch."""
_MAX_IN_C_BYTES = 4 * 1024 * 1024
"""aiokafka reads all headers of a record: in what is longer, they are counted before that."""

# More than any sequence of variable-length numbers that is read before the next look at the end.
_PADDING = bytes(64)
_LONGEST_VARINT = 63
_CONTINUED = 0x80
_MAX_UINT64 = 2**64 - 1


class RecordsError(ValueError):
    """What should be the records of a batch is not."""


class Where(msgspec.Struct, frozen=True, gc=False):
    """Where records come from, and which of them are wanted."""

    topic: str
    partition: int
    position: int
    """The first offset that is wanted."""


def read_records(header: tuple[int, ...], body: bytes, where: Where) -> Iterator[ConsumerRecord]:
    """
    Read the records of a batch that has been decompressed.

    A record that has more than 10,000 headers is shown without them.

    :param header: the fields of `HEADER`.
    :param body: what follows it.
    :return: those that are wanted, in the order of the batch; they are read as they are asked for.
    :raise RecordsError: while they are read: there is one that is cut short or impossible, or they are not
        as many as the header says.
    """
    if len(body) > _MAX_IN_C_BYTES:
        yield from read_records_slowly(header, body, where)
        return
    base, _, epoch, magic, crc, attributes, *rest = header
    plain = HEADER.pack(
        base, HEADER.size - LENGTH_COUNTS_FROM + len(body), epoch, magic, crc, attributes & ~CODEC, *rest
    )
    padded = b"".join((plain, body, _PADDING))
    topic, partition, position = where.topic, where.partition, where.position
    count = 0
    try:
        for record in DefaultRecordBatch(memoryview(padded)[: -len(_PADDING)]):
            offset = record.offset
            if offset < position:
                continue
            yield ConsumerRecord(
                topic=topic,
                partition=partition,
                offset=offset,
                timestamp_ms=-1 if record.timestamp is None else record.timestamp,
                key=record.key,
                value=record.value,
                headers=_headers(record.headers) if record.headers else (),
            )
            count += 1
    except (CorruptRecordException, ValueError, OverflowError, IndexError, MemoryError):
        # From the beginning, and then on from where the other one stopped.
        yield from islice(read_records_slowly(header, body, where), count, None)


def read_records_slowly(header: tuple[int, ...], body: bytes, where: Where) -> Iterator[ConsumerRecord]:
    """
    As `read_records`, in Python, and with U+FFFD for what is not UTF-8, as Java's clients do it.

    To refuse such a batch would stop whoever follows the topic for good, for the sake of one producer.
    """
    base, *_, attributes, _, base_timestamp, max_timestamp, _, _, _, count = header
    at = 0
    try:
        for _ in range(count):
            length, at = _varint(body, at)
            end = at + length
            _, at = _varint(body, at)  # attributes: none is in use
            timestamp_delta, at = _varint(body, at)
            offset_delta, at = _varint(body, at)
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
                headers.append((name.decode(errors="replace"), content or b""))
            if at != end or header_count < 0:
                raise RecordsError("a record does not have the length that it says")
            stamped = attributes & LOG_APPEND_TIME
            record = ConsumerRecord(
                topic=where.topic,
                partition=where.partition,
                offset=base + offset_delta,
                timestamp_ms=max_timestamp if stamped else base_timestamp + timestamp_delta,
                key=key,
                value=value,
                headers=tuple(headers),
            )
            if record.offset >= where.position:
                yield record
    except IndexError as error:
        raise RecordsError("a record is cut short") from error
    if at != len(body):
        raise RecordsError(f"{len(body) - at} bytes are left over after its records")


def _headers(some: list[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes], ...]:
    if len(some) > _MAX_HEADERS:
        return ()
    return tuple([(name, value or b"") for name, value in some])


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
