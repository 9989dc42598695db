"""Leases of messages in Kafka, of one instance and of several."""

from __future__ import annotations

import gc
from struct import pack_into
from types import FunctionType, MethodType, ModuleType

import pytest
from twisted.logger import LogLevel, capturedLogs

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    DescribeConfigsRequest,
    SetGroupConfigsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
)
from sampleapp.brokers.kafka.work import groups
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    LeaseLost,
    OutcomeUnknown,
    TooManyLeases,
    TopicNotAuthorized,
    UnknownIds,
    UnknownTopic,
    WorkNotSupported,
)
from sampleapp.model import ALL, Acknowledged, Lease, Verdicts
from tests.brokers.kafka.work.setup import GROUP, NOW_S, Instance, attempts, new_cluster, offsets
from tests.support.kafka_simulator import Fate, values


@pytest.fixture
def cluster():
    cluster = new_cluster()
    cluster.logs[0].append(*values(6))
    return cluster


@pytest.fixture
def one(cluster):
    return Instance(cluster)


@pytest.fixture
def two(cluster):
    return Instance(cluster)


@pytest.fixture(autouse=True)
def nothing_is_left(cluster):
    yield
    cluster.run(40)
    assert cluster.share_groups.sessions == {}


def counts(found):
    return found.accepted, found.released, found.rejected


def test_a_new_group_begins_at_the_first_message_and_has_no_member_afterwards(cluster, one):
    lease = one.pull(2)
    assert (offsets(lease), attempts(lease)) == ([0, 1], [1, 1])
    assert [each.record.value for each in lease.messages] == values(2)
    assert lease.ends_ms == pytest.approx(1000 * (NOW_S + cluster.clock.seconds() + 29), abs=100)
    assert cluster.share_groups.members == set()


def test_a_new_group_is_not_read_before_all_leaders_know_where_it_begins(cluster, one):
    cluster.share_groups.settings_take_s = 3.0
    assert offsets(one.pull(2)) == [0, 1]


def test_a_group_whose_settings_may_not_be_changed_begins_where_kafka_lets_it_begin(cluster, one):
    cluster.share_groups.errors[SetGroupConfigsRequest] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    assert one.pull(2) is None
    cluster.logs[0].append(b"next")
    assert offsets(one.pull(2)) == [6]


def test_a_group_with_settings_of_its_own_keeps_them(cluster, one):
    cluster.configs[32, GROUP] = {"share.auto.offset.reset": "latest"}
    assert one.pull(2) is None
    assert cluster.configs[32, GROUP] == {"share.auto.offset.reset": "latest"}


def test_messages_are_accepted_released_and_rejected(cluster, one):
    lease = one.pull(4)
    found = one.acknowledge(lease.token, accept=frozenset({(0, 0)}), reject=frozenset({(0, 2)}))
    assert found == Acknowledged(accepted=1, released=2, rejected=1)
    again = one.pull(6)
    assert dict(zip(offsets(again), attempts(again), strict=True)) == {1: 2, 3: 2, 4: 1, 5: 1}
    one.acknowledge(again.token)
    assert one.pull(1) is None
    assert one.backlog() == 0


def test_a_connection_is_used_again_after_its_session_has_ended(cluster, one):
    for _ in range(3):
        one.acknowledge(one.pull().token)
        cluster.run(1)
    assert len(one.client.connections) == 1


def test_another_instance_acknowledges_a_lease_and_the_connection_is_free_later(cluster, one, two):
    lease = one.pull(2)
    assert two.acknowledge(lease.token) == Acknowledged(accepted=2, released=0, rejected=0)
    assert isinstance(one.acknowledge(lease.token), LeaseLost)
    assert isinstance(two.acknowledge(lease.token), LeaseLost)
    cluster.run(40)
    assert offsets(one.pull()) == [2]
    assert len(one.client.connections) == 1


