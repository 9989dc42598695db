"""
A Kafka cluster that exists in memory and in the time of a `Clock`, and followings that read from it.

A test says what its brokers do: which of them are down, slow or silent, what is in the logs, and what the
next answers say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from struct import pack_into
from typing import TypeVar
from uuid import UUID

from aiokafka.record.util import calc_crc32c
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock, deferLater

from sampleapp.brokers.kafka.batches import Codec, encode_batch
from sampleapp.brokers.kafka.client import RequestFailed
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.consumer import Following
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    EARLIEST,
    LATEST,
    AbortedTransaction,
    Fetched,
    FetchRequest,
    ListedOffset,
    ListOffsetsRequest,
    Request,
)
from sampleapp.brokers.shared.condition import Condition
from sampleapp.brokers.shared.followings import Followings
from sampleapp.model import EARLIEST as START
from tests.support.brokers import Recorder, record

__all__ = ["LATENCY_S", "TOPIC", "Cluster", "FollowingSetup", "Log", "SimulatedClient", "batch", "values"]

R = TypeVar("R")

TOPIC = "t"
LATENCY_S = 0.002
TIMESTAMP_MS = 1_700_000_000_000
"""Of a record for which a test says nothing else."""
DOWN = FailureReason(
    sentence="10.0.0.1:9092 refuses connections.", public="No broker answers.", lasting=False
)


def batch(
    offset,
    values,
    *,
    codec=Codec.NONE,
    last_offset=None,
    attributes=0,
    producer_id=-1,
    keys=None,
    timestamp_ms=TIMESTAMP_MS,
):
    """A record batch as a broker has it; with a ``last_offset`` if the last records were compacted away."""
    keys = keys or [None] * len(values)
    data = bytearray(
        encode_batch(
            [
                record(TOPIC, value, key=key, timestamp_ms=timestamp_ms)
                for key, value in zip(keys, values, strict=True)
            ],
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
        self.timestamps = []
        """First offset and timestamp of each append."""
        self.shown = {}
        """The values to be shown, by offset."""
        self.stable = None
        """The last stable offset, if a transaction is open."""
        self.aborted = []
        """Transactions, and the offset of their end."""
        self.errors = []
        """What the next answers about it say."""
        self.unlisted = defaultdict(list)
        """What the next answers say of the offset of a time."""

    def append(self, *values, timestamp_ms=TIMESTAMP_MS, **options):
        data = batch(self.end, values, timestamp_ms=timestamp_ms, **options)
        self.timestamps.append((self.end, timestamp_ms))
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

    def listed(self, which):
        """The offset that a leader lists for a time, or for one of the two that stand for an end."""
        if which == EARLIEST:
            return self.start
        if which == LATEST:
            return self.end
        found = [offset for offset, timestamp_ms in self.timestamps if timestamp_ms >= which]
        return max(found[0], self.start) if found else -1

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
        self.topic_id = UUID(int=1)
        """``None`` where the brokers have no ids of topics (Kafka before 2.8)."""
        self.lagging = set()
        """The brokers that have not heard yet that the topic was made again."""
        self._former = (self.topic_id, self.logs)
        self.add_partitions(partitions)

    def add_partitions(self, count):
        for _ in range(count):
            number = len(self.logs)
            self.logs[number] = Log(self.brokers[number % len(self.brokers)])
        return self.logs

    def delete(self):
        self._former = (self.topic_id, self.logs)
        self.logs = {}

    def make(self, partitions):
        """Make the topic, which is another one than any before it."""
        if self.topic_id is not None:
            self.topic_id = UUID(int=self.topic_id.int + 1)
        return self.add_partitions(partitions)

    def make_again(self, partitions=1):
        """Delete the topic, and make another one of its name."""
        self.delete()
        return self.make(partitions)

    def known_to(self, node_id):
        """The id of the topic and its logs, as far as a broker has heard."""
        return self._former if node_id in self.lagging else (self.topic_id, self.logs)

    def new_client(self):
        self.clients.append(SimulatedClient(self))
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


class SimulatedClient:
    """
    What `ClusterClient` promises, on a `Cluster`.

    Each has metadata of its own, as it was when it was loaded.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.closed = False
        self.open = {}
        self.metadata = None
        self._turn = 0

    def load_metadata(self, topics: Iterable[str], *, auto_create: bool = False) -> Deferred[None]:
        assert list(topics) == [TOPIC]
        assert not auto_create
        self.cluster.loads.append(self.cluster.clock.seconds())
        return self._ask(None, self._metadata)

    def topic_error(self, topic: str) -> int | None:
        return self.metadata and self.metadata[0]

    def partitions_of(self, topic: str) -> Sequence[int]:
        return sorted(self.metadata[1])

    def leader_of(self, topic: str, partition: int) -> int | None:
        return self.metadata[1].get(partition)

    def topic_id(self, topic: str) -> UUID | None:
        return self.metadata[2]

    def forget_topic(self, topic: str) -> None:
        self.metadata = None

    def node_ids(self) -> Sequence[int]:
        return self.cluster.brokers

    def is_connected(self, node_id: int) -> bool:
        return not self.closed and node_id not in self.cluster.down

    def when_connected(self, node_id: int) -> Deferred[None]:
        return succeed(None) if self.is_connected(node_id) else fail(RequestFailed(DOWN, sent=False))

    def request(self, node_id: int, request: Request[R], *, timeout_s: float) -> Deferred[R]:
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

    def close(self) -> Deferred[None]:
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
        # Not always the same broker is asked.
        self._turn += 1
        topic_id, logs = cluster.known_to(cluster.brokers[self._turn % len(cluster.brokers)])
        if cluster.topic_error is not None:
            self.metadata = (cluster.topic_error, {}, None)
        elif cluster.ignorant or not logs:
            cluster.ignorant = max(0, cluster.ignorant - 1)
            self.metadata = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {}, None)
        else:
            leaders = {number: log.leader for number, log in logs.items()}
            self.metadata = (ErrorCode.NONE, leaders, topic_id)
        return True

    def _log(self, node_id, number, topic_id=None):
        known_id, logs = self.cluster.known_to(node_id)
        if topic_id not in (None, known_id) or (topic_id is not None and not logs):
            return ErrorCode.UNKNOWN_TOPIC_ID
        log = logs.get(number)
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
            if not isinstance(log, int) and log.unlisted[which]:
                log = log.unlisted[which].pop(0)
            if isinstance(log, int):
                answer.append(ListedOffset(topic, number, log, -1, -1))
            else:
                answer.append(ListedOffset(topic, number, 0, -1, log.listed(which)))
        return answer

    def _fetch(self, node_id, request, give_up_at_s):
        if self.cluster.throttled:
            self.cluster.throttled -= 1
            return []
        ((topic, partitions),) = request.topics
        assert topic == TOPIC
        answer, room, empty = [], request.max_bytes, True
        for number, offset in partitions:
            log = self._log(node_id, number, request.topic_ids.get(topic))
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


