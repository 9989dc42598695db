"""Reading a topic until what was asked for is printed, on brokers in memory and a clock that stands still."""

from __future__ import annotations

import json

import click
import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from zope.interface import implementer

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.cli._consume_broker import Selection, print_topic_of
from sampleapp.interfaces import IRecordObserver
from sampleapp.model import Health, ReadRequest
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
        self.again(**selection)

    def again(self, **selection):
        selection = Selection(**{"topic": "t", **selection})
        self.running = Deferred.fromCoroutine(print_topic_of(self.broker, selection, clock=self.clock))
        self.running.addBoth(self.ends.append)
        self.clock.advance(0)

    def wait(self, seconds):
        for _ in range(int(seconds * 4)):
            self.clock.advance(0.25)

    @property
    def failure(self):
        return self.failure_of(0)

    def failure_of(self, number):
        end = self.ends[number]
        assert len(self.ends) == number + 1
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
        ({"start": "offset:3"}, ["3"]),
        ({"start": "-2"}, ["2", "3"]),
        ({"start": "-2", "limit": 1}, ["2"]),
        ({"start": "latest"}, []),
        ({"start": "1970-01-01T00:00:01.500Z"}, ["2", "3"]),
        ({"partition": 0}, ["0", "1", "2", "3"]),
    ],
)
def test_what_was_asked_for_is_printed_and_then_it_ends(reading, selection, expected):
    reading = reading(values=VALUES, **selection)
    assert reading.ends == [len(expected)]
    assert reading.printed() == (expected, "")


def topic_id(reading):
    found = []
    request = ReadRequest(topic="t", others=None, limit=0, max_bytes=1)
    reading.broker.read(request).addCallback(lambda result: found.append(result.topic_id))
    return found[0]


@pytest.mark.parametrize("partition", [None, 0])
@pytest.mark.parametrize(
    ("offset", "expected", "sentence"),
    [
        (2, ["2", "3"], ""),
        (4, [], ""),
        ("", ["0", "1", "2", "3"], ""),
        (5, ["0", "1", "2", "3"], "ends at 4, and the position is 5"),
    ],
)
def test_reading_goes_on_at_a_position_or_says_that_it_cannot(reading, offset, expected, sentence, partition):
    first = reading(values=VALUES, start="latest")
    position = f"{topic_id(first)}~{offset}"
    first.again(start=position, partition=partition)
    printed, said = first.printed()
    assert (first.ends, printed) == ([0, len(expected)], expected)
    assert sentence in said
    assert bool(said) == bool(sentence)


def test_a_position_of_another_topic_is_said_and_the_topic_read_from_its_first_record(reading):
    reading = reading(values=VALUES, start="other~2")
    printed, said = reading.printed()
    assert printed == ["0", "1", "2", "3"]
    assert said.endswith("Reading the topic from its first record.\n")


def test_a_position_that_reads_no_partition_is_a_failure(reading):
    first = reading(values=VALUES)
    first.again(start=f"{topic_id(first)}~-")
    assert "The position reads none of the 1 partitions of t" in first.failure_of(1)


def test_with_follow_a_position_of_a_topic_that_does_not_exist_yet_waits_for_it(reading):
    reading = reading(follow=True, start="id~7")
    reading.broker.publish(record("t", b"first"))
    reading.clock.advance(0)
    assert reading.printed()[0] == ["first"]


def test_with_follow_it_goes_on_to_the_limit(reading):
    reading = reading(values=VALUES, follow=True, start="-1", limit=2)
    assert reading.ends == []
    reading.broker.publish(record("t", b"4"))
    reading.clock.advance(0)
    assert reading.ends == [2]
    assert reading.printed() == (["3", "4"], "")


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        ({"topic": "other"}, "There is no topic 'other'. Is its name right?"),
        ({"topic": "other", "partition": 7}, "There is no topic 'other'. Is its name right?"),
        (
            {"partition": 7},
            "There is no partition 7 of 't'. The topic has only one partition, with the number 0.",
        ),
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


@pytest.mark.parametrize("timeout_s", [0.0, 0.001])
def test_a_short_time_out_prints_what_is_there(reading, timeout_s):
    for follow in (False, True):
        found = reading(values=VALUES, follow=follow, timeout_s=timeout_s)
        found.wait(0.5)
        assert found.ends == [4]


@pytest.mark.parametrize("timeout_s", [0.0, 3.0])
def test_existing_records_that_come_slowly_are_not_cut_off_by_a_time_out(reading, timeout_s):
    found = reading(values=VALUES, broker=Slow, timeout_s=timeout_s, key=b"other")
    for _ in range(5):
        found.wait(4)
        assert found.ends == []
        found.broker.release(1)
    found.wait(0.25)
    assert found.ends == [0]


class Slow(MemoryBroker):
    """A broker whose records come one by one, when they are released."""

    def follow(self, *, observer, **arguments):
        self.held = []
        hold = HoldingObserver(self.held, observer)
        return super().follow(observer=hold, **arguments)

    def release(self, count):
        for call in self.held[:count]:
            call()
        del self.held[:count]


@implementer(IRecordObserver)
class HoldingObserver:
    def __init__(self, held, observer):
        self._held, self._observer = held, observer

    def record_received(self, record):
        self._held.append(lambda: self._observer.record_received(record))

    def caught_up(self):
        self._held.append(self._observer.caught_up)

    def reset(self):
        self._held.append(self._observer.reset)


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
    reading = reading(broker=Unreachable, timeout_s=2.5)
    reading.wait(3)
    sentence = f"Gave up after 2.5 seconds without a record. The topic t cannot be read: {REASON}"
    assert reading.failure == sentence


class Damaged(Unreachable):
    """A broker whose records cannot be read, whatever time it is given."""

    def follow(self, **arguments):
        following = super().follow(**arguments)
        following.is_lasting = lambda: True
        return following


def test_without_time_what_cannot_be_read_is_a_failure_as_well(reading):
    reading = reading(broker=Unreachable, timeout_s=0.0, key=b"k")
    reading.wait(3)
    sentence = "Gave up after 2 seconds without a record for --key 'k'."
    assert reading.failure == f"{sentence} The topic t cannot be read: {REASON}"


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
