"""Reaching a cluster in which some brokers do not answer, or not yet."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.cluster_health import UNREACHABLE_AFTER_S, ClusterHealth
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.shared.health import HealthTracker

CONNECT_TIMEOUT_S = 5.0
SILENT = FailureReason(sentence="No answer.", public="Kafka does not answer.", lasting=False)


class Client:
    """A client that has metadata, and no connection to a broker at the address that this advertises."""

    def __init__(self, clock, *, answering, brokers):
        self.clock = clock
        self.answering = answering
        self.brokers = brokers

    def load_metadata(self, _):
        return succeed(None)

    def node_ids(self):
        return self.brokers

    def is_connected(self, _):
        return False

    def when_connected(self, node_id):
        if node_id in self.answering:
            return succeed(None)
        connecting = Deferred()

        def time_out():
            if not connecting.called:
                connecting.errback(RequestFailed(SILENT, sent=False))

        self.clock.callLater(CONNECT_TIMEOUT_S, time_out)
        return connecting


class Listener:
    def __init__(self, clock):
        self.clock = clock
        self.reached_at = []
        self.unreachable_at = []

    def cluster_reached(self):
        self.reached_at.append(self.clock.seconds())

    def cluster_unreachable(self, _):
        self.unreachable_at.append(self.clock.seconds())


@pytest.fixture
def watch_of():
    """A function that probes brokers of which some answer; returns the listener, after 20 s."""
    cluster_healths = []

    def watch_of(brokers, *, answering):
        clock = Clock()
        listener = Listener(clock)
        cluster_healths.append(
            ClusterHealth(health_tracker=HealthTracker(clock), interval_s=10.0, clock=clock)
        )
        cluster_healths[-1].start(
            client=Client(clock, answering=answering, brokers=brokers), listener=listener
        )
        clock.pump([0.125] * 160)
        return listener

    yield watch_of
    for cluster_health in cluster_healths:
        cluster_health.stop()


def test_brokers_that_are_frozen_do_not_hide_one_that_answers(watch_of):
    listener = watch_of([1, 2, 3], answering={3})
    assert listener.unreachable_at == []
    assert listener.reached_at[0] < UNREACHABLE_AFTER_S


def test_when_all_are_frozen_none_is_reached(watch_of):
    listener = watch_of([1, 2, 3], answering=set())
    assert listener.unreachable_at == [UNREACHABLE_AFTER_S]
    assert listener.reached_at == []


class BusyClient(Client):
    """A client whose question waits for long behind others."""

    def load_metadata(self, _):
        return Deferred()


@pytest.mark.parametrize("answers_until_s", [3, 7, 60])
def test_a_cluster_that_answers_other_requests_is_not_unreachable_although_a_look_takes_long(answers_until_s):
    clock = Clock()
    listener = Listener(clock)
    cluster_health = ClusterHealth(health_tracker=HealthTracker(clock), interval_s=10.0, clock=clock)
    cluster_health.start(client=BusyClient(clock, answering=set(), brokers=[1]), listener=listener)
    for second in range(60):
        if second <= answers_until_s:
            cluster_health.responded("kafka1", 9092)
        assert listener.unreachable_at == [] or second > answers_until_s
        clock.pump([0.25] * 4)
    silent_from_s = answers_until_s + UNREACHABLE_AFTER_S
    assert listener.unreachable_at == [silent_from_s] * (silent_from_s < 60)
    cluster_health.stop()


def test_answers_do_not_hide_that_the_addresses_that_brokers_advertise_cannot_be_used():
    clock = Clock()
    listener = Listener(clock)
    cluster_health = ClusterHealth(health_tracker=HealthTracker(clock), interval_s=10.0, clock=clock)
    client = Client(clock, answering=set(), brokers=[1])
    client.when_connected = lambda _: fail(RequestFailed(SILENT, sent=False))
    cluster_health.start(client=client, listener=listener)
    for _ in range(60):
        cluster_health.responded("first", 9092)
        clock.advance(0.1)
    assert len(listener.unreachable_at) == 1
    cluster_health.stop()


def test_a_fault_of_whoever_is_told_does_not_end_the_watching(no_failure_is_lost):
    clock = Clock()
    listener = Listener(clock)
    cluster_health = ClusterHealth(health_tracker=HealthTracker(clock), interval_s=10.0, clock=clock)
    tell = listener.cluster_reached
    listener.cluster_reached = lambda: 1 / 0
    cluster_health.start(client=Client(clock, answering={1}, brokers=[1]), listener=listener)
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()
    listener.cluster_reached = tell
    clock.advance(1)
    assert listener.reached_at == [1.0]
    cluster_health.stop()
