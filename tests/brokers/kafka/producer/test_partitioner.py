"""Which partition a key belongs to."""

from __future__ import annotations

import aiokafka.partitioner
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.producer.partitioner import (
    HASHED_AT_ONCE,
    divided,
    hash_in_steps,
    hash_keys,
    murmur2,
    partition_for_key,
)
from tests.support.examples import examples


# From Kafka's own UtilsTest.
@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_java(key, signed):
    assert murmur2(key) == signed & 0xFFFFFFFF


@examples(500)
@given(st.binary(max_size=80))
@example(b"")
@example(b"\xff" * 255)
@example(b"\xff" * 256)
@example(b"\x80" * 259)
@example(bytes(10_001))
def test_the_hash_is_that_of_another_implementation(key):
    assert murmur2(key) == aiokafka.partitioner.murmur2(key) & 0xFFFFFFFF


@examples(300)
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.binary(max_size=80),
            # Many of one length.
            st.integers(0, 9).flatmap(lambda length: st.binary(min_size=length, max_size=length)),
            st.binary(min_size=36, max_size=36),
        ),
        max_size=60,
    )
)
@example([b"\xff" * 8] * 20 + [bytes([255 - number] * 11) for number in range(20)])
@example([bytes([number]) * 70 for number in range(20)])
@example([b"%08d" % number for number in range(17_000)])
def test_many_keys_have_the_hashes_that_each_of_them_has(keys):
    for _ in range(2):
        # The second time some of them are remembered.
        assert hash_keys(keys) == [None if key is None else murmur2(key) & 0x7FFFFFFF for key in keys]


@examples(50)
@given(st.integers(-5, 5), st.integers(0, 3), st.binary(min_size=1, max_size=99))
def test_a_key_that_is_hashed_in_steps_has_the_hash_that_it_has_in_one(more, steps, piece):
    length = max(0, steps * HASHED_AT_ONCE + more)
    key = (piece * (length // len(piece) + 1))[:length]
    found = []

    def hashing():
        found.append((yield from hash_in_steps(key)))

    count = len(list(hashing()))
    assert found == [murmur2(key) & 0x7FFFFFFF]
    assert count * HASHED_AT_ONCE < length + HASHED_AT_ONCE


@given(st.lists(st.none() | st.integers(0, 2 * HASHED_AT_ONCE)))
def test_keys_are_divided_by_their_bytes_not_by_their_number(lengths):
    keys = [None if length is None else bytes(length) for length in lengths]
    parts = list(divided(keys))
    assert [key for part in parts for key in part] == keys
    for part in parts:
        assert len(part) == 1 or sum(len(key or b"") for key in part) <= HASHED_AT_ONCE


@given(st.binary(), st.integers(1, 1000))
def test_a_key_belongs_to_one_of_the_partitions_by_its_hash_without_the_sign(key, count):
    partition = partition_for_key(key, count)
    assert 0 <= partition < count
    assert partition == (murmur2(key) & 0x7FFFFFFF) % count


def test_a_topic_without_partitions_is_rejected():
    with pytest.raises(ValueError, match="without partitions"):
        partition_for_key(b"key", 0)
