"""Reads of one partition and of many: their results, and their requests to Kafka."""

from __future__ import annotations

from uuid import UUID

import pytest

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.protocol import FetchRequest, ListOffsetsRequest
from sampleapp.errors import UnknownPartition, UnknownTopic
from sampleapp.model import EARLIEST, FromEnd, FromOffset, FromTime, GoneRecords
from tests.support.kafka_simulator import TOPIC, Cluster, values

LATEST = FromEnd(0)

pytestmark = pytest.mark.usefixtures("bytes_on_the_wire")


def values_in(result, partition=None):
    return [each.value for each in result.records if partition in (None, each.partition)]


def test_an_empty_topic_is_up_to_date_at_once(new_reader):
    result = new_reader().read()
    assert (list(result.records), result.positions, result.ends) == ([], {0: 0}, {0: 0})
    assert result.is_up_to_date
    assert result.partitions == 1


def test_pages_follow_one_another_without_a_gap(new_reader):
    cluster = Cluster(partitions=3)
    for number, log in cluster.logs.items():
        for some in range(0, 40, 4):
            log.append(*values(4, 1000 * number + some))
    reading = new_reader(cluster)
    result = reading.read(limit=7)
    found = list(result.records)
    while not result.is_up_to_date:
        assert len(result.records) == 7
        partitions = [each.partition for each in result.records]
        assert partitions == sorted(partitions)
        result = reading.read(result.positions, others=None, limit=7)
        found += result.records
    assert result.positions == {0: 40, 1: 40, 2: 40}
    for number, log in cluster.logs.items():
        assert [each.value for each in found if each.partition == number] == log.values


def test_a_page_at_known_positions_takes_one_fetch_to_each_leader(new_reader):
    cluster = Cluster(partitions=4, brokers=(1, 2))
    for log in cluster.logs.values():
        log.append(*values(5))
    reading = new_reader(cluster)
    reading.read(dict.fromkeys(range(4), 0))
    fetched = [request for _, request in cluster.asked]
    assert [type(request) for request in fetched] == [FetchRequest] * 2
    assert all(request.max_wait_ms == 0 and request.read_committed for request in fetched)
    assert len(cluster.loads) == 1
    reading.read(dict.fromkeys(range(4), 5))
    assert len(cluster.asked) == 4
    assert len(cluster.loads) == 1


@pytest.mark.parametrize("start", [EARLIEST, FromOffset(2)])
def test_a_page_from_an_offset_that_is_in_the_log_takes_one_fetch_to_each_leader(new_reader, start):
    cluster = Cluster(partitions=4, brokers=(1, 2))
    for log in cluster.logs.values():
        log.append(*values(5))
    reading = new_reader(cluster)
    for _ in range(2):
        cluster.asked.clear()
        assert len(reading.read(others=start).records) == 4 * (5 - start.offset)
        assert [type(request) for _, request in cluster.asked] == [FetchRequest] * 2
        assert len(cluster.loads) == 1
        cluster.run(2)


def test_after_retention_the_first_offset_is_asked_for_once_only(new_reader):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(*values(5))
    log.append(*values(5, 5))
    log.delete_before(5)
    reading = new_reader(cluster)
    assert values_in(reading.read()) == values(5, 5)
    asked = [type(request) for _, request in cluster.asked]
    assert asked == [FetchRequest, *[ListOffsetsRequest] * 3, FetchRequest]
    for _ in range(2):
        cluster.asked.clear()
        assert values_in(reading.read()) == values(5, 5)
        assert [type(request) for _, request in cluster.asked] == [FetchRequest]
        # With metadata that is loaded again.
        cluster.run(6)


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_log_that_begins_earlier_than_before_is_read_from_its_first_offset(new_reader, has_ids):
    cluster = Cluster()
    cluster.topic_id = cluster.topic_id if has_ids else None
    log = cluster.logs[0]
    log.append(*values(5))
    log.append(*values(5, 5))
    batches, shown = log.batches, log.shown
    log.delete_before(5)
    reading = new_reader(cluster)
    assert values_in(reading.read()) == values(5, 5)
    # Another replica, where retention has not removed them yet.
    log.start, log.batches, log.shown = 0, batches, shown
    assert values_in(reading.read()) == values(10)
    assert values_in(reading.read(others=FromOffset(2))) == values(8, 2)


