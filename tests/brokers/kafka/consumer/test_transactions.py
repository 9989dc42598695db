"""Transactions: aborted, committed, and those that stay open and hold up reading."""

from __future__ import annotations

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from tests.support.kafka_simulator import Cluster

pytestmark = pytest.mark.usefixtures("bytes_on_the_wire")


def test_records_that_are_not_shown_count_as_well(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    cluster.logs[0].append_aborted(b"never", b"seen")
    following = setup(cluster)
    assert following.catch_up() == [b"a"]
    assert cluster.clock.seconds() < 1
    cluster.logs[0].append(b"b")
    assert following.until(2) == [b"a", b"b"]


def test_the_same_producer_may_abort_and_commit(setup):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append_aborted(b"no", producer_id=7)
    log.append(b"yes", attributes=0x10, producer_id=7)
    log.append_marker(commit=True, producer_id=7)
    log.append_aborted(b"no", producer_id=7)
    log.append(b"plain")
    following = setup(cluster)
    assert following.catch_up() == [b"yes", b"plain"]


def test_an_open_transaction_is_waited_for(setup):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(b"a")
    log.stable = 1
    log.append(b"b", attributes=0x10, producer_id=7)
    following = setup(cluster)
    cluster.run(60)
    assert following.values == [b"a"]
    assert not following.caught_up
    log.append_marker(commit=True)
    log.stable = None
    assert following.catch_up() == [b"a", b"b"]


def begin_transaction(log, *some):
    log.stable = log.end
    log.append(*some, attributes=0x10, producer_id=7)


def end_transaction(log):
    log.append_marker(commit=True)
    log.stable = None


def test_one_that_stays_open_for_ten_seconds_is_told_once_for_all_partitions_and_when_it_is_over(setup):
    cluster = Cluster(partitions=3)
    cluster.logs[0].append(b"a")
    for number in (0, 2):
        begin_transaction(cluster.logs[number], b"b")
    following = setup(cluster)
    with capturedLogs() as events:
        cluster.run(9)
        assert following.unavailable_reason is None
        cluster.run(20)
    assert not following.caught_up
    where = "in partition 0 at offset 1, 2 at offset 0."
    assert following.unavailable_reason == f"An open transaction blocks reading, {where}"
    assert following.reasons == (f"An open transaction blocks reading the topic t, {where}",)
    (warning,) = [event for event in events if event["log_level"] is LogLevel.warn]
    assert "kafka-transactions.sh find-hanging" in formatEvent(warning)
    with capturedLogs() as events:
        for number in (0, 2):
            end_transaction(cluster.logs[number])
        following.catch_up()
        cluster.run(1)
    assert sorted(following.values) == [b"a", b"b", b"b"]
    assert following.unavailable_reason is None
    assert following.reasons == ()
    assert [formatEvent(event) for event in events] == [
        "No open transaction blocks reading the topic t any longer."
    ]


def test_one_that_stays_open_after_catching_up_is_told_as_well(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    following = setup(cluster)
    following.catch_up()
    begin_transaction(cluster.logs[0], b"b")
    cluster.run(12)
    assert following.unavailable_reason == "An open transaction blocks reading, in partition 0 at offset 1."
    end_transaction(cluster.logs[0])
    assert following.until(2) == [b"a", b"b"]
    cluster.run(1)
    assert following.unavailable_reason is None


def test_transactions_that_end_in_time_are_not_told(setup):
    cluster = Cluster()
    following = setup(cluster)
    following.catch_up()
    with capturedLogs() as events:
        for _ in range(5):
            begin_transaction(cluster.logs[0], b"x")
            cluster.run(6)
            end_transaction(cluster.logs[0])
            cluster.run(1)
    assert events == []
    assert len(following.values) == 5
