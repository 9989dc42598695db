"""Finding out that the clock of the service differs from Kafka's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher

from sampleapp.brokers.kafka.clock_check import ClockCheck
from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import DescribeQuorumRequest, Quorum
from sampleapp.messages.idempotency_key import IdempotencyScope
from tests.support.brokers import record
from tests.support.kafka_simulator import Fate, reason
from tests.support.kafka_simulator.publishing import NOW_S, warm


class FakeClient:
    """A client of a cluster whose controller has a clock; it counts the requests."""

    def __init__(self, world):
        self.world = world
        self.open = []
        world.open_clients += 1

    def load_metadata(self, topics):
        return succeed(None)

    def node_ids(self):
        return [1, 2, 3, 4, 5]

    def request(self, node_id, request, *, timeout_s):
        assert isinstance(request, DescribeQuorumRequest)
        self.world.asked.append(node_id)
        answer = self.world.answer()
        if not answer.called:
            self.open.append(answer)
        return answer

    def close(self):
        self.world.open_clients -= 1
        for answer in self.open:
            answer.errback(RequestFailed(reason(), sent=True))
        return succeed(None)


class World:
    def __init__(self):
        self.clock = Clock()
        self.service_ahead_s = 0.0
        self.asked = []
        self.open_clients = 0
        self.clock.rightNow = NOW_S
        self.answer = lambda: succeed(Quorum(0, int(self.clock.seconds() * 1000)))
        self.check = ClockCheck(
            new_client=lambda: FakeClient(self),
            clock=self.clock,
            now=lambda: self.clock.seconds() + self.service_ahead_s,
        )
        self.check.start()


@pytest.fixture
def world():
    world = World()
    yield world
    assert world.check.stop().called
    world.clock.advance(1000)
    assert world.open_clients == 0
    assert world.clock.getDelayedCalls() == []


@pytest.fixture
def lines():
    found = []

    def observe(event):
        if event.get("log_namespace", "").endswith("ClockCheck"):
            found.append(event["log_format"].format(**event))

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)


@pytest.mark.parametrize(
    ("ahead_s", "words"),
    [
        (0.0, None),
        (59.0, None),
        (-59.0, None),
        (61.0, "61 s ahead of"),
        (-90_000.0, "90000 s behind that of"),
    ],
)
def test_a_clock_that_differs_by_more_than_a_minute_is_found_out(world, lines, ahead_s, words):
    world.service_ahead_s = ahead_s
    assert world.check.ahead_s is None
    world.clock.advance(10)
    assert world.check.ahead_s == pytest.approx(ahead_s, abs=0.01)
    assert world.asked == [1]
    if words is None:
        assert world.check.warning is None
        assert lines == []
    else:
        assert words in world.check.warning
        assert lines == [world.check.warning]


def test_a_difference_is_logged_once_and_its_end_as_well(world, lines):
    world.service_ahead_s = 3600.0
    world.clock.pump([10, *[300] * 5])
    assert len(world.asked) == 6
    [line] = lines
    assert "3600 s ahead" in line
    world.service_ahead_s = 2.0
    world.clock.advance(300)
    assert world.check.warning is None
    assert lines[1:] == ["The clock of this service agrees with that of Kafka again."]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_rejected_record_is_a_warning_until_it_is_old(world, is_known):
    known = Quorum(0, int(NOW_S * 1000) if is_known else None)
    world.answer = lambda: succeed(known)
    world.clock.advance(10)
    world.check.rejected()
    assert "has rejected the time of this service" in world.check.warning
    world.answer = lambda: succeed(Quorum(0, None))
    world.clock.advance(599)
    assert world.check.warning is not None
    world.clock.advance(1)
    assert world.check.warning is None


@pytest.mark.parametrize("may_see", [False, True])
def test_a_cluster_that_does_not_say_its_time_is_not_asked_again(world, may_see):
    incompatible = RequestFailed(replace(reason(), incompatible=True), sent=False)
    denied = Quorum(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    world.answer = (lambda: fail(incompatible)) if may_see else (lambda: succeed(denied))
    world.clock.pump([10, *[300] * 5])
    # It does not connect to all brokers of a large cluster.
    assert world.asked == ([1, 2, 3] if may_see else [1])
    assert world.check.warning is None


def test_a_cluster_that_does_not_answer_is_asked_again(world):
    world.answer = lambda: fail(RequestFailed(reason(), sent=True))
    world.clock.advance(10)
    world.service_ahead_s = 100.0
    world.answer = lambda: succeed(Quorum(0, int(world.clock.seconds() * 1000)))
    world.clock.advance(300)
    assert "100 s ahead" in world.check.warning


def test_stopping_while_it_asks_closes_the_connection(world):
    world.answer = Deferred
    world.clock.advance(10)
    assert world.open_clients == 1
    assert world.check.stop().called
    assert world.open_clients == 0


def identified():
    identity = IdempotencyScope(caller="", key="k").identity(0, topic="t", key=b"k", value=b"v")
    return replace(record("t", b"v", key=b"k"), identity=identity)


def test_the_time_at_which_a_broker_has_appended_a_record_is_compared():
    world = warm(partitions=1)
    assert world.producer.measures(requests={}).clock_ahead_s is None
    world.cluster.append_time_ms = int((NOW_S + world.clock.seconds() - 7200) * 1000)
    world.publish(b"new")
    world.advance(1)
    assert world.producer.measures(requests={}).clock_ahead_s == pytest.approx(7200, abs=1)
    assert "ahead" in world.clock_check.warning


def test_the_time_of_a_record_that_the_broker_has_recognised_is_not_compared():
    world = warm(partitions=1)
    world.cluster.has_readers = True
    # As Kafka does: of a batch that it has, the time of its records.
    world.cluster.append_time_ms = int((NOW_S - 7200) * 1000)
    world.producer.publish(identified())
    world.advance(1)
    fates = [Fate.ANSWER_LOST]
    world.decide(lambda: fates.pop() if fates else Fate.ANSWERED)
    world.publish(b"sent again")
    world.advance(1)
    assert world.cluster.values() == [[b"first", b"v", b"sent again"]]
    assert world.clock_check.ahead_s is None
