"""Followings of a topic: begun, read to their end, stopped at any time."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from twisted.internet.defer import fail
from zope.interface.verify import verifyObject

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import FetchRequest, ListOffsetsRequest, MetadataRequest
from sampleapp.interfaces import ISubscription
from tests.support.brokers import Recorder
from tests.support.examples import examples
from tests.support.kafka_simulator import Cluster, Fate, FollowingSetup, values

LOSSES = [Fate.NOT_SENT, Fate.LOST_ON_THE_WAY, Fate.ANSWER_LOST, Fate.LATE]


def test_every_partition_is_read_from_its_first_record_and_live(setup):
    cluster = Cluster(partitions=5)
    for number, log in cluster.logs.items():
        log.append(*values(3, 10 * number))
        log.append(*values(2, 10 * number + 3))
    following = setup(cluster)
    following.catch_up()
    assert following.recorder.caught_up_at == [25]
    following.assert_each_exactly_once()
    for log in cluster.logs.values():
        log.append(b"live")
    following.until(30)
    following.assert_each_exactly_once()
    assert following.reasons == ()


def test_it_provides_the_interface(setup):
    assert verifyObject(ISubscription, setup(Cluster()).following)


def test_nothing_happens_before_follow_has_returned(setup):
    cluster = Cluster()
    setup(cluster)
    assert cluster.clients == []


def test_a_following_begins_when_all_of_them_are_started(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"x")
    following = setup(cluster, started=False)
    cluster.run(5)
    assert cluster.clients == []
    following.followings.start()
    assert following.catch_up() == [b"x"]


def test_after_all_were_stopped_a_following_is_a_stopped_one():
    cluster = Cluster()
    setup = FollowingSetup(cluster)
    setup.stop()
    following = setup.follow(Recorder())
    cluster.run(5)
    assert cluster.clients == []
    stopped = []
    following.stop().addCallback(stopped.append)
    assert stopped == [None]


def test_all_followings_share_two_connections_to_each_broker(setup):
    cluster = Cluster(partitions=3)
    one = setup(cluster)
    others = [one.follow(Recorder()) for _ in range(5)]
    one.catch_up()
    assert len(cluster.clients) == 2
    for each in others:
        each.stop()
    cluster.run(1)
    assert not any(client.closed for client in cluster.clients)
    cluster.logs[0].append(b"a")
    assert one.until(1) == [b"a"]


def test_a_following_that_cannot_begin_is_told_and_can_be_stopped(setup, no_failure_is_lost):
    cluster = Cluster()
    cluster.new_client = lambda: 1 / 0
    following = setup(cluster)
    cluster.run(1)
    assert following.reasons == ("The topic t is not followed any longer; see the log.",)
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()


def test_an_empty_topic_is_caught_up_with(setup):
    following = setup(Cluster(partitions=3))
    following.catch_up()
    assert following.recorder.caught_up_at == [0]
    following.cluster.run(20)
    assert following.recorder.caught_up_at == [0]


def test_it_takes_all_partitions(setup):
    cluster = Cluster(partitions=3)
    cluster.silent = {3}
    cluster.logs[0].append(b"a")
    following = setup(cluster)
    following.until(1)
    cluster.run(4)
    assert not following.caught_up
    cluster.silent = set()
    following.catch_up()


def test_records_that_compaction_has_removed_from_the_last_batch_count_as_well(setup):
    cluster = Cluster()
    cluster.logs[0].lose_the_last_of(b"a", lost=3)
    following = setup(cluster)
    assert following.catch_up() == [b"a"]
    assert cluster.clock.seconds() < 1
    cluster.logs[0].append(b"b")
    following.until(2)
    following.assert_each_exactly_once()


def test_a_log_whose_last_records_were_removed_is_not_waited_for_for_ever(setup):
    cluster = Cluster(partitions=2, brokers=(1,))
    cluster.logs[0].append(b"a")
    cluster.logs[0].skip(5)
    following = setup(cluster)
    # The other partition is never at rest.
    for _ in range(100):
        cluster.logs[1].append(b"busy")
        cluster.run(0.1)
    assert following.caught_up
    cluster.logs[0].append(b"b")
    cluster.run(1)
    following.assert_each_exactly_once()


def test_partitions_that_others_left_no_room_for_are_waited_for(setup):
    cluster = Cluster(partitions=3, brokers=(1,))
    for log in cluster.logs.values():
        log.append(b"x" * 1_500_000)
    following = setup(cluster, on_record=cluster.take(6))
    following.catch_up()
    assert following.recorder.caught_up_at == [3]


def test_nothing_is_passed_over_while_a_broker_fetches_old_segments(setup):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(b"a")
    old, log.batches = log.batches, []
    following = setup(cluster)
    cluster.run(3)
    assert not following.caught_up
    log.batches = old
    assert following.catch_up() == [b"a"]


@pytest.mark.parametrize("method", ["request", "load_metadata"])
def test_what_nobody_expects_is_logged_and_survived(setup, no_failure_is_lost, method):
    cluster = Cluster()
    cluster.logs[0].append(b"a")
    new_client = cluster.new_client

    def broken():
        client = new_client()
        setattr(client, method, lambda *_, **__: fail(ZeroDivisionError("on purpose")))
        cluster.clock.callLater(2, delattr, client, method)
        return client

    cluster.new_client = broken
    following = setup(cluster)
    cluster.run(1.9)
    assert len(following.reasons) == 1
    assert following.reasons[0].endswith(("see the log.", "the log has the traceback."))
    assert following.catch_up() == [b"a"]
    assert {failure.type for failure in no_failure_is_lost} == {ZeroDivisionError}
    no_failure_is_lost.clear()
    assert following.reasons == ()


def well(cluster):
    pass


def empty(cluster):
    for log in cluster.logs.values():
        log.batches, log.end = [], 0


def large(cluster):
    for log in cluster.logs.values():
        log.append(*values(3000))


def dead(cluster):
    cluster.down = {1, 2, 3}


def silent(cluster):
    cluster.silent = {1, 2}


def unknown(cluster):
    cluster.delete()


def forbidden(cluster):
    cluster.topic_errors = {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def corrupt(cluster):
    cluster.logs[0].batches = [(0, 2, b"\0" * 200)]


@pytest.mark.parametrize("state", [well, empty, large, dead, silent, unknown, forbidden, corrupt])
def test_it_can_be_stopped_at_any_time(state):
    def begun():
        cluster = Cluster(partitions=3)
        for log in cluster.logs.values():
            log.append(*values(3))
        state(cluster)
        return FollowingSetup(cluster)

    # At each event of its first seconds.
    for count in range(60):
        setup = begun()
        for _ in range(count):
            calls = setup.cluster.clock.getDelayedCalls()
            at_s = min(call.getTime() for call in calls)
            setup.cluster.clock.advance(max(0.0, at_s - setup.cluster.clock.seconds()))
        setup.stop()


class FollowingMachine(RuleBasedStateMachine):
    """Whatever errors come between: each record exactly once, in the order of its partition."""

    brokers = st.sampled_from([1, 2, 3])
    partitions = st.integers(min_value=0, max_value=3)

    def __init__(self):
        super().__init__()
        self.cluster = Cluster(partitions=2)
        self.number = 0
        self.forgotten = False
        self.made_again = 0
        self.setup = None

    def log(self, partition):
        return self.cluster.logs[partition % len(self.cluster.logs)]

    def next_values(self, count):
        self.number += count
        return values(count, self.number - count)

    @initialize(
        counts=st.lists(st.integers(min_value=0, max_value=3), max_size=4), has_sessions=st.booleans()
    )
    def begin(self, counts, has_sessions):
        self.cluster.has_sessions = has_sessions
        for partition, count in enumerate(counts):
            if count:
                self.log(partition).append(*self.next_values(count))
        self.existed = {number: log.end for number, log in self.cluster.logs.items()}
        self.setup = FollowingSetup(self.cluster, on_record=self.cluster.take(0.0002))

    @rule(partition=partitions, count=st.integers(min_value=1, max_value=700), codec=st.sampled_from(Codec))
    def append(self, partition, count, codec):
        self.log(partition).append(*self.next_values(count), codec=codec)

    @rule(partition=partitions, producer_id=st.sampled_from([7, 8]))
    def append_a_transaction_that_is_aborted(self, partition, producer_id):
        self.log(partition).append_aborted(*self.next_values(2), producer_id=producer_id)

    @rule(partition=partitions, producer_id=st.sampled_from([7, 8]))
    def append_a_transaction_that_is_committed(self, partition, producer_id):
        log = self.log(partition)
        log.append(*self.next_values(2), attributes=0x10, producer_id=producer_id)
        log.append_marker(commit=True, producer_id=producer_id)

    @rule(partition=partitions)
    def compact(self, partition):
        self.log(partition).lose_the_last_of(*self.next_values(1), lost=2)

    @rule(partition=partitions, leader=brokers)
    def move(self, partition, leader):
        self.log(partition).leader = leader

    @rule(partition=partitions)
    def lose_the_leader(self, partition):
        self.log(partition).leader = None

    @rule(broker=brokers)
    def kill(self, broker):
        self.cluster.down ^= {broker}

    @rule(broker=brokers, seconds=st.sampled_from([0.0, 0.05, 1.0]))
    def slow_down(self, broker, seconds):
        self.cluster.slow[broker] = seconds

    @rule(broker=brokers)
    def forget_the_sessions(self, broker):
        self.cluster.sessions[broker].forget()

    @rule(broker=brokers, errors=st.lists(st.sampled_from([-1, 70, 71, 106]), max_size=3))
    def reject_in_a_session(self, broker, errors):
        self.cluster.sessions[broker].errors += errors

    @rule(broker=brokers)
    def hold(self, broker):
        self.cluster.silent ^= {broker}

    @rule()
    def add_a_partition(self):
        if len(self.cluster.logs) < 4:
            self.cluster.add_partitions(1)

    @rule(
        partition=partitions,
        errors=st.lists(
            st.sampled_from(
                [
                    *(code for code in ErrorCode if code.has_stale_metadata),
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    -1,
                    29,
                ]
            ),
            max_size=3,
        ),
    )
    def reject(self, partition, errors):
        self.log(partition).errors += errors

    @rule(
        kind=st.sampled_from([FetchRequest, ListOffsetsRequest, MetadataRequest]),
        fates=st.lists(st.sampled_from(LOSSES), max_size=3),
    )
    def lose(self, kind, fates):
        """Requests of this kind, or their answers, on the way."""
        some = iter(fates)
        self.cluster.fates[kind] = lambda: next(some, Fate.ANSWERED)

    @precondition(lambda self: self.setup and self.setup.caught_up and not self.forgotten)
    @rule(count=st.integers(min_value=1, max_value=3))
    def forget_the_topic(self, count):
        # More often, and it would rightly pass for deleted.
        self.forgotten = True
        self.cluster.ignorant = count

    @rule(partition=partitions)
    def begin_a_transaction(self, partition):
        log = self.log(partition)
        if log.stable is None:
            log.stable = log.end

    @rule(partition=partitions)
    def end_a_transaction(self, partition):
        self.log(partition).stable = None

    @rule(partitions=st.integers(min_value=1, max_value=3), counts=st.lists(st.integers(0, 900), max_size=3))
    def make_the_topic_again(self, partitions, counts):
        """It has other values, so that none of the old one can pass for one of its own."""
        self.made_again += 1
        self.cluster.make_again(partitions)
        for partition, count in enumerate(counts):
            if count:
                self.log(partition).append(*self.next_values(count))
        self.existed = {}

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.005, 0.1, 0.6, 2.0, 11.0]))
    def wait(self, seconds):
        self.cluster.run(seconds)

    @invariant()
    def nothing_is_told_twice_or_out_of_order(self):
        if self.setup is None:
            return
        last = defaultdict(lambda: -1)
        for each in self.setup.records:
            assert each.offset > last[each.partition]
            last[each.partition] = each.offset
        recorder = self.setup.recorder
        assert len(recorder.reset_at) <= self.made_again
        assert len(recorder.caught_up_at) <= 1 + len(recorder.reset_at)

    def teardown(self):
        if self.setup is None:
            return
        self.cluster.down, self.cluster.silent, self.cluster.ignorant = set(), set(), 0
        self.cluster.slow.clear()
        self.cluster.fates.clear()
        self.cluster.sessions.clear()
        for number, log in self.cluster.logs.items():
            log.errors = []
            log.stable = None
            log.leader = log.leader or 1 + number % 3
        self.cluster.run(40)
        self.setup.assert_each_exactly_once()
        recorder = self.setup.recorder
        at = recorder.caught_up_at[-1]
        told = {(each.partition, each.offset) for each in recorder.records[:at]}
        for number, end in self.existed.items():
            for offset in self.cluster.logs[number].shown:
                assert offset >= end or (number, offset) in told
        assert self.setup.reasons == ()
        assert self.setup.unavailable_reason is None
        self.setup.stop()


TestFollowing = FollowingMachine.TestCase
# A history that fails is printed as it is: to make it smaller takes longer than a test may.
TestFollowing.settings = examples(
    30, stateful_step_count=20, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
