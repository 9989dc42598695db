"""Reading a topic until what was asked for is printed, on brokers in memory and a clock that stands still."""

from __future__ import annotations

import json

import click
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.cli._topic import Selection, print_topic_of
from sampleapp.model import FromEnd, FromOffset, FromTime, Health
from tests.support.brokers import record

REASON = "127.0.0.1:9 refused the connection."


class Reading:
    """A topic that is being printed, and what came of it."""

    def __init__(self, capture, *, values=(), broker=MemoryBroker, **selection):
        self.clock = Clock()
        self.broker = broker(clock=self.clock)
        self.broker.start()
        for n, value in enumerate(values):
            self.broker.publish(record("t", value, timestamp_ms=1000 * n))
        self._capture = capture
        self.ends = []
        selection = Selection(**{"topic": "t", **selection})
        self.running = Deferred.fromCoroutine(print_topic_of(self.broker, selection, clock=self.clock))
        self.running.addBoth(self.ends.append)
        self.clock.advance(0)

    def wait(self, seconds):
        for _ in range(int(seconds * 4)):
            self.clock.advance(0.25)

    @property
    def failure(self):
        (end,) = self.ends
        assert isinstance(end.value, click.ClickException)
        return end.value.message

    def printed(self):
        """What it has printed since the last call: values, and sentences."""
        captured = self._capture.readouterr()
        return [json.loads(line)["content"] for line in captured.out.splitlines()], captured.err.decode()


@pytest.fixture
def reading(capsysbinary):
    return lambda **arguments: Reading(capsysbinary, **arguments)


VALUES = (b"0", b"1", b"2", b"3")


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"limit": 2}, ["0", "1"]),
        ({"limit": 9}, ["0", "1", "2", "3"]),
        ({"start": FromOffset(3)}, ["3"]),
        ({"start": FromEnd(2)}, ["2", "3"]),
        ({"start": FromEnd(2), "limit": 1}, ["2"]),
        ({"start": FromEnd(0)}, []),
        ({"start": FromTime(1500)}, ["2", "3"]),
        ({"partition": 0}, ["0", "1", "2", "3"]),
    ],
)
def test_what_was_asked_for_is_printed_and_then_it_ends(reading, selection, expected):
    reading = reading(values=VALUES, **selection)
    assert reading.ends == [len(expected)]
    assert reading.printed() == (expected, "")


def test_with_follow_it_goes_on_to_the_limit(reading):
    reading = reading(values=VALUES, follow=True, start=FromEnd(1), limit=2)
    assert reading.ends == []
    reading.broker.publish(record("t", b"4"))
    reading.clock.advance(0)
    assert reading.ends == [2]
    assert reading.printed() == (["3", "4"], "")


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        ({"topic": "other"}, "There is no topic 'other'. Is its name right?"),
        ({"partition": 7}, "There is no partition 7 of 't'. Is its name right?"),
    ],
)
def test_what_does_not_exist_is_a_failure(reading, selection, sentence):
    assert reading(values=VALUES, **selection).failure == sentence


def test_with_follow_what_does_not_exist_is_waited_for_and_that_is_said_once(reading):
    reading = reading(follow=True)
    reading.wait(10)
    assert reading.printed() == ([], "There is no topic 't' yet. Waiting for it.\n")
    reading.broker.publish(record("t", b"first"))
    reading.clock.advance(0)
    assert reading.printed() == (["first"], "")
    reading.running.cancel()
    assert reading.ends == [1]


def test_with_follow_an_interrupt_is_how_it_ends_whether_or_not_there_is_a_topic(reading):
    reading = reading(follow=True)
    reading.running.cancel()
    assert reading.ends == [0]


def test_with_follow_and_a_timeout_what_never_came_to_exist_is_a_failure(reading):
    reading = reading(follow=True, timeout_s=5.0)
    reading.wait(6)
    assert reading.failure == "There is no topic 't'. Is its name right?"


def test_without_records_for_so_long_a_following_ends_well(reading):
    reading = reading(values=VALUES, follow=True, timeout_s=5.0)
    reading.wait(4)
    reading.broker.publish(record("t", b"4"))
    reading.wait(4)
    assert reading.ends == []
    reading.wait(2)
    assert reading.ends == [5]


class Unreachable(MemoryBroker):
    """A broker that is away, for some time or for ever."""

    def follow(self, **arguments):
        following = super().follow(**arguments)
        following.stop()
        return following

    def health(self):
        return Health(ready=False, reasons=(REASON, f"The topic t cannot be read: {REASON}"))


def test_why_nothing_comes_is_said_once(reading):
    reading = reading(broker=Unreachable)
    reading.wait(1)
    assert reading.printed() == ([], "")
    reading.wait(10)
    assert reading.printed() == ([], f"The topic t cannot be read: {REASON} Trying again.\n")
    reading.running.cancel()
    assert isinstance(reading.ends[0].value, CancelledError)


def test_with_a_timeout_it_gives_up_and_says_why(reading):
    reading = reading(broker=Unreachable, timeout_s=1.5)
    reading.wait(2)
    sentence = f"Gave up after 1.5 seconds without a record. The topic t cannot be read: {REASON}"
    assert reading.failure == sentence


class Damaged(Unreachable):
    """A broker whose records cannot be read, whatever time it is given."""

    def follow(self, **arguments):
        following = super().follow(**arguments)
        following.is_lasting = lambda: True
        return following


def test_what_stays_broken_is_not_waited_for(reading):
    reading = reading(broker=Damaged)
    reading.wait(1)
    assert reading.failure == f"The topic t cannot be read: {REASON}"


def test_with_follow_even_that_is_waited_for(reading):
    reading = reading(broker=Damaged, follow=True)
    reading.wait(5)
    assert reading.ends == []
    reading.running.cancel()


def test_a_fault_in_looking_ends_it(reading, monkeypatch):
    monkeypatch.setattr(MemoryBroker, "health", lambda _: 1 / 0)
    found = reading(values=[b"0"], follow=True)
    found.wait(60)
    (end,) = found.ends
    assert end.type is ZeroDivisionError
