"""Probes of the cluster, and the notifications and log lines that follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.cluster_health import UNREACHABLE_AFTER_S, ClusterHealth
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.shared.health import HealthTracker
from tests.support.logs import logged_lines

INTERVAL_S = 10.0
HOST, PORT = "kafka1", 9092


def reason(sentence="kafka1:9092 refused the connection."):
    return FailureReason(sentence=sentence, public="Kafka cannot be reached.", lasting=False)


class Client:
    """A client as `ClusterHealth` sees it: what becomes of each look is up to the test."""

    def __init__(self, clock):
        self.clock = clock
        self.looks = []
        self.answer = lambda: succeed(None)
        self.advertised = lambda: succeed(None)

    def load_metadata(self, topics):
        assert topics == ()
        self.looks.append(self.clock.seconds())
        return self.answer()

    def node_ids(self):
        return [1, 2]

    def is_connected(self, node_id):
        return False

    def when_connected(self, node_id):
        return self.advertised()


class Watched:
    """The health of a cluster in the time of a clock, and what its listener is told."""

    def __init__(self):
        self.clock = Clock()
        self.client = Client(self.clock)
        self.health_tracker = HealthTracker(self.clock, unavailable="Kafka is unreachable")
        self.told = []
        self.cluster_health = ClusterHealth(
            health_tracker=self.health_tracker, interval_s=INTERVAL_S, clock=self.clock
        )

    def cluster_unreachable(self, reason):
        self.told.append((self.clock.seconds(), reason))

    def cluster_reached(self):
        self.told.append((self.clock.seconds(), None))

    def start(self):
        self.cluster_health.start(client=self.client, listener=self)

    def pass_s(self, seconds):
        steps = round(seconds * 8)
        self.clock.pump([0.125] * steps)

    def fail_with(self, why):
        self.client.answer = lambda: fail(RequestFailed(why, sent=False))

    def never_answer(self):
        self.client.answer = Deferred

    def answer(self):
        self.client.answer = lambda: succeed(None)

    def unreachable(self):
        return [why for _, why in self.told if why is not None]


@pytest.fixture
def probed():
    made = Watched()
    yield made
    made.cluster_health.stop()
    assert made.clock.getDelayedCalls() == []


def test_each_look_that_succeeds_is_told(probed):
    probed.start()
    probed.pass_s(25)
    assert [round(at_s, 1) for at_s, _ in probed.told] == [0.0, 10.0, 20.0]
    assert probed.unreachable() == []
    assert probed.health_tracker.health().ready


def test_a_cluster_that_rejects_connections_is_unreachable_after_five_seconds_which_is_told_once(probed):
    probed.fail_with(reason())
    probed.start()
    assert probed.health_tracker.health().reasons == (reason().sentence,)
    probed.pass_s(UNREACHABLE_AFTER_S - 0.2)
    assert probed.told == []
    probed.pass_s(30)
    assert [why for _, why in probed.told] == [reason()]


def test_a_frozen_cluster_is_unreachable_five_seconds_after_the_first_request_that_was_not_answered(probed):
    probed.start()
    probed.pass_s(3)
    probed.never_answer()
    probed.cluster_health.lost(HOST, PORT)
    probed.pass_s(UNREACHABLE_AFTER_S + 0.2)
    [(at_s, why)] = probed.told[1:]
    assert 3 + UNREACHABLE_AFTER_S <= at_s < 3.3 + UNREACHABLE_AFTER_S
    assert "No broker of the cluster has answered for 5 s" in why.sentence
    assert not why.lasting
    assert probed.health_tracker.health().reasons == (why.sentence,)


def test_a_frozen_cluster_that_nobody_asks_anything_is_unreachable_five_seconds_after_the_next_look(probed):
    probed.start()
    probed.never_answer()
    probed.pass_s(INTERVAL_S + UNREACHABLE_AFTER_S + 0.2)
    assert len(probed.unreachable()) == 1


def test_the_last_reason_of_a_failed_connection_is_why_the_cluster_is_unreachable(probed):
    probed.never_answer()
    probed.start()
    probed.cluster_health.failed(HOST, PORT, reason("kafka1:9092 did not accept a connection in time."))
    probed.pass_s(UNREACHABLE_AFTER_S + 0.2)
    assert [why.sentence for why in probed.unreachable()] == [
        "kafka1:9092 did not accept a connection in time."
    ]


def test_an_outage_that_is_shorter_is_not_told(probed):
    probed.start()
    probed.fail_with(reason())
    probed.cluster_health.lost(HOST, PORT)
    probed.pass_s(UNREACHABLE_AFTER_S - 0.5)
    assert not probed.health_tracker.health().ready
    probed.answer()
    probed.pass_s(30)
    assert probed.unreachable() == []
    assert probed.health_tracker.health().ready


def test_a_connection_that_comes_about_ends_the_outage_at_once(probed):
    probed.fail_with(reason())
    probed.start()
    probed.pass_s(60)
    looks = len(probed.client.looks)
    while len(probed.client.looks) == looks:
        probed.clock.advance(0.125)
    probed.clock.advance(0.25)
    probed.answer()
    assert probed.told[-1][1] is not None
    probed.cluster_health.connected(HOST, PORT)
    probed.clock.advance(0)
    assert probed.told[-1] == (probed.clock.seconds(), None)
    assert probed.health_tracker.health().ready


def test_without_any_connection_the_end_of_an_outage_is_noticed_within_a_second(probed):
    probed.fail_with(reason())
    probed.start()
    probed.pass_s(300)
    probed.answer()
    probed.pass_s(1.1)
    assert probed.told[-1][1] is None


def test_the_next_outage_is_told_again(probed):
    probed.start()
    for _ in range(2):
        probed.fail_with(reason())
        probed.cluster_health.lost(HOST, PORT)
        probed.pass_s(UNREACHABLE_AFTER_S + 1)
        probed.answer()
        probed.pass_s(5)
    assert len(probed.unreachable()) == 2
    assert probed.told[-1][1] is None


def test_a_connection_that_is_lost_is_looked_at_at_once_and_many_in_a_row_without_a_storm(probed):
    probed.start()
    probed.pass_s(5)
    before = len(probed.client.looks)
    probed.cluster_health.lost(HOST, PORT)
    probed.clock.advance(0)
    assert len(probed.client.looks) == before + 1
    for _ in range(100):
        probed.cluster_health.lost(HOST, PORT)
        probed.clock.advance(0.01)
    assert len(probed.client.looks) <= before + 7


def test_news_that_come_during_a_look_are_looked_at_soon_after(probed):
    looking = Deferred()
    probed.client.answer = lambda: looking
    probed.start()
    probed.cluster_health.lost(HOST, PORT)
    probed.answer()
    looking.callback(None)
    assert len(probed.client.looks) == 1
    probed.pass_s(0.3)
    assert len(probed.client.looks) == 2


def test_advertised_addresses_that_cannot_be_used_are_named(probed):
    probed.client.advertised = lambda: fail(RequestFailed(reason("b:1 refused the connection."), sent=False))
    probed.start()
    [said] = probed.health_tracker.health().reasons
    assert said.startswith("None of the addresses that the brokers advertise can be used: b:1 refused")
    probed.pass_s(UNREACHABLE_AFTER_S + 0.2)
    assert [why.sentence for why in probed.unreachable()] == [said]


def test_a_fault_of_a_look_does_not_end_the_watching(probed, no_failure_is_lost):
    probed.client.answer = lambda: fail(ZeroDivisionError())
    probed.start()
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()
    probed.answer()
    probed.pass_s(1)
    assert probed.told[-1][1] is None


def test_after_the_stop_nothing_is_looked_at_and_nobody_told(probed):
    probed.start()
    looking = Deferred()
    probed.client.answer = lambda: looking
    probed.pass_s(INTERVAL_S)
    probed.cluster_health.stop()
    looking.callback(None)
    probed.cluster_health.lost(HOST, PORT)
    probed.cluster_health.connected(HOST, PORT)
    probed.cluster_health.failed(HOST, PORT, reason())
    probed.pass_s(100)
    assert len(probed.client.looks) == 2
    assert len(probed.told) == 1


def test_before_the_start_connections_are_only_kept_in_mind(probed):
    probed.cluster_health.failed(HOST, PORT, reason())
    probed.cluster_health.lost(HOST, PORT)
    probed.cluster_health.connected(HOST, PORT)
    probed.pass_s(100)
    assert probed.client.looks == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answer", "reject", "freeze", "lost", "connected", "failed"]),
            st.floats(0.1, 12),
        ),
        max_size=30,
    )
)
def test_unreachable_is_told_once_between_two_times_that_it_was_reached(events):
    probed = Watched()
    probed.start()
    pending = []

    def freeze():
        pending.append(Deferred())
        return pending[-1]

    for what, seconds in events:
        if what == "answer":
            probed.answer()
        elif what == "reject":
            probed.fail_with(reason())
        elif what == "freeze":
            probed.client.answer = freeze
        elif what == "failed":
            probed.cluster_health.failed(HOST, PORT, reason())
        else:
            getattr(probed.cluster_health, what)(HOST, PORT)
        probed.pass_s(seconds)
        # The client gives up some time.
        for each in pending:
            each.errback(RequestFailed(reason("silent"), sent=True))
        pending.clear()
    # It never says twice in a row that nothing is reached.
    for (_, one), (_, other) in zip(probed.told, probed.told[1:], strict=False):
        assert one is None or other is None
    # In the end, whatever was before, the truth is known.
    probed.answer()
    probed.pass_s(INTERVAL_S + 1)
    assert probed.told[-1][1] is None
    assert probed.health_tracker.health().ready
    probed.cluster_health.stop()
    assert probed.clock.getDelayedCalls() == []


# --- the log -------------------------------------------------------------------------------------------


def test_one_reason_is_one_line(probed):
    with logged_lines() as lines:
        probed.cluster_health.failed(HOST, PORT, reason())
        probed.fail_with(reason())
        probed.start()
        probed.pass_s(30)
    assert lines == [f"Kafka is unreachable; still trying: {reason().sentence}"]


def test_an_address_that_fails_while_others_work_is_a_line_of_its_own_and_so_is_its_end(probed):
    with logged_lines() as lines:
        probed.start()
        for _ in range(3):
            probed.cluster_health.failed(HOST, PORT, reason())
            probed.pass_s(1)
        probed.cluster_health.connected(HOST, PORT)
        probed.pass_s(1)
    assert lines == [
        "Kafka was reached; brokers: 2",
        f"No connection to a Kafka broker; trying again: {reason().sentence}",
        "Connected to the Kafka broker at kafka1:9092 again.",
    ]


def test_an_address_that_fails_for_another_reason_is_logged_again_but_not_all_the_time(probed):
    with logged_lines() as lines:
        probed.start()
        for turn in range(200):
            probed.cluster_health.failed(HOST, PORT, reason(f"reason {turn // 7 % 2}"))
            probed.pass_s(1)
    assert [line for line in lines if line.startswith("No connection")] == [
        "No connection to a Kafka broker; trying again: reason 0",
        "No connection to a Kafka broker; trying again: reason 1",
    ]


def test_a_lasting_reason_is_logged_at_once_although_a_passing_one_came_first(probed):
    refused, rejected = reason("refused the connection."), reason("does not accept the password.")
    with logged_lines() as lines:
        probed.start()
        probed.cluster_health.failed(HOST, PORT, refused)
        probed.fail_with(refused)
        probed.pass_s(5)
        probed.cluster_health.failed(HOST, PORT, rejected)
        probed.fail_with(rejected)
        probed.pass_s(1.5)
    assert lines[-2:] == [
        "Kafka is unreachable; still trying: refused the connection.",
        "Kafka is unreachable; still trying: does not accept the password.",
    ]


def test_an_address_with_a_lasting_reason_is_logged_at_once_although_other_brokers_answer(probed):
    with logged_lines() as lines:
        probed.start()
        probed.cluster_health.failed(HOST, PORT, reason("refused the connection."))
        probed.pass_s(1)
        probed.cluster_health.failed(HOST, PORT, reason("does not accept the password."))
        probed.pass_s(1)
    assert lines[1:] == [
        "No connection to a Kafka broker; trying again: refused the connection.",
        "No connection to a Kafka broker; trying again: does not accept the password.",
    ]


@pytest.mark.parametrize("seam", ["mark_healthy", "mark_failed"])
def test_the_watch_goes_on_after_any_fault(seam, no_failure_is_lost, monkeypatch):
    probed = Watched()
    monkeypatch.setattr(probed.health_tracker, seam, lambda *_, **__: 1 / 0)
    probed.client.answer = lambda: (
        succeed(None) if seam == "mark_healthy" else fail(RequestFailed(reason(), sent=False))
    )
    probed.start()
    probed.clock.advance(1)
    monkeypatch.undo()
    probed.client.answer = lambda: succeed(None)
    for _ in range(10):
        probed.clock.advance(INTERVAL_S)
    assert probed.health_tracker.health().ready
    probed.cluster_health.stop()
    assert {failure.type for failure in no_failure_is_lost} == {ZeroDivisionError}
    no_failure_is_lost.clear()