def test_other_ids_change_nothing(cluster, one):
    lease = one.pull(2)
    error = one.acknowledge(lease.token, accept=frozenset({(0, 0), (0, 5), (7, 1)}))
    assert isinstance(error, UnknownIds)
    assert error.ids == {(0, 5), (7, 1)}
    assert one.acknowledge(lease.token).accepted == 2


@pytest.mark.parametrize("token", [b"", b"\1", b"x", bytes(4096), b"\1" + bytes(100)])
def test_other_bytes_are_a_lost_lease(one, token):
    assert isinstance(one.acknowledge(token), LeaseLost)
    assert isinstance(one.extend(token), LeaseLost)


def test_a_lease_is_that_of_its_topic_and_group(cluster, one):
    cluster.add_partitions(1, topic="other")
    lease = one.pull()
    assert isinstance(one.acknowledge(lease.token, group="others"), LeaseLost)
    assert isinstance(one.acknowledge(lease.token, topic="other"), LeaseLost)
    assert isinstance(one.acknowledge(lease.token, topic="absent"), LeaseLost)
    assert one.acknowledge(lease.token).accepted == 1


def test_a_lease_ends_before_kafkas_lock_and_is_not_asked_about_any_more(cluster, one, two):
    lease = one.pull(2)
    cluster.run(29.1)
    asked = len(cluster.asked)
    assert isinstance(one.acknowledge(lease.token), LeaseLost)
    assert isinstance(two.extend(lease.token), LeaseLost)
    assert not any(isinstance(each, ShareAcknowledgeRequest) for _, each in cluster.asked[asked:])
    cluster.run(1)
    assert attempts(two.pull(2)) == [2, 2]


def test_an_instance_whose_clock_is_a_second_behind_accepts_nothing_that_another_may_have(cluster, one):
    behind = Instance(cluster, ahead_s=-1.0)
    lease = one.pull(2)
    cluster.run(29.9)
    # By its clock the lease goes on, and so does Kafka's lock.
    assert behind.acknowledge(lease.token).accepted == 2
    late = one.pull(2)
    cluster.run(30)
    assert isinstance(behind.acknowledge(late.token), LeaseLost)


@pytest.mark.parametrize("extender", ["one", "two"])
def test_an_extended_lease_replaces_the_one_before(cluster, one, two, extender):
    by = {"one": one, "two": two}
    tokens = [one.pull(3).token]
    for _ in range(4):
        cluster.run(20)
        tokens.append(by[extender].extend(tokens[-1]).token)
        by |= {"one": two, "two": one} if extender == "two" else {}
        for each in (one, two):
            assert isinstance(each.extend(tokens[-2]), LeaseLost)
            assert isinstance(each.acknowledge(tokens[-2]), LeaseLost)
    cluster.run(25)
    assert cluster.share_groups.held(GROUP) == [0, 1, 2]
    assert two.acknowledge(tokens[-1], release=ALL).released == 3
    assert attempts(one.pull(3)) == [2, 2, 2]


@pytest.mark.parametrize("end", [Instance.die, Instance.stop])
def test_a_lease_that_another_instance_has_extended_outlives_the_first(cluster, one, two, end):
    lease = one.pull(3)
    extended = two.extend(lease.token)
    end(one)
    cluster.run(1)
    assert cluster.share_groups.held(GROUP) == [0, 1, 2]
    two.die()
    assert cluster.share_groups.held(GROUP) == []
    assert isinstance(Instance(cluster).acknowledge(extended.token), LeaseLost)


def test_an_instance_without_room_does_not_end_a_lease_that_it_cannot_extend(cluster, one):
    full = Instance(cluster, most_leases=1)
    full.pull()
    lease = one.pull(2)
    assert isinstance(full.extend(lease.token), TooManyLeases)
    assert one.acknowledge(lease.token).accepted == 2


