"""Batches that expand to gigabytes: they are found out before their records are in memory."""

from __future__ import annotations

import functools
import gzip
import subprocess
import sys
import zlib
from struct import pack

import cramjam
import lz4.frame
import pytest
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.batches import Codec, read_batches
from sampleapp.brokers.kafka.batches.compression import BatchTooLarge, compress, decompress
from tests.support.examples import examples

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 1024 * 1024
GIB = 1024 * MIB
MAX_MORE_MIB = 64
SLACK_MIB = 8
"""Where the decoder itself has to look back as far as the limit is."""

each_compression = pytest.mark.parametrize("codec", list(Codec)[1:])

# Alone in its process, since memory that was taken before would hide what is taken now.
CHILD = """
import sys
from sampleapp.brokers.kafka.batches import read_batches

def peak_mib():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

data = sys.stdin.buffer.read()
before_mib = peak_mib()
pages = list(read_batches(data, topic="t", partition=0, position=0, aborted=()))
print(peak_mib() - before_mib, len(pages), pages[0].too_large, pages[0].next_offset)
"""


def stream(compressor, count):
    """So many MiB of zeros."""
    zeros = bytes(MIB)
    return b"".join([*(compressor.compress(zeros) for _ in range(count)), compressor.flush()])


def lz4_stream(count, **options):
    compressor = lz4.frame.LZ4FrameCompressor(**options)
    return compressor.begin() + stream(compressor, count)


@functools.lru_cache(maxsize=1)
def body_of_bomb(codec):
    return {
        Codec.GZIP: lambda: stream(zlib.compressobj(9, wbits=31), 256),
        # It cannot do more than 21 to 1.
        Codec.SNAPPY: lambda: bytes(cramjam.snappy.compress_raw(bytes(200 * MIB))),
        Codec.LZ4: lambda: lz4_stream(2048, block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False),
        Codec.ZSTD: lambda: stream(zstd.ZstdCompressor(level=3), 2048),
    }[codec]()


def bomb(codec, *, format_2):
    body = body_of_bomb(codec)
    return in_format_2(codec, body) if format_2 else in_format_1(codec, body)


def in_format_2(codec, body):
    checked = pack(">hiqqqhii", codec.value, 6, 0, 0, -1, -1, -1, 7) + body
    rest = pack(">ibI", -1, 2, calc_crc32c(checked)) + checked
    return pack(">qi", 0, len(rest)) + rest


def in_format_1(codec, body):
    checked = pack(">bbqi", 1, codec.value, 0, -1) + pack(">i", len(body)) + body
    rest = pack(">I", zlib.crc32(checked)) + checked
    return pack(">qi", 6, len(rest)) + rest


def skip_in_child(data):
    """The additional MiB at its peak."""
    done = subprocess.run([sys.executable, "-c", CHILD], input=data, capture_output=True, check=True)
    more_mib, *rest = done.stdout.split()
    assert rest == [b"1", b"True", b"7"]
    return float(more_mib)


@pytest.mark.skipif(sys.platform != "linux", reason="where peak memory can be read")
@pytest.mark.parametrize("format_2", [True, False])
@each_compression
def test_a_bomb_takes_little_memory_while_it_is_skipped(codec, format_2):
    assert skip_in_child(bomb(codec, format_2=format_2)) <= MAX_MORE_MIB


@pytest.mark.skipif(sys.platform != "linux", reason="where peak memory can be read")
@pytest.mark.parametrize(
    "body",
    [
        # Its encoder looks back as far as it may, and so must its decoder.
        lambda: stream(
            zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27}),
            512,
        ),
        lambda: b"".join(zstd.compress(bytes(MIB)) for _ in range(512)),
    ],
    ids=["window", "frames"],
)
def test_zstd_of_other_shapes_takes_little_memory_as_well(body):
    assert skip_in_child(in_format_2(Codec.ZSTD, body())) <= MAX_MORE_MIB + SLACK_MIB


def test_blocks_of_lz4_that_refer_to_earlier_ones_are_bounded_as_well():
    with pytest.raises(BatchTooLarge):
        decompress(Codec.LZ4, lz4_stream(100, block_linked=True), limit_bytes=64 * MIB)


@each_compression
def test_what_just_fits_is_read_and_one_byte_more_is_too_much(codec):
    data = b"0123456789" * (2 * MIB)
    packed = compress(codec, data)
    assert decompress(codec, packed, limit_bytes=len(data)) == data
    with pytest.raises(BatchTooLarge, match=f"more than {len(data) - 1} bytes"):
        decompress(codec, packed, limit_bytes=len(data) - 1)


@examples(60)
@given(st.sampled_from(list(Codec)[1:]), st.lists(st.binary(max_size=300), max_size=3), st.integers(0, 1000))
def test_the_limit_is_kept_whatever_is_compressed(codec, parts, limit_bytes):
    data = b"".join(parts)
    if codec is Codec.SNAPPY:
        packed = compress(codec, data)
    else:
        packed = b"".join(compress(codec, part) for part in parts or [b""])
    if len(data) > limit_bytes:
        with pytest.raises(BatchTooLarge):
            decompress(codec, packed, limit_bytes=limit_bytes)
    else:
        assert decompress(codec, packed, limit_bytes=limit_bytes) == data


def varint(number):
    number *= 2
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def in_gzip(record, count):
    """A batch of one record again and again."""
    body = gzip.compress(record * count)
    checked = pack(">hiqqqhii", Codec.GZIP.value, count - 1, 0, 0, -1, -1, -1, count) + body
    rest = pack(">ibI", -1, 2, calc_crc32c(checked)) + checked
    return pack(">qi", 0, len(rest)) + rest


def record_with_headers(count):
    rest = b"\0\0\0\1\1" + varint(count) + b"\0\0" * count
    return varint(len(rest)) + rest


READING_CHILD = """
import sys
from collections import deque
from sampleapp.brokers.kafka.batches import read_batches

def peak_mib():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

data = sys.stdin.buffer.read()
before_mib = peak_mib()
(page,) = read_batches(data, topic="t", partition=0, position=0, aborted=())
(last,) = deque(page.records, 1)
print(peak_mib() - before_mib, len(last.headers))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="where peak memory can be read")
@pytest.mark.parametrize(
    ("batch", "most_mib"),
    [
        (lambda: in_gzip(b"\x0c\0\0\0\1\1\0", 500_000), 16),
        (lambda: in_gzip(record_with_headers(15_000_000), 1), 64),
    ],
    ids=["many records", "many headers"],
)
def test_what_takes_little_in_a_batch_takes_little_in_memory(batch, most_mib):
    done = subprocess.run(
        [sys.executable, "-c", READING_CHILD], input=batch(), capture_output=True, check=True
    )
    more_mib, headers = done.stdout.split()
    assert float(more_mib) <= most_mib
    assert headers == b"0"


@pytest.mark.parametrize("large", [False, True])
def test_a_record_has_its_headers_up_to_ten_thousand(large):
    for count in (10_000, 10_001):
        value = bytes(5 * MIB if large else 1)
        rest = b"\0\0\0\1" + varint(len(value)) + value + varint(count) + b"\0\0" * count
        (page,) = read_batches(
            in_gzip(varint(len(rest)) + rest, 1), topic="t", partition=0, position=0, aborted=()
        )
        (record,) = page.records
        assert record.value == value
        assert len(record.headers) == (count if count == 10_000 else 0)
