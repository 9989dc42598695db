"""Starting at an offset, at the end, or at a time."""

from __future__ import annotations

import pytest

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import EARLIEST, LATEST, ListOffsetsRequest
from sampleapp.model import FromEnd, FromOffset, FromTime
from tests.support.kafka_simulator import Cluster

SINCE_MS = 1_700_000_000_000

pytestmark = pytest.mark.usefixtures("bytes_on_the_wire")


def cluster_with_a_past():
    cluster = Cluster()
    cluster.logs[0].append(b"0", b"1", timestamp_ms=SINCE_MS - 1)
    cluster.logs[0].append(b"2", timestamp_ms=SINCE_MS)
    cluster.logs[0].append(b"3", timestamp_ms=SINCE_MS + 5)
    return cluster


def times_asked_for(cluster):
    return [
        which
        for _, request in cluster.asked
        if isinstance(request, ListOffsetsRequest)
        for _, partitions in request.topics
        for _, which in partitions
    ]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (FromTime(SINCE_MS), [b"2", b"3"]),
        (FromTime(SINCE_MS + 1), [b"3"]),
        (FromTime(SINCE_MS + 6), []),
        (FromOffset(1), [b"1", b"2", b"3"]),
        (FromEnd(1), [b"3"]),
    ],
)
def test_reading_begins_with_the_record_that_was_asked_for(setup, start, expected):
    following = setup(cluster_with_a_past(), start=start)
    assert following.catch_up() == expected
    following.cluster.logs[0].append(b"live", timestamp_ms=SINCE_MS - 9)
    assert following.until(len(expected) + 1) == [*expected, b"live"]


def test_a_time_is_looked_up_by_the_broker(setup):
    cluster = cluster_with_a_past()
    setup(cluster, start=FromTime(SINCE_MS)).catch_up()
    assert times_asked_for(cluster) == [EARLIEST, LATEST, LATEST, SINCE_MS]


def test_no_time_is_looked_up_for_another_beginning(setup):
    cluster = cluster_with_a_past()
    setup(cluster, start=FromOffset(0)).catch_up()
    assert times_asked_for(cluster) == [EARLIEST, LATEST, LATEST]


@pytest.mark.parametrize("rejected", [EARLIEST, LATEST, SINCE_MS])
def test_an_error_in_any_answer_about_the_offsets_is_an_error(setup, rejected):
    cluster = cluster_with_a_past()
    # Both ends are asked for: that of the log, and that of committed records.
    times = 2 if rejected == LATEST else 1
    codes = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR
    cluster.logs[0].unlisted[rejected] = [code for code in codes for _ in range(times)]
    following = setup(cluster, start=FromTime(SINCE_MS))
    cluster.until(lambda: following.unavailable_reason is not None)
    assert following.unavailable_reason == "Partition 0 cannot be read: Kafka answers UNKNOWN_SERVER_ERROR."
    assert following.catch_up() == [b"2", b"3"]
