"""Batches are written as Kafka reads them; kio's reader and aiokafka's in Python are two more oracles."""

from __future__ import annotations

import datetime as dt
import struct

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from hypothesis import example, given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from sampleapp.brokers.kafka.batches import (
    BATCH_OVERHEAD,
    Codec,
    FetchedPage,
    encode_batch,
    record_size,
)
from sampleapp.model import Record
from tests.brokers.kafka.batches.encoders import (
    NOISE,
    batches_of_records,
    binaries,
    codecs,
    decode,
    each_codec,
    headers,
    plain_batch,
    record,
    shown,
    values,
)
from tests.support.examples import examples


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


@examples(100)
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
    batch = encode_batch(some, codec=Codec.NONE, producer_id=4000, epoch=1, base_sequence=7)
    read, size = read_batch(batch, 0)
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
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert [each.timestamp - epoch for each in read.records] == [
        dt.timedelta(seconds=each.timestamp_ms // 1000) for each in some
    ]


@each_codec
def test_aiokafkas_reader_in_python_reads_what_is_written(codec):
    @examples(40)
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


@examples(100)
@given(batches_of_records, codecs)
def test_what_is_written_is_read_back(some, codec):
    expected = FetchedPage([shown(each, offset) for offset, each in enumerate(some)], len(some))
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


def test_a_batch_without_records_is_rejected():
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
