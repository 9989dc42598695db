"""Messages of the formats 0 and 1, before Kafka 0.11."""

from __future__ import annotations

import struct
import zlib

import lz4.frame
import pytest
from aiokafka.record.legacy_records import _LegacyRecordBatchBuilderPy
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.batches import (
    Codec,
    FetchedPage,
    UnreadableBatch,
)
from sampleapp.brokers.kafka.batches.compression import CompressionError, compress, decompress
from tests.brokers.kafka.batches.encoders import (
    LOG_APPEND_TIME,
    decode,
    message,
    outcome_of,
    plain_batch,
    record,
    shown,
    values,
)
from tests.support.examples import examples

OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
LZ4_MAGIC = bytes.fromhex("04224d18")


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
    assert page == FetchedPage(
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


# The frame headers of lz4: magic number, flags, size of blocks, size of the content if the flags say so, and
# one byte of the checksum (xxHash, 32 bits) of all in front of it: with the magic number, as in format 0.
@pytest.mark.parametrize(
    ("header", "options"),
    [
        # As Java wrote it.
        ("04224d1860401a", {"block_size": 4, "block_linked": False}),
        ("04224d18407073", {"block_size": 7}),
        ("04224d1868409800000000000000bf", {"block_size": 4, "store_size": True}),
        (
            "04224d1874500f",
            {"block_size": 5, "block_linked": False, "content_checksum": True, "block_checksum": True},
        ),
    ],
)
@pytest.mark.parametrize("is_valid", [False, True])
def test_lz4_frames_of_format_0_are_read_with_either_checksum(header, options, is_valid):
    inner = message(b"a", offset=40, magic=0) + message(b"b" * 99, offset=41, magic=0)
    frame = lz4.frame.compress(inner, **{"store_size": False, **options})
    invalid = bytes.fromhex(header) + frame[len(bytes.fromhex(header)) :]
    assert frame != invalid
    with pytest.raises(CompressionError):
        decompress(Codec.LZ4, invalid, limit_bytes=1000)
    data = message(frame if is_valid else invalid, offset=41, magic=0, attributes=Codec.LZ4.value)
    assert values(decode(data, position=40)) == [b"a", b"b" * 99]


@given(st.binary(max_size=40))
def test_no_bytes_in_the_place_of_an_lz4_frame_of_format_0_are_a_fault_of_the_service(frame):
    for data in (frame, LZ4_MAGIC + frame):
        with pytest.raises(UnreadableBatch):
            decode(message(data, offset=0, magic=0, attributes=Codec.LZ4.value))


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
def test_a_compressed_message_that_holds_what_it_may_not_is_rejected(inner):
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
def test_an_impossible_message_is_rejected(data):
    with pytest.raises(UnreadableBatch):
        decode(data)


@examples(300)
@given(st.binary(max_size=60), st.sampled_from([0, 1]), st.integers(0, 7))
def test_any_message_with_a_right_checksum_is_rejected_or_read(body, magic, attributes):
    outcome_of(with_right_checksum(bytes([magic, attributes]) + body))


@examples(300)
@given(st.binary(max_size=80), st.sampled_from([0, 1]))
def test_anything_compressed_in_an_old_format_is_rejected_or_read(inner, magic):
    outcome_of(wrapped(Codec.GZIP, inner, offset=4, magic=magic))
