"""Following topics of Kafka: on a cluster that is played, where time is the test's, and on the mock."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from struct import pack_into

import pytest
import pytest_twisted
from aiokafka.record.util import calc_crc32c
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock, deferLater
from twisted.logger import LogLevel, capturedLogs
from zope.interface.verify import verifyObject

from sampleapp.brokers.kafka.batches import Codec, encode_batch
from sampleapp.brokers.kafka.client import Client, RequestFailed
from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.connections.endpoints import make_endpoint_factory
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.connections.security import Security
from sampleapp.brokers.kafka.consumer import Followings
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    EARLIEST,
    AbortedTransaction,
    Fetched,
    FetchRequest,
    ListedOffset,
    ListOffsetsRequest,
)
from sampleapp.brokers.shared.condition import Condition
from sampleapp.interfaces import IFollowing
from tests.support.brokers import Recorder, eventually, record, within
from tests.support.connection_listener import Connections
from tests.support.kafka_log import log_of, produced
from tests.support.mock_cluster import DROP_CONNECTION, FETCH, LIST_OFFSETS, MockCluster

TOPIC = "t"
LATENCY_S = 0.002
DOWN = FailureReason(
    sentence="10.0.0.1:9092 refuses connections.", public="No broker answers.", lasting=False
)


def batch(offset, values, *, codec=Codec.NONE, last_offset=None, attributes=0, producer_id=-1, keys=None):
    """A record batch as a broker has it; with a ``last_offset`` if the last records were compacted away."""
    keys = keys or [None] * len(values)
    data = bytearray(
        encode_batch(
            [record(TOPIC, value, key=key) for key, value in zip(keys, values, strict=True)],
            codec=codec,
            producer_id=producer_id,
            epoch=0,
            base_sequence=0,
        )
    )
    pack_into(">q", data, 0, offset)
    pack_into(">h", data, 21, data[22] | attributes)
    if last_offset is not None:
        pack_into(">i", data, 23, last_offset - offset)
    pack_into(">I", data, 17, calc_crc32c(bytes(data[21:])))
    return bytes(data)


class Log:
    """One partition, and what a following has to show of it."""

    def __init__(self, leader):
        self.leader = leader
        self.start = self.end = 0
        self.batches = []
        """First offset, last offset, bytes."""
        self.shown = {}
        """The values to be shown, by offset."""
        self.stable = None
        """The last stable offset, if a transaction is open."""
        self.aborted = []
        """Transactions, and the offset of their end."""
        self.errors = []
        """What the next answers about it say."""

    def append(self, *values, **options):
        data = batch(self.end, values, **options)
        self._add(data, len(values))
        self.shown |= {self.end - len(values) + index: value for index, value in enumerate(values)}

    def append_aborted(self, *values, producer_id=7):
        first = self.end
        self._add(batch(first, values, attributes=0x10, producer_id=producer_id), len(values))
        self.append_marker(commit=False, producer_id=producer_id)
        self.aborted.append((AbortedTransaction(producer_id, first), self.end - 1))

    def append_marker(self, *, commit, producer_id=7):
        key = bytes([0, 0, 0, commit])
        data = batch(self.end, [b"\0\0\0\0\0\0"], keys=[key], attributes=0x30, producer_id=producer_id)
        self._add(data, 1)

    def lose_the_last_of(self, *values, lost):
        """Append records of which compaction has removed the last ones, though their batch covers them."""
        last = self.end + len(values) + lost - 1
        self.shown |= {self.end + index: value for index, value in enumerate(values)}
        self._add(batch(self.end, values, last_offset=last), len(values) + lost)

    def skip(self, count):
        """Have offsets that no batch has: what compaction leaves at the end of a segment."""
        self.end += count

    def delete_before(self, offset):
        self.start = offset
        self.batches = [each for each in self.batches if each[1] >= offset]
        self.shown = {o: value for o, value in self.shown.items() if o >= offset}

    def readable_to(self):
        return self.end if self.stable is None else self.stable

    def _add(self, data, count):
        self.batches.append((self.end, self.end + count - 1, data))
        self.end += count

    def fetched(self, number, offset, room, *, at_least_one):
        """What a Fetch from an offset brings, within so many bytes."""
        if self.errors:
            return Fetched(TOPIC, number, self.errors.pop(0))
        if not self.start <= offset <= self.end:
            return Fetched(TOPIC, number, ErrorCode.OFFSET_OUT_OF_RANGE)
        data = b""
        for _, last, each in self.batches:
            if offset <= last < self.readable_to():
                if len(data) + len(each) > room and (data or not at_least_one):
                    break
                data += each
        aborted = tuple(each for each, last in self.aborted if last >= offset)
        return Fetched(TOPIC, number, 0, self.end, self.readable_to(), self.start, aborted, data)


class CountingClock(Clock):
    """Counts the turns of the reactor that it plays: each call is one."""

    turns = 0

    def callLater(self, when, what, *a, **kw):
        def call():
            self.turns += 1
            what(*a, **kw)

        return super().callLater(when, call)


class Cluster:
    """A cluster that is played, on a clock."""

    def __init__(self, partitions=1, *, brokers=(1, 2, 3)):
        self.clock = CountingClock()
        self.brokers = brokers
        self.down = set()
        self.silent = set()
        self.slow = defaultdict(float)
        """How many seconds the answers of a broker are on their way."""
        self.ignorant = 0
        """How many answers of Metadata do not know the topic, though it is there."""
        self.topic_error = None
        self.throttled = 0
        self.waits = True
        self.logs = {}
        self.clients = []
        self.loads = []
        """When metadata was asked for."""
        self.fetches = []
        self.asked = []
        self.add_partitions(partitions)

    def add_partitions(self, count):
        for _ in range(count):
            number = len(self.logs)
            self.logs[number] = Log(self.brokers[number % len(self.brokers)])
        return self.logs

    def delete(self):
        self.logs = {}

    def new_client(self):
        self.clients.append(FakeClient(self))
        return self.clients[-1]

    def run(self, seconds):
        """Let time pass, from one event to the next."""
        end_s = self.clock.seconds() + seconds
        for _ in range(20_000):
            calls = self.clock.getDelayedCalls()
            next_s = min((call.getTime() for call in calls), default=end_s)
            if next_s > end_s:
                break
            self.clock.advance(max(0.0, next_s - self.clock.seconds()))
            if not calls:
                break
        else:
            raise AssertionError("something happens again and again")
        self.clock.advance(max(0.0, end_s - self.clock.seconds()))

    def take(self, seconds):
        """What an observer does that needs so long."""

        def take(_):
            self.clock.rightNow += seconds

        return take

    def until(self, condition, *, within_s=30.0):
        give_up_at_s = self.clock.seconds() + within_s
        while not condition():
            assert self.clock.seconds() < give_up_at_s, "the condition did not become true in time"
            self.run(0.01)


class FakeClient:
    """What `Client` promises, on a `Cluster`."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.closed = False
        self.open = {}
        self.metadata = None

    def load_metadata(self, topics, *, auto_create=False):
        assert list(topics) == [TOPIC]
        assert not auto_create
        self.cluster.loads.append(self.cluster.clock.seconds())
        return self._ask(None, self._metadata)

    def topic_error(self, topic):
        return self.metadata and self.metadata[0]

    def partitions_of(self, topic):
        return sorted(self.metadata[1])

    def leader_of(self, topic, partition):
        return self.metadata[1].get(partition)

    def request(self, node_id, request, *, timeout_s):
        if self.closed:
            return fail(RequestFailed(DOWN, sent=False))
        self.cluster.asked.append((node_id, request))
        if isinstance(request, ListOffsetsRequest):
            return self._ask(node_id, lambda: self._offsets(node_id, request), timeout_s)
        assert isinstance(request, FetchRequest)
        assert request.read_committed
        assert not any(node_id == at and type(r) is FetchRequest for at, r in self.open.values())
        self.cluster.fetches.append((node_id, request))
        give_up_at_s = self.cluster.clock.seconds() + request.max_wait_ms / 1000
        return self._ask(node_id, lambda: self._fetch(node_id, request, give_up_at_s), timeout_s, request)

    def close(self):
        self.closed = True
        for answer in list(self.open):
            answer.errback(RequestFailed(DOWN, sent=True))
        return deferLater(self.cluster.clock, LATENCY_S, lambda: None)

    def _ask(self, node_id, handle, timeout_s=5.0, request=None):
        clock = self.cluster.clock
        give_up_at_s = clock.seconds() + timeout_s
        answer = Deferred()
        self.open[answer] = (node_id, request)

        def done(result):
            del self.open[answer]
            if timer.active():
                timer.cancel()
            return result

        def look():
            nonlocal timer
            dead = node_id in self.cluster.down or self.cluster.down >= set(self.cluster.brokers)
            if dead or clock.seconds() >= give_up_at_s:
                answer.errback(RequestFailed(DOWN, sent=True))
                return
            found = None if node_id in self.cluster.silent else handle()
            if found is None:
                timer = clock.callLater(0.01, look)
            elif self.cluster.slow[node_id]:
                timer = clock.callLater(self.cluster.slow[node_id], answer.callback, found)
            else:
                answer.callback(found)

        answer.addBoth(done)
        timer = clock.callLater(LATENCY_S, look)
        return answer

    def _metadata(self):
        cluster = self.cluster
        if cluster.topic_error is not None:
            self.metadata = (cluster.topic_error, {})
        elif cluster.ignorant or not cluster.logs:
            cluster.ignorant = max(0, cluster.ignorant - 1)
            self.metadata = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})
        else:
            self.metadata = (ErrorCode.NONE, {number: log.leader for number, log in cluster.logs.items()})
        return True

    def _log(self, node_id, number):
        log = self.cluster.logs.get(number)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if log.leader != node_id else log

    def _offsets(self, node_id, request):
        ((topic, partitions),) = request.topics
        assert topic == TOPIC
        assert not request.read_committed
        answer = []
        for number, which in partitions:
            log = self._log(node_id, number)
            if isinstance(log, int):
                answer.append(ListedOffset(topic, number, log, -1, -1))
            else:
                answer.append(ListedOffset(topic, number, 0, -1, log.start if which == EARLIEST else log.end))
        return answer

    def _fetch(self, node_id, request, give_up_at_s):
        if self.cluster.throttled:
            self.cluster.throttled -= 1
            return []
        ((topic, partitions),) = request.topics
        assert topic == TOPIC
        answer, room, empty = [], request.max_bytes, True
        for number, offset in partitions:
            log = self._log(node_id, number)
            if isinstance(log, int):
                answer.append(Fetched(topic, number, log))
                continue
            most = min(room, request.partition_max_bytes)
            answer.append(log.fetched(number, offset, most, at_least_one=empty))
            room = max(0, room - len(answer[-1].records))
            empty = empty and not answer[-1].records
        said = any(each.error or each.records for each in answer)
        late = not self.cluster.waits or self.cluster.clock.seconds() >= give_up_at_s
        return answer if said or late else None


