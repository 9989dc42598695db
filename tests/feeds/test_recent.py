"""The last records of a feed: no more than fit, and those of a partition from an exact offset on."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from sampleapp.feeds.feed import Recent
from sampleapp.model import ConsumerRecord

ADDED = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 200]), st.sampled_from([0, 100, 60_000, 300_000])),
    max_size=12,
)


def records(partition, first, count, size):
    part = b"x" * (size // 3)
    return [
        ConsumerRecord(
            topic="t",
            partition=partition,
            offset=offset,
            timestamp_ms=0,
            key=part,
            value=part,
            headers=(("name", part),),
        )
        for offset in range(first, first + count)
    ]


@given(added=ADDED, gap=st.integers(1, 3))
def test_the_last_records_are_kept_as_far_as_they_fit_and_each_partition_from_its_first_one_on(added, gap):
    recent, all_of, ends = Recent(), [], defaultdict(lambda: 5)
    for partition, count, size in added:
        some = records(partition, ends[partition], count, size)
        # Offsets have gaps, as after compaction.
        ends[partition] += count + gap
        recent.add(some)
        all_of += some
    kept = list(recent.records)
    assert kept == all_of[len(all_of) - len(kept) :]
    size_of_kept = sum(map(size_of, kept))
    assert len(kept) <= 500
    assert size_of_kept <= 256 * 1024
    dropped = all_of[: len(all_of) - len(kept)]
    if dropped:
        assert len(kept) == 500 or size_of_kept + size_of(dropped[-1]) > 256 * 1024
    for partition in ends:
        of_it = [each.offset for each in dropped if each.partition == partition]
        first = of_it[-1] + 1 if of_it else 5
        assert recent.begins_at(partition, ends[partition]) == first


def test_what_is_missing_stays_missing_when_older_records_are_dropped():
    recent = Recent()
    recent.add(records(0, 0, 3, 0))
    recent.begin_at(0, 100)
    recent.add(records(1, 0, 500, 0))
    assert recent.begins_at(0, 200) == 100


def size_of(record):
    return 400 + len(record.key) + len(record.value) + len(record.headers[0][1])
