"""
Batches as Kafka makes them, and the records decoded from them.

The plain encoders follow Kafka's documentation field by field: they are the oracle for written batches, and
make what Kafka's brokers make and a producer cannot: gaps, markers, old formats.
"""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from aiokafka.record.util import calc_crc32c_py
from hypothesis import strategies as st

from sampleapp.brokers.kafka.batches import (
    Codec,
    FetchedPage,
    UnreadableBatch,
    read_batches,
    read_gradually,
)
from sampleapp.model import ConsumerRecord, Record
from tests.support import strategies

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20

each_codec = pytest.mark.parametrize("codec", list(Codec))
each_compression = pytest.mark.parametrize("codec", list(Codec)[1:])

binaries = st.binary(max_size=300)
timestamps_ms = st.integers(0, 2**63 - 1) | st.integers(1_600_000_000_000, 1_900_000_000_000)
headers = st.lists(st.tuples(strategies.texts | st.just("same"), binaries), max_size=4).map(tuple)
records = st.builds(
    Record,
    topic=st.just("t"),
    key=st.none() | binaries,
    value=st.none() | binaries,
    timestamp_ms=timestamps_ms,
    headers=headers,
)
batches_of_records = st.lists(records, min_size=1, max_size=8)
codecs = st.sampled_from(list(Codec))


def record(value=b"v", *, key=None, timestamp_ms=1000, headers=()):
    return Record(topic="t", key=key, value=value, timestamp_ms=timestamp_ms, headers=headers)


def shown(record, offset, **changes):
    fields = {
        "topic": "t",
        "partition": 3,
        "offset": offset,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "headers": record.headers,
    }
    return ConsumerRecord(**{**fields, **changes})


def decode(data, *, position=0, aborted=()):
    """All pages of the fetched data as one; gradual decoding must find the same."""
    records, next_offset, fault = [], position, None
    try:
        for page in read_batches(data, topic="t", partition=3, position=position, aborted=aborted):
            records += page.records
            next_offset = page.next_offset
    except UnreadableBatch as error:
        fault = error
    # Of two faults, another one may be found first.
    gradually = decode_gradually(data, position=position, aborted=aborted)
    assert gradually == (records, next_offset, fault is not None)
    if fault is not None:
        raise fault
    return FetchedPage(records, next_offset)


def decode_gradually(data, *, position=0, aborted=(), **limits):
    """The records, the position after them, and whether a fault ended them."""
    records, next_offset = [], position
    try:
        for each in read_gradually(
            data, topic="t", partition=3, position=position, aborted=aborted, **limits
        ):
            if isinstance(each, ConsumerRecord):
                records.append(each)
            elif each is not None:
                next_offset = each
    except UnreadableBatch:
        return records, next_offset, True
    return records, next_offset, False


def values(page):
    return [each.value for each in page.records]


def varint(number):
    number = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def nullable(value):
    return varint(-1) if value is None else varint(len(value)) + value


def plain_record(record, offset_delta, timestamp_delta):
    body = (
        b"\0" + varint(timestamp_delta) + varint(offset_delta) + nullable(record.key) + nullable(record.value)
    )
    body += varint(len(record.headers))
    for name, value in record.headers:
        body += nullable(name if isinstance(name, bytes) else name.encode()) + nullable(value)
    return varint(len(body)) + body


def plain_batch(
    records,
    *,
    base_offset=0,
    deltas=None,
    last_offset_delta=None,
    attributes=0,
    max_timestamp=None,
    producer_id=-1,
    epoch=-1,
    base_sequence=-1,
    count=None,
    body=None,
    magic=2,
):
    deltas = list(range(len(records))) if deltas is None else deltas
    base = records[0].timestamp_ms if records else -1
    latest = max((each.timestamp_ms for each in records), default=-1)
    if body is None:
        body = b"".join(
            plain_record(each, delta, each.timestamp_ms - base)
            for each, delta in zip(records, deltas, strict=True)
        )
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        (deltas[-1] if deltas else 0) if last_offset_delta is None else last_offset_delta,
        base,
        latest if max_timestamp is None else max_timestamp,
        producer_id,
        epoch,
        base_sequence,
        len(records) if count is None else count,
    )
    checked += body
    head = struct.pack(">qiibI", base_offset, len(checked) + 9, -1, magic, calc_crc32c_py(checked))
    return head + checked


def marker(kind, *, producer_id, offset, version=0):
    key, value = struct.pack(">hh", version, kind), struct.pack(">hi", version, 0)
    return plain_batch(
        [record(value, key=key)],
        base_offset=offset,
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        epoch=0,
    )


def abort(**fields):
    return marker(0, **fields)


def commit(**fields):
    return marker(1, **fields)


def in_transaction(*contents, producer_id, offset):
    return plain_batch(
        [record(content) for content in contents],
        base_offset=offset,
        attributes=TRANSACTIONAL,
        producer_id=producer_id,
        epoch=0,
        base_sequence=0,
    )


def nullable32(value):
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def message(value, *, offset, magic=1, key=None, timestamp_ms=1000, attributes=0):
    checked = struct.pack(">bb", magic, attributes)
    checked += (struct.pack(">q", timestamp_ms) if magic else b"") + nullable32(key) + nullable32(value)
    return struct.pack(">qiI", offset, len(checked) + 4, zlib.crc32(checked)) + checked


NOISE = random.Random(0).randbytes(1_500_000)
LARGE = b"".join(b"%d," % number for number in range(40_000))


def outcome_of(data):
    try:
        return decode(data)
    except UnreadableBatch as error:
        return error