class Setup:
    """A following of the topic, and who hears of it."""

    def __init__(self, cluster, **options):
        self.cluster = cluster
        self.condition = Condition()
        self.recorder = Recorder(**options)
        self.followings = Followings(
            new_client=cluster.new_client, clock=cluster.clock, condition=self.condition
        )
        self.followings.start()
        self.following = self.followings.follow(topic=TOPIC, observer=self.recorder)

    @property
    def values(self):
        return self.recorder.values()

    @property
    def caught_up(self):
        return bool(self.recorder.caught_up_at)

    @property
    def reasons(self):
        return self.condition.health().reasons

    def catch_up(self):
        self.cluster.until(lambda: self.caught_up)
        return self.values

    def until(self, count):
        self.cluster.until(lambda: len(self.recorder.records) >= count)
        return self.values

    def assert_each_exactly_once(self):
        found = defaultdict(list)
        for each in self.recorder.records:
            found[each.partition].append((each.offset, each.value))
        assert dict(found) == {
            number: sorted(log.shown.items()) for number, log in self.cluster.logs.items() if log.shown
        }

    def stop(self):
        """Stop it; what it was told until then is all that it will be told."""
        connected = any(not client.closed for client in self.cluster.clients)
        stopping = [self.following.stop(), self.followings.stop(), self.following.stop()]
        told = len(self.recorder.records), len(self.recorder.caught_up_at)
        # Connections take their time to close.
        assert any(each.called for each in stopping) is not connected
        self.cluster.run(LATENCY_S)
        assert [self.result_of(each) for each in stopping] == [None] * 3
        assert all(client.closed and not client.open for client in self.cluster.clients)
        self.cluster.run(20)
        assert self.cluster.clock.getDelayedCalls() == []
        assert (len(self.recorder.records), len(self.recorder.caught_up_at)) == told
        assert self.condition.health().ready

    def result_of(self, deferred):
        results = []
        deferred.addBoth(results.append)
        assert results, "it has not fired"
        return results[0]


