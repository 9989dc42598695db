"""Delivering records: in short turns of the reactor, to observers that may raise, stop or take their time."""

from __future__ import annotations

from collections import Counter

from sampleapp.brokers.kafka.batches import Codec, encode_batch
from sampleapp_testing import BatchRecorder, record
from tests.support.kafka_simulator import Cluster, values


def test_a_long_replay_lets_other_work_run(setup):
    cluster = Cluster()
    for _ in range(40):
        cluster.logs[0].append(*values(100))
    seen = []
    setup(cluster, on_record=lambda _: seen.append(cluster.clock.turns)).catch_up()
    assert len(seen) == 4000
    assert max(Counter(seen).values()) == 500


def test_a_long_replay_to_an_observer_of_batches_lets_other_work_run(setup):
    cluster = Cluster()
    for _ in range(100):
        cluster.logs[0].append(*values(100))
    seen = Counter()
    following = setup(
        cluster,
        recorder=BatchRecorder,
        on_batch=lambda records: seen.update({cluster.clock.turns: len(records)}),
    )
    following.catch_up()
    following.assert_each_exactly_once()
    assert sum(seen.values()) == 10_000
    assert 500 < max(seen.values()) <= 2250
    assert max(following.recorder.batches) <= 250


def test_an_observer_of_batches_that_takes_its_time_lets_other_work_run(setup):
    cluster = Cluster()
    cluster.logs[0].append(*values(2000))
    seen = []
    take = cluster.take(0.003)
    setup(
        cluster, recorder=BatchRecorder, on_batch=lambda _: take(seen.append(cluster.clock.turns))
    ).catch_up()
    assert len(seen) == 8
    assert max(Counter(seen).values()) == 2


def test_records_with_many_headers_come_in_smaller_batches(setup):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(*values(100))
    ((first, last, _),) = log.batches
    headers = tuple(("name", b"") for _ in range(50))
    records = [record("t", value, headers=headers) for value in values(100)]
    log.batches[0] = first, last, encode_batch(records, codec=Codec.NONE)
    following = setup(cluster, recorder=BatchRecorder)
    assert following.catch_up() == values(100)
    assert set(following.recorder.batches) == {5}


def test_an_observer_of_batches_that_stops_is_told_nothing_more(setup):
    cluster = Cluster()
    cluster.logs[0].append(*values(600))
    stops = []
    following = setup(
        cluster, recorder=BatchRecorder, on_batch=lambda _: stops.append(following.following.stop())
    )
    cluster.run(5)
    assert following.recorder.batches == [250]
    assert not following.caught_up
    assert [following.result_of(each) for each in stops] == [None]


def test_an_observer_that_takes_its_time_lets_other_work_run(setup):
    cluster = Cluster()
    cluster.logs[0].append(*values(50))
    seen = []

    take = cluster.take(0.001)
    setup(cluster, on_record=lambda _: take(seen.append(cluster.clock.turns))).catch_up()
    assert max(Counter(seen).values()) <= 6


def test_nothing_is_fetched_while_what_was_fetched_is_delivered(setup):
    cluster = Cluster()
    cluster.logs[0].append(*values(2000))
    seen = []
    following = setup(cluster, on_record=lambda _: seen.append(len(cluster.fetches)))
    following.catch_up()
    assert set(seen) == {1}


def test_one_that_raises_is_logged_and_told_of_the_next_record(setup, no_failure_is_lost):
    def raise_(*_):
        raise ZeroDivisionError("on purpose")

    cluster = Cluster()
    cluster.logs[0].append(b"a", b"b")
    following = setup(cluster, on_record=raise_, on_caught_up=raise_)
    following.catch_up()
    cluster.logs[0].append(b"c")
    assert following.until(3) == [b"a", b"b", b"c"]
    assert following.recorder.caught_up_at == [2]
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError] * 4
    no_failure_is_lost.clear()


def test_one_may_stop_at_a_record(setup):
    cluster = Cluster(partitions=3)
    for log in cluster.logs.values():
        log.append(b"a", b"b")
    stops = []
    following = setup(cluster, on_record=lambda _: stops.append(following.following.stop()))
    cluster.run(5)
    assert following.values == [b"a"]
    assert not following.caught_up
    assert [following.result_of(each) for each in stops] == [None]
    assert cluster.clock.getDelayedCalls() == []


def test_one_may_stop_when_it_has_caught_up(setup):
    cluster = Cluster(partitions=3)
    stops = []
    following = setup(cluster, on_caught_up=lambda: stops.append(following.following.stop()))
    cluster.run(5)
    assert following.recorder.caught_up_at == [0]
    cluster.logs[0].append(b"late")
    cluster.run(5)
    assert following.values == []
    assert [following.result_of(each) for each in stops] == [None]
    assert cluster.clock.getDelayedCalls() == []
