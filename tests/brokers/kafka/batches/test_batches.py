"""
Batches of records: written as Kafka reads them, and read as Kafka writes them.

The plain encoders in this module follow Kafka's documentation field by field; they are the oracle for what
is written, and make what Kafka's brokers make and a producer cannot: gaps, markers, old formats. kio's
reader and aiokafka's in Python are two more.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import random
import struct
import zlib

import cramjam
import pytest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.legacy_records import _LegacyRecordBatchBuilderPy
from aiokafka.record.util import calc_crc32c_py
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sampleapp.brokers.kafka.batches import (
    BATCH_OVERHEAD,
    Codec,
    Page,
    UnreadableBatch,
    encode_batch,
    layout,
    read_batches,
    record_size,
)
from sampleapp.brokers.kafka.batches.compression import CompressionError, compress, decompress
from sampleapp.brokers.kafka.batches.records import RecordsError, Where, read_records, read_records_slowly
from sampleapp.brokers.kafka.protocol import AbortedTransaction
from sampleapp.model import ConsumerRecord, Record
from tests.support import strategies

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20

each_codec = pytest.mark.parametrize("codec", list(Codec))
each_compression = pytest.mark.parametrize("codec", list(Codec)[1:])

binaries = st.binary(max_size=300)
timestamps_ms = st.integers(0, 2**62) | st.integers(1_600_000_000_000, 1_900_000_000_000)
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
    """All pages of what was fetched as one."""
    records, next_offset = [], position
    for page in read_batches(data, topic="t", partition=3, position=position, aborted=aborted):
        records += page.records
        next_offset = page.next_offset
    return Page(records, next_offset)


def values(page):
    return [each.value for each in page.records]


# -- The plain encoders --------------------------------------------------------------------------------


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


# -- Writing -------------------------------------------------------------------------------------------


def test_a_small_batch_as_bytes():
    batch = encode_batch(
        [
            record(b"one", key=b"k", timestamp_ms=1000),
            record(None, timestamp_ms=1002, headers=(("h", b"x"),)),
        ],
        codec=Codec.NONE,
        producer_id=4000,
        epoch=1,
        base_sequence=7,
    )
    assert batch.hex(" ") == (
        "00 00 00 00 00 00 00 00"  # base offset: the broker's
        " 00 00 00 47"  # length of what follows
        " ff ff ff ff"  # leader epoch: the broker's
        " 02"  # format
        " f7 cc c6 91"  # CRC-32C of what follows
        " 00 00"  # attributes
        " 00 00 00 01"  # last offset delta
        " 00 00 00 00 00 00 03 e8"  # first timestamp
        " 00 00 00 00 00 00 03 ea"  # largest timestamp
        " 00 00 00 00 00 00 0f a0"  # producer id
        " 00 01"  # epoch
        " 00 00 00 07"  # base sequence
        " 00 00 00 02"  # number of records
        " 14 00 00 00 02 6b 06 6f 6e 65 00"
        " 14 00 04 02 01 01 02 02 68 02 78"
    )


@settings(max_examples=300)
@given(batches_of_records, st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1))
@example([record(timestamp_ms=0), record(timestamp_ms=2**62)], -1, -1, -1)
@example([record(timestamp_ms=2**62), record(timestamp_ms=0)], -1, -1, -1)
@example([record(timestamp_ms=0), record(timestamp_ms=1), record(timestamp_ms=0)], -1, -1, -1)
def test_a_batch_is_what_the_documentation_says(some, producer_id, epoch, base_sequence):
    identity = {"producer_id": producer_id, "epoch": epoch, "base_sequence": base_sequence}
    assert encode_batch(some, codec=Codec.NONE, **identity) == plain_batch(some, **identity)


@given(
    st.lists(
        st.builds(
            Record,
            topic=st.just("t"),
            key=st.none() | binaries,
            value=st.none() | binaries,
            # kio has timestamps as datetimes, which end in the year 9999.
            timestamp_ms=st.integers(0, 250_000_000_000_000),
            headers=headers,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_kio_reads_what_is_written(some):
    readers = pytest.importorskip("kio.records.readers", reason="kio needs Python 3.11")
    batch = encode_batch(some, codec=Codec.NONE, producer_id=4000, epoch=1, base_sequence=7)
    read, size = readers.read_batch(batch, 0)
    assert size == len(batch)
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (4000, 1, 7)
    assert (read.attributes, read.last_offset_delta) == (0, len(some) - 1)
    assert (read.base_timestamp, read.max_timestamp) == (
        some[0].timestamp_ms,
        max(each.timestamp_ms for each in some),
    )
    assert [(each.offset, each.key, each.value) for each in read.records] == [
        (index, each.key, each.value) for index, each in enumerate(some)
    ]
    assert [[(each.key, each.value) for each in one.headers] for one in read.records] == [
        [(name.encode(), value) for name, value in each.headers] for each in some
    ]
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    assert [each.timestamp - epoch for each in read.records] == [
        dt.timedelta(seconds=each.timestamp_ms // 1000) for each in some
    ]


@each_codec
def test_aiokafkas_reader_in_python_reads_what_is_written(codec):
    @given(batches_of_records)
    def read(some):
        batch = _DefaultRecordBatchPy(
            encode_batch(some, codec=codec, producer_id=4000, epoch=1, base_sequence=7)
        )
        assert batch.validate_crc()
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4000, 1, 7)
        assert [
            (each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in batch
        ] == [
            (index, each.timestamp_ms, each.key, each.value, each.headers) for index, each in enumerate(some)
        ]

    read()


@settings(max_examples=300)
@given(batches_of_records, codecs)
def test_what_is_written_is_read_back(some, codec):
    expected = Page([shown(each, offset) for offset, each in enumerate(some)], len(some))
    assert decode(encode_batch(some, codec=codec)) == expected


@given(batches_of_records, codecs)
def test_a_batch_is_never_larger_than_was_said(some, codec):
    assert len(encode_batch(some, codec=codec)) <= BATCH_OVERHEAD + sum(map(record_size, some))


@each_codec
def test_no_record_of_a_large_batch_is_left_out(codec):
    some = [record(b"%08d" % index * 50, timestamp_ms=index) for index in range(20_000)]
    some.append(record(NOISE))
    page = decode(encode_batch(some, codec=codec))
    assert page.next_offset == 20_001
    assert values(page) == [each.value for each in some]


def test_null_is_not_empty():
    page = decode(encode_batch([record(None, key=b""), record(b"", key=None)], codec=Codec.NONE))
    assert [(each.key, each.value) for each in page.records] == [(b"", None), (None, b"")]


def test_headers_keep_their_order_and_may_have_the_same_name():
    some = (("b", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"1"), ("", b""))
    page = decode(encode_batch([record(headers=some)], codec=Codec.NONE))
    assert page.records[0].headers == some


def test_a_batch_without_records_is_refused():
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([], codec=Codec.NONE)


def test_the_name_of_a_header_has_a_utf_8_form():
    with pytest.raises(ValueError, match="surrogates"):
        encode_batch([record(headers=(("\ud800", b""),))], codec=Codec.NONE)


def test_the_identity_stands_where_the_broker_looks_for_it():
    batch = encode_batch(
        [record()] * 3, codec=Codec.GZIP, producer_id=2**40, epoch=2**15 - 1, base_sequence=9
    )
    assert struct.unpack_from(">i", batch, 23) == (2,)
    assert struct.unpack_from(">qhii", batch, 43) == (2**40, 2**15 - 1, 9, 3)


def test_a_batch_has_no_identity_unless_it_is_given_one():
    batch = encode_batch([record()], codec=Codec.NONE)
    assert struct.unpack_from(">qhi", batch, 43) == (-1, -1, -1)


# -- Compression ---------------------------------------------------------------------------------------

LARGE = b"".join(b"%d," % number for number in range(40_000))


@each_compression
def test_a_batch_names_its_codec_and_is_smaller(codec):
    batch = encode_batch([record(LARGE)], codec=codec)
    assert struct.unpack_from(">h", batch, 21) == (codec.value,)
    assert len(batch) < len(LARGE) * 0.8
    assert values(decode(batch)) == [LARGE]


@each_compression
def test_a_batch_that_would_grow_is_not_compressed(codec):
    some = [record(NOISE[:100])]
    assert encode_batch(some, codec=codec) == encode_batch(some, codec=Codec.NONE)


def test_lz4_is_framed_as_java_reads_it():
    frame = compress(Codec.LZ4, LARGE)
    magic, flags = struct.unpack_from("<IB", frame)
    assert magic == 0x184D2204
    assert flags >> 6 == 1, "the version"
    assert flags & 0x20, "no block refers to another"
    assert not flags & 0x04, "Java compares a checksum of the content with something else"
    assert not flags & 0x01, "no dictionary"


def test_snappy_is_framed_as_java_writes_it():
    data = compress(Codec.SNAPPY, LARGE)
    assert data.startswith(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1")
    (length,) = struct.unpack_from(">i", data, 16)
    assert len(cramjam.snappy.decompress_raw(data[20 : 20 + length])) == 32 * 1024


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        # librdkafka writes snappy without a frame.
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(LARGE))),
        (Codec.LZ4, bytes(cramjam.lz4.compress(LARGE))),
        (Codec.GZIP, gzip.compress(LARGE[:1000]) + gzip.compress(LARGE[1000:])),
        (Codec.ZSTD, bytes(cramjam.zstd.compress(LARGE, 19))),
    ],
)
def test_what_others_write_in_another_way_is_read(codec, data):
    assert decompress(codec, data, limit_bytes=len(LARGE)) == LARGE


@each_compression
def test_what_is_not_compressed_or_cut_short_is_refused(codec):
    data = compress(codec, LARGE)
    for wrong in (b"", b"garbage" * 20, data[:-3], data[: len(data) // 2], data[:10]):
        with pytest.raises(UnreadableBatch):
            decode(plain_batch([record()], attributes=codec.value, body=wrong))


@pytest.mark.parametrize("length", [-1, 0, -(2**31), 2**31 - 1, -20])
def test_a_block_of_snappy_that_cannot_be_is_refused(length):
    data = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + struct.pack(">i", length) + bytes(30)
    with pytest.raises(CompressionError):
        decompress(Codec.SNAPPY, data, limit_bytes=1000)


# -- Reading -------------------------------------------------------------------------------------------


def test_nothing_was_fetched():
    assert decode(b"", position=40) == Page([], 40)


def test_batches_are_read_one_after_another_from_the_position_on():
    data = plain_batch([record(b"a"), record(b"b"), record(b"c")], base_offset=10)
    data += plain_batch([record(b"d")], base_offset=13)
    page = decode(data, position=11)
    assert [(each.offset, each.value) for each in page.records] == [(11, b"b"), (12, b"c"), (13, b"d")]
    assert page.next_offset == 14


def test_a_batch_that_ends_before_the_position_moves_it_not_back():
    assert decode(plain_batch([record()], base_offset=10), position=20) == Page([], 20)


def test_offsets_that_compaction_removed_are_passed():
    data = plain_batch(
        [record(b"a"), record(b"b"), record(b"c")], base_offset=10, deltas=[0, 3, 7], last_offset_delta=9
    )
    page = decode(data, position=10)
    assert [each.offset for each in page.records] == [10, 13, 17]
    assert page.next_offset == 20


def test_a_batch_that_compaction_emptied_is_passed():
    data = plain_batch([], base_offset=10, last_offset_delta=4, producer_id=7) + plain_batch(
        [record(b"next")], base_offset=15
    )
    page = decode(data, position=10)
    assert values(page) == [b"next"]
    assert page.next_offset == 16
    assert decode(plain_batch([], base_offset=10, last_offset_delta=4), position=10) == Page([], 15)


@each_codec
def test_a_batch_that_is_cut_short_at_the_end_is_left_for_the_next_request(codec):
    first = encode_batch([record(b"a"), record(b"b")], codec=codec)
    second = plain_batch([record(b"c" * 20)], base_offset=2)
    whole = decode(first)
    assert whole.next_offset == 2
    for end in range(len(second)):
        assert decode(first + second[:end]) == whole
    assert values(decode(first + second)) == [b"a", b"b", b"c" * 20]


def test_only_a_batch_that_is_cut_short_gives_nothing_and_does_not_move():
    assert decode(plain_batch([record()], base_offset=5)[:-1], position=5) == Page([], 5)


@each_codec
def test_a_broken_checksum_is_told_with_the_place(codec):
    batch = plain_batch([record(LARGE[:500])], base_offset=5)
    if codec is not Codec.NONE:
        batch = encode_batch([record(LARGE[:500])], codec=codec)
        batch = struct.pack(">q", 5) + batch[8:]
    for at in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x40
        with pytest.raises(UnreadableBatch, match=r"^t, partition 3, offset 5: its checksum is wrong\.$"):
            decode(bytes(damaged))


def test_nothing_after_a_broken_batch_is_read():
    good = plain_batch([record(b"a")]) + plain_batch([record(b"c")], base_offset=2)
    bad = bytearray(plain_batch([record(b"b")], base_offset=1))
    bad[-1] ^= 1
    first = len(good) // 2
    with pytest.raises(UnreadableBatch, match="offset 1"):
        decode(good[:first] + bytes(bad) + good[first:])


@pytest.mark.parametrize("attributes", [5, 6, 7])
def test_a_codec_that_is_not_known_is_told_with_the_place(attributes):
    with pytest.raises(UnreadableBatch, match=f"^t, partition 3, offset 0: .*codec {attributes}"):
        decode(plain_batch([record()], attributes=attributes))


@pytest.mark.parametrize(
    "data",
    [
        plain_batch([record()], magic=3),
        plain_batch([record()], magic=-1),
        plain_batch([record()], count=2),
        plain_batch([record()], count=0),
        plain_batch([record()], count=-1),
        plain_batch([record()], count=2**31 - 1),
        plain_batch([record()] * 2, count=1),
        plain_batch([record()], last_offset_delta=-1),
        plain_batch([record()], last_offset_delta=-(2**31)),
        plain_batch([record()], base_offset=-1),
        plain_batch([record()], base_offset=2**63 - 1),
        plain_batch([record()] * 2, deltas=[0, 5], last_offset_delta=4),
        plain_batch([record()], body=b""),
        plain_batch([record()], body=b"\0" * 7),
        # Lengths that reach beyond the end, or below nothing.
        plain_batch([record()], body=varint(6) + b"\0\0\0" + varint(2**62) + b"\0\0"),
        plain_batch([record()], body=varint(2**63 - 1) + b"\0\0\0" + varint(2**63 - 1) + b"\0\0"),
        plain_batch([record()], body=varint(6) + b"\0\0\0" + varint(-(2**63)) + varint(2**63 - 41) + b"\0"),
        plain_batch([record()], body=varint(8) + b"\0\0\0\1\1" + varint(2**40) + b"\0"),
        plain_batch([record()], body=varint(8) + b"\0\0\0\1\1" + varint(1) + varint(-1) + b"\0"),
        plain_batch([record()], body=b"\xff" * 40),
        plain_batch([record()], body=b"\xff" * 9 + b"\1"),
        # Lengths of the whole that are too small for a header.
        struct.pack(">qiib", 0, 5, 0, 2) + bytes(100),
        struct.pack(">qiib", 0, 0, 0, 2) + bytes(100),
        struct.pack(">qiib", 0, -1, 0, 2) + bytes(100),
        struct.pack(">qiib", 0, -20, 0, 2) + bytes(100),
        struct.pack(">qiib", 0, -(2**31), 0, 2) + bytes(100),
        struct.pack(">qiib", 0, 48, 0, 2) + bytes(100),
    ],
)
def test_an_impossible_batch_is_refused(data):
    with pytest.raises(UnreadableBatch, match=r"^t, partition 3, offset -?\d+: .*\.$"):
        decode(data)


def outcome_of(data):
    try:
        return decode(data)
    except UnreadableBatch as error:
        return error


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_ignored(data):
    outcome_of(data)
    outcome_of(struct.pack(">qi", 0, max(0, len(data))) + data)


@settings(max_examples=500)
@given(batches_of_records, codecs, st.data())
def test_damage_that_the_checksum_does_not_show_is_refused_or_read(some, codec, data):
    body = compress(codec, plain_batch(some)[BATCH_OVERHEAD:])
    damage = st.tuples(st.integers(0, len(body)), st.integers(0, 3), st.binary(max_size=12))
    for at, removed, added in data.draw(st.lists(damage, max_size=3)):
        body = body[:at] + added + body[at + removed :]
    outcome_of(plain_batch(some, attributes=codec.value, body=body))


def test_the_broker_may_have_stamped_the_records():
    some = [record(timestamp_ms=5), record(timestamp_ms=7)]
    page = decode(plain_batch(some, attributes=LOG_APPEND_TIME, max_timestamp=9000))
    assert [each.timestamp_ms for each in page.records] == [9000, 9000]


def test_a_record_may_have_no_timestamp():
    page = decode(plain_batch([record(timestamp_ms=-1)]))
    assert [each.timestamp_ms for each in page.records] == [-1]


def test_a_header_that_is_null_is_empty_here():
    page = decode(plain_batch([record(headers=((b"h", None), (b"h", b"")))]))
    assert page.records[0].headers == (("h", b""), ("h", b""))


def test_the_name_of_a_header_need_not_be_utf_8():
    some = [record(b"a", headers=((b"h\xff", b"x"), (b"g", None))), record(b"b", key=b"k", timestamp_ms=2000)]
    page = decode(plain_batch(some, base_offset=10), position=10)
    assert page == Page(
        [shown(some[0], 10, headers=(("h\N{REPLACEMENT CHARACTER}", b"x"), ("g", b""))), shown(some[1], 11)],
        12,
    )
    assert [each.offset for each in decode(plain_batch(some, base_offset=10), position=11).records] == [11]


@settings(max_examples=300)
@given(batches_of_records, st.booleans(), st.data())
def test_the_two_readers_of_records_agree(some, stamped, data):
    batch = plain_batch(some, base_offset=5, attributes=LOG_APPEND_TIME if stamped else 0)
    where = Where("t", 3, data.draw(st.integers(0, 15)))
    header = layout.HEADER.unpack_from(batch)
    body = batch[BATCH_OVERHEAD:]
    assert list(read_records_slowly(header, body, where)) == list(read_records(header, body, where))
    end = data.draw(st.integers(0, len(body) - 1))
    for reader in (read_records, read_records_slowly):
        with pytest.raises(RecordsError):
            list(reader(header, body[:end], where))
        with pytest.raises(RecordsError):
            list(reader(header, body + b"\0", where))


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(-1, 5))
def test_the_slower_reader_refuses_or_reads_anything(body, count):
    header = layout.HEADER.unpack_from(plain_batch([record()], count=count))
    with contextlib.suppress(RecordsError):
        list(read_records_slowly(header, body, Where("t", 3, 0)))


# -- Transactions --------------------------------------------------------------------------------------


def test_markers_of_transactions_are_not_shown():
    data = in_transaction(b"a", producer_id=7, offset=0) + commit(producer_id=7, offset=1)
    assert values(decode(data)) == [b"a"]
    assert decode(data).next_offset == 2
    assert decode(data[-len(commit(producer_id=7, offset=1)) :], position=1) == Page([], 2)


def test_markers_of_a_kind_that_is_not_known_are_not_shown():
    assert decode(marker(5, producer_id=7, offset=0, version=3)) == Page([], 1)


def test_records_of_an_aborted_transaction_are_not_shown():
    data = (
        in_transaction(b"committed", producer_id=7, offset=0)
        + commit(producer_id=7, offset=1)
        + in_transaction(b"x", b"y", producer_id=7, offset=2)
        + in_transaction(b"z", producer_id=7, offset=4)
        + abort(producer_id=7, offset=5)
        + in_transaction(b"later", producer_id=7, offset=6)
        + commit(producer_id=7, offset=7)
    )
    page = decode(data, aborted=[AbortedTransaction(7, 2)])
    assert values(page) == [b"committed", b"later"]
    assert page.next_offset == 8


def test_a_producer_may_abort_again():
    data = (
        in_transaction(b"x", producer_id=7, offset=0)
        + abort(producer_id=7, offset=1)
        + in_transaction(b"kept", producer_id=7, offset=2)
        + commit(producer_id=7, offset=3)
        + in_transaction(b"y", producer_id=7, offset=4)
        + abort(producer_id=7, offset=5)
    )
    # In the order of offsets, whatever the order in the answer.
    for aborted in ([(7, 0), (7, 4)], [(7, 4), (7, 0)]):
        page = decode(data, aborted=[AbortedTransaction(*each) for each in aborted])
        assert values(page) == [b"kept"]


def test_transactions_of_other_producers_run_through_one_another():
    data = (
        in_transaction(b"x1", producer_id=7, offset=0)
        + in_transaction(b"good1", producer_id=8, offset=1)
        + plain_batch([record(b"plain")], base_offset=2)
        + plain_batch([record(b"idempotent")], base_offset=3, producer_id=7, epoch=0, base_sequence=5)
        + in_transaction(b"x2", producer_id=7, offset=4)
        + commit(producer_id=8, offset=5)
        + abort(producer_id=7, offset=6)
        + in_transaction(b"good2", producer_id=7, offset=7)
    )
    page = decode(data, aborted=[AbortedTransaction(7, 0)])
    assert values(page) == [b"good1", b"plain", b"idempotent", b"good2"]


def test_a_transaction_that_was_aborted_may_have_begun_earlier_or_end_later():
    data = in_transaction(b"x", producer_id=7, offset=10) + in_transaction(b"y", producer_id=8, offset=11)
    aborted = [AbortedTransaction(7, 2), AbortedTransaction(8, 11), AbortedTransaction(9, 500)]
    assert decode(data, position=10, aborted=aborted) == Page([], 12)


def test_records_of_transactions_are_shown_where_nobody_asked_for_committed_ones():
    data = in_transaction(b"x", producer_id=7, offset=0) + abort(producer_id=7, offset=1)
    assert values(decode(data)) == [b"x"]


def test_what_is_hidden_need_not_be_readable():
    data = plain_batch([record()], attributes=TRANSACTIONAL | 7, producer_id=7)
    assert decode(data, aborted=[AbortedTransaction(7, 0)]) == Page([], 1)


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_without_a_type_is_refused(key):
    data = plain_batch([record(key=key)], attributes=TRANSACTIONAL | CONTROL, producer_id=7)
    with pytest.raises(UnreadableBatch, match="marker"):
        decode(data, aborted=[AbortedTransaction(7, 0)])


# -- Old formats ---------------------------------------------------------------------------------------

OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def wrapped(codec, inner, *, offset, magic=1, attributes=0, timestamp_ms=1000):
    return message(
        compress(codec, inner),
        offset=offset,
        magic=magic,
        attributes=attributes | codec.value,
        timestamp_ms=timestamp_ms,
    )


@pytest.mark.parametrize(("magic", "timestamp_ms"), [(0, -1), (1, 1000)])
def test_messages_of_old_formats_are_read(magic, timestamp_ms):
    data = message(b"a", key=b"k", offset=4, magic=magic) + message(None, key=b"", offset=9, magic=magic)
    page = decode(data, position=4)
    assert page == Page(
        [
            shown(record(b"a", key=b"k", timestamp_ms=timestamp_ms), 4),
            shown(record(None, key=b"", timestamp_ms=timestamp_ms), 9),
        ],
        10,
    )
    assert [each.offset for each in decode(data, position=5).records] == [9]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_format_1_has_relative_offsets_inside_a_compressed_message(codec):
    # The one with the relative offset 1 was removed by compaction.
    inner = message(b"a", offset=0, timestamp_ms=5) + message(b"c", offset=2, timestamp_ms=7)
    page = decode(wrapped(codec, inner, offset=42), position=40)
    assert [(each.offset, each.timestamp_ms, each.value) for each in page.records] == [
        (40, 5, b"a"),
        (42, 7, b"c"),
    ]
    assert page.next_offset == 43
    assert values(decode(wrapped(codec, inner, offset=42), position=41)) == [b"c"]


@pytest.mark.parametrize("codec", OLD_CODECS[:2])
def test_format_0_has_absolute_offsets_inside_a_compressed_message(codec):
    inner = message(b"a", offset=40, magic=0) + message(b"b", offset=41, magic=0)
    page = decode(wrapped(codec, inner, offset=41, magic=0), position=40)
    assert [(each.offset, each.timestamp_ms, each.value) for each in page.records] == [
        (40, -1, b"a"),
        (41, -1, b"b"),
    ]


def test_the_broker_may_have_stamped_a_compressed_message_for_all_inside():
    inner = message(b"a", offset=0, timestamp_ms=5) + message(b"b", offset=1, timestamp_ms=7)
    data = wrapped(Codec.GZIP, inner, offset=1, attributes=LOG_APPEND_TIME, timestamp_ms=9000)
    assert [each.timestamp_ms for each in decode(data).records] == [9000, 9000]


def test_lz4_in_format_0_is_not_supported():
    with pytest.raises(UnreadableBatch, match="lz4 in format 0"):
        decode(wrapped(Codec.LZ4, message(b"a", offset=0, magic=0), offset=0, magic=0))


@pytest.mark.parametrize(
    ("magic", "codec"),
    [
        *[(0, codec) for codec in (Codec.NONE, *OLD_CODECS[:2])],
        *[(1, codec) for codec in (Codec.NONE, *OLD_CODECS)],
    ],
)
def test_what_aiokafka_writes_in_old_formats_is_read(magic, codec):
    builder = _LegacyRecordBatchBuilderPy(magic, codec.value, 1 << 20)
    for offset in range(5):
        builder.append(offset, 1000 + offset, b"key", b"value" * 50)
    data = bytes(builder.build())
    if codec is not Codec.NONE:
        data = struct.pack(">q", 4) + data[8:]  # what the broker does
    page = decode(data)
    assert [each.offset for each in page.records] == [0, 1, 2, 3, 4]
    assert [each.timestamp_ms for each in page.records] == [1000 + each if magic else -1 for each in range(5)]
    assert page.next_offset == 5


def test_formats_follow_one_another():
    data = (
        message(b"0", offset=0, magic=0)
        + message(b"1", offset=1)
        + plain_batch([record(b"2")], base_offset=2)
    )
    assert values(decode(data)) == [b"0", b"1", b"2"]
    whole = len(data)
    for end in range(whole):
        assert values(decode(data[:end])) in ([], [b"0"], [b"0", b"1"])


NESTED = wrapped(Codec.GZIP, message(b"a", offset=0), offset=0)


@pytest.mark.parametrize(
    "inner",
    [
        b"",
        NESTED,
        message(b"a", offset=0, magic=0),
        plain_batch([record()]),
        message(b"a", offset=5),
        message(b"a", offset=0)[:-1],
        message(b"a", offset=0)[:20],
        message(b"a", offset=0) + b"\0",
        message(b"a", offset=0)[:-1] + b"b",
        struct.pack(">qi", 0, -12) + bytes(40),
        struct.pack(">qi", 0, -1) + bytes(40),
        struct.pack(">qi", 0, 0) + bytes(40),
        struct.pack(">qi", 0, 2**31 - 1) + bytes(40),
    ],
)
def test_a_compressed_message_that_holds_what_it_may_not_is_refused(inner):
    with pytest.raises(UnreadableBatch):
        decode(wrapped(Codec.GZIP, inner, offset=4))


def with_right_checksum(checked):
    return struct.pack(">qiI", 0, len(checked) + 4, zlib.crc32(checked)) + checked


@pytest.mark.parametrize(
    "data",
    [
        message(b"a", offset=-1),
        message(b"a", offset=0)[:-1] + b"b",
        message(None, offset=0, attributes=Codec.GZIP.value),
        message(b"garbage", offset=0, attributes=Codec.GZIP.value),
        with_right_checksum(b"\1\0" + bytes(8)),
        with_right_checksum(b"\1\0" + bytes(8) + struct.pack(">ii", -2, -1)),
        with_right_checksum(b"\1\0" + bytes(8) + struct.pack(">ii", 2**31 - 1, -1)),
        with_right_checksum(b"\1\0" + bytes(8) + struct.pack(">ii", 3, -1)),
        with_right_checksum(b"\1\0" + bytes(8) + struct.pack(">ii", -1, 1)),
        with_right_checksum(b"\1\0" + bytes(8) + struct.pack(">ii", -1, -1) + b"\0"),
    ],
)
def test_an_impossible_message_is_refused(data):
    with pytest.raises(UnreadableBatch):
        decode(data)


@settings(max_examples=300)
@given(st.binary(max_size=60), st.sampled_from([0, 1]), st.integers(0, 7))
def test_any_message_with_a_right_checksum_is_refused_or_read(body, magic, attributes):
    outcome_of(with_right_checksum(bytes([magic, attributes]) + body))


@settings(max_examples=300)
@given(st.binary(max_size=80), st.sampled_from([0, 1]))
def test_anything_compressed_in_an_old_format_is_refused_or_read(inner, magic):
    outcome_of(wrapped(Codec.GZIP, inner, offset=4, magic=magic))