@pytest.fixture
def setup():
    """Makes setups, and stops them at the end."""
    made = []

    def make(cluster, **options):
        made.append(Setup(cluster, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def values(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


class TestReading:
    def test_every_partition_is_read_from_its_first_record_and_live(self, setup):
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

    def test_it_provides_the_interface(self, setup):
        assert verifyObject(IFollowing, setup(Cluster()).following)

    def test_nothing_happens_before_follow_has_returned(self, setup):
        cluster = Cluster()
        setup(cluster)
        assert cluster.clients == []

    def test_a_following_begins_when_all_of_them_are_started(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"x")
        followings = Followings(new_client=cluster.new_client, clock=cluster.clock, condition=Condition())
        recorder = Recorder()
        followings.follow(topic=TOPIC, observer=recorder)
        cluster.run(5)
        assert cluster.clients == []
        followings.start()
        cluster.until(lambda: recorder.caught_up_at)
        assert recorder.values() == [b"x"]
        followings.stop()
        cluster.run(1)
        assert cluster.clock.getDelayedCalls() == []

    def test_after_all_were_stopped_a_following_is_a_stopped_one(self):
        cluster = Cluster()
        followings = Followings(new_client=cluster.new_client, clock=cluster.clock, condition=Condition())
        followings.start()
        followings.stop()
        following = followings.follow(topic=TOPIC, observer=Recorder())
        cluster.run(5)
        assert cluster.clients == []
        stopped = []
        following.stop().addCallback(stopped.append)
        assert stopped == [None]

    def test_each_following_has_a_client_of_its_own(self, setup):
        cluster = Cluster()
        one = setup(cluster)
        one.followings.follow(topic=TOPIC, observer=Recorder())
        one.catch_up()
        assert len(cluster.clients) == 2

    def test_partitions_that_are_added_are_read_from_their_first_record(self, setup):
        cluster = Cluster(partitions=2)
        cluster.logs[0].append(b"a")
        following = setup(cluster)
        following.catch_up()
        cluster.add_partitions(2)
        for number in (2, 3):
            cluster.logs[number].append(b"new", b"newer")
        cluster.until(lambda: len(following.values) == 5, within_s=11)
        following.assert_each_exactly_once()
        assert following.recorder.caught_up_at == [1]

    def test_a_long_replay_leaves_other_work_its_turns(self, setup):
        cluster = Cluster()
        for _ in range(40):
            cluster.logs[0].append(*values(100))
        seen = []
        setup(cluster, on_record=lambda _: seen.append(cluster.clock.turns)).catch_up()
        assert len(seen) == 4000
        assert max(Counter(seen).values()) == 500

    def test_an_observer_that_takes_its_time_leaves_other_work_its_turns(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(*values(50))
        seen = []

        take = cluster.take(0.001)
        setup(cluster, on_record=lambda _: take(seen.append(cluster.clock.turns))).catch_up()
        assert max(Counter(seen).values()) <= 6

    def test_nothing_is_fetched_while_what_was_fetched_is_delivered(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(*values(2000))
        seen = []
        following = setup(cluster, on_record=lambda _: seen.append(len(cluster.fetches)))
        following.catch_up()
        assert set(seen) == {1}

    def test_a_broker_that_has_nothing_is_not_asked_more_than_ten_times_a_second(self, setup):
        cluster = Cluster()
        cluster.waits = False
        setup(cluster)
        cluster.run(10)
        assert 20 < len(cluster.fetches) <= 101

    def test_a_broker_that_throttles_is_asked_again(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"a")
        cluster.throttled = 3
        assert setup(cluster).catch_up() == [b"a"]

    def test_a_batch_that_is_larger_than_the_limit_gets_its_turn(self, setup):
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

    def test_less_is_asked_for_on_a_line_that_is_too_slow(self, setup):
        cluster = Cluster()
        cluster.silent = {1}
        setup(cluster)
        cluster.run(1)
        cluster.silent = set()
        cluster.run(10)
        cluster.silent = {1}
        cluster.run(120)
        sizes = [request.max_bytes for _, request in cluster.fetches]
        assert sizes[0] == 16 * 1024 * 1024
        assert min(sizes) == 1024 * 1024
        cluster.silent = set()
        cluster.run(60)
        assert cluster.fetches[-1][1].max_bytes == 16 * 1024 * 1024


class TestCatchingUp:
    def test_an_empty_topic_is_caught_up_with(self, setup):
        following = setup(Cluster(partitions=3))
        following.catch_up()
        assert following.recorder.caught_up_at == [0]
        following.cluster.run(20)
        assert following.recorder.caught_up_at == [0]

    def test_it_takes_all_partitions(self, setup):
        cluster = Cluster(partitions=3)
        cluster.silent = {3}
        cluster.logs[0].append(b"a")
        following = setup(cluster)
        following.until(1)
        cluster.run(4)
        assert not following.caught_up
        cluster.silent = set()
        following.catch_up()

    def test_records_that_are_not_shown_count_as_well(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"a")
        cluster.logs[0].append_aborted(b"never", b"seen")
        following = setup(cluster)
        assert following.catch_up() == [b"a"]
        assert cluster.clock.seconds() < 1
        cluster.logs[0].append(b"b")
        assert following.until(2) == [b"a", b"b"]

    def test_records_that_compaction_has_removed_from_the_last_batch_count_as_well(self, setup):
        cluster = Cluster()
        cluster.logs[0].lose_the_last_of(b"a", lost=3)
        following = setup(cluster)
        assert following.catch_up() == [b"a"]
        assert cluster.clock.seconds() < 1
        cluster.logs[0].append(b"b")
        following.until(2)
        following.assert_each_exactly_once()

    def test_the_same_producer_may_abort_and_commit(self, setup):
        cluster = Cluster()
        log = cluster.logs[0]
        log.append_aborted(b"no", producer_id=7)
        log.append(b"yes", attributes=0x10, producer_id=7)
        log.append_marker(commit=True, producer_id=7)
        log.append_aborted(b"no", producer_id=7)
        log.append(b"plain")
        following = setup(cluster)
        assert following.catch_up() == [b"yes", b"plain"]

    def test_an_open_transaction_is_waited_for(self, setup):
        cluster = Cluster()
        log = cluster.logs[0]
        log.append(b"a")
        log.stable = 1
        log.append(b"b", attributes=0x10, producer_id=7)
        following = setup(cluster)
        cluster.run(60)
        assert following.values == [b"a"]
        assert not following.caught_up
        log.append_marker(commit=True)
        log.stable = None
        assert following.catch_up() == [b"a", b"b"]

    def test_a_log_whose_last_records_were_removed_is_not_waited_for_for_ever(self, setup):
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

    def test_partitions_that_others_left_no_room_for_are_waited_for(self, setup):
        cluster = Cluster(partitions=3, brokers=(1,))
        for log in cluster.logs.values():
            log.append(b"x" * 1_500_000)
        following = setup(cluster, on_record=cluster.take(6))
        following.catch_up()
        assert following.recorder.caught_up_at == [3]

    def test_nothing_is_passed_over_while_a_broker_fetches_old_segments(self, setup):
        cluster = Cluster()
        log = cluster.logs[0]
        log.append(b"a")
        old, log.batches = log.batches, []
        following = setup(cluster)
        cluster.run(3)
        assert not following.caught_up
        log.batches = old
        assert following.catch_up() == [b"a"]

    def test_a_log_that_became_shorter_is_not_waited_for_for_ever(self, setup):
        cluster = Cluster()
        log = cluster.logs[0]
        log.append(b"a")
        log.stable = 1
        log.append(*values(9), attributes=0x10)
        following = setup(cluster)
        following.until(1)
        del log.batches[1:]
        log.shown = {0: b"a"}
        log.end, log.stable = 1, None
        assert following.catch_up() == [b"a"]

    def test_a_topic_that_does_not_exist_is_empty_until_it_does(self, setup):
        cluster = Cluster(partitions=0)
        following = setup(cluster)
        following.catch_up()
        assert 1 <= cluster.clock.seconds() < 2
        assert following.reasons == ()
        cluster.add_partitions(2)[0].append(b"first")
        cluster.until(lambda: following.values, within_s=1)
        assert following.values == [b"first"]
        assert following.recorder.caught_up_at == [0]

    def test_a_broker_that_has_not_heard_of_the_topic_yet_is_asked_again(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"a")
        cluster.ignorant = 3
        following = setup(cluster)
        following.catch_up()
        assert following.recorder.caught_up_at == [1]

    def test_a_name_that_no_topic_can_have_is_told(self, setup):
        cluster = Cluster()
        cluster.topic_error = ErrorCode.INVALID_TOPIC_EXCEPTION
        following = setup(cluster)
        following.catch_up()
        cluster.run(1)
        assert following.reasons == ("No topic of Kafka can have the name t.",)


class TestChanges:
    """Leaders move, brokers die, logs are cut, topics go: each record arrives once, or a warning says why."""

    def test_a_partition_follows_its_leader(self, setup):
        cluster = Cluster(partitions=3)
        following = setup(cluster)
        following.catch_up()
        for turn in range(6):
            for number, log in cluster.logs.items():
                log.leader = 1 + (number + turn) % 3
                log.append(b"%d" % turn)
            started_s = cluster.clock.seconds()
            following.until(3 * (turn + 1))
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
    def test_an_error_that_passes_is_survived(self, setup, code):
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

    def test_one_change_of_the_lead_is_not_worth_a_line_in_the_log(self, setup):
        cluster = Cluster()
        following = setup(cluster)
        following.catch_up()
        with capturedLogs() as events:
            cluster.logs[0].leader = 2
            cluster.logs[0].append(b"a")
            following.until(1)
        assert events == []

    def test_a_dead_broker_does_not_hold_up_the_partitions_of_others(self, setup):
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

    def test_a_broker_that_does_not_answer_is_not_waited_for_when_its_partitions_have_moved(self, setup):
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
        # What the first broker says at last has been read already.
        cluster.logs[0].leader = 1
        cluster.silent = set()
        following.until(2)
        cluster.run(15)
        following.assert_each_exactly_once()

    def test_an_answer_that_comes_after_the_partition_has_moved_is_not_told_again(self, setup):
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

    def test_a_partition_that_moves_while_it_is_delivered_is_not_read_by_two(self, setup):
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
            for number, offset in request.topics[0][1]
            if (node_id, number) == (2, 0)
        } == {1000, 1001}

    def test_an_answer_about_a_topic_that_is_gone_comes_too_late(self, setup):
        cluster = Cluster(partitions=1)
        following = setup(cluster)
        following.catch_up()
        cluster.slow[1] = 4.0
        cluster.logs[0].errors = [ErrorCode.KAFKA_STORAGE_ERROR]
        cluster.run(4.6)
        # Asked again, it has something, and the answer is on its way when the topic goes.
        cluster.logs[0].append(b"old")
        cluster.run(0.2)
        cluster.delete()
        cluster.run(2.5)
        cluster.slow.clear()
        cluster.add_partitions(1)[0].append(b"new")
        cluster.run(10)
        assert following.values == [b"new"]

    def test_metadata_is_not_asked_for_all_the_time(self, setup):
        cluster = Cluster(partitions=40, brokers=range(40))
        for broker in cluster.brokers:
            cluster.slow[broker] = 0.02 * broker
        for log in cluster.logs.values():
            log.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        setup(cluster)
        cluster.run(3)
        assert 2 < len(cluster.loads) <= 31

    def test_when_no_broker_answers_it_tries_again_until_one_does(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"a")
        cluster.down = {1, 2, 3}
        following = setup(cluster)
        cluster.run(60)
        assert following.reasons == ("The topic t cannot be read: 10.0.0.1:9092 refuses connections.",)
        cluster.down = set()
        cluster.until(lambda: following.caught_up, within_s=6)
        assert following.values == [b"a"]
        assert following.reasons == ()

    def test_it_does_not_wait_more_than_five_seconds_nor_try_all_the_time(self, setup):
        cluster = Cluster()
        setup(cluster)
        cluster.run(1)
        cluster.asked.clear()
        cluster.down = {1}
        cluster.run(60)
        assert 12 <= len(cluster.asked) <= 20

    def test_a_partition_without_a_leader_is_told_and_read_when_it_has_one(self, setup):
        cluster = Cluster(partitions=2)
        cluster.logs[1].append(b"a")
        cluster.logs[1].leader = None
        following = setup(cluster)
        cluster.run(5)
        assert following.reasons == (
            "Partition 1 of the topic t has no leader, so nothing can be read from it.",
        )
        assert not following.caught_up
        cluster.logs[1].leader = 3
        cluster.until(lambda: following.caught_up, within_s=2)
        assert following.values == [b"a"]
        cluster.run(1)
        assert following.reasons == ()

    def test_a_topic_that_may_not_be_read_is_told_and_read_when_it_may(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"a")
        cluster.topic_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        following = setup(cluster)
        cluster.run(30)
        assert following.reasons == (
            "The service is not allowed to read the topic t; it needs the right DESCRIBE.",
        )
        assert not following.caught_up
        cluster.topic_error = None
        cluster.logs[0].errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        cluster.until(lambda: following.reasons and "READ" in following.reasons[0], within_s=6)
        assert following.catch_up() == [b"a"]
        assert following.reasons == ()

    def test_an_error_of_the_topic_that_passes_is_survived(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"a")
        cluster.topic_error = ErrorCode.LEADER_NOT_AVAILABLE
        following = setup(cluster)
        cluster.run(0.05)
        assert following.reasons == ()
        cluster.run(1)
        assert following.reasons == ("The topic t cannot be read: Kafka answers LEADER_NOT_AVAILABLE.",)
        cluster.topic_error = None
        assert following.catch_up() == [b"a"]

    def test_records_that_were_deleted_before_they_were_read_are_passed_over_with_a_warning(self, setup):
        cluster = Cluster()
        log = cluster.logs[0]
        following = setup(cluster)
        following.catch_up()
        cluster.down = {1}
        cluster.run(1)
        for number in range(10):
            log.append(b"%d" % number)
        log.delete_before(7)
        cluster.down = set()
        with capturedLogs() as events:
            following.until(3)
        (warning,) = [event for event in events if event["log_level"] is LogLevel.warn]
        assert (warning["skipped"], warning["earliest"]) == (7, 7)
        following.assert_each_exactly_once()

    def test_a_topic_whose_records_were_all_deleted_is_caught_up_with(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"a", b"b")
        cluster.silent = {1}
        following = setup(cluster)
        cluster.run(1)
        cluster.logs[0].delete_before(2)
        cluster.silent = set()
        assert following.catch_up() == []

    def test_a_log_that_was_replaced_is_read_again_with_a_warning(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(*values(5))
        following = setup(cluster)
        following.catch_up()
        cluster.logs[0] = Log(1)
        cluster.logs[0].append(b"other")
        with capturedLogs() as events:
            following.until(6)
        assert following.values == [*values(5), b"other"]
        (warning,) = [event for event in events if event["log_level"] is LogLevel.warn]
        assert (warning["latest"], warning["position"]) == (1, 5)
        cluster.logs[0].append(b"more")
        following.until(7)

    def test_a_log_that_was_replaced_before_it_was_read_is_caught_up_with(self, setup):
        cluster = Cluster()
        for number in range(3):
            cluster.logs[0].append(b"%d" % number)
        following = setup(cluster)
        following.until(1)
        # One of three is enough for the position to be beyond the end of the new one.
        cluster.logs[0] = Log(1)
        following.catch_up()

    def test_a_broker_that_lags_behind_is_no_reason_to_read_everything_again(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(*values(5))
        following = setup(cluster)
        following.catch_up()
        # For a moment another one seems to lead.
        real, stale = cluster.logs[0], Log(2)
        stale.append(*values(2))
        cluster.logs[0] = stale
        cluster.run(0.8)
        cluster.logs[0] = real
        real.append(b"5")
        following.until(6)
        cluster.run(20)
        following.assert_each_exactly_once()
        assert following.reasons == ()

    def test_a_position_that_only_one_broker_did_not_have_is_kept(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"a")
        cluster.logs[0].errors = [ErrorCode.OFFSET_OUT_OF_RANGE] * 5
        following = setup(cluster)
        cluster.run(1)
        assert 2 < len(cluster.fetches) < 6
        following.catch_up()
        following.assert_each_exactly_once()

    def test_a_topic_that_is_deleted_and_made_again_is_read_from_its_first_record(self, setup):
        cluster = Cluster(partitions=2)
        cluster.logs[0].append(b"old")
        following = setup(cluster)
        following.catch_up()
        cluster.delete()
        with capturedLogs() as events:
            cluster.run(10)
        assert [event["partitions"] for event in events if event["log_level"] is LogLevel.warn] == ["0, 1"]
        assert following.reasons == ()
        cluster.add_partitions(3)
        for log in cluster.logs.values():
            log.append(b"new", b"newer")
        following.until(7)
        assert following.values == [b"old", *[b"new", b"newer"] * 3]
        assert following.recorder.caught_up_at == [1]

    def test_a_topic_that_is_deleted_before_it_was_read_is_caught_up_with(self, setup):
        cluster = Cluster(partitions=2)
        cluster.logs[0].append(b"a")
        cluster.logs[1].leader = None
        following = setup(cluster)
        following.until(1)
        assert not following.caught_up
        cluster.delete()
        following.catch_up()

    def test_a_topic_with_fewer_partitions_than_before_is_read(self, setup):
        cluster = Cluster(partitions=3)
        following = setup(cluster)
        following.catch_up()
        del cluster.logs[1], cluster.logs[2]
        cluster.run(10)
        cluster.logs[0].append(b"a")
        following.until(1)
        assert following.reasons == ()

    def test_brokers_that_forget_the_topic_for_a_while_do_not_make_it_read_twice(self, setup):
        cluster = Cluster(partitions=2)
        cluster.logs[0].append(b"a")
        following = setup(cluster)
        following.catch_up()
        cluster.ignorant = 30
        cluster.run(11)
        for log in cluster.logs.values():
            log.append(b"b")
        following.until(3)
        cluster.run(30)
        assert cluster.ignorant == 0
        following.assert_each_exactly_once()

    def test_a_partition_that_waits_for_another_one_is_not_taken_for_gone(self, setup):
        cluster = Cluster(partitions=2, brokers=(1,))
        cluster.logs[1].append(b"once")
        following = setup(cluster)
        following.catch_up()
        following.recorder._on_record = cluster.take(0.5)
        cluster.run(9)
        cluster.logs[0].append(*values(20))
        cluster.ignorant = 12
        cluster.run(30)
        assert cluster.ignorant == 0
        following.assert_each_exactly_once()


class TestWhatCannotBeRead:
    def test_a_corrupt_batch_is_told_and_never_passed_over(self, setup):
        cluster = Cluster(partitions=2)
        log = cluster.logs[0]
        log.append(b"good")
        log.append(b"bad")
        log.append(b"after")
        first, last, data = log.batches[1]
        log.batches[1] = (first, last, data[:-1] + b"!")
        cluster.logs[1].append(b"other")
        following = setup(cluster)
        cluster.run(20)
        assert sorted(following.values) == [b"good", b"other"]
        assert not following.caught_up
        (reason,) = following.reasons
        assert reason.startswith("Partition 0 of the topic t cannot be read on at offset 1: ")
        cluster.asked.clear()
        cluster.run(60)
        assert sum(node_id == 1 for node_id, _ in cluster.asked) <= 14
        log.batches[1] = (first, last, data)
        following.catch_up()
        following.assert_each_exactly_once()
        assert following.reasons == ()

    def test_a_codec_that_is_not_known_is_told(self, setup):
        cluster = Cluster()
        cluster.logs[0].append(b"a", attributes=5)
        following = setup(cluster)
        cluster.run(5)
        (reason,) = following.reasons
        assert "codec 5" in reason

    def test_an_answer_without_a_whole_batch_is_told(self, setup):
        cluster = Cluster()
        log = cluster.logs[0]
        log.append(b"a")
        first, last, data = log.batches[0]
        log.batches[0] = (first, last, data[:-5])
        following = setup(cluster)
        cluster.run(5)
        assert following.reasons == (
            "Partition 0 of the topic t cannot be read on at offset 0: Kafka has sent no whole batch.",
        )

    def test_a_length_that_cannot_be_is_told(self, setup):
        cluster = Cluster()
        log = cluster.logs[0]
        log.append(b"a")
        first, last, data = log.batches[0]
        log.batches[0] = (first, last, data[:8] + b"\xff\xff\xff\xff" + data[12:])
        following = setup(cluster)
        cluster.run(5)
        assert len(following.reasons) == 1

    @pytest.mark.parametrize("method", ["request", "load_metadata"])
    def test_what_nobody_expects_is_logged_and_survived(self, setup, no_failure_is_lost, method):
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
        assert following.reasons[0].endswith("see the log.")
        assert following.catch_up() == [b"a"]
        assert {failure.type for failure in no_failure_is_lost} == {ZeroDivisionError}
        no_failure_is_lost.clear()
        assert following.reasons == ()

    def test_a_following_that_cannot_begin_is_told_and_can_be_stopped(self, setup, no_failure_is_lost):
        cluster = Cluster()
        cluster.new_client = lambda: 1 / 0
        following = setup(cluster)
        cluster.run(1)
        assert following.reasons == ("The topic t is not followed any more; see the log.",)
        assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
        no_failure_is_lost.clear()


class TestObservers:
    def test_one_that_raises_is_logged_and_told_of_the_next_record(self, setup, no_failure_is_lost):
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

    def test_one_may_stop_at_a_record(self, setup):
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

    def test_one_may_stop_when_it_has_caught_up(self, setup):
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
    cluster.topic_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def corrupt(cluster):
    cluster.logs[0].batches = [(0, 2, b"\0" * 200)]


@pytest.mark.parametrize("state", [well, empty, large, dead, silent, unknown, forbidden, corrupt])
def test_it_can_be_stopped_at_any_time(state):
    def begun():
        cluster = Cluster(partitions=3)
        for log in cluster.logs.values():
            log.append(*values(3))
        state(cluster)
        return Setup(cluster)

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
        self.setup = None

    def log(self, partition):
        return self.cluster.logs[partition % len(self.cluster.logs)]

    def next_values(self, count):
        self.number += count
        return values(count, self.number - count)

    @initialize(counts=st.lists(st.integers(min_value=0, max_value=3), max_size=4))
    def begin(self, counts):
        for partition, count in enumerate(counts):
            if count:
                self.log(partition).append(*self.next_values(count))
        self.existed = {number: log.end for number, log in self.cluster.logs.items()}
        self.setup = Setup(self.cluster, on_record=self.cluster.take(0.0002))

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
    def refuse(self, partition, errors):
        self.log(partition).errors += errors

    @precondition(lambda self: self.setup and self.setup.caught_up and not self.forgotten)
    @rule(count=st.integers(min_value=1, max_value=3))
    def forget_the_topic(self, count):
        # More often, and it would rightly pass for deleted.
        self.forgotten = True
        self.cluster.ignorant = count

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.005, 0.1, 0.6, 2.0, 11.0]))
    def wait(self, seconds):
        self.cluster.run(seconds)

    @invariant()
    def nothing_is_told_twice_or_out_of_order(self):
        if self.setup is None:
            return
        last = defaultdict(lambda: -1)
        for each in self.setup.recorder.records:
            assert each.offset > last[each.partition]
            last[each.partition] = each.offset
            assert self.cluster.logs[each.partition].shown[each.offset] == each.value
        assert len(self.setup.recorder.caught_up_at) <= 1

    def teardown(self):
        if self.setup is None:
            return
        self.cluster.down, self.cluster.silent, self.cluster.ignorant = set(), set(), 0
        self.cluster.slow.clear()
        for number, log in self.cluster.logs.items():
            log.errors = []
            log.leader = log.leader or 1 + number % 3
        self.cluster.run(40)
        self.setup.assert_each_exactly_once()
        (at,) = self.setup.recorder.caught_up_at
        told = {(each.partition, each.offset) for each in self.setup.recorder.records[:at]}
        for number, end in self.existed.items():
            for offset in self.cluster.logs[number].shown:
                assert offset >= end or (number, offset) in told
        assert self.setup.reasons == ()
        self.setup.stop()


TestFollowing = FollowingMachine.TestCase
TestFollowing.settings = settings(max_examples=50, stateful_step_count=25)


@pytest.fixture(scope="module")
def mock():
    with MockCluster() as cluster:
        yield cluster


@asynccontextmanager
async def following(cluster, topic, **options):
    """A recorder that follows over real connections, and the condition."""
    config = parse(f"kafka://{cluster.bootstrap}")
    endpoint_factory = make_endpoint_factory(
        security=Security.load(config, environ={}),
        client_id="tests",
        timeout_s=5.0,
    )
    recorder, condition = Recorder(), Condition()
    followings = Followings(
        new_client=lambda: Client(
            addresses=config.addresses,
            client_id="tests",
            endpoint_factory=endpoint_factory,
            reactor=reactor,
            listener=Connections(),
        ),
        clock=reactor,
        condition=condition,
        **options,
    )
    followings.start()
    followings.follow(topic=topic, observer=recorder)
    try:
        yield recorder, condition
    finally:
        await within(followings.stop())


def by_place(records):
    """In order of partitions, and within each in the order of arrival."""
    return sorted(records, key=lambda each: each.partition)


async def write(cluster, topic, count):
    """Some records with keys, so that they spread over the partitions."""
    await produced(cluster.bootstrap, topic, [(b"%d" % n, b"value %d" % n) for n in range(count)])


class TestOnTheMockCluster:
    @pytest_twisted.ensureDeferred
    async def test_it_reads_what_librdkafka_reads(self, mock):
        mock.create_topic("plain", partitions=5)
        await write(mock, "plain", 2000)
        async with following(mock, "plain") as (recorder, condition):
            await eventually(lambda: recorder.caught_up_at)
            assert recorder.caught_up_at == [2000]
            await write(mock, "plain", 500)
            await recorder.until(2500)
            assert condition.health().ready
        assert by_place(recorder.records) == await log_of(mock.bootstrap, "plain")

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    @pytest_twisted.ensureDeferred
    async def test_it_reads_every_codec_of_librdkafka(self, mock, codec):
        mock.create_topic(codec, partitions=2)
        await produced(
            mock.bootstrap, codec, [(None, b"%d" % n * 200) for n in range(300)], compression=codec
        )
        async with following(mock, codec) as (recorder, _):
            await recorder.until(300)
        assert by_place(recorder.records) == await log_of(mock.bootstrap, codec)

    @pytest_twisted.ensureDeferred
    async def test_it_follows_leaders_that_move(self, mock):
        mock.create_topic("moving", partitions=3, replicas=3)
        async with following(mock, "moving") as (recorder, condition):
            for turn in range(3):
                for partition in range(3):
                    mock.set_leader("moving", partition, 1 + (partition + turn) % 3)
                await write(mock, "moving", 100)
                await eventually(lambda turn=turn: len(recorder.records) >= 100 * (turn + 1))
            await eventually(lambda: condition.health().ready)
        assert by_place(recorder.records) == await log_of(mock.bootstrap, "moving")

    @pytest_twisted.ensureDeferred
    async def test_it_survives_errors_and_lost_connections(self, mock):
        mock.create_topic("troubled", partitions=3)
        await write(mock, "troubled", 200)
        mock.push_errors(LIST_OFFSETS, ErrorCode.NOT_LEADER_OR_FOLLOWER, DROP_CONNECTION)
        mock.push_errors(
            FETCH,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            DROP_CONNECTION,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            DROP_CONNECTION,
        )
        async with following(mock, "troubled") as (recorder, condition):
            await recorder.until(200)
            assert recorder.caught_up_at == [200]
            await eventually(lambda: condition.health().ready)
        assert by_place(recorder.records) == await log_of(mock.bootstrap, "troubled")

    @pytest_twisted.ensureDeferred
    async def test_it_survives_brokers_that_go_and_come(self):
        with MockCluster() as mock:
            mock.create_topic("t", partitions=3)
            for partition in range(3):
                mock.set_leader("t", partition, partition + 1)
            async with following(mock, "t") as (recorder, condition):
                await eventually(lambda: recorder.caught_up_at)
                mock.broker_down(2)
                await eventually(lambda: not condition.health().ready)
                (reason,) = condition.health().reasons
                assert reason.startswith("The topic t cannot be read from broker 2: ")
                mock.broker_down()
                mock.broker_up()
                await write(mock, "t", 100)
                await recorder.until(100)
                await eventually(lambda: condition.health().ready)
            assert by_place(recorder.records) == await log_of(mock.bootstrap, "t")

    @pytest_twisted.ensureDeferred
    async def test_it_finds_a_topic_that_is_made_later(self, mock):
        async with following(mock, "later") as (recorder, condition):
            await eventually(lambda: recorder.caught_up_at)
            assert condition.health().ready
            mock.create_topic("later", partitions=2)
            await write(mock, "later", 50)
            await recorder.until(50)
        assert recorder.caught_up_at == [0]

    @pytest_twisted.ensureDeferred
    async def test_it_speaks_the_version_of_kafka_0_11(self):
        with MockCluster(brokers=1) as mock:
            mock.set_api_version(FETCH, 0, 4)
            mock.set_api_version(LIST_OFFSETS, 0, 1)
            mock.create_topic("t")
            await write(mock, "t", 10)
            async with following(mock, "t") as (recorder, _):
                await recorder.until(10)