def test_an_answer_that_comes_after_the_lock_is_not_believed(cluster, one, two):
    lease = one.pull(2)
    cluster.run(28)
    cluster.slow[1] = 3
    assert isinstance(one.acknowledge(lease.token), OutcomeUnknown)
    cluster.slow.clear()
    again = two.pull(2)
    cluster.run(28)
    cluster.slow[1] = 4
    assert isinstance(two.extend(again.token), OutcomeUnknown)
    cluster.slow.clear()


def test_an_instance_whose_clock_is_behind_believes_no_answer_that_comes_after_the_end(cluster, one):
    behind = Instance(cluster, ahead_s=-1.0)
    lease = one.pull(2)
    cluster.run(29.5)
    # By its clock, Kafka's lock goes on when the answer comes.
    cluster.slow[1] = 1.2
    assert isinstance(behind.acknowledge(lease.token), OutcomeUnknown)
    cluster.slow.clear()


def test_an_instance_leaves_a_lease_alone_that_another_has_extended(cluster, one, two):
    lease = one.pull(3)
    cluster.run(20)
    extended = two.extend(lease.token)
    # The lease of the first would have ended.
    cluster.run(15)
    assert cluster.share_groups.held(GROUP) == [0, 1, 2]
    assert one.client.connections[0].closed
    assert one.acknowledge(extended.token).accepted == 3


def test_a_lease_outlives_the_authentication_of_its_connection(cluster, one):
    lease = one.pull(3)
    [expiring] = one.client.connections
    expiring.is_expiring = True
    for _ in range(3):
        cluster.run(20)
        lease = one.extend(lease.token)
    assert expiring.closed
    one.client.connections[-1].is_expiring = True
    assert one.acknowledge(lease.token).accepted == 3
    cluster.run(1)
    assert all(each.closed for each in one.client.connections)


def test_a_connection_whose_authentication_ends_soon_gets_no_other_session(cluster, one):
    one.acknowledge(one.pull().token)
    cluster.run(1)
    [expiring] = one.client.connections
    expiring.is_expiring = True
    one.pull()
    assert expiring.closed


def test_few_requests_extend_a_lease_that_instances_have_extended_often(cluster, one, two):
    tokens = [one.pull().token]
    for turn in range(100):
        cluster.run(5)
        tokens.append((one, two)[turn % 2].extend(tokens[-1]).token)
    cluster.asked.clear()
    tokens.append(one.extend(tokens[-1]).token)
    assert len(cluster.asked) < 100
    for each in tokens[:-1]:
        assert isinstance(two.acknowledge(each), LeaseLost)
    assert two.acknowledge(tokens[-1]).accepted == 1


def test_the_messages_of_an_instance_that_dies_are_free_at_once(cluster, one, two):
    lease = one.pull(3)
    one.die()
    assert attempts(two.pull(3)) == [2, 2, 2]
    assert isinstance(two.acknowledge(lease.token), LeaseLost)


def test_an_acknowledgement_that_was_not_answered_may_be_done(cluster, one):
    lease = one.pull(3)
    cluster.fates[ShareAcknowledgeRequest] = iter([Fate.ANSWER_LOST, *[Fate.ANSWERED] * 9]).__next__
    error = one.acknowledge(lease.token)
    cluster.fates.clear()
    assert isinstance(error, OutcomeUnknown)
    assert isinstance(one.acknowledge(lease.token), LeaseLost)
    assert offsets(one.pull(6)) == [3, 4, 5]


def test_another_leader_does_not_know_a_lease(cluster):
    cluster.brokers = (1, 2)
    one = Instance(cluster)
    lease = one.pull(3)
    cluster.share_groups.elect(2)
    error = one.acknowledge(lease.token)
    assert isinstance(error, LeaseLost)
    assert error.done == frozenset()
    assert attempts(one.result(one.begin_pull(3), within_s=1)) == [1, 1, 1]