def test_a_start_is_resolved_in_every_partition_also_when_the_page_is_full_before(new_reader, monkeypatch):
    monkeypatch.setattr("sampleapp.brokers.kafka.consumer.page_read._PARTITIONS_AT_ONCE", 2)
    cluster = Cluster(partitions=5, brokers=(1,))
    for log in cluster.logs.values():
        log.append(*values(3))
        log.append(*values(3, 3))
    for number in (0, 4):
        cluster.logs[number].delete_before(3)
    result = new_reader(cluster).read(limit=1)
    assert len(result.records) == 1
    assert sum(result.positions.values()) == 7
    assert result.positions[4] >= 3
    assert not result.gone


def test_a_page_without_some_partitions_takes_one_fetch_as_well(new_reader):
    cluster = Cluster(partitions=4, brokers=(1,))
    for log in cluster.logs.values():
        log.append(b"a")
    reading = new_reader(cluster)
    for _ in range(2):
        cluster.asked.clear()
        result = reading.read({0: 0, 1: None, 2: 0, 3: None})
        assert result.positions == {0: 1, 2: 1}
        assert [type(request) for _, request in cluster.asked] == [FetchRequest]
        assert len(cluster.loads) == 1
        cluster.run(2)


@pytest.mark.parametrize(
    ("start", "position"),
    [
        (EARLIEST, 3),
        (FromOffset(2), 3),
        (FromOffset(5), 5),
        (FromOffset(99), 10),
        (LATEST, 10),
        (FromEnd(4), 6),
        (FromEnd(400), 3),
        (FromTime(1_700_000_000_005), 5),
        (FromTime(0), 3),
        (FromTime(1_800_000_000_000), 10),
        (7, 7),
    ],
)
@pytest.mark.parametrize("limit", [0, 100])
def test_a_start_is_the_nearest_offset_there_is(new_reader, start, position, limit):
    cluster = Cluster()
    log = cluster.logs[0]
    for number in range(10):
        log.append(b"%d" % number, timestamp_ms=1_700_000_000_000 + number)
    log.delete_before(3)
    result = new_reader(cluster).read({0: start}, limit=limit)
    assert result.ends == {0: 10}
    assert values_in(result) == values(10 - position, position)[:limit]
    assert result.positions == {0: 10 if limit else position}
    assert result.is_up_to_date is (limit > 0 or position == 10)


def test_only_named_partitions_are_read_if_others_are_not(new_reader):
    cluster = Cluster(partitions=3)
    for log in cluster.logs.values():
        log.append(b"a")
    reading = new_reader(cluster)
    result = reading.read({1: EARLIEST}, others=None)
    assert result.positions == result.ends == {1: 1}
    assert result.partitions == 3
    result = reading.read({1: EARLIEST}, others=LATEST)
    assert result.positions == {0: 1, 1: 1, 2: 1}
    assert len(result.records) == 1
    result = reading.read({}, others=None)
    assert (list(result.records), result.positions) == ([], {})


def test_each_partition_has_its_share_of_a_page(new_reader):
    cluster = Cluster(partitions=4, brokers=(1, 2))
    for number, log in cluster.logs.items():
        log.append(*values(100 if number else 3))
    result = new_reader(cluster).read(limit=60)
    counts = [len(values_in(result, number)) for number in range(4)]
    assert counts[0] == 3
    assert sum(counts) == 60
    assert min(counts[1:]) >= 15


def test_small_pages_come_from_all_partitions_in_turn(new_reader):
    cluster = Cluster(partitions=3)
    for log in cluster.logs.values():
        log.append(*values(50))
    reading = new_reader(cluster)
    result = reading.read(limit=1)
    for _ in range(29):
        result = reading.read(result.positions, limit=1)
    assert sorted(result.positions.values()) == [10, 10, 10]


def test_a_page_ends_before_the_record_that_is_too_much(new_reader):
    cluster = Cluster()
    cluster.logs[0].append(*[b"x" * 300] * 10)
    reading = new_reader(cluster)
    result = reading.read(max_bytes=1000)
    assert len(result.records) == 3
    assert result.positions == {0: 3}
    # The first one is returned, whatever its size.
    assert len(reading.read(max_bytes=10).records) == 1


