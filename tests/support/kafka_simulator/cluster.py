"""The brokers of a simulated cluster, and what a test does to them."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from twisted.internet.task import Clock

from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from tests.support.kafka_simulator.client import SimulatedClient
from tests.support.kafka_simulator.fate import Fate
from tests.support.kafka_simulator.log import TOPIC, Log
from tests.support.kafka_simulator.sessions import Sessions
from tests.support.kafka_simulator.share_groups import ShareGroups

__all__ = ["LATENCY_S", "Cluster", "reason"]

LATENCY_S = 0.002
DOWN = FailureReason(
    sentence="10.0.0.1:9092 refuses connections.", public="No broker answers.", lasting=False
)


def reason(what="lost", *, lasting=False, incompatible=False):
    return FailureReason(
        sentence=what, public="Something is wrong.", lasting=lasting, incompatible=incompatible
    )


class CountingClock(Clock):
    """Counts the turns of the reactor that it plays: each call is one."""

    turns = 0

    def callLater(self, when, what, *a, **kw):
        return super().callLater(when, self._call, what, *a, **kw)

    def _call(self, what, *a, **kw):
        self.turns += 1
        what(*a, **kw)


class Cluster:
    """
    A cluster that is played, on a clock.

    A test says what its brokers do: which of them are down, slow or silent, what is in the logs, what the
    next answers say, and what becomes of requests.
    """

    has_readers = False
    """Whether a broker may get several requests of a kind at once, and ones for last stable offsets."""
    has_sessions = True
    """Whether the brokers keep fetch sessions."""
    tells_epochs = True
    """Whether Metadata has the epochs of leaders: a broker before Kafka 2.1 has none."""
    speaks_bytes = False
    """Whether each request and each response is sent as bytes, by `tests.support.kafka_simulator.wire`."""
    append_time_ms = -1
    """The time of appending that answers of Produce have, as of a topic with ``LogAppendTime``."""

    def __init__(self, partitions=1, *, brokers=(1, 2, 3), latency_s=LATENCY_S):
        self.clock = CountingClock()
        self.brokers = brokers
        self.latency_s = latency_s
        """From a request to its answer."""
        self.fates = {}
        """What decides on the fate of the next request, for each class of requests."""
        self.down = set()
        self.down_reason = DOWN
        self.silent = set()
        self.slow = defaultdict(float)
        """How many seconds the answers of a broker are on their way."""
        self.ignorant = 0
        """How many answers of Metadata do not know the topic, though it is there."""
        self.topic_errors = {}
        """What Metadata says of topics."""
        self.configs = {}
        """What DescribeConfigs says of resources, by type and name: settings, or an error code."""
        self.unreadable = set()
        """Topics that Fetch may not read."""
        self.unmentioned = set()
        """Partitions that Metadata leaves out, as a broker does that has not heard of them."""
        self.creates_topics = True
        """Whether those that are asked for are made, where the request says that they may be."""
        self.throttled = 0
        """How many answers of Fetch are empty, because of a quota."""
        self.throttle_ms = 0
        """What answers of Produce say of a quota."""
        self.batch_limit = 2**31
        """The largest batch that is appended, in bytes."""
        self.identity_error = ErrorCode.NONE
        self.ids_given = 0
        self.waits = True
        self.sessions = defaultdict(Sessions)
        """Those of each broker."""
        self.share_groups = ShareGroups(self)
        self.topics = {TOPIC: {}}
        """The logs of each topic by the numbers of partitions; one without any does not exist."""
        self.clients = []
        self.loads = []
        """When metadata was asked for, of which topics, and whether they may be made."""
        self.asked = []
        """All requests, and who was asked."""
        self.fetches = []
        self.produces = []
        self.topic_id = UUID(int=1)
        """``None`` where the brokers have no ids of topics (Kafka before 2.8)."""
        self.lagging = set()
        """The brokers that have not heard yet that the topic was made again."""
        self._former = (self.topic_id, self.logs)
        self.add_partitions(partitions)

    @property
    def logs(self):
        """Those of the topic that subscriptions read."""
        return self.topics.setdefault(TOPIC, {})

    def values(self):
        return [log.values for _, log in sorted(self.logs.items())]

    def add_partitions(self, count, *, topic=TOPIC):
        logs = self.topics.setdefault(topic, {})
        for _ in range(count):
            number = len(logs)
            logs[number] = Log(self.brokers[number % len(self.brokers)])
        return logs

    def may_create(self, topic):
        return self.creates_topics and topic not in self.topic_errors and not self.topics.get(topic)

    def fate_of(self, kind):
        return self.fates.get(kind, lambda: Fate.ANSWERED)()

    def elect(self, leader):
        """Let a broker lead all partitions; ``None`` for no leader."""
        for log in self.logs.values():
            log.leader = leader
            log.epoch += 1

    def cut_off(self, why, *, brokers=None):
        """Let some brokers, or all, not be reached, for this reason."""
        self.down, self.down_reason = set(self.brokers if brokers is None else brokers), why

    def mend(self):
        self.down, self.down_reason = set(), DOWN

    def delete(self):
        self._former = (self.topic_id, self.logs)
        self.topics[TOPIC] = {}

    def make(self, partitions):
        """Make the topic, which is another one than any before it."""
        if self.topic_id is not None:
            self.topic_id = UUID(int=self.topic_id.int + 1)
        return self.add_partitions(partitions)

    def make_again(self, partitions=1):
        """Delete the topic, and make another one of its name."""
        self.delete()
        return self.make(partitions)

    def known_to(self, node_id, topic=TOPIC):
        """The id of a topic and its logs, as far as a broker has heard."""
        if topic != TOPIC:
            return None, self.topics.get(topic, {})
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
