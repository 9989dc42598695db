"""Long polls: `Feeds.wait`."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.feeds import Feeds
from sampleapp.feeds.waits import Wait, Waits
from sampleapp.model import ConsumerRecord
from tests.support.brokers import record
from tests.support.clocks import ClockInTurns


class Service:
    """Feeds on the memory broker, with a clock that the test moves."""

    def __init__(self, clock=None):
        self.clock = clock or Clock()
        self.broker = MemoryBroker(clock=self.clock)
        self.broker.start()
        self.feeds = Feeds(self.broker, self.clock)

    def publish(self, *keys, topic="t"):
        for key in keys:
            self.broker.publish(record(topic, b"v", key=key))
        self.turns()

    def turns(self, count=50):
        for _ in range(count):
            self.clock.advance(0)

    def wait(self, position, *, key=None, topic="t", **more):
        fired = []
        waiting = self.feeds.wait(topic, {0: position}, key=key, **more)
        waiting.addBoth(fired.append)
        self.turns()
        return waiting, fired


@pytest.fixture
def service():
    service = Service()
    service.publish(b"a")
    return service


def test_a_wait_ends_with_the_next_record(service):
    _, fired = service.wait(1)
    assert fired == []
    service.publish(b"b")
    assert fired == [True]


def test_a_wait_for_a_key_ends_with_a_record_of_that_key(service):
    _, fired = service.wait(1, key=b"k")
    service.publish(None, b"", b"b")
    assert fired == []
    service.publish(b"k")
    assert fired == [True]


def test_the_empty_key_is_not_the_lack_of_one(service):
    _, fired = service.wait(1, key=b"")
    service.publish(None)
    assert fired == []
    service.publish(b"")
    assert fired == [True]


def test_a_record_between_reading_and_waiting_ends_the_wait(service):
    """The following begins after it, and would never deliver it."""
    service.publish(b"b")
    _, fired = service.wait(1)
    assert fired == [True]


def test_a_record_that_the_feed_has_passed_ends_the_wait_soon(service):
    service.wait(1)
    service.publish(b"b")
    _, fired = service.wait(1)
    assert fired == []
    service.clock.advance(0.1)
    assert fired == [True]


def test_records_with_other_keys_that_the_feed_has_passed_do_not_end_a_wait_for_a_key(service):
    service.wait(1)
    service.publish(b"b", b"c", b"k", b"d")
    _, fired = service.wait(4, key=b"k")
    service.clock.advance(1)
    assert fired == []
    for position in (1, 3):
        _, late = service.wait(position, key=b"k")
        service.clock.advance(1)
        assert late == [True]
    # The feed did not have it: the record came before.
    _, unknown = service.wait(0, key=b"k")
    service.clock.advance(1)
    assert unknown == [True]
    service.publish(b"k")
    assert fired == [True]


def test_a_position_ahead_of_the_feed_waits_for_its_record(service):
    _, fired = service.wait(3)
    service.publish(b"1", b"2")
    assert fired == []
    service.publish(b"3")
    assert fired == [True]


def test_only_the_named_partitions_count(service):
    waiting = service.feeds.wait("t", {7: 0}, others=False)
    fired = []
    waiting.addCallback(fired.append)
    service.publish(b"b")
    assert fired == []


def test_a_new_partition_counts_unless_only_some_are_read(service):
    service.wait(1)
    fired = []
    service.feeds.wait("t", {}, others=True).addCallback(fired.append)
    service.clock.advance(0.1)
    assert fired == [True]


def test_a_partition_that_is_left_out_does_not_count_and_those_after_it_do():
    ended = []

    def wait(number, positions, skipped):
        wait = Wait(positions, key=None, others=True, skipped=frozenset(skipped), cancelled=None)
        wait.deferred.addCallback(lambda _: ended.append(number))
        waits.add(wait)
        return wait

    def publish(partition):
        waits.found(
            partition,
            [ConsumerRecord(topic="t", partition=partition, offset=5, timestamp_ms=0, key=None, value=b"")],
        )
        while waits.is_busy:
            waits.end_some(1)

    waits = Waits()
    wait(0, {1: 0}, {0})
    wait(1, {0: 0}, {1, 2})
    wait(2, {}, {0, 1})
    publish(0)
    assert ended == [1]
    publish(1)
    assert ended == [1, 0]
    wait(3, {1: 0, 3: 0}, {0})
    publish(2)
    # Its position has no offset of this partition, so it is read from the first record.
    assert ended == [1, 0, 2, 3]
    waits.remove(wait(4, {1: 0}, {0}))
    publish(1)
    assert len(ended) == 4
    assert not waits


def test_a_cancelled_wait_is_forgotten_and_the_feed_ends_after_a_while(service):
    waiting, fired = service.wait(1)
    waiting.cancel()
    assert isinstance(fired.pop().value, CancelledError)
    service.publish(b"b")
    assert fired == []
    assert len(service.feeds) == 1
    for _ in range(3):
        service.clock.advance(31)
    assert len(service.feeds) == 0


def test_a_used_feed_goes_on(service):
    _, fired = service.wait(1)
    for _ in range(5):
        service.clock.advance(31)
    service.publish(b"b")
    assert fired == [True]


def test_a_feed_ends_half_a_minute_after_its_last_use(service):
    service.wait(1)
    service.clock.advance(20)
    _, fired = service.wait(1)
    service.clock.advance(9)
    service.publish(b"b")
    assert fired == [True]
    service.clock.advance(29)
    assert len(service.feeds) == 1
    service.clock.advance(2)
    assert len(service.feeds) == 0


def test_a_feed_that_nobody_joins_ends_after_half_a_minute(service):
    service.feeds.feed("t")
    service.clock.advance(29)
    assert len(service.feeds) == 1
    service.clock.advance(2)
    assert len(service.feeds) == 0
    assert service.clock.getDelayedCalls() == []


def test_many_waits_are_ended_over_several_turns():
    service = Service(ClockInTurns())
    service.publish(b"a")
    fired = []
    for _ in range(900):
        service.feeds.wait("t", {0: 1}).addCallback(fired.append)
    for _ in range(5):
        service.clock.take()
    service.broker.publish(record("t", b"v"))
    most, before = 0, 0
    for _ in range(50):
        service.clock.take()
        most, before = max(most, len(fired) - before), len(fired)
    assert fired == [True] * 900
    assert most <= 64


def test_stopping_ends_all_waits(service):
    _, fired = service.wait(1)
    service.feeds.stop()
    assert fired == [False]
    assert service.wait(1)[1] == [False]
    assert service.clock.getDelayedCalls() == []
