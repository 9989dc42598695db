"""Fetching: from each partition's leader, whatever happens to the brokers."""

from __future__ import annotations

import pytest
from twisted.logger import capturedLogs

from sampleapp.brokers.kafka.consumer import delivery, fetcher
from sampleapp.brokers.kafka.consumer.partition import FollowedPartition
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import ListOffsetsRequest
from sampleapp.model import FromOffsets
from tests.support.kafka_simulator import Cluster, Fate, values


def test_a_broker_that_has_nothing_is_not_asked_more_than_ten_times_a_second(setup):
    cluster = Cluster()
    cluster.waits = False
    setup(cluster)
    cluster.run(10)
    assert 20 < len(cluster.fetches) <= 101


@pytest.mark.parametrize("fates", [[Fate.NOT_SENT], [Fate.NOT_SENT] * 3])
def test_a_broker_is_asked_one_thing_at_a_time_although_the_first_requests_fail_at_once(setup, fates):
    cluster = Cluster(partitions=3)
    for log in cluster.logs.values():
        log.append(*values(3))
    some = iter(fates)
    cluster.fates[ListOffsetsRequest] = lambda: next(some, Fate.ANSWERED)
    following = setup(cluster)
    following.catch_up()
    following.assert_each_exactly_once()


def test_a_broker_that_throttles_is_asked_again(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    cluster.throttled = 3
    assert setup(cluster).catch_up() == [b"a"]


def test_a_batch_that_is_larger_than_the_limit_is_read_in_time(setup):
    cluster = Cluster(partitions=2, brokers=(1,))
    cluster.logs[0].append(b"x" * 1_000_000)
    cluster.logs[1].append(b"y" * 1_500_000)

    def append_another(received):
        if received.partition == 0 and received.offset < 20:
            cluster.logs[0].append(b"x" * 1_000_000)

    following = setup(cluster, on_record=append_another)
    following.until(3)
    assert {each.partition for each in following.recorder.records} == {0, 1}
    following.until(22)
    following.assert_each_exactly_once()


def test_less_is_asked_for_on_a_line_that_is_too_slow(setup):
    cluster = Cluster()
    cluster.silent = {1}
    setup(cluster)
    cluster.run(1)
    cluster.silent = set()
    cluster.run(10)
    cluster.silent = {1}
    cluster.run(120)
    sizes = [request.max_bytes for _, request in cluster.fetches]
    assert max(sizes) == 16 * 1024 * 1024
    assert min(sizes) == 1024 * 1024
    cluster.silent = set()
    cluster.run(60)
    assert cluster.fetches[-1][1].max_bytes == 16 * 1024 * 1024


def test_brokers_share_the_memory_for_records(setup):
    cluster = Cluster(partitions=20, brokers=range(1, 21))
    setup(cluster).catch_up()
    cluster.fetches.clear()
    cluster.run(2)
    assert {request.max_bytes for _, request in cluster.fetches} == {1024 * 1024}


def test_no_more_is_fetched_while_much_is_not_delivered_yet(setup, monkeypatch):
    monkeypatch.setattr(fetcher, "_PARTITION_MAX_BYTES", 1000)
    monkeypatch.setattr(fetcher, "_MAX_BYTES", 10_000)
    monkeypatch.setattr(delivery, "_SLICE_RECORDS", 1)
    cluster = Cluster(partitions=100, brokers=(1,), latency_s=0)
    for log in cluster.logs.values():
        for number in range(10):
            log.append(b"%900d" % number)
    under_way, most = 0, 0

    def begin(partition, fetch_round, begin=FollowedPartition.begin_delivery):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        begin(partition, fetch_round)

    def end(partition, now_s, end=FollowedPartition.end_delivery):
        nonlocal under_way
        under_way -= 1
        end(partition, now_s)

    monkeypatch.setattr(FollowedPartition, "begin_delivery", begin)
    monkeypatch.setattr(FollowedPartition, "end_delivery", end)
    following = setup(cluster)
    following.catch_up()
    following.assert_each_exactly_once()
    # Each has a batch of nearly 1,000 bytes, and two more requests may have been sent before.
    assert 5 < most <= 3 * 11 + 1


def test_a_partition_follows_its_leader(setup):
    cluster = Cluster(partitions=3)
    following = setup(cluster)
    following.catch_up()
    for step in range(6):
        for number, log in cluster.logs.items():
            log.leader = 1 + (number + step) % 3
            log.append(b"%d" % step)
        started_s = cluster.clock.seconds()
        following.until(3 * (step + 1))
        assert cluster.clock.seconds() - started_s < 1.5
    following.assert_each_exactly_once()
    assert following.reasons == ()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_an_error_that_passes_is_survived(setup, code):
    cluster = Cluster(partitions=2)
    cluster.logs[0].append(b"a")
    cluster.logs[0].errors = [code, code]
    following = setup(cluster)
    following.catch_up()
    cluster.logs[0].append(b"b")
    cluster.logs[0].errors = [code]
    following.until(2)
    cluster.run(1)
    following.assert_each_exactly_once()
    assert following.reasons == ()


def test_one_change_of_the_lead_is_not_worth_a_line_in_the_log(setup):
    cluster = Cluster()
    following = setup(cluster)
    following.catch_up()
    with capturedLogs() as events:
        cluster.logs[0].leader = 2
        cluster.logs[0].append(b"a")
        following.until(1)
    assert events == []


def test_a_dead_broker_does_not_hold_up_the_partitions_of_others(setup):
    cluster = Cluster(partitions=3)
    following = setup(cluster)
    following.catch_up()
    cluster.down = {2}
    for log in cluster.logs.values():
        log.append(b"x")
    cluster.until(lambda: len(following.values) == 2, within_s=1)
    cluster.until(lambda: following.reasons, within_s=2)
    assert following.reasons == (
        "The topic t cannot be read from broker 2: 10.0.0.1:9092 refuses connections.",
    )
    cluster.down = set()
    following.until(3)
    cluster.until(lambda: not following.reasons, within_s=1)
    following.assert_each_exactly_once()


def test_a_broker_that_does_not_answer_is_not_waited_for_when_its_partitions_have_moved(setup):
    cluster = Cluster(partitions=2)
    following = setup(cluster)
    following.catch_up()
    cluster.silent = {1}
    cluster.logs[0].append(b"early")
    cluster.run(1)
    cluster.logs[0].leader = 2
    # Something has to make it look, within its usual interval at the latest.
    cluster.until(lambda: following.values == [b"early"], within_s=10.5)
    cluster.logs[0].append(b"late")
    # The late answer of the first broker has records that were read already.
    cluster.logs[0].leader = 1
    cluster.silent = set()
    following.until(2)
    cluster.run(15)
    following.assert_each_exactly_once()


def test_an_answer_that_comes_after_the_partition_has_moved_is_not_told_again(setup):
    cluster = Cluster(partitions=2, brokers=(1, 2))
    following = setup(cluster)
    following.catch_up()
    cluster.slow[1] = 3.0
    cluster.logs[0].append(b"once")
    cluster.run(1)
    cluster.logs[0].leader = 2
    cluster.logs[1].errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    following.until(1)
    cluster.run(10)
    following.assert_each_exactly_once()


def test_a_partition_that_moves_while_it_is_delivered_is_not_read_by_two(setup):
    cluster = Cluster(partitions=2, brokers=(1, 2))
    cluster.logs[0].append(*values(1000))

    def move(received):
        cluster.clock.rightNow += 0.001
        if received.offset == 100:
            cluster.logs[0].leader = 2
            cluster.logs[1].errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    following = setup(cluster, on_record=move)
    following.until(1000)
    cluster.logs[0].append(b"live")
    following.until(1001)
    cluster.run(1)
    following.assert_each_exactly_once()
    assert {
        offset
        for node_id, request in cluster.fetches
        for _, partitions in request.topics
        for number, offset in partitions
        if (node_id, number) == (2, 0)
    } == {1000, 1001}


def test_it_does_not_wait_more_than_five_seconds_nor_try_all_the_time(setup):
    cluster = Cluster()
    setup(cluster)
    cluster.run(1)
    cluster.asked.clear()
    cluster.down = {1}
    cluster.run(60)
    assert 12 <= len(cluster.asked) <= 20


def test_a_position_that_only_one_broker_did_not_have_is_kept(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    cluster.logs[0].errors = [ErrorCode.OFFSET_OUT_OF_RANGE] * 5
    following = setup(cluster)
    cluster.run(1)
    assert 2 < len(cluster.fetches) < 6
    following.catch_up()
    following.assert_each_exactly_once()


def test_each_partition_begins_at_its_own_offset_and_one_that_is_skipped_is_not_read(setup):
    cluster = Cluster(partitions=4)
    for log in cluster.logs.values():
        log.append(*values(3))
    following = setup(cluster, start=FromOffsets({0: 1, 1: 9}, frozenset({2})))
    following.catch_up()
    read = sorted((each.partition, each.offset) for each in following.records)
    assert read == [(0, 1), (0, 2), (3, 0), (3, 1), (3, 2)]
