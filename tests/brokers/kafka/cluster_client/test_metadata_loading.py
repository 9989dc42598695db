"""Loads of metadata: shared, one at a time, and not held up by one broker that is silent."""

from __future__ import annotations

from collections import defaultdict

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.cluster_client.metadata_loading import MetadataLoads, ask_one_of
from tests.support.kafka_simulator import reason


class Brokers:
    """Records which broker is asked for which topics, and answers when the test says so."""

    def __init__(self, *node_ids):
        self.node_ids = node_ids
        self.clock = Clock()
        self.asked = []
        self.answers = defaultdict(list)
        self.cancelled = []
        self.loads = MetadataLoads(ask=self.ask, candidates=lambda: self.node_ids, clock=self.clock)

    def ask(self, node_id, topics):
        self.asked.append((node_id, topics))
        answer = Deferred(lambda _: self.cancelled.append(node_id))
        self.answers[node_id].append(answer)
        return answer

    def load(self, *topics):
        outcome = []
        self.loads.load(topics).addBoth(outcome.append)
        return outcome


def failed(sentence="down", *, lasting=False):
    return RequestFailed(reason(sentence, lasting=lasting), sent=True)


def test_one_broker_is_asked_and_everybody_else_is_left_alone():
    brokers = Brokers(1, 2, 3)
    outcome = brokers.load("b", "a")
    assert brokers.asked == [(1, ["a", "b"])]
    brokers.answers[1].pop().callback("metadata")
    assert outcome == [None]
    assert brokers.clock.getDelayedCalls() == []


def test_loads_that_are_asked_for_meanwhile_share_the_next_one():
    brokers = Brokers(1)
    first = brokers.load("a")
    others = [brokers.load("b"), brokers.load("c"), brokers.load("b"), brokers.load()]
    assert len(brokers.asked) == 1
    brokers.answers[1].pop().callback("metadata")
    assert first == [None]
    assert brokers.asked[1:] == [(1, ["b", "c"])]
    assert others == [[], [], [], []]
    brokers.answers[1].pop().callback("metadata")
    assert others == [[None]] * 4


def test_a_broker_that_fails_is_followed_by_the_next_one_at_once():
    brokers = Brokers(1, 2)
    outcome = brokers.load("a")
    brokers.answers[1].pop().errback(failed())
    assert [node_id for node_id, _ in brokers.asked] == [1, 2]
    brokers.answers[2].pop().callback("metadata")
    assert outcome == [None]
    assert brokers.clock.getDelayedCalls() == []


def test_a_broker_that_is_silent_has_another_asked_beside_it_and_the_first_answer_counts():
    brokers = Brokers(1, 2, 3)
    outcome = brokers.load("a")
    brokers.clock.advance(0.9)
    assert [node_id for node_id, _ in brokers.asked] == [1]
    brokers.clock.advance(0.2)
    assert [node_id for node_id, _ in brokers.asked] == [1, 2]
    brokers.answers[2].pop().callback("metadata")
    assert outcome == [None]
    assert brokers.cancelled == [1]
    assert brokers.clock.getDelayedCalls() == []


def test_the_silent_one_may_still_answer_first():
    brokers = Brokers(1, 2)
    outcome = brokers.load("a")
    brokers.clock.advance(1.1)
    brokers.answers[1].pop().callback("metadata")
    assert outcome == [None]
    assert brokers.cancelled == [2]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_when_all_fail_what_lasts_is_the_reason_and_each_caller_has_an_error_of_its_own(which):
    brokers = Brokers(0, 1, 2)
    running = brokers.load("a")
    for node_id in range(3):
        if node_id == 1:
            waiting = [brokers.load("b"), brokers.load("c")]
        brokers.answers[node_id].pop(0).errback(failed(f"{node_id}", lasting=node_id == which))
    assert running[0].value.reason.sentence == f"{which}"
    assert not running[0].value.sent
    for node_id in range(3):
        brokers.answers[node_id].pop(0).errback(failed(f"{node_id}", lasting=node_id == which))
    errors = [outcome[0].value for outcome in waiting]
    assert [error.reason.sentence for error in errors] == [f"{which}"] * 2
    assert errors[0] is not errors[1]
    assert brokers.clock.getDelayedCalls() == []


def test_when_nobody_waits_any_more_nobody_else_is_asked():
    brokers = Brokers(1, 2, 3)
    answer = ask_one_of(
        brokers.node_ids, ask=lambda node_id: brokers.ask(node_id, []), clock=brokers.clock
    ).addErrback(lambda _: None)
    answer.cancel()
    assert brokers.clock.getDelayedCalls() == []
    brokers.answers[1].pop().errback(failed())
    assert brokers.asked == [(1, [])]


def test_a_caller_that_asks_again_when_it_is_answered_is_not_forgotten():
    brokers = Brokers(1)
    again = []
    brokers.loads.load(["a"]).addCallback(lambda _: again.append(brokers.load("b")))
    brokers.answers[1].pop().callback("metadata")
    brokers.answers[1].pop().callback("metadata")
    assert again == [[None]]


def test_a_caller_that_no_longer_waits_takes_nothing_from_the_others():
    brokers = Brokers(1)
    left = brokers.loads.load(["a"])
    left.addErrback(lambda _: None)
    stays = brokers.load("a")
    left.cancel()
    brokers.answers[1].pop().callback("metadata")
    brokers.answers[1].pop().callback("metadata")
    assert stays == [None]


def test_a_load_whose_asking_raises_fails_and_later_ones_are_asked_for(no_failure_is_lost):
    brokers = Brokers(1, 2)
    faults = [KeyError(1), KeyError(2)]

    def ask(node_id, topics):
        if faults:
            raise faults.pop(0)
        return brokers.ask(node_id, topics)

    loads = MetadataLoads(ask=ask, candidates=lambda: [1, 2], clock=brokers.clock)
    outcome = []
    loads.load(["a"]).addErrback(outcome.append)
    assert outcome[0].check(RequestFailed)
    assert [failure.type for failure in no_failure_is_lost] == [KeyError]
    no_failure_is_lost.clear()
    again = loads.load(["a"])
    brokers.answers[1].pop().callback("metadata")
    assert again.called
