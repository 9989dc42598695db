"""Reads of topics with transactions: only committed records, and what an open transaction holds back."""

from __future__ import annotations

import pytest

from sampleapp.model import FromEnd, FromOffset, FromTime
from tests.support.kafka_simulator import Cluster, values


def values_of(result):
    return [each.value for each in result.records]


def test_aborted_records_and_markers_are_passed(new_reader):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(b"a")
    log.append_aborted(b"never", b"seen")
    log.append(b"yes", attributes=0x10, producer_id=7)
    log.append_marker(commit=True)
    log.append_aborted(b"no")
    result = new_reader(cluster).read()
    assert values_of(result) == [b"a", b"yes"]
    assert result.positions == {0: log.end}
    assert result.is_up_to_date
    assert not result.held


@pytest.mark.parametrize("position", range(5))
def test_a_page_that_begins_in_an_aborted_transaction_shows_nothing_of_it(new_reader, position):
    cluster = Cluster()
    cluster.logs[0].append_aborted(b"never", b"seen", b"at all")
    cluster.logs[0].append(b"a")
    assert values_of(new_reader(cluster).read({0: position})) == [b"a"]


def test_pages_of_any_size_show_the_same(new_reader):
    cluster = Cluster(partitions=2, brokers=(1,))
    for log in cluster.logs.values():
        for number in range(6):
            log.append(*values(3, 10 * number), attributes=0x10, producer_id=8)
            log.append_aborted(b"no", b"no")
            log.append_marker(commit=True, producer_id=8)
    reading = new_reader(cluster)
    for limit in (1, 2, 4, 100):
        result = reading.read(limit=limit)
        found = list(result.records)
        while not result.is_up_to_date:
            result = reading.read(result.positions, limit=limit)
            found += result.records
        for number, log in cluster.logs.items():
            assert [each.value for each in found if each.partition == number] == log.values


def test_what_an_open_transaction_holds_back_is_told(new_reader):
    cluster = Cluster(partitions=2)
    log = cluster.logs[0]
    log.append(b"a", timestamp_ms=1000)
    log.stable = 1
    log.append(b"b", attributes=0x10, producer_id=7, timestamp_ms=2000)
    reading = new_reader(cluster)
    result = reading.read()
    assert values_of(result) == [b"a"]
    assert result.positions == result.ends == {0: 1, 1: 0}
    assert result.held == {0}
    # It is up to date: there is nothing more that can be read.
    assert result.is_up_to_date
    for start in (FromEnd(0), FromTime(2000), FromOffset(2), FromOffset(9)):
        for limit in (0, 500):
            held = reading.read({0: start}, others=None, limit=limit)
            assert (held.positions, held.ends, held.held) == ({0: 1}, {0: 1}, {0})
    log.append_marker(commit=True)
    log.stable = None
    result = reading.read(result.positions)
    assert values_of(result) == [b"b"]
    assert result.positions == {0: 3, 1: 0}
    assert not result.held


def test_a_long_stretch_of_aborted_records_is_passed_in_one_read(new_reader):
    cluster = Cluster()
    for _ in range(50):
        cluster.logs[0].append_aborted(*[b"x" * 10_000] * 10)
    cluster.logs[0].append(b"a")
    result = new_reader(cluster).read(max_bytes=1000)
    assert values_of(result) == [b"a"]
    assert result.is_up_to_date
