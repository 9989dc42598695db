"""Probes of the cluster, and the notifications and log lines that follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.watch import UNREACHABLE_AFTER_S, Watch
from sampleapp.brokers.shared.condition import Condition
from tests.support.logs import logged_lines

INTERVAL_S = 10.0
HOST, PORT = "kafka1", 9092


def reason(sentence="kafka1:9092 refused the connection."):
    return FailureReason(sentence=sentence, public="Kafka cannot be reached.", lasting=False)


class Client:
    """A client as the watch sees it: what becomes of each look is up to the test."""

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
    """A watch in the time of a clock, and what its listener is told."""

    def __init__(self):
        self.clock = Clock()
        self.client = Client(self.clock)
        self.condition = Condition(self.clock, unavailable="Kafka is unreachable")
        self.told = []
        self.watch = Watch(condition=self.condition, interval_s=INTERVAL_S, clock=self.clock)

    def cluster_unreachable(self, reason):
        self.told.append((self.clock.seconds(), reason))

    def cluster_reached(self):
        self.told.append((self.clock.seconds(), None))

    def start(self):
        self.watch.start(client=self.client, listener=self)

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
def watched():
    made = Watched()
    yield made
    made.watch.stop()
    assert made.clock.getDelayedCalls() == []


def test_each_look_that_succeeds_is_told(watched):
    watched.start()
    watched.pass_s(25)
    assert [round(at_s, 1) for at_s, _ in watched.told] == [0.0, 10.0, 20.0]
    assert watched.unreachable() == []
    assert watched.condition.health().ready


def test_a_cluster_that_rejects_connections_is_unreachable_after_five_seconds_which_is_told_once(watched):
    watched.fail_with(reason())
    watched.start()
    assert watched.condition.health().reasons == (reason().sentence,)
    watched.pass_s(UNREACHABLE_AFTER_S - 0.2)
    assert watched.told == []
    watched.pass_s(30)
    assert [why for _, why in watched.told] == [reason()]


def test_a_frozen_cluster_is_unreachable_five_seconds_after_the_first_request_that_was_not_answered(watched):
    watched.start()
    watched.pass_s(3)
    watched.never_answer()
    watched.watch.lost(HOST, PORT)
    watched.pass_s(UNREACHABLE_AFTER_S + 0.2)
    [(at_s, why)] = watched.told[1:]
    assert 3 + UNREACHABLE_AFTER_S <= at_s < 3.3 + UNREACHABLE_AFTER_S
    assert "No broker of the cluster has answered for 5 s" in why.sentence
    assert not why.lasting
    assert watched.condition.health().reasons == (why.sentence,)


def test_a_frozen_cluster_that_nobody_asks_anything_is_unreachable_five_seconds_after_the_next_look(watched):
    watched.start()
    watched.never_answer()
    watched.pass_s(INTERVAL_S + UNREACHABLE_AFTER_S + 0.2)
    assert len(watched.unreachable()) == 1


def test_the_last_reason_of_a_failed_connection_is_why_the_cluster_is_unreachable(watched):
    watched.never_answer()
    watched.start()
    watched.watch.failed(HOST, PORT, reason("kafka1:9092 did not accept a connection in time."))
    watched.pass_s(UNREACHABLE_AFTER_S + 0.2)
    assert [why.sentence for why in watched.unreachable()] == [
        "kafka1:9092 did not accept a connection in time."
    ]


def test_an_outage_that_is_shorter_is_not_told(watched):
    watched.start()
    watched.fail_with(reason())
    watched.watch.lost(HOST, PORT)
    watched.pass_s(UNREACHABLE_AFTER_S - 0.5)
    assert not watched.condition.health().ready
    watched.answer()
    watched.pass_s(30)
    assert watched.unreachable() == []
    assert watched.condition.health().ready


def test_a_connection_that_comes_about_ends_the_outage_at_once(watched):
    watched.fail_with(reason())
    watched.start()
    watched.pass_s(60)
    looks = len(watched.client.looks)
    while len(watched.client.looks) == looks:
        watched.clock.advance(0.125)
    watched.clock.advance(0.25)
    watched.answer()
    assert watched.told[-1][1] is not None
    watched.watch.connected(HOST, PORT)
    watched.clock.advance(0)
    assert watched.told[-1] == (watched.clock.seconds(), None)
    assert watched.condition.health().ready


def test_without_any_connection_the_end_of_an_outage_is_noticed_within_a_second(watched):
    watched.fail_with(reason())
    watched.start()
    watched.pass_s(300)
    watched.answer()
    watched.pass_s(1.1)
    assert watched.told[-1][1] is None


def test_the_next_outage_is_told_again(watched):
    watched.start()
    for _ in range(2):
        watched.fail_with(reason())
        watched.watch.lost(HOST, PORT)
        watched.pass_s(UNREACHABLE_AFTER_S + 1)
        watched.answer()
        watched.pass_s(5)
    assert len(watched.unreachable()) == 2
    assert watched.told[-1][1] is None


def test_a_connection_that_is_lost_is_looked_at_at_once_and_many_in_a_row_without_a_storm(watched):
    watched.start()
    watched.pass_s(5)
    before = len(watched.client.looks)
    watched.watch.lost(HOST, PORT)
    watched.clock.advance(0)
    assert len(watched.client.looks) == before + 1
    for _ in range(100):
        watched.watch.lost(HOST, PORT)
        watched.clock.advance(0.01)
    assert len(watched.client.looks) <= before + 7


def test_news_that_come_during_a_look_are_looked_at_soon_after(watched):
    looking = Deferred()
    watched.client.answer = lambda: looking
    watched.start()
    watched.watch.lost(HOST, PORT)
    watched.answer()
    looking.callback(None)
    assert len(watched.client.looks) == 1
    watched.pass_s(0.3)
    assert len(watched.client.looks) == 2


def test_advertised_addresses_that_cannot_be_used_are_named(watched):
    watched.client.advertised = lambda: fail(RequestFailed(reason("b:1 refused the connection."), sent=False))
    watched.start()
    [said] = watched.condition.health().reasons
    assert said.startswith("None of the addresses that the brokers advertise can be used: b:1 refused")
    watched.pass_s(UNREACHABLE_AFTER_S + 0.2)
    assert [why.sentence for why in watched.unreachable()] == [said]


def test_a_fault_of_a_look_does_not_end_the_watching(watched, no_failure_is_lost):
    watched.client.answer = lambda: fail(ZeroDivisionError())
    watched.start()
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()
    watched.answer()
    watched.pass_s(1)
    assert watched.told[-1][1] is None


def test_after_the_stop_nothing_is_looked_at_and_nobody_told(watched):
    watched.start()
    looking = Deferred()
    watched.client.answer = lambda: looking
    watched.pass_s(INTERVAL_S)
    watched.watch.stop()
    looking.callback(None)
    watched.watch.lost(HOST, PORT)
    watched.watch.connected(HOST, PORT)
    watched.watch.failed(HOST, PORT, reason())
    watched.pass_s(100)
    assert len(watched.client.looks) == 2
    assert len(watched.told) == 1


def test_before_the_start_connections_are_only_kept_in_mind(watched):
    watched.watch.failed(HOST, PORT, reason())
    watched.watch.lost(HOST, PORT)
    watched.watch.connected(HOST, PORT)
    watched.pass_s(100)
    assert watched.client.looks == []


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
    watched = Watched()
    watched.start()
    pending = []

    def freeze():
        pending.append(Deferred())
        return pending[-1]

    for what, seconds in events:
        if what == "answer":
            watched.answer()
        elif what == "reject":
            watched.fail_with(reason())
        elif what == "freeze":
            watched.client.answer = freeze
        elif what == "failed":
            watched.watch.failed(HOST, PORT, reason())
        else:
            getattr(watched.watch, what)(HOST, PORT)
        watched.pass_s(seconds)
        # The client gives up some time.
        for each in pending:
            each.errback(RequestFailed(reason("silent"), sent=True))
        pending.clear()
    # It never says twice in a row that nothing is reached.
    for (_, one), (_, other) in zip(watched.told, watched.told[1:], strict=False):
        assert one is None or other is None
    # In the end, whatever was before, the truth is known.
    watched.answer()
    watched.pass_s(INTERVAL_S + 1)
    assert watched.told[-1][1] is None
    assert watched.condition.health().ready
    watched.watch.stop()
    assert watched.clock.getDelayedCalls() == []


# --- the log -------------------------------------------------------------------------------------------


def test_one_reason_is_one_line(watched):
    with logged_lines() as lines:
        watched.watch.failed(HOST, PORT, reason())
        watched.fail_with(reason())
        watched.start()
        watched.pass_s(30)
    assert lines == [f"Kafka is unreachable; still trying: {reason().sentence}"]


def test_an_address_that_fails_while_others_work_is_a_line_of_its_own_and_so_is_its_end(watched):
    with logged_lines() as lines:
        watched.start()
        for _ in range(3):
            watched.watch.failed(HOST, PORT, reason())
            watched.pass_s(1)
        watched.watch.connected(HOST, PORT)
        watched.pass_s(1)
    assert lines == [
        "Kafka was reached; brokers: 2",
        f"No connection to a Kafka broker; still trying: {reason().sentence}",
        "Connected to the Kafka broker at kafka1:9092 again.",
    ]


def test_an_address_that_fails_for_another_reason_is_logged_again_but_not_all_the_time(watched):
    with logged_lines() as lines:
        watched.start()
        for turn in range(200):
            watched.watch.failed(HOST, PORT, reason(f"reason {turn // 7 % 2}"))
            watched.pass_s(1)
    assert 3 <= len([line for line in lines if line.startswith("No connection")]) <= 4


@pytest.mark.parametrize("seam", ["mark_healthy", "mark_failed"])
def test_the_watch_goes_on_after_any_fault(seam, no_failure_is_lost, monkeypatch):
    watched = Watched()
    monkeypatch.setattr(watched.condition, seam, lambda *_, **__: 1 / 0)
    watched.client.answer = lambda: (
        succeed(None) if seam == "mark_healthy" else fail(RequestFailed(reason(), sent=False))
    )
    watched.start()
    watched.clock.advance(1)
    monkeypatch.undo()
    watched.client.answer = lambda: succeed(None)
    for _ in range(10):
        watched.clock.advance(INTERVAL_S)
    assert watched.condition.health().ready
    watched.watch.stop()
    assert {failure.type for failure in no_failure_is_lost} == {ZeroDivisionError}
    no_failure_is_lost.clear()