def test_more_than_one_answer_fills_a_page(new_reader):
    cluster = Cluster(partitions=2, brokers=(1,))
    for log in cluster.logs.values():
        for _ in range(40):
            log.append(b"x" * 30_000)
    result = new_reader(cluster).read(max_bytes=10**6)
    assert len(result.records) == 33
    assert all(request.max_bytes <= 4 * 2**20 for _, request in cluster.fetches)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_page_may_end_and_begin_inside_a_batch(new_reader, codec):
    cluster = Cluster()
    cluster.logs[0].append(*values(50), codec=codec)
    reading = new_reader(cluster)
    result = reading.read(limit=20)
    assert values_in(result) == values(20)
    result = reading.read(result.positions, limit=20)
    assert values_in(result) == values(20, 20)


def test_a_batch_that_is_larger_than_a_page_is_read(new_reader):
    cluster = Cluster(partitions=2, brokers=(1,))
    for log in cluster.logs.values():
        log.append(*[b"x" * 1000] * 3000)
    reading = new_reader(cluster)
    result = reading.read(limit=10_000)
    assert len(result.records) == 1048
    while not result.is_up_to_date:
        before = sum(result.positions.values())
        result = reading.read(result.positions, limit=10_000)
        assert sum(result.positions.values()) > before
    assert result.positions == {0: 3000, 1: 3000}


def test_records_that_were_deleted_are_told(new_reader):
    cluster = Cluster(partitions=2)
    for log in cluster.logs.values():
        log.append(*values(10))
        log.append(*values(10, 10))
    cluster.logs[1].delete_before(10)
    reading = new_reader(cluster)
    for limit in (0, 500):
        result = reading.read({0: 15, 1: 4}, limit=limit)
        assert result.gone == (GoneRecords(1, 4, 10),)
        assert result.positions[1] == 4
        assert not result.is_up_to_date
        assert values_in(result) == values(5, 15)[:limit]


def test_a_position_beyond_the_end_is_told_after_asking_for_a_while(new_reader):
    cluster = Cluster()
    cluster.logs[0].append(*values(10))
    reading = new_reader(cluster)
    for limit in (0, 500):
        began_s, loads = cluster.clock.seconds(), len(cluster.loads)
        result = reading.read({0: 11}, limit=limit)
        assert result.beyond == {0: 10}
        assert result.positions == {0: 11}
        assert not result.is_up_to_date
        assert 2 <= cluster.clock.seconds() - began_s < 3
        assert len(cluster.loads) - loads >= 3
    assert reading.read({0: 10}).is_up_to_date


def test_an_unknown_topic_is_rejected_quickly(new_reader):
    reading = new_reader()
    for topic in ("other", "..", "a/b", "x" * 250):
        began_s = reading.cluster.clock.seconds()
        with pytest.raises(UnknownTopic, match="does not exist"):
            reading.read(topic=topic)
        assert reading.cluster.clock.seconds() - began_s < 0.5
    assert "other" not in reading.cluster.topics


def test_a_topic_that_some_brokers_do_not_know_yet_is_read(new_reader):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    cluster.ignorant = 1
    assert values_in(new_reader(cluster).read()) == [b"a"]


def test_an_unknown_partition_is_rejected_and_one_that_was_added_is_read(new_reader):
    cluster = Cluster(partitions=2)
    reading = new_reader(cluster)
    reading.read()
    with pytest.raises(UnknownPartition, match="no partition 2, only 2"):
        reading.read({2: 0})
    cluster.add_partitions(1)
    assert reading.read({2: 0}).partitions == 3


def test_added_partitions_are_noticed_within_five_seconds(new_reader):
    cluster = Cluster()
    reading = new_reader(cluster)
    reading.read()
    cluster.add_partitions(1)[1].append(b"a")
    cluster.run(5)
    result = reading.read({0: 0})
    assert values_in(result) == [b"a"]
    assert result.partitions == 2


def test_the_id_of_the_topic_is_as_kafkas_tools_print_it(new_reader):
    cluster = Cluster()
    cluster.topic_id = UUID("7d3a0e52-5b7b-4c11-9d42-0a7f6be1c5d8")
    assert new_reader(cluster).read().topic_id == "fToOUlt7TBGdQgp_"


def test_without_ids_of_topics_there_is_none(new_reader):
    cluster = Cluster()
    cluster.topic_id = None
    assert new_reader(cluster).read().topic_id == "_"


def test_requests_name_the_epoch_of_the_leader(new_reader):
    cluster = Cluster()
    cluster.elect(2)
    new_reader(cluster).read({0: FromEnd(1)})
    requests = [request for _, request in cluster.asked]
    assert {type(each) for each in requests} == {ListOffsetsRequest, FetchRequest}
    assert all(each.leader_epochs == {(TOPIC, 0): 1} for each in requests)
