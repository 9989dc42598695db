"""Kafka's share groups: facts that a service relies on which leases records to its callers."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import OF_GROUP, AcknowledgeType, DescribeConfigsRequest
from tests.real_kafka.cluster import Cluster
from tests.real_kafka.reading import end_of
from tests.real_kafka.share_groups import (
    SESSIONS,
    SETTINGS,
    SHORT_LOCK,
    Session,
    ShareGroup,
    ask,
    free_sessions,
)
from tests.real_kafka.versions import SHARE_GROUPS, needs
from tests.real_kafka.wire import connected
from tests.real_kafka.writing import produce
from tests.support.waiting import wait_until

pytestmark = needs(SHARE_GROUPS)

ACCEPT, GAP, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.GAP, AcknowledgeType.REJECT
RELEASE, RENEW = AcknowledgeType.RELEASE, AcknowledgeType.RENEW
NOT_LEADER = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
TYPES = (ACCEPT, RELEASE, REJECT, RENEW)


@pytest.fixture(scope="module")
def cluster(version, tmp_path_factory):
    with Cluster(
        version=version, nodes=1, directory=tmp_path_factory.mktemp(f"kafka-{version}"), settings=SETTINGS
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def idle_group(cluster):
    """A group without records, to count sessions with."""
    return ShareGroup(cluster)


@pytest.fixture(autouse=True)
def no_session_is_left(idle_group):
    yield
    wait_until(lambda: free_sessions(idle_group) == SESSIONS, "no session is left on the broker")


@pytest.fixture
def connect(idle_group):
    """Open connections to the broker, each of which the test may close."""
    with ExitStack() as connections:
        yield lambda: connections.enter_context(idle_group.connected())


# Acknowledgements.


def test_accepted_and_rejected_records_never_come_back_and_released_ones_come_at_once(cluster, connect):
    group = ShareGroup(cluster, records=4)
    session, other = Session(group, connect()), Session(group, connect())
    assert session.acquire() == {0: 1, 1: 1, 2: 1, 3: 1}
    # The lag is not known before the first acknowledgement.
    assert group.lag() == -1
    assert session.acknowledge(ACCEPT, 0) == ErrorCode.NONE
    assert session.acknowledge(REJECT, 1) == ErrorCode.NONE
    assert session.acknowledge(RELEASE, 2) == ErrorCode.NONE
    assert other.acquire_soon(2) == {2: 2}
    assert group.lag() == 2
    assert other.end(ACCEPT, 2) == ErrorCode.NONE
    assert session.end(ACCEPT, 3) == ErrorCode.NONE
    assert group.lag() == 0


def test_a_record_is_given_up_after_five_deliveries(cluster, connect):
    group = ShareGroup(cluster, records=1)
    session = Session(group, connect())
    for count in range(1, 6):
        assert session.acquire_soon(0) == {0: count}
        assert session.acknowledge(RELEASE, 0) == ErrorCode.NONE
    assert session.acquire(wait_ms=500) == {}
    assert group.lag() == 0
    session.end()


def test_the_acknowledgements_of_a_partition_are_taken_together_or_not_at_all(cluster, connect):
    group = ShareGroup(cluster, records=4)
    session, other = Session(group, connect()), Session(group, connect())
    assert session.acquire(most=2) == {0: 1, 1: 1}
    assert other.acquire(most=2) == {2: 1, 3: 1}
    assert session.acknowledge(ACCEPT, 0, 2) == ErrorCode.INVALID_RECORD_STATE
    # The request counts in the session all the same.
    assert session.acknowledge(ACCEPT, 0) == ErrorCode.NONE
    assert session.end(ACCEPT, 1, 2) == ErrorCode.INVALID_RECORD_STATE
    # Such a last request ends the session, and releases the records that it names.
    assert session.end() == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert other.acquire_soon(1) == {1: 2}
    assert other.end(ACCEPT, 1, 2, 3) == ErrorCode.NONE
    assert group.lag() == 0


def test_a_record_is_acknowledged_once(cluster, connect):
    group = ShareGroup(cluster, records=2)
    session = Session(group, connect())
    assert session.acquire() == {0: 1, 1: 1}
    assert session.acknowledge(ACCEPT, 1) == ErrorCode.NONE
    assert {session.acknowledge(each, 1) for each in TYPES} == {ErrorCode.INVALID_RECORD_STATE}
    session.end()


def wait_until_end(group, offset):
    """Wait until partition 0 ends there: a marker is written a moment after its transaction has ended."""
    wait_until(lambda: end_of(group.bootstrap, group.topic, 0) == offset, f"{group.topic} ends at {offset}")


def test_markers_of_transactions_are_acquired_and_count_as_lag_until_they_are_acknowledged_as_gaps(
    cluster, connect
):
    group = ShareGroup(cluster, **{"share.isolation.level": "read_committed"})
    produce(cluster, group.topic, [b"a", b"b"], partition=0, transaction="first")
    wait_until_end(group, 3)
    produce(cluster, group.topic, [b"c", b"d"], partition=0, transaction="second", commit=False)
    wait_until_end(group, 6)
    produce(cluster, group.topic, [b"e"], partition=0)
    session = Session(group, connect())
    # Aborted records are not acquired; the markers at 2 and 5 are.
    assert session.acquire_soon(0, 1, 2, 5, 6) == dict.fromkeys((0, 1, 2, 5, 6), 1)
    assert session.acknowledge(ACCEPT, 0, 1, 6) == ErrorCode.NONE
    assert group.lag() == 2
    assert session.end(GAP, 2, 5) == ErrorCode.NONE
    assert group.lag() == 0


# Sessions and connections.


def test_any_connection_acknowledges_with_the_next_epoch_of_the_session_and_with_no_other(cluster, connect):
    group = ShareGroup(cluster, records=3)
    session, second = Session(group, connect()), connect()
    assert session.acquire() == {0: 1, 1: 1, 2: 1}
    assert session.acknowledge(RENEW, 0) == ErrorCode.NONE
    for wrong in (session.epoch - 1, session.epoch + 1):
        error = session.acknowledge(ACCEPT, 0, wire=second, epoch=wrong)
        assert error == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert session.acknowledge(ACCEPT, 0, wire=second) == ErrorCode.NONE
    assert session.acknowledge(ACCEPT, 1) == ErrorCode.NONE
    assert session.end(ACCEPT, 2, wire=second) == ErrorCode.NONE
    assert group.lag() == 0


def test_closing_another_connection_that_acknowledged_releases_nothing(cluster, connect):
    group = ShareGroup(cluster, records=2)
    session, other = Session(group, connect()), Session(group, connect())
    assert session.acquire() == {0: 1, 1: 1}
    with group.connected() as second:
        assert session.acknowledge(ACCEPT, 0, wire=second) == ErrorCode.NONE
    assert other.acquire(wait_ms=500) == {}
    assert session.end(ACCEPT, 1) == ErrorCode.NONE
    other.end()


def test_the_last_acknowledgement_from_another_connection_ends_the_session_and_releases_the_rest(
    cluster, connect
):
    group = ShareGroup(cluster, records=3)
    first, second = connect(), connect()
    session, other = Session(group, first), Session(group, second)
    assert session.acquire() == {0: 1, 1: 1, 2: 1}
    assert session.end(ACCEPT, 1, wire=second) == ErrorCode.NONE
    assert other.acquire_soon(0, 2) == {0: 2, 2: 2}
    for wire in (first, second):
        assert session.end(ACCEPT, 0, wire=wire) == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert session.acknowledge(ACCEPT, 0, wire=wire) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert other.end(ACCEPT, 0, 2) == ErrorCode.NONE
    # The first connection is as good as new.
    group.publish(cluster, 1)
    assert Session(group, first).acquire_soon(3) == {3: 1}
    first.close()
    again = Session(group, second)
    assert again.acquire_soon(3) == {3: 2}
    again.end()


def test_the_last_acknowledgement_is_taken_whatever_the_epoch_of_the_session(cluster, connect):
    group = ShareGroup(cluster, records=1)
    session, second = Session(group, connect()), connect()
    assert session.acquire() == {0: 1}
    for _ in range(3):
        assert session.acknowledge(RENEW, 0) == ErrorCode.NONE
    assert session.end(ACCEPT, 0, wire=second) == ErrorCode.NONE
    assert group.lag() == 0


def test_a_connection_that_closes_releases_the_records_of_its_session_at_once(cluster, connect):
    group = ShareGroup(cluster, records=3)
    first = connect()
    session, other = Session(group, first), Session(group, connect())
    assert session.acquire() == {0: 1, 1: 1, 2: 1}
    assert session.acknowledge(ACCEPT, 1) == ErrorCode.NONE
    first.close()
    assert other.acquire_soon(0, 2) == {0: 2, 2: 2}
    assert session.acknowledge(ACCEPT, 0, wire=other.wire) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert other.end(ACCEPT, 0, 2) == ErrorCode.NONE


def test_a_connection_that_closes_while_a_fetch_waits_is_not_noticed_before_the_fetch_has_ended(
    cluster, connect, idle_group
):
    group = ShareGroup(cluster)
    first = connect()
    session, other = Session(group, first), Session(group, connect())
    assert session.acquire(wait_ms=0) == {}
    waiting = session.fetch_request(wait_ms=10_000, epoch=session.epoch)
    first.send(waiting, waiting.api.highest)
    first.close()
    assert free_sessions(idle_group) == SESSIONS - 1
    group.publish(cluster, 1)
    wait_until(lambda: free_sessions(idle_group) == SESSIONS, "the fetch has ended")
    # The record was acquired for the session that is gone, which counts.
    assert other.acquire_soon(0) == {0: 2}
    assert other.end(ACCEPT, 0) == ErrorCode.NONE


def test_of_the_sessions_that_share_a_connection_only_the_last_ends_with_it(cluster, connect, idle_group):
    group = ShareGroup(cluster, records=6)
    shared, second = connect(), connect()
    sessions = [Session(group, shared) for _ in range(3)]
    assert [each.acquire(most=2) for each in sessions] == [{0: 1, 1: 1}, {2: 1, 3: 1}, {4: 1, 5: 1}]
    shared.close()
    other = Session(group, second)
    assert other.acquire_soon(4, 5) == {4: 2, 5: 2}
    assert other.acquire(wait_ms=500) == {}
    other.end(ACCEPT, 4, 5)
    # The others keep their places on the broker until they are ended, which any connection may do.
    assert free_sessions(idle_group) == SESSIONS - 2
    assert sessions[0].acknowledge(ACCEPT, 0, wire=second) == ErrorCode.NONE
    assert sessions[0].end(ACCEPT, 1, wire=second) == ErrorCode.NONE
    assert sessions[1].end(ACCEPT, 2, 3, wire=second) == ErrorCode.NONE
    assert group.lag() == 0


def test_a_session_that_is_begun_again_on_another_connection_ends_with_that_one(cluster, connect):
    group = ShareGroup(cluster, records=4)
    first, taker = connect(), connect()
    session, other = Session(group, first), Session(group, connect())
    assert session.acquire(most=2) == {0: 1, 1: 1}
    assert session.acquire(most=1, wire=taker, epoch=0) == {2: 1}
    first.close()
    assert session.acknowledge(ACCEPT, 0, wire=taker) == ErrorCode.NONE
    assert other.acquire(most=1) == {3: 1}
    taker.close()
    assert other.acquire_soon(1, 2) == {1: 2, 2: 2}
    assert other.end(ACCEPT, 1, 2, 3) == ErrorCode.NONE


def test_a_session_is_moved_to_another_connection_without_acquiring_more_by_a_fetch_of_no_records(
    cluster, connect
):
    group = ShareGroup(cluster, records=3)
    first, taker, third = connect(), connect(), connect()
    session, other = Session(group, first), Session(group, third)
    assert session.acquire(most=2) == {0: 1, 1: 1}
    assert session.acquire(most=0, wait_ms=0, wire=taker, epoch=0) == {}
    assert session.acknowledge(RENEW, 0, 1, wire=taker) == ErrorCode.NONE
    # The epoch from before the move is not valid, and the first connection is free.
    assert session.acknowledge(ACCEPT, 0, epoch=1) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    first.close()
    assert other.acquire() == {2: 1}
    assert session.acknowledge(ACCEPT, 0, wire=third) == ErrorCode.NONE
    taker.close()
    assert other.acquire_soon(1) == {1: 2}
    assert session.end(wire=third) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert other.end(ACCEPT, 1, 2) == ErrorCode.NONE


def test_a_wrong_epoch_tells_whether_a_session_goes_on_and_changes_nothing(cluster, connect):
    group = ShareGroup(cluster, records=1)
    session, second = Session(group, connect()), connect()
    assert session.acquire() == {0: 1}
    for _ in range(3):
        probed = session.acknowledge(wire=second, epoch=2**30)
        assert probed == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert session.acknowledge(ACCEPT, 0) == ErrorCode.NONE
    assert session.end() == ErrorCode.NONE
    assert session.acknowledge(wire=second, epoch=2**30) == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_session_whose_topic_is_deleted_goes_on_until_it_is_ended(cluster, connect):
    group = ShareGroup(cluster, records=1)
    session = Session(group, connect())
    assert session.acquire() == {0: 1}
    cluster.admin.delete(group.topic)
    assert session.acknowledge(ACCEPT, 0) == ErrorCode.UNKNOWN_TOPIC_ID
    assert session.end() == ErrorCode.NONE


def test_two_sessions_never_hold_the_same_record(cluster, connect):
    group = ShareGroup(cluster, records=40)
    sessions = [Session(group, connect()) for _ in range(4)]
    held = []
    while len(held) < 40:
        for each in sessions:
            held += each.acquire(most=3, wait_ms=500)
    assert sorted(held) == list(range(40))
    for each in sessions:
        each.end()


def closed(session, second):
    session.wire.close()


def reset(session, second):
    session.wire.reset()


def closed_while_a_fetch_waits(session, second):
    # The broker does not look at the connection before it has answered.
    waiting = session.fetch_request(wait_ms=500, epoch=session.epoch)
    session.wire.send(waiting, waiting.api.highest)
    session.wire.close()


def closed_before_the_first_answer(session, second):
    session.end()
    unread = Session(session.group, session.wire)
    request = unread.fetch_request()
    unread.wire.send(request, request.api.highest)
    unread.wire.close()


def ended_by_another_connection(session, second):
    session.end(ACCEPT, 0, wire=second)


def ended_by_a_request_that_is_refused(session, second):
    assert session.end(ACCEPT, 7) != ErrorCode.NONE


def ended_after_a_refused_renewal(session, second):
    assert session.acknowledge(RENEW, 7) != ErrorCode.NONE
    session.end(wire=second)


def renewed_by_another_connection_and_closed(session, second):
    session.acknowledge(RENEW, 0, wire=second)
    session.wire.close()


def begun_again_by_another_connection_and_both_closed(session, second):
    session.fetch(wait_ms=0, wire=second, epoch=0)
    session.wire.close()
    second.close()


def moved_to_another_connection_that_closes(session, second):
    session.fetch(most=0, wait_ms=0, wire=second, epoch=0)
    second.close()


def closed_after_a_wrong_epoch(session, second):
    assert session.acknowledge(epoch=session.epoch + 5) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    session.wire.close()


FAULTS = [
    closed,
    reset,
    closed_while_a_fetch_waits,
    closed_before_the_first_answer,
    ended_by_another_connection,
    ended_by_a_request_that_is_refused,
    ended_after_a_refused_renewal,
    renewed_by_another_connection_and_closed,
    begun_again_by_another_connection_and_both_closed,
    moved_to_another_connection_that_closes,
    closed_after_a_wrong_epoch,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_session_of_its_own_connection_leaves_nothing_when_it_is(fault, cluster, connect):
    group = ShareGroup(cluster, records=3)
    for _ in range(3 * SESSIONS):
        session = Session(group, connect())
        wait_until(lambda s=session: s.fetch(most=1, wait_ms=0).error == ErrorCode.NONE, "it gets in")
        fault(session, connect())


# Locks.


def test_a_renewal_from_another_connection_locks_for_the_whole_time_again_and_is_no_delivery(
    cluster, connect
):
    group = ShareGroup(cluster, records=2, **SHORT_LOCK)
    session, other, second = Session(group, connect()), Session(group, connect()), connect()
    assert session.acquire() == {0: 1, 1: 1}
    found = {}
    while 1 not in found:
        assert session.acknowledge(RENEW, 0, wire=second) == ErrorCode.NONE
        found = other.acquire(wait_ms=100)
    # The one that was renewed as often as the other was waited for is still held, and in its first delivery.
    assert found == {1: 2}
    # At once: this lock ends at about the same time as the other's.
    assert other.acknowledge(ACCEPT, 1) == ErrorCode.NONE
    assert other.acquire_soon(0) == {0: 2}
    assert other.end(ACCEPT, 0) == ErrorCode.NONE
    session.end()


def test_a_late_acknowledgement_is_refused_until_the_record_is_done_and_then_answered_as_a_success(
    cluster, connect
):
    group = ShareGroup(cluster, records=2, **SHORT_LOCK)
    late, other = Session(group, connect()), Session(group, connect())
    assert late.acquire() == {0: 1, 1: 1}
    assert other.acquire_soon(0) == {0: 2}
    for offset in (0, 1):
        assert {late.acknowledge(each, offset) for each in TYPES} == {ErrorCode.INVALID_RECORD_STATE}
    assert other.acknowledge(ACCEPT, 0) == ErrorCode.NONE
    assert group.lag() == 1
    # Even "renewed" and "released": answered with NONE, and nothing was done.
    assert {late.acknowledge(each, 0) for each in TYPES} == {ErrorCode.NONE}
    assert group.lag() == 1
    late.end()
    other.end()


def test_a_session_keeps_its_place_on_the_broker_after_its_locks_have_ended(cluster, connect, idle_group):
    group = ShareGroup(cluster, records=1, **SHORT_LOCK)
    session, other = Session(group, connect()), Session(group, connect())
    assert session.acquire() == {0: 1}
    assert other.acquire_soon(0) == {0: 2}
    assert other.end(ACCEPT, 0) == ErrorCode.NONE
    assert free_sessions(idle_group) == SESSIONS - 1
    assert session.end() == ErrorCode.NONE


# Brokers.


def test_a_frozen_client_keeps_its_records_and_its_session_until_its_connection_has_been_idle_too_long(
    version, tmp_path
):
    settings = {**SETTINGS, "connections.max.idle.ms": "3000"}
    with Cluster(version=version, nodes=1, directory=tmp_path, settings=settings) as cluster:
        group = ShareGroup(cluster, records=1)
        with group.connected() as frozen, group.connected() as second:
            session, other = Session(group, frozen), Session(group, second)
            assert session.acquire() == {0: 1}
            assert other.acquire(wait_ms=100) == {}
            assert other.acquire_soon(0) == {0: 2}
            assert session.end(wire=second) == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_broker_that_was_killed_has_no_sessions_and_gives_the_records_at_once(cluster, connect):
    group = ShareGroup(cluster, records=2)
    wire = connect()
    group.leave(wire)
    session = Session(group, wire)
    assert session.acquire() == {0: 1, 1: 1}
    assert session.acknowledge(ACCEPT, 0) == ErrorCode.NONE
    cluster.kill9()
    cluster.start()
    other = Session(group, connect())
    # Kafka persists acknowledgements, not deliveries.
    assert other.acquire_soon(1) == {1: 1}
    assert session.acknowledge(ACCEPT, 1, wire=other.wire) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert other.end(ACCEPT, 1) == ErrorCode.NONE
    wait_until(lambda: group.lag() == 0, "the broker knows that all is done")


def test_another_leader_gives_the_records_at_once_and_does_not_count_the_delivery_of_the_first(three_nodes):
    group = ShareGroup(three_nodes, records=2, assignment=[[1, 2, 3]])
    three_nodes.node(1).stop()
    three_nodes.admin.wait_until_led_by(group.topic, 2)
    three_nodes.restore()
    three_nodes.admin.wait_until_in_sync(group.topic, 3)
    with connected(three_nodes.address(2)) as old, connected(three_nodes.address(1)) as new:
        session, other = Session(group, old), Session(group, new)
        assert session.acquire_soon(0, 1) == {0: 1, 1: 1}
        assert session.acknowledge(ACCEPT, 0) == ErrorCode.NONE
        # The session is one of that node only.
        assert session.acknowledge(ACCEPT, 1, wire=new) == ErrorCode.SHARE_SESSION_NOT_FOUND
        three_nodes.admin.elect(group.topic, partitions=[0])
        three_nodes.admin.wait_until_led_by(group.topic, 1)
        assert other.acquire_soon(1) == {1: 1}
        assert session.acknowledge(ACCEPT, 1) in NOT_LEADER
        assert session.end() == ErrorCode.NONE
        assert other.end(ACCEPT, 1) == ErrorCode.NONE


def test_a_leader_that_was_frozen_does_not_accept_records_that_another_has_given_since(three_nodes):
    group = ShareGroup(three_nodes, records=2, assignment=[[1, 2, 3]])
    with connected(three_nodes.address(1)) as old:
        session = Session(group, old)
        assert session.acquire_soon(0, 1) == {0: 1, 1: 1}
        three_nodes.node(1).freeze()
        leaders = three_nodes.admin.leaders
        wait_until(lambda: leaders(group.topic).get(0, 1) != 1, "another broker leads the partition")
        with connected(three_nodes.address(leaders(group.topic)[0])) as new:
            other = Session(group, new)
            assert other.acquire_soon(0, 1) == {0: 1, 1: 1}
            three_nodes.node(1).thaw()
            # At once, perhaps before it knows.
            assert session.acknowledge(ACCEPT, 0) in NOT_LEADER
            assert session.end() == ErrorCode.NONE
            assert other.end(ACCEPT, 0, 1) == ErrorCode.NONE
    three_nodes.restore()
    wait_until(lambda: group.lag() == 0, "all is done")


# Members.


def test_a_group_whose_only_member_has_left_still_gives_its_records(cluster, connect):
    group = ShareGroup(cluster, records=2)
    wire = connect()
    group.leave(wire)
    session = Session(group, wire)
    assert session.acquire() == {0: 1, 1: 1}
    assert session.end(ACCEPT, 0, 1) == ErrorCode.NONE
    group.publish(cluster, 1)
    assert Session(group, wire).acquire_soon(2) == {2: 1}
    wire.close()


def test_members_share_the_partitions_but_whoever_has_a_session_may_fetch_all_of_them(cluster, connect):
    group = ShareGroup(cluster, records=2, partitions=2)
    wire = connect()
    group.leave(wire)
    assigned = group.join(wire, "one", "two")
    assert sorted(assigned.values()) == [(0,), (1,)]
    (idle,) = (member for member, numbers in assigned.items() if numbers == (1,))
    session = Session(group, wire)
    session.member_id = idle
    assert session.acquire() == {0: 1, 1: 1}
    assert session.end(ACCEPT, 0, 1) == ErrorCode.NONE


def test_a_new_partition_cannot_be_fetched_before_a_member_has_joined_again(cluster, connect):
    group = ShareGroup(cluster, records=1)
    wire = connect()
    group.leave(wire)
    cluster.admin.add_partitions(group.topic, 2)
    group.partitions = (0, 1)
    session = Session(group, wire)

    def errors():
        return {each.partition: each.error for each in session.fetch(wait_ms=100).partitions}

    # At first the broker does not know that it leads the partition.
    wait_until(lambda: errors().get(1) == ErrorCode.UNKNOWN_SERVER_ERROR, "the partition is there")
    group.join(wire, "again")
    wait_until(lambda: not any(errors().values()), "all partitions can be fetched")
    session.end(ACCEPT, 0)


def test_a_group_that_nobody_has_joined_cannot_be_fetched_and_has_no_offsets(cluster, connect):
    group = ShareGroup(cluster, records=1)
    group.name += "-other"
    session = Session(group, connect())
    answer = session.fetch()
    assert [each.error for each in answer.partitions] == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert group.lag() is None
    # But it has a session.
    assert session.end() == ErrorCode.NONE


def test_the_settings_of_a_group_are_listed_with_those_of_the_broker_as_defaults(cluster, connect):
    group = ShareGroup(cluster)
    names = ["share.auto.offset.reset", "share.isolation.level", "share.record.lock.duration.ms"]
    [found] = ask(connect(), DescribeConfigsRequest(resources=[(OF_GROUP, group.name, names)]))
    assert found.values == dict(zip(names, ("earliest", "read_uncommitted", "60000"), strict=True))