def test_of_two_partitions_one_may_have_another_leader(cluster):
    cluster.add_partitions(1)
    cluster.logs[1].leader = 1
    cluster.logs[1].append(*values(2))
    one = Instance(cluster)
    lease = one.pull(8)
    assert len(lease.messages) == 8
    cluster.logs[1].leader = 2
    error = one.acknowledge(lease.token)
    assert isinstance(error, LeaseLost)
    assert error.done == {(0, offset) for offset in range(6)}


def test_markers_and_compacted_offsets_are_gaps(cluster, one):
    log = cluster.logs[0]
    log.append_marker(commit=True)
    log.append_aborted(*values(2))
    log.lose_the_last_of(b"kept", lost=2)
    lease = one.pull(20)
    assert offsets(lease) == [0, 1, 2, 3, 4, 5, 10]
    one.acknowledge(lease.token)
    assert one.backlog() == 0


def test_a_group_with_only_gaps_has_nothing(cluster, one):
    one.acknowledge(one.pull(6).token)
    for _ in range(30):
        cluster.logs[0].append_marker(commit=True)
    assert one.pull(2) is None
    assert one.backlog() == 0


def test_messages_after_a_damaged_batch_are_given_and_lose_no_attempt(cluster, one):
    one.acknowledge(one.pull(6).token)
    log = cluster.logs[0]
    log.append_damaged(b"damaged", b"too")
    for value in values(3):
        log.append(value)
    log.append_marker(commit=True)
    lease = one.pull(10)
    assert (offsets(lease), attempts(lease)) == ([8, 9, 10], [1, 1, 1])
    one.acknowledge(lease.token)
    assert one.backlog() == 2


def test_a_batch_whose_length_is_damaged_is_not_taken_for_a_gap(cluster, one):
    one.acknowledge(one.pull(6).token)
    log = cluster.logs[0]
    log.append(bytes(2000))
    log.append(b"next")
    first, last, whole = log.batches[-2]
    damaged = bytearray(whole)
    pack_into(">i", damaged, 8, len(whole) - 12 - 120)
    log.batches[-2] = (first, last, bytes(damaged))
    assert one.pull(10) is None
    log.batches[-2] = (first, last, whole)
    assert offsets(one.pull(10)) == [6, 7]


def test_messages_that_cannot_be_read_are_counted_when_they_are_given_up(cluster, one):
    cluster.configs[4, "1"] = {"group.share.delivery.count.limit": "5"}
    one.acknowledge(one.pull(6).token)
    cluster.logs[0].append_damaged(b"damaged", b"too")
    assert one.pull(10, wait_s=5) is None
    assert (one.backlog(), one.work.given_up) == (0, 2)


def test_the_backlog_is_the_whole_topic_before_the_first_acknowledgement(cluster, one, two):
    assert one.backlog() is None
    lease = one.pull(2)
    assert [each.backlog() for each in (one, two)] == [6, 6]
    one.acknowledge(lease.token)
    assert two.backlog() == 4
    assert two.backlog(group="another") is None


def test_messages_are_given_up_after_their_attempts(cluster, one):
    cluster.configs[4, "1"] = {"group.share.delivery.count.limit": "5"}
    for attempt in range(1, 6):
        lease = one.pull(2)
        assert attempts(lease) == [attempt] * 2
        assert counts(one.acknowledge(lease.token, release=ALL)) == (0, 2, 0)
        assert one.work.given_up == (2 if attempt == 5 else 0)
    assert offsets(one.pull(6)) == [2, 3, 4, 5]


@pytest.mark.parametrize("end", [lambda one, lease: one.stop(), lambda one, lease: one.cluster.run(35)])
def test_messages_are_given_up_when_nobody_answers_after_their_last_attempt(cluster, one, end):
    cluster.configs[4, "1"] = {"group.share.delivery.count.limit": "5"}
    for _ in range(4):
        one.acknowledge(one.pull(2).token, release=ALL)
    lease = one.pull(3)
    assert one.work.given_up == 0
    end(one, lease)
    assert one.work.given_up == 2


