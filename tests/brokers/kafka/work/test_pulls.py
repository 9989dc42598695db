"""Pulls that wait for messages in Kafka."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import ShareFetchRequest
from sampleapp.errors import BrokerUnavailable, TooManyLeases, TopicNotAuthorized, UnknownTopic
from sampleapp.model import ALL
from tests.brokers.kafka.work.setup import GROUP, Instance, attempts, new_cluster, offsets
from tests.support.kafka_simulator import Fate, values


@pytest.fixture
def cluster():
    cluster = new_cluster()
    cluster.logs[0].append(*values(1))
    return cluster


@pytest.fixture
def one(cluster):
    """An instance whose group has nothing to do."""
    instance = Instance(cluster)
    instance.acknowledge(instance.pull().token)
    return instance


@pytest.fixture(autouse=True)
def nothing_is_left(cluster):
    yield
    cluster.run(100)
    assert cluster.share_groups.sessions == {}


def fetches(cluster):
    return [each for _, each in cluster.asked if isinstance(each, ShareFetchRequest)]


def test_a_pull_waits_for_a_message(cluster, one):
    waiting = one.begin_pull(5, wait_s=20)
    cluster.run(10)
    assert not waiting.called
    cluster.logs[0].append(*values(3))
    assert offsets(one.result(waiting, within_s=0.1)) == [1, 2, 3]


def test_a_pull_ends_after_its_time(cluster, one):
    waiting = [one.begin_pull(wait_s=each) for each in (0.5, 3)]
    cluster.run(0.51)
    assert [each.called for each in waiting] == [True, False]
    cluster.run(2.5)
    assert [one.result(each) for each in waiting] == [None, None]


def test_pulls_that_wait_have_one_fetch_for_all_of_them(cluster, one):
    waiting = [one.begin_pull(wait_s=20) for _ in range(30)]
    cluster.run(5)
    assert len(cluster.share_groups.sessions) == 1
    before = len(fetches(cluster))
    cluster.run(5)
    assert len(fetches(cluster)) - before <= 6
    cluster.logs[0].append(*values(30))
    cluster.run(1)
    leases = [one.result(each) for each in waiting]
    assert sorted(offset for lease in leases for offset in offsets(lease)) == [*range(1, 31)]
    assert offsets(leases[0]) == [1]


def test_pulls_that_wait_in_many_groups_leave_room_for_others(cluster):
    one = Instance(cluster, most_leases=4)
    groups = [f"group-{each}" for each in range(5)]
    for each in groups:
        one.acknowledge(one.pull(group=each).token, group=each)
    waiting = [one.begin_pull(wait_s=30, group=each) for each in groups[1:]]
    for _ in range(20):
        cluster.run(0.1)
        assert one.pull(group=groups[0]) is None
    cluster.logs[0].append(b"next")
    assert [offsets(one.result(each, within_s=2)) for each in waiting] == [[1]] * 4
    assert isinstance(one.pull(group=groups[0]), TooManyLeases)


def test_pulls_that_wait_find_many_messages_side_by_side(cluster, one):
    waiting = [one.begin_pull(wait_s=60) for _ in range(16)]
    cluster.run(5)
    cluster.latency_s = 0.1
    cluster.logs[0].append(*values(16))
    # One after the other would take 1.6 seconds.
    cluster.run(1.0)
    assert sum(each.called for each in waiting) == 16


def test_a_pull_that_is_cancelled_takes_no_message_from_others(cluster, one):
    cancelled, waiting = (one.begin_pull(wait_s=20) for _ in range(2))
    cluster.run(3)
    cancelled.cancel()
    assert isinstance(one.result(cancelled), CancelledError)
    cluster.logs[0].append(b"next")
    lease = one.result(waiting)
    assert (offsets(lease), attempts(lease)) == ([1], [1])


def test_the_messages_of_a_pull_that_is_cancelled_at_once_are_free(cluster, one):
    cluster.logs[0].append(*values(3))
    cancelled = one.begin_pull(3)
    cancelled.addErrback(lambda _: None)
    cancelled.cancel()
    cluster.run(1)
    assert cluster.share_groups.held(GROUP) == []
    assert offsets(one.pull(3)) == [1, 2, 3]


def test_pulls_whose_callers_have_gone_take_one_attempt_at_most(cluster, one):
    cluster.configs[4, "1"] = {"group.share.delivery.count.limit": "5"}
    pulls = [one.begin_pull() for _ in range(5)]
    cluster.run(0.1)
    for each in pulls:
        each.addErrback(lambda _: None)
        each.cancel()
    cluster.run(0.1)
    cluster.logs[0].append(b"next")
    cluster.run(3)
    assert attempts(one.pull()) == [2]


def test_pulls_that_find_nothing_at_once_leave_room_for_other_groups():
    cluster = new_cluster(3, brokers=(1, 2, 3))
    one = Instance(cluster, most_leases=20)
    for group in ("busy", "idle"):
        assert one.pull(group=group) is None
    pulls = []
    for _ in range(100):
        pulls.append(one.begin_pull(group="idle"))
        cluster.run(0.02)
        assert len(cluster.share_groups.sessions) <= 6
    assert one.pull(group="busy") is None
    assert [one.result(each) for each in pulls] == [None] * 100


@pytest.mark.parametrize("wait_s", [0, 5])
def test_messages_of_nodes_that_have_forgotten_the_group_lose_no_attempt(wait_s):
    cluster = new_cluster(3, brokers=(1, 2, 3))
    for number, log in cluster.logs.items():
        log.leader = number + 1
    cluster.share_groups.load_s = 0.02
    one = Instance(cluster)
    assert one.pull(wait_s=5) is None
    for log in cluster.logs.values():
        log.append(*values(10))
    given = []
    for _ in range(3):
        # In this time, the connections of sessions are closed.
        cluster.run(130)
        lease = one.pull(10, wait_s=wait_s)
        one.acknowledge(lease.token)
        given += attempts(lease)
    assert given == [1] * 30


def test_a_pull_without_a_wait_finds_messages_however_slowly_a_node_answers(cluster, one):
    cluster.share_groups.load_s = 0.02
    cluster.latency_s = 0.2
    cluster.run(130)
    cluster.logs[0].append(b"next")
    assert attempts(one.pull()) == [1]


def test_a_message_that_came_for_nobody_is_given_to_the_next_pull_each_time(cluster, one):
    def leave_a_message():
        gone = one.begin_pull(wait_s=20)
        gone.addErrback(lambda _: None)
        cluster.run(0.05)
        gone.cancel()
        cluster.logs[0].append(b"next")
        cluster.run(0.05)

    leases = []
    # The first two are given before their second is over; the third comes in between.
    for pause_s in (0.3, 0.7, 0.4):
        leave_a_message()
        if len(leases) == 2:
            cluster.run(0.4)
        leases.append(one.pull())
        cluster.run(pause_s)
    assert [(offsets(each), attempts(each)) for each in leases] == [([1], [1]), ([2], [1]), ([3], [1])]


def test_a_fetch_that_waits_does_not_outlast_the_pulls(cluster, one):
    one.result(one.begin_pull(wait_s=2.3))
    cluster.run(0.2)
    assert cluster.share_groups.sessions == {}
    cluster.logs[0].append(b"next")
    assert attempts(one.pull()) == [1]


@pytest.fixture
def two_nodes(cluster):
    """An instance that has read both partitions, each led by another node."""
    cluster.brokers = (1, 2)
    cluster.add_partitions(1)
    cluster.logs[1].append(b"first")
    instance = Instance(cluster)
    for _ in range(2):
        instance.acknowledge(instance.pull(5).token)
    return instance


def test_a_message_that_comes_to_another_node_after_a_pull_has_ended_loses_no_attempt(cluster, two_nodes):
    waiting = two_nodes.begin_pull(wait_s=20)
    cluster.run(3.1)
    cluster.logs[0].append(b"for this pull")
    two_nodes.acknowledge(two_nodes.result(waiting, within_s=0.2).token)
    cluster.logs[1].append(b"for the next one")
    cluster.run(0.5)
    assert attempts(two_nodes.pull()) == [1]


def test_a_message_that_no_pull_wants_is_free_for_other_instances_after_a_second(cluster, two_nodes):
    waiting = two_nodes.begin_pull(wait_s=20)
    cluster.run(3.1)
    cluster.logs[0].append(b"for this pull")
    two_nodes.acknowledge(two_nodes.result(waiting, within_s=0.2).token)
    cluster.logs[1].append(b"for another instance")
    cluster.run(0.5)
    assert attempts(Instance(cluster).pull(wait_s=1.2)) == [2]


@pytest.fixture
def unclaimed(cluster):
    """Two instances; the second one has got a message in its last attempt that no pull wants."""
    cluster.brokers = (1, 2)
    cluster.add_partitions(1)
    cluster.share_groups.attempts = 2
    for node_id in ("1", "2"):
        cluster.configs[4, node_id] = {"group.share.delivery.count.limit": "2"}
    first, second = Instance(cluster), Instance(cluster)
    first.acknowledge(first.pull(5).token)
    cluster.logs[1].append(b"for nobody")
    lease = first.pull()
    assert (offsets(lease), attempts(lease)) == ([0], [1])
    waiting = second.begin_pull(wait_s=20)
    cluster.run(3.3)
    cluster.logs[0].append(b"for this pull")
    second.acknowledge(second.result(waiting, within_s=0.2).token)
    first.acknowledge(lease.token, release=ALL)
    cluster.run(0.5)
    return first, second


def test_a_message_in_its_last_attempt_that_no_pull_wants_waits_for_half_its_lease(cluster, unclaimed):
    first, second = unclaimed
    cluster.run(13)
    assert first.pull() is None
    assert attempts(second.pull()) == [2]
    assert (first.work.given_up, second.work.given_up) == (0, 0)


def test_a_message_that_no_pull_has_wanted_in_its_last_attempt_is_given_up_and_counted(cluster, unclaimed):
    first, second = unclaimed
    cluster.run(15)
    assert second.pull() is None
    assert (first.work.given_up, second.work.given_up) == (0, 1)


def test_an_instance_that_stops_releases_what_no_pull_wants_and_leaves_no_timer(cluster, unclaimed):
    first, second = unclaimed
    first.stop()
    second.stop()
    assert second.work.given_up == 1
    assert cluster.clock.getDelayedCalls() == []


def test_messages_that_no_pull_has_got_are_not_given_to_one_that_wants_fewer(cluster, two_nodes):
    waiting = two_nodes.begin_pull(5, wait_s=20)
    cluster.run(3.1)
    cluster.logs[0].append(b"for this pull")
    two_nodes.acknowledge(two_nodes.result(waiting, within_s=0.2).token)
    cluster.logs[1].append(*values(3))
    cluster.run(0.5)
    few = two_nodes.begin_pull(1)
    assert attempts(two_nodes.pull(3)) == [1, 1, 1]
    assert two_nodes.result(few) is None


def test_a_pull_gets_no_more_than_it_has_asked_for_when_the_one_before_it_has_gone(cluster, one):
    many, few = one.begin_pull(5, wait_s=20), one.begin_pull(1, wait_s=20)
    cluster.run(3.05)
    many.addErrback(lambda _: None)
    many.cancel()
    cluster.logs[0].append(*values(4))
    lease = one.result(few)
    assert offsets(lease) == [1]
    assert offsets(one.pull(5)) == [2, 3, 4]


def test_pulls_wait_for_a_release_and_for_the_end_of_a_lease(cluster, one):
    cluster.logs[0].append(b"next")
    lease = one.pull()
    waiting = one.begin_pull(wait_s=60)
    cluster.run(2)
    one.acknowledge(lease.token, release=ALL)
    assert attempts(one.result(waiting, within_s=0.2)) == [2]
    assert attempts(one.result(one.begin_pull(wait_s=60), within_s=40)) == [3]


def test_the_nodes_take_turns(cluster):
    cluster.brokers = (1, 2, 3)
    cluster.add_partitions(2)
    for log in cluster.logs.values():
        log.append(*values(3))
    one = Instance(cluster)
    leases = [one.pull() for _ in range(6)]
    assert sorted(each.messages[0].record.partition for each in leases[:3]) == [0, 1, 2]
    # Partition 0 has one more.
    assert [one.pull(5) is None for _ in range(4)] == [False, False, False, True]


def test_messages_of_reachable_nodes_are_given_while_another_is_down(cluster):
    cluster.brokers = (1, 2)
    cluster.add_partitions(1)
    cluster.logs[1].append(*values(2))
    one = Instance(cluster)
    one.acknowledge(one.pull(5).token)
    one.acknowledge(one.pull(5).token)
    cluster.cut_off(cluster.down_reason, brokers={1})
    cluster.logs[1].append(b"next")
    assert offsets(one.pull(wait_s=5)) == [2]
    cluster.cut_off(cluster.down_reason)
    assert isinstance(one.pull(), BrokerUnavailable)
    cluster.mend()


def test_a_node_that_does_not_answer_delays_few_pulls(cluster):
    cluster.brokers = (1, 2)
    cluster.add_partitions(1)
    cluster.logs[1].append(*values(20))
    one = Instance(cluster)
    one.acknowledge(one.pull(5).token)
    one.acknowledge(one.pull(1).token)
    cluster.silent = {1}
    for _ in range(2):
        one.pull(wait_s=0)
    for _ in range(8):
        assert one.result(one.begin_pull(), within_s=0.1) is not None
    cluster.silent = set()
    cluster.logs[0].append(b"next")
    cluster.run(5)
    found = [one.pull() for _ in range(3)]
    assert 0 in {each.messages[0].record.partition for each in found}


def test_a_node_that_does_not_answer_delays_the_first_pulls_by_a_second_and_later_one_at_a_time(cluster):
    cluster.brokers = (1, 2)
    cluster.add_partitions(1)
    cluster.logs[1].append(*values(30))
    one = Instance(cluster)
    one.acknowledge(one.pull(5).token)
    one.acknowledge(one.pull(1).token)
    cluster.silent = {1}
    first = [one.begin_pull() for _ in range(8)]
    for each in first:
        assert one.result(each, within_s=1.5) is not None
    cluster.run(6)
    late = [one.begin_pull() for _ in range(8)]
    cluster.run(0.2)
    assert [each.called for each in late].count(False) == 1
    cluster.silent = set()


def test_a_pull_that_waits_goes_on_when_there_has_been_no_leader(cluster):
    one = Instance(cluster)
    one.acknowledge(one.pull().token)
    waiting = one.begin_pull(wait_s=60)
    cluster.run(1)
    cluster.elect(None)
    cluster.run(10)
    cluster.elect(1)
    cluster.logs[0].append(b"next")
    assert offsets(one.result(waiting, within_s=15)) == [1]


def test_a_pull_that_waits_goes_on_after_an_election(cluster):
    cluster.brokers = (1, 2)
    one = Instance(cluster)
    one.acknowledge(one.pull().token)
    waiting = one.begin_pull(wait_s=30)
    cluster.run(3)
    cluster.share_groups.elect(2)
    cluster.run(3)
    cluster.logs[0].append(b"next")
    assert offsets(one.result(waiting, within_s=2)) == [1]


def test_a_pull_that_waits_goes_on_after_a_lost_connection(cluster, one):
    waiting = one.begin_pull(wait_s=30)
    cluster.run(3)
    cluster.fates[ShareFetchRequest] = iter([Fate.LOST_ON_THE_WAY, *[Fate.ANSWERED] * 99]).__next__
    cluster.run(3)
    cluster.logs[0].append(b"next")
    assert offsets(one.result(waiting, within_s=2)) == [1]


def test_a_pull_that_waits_fails_when_the_topic_is_deleted(cluster, one):
    waiting = one.begin_pull(wait_s=60)
    cluster.run(3)
    cluster.delete()
    assert isinstance(one.result(waiting), UnknownTopic)


def test_a_pull_that_waits_fails_when_the_service_may_not_see_the_topic_any_more(cluster, one):
    waiting = one.begin_pull(wait_s=60)
    cluster.run(3)
    cluster.topic_errors["t"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert isinstance(one.result(waiting), TopicNotAuthorized)
    cluster.run(1)
    assert cluster.share_groups.sessions == {}


def test_a_partition_that_was_added_is_read(cluster, one):
    cluster.add_partitions(1)
    cluster.logs[1].append(*values(2))
    cluster.run(6)
    assert offsets(one.pull(5)) == [0, 1]


def test_an_error_of_kafka_that_lasts_is_told(cluster, one):
    cluster.share_groups.errors[ShareFetchRequest] = [ErrorCode.INVALID_REQUEST] * 3
    assert "INVALID_REQUEST" in str(one.pull())
    cluster.share_groups.errors.clear()


def test_every_session_is_ended_whatever_becomes_of_the_requests(cluster, one):
    cluster.logs[0].append(*values(200))
    fates = [Fate.ANSWER_LOST, Fate.ANSWERED, Fate.LOST_ON_THE_WAY, Fate.ANSWERED, Fate.NOT_SENT]
    turns = iter(fates * 100)
    cluster.fates[ShareFetchRequest] = turns.__next__
    for _ in range(30):
        one.pull(2)
    cluster.fates.clear()
    cluster.run(60)
    assert cluster.share_groups.sessions == {}
    assert len([each for each in one.client.connections if not each.closed]) <= 30
