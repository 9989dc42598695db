"""The lag of a subscription."""

from __future__ import annotations

from tests.support.kafka_simulator import Cluster


def lag(following):
    return following.following.lag()


def test_it_is_not_known_before_the_partitions_are_and_then_falls_to_nothing(setup):
    cluster = Cluster(partitions=2)
    cluster.logs[0].append(*[b"%d" % number for number in range(30)])
    cluster.logs[1].append(*[b"%d" % number for number in range(12)])
    following = setup(cluster)
    assert lag(following) is None
    seen = []
    while not following.caught_up:
        cluster.run(cluster.latency_s / 2)
        seen.append(lag(following))
    known = [each for each in seen if each is not None]
    assert None in seen
    assert max(known) <= 42
    assert known == sorted(known, reverse=True)
    assert known[-1] == 0


def test_what_a_transaction_holds_up_is_left_to_be_read(setup):
    cluster = Cluster(partitions=1)
    log = cluster.logs[0]
    log.append(b"a")
    log.stable = 1
    log.append(b"b", b"c", attributes=0x10, producer_id=7)
    following = setup(cluster)
    cluster.run(5)
    assert lag(following) == 2
    log.append_marker(commit=True)
    log.stable = None
    following.until(3)
    cluster.run(1)
    assert lag(following) == 0


def test_while_no_broker_answers_it_stays_as_it_was_known(setup):
    cluster = Cluster(partitions=1, brokers=(1, 2))
    cluster.logs[0].append(b"a")
    following = setup(cluster)
    following.catch_up()
    cluster.down |= {1, 2}
    cluster.logs[0].append(b"b")
    cluster.run(5)
    assert lag(following) == 0
    cluster.down.clear()
    following.until(2)
    assert lag(following) == 0


def test_a_topic_that_does_not_exist_has_nothing_left(setup):
    cluster = Cluster(partitions=0)
    following = setup(cluster)
    cluster.run(5)
    assert lag(following) == 0
