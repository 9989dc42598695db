"""Compressed batches: named, framed and rejected as Java does it."""

from __future__ import annotations

import gzip
import struct

import cramjam
import pytest

from sampleapp.brokers.kafka.batches import (
    Codec,
    UnreadableBatch,
    encode_batch,
)
from sampleapp.brokers.kafka.batches.compression import CompressionError, compress, decompress
from tests.brokers.kafka.batches.encoders import (
    LARGE,
    NOISE,
    decode,
    each_compression,
    plain_batch,
    record,
    values,
)


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
def test_what_is_not_compressed_or_cut_short_is_rejected(codec):
    data = compress(codec, LARGE)
    for wrong in (b"", b"garbage" * 20, data[:-3], data[: len(data) // 2], data[:10]):
        with pytest.raises(UnreadableBatch):
            decode(plain_batch([record()], attributes=codec.value, body=wrong))


@pytest.mark.parametrize("length", [-1, 0, -(2**31), 2**31 - 1, -20])
def test_a_block_of_snappy_that_cannot_be_is_rejected(length):
    data = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + struct.pack(">i", length) + bytes(30)
    with pytest.raises(CompressionError):
        decompress(Codec.SNAPPY, data, limit_bytes=1000)