def test_no_session_goes_on_once_another_instance_has_answered_an_acknowledgement(cluster, one, two):
    lease = one.pull()
    is_ending = iter([False])

    def slow_to_end():
        if next(is_ending, True) and not cluster.silent:
            cluster.silent = {1}
            cluster.clock.callLater(3, cluster.silent.clear)
        return Fate.ANSWERED

    cluster.fates[ShareAcknowledgeRequest] = slow_to_end
    assert counts(two.acknowledge(lease.token)) == (1, 0, 0)
    assert cluster.share_groups.sessions == {}


def test_messages_that_another_instance_has_accepted_are_not_given_up(cluster, one, two):
    cluster.configs[4, "1"] = {"group.share.delivery.count.limit": "5"}
    for _ in range(4):
        one.acknowledge(one.pull(2).token, release=ALL)
    two.acknowledge(one.pull(2).token)
    one.acknowledge(one.extend(one.pull(1).token).token)
    cluster.run(40)
    assert one.work.given_up == two.work.given_up == 0


def test_a_member_leaves_when_the_answer_to_its_join_is_lost(cluster, one):
    fates = iter([Fate.ANSWER_LOST])
    cluster.fates[ShareGroupHeartbeatRequest] = lambda: next(fates, Fate.ANSWERED)
    one.pull()
    assert cluster.share_groups.members == set()


def test_a_member_leaves_when_the_instance_stops(cluster, one):
    pulling = one.begin_pull()
    cluster.until(lambda: cluster.share_groups.members, within_s=5)
    one.stop()
    assert cluster.share_groups.members == set()
    assert one.result(pulling) is None


def test_the_settings_of_a_group_are_read_once_a_minute(cluster, one):
    one.acknowledge(one.pull(6).token)
    for _ in range(2):
        cluster.run(60)
        cluster.asked.clear()
        for each in [one.begin_pull() for _ in range(20)]:
            assert one.result(each) is None
        one.pull()
        assert len([each for _, each in cluster.asked if isinstance(each, DescribeConfigsRequest)]) == 1


