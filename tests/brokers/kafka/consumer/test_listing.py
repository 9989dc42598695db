"""Where reading a partition begins."""

from __future__ import annotations

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import succeed

from sampleapp.brokers.kafka.consumer.listing import Extent, list_extents, locate
from sampleapp.brokers.kafka.consumer.positions import Partition
from sampleapp.brokers.kafka.protocol import EARLIEST, LATEST, ListedOffset
from sampleapp.model import FromEnd, FromOffset, FromTime

SINCE_MS = 1_700_000_000_000


class Client:
    """Answers a ListOffsets request with an offset for each time that may be asked for."""

    def __init__(self, offsets, *, errors=()):
        self.offsets = offsets
        self.errors = dict(errors)

    def request(self, _node_id, request, *, timeout_s):
        ((topic, partitions),) = request.topics
        return succeed(
            [
                ListedOffset(topic, number, self.errors.get(when, 0), -1, self.offsets[when])
                for number, when in partitions
            ]
        )


async def listed(client, start):
    extents = await list_extents(client, 1, topic="t", partitions=[Partition(0, existed=True)], start=start)
    return extents[0]


@pytest_twisted.ensureDeferred
async def test_a_time_is_looked_up_by_the_broker():
    client = Client({EARLIEST: 3, LATEST: 9, SINCE_MS: 7})
    assert await listed(client, FromTime(SINCE_MS)) == Extent(error=0, earliest=3, latest=9, since=7)
    assert await listed(client, FromOffset(0)) == Extent(error=0, earliest=3, latest=9)


@pytest_twisted.ensureDeferred
async def test_an_error_of_any_of_the_answers_is_an_error():
    for when in (EARLIEST, LATEST, SINCE_MS):
        client = Client({EARLIEST: 3, LATEST: 9, SINCE_MS: 7}, errors={when: 6})
        assert (await listed(client, FromTime(SINCE_MS))).error == 6


EXTENT = Extent(error=0, earliest=3, latest=9, since=7)


@pytest.mark.parametrize(
    ("start", "extent", "expected"),
    [
        (FromOffset(5), EXTENT, 5),
        (FromOffset(0), EXTENT, 3),
        (FromOffset(99), EXTENT, 9),
        (FromEnd(0), EXTENT, 9),
        (FromEnd(2), EXTENT, 7),
        (FromEnd(99), EXTENT, 3),
        (FromTime(SINCE_MS), EXTENT, 7),
        (FromTime(SINCE_MS), Extent(error=0, earliest=3, latest=9), 9),
    ],
)
def test_reading_begins_where_it_was_asked_to_as_far_as_the_partition_has_it(start, extent, expected):
    partition = Partition(0, existed=True)
    assert locate(partition, extent, topic="t", now_s=0.0, start=start)
    assert (partition.position, partition.goal) == (expected, 9)


@given(start=st.builds(FromOffset, st.integers(0, 99)) | st.builds(FromEnd, st.integers(0, 99)))
def test_a_partition_that_came_later_is_read_from_its_first_record(start):
    partition = Partition(0, existed=False)
    assert locate(partition, EXTENT, topic="t", now_s=0.0, start=start)
    assert partition.position == 3
