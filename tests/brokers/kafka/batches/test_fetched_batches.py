"""Batches are read as Kafka writes them, from a position on."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.batches import BATCH_OVERHEAD, FetchedPage, encode_batch, encoding
from sampleapp.brokers.kafka.batches.record_decoding import (
    RecordsError,
    Where,
    read_records,
    read_records_slowly,
)
from tests.brokers.kafka.batches.encoders import (
    LOG_APPEND_TIME,
    batches_of_records,
    decode,
    each_codec,
    plain_batch,
    record,
    shown,
    values,
)
from tests.support.examples import examples


def test_nothing_was_fetched():
    assert decode(b"", position=40) == FetchedPage([], 40)


def test_batches_are_read_one_after_another_from_the_position_on():
    data = plain_batch([record(b"a"), record(b"b"), record(b"c")], base_offset=10)
    data += plain_batch([record(b"d")], base_offset=13)
    page = decode(data, position=11)
    assert [(each.offset, each.value) for each in page.records] == [(11, b"b"), (12, b"c"), (13, b"d")]
    assert page.next_offset == 14


def test_a_batch_that_ends_before_the_position_moves_it_not_back():
    assert decode(plain_batch([record()], base_offset=10), position=20) == FetchedPage([], 20)


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
    assert decode(plain_batch([], base_offset=10, last_offset_delta=4), position=10) == FetchedPage([], 15)


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
    assert decode(plain_batch([record()], base_offset=5)[:-1], position=5) == FetchedPage([], 5)


def test_the_broker_may_have_stamped_the_records():
    some = [record(timestamp_ms=5), record(timestamp_ms=7)]
    page = decode(plain_batch(some, attributes=LOG_APPEND_TIME, max_timestamp=9000))
    assert [each.timestamp_ms for each in page.records] == [9000, 9000]


def test_a_record_may_have_no_timestamp():
    page = decode(plain_batch([record(timestamp_ms=-1)]))
    assert [each.timestamp_ms for each in page.records] == [-1]


def test_a_header_that_is_null_is_not_an_empty_one():
    page = decode(plain_batch([record(headers=((b"h", None), (b"h", b"")))]))
    assert page.records[0].headers == (("h", None), ("h", b""))


def test_the_name_of_a_header_need_not_be_utf_8():
    some = [record(b"a", headers=((b"h\xff", b"x"), (b"g", None))), record(b"b", key=b"k", timestamp_ms=2000)]
    page = decode(plain_batch(some, base_offset=10), position=10)
    assert page == FetchedPage(
        [shown(some[0], 10, headers=(("h\N{REPLACEMENT CHARACTER}", b"x"), ("g", None))), shown(some[1], 11)],
        12,
    )
    assert [each.offset for each in decode(plain_batch(some, base_offset=10), position=11).records] == [11]


@examples(300)
@given(batches_of_records, st.booleans(), st.data())
def test_the_two_readers_of_records_agree(some, stamped, data):
    batch = plain_batch(some, base_offset=5, attributes=LOG_APPEND_TIME if stamped else 0)
    where = Where("t", 3, data.draw(st.integers(0, 15)))
    header = encoding.HEADER.unpack_from(batch)
    body = batch[BATCH_OVERHEAD:]
    assert list(read_records_slowly(header, body, where)) == list(read_records(header, body, where))
    end = data.draw(st.integers(0, len(body) - 1))
    for reader in (read_records, read_records_slowly):
        with pytest.raises(RecordsError):
            list(reader(header, body[:end], where))
        with pytest.raises(RecordsError):
            list(reader(header, body + b"\0", where))


@examples(300)
@given(st.binary(max_size=60), st.integers(-1, 5))
def test_the_slower_reader_rejects_or_reads_anything(body, count):
    header = encoding.HEADER.unpack_from(plain_batch([record()], count=count))
    with contextlib.suppress(RecordsError):
        list(read_records_slowly(header, body, Where("t", 3, 0)))
