"""The first position in a partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.consumer.offsets import Extent
from sampleapp.brokers.kafka.consumer.partition import FollowedPartition, Found, PartitionEvent
from sampleapp.model import FromEnd, FromOffset, FromTime

SINCE_MS = 1_700_000_000_000
EXTENT = Extent(error=0, leader_epoch=-1, earliest=3, latest=9, stable=9, since=7)


@pytest.mark.parametrize(
    ("start", "extent", "expected"),
    [
        (FromOffset(5), EXTENT, 5),
        (FromOffset(0), EXTENT, 3),
        (FromOffset(99), EXTENT, 9),
        (FromEnd(0), EXTENT, 9),
        (FromEnd(2), EXTENT, 7),
        (FromEnd(99), EXTENT, 3),
        (FromEnd(0), Extent(error=0, leader_epoch=-1, earliest=3, latest=9, stable=6), 6),
        (FromEnd(2), Extent(error=0, leader_epoch=-1, earliest=3, latest=9, stable=6), 4),
        (FromTime(SINCE_MS), EXTENT, 7),
        (FromTime(SINCE_MS), Extent(error=0, leader_epoch=-1, earliest=3, latest=9, stable=9), 9),
    ],
)
def test_reading_begins_where_it_was_asked_to_as_far_as_the_partition_has_it(start, extent, expected):
    partition = FollowedPartition(0, follower=None, existed=True)
    partition.handle(PartitionEvent.ASKED)
    assert partition.locate(extent, now_s=0.0, start=start) is Found.IN_THE_LOG
    assert partition.position == expected
    assert partition.is_awaited(0.0) is (expected < 9)


@given(start=st.builds(FromOffset, st.integers(0, 99)) | st.builds(FromEnd, st.integers(0, 99)))
def test_a_partition_that_came_later_is_read_from_its_first_record(start):
    partition = FollowedPartition(0, follower=None, existed=False)
    partition.handle(PartitionEvent.ASKED)
    assert partition.locate(EXTENT, now_s=0.0, start=start) is Found.IN_THE_LOG
    assert partition.position == 3