def test_an_instance_remembers_a_limited_number_of_groups(cluster, one, monkeypatch):
    monkeypatch.setattr(groups, "_MOST_GROUPS", 3)
    cluster.share_groups.errors[SetGroupConfigsRequest] = [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 9
    names = [f"group-{each}" for each in range(9)]
    for name in names:
        one.pull(group=name)
        one.result(one.begin_pull(wait_s=1, group=name))
    remembered = " ".join(strings_in(one.work, {id(cluster), id(one.client), id(cluster.clock)}))
    assert [name for name in names if name in remembered] == names[-3:]


def strings_in(thing, seen):
    """Find the strings that an object refers to, but not those of its code."""
    for each in gc.get_referents(thing):
        if isinstance(each, str):
            yield each
        elif id(each) not in seen and not isinstance(each, (type, ModuleType, FunctionType, MethodType)):
            seen.add(id(each))
            yield from strings_in(each, seen)


def test_there_is_a_limit_of_sessions(cluster, one):
    cluster.share_groups.most_sessions = 2
    leases = [one.pull() for _ in range(2)]
    error = one.pull()
    assert isinstance(error, BrokerUnavailable)
    assert "group.share.max.share.sessions" in str(error)
    one.acknowledge(leases[0].token)
    cluster.run(1)
    assert offsets(one.pull()) == [2]


def test_connections_of_leases_that_other_instances_have_ended_are_used_when_there_are_no_others(
    cluster, two
):
    one = Instance(cluster, most_leases=2)
    leases = [one.pull() for _ in range(2)]
    assert isinstance(one.pull(), TooManyLeases)
    two.acknowledge(leases[0].token)
    assert offsets(one.pull()) == [2]
    assert len(one.client.connections) == 2


def test_every_connection_of_a_lease_that_has_ended_elsewhere_is_found(cluster, two):
    cluster.logs[0].append(*values(30))
    one = Instance(cluster, most_leases=20)
    leases = [one.pull() for _ in range(20)]
    two.acknowledge(leases[-1].token)
    assert any(isinstance(one.pull(), Lease) for _ in range(2))


def test_a_lease_outlives_a_pull_without_room_when_the_authentication_of_its_connection_has_ended(cluster):
    one = Instance(cluster, most_leases=1)
    lease = one.pull()
    [expired] = one.client.connections
    expired.is_expiring = expired.has_expired = True
    assert isinstance(one.pull(), TooManyLeases)
    assert one.acknowledge(lease.token).accepted == 1


def test_a_cluster_without_share_groups_is_named(cluster, one):
    cluster.share_groups.is_supported = False
    assert isinstance(one.pull(), WorkNotSupported)
    assert isinstance(one.backlog(), WorkNotSupported)
    assert isinstance(one.pull(), WorkNotSupported)


def test_a_service_without_rights_says_so(cluster, one):
    one.pull()
    cluster.share_groups.errors[ShareFetchRequest] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    assert isinstance(one.pull(), TopicNotAuthorized)


def test_a_topic_that_does_not_exist_is_unknown(one):
    assert isinstance(one.pull(topic="absent"), UnknownTopic)
    assert isinstance(one.backlog(topic="absent"), UnknownTopic)


def test_a_stop_while_no_broker_answers_is_no_fault(cluster, one, no_failure_is_lost):
    one.pull(2)
    one.begin_pull(group="another").addErrback(lambda _: None)
    cluster.run(0.05)
    cluster.silent = {1}
    with capturedLogs() as events:
        one.stop()
    assert [event for event in events if event["log_level"] > LogLevel.warn] == []


def test_a_stop_releases_all_leases(cluster, one, two):
    lease = one.pull(2)
    two.pull(1)
    two.acknowledge(two.pull(6, group="idle").token, group="idle")
    waiting = [one.begin_pull(10, wait_s=60, group="idle") for _ in range(2)]
    cluster.run(5)
    late = one.begin_pull(10, wait_s=60, group="idle")
    one.stop()
    assert [one.result(each) for each in (*waiting, late)] == [None] * 3
    assert all(isinstance(each, BrokerStopped) for each in (one.pull(), one.acknowledge(lease.token)))
    assert isinstance(one.backlog(), BrokerStopped)
    assert cluster.share_groups.held(GROUP) == [2]
    two.stop()
    assert cluster.share_groups.sessions == {}
    assert cluster.clock.getDelayedCalls() == []


def test_a_stop_ends_a_lease_that_is_being_extended(cluster, one):
    lease = one.pull()
    extending = one.work.extend("t", GROUP, lease.token)
    one.stop()
    assert isinstance(one.result(extending), (LeaseLost, BrokerStopped))
    assert cluster.clock.getDelayedCalls() == []


def test_an_acknowledgement_that_is_under_way_at_the_stop_may_be_done(cluster, one):
    lease = one.pull()
    cluster.silent = {1}
    acknowledging = one.work.acknowledge("t", GROUP, lease.token, Verdicts(accept=ALL))
    cluster.run(0.1)
    one.stop()
    assert isinstance(one.result(acknowledging), OutcomeUnknown)
    cluster.silent = set()


def test_no_lease_is_kept_whose_session_has_ended_since_the_clock_was_set_back(cluster, one):
    lease = one.pull()
    cluster.run(29.9)
    one.ahead_s = -20.0
    cluster.slow[1] = 1.5
    extending = one.work.extend("t", GROUP, lease.token)
    cluster.run(5)
    cluster.slow.clear()
    assert isinstance(one.result(extending), LeaseLost)
    assert one.work.leases == 0
