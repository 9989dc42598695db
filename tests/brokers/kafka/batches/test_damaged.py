"""Batches that are damaged or impossible are rejected, with their place."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.batches import (
    BATCH_OVERHEAD,
    Codec,
    UnreadableBatch,
    encode_batch,
)
from sampleapp.brokers.kafka.batches.compression import compress
from tests.brokers.kafka.batches.encoders import (
    LARGE,
    batches_of_records,
    codecs,
    decode,
    each_codec,
    outcome_of,
    plain_batch,
    record,
    varint,
)
from tests.support.examples import examples


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
def test_an_impossible_batch_is_rejected(data):
    with pytest.raises(UnreadableBatch, match=r"^t, partition 3, offset -?\d+: .*\.$"):
        decode(data)


@examples(200)
@given(st.binary(max_size=200))
def test_random_bytes_are_rejected_or_ignored(data):
    outcome_of(data)
    outcome_of(struct.pack(">qi", 0, max(0, len(data))) + data)


@examples(200)
@given(batches_of_records, codecs, st.data())
def test_damage_that_the_checksum_does_not_show_is_rejected_or_read(some, codec, data):
    body = compress(codec, plain_batch(some)[BATCH_OVERHEAD:])
    damage = st.tuples(st.integers(0, len(body)), st.integers(0, 3), st.binary(max_size=12))
    for at, removed, added in data.draw(st.lists(damage, max_size=3)):
        body = body[:at] + added + body[at + removed :]
    outcome_of(plain_batch(some, attributes=codec.value, body=body))
