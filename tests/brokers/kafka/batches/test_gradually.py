"""Batches decoded gradually: in short steps, with little memory, and no further than is asked for."""

from __future__ import annotations

import functools
import time
import tracemalloc
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.batches import Codec, TooLargeBatch, encode_batch, read_gradually
from sampleapp.model import ConsumerRecord
from tests.brokers.kafka.batches.encoders import decode_gradually, each_codec, record
from tests.support.examples import examples

MIB = 1024 * 1024


def gradually(data, **options):
    return read_gradually(data, topic="t", partition=3, aborted=(), **{"position": 0} | options)


@functools.cache
def large_batch(codec, *, count=30, size=200_000):
    return encode_batch([record(b"%03d" % number * (size // 3)) for number in range(count)], codec=codec)


@each_codec
@pytest.mark.parametrize("position", [0, 29, 30])
def test_a_large_batch_is_read_from_any_position(codec, position):
    records, next_offset, is_broken = decode_gradually(large_batch(codec), position=position)
    assert [each.offset for each in records] == list(range(position, 30))
    assert all(each.value == b"%03d" % each.offset * 66_666 for each in records)
    assert (next_offset, is_broken) == (30, False)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_of_a_large_batch_only_a_part_is_in_memory(codec):
    data = large_batch(codec, count=120)
    tracemalloc.start()
    try:
        for each in gradually(data):
            del each
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Of 24 MB; 4 MiB are kept until it is known that the batch is larger.
    assert peak < 10 * MIB


def steps_of(generator):
    """How many seconds of CPU each step took."""
    steps, before_s = [], time.thread_time()
    for _ in generator:
        steps.append(time.thread_time() - before_s)
        before_s = time.thread_time()
    return steps


def are_short(steps):
    """Whether none takes a tenth of all, but for a few that are disturbed, as by garbage collection."""
    return sorted(steps)[-5] < sum(steps) / 10


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_each_step_is_short(codec):
    data = large_batch(codec, count=120)
    assert are_short(steps_of(gradually(data)))


def test_nothing_is_decoded_before_it_is_asked_for():
    data = encode_batch([record(b"a")] * 5, codec=Codec.NONE) + b"\0" * 30
    found = islice((each for each in gradually(data) if isinstance(each, ConsumerRecord)), 2)
    assert [each.offset for each in found] == [0, 1]


@pytest.mark.parametrize("limit", [1000, 5 * MIB])
@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_a_batch_beyond_the_limit_is_told_after_the_records_within_it(codec, limit):
    *records, too_large = [
        each for each in gradually(large_batch(codec), max_batch_bytes=limit) if each is not None
    ]
    assert too_large == TooLargeBatch(30)
    assert [each.offset for each in records] == list(range(len(records)))
    assert len(records) <= limit // 200_000


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_that_are_not_wanted_are_passed_in_short_steps(codec):
    data = encode_batch([record(b"")] * 300_000, codec=codec)
    steps = steps_of(gradually(data, position=299_999))
    assert len(steps) > 100
    assert are_short(steps)


@examples(20)
@given(
    sizes=st.lists(st.integers(0, 3000) | st.sampled_from([300_000, 1_000_000]), min_size=1, max_size=40),
    codec=st.sampled_from(list(Codec)),
    cut=st.integers(1, 400),
)
def test_records_of_any_sizes_are_read_as_they_were_written(monkeypatch_limit, sizes, codec, cut):
    sent = [record(bytes([number % 256]) * size) for number, size in enumerate(sizes)]
    data = encode_batch(sent, codec=codec)
    records, _, is_broken = decode_gradually(data)
    assert [each.value for each in records] == [each.value for each in sent]
    assert not is_broken
    # The checksum tells that it is damaged.
    damaged = data[:-cut] + bytes(cut)
    assert damaged == data or decode_gradually(damaged) == ([], 0, True)


@pytest.fixture(scope="module")
def monkeypatch_limit():
    """Have batches of more than 20 kB count as large."""
    patch = pytest.MonkeyPatch()
    patch.setattr("sampleapp.brokers.kafka.batches.record_decoding._MAX_IN_C_BYTES", 20_000)
    yield
    patch.undo()