class FollowingSetup:
    """A following of the topic, and who hears of it."""

    def __init__(self, cluster, *, started=True, max_batch_bytes=64 * 1024 * 1024, start=START, **options):
        self.cluster = cluster
        self.condition = Condition()
        self.recorder = Recorder(**options)
        self.followings = Followings()
        self.max_batch_bytes = max_batch_bytes
        self.start = start
        self.following = self.follow(self.recorder)
        if started:
            self.followings.start()

    def follow(self, observer):
        following = Following(
            topic=TOPIC,
            observer=observer,
            new_client=self.cluster.new_client,
            clock=self.cluster.clock,
            condition=self.condition,
            ended=self.followings.ended,
            start=self.start,
            max_batch_bytes=self.max_batch_bytes,
        )
        self.followings.add(following)
        return following

    @property
    def records(self):
        """What it was told since it began, or began anew."""
        return self.recorder.records[max(self.recorder.reset_at, default=0) :]

    @property
    def values(self):
        return [each.value for each in self.records]

    @property
    def caught_up(self):
        return bool(self.recorder.caught_up_at)

    @property
    def obstacle(self):
        return self.following.obstacle()

    @property
    def reasons(self):
        return self.condition.health().reasons

    def catch_up(self):
        self.cluster.until(lambda: self.caught_up)
        return self.values

    def until(self, count):
        self.cluster.until(lambda: len(self.records) >= count)
        return self.values

    def assert_each_exactly_once(self):
        found = defaultdict(list)
        for each in self.records:
            found[each.partition].append((each.offset, each.value))
        assert dict(found) == {
            number: sorted(log.shown.items()) for number, log in self.cluster.logs.items() if log.shown
        }

    def stop(self):
        """Stop it; what it was told until then is all that it will be told."""
        connected = any(not client.closed for client in self.cluster.clients)
        stopping = [
            self.following.stop(),
            Deferred.fromCoroutine(self.followings.stop()),
            self.following.stop(),
        ]
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


def values(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]
