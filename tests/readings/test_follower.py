"""The readings follow their topic, whatever is published to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from zope.interface import implementer

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.errors import ReadingsNotReady
from sampleapp.interfaces import ISubscription
from sampleapp.model import Record
from sampleapp.readings import Readings
from sampleapp.readings.follower import ReadingsFollower
from tests.support import strategies
from tests.support.examples import examples
from tests.support.in_memory import ManualBroker
from tests.support.readings import reading_record


class Setup:
    def __init__(self):
        self.clock = Clock()
        self.broker = MemoryBroker(clock=self.clock)
        self.broker.start()
        self.follow()

    def follow(self):
        self.follower = ReadingsFollower(broker=self.broker, topic="readings", clock=self.clock)

    def publish(self, key, value, topic="readings"):
        self.broker.publish(Record(topic=topic, key=key, value=value, timestamp_ms=0))

    def settle(self):
        while self.clock.getDelayedCalls():
            self.clock.advance(10)

    def turn(self):
        self.clock.advance(0)

    def version_2(self):
        items = json.loads(self.follower.representation(2).body)
        return [(item["id"], item["value"]) for item in items]


class FollowerMachine(RuleBasedStateMachine):
    """Publish, update, remove, junk, restart: the collection equals a dictionary."""

    keys = Bundle("keys")

    def __init__(self):
        super().__init__()
        self.setup = Setup()
        self.setup.follower.start()
        self.setup.settle()
        self.model = {}
        self.skipped = 0

    @rule(target=keys, key=strategies.ids)
    def new_key(self, key):
        return key

    @rule(key=keys, value=strategies.finite_numbers, blank=st.sampled_from(["", " ", "\n"]))
    def publish(self, key, value, blank):
        self.setup.publish(key.encode(), f"{blank}{value!r}{blank}".encode())
        self.model[key] = value

    @rule(key=keys)
    def remove(self, key):
        self.setup.publish(key.encode(), None)
        self.model.pop(key, None)

    @rule(key=keys, value=st.sampled_from([b"", b"nan", b"1e999", b"warm", b"\xff"]))
    def publish_no_number(self, key, value):
        self.setup.publish(key.encode(), value)
        self.skipped += 1

    @rule(key=st.sampled_from([None, b"\xff"]), value=st.sampled_from([None, b"1.0"]))
    def publish_without_a_usable_key(self, key, value):
        self.setup.publish(key, value)
        self.skipped += 1

    @rule(key=keys)
    def publish_to_another_topic(self, key):
        self.setup.publish(key.encode(), b"1.0", topic="others")

    @rule()
    def restart(self):
        self.setup.follower.stop()
        self.setup.follow()
        self.setup.follower.start()

    @invariant()
    def collection_equals_the_model(self):
        self.setup.settle()
        assert list(self.model.items()) == self.setup.version_2()
        assert list(self.model.values()) == json.loads(self.setup.follower.representation(1).body)
        assert self.skipped == self.setup.follower.skipped


TestFollowerMachine = FollowerMachine.TestCase
TestFollowerMachine.settings = examples(50, stateful_step_count=30)


def test_nothing_is_served_before_what_was_there_at_the_start_has_been_read():
    setup = Setup()
    for n in range(2000):
        setup.publish(b"a", b"%d" % n)
    setup.follower.start()
    seen = []
    setup.clock.callLater(0, lambda: seen.append(why_not(setup.follower)))
    assert why_not(setup.follower)
    setup.settle()
    assert "still being read" in seen[0]
    assert setup.follower.representation(1).body == b"[1999.0]"


def test_an_empty_topic_is_served_as_an_empty_collection():
    setup = Setup()
    setup.follower.start()
    setup.settle()
    assert setup.follower.representation(1).body == b"[]"


def test_after_stop_the_readings_do_not_change_any_more():
    setup = Setup()
    setup.follower.start()
    setup.publish(b"a", b"1")
    setup.settle()
    setup.follower.stop()
    setup.publish(b"a", b"2")
    setup.settle()
    assert setup.follower.representation(1).body == b"[1.0]"


def test_stopping_what_was_never_started_is_fine():
    assert Setup().follower.stop().result is None


def test_a_flood_of_junk_is_logged_in_few_lines_that_count_it():
    setup = Setup()
    setup.follower.start()
    with capturedLogs() as events:
        for _ in range(100):
            setup.publish(b"a", b"warm {junk}")
        setup.turn()
        setup.clock.advance(11)
        setup.publish(None, b"1")
        setup.turn()
        setup.clock.advance(11)
    warnings = [event for event in events if event["log_level"] is LogLevel.warn]
    assert [(event["count"], event["offset"]) for event in warnings] == [(1, 0), (99, 99), (1, 100)]
    assert "not the text of a number" in warnings[0]["reason"]
    assert "no key" in warnings[2]["reason"]
    assert setup.follower.skipped == 101


def test_what_was_skipped_since_the_last_line_is_logged_at_the_stop():
    setup = Setup()
    setup.follower.start()
    with capturedLogs() as events:
        for _ in range(25):
            setup.publish(b"a", b"warm")
        setup.turn()
        setup.follower.stop()
        setup.follower.stop()
    counts = [event["count"] for event in events if event["log_level"] is LogLevel.warn]
    assert counts == [1, 24]
    assert setup.clock.getDelayedCalls() == []


@implementer(ISubscription)
class ManualFollowing:
    """A reading that goes on as the test says."""

    said = None

    def __init__(self, observer):
        self.observer = observer

    def stop(self):
        return succeed(None)

    def unavailable_reason(self):
        return self.said

    def deliver(self, *values, start=0):
        for offset, (key, value) in enumerate(values, start):
            self.observer.record_received(reading_record(key, value, offset=offset, timestamp_ms=offset))


class FollowedBroker(ManualBroker):
    """A broker of which one topic is followed."""

    def follow(self, *, topic, observer):
        self.following = ManualFollowing(observer)
        return self.following


@pytest.fixture
def broker():
    return FollowedBroker()


@pytest.fixture
def follower(broker):
    follower = ReadingsFollower(broker=broker, topic="readings", clock=Clock())
    follower.start()
    return follower


def why_not(follower):
    with pytest.raises(ReadingsNotReady) as raised:
        follower.representation(1)
    return str(raised.value)


def test_what_keeps_the_readings_from_being_read_is_said_for_as_long_as_it_does(broker, follower):
    assert why_not(follower) == "The stored readings are still being read; ask again."
    broker.following.said = "The stored records are damaged and cannot be read."
    assert why_not(follower) == (
        "The stored records are damaged and cannot be read. "
        "The readings are served once all of them have been read."
    )
    broker.following.said = None
    assert "still being read" in why_not(follower)


def test_readings_that_were_read_once_are_served_whatever_keeps_further_ones_from_being_read(
    broker, follower
):
    broker.following.deliver((b"a", b"1"))
    follower.caught_up()
    broker.following.said = "Kafka cannot be reached."
    assert follower.representation(1).body == b"[1.0]"


def test_nothing_of_a_deleted_topic_is_served_and_all_of_the_one_made_again(broker, follower):
    broker.following.deliver((b"a", b"1"), (b"b", b"2"))
    follower.caught_up()
    with capturedLogs() as events:
        follower.reset()
    (event,) = events
    assert formatEvent(event) == (
        "The 2 readings of the topic readings are discarded. It is read from its first record on, as soon as "
        "it exists."
    )
    broker.following.deliver((b"c", b"3"))
    assert "still being read" in why_not(follower)
    follower.caught_up()
    assert follower.representation(1).body == b"[3.0]"


class Observer:
    """Remembers what it was told of the changes."""

    def __init__(self):
        self.told = []

    def began(self, state):
        self.told.append(json.loads(state.representation.body))

    def changed(self, changes, state):
        self.told += [(change.id, change.value) for change in changes]
        return iter(())


def test_changes_are_told_from_complete_readings_on_and_when_the_topic_is_made_again():
    clock, broker, observer = Clock(), FollowedBroker(), Observer()
    follower = ReadingsFollower(broker=broker, topic="readings", clock=clock)
    follower.start()
    follower.changes.observe(observer)
    broker.following.deliver((b"a", b"1"))
    clock.advance(0)
    assert observer.told == []
    follower.caught_up()
    clock.advance(0)
    broker.following.deliver((b"b", b"2"))
    clock.advance(0)
    assert observer.told == [[{"id": "a", "value": 1.0}], ("b", 2.0)]
    # Not told, since the topic is deleted first.
    broker.following.deliver((b"c", b"3"))
    follower.reset()
    broker.following.deliver((b"d", b"4"))
    clock.advance(0)
    follower.caught_up()
    clock.advance(0)
    assert observer.told[2:] == [[{"id": "d", "value": 4.0}]]
    follower.stop()
    assert clock.getDelayedCalls() == []


def test_many_readings_are_encoded_in_several_turns_before_they_are_served():
    setup = Setup()
    for n in range(20_000):
        setup.follower.record_received(reading_record(b"%d" % n, b"1", offset=n))
    setup.follower.caught_up()
    assert why_not(setup.follower)
    setup.turn()
    setup.turn()
    assert len(json.loads(setup.follower.representation(1).body)) == 20_000


@pytest.mark.parametrize("end", ["stop", "reset"])
def test_readings_that_are_void_are_not_encoded_any_more(end):
    setup = Setup()
    for n in range(20_000):
        setup.follower.record_received(reading_record(b"%d" % n, b"1", offset=n))
    setup.follower.caught_up()
    getattr(setup.follower, end)()
    assert setup.clock.getDelayedCalls() == []
    assert why_not(setup.follower)


def change_many(setup, value):
    for n in range(20_000):
        setup.follower.record_received(reading_record(b"%d" % n, value, offset=n))


@pytest.fixture
def changed():
    """A follower of 20,000 readings, all of which have changed since they were encoded."""
    setup = Setup()
    change_many(setup, b"1")
    setup.follower.caught_up()
    setup.settle()
    change_many(setup, b"2")
    return setup


def test_many_changes_are_encoded_in_turns_for_whoever_asks(changed):
    made = changed.follower.representation(1)
    assert isinstance(made, Deferred)
    change_many(changed, b"3")
    later = changed.follower.representation(1)
    changed.settle()
    assert json.loads(made.result.body) == [2.0] * 20_000
    assert json.loads(later.result.body) == [3.0] * 20_000
    assert changed.follower.representation(1) is later.result
    assert changed.clock.getDelayedCalls() == []


def test_a_few_changes_are_encoded_at_once(changed):
    changed.follower.representation(1)
    changed.settle()
    changed.follower.record_received(reading_record(b"7", b"5", offset=20_000))
    assert json.loads(changed.follower.representation(1).body).count(5.0) == 1


def test_whoever_stops_waiting_stops_nothing_else(changed):
    gone, patient = changed.follower.representation(2), changed.follower.representation(2)
    gone.addErrback(lambda failure: failure.trap(CancelledError))
    gone.cancel()
    changed.settle()
    assert gone.result is CancelledError
    assert len(json.loads(patient.result.body)) == 20_000


def test_a_follower_that_stops_tells_whoever_waits(changed):
    waiting = [changed.follower.representation(version) for version in (1, 2, 1)]
    changed.follower.stop()
    with pytest.raises(ReadingsNotReady, match="stopping"):
        changed.follower.representation(1)
    for each in waiting:
        assert why_failed(each) == "The service is stopping."
    assert changed.clock.getDelayedCalls() == []


def test_whoever_waits_when_the_topic_is_deleted_is_told_what_whoever_asks_later_is(changed):
    waiting = [changed.follower.representation(version) for version in (1, 2)]
    changed.follower.reset()
    assert [why_not(changed.follower)] * 2 == [why_failed(each) for each in waiting]
    assert changed.clock.getDelayedCalls() == []


def why_failed(waiting):
    failures = []
    waiting.addErrback(failures.append)
    (failure,) = failures
    assert failure.type is ReadingsNotReady
    return str(failure.value)


def test_readings_that_could_not_be_encoded_beforehand_are_encoded_when_asked_for(
    no_failure_is_lost, monkeypatch
):
    setup = Setup()
    setup.follower.record_received(reading_record(b"a", b"1", offset=0))
    monkeypatch.setattr(Readings, "encode", lambda *_, **__: (1 / 0 for _ in range(1)))
    setup.follower.caught_up()
    assert setup.version_2() == [("a", 1.0)]
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()
