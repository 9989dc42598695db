"""Observers that are told from which offset on they get records."""

from __future__ import annotations

import pytest

from sampleapp.model import FromEnd
from sampleapp_testing import PositionRecorder
from tests.support.kafka_simulator import Cluster


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.logs[0].append(b"0", b"1", b"2")
    return cluster


def followed(setup, cluster, **options):
    following = setup(cluster, recorder=PositionRecorder, **options)
    following.catch_up()
    return following.recorder


def test_at_the_end_it_is_the_end(setup, cluster):
    told = followed(setup, cluster, start=FromEnd(0))
    assert told.begun == {number: log.end for number, log in cluster.logs.items()}


def test_with_an_open_transaction_it_is_the_last_stable_offset(setup, cluster):
    log = cluster.logs[0]
    log.stable = 1
    told = setup(cluster, recorder=PositionRecorder, start=FromEnd(0)).recorder
    cluster.until(lambda: told.begun)
    assert told.begun[0] == 1
    log.stable = None
    cluster.until(lambda: len(told.records) == 2)
    assert told.values() == [b"1", b"2"]


def test_markers_and_aborted_records_are_passed(setup, cluster):
    told = followed(setup, cluster)
    cluster.logs[0].append_aborted(b"no")
    cluster.until(lambda: told.positions[0] == cluster.logs[0].end)
    assert told.values() == [b"0", b"1", b"2"]
    assert told.begun[0] == 0


def test_records_that_are_deleted_before_they_are_read_begin_again_after_them(setup, cluster):
    told = followed(setup, cluster)
    log = cluster.logs[0]
    log.append(b"3", b"4", b"5")
    log.delete_before(5)
    cluster.until(lambda: told.begun[0] == 5)
    cluster.until(lambda: told.positions[0] == 6)
    assert told.values() == [b"0", b"1", b"2", b"5"]
