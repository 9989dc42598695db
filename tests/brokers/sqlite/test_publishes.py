"""Pending publishes, until each record has an outcome."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sampleapp.brokers.sqlite.writer import PublishMany, weight
from sampleapp.model import RecordMetadata
from tests.support.brokers import record

SIZES = st.sampled_from([0, 10, 100_000, 300_000])


@given(st.lists(SIZES, min_size=1, max_size=8), st.integers(1, 150), st.integers(0, 20), st.randoms())
def test_each_record_is_taken_once_in_order_and_its_outcome_is_told_at_its_place(
    sizes, times, before, random
):
    values = [bytes(size) for size in sizes]
    records = [record("t", each) for each in values * times]
    publish = PublishMany(records)
    while publish.weighed < len(records):
        publish.weigh(100)
    slices = []
    while not publish.is_taken:
        if len(slices) == before:
            first, count, size = publish.left()
            slices.append((first, records[first : first + count], size))
        else:
            slices.append(publish.take())
    assert [first for first, _, _ in slices] == [
        sum(len(s[1]) for s in slices[:n]) for n in range(len(slices))
    ]
    assert [each for _, some, _ in slices for each in some] == records
    assert [size for _, _, size in slices] == [sum(map(weight, some)) for _, some, _ in slices]
    assert publish.weight_bytes == sum(size for _, _, size in slices)
    random.shuffle(slices)
    for first, some, _ in slices:
        assert not publish.result.called
        numbers = range(first, first + len(some))
        publish.settle(first, [RecordMetadata(topic="t", partition=0, offset=n) for n in numbers])
    assert [each.offset for each in publish.result.result] == [*range(len(records))]


@given(st.lists(SIZES, min_size=1, max_size=300))
def test_a_slice_is_bounded_and_never_empty(sizes):
    publish = PublishMany([record("t", bytes(size)) for size in sizes])
    while not publish.is_taken:
        _, some, _ = publish.take()
        assert 1 <= len(some) <= 100
        assert sum(map(weight, some[:-1])) < 256 * 1024


def test_few_records_are_weighed_at_once_where_they_have_many_headers():
    headers = tuple((f"h{n}", b"") for n in range(1000))
    publish = PublishMany([replace(record("t"), headers=headers)] * 900)
    weighed = []
    while publish.weighed < 900:
        before = publish.weighed
        publish.weigh(2000)
        weighed.append(publish.weighed - before)
    assert max(weighed) <= 100
    assert publish.weight_bytes == 900 * weight(publish.records[0])
