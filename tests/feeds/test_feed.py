"""The feed of one topic, with many subscribers of different partitions."""

from __future__ import annotations

from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.feeds.broadcast import WORK_AT_ONCE, Selection, Subscribers
from sampleapp.feeds.feed import Feed, Joining
from sampleapp.model import ConsumerRecord
from tests.feeds.test_broadcast import Stream
from tests.support.brokers import record
from tests.support.clocks import ClockInTurns
from tests.support.logs import logged_lines


class CountingAudience(Subscribers):
    def __init__(self):
        super().__init__(make_event=bytes)
        self.counts = []

    def take_some(self):
        self.counts.append(super().take_some())
        return self.counts[-1]


def test_however_differently_partitions_are_chosen_the_work_of_one_step_is_bounded():
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    broker.publish(record("t", b"first"))
    subscribers = CountingAudience()
    feed = Feed("t", broker=broker, clock=clock, subscribers=subscribers, unused=lambda _: None)
    clock.pump([0] * 10)
    streams = [Stream() for _ in range(100)]
    for number, stream in enumerate(streams, 1):
        feed.join(stream, {0: 1}, Selection("id", skipped=frozenset([number])))
    for number in range(300):
        broker.publish(record("t", b"%d" % number))
    clock.pump([0] * 1000)
    assert {tuple(stream.offsets) for stream in streams} == {tuple(range(1, 301))}
    assert max(subscribers.counts) <= WORK_AT_ONCE + 1


def test_a_feed_that_is_stopped_while_it_passes_on_sends_nothing_more_and_ends_once():
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    broker.publish(record("t", b"first"))
    unused, stopping = [], []

    class Stopping(Stream):
        def receive(self, event, count):
            stopping.append(feed.stop())
            return super().receive(event, count)

    feed = Feed(
        "t", broker=broker, clock=clock, subscribers=Subscribers(make_event=bytes), unused=unused.append
    )
    clock.pump([0] * 10)
    streams = [Stopping(), *(Stream() for _ in range(1000))]
    for stream in streams:
        feed.join(stream, {0: 1}, Selection("id"))
    for number in range(10):
        broker.publish(record("t", b"%d" % number))
    clock.pump([0] * 100)
    assert len(stopping) == 1
    # Those of the same step.
    assert sum(map(bool, (stream.events for stream in streams))) < 1000
    for stream in streams:
        feed.leave(stream)
    assert unused == []
    assert feed.stop().called


def test_after_a_fault_each_listener_is_told_at_once_to_read_by_itself(no_failure_is_lost):
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    broker.publish(record("t", b"first"))
    subscribers = Subscribers(make_event=bytes)
    feed = Feed("t", broker=broker, clock=clock, subscribers=subscribers, unused=lambda _: None)
    clock.pump([0] * 10)
    streams = [Stream() for _ in range(3)]
    for stream in streams:
        feed.join(stream, {0: 1}, Selection("id"))
    subscribers.take = lambda *_: 1 // 0
    broker.publish(record("t", b"second"))
    with logged_lines() as lines:
        clock.pump([0] * 10)
    assert lines == ["Passing on the records of t failed"]
    assert no_failure_is_lost.pop().check(ZeroDivisionError)
    assert [stream.ends for stream in streams] == [[False]] * 3


class RoomyStream(Stream):
    """A subscriber that takes everything, and keeps nothing."""

    def has_room(self, _):
        return True

    def receive(self, _event, _count):
        return True


def take_turns(clock):
    for _ in range(100):
        clock.advance(1)


def feed_of(subscribers, clock):
    broker = MemoryBroker(clock=clock)
    broker.start()
    broker.publish(record("t", b"first"))
    feed = Feed("t", broker=broker, clock=clock, subscribers=subscribers, unused=lambda _: None)
    take_turns(clock)
    return broker, feed


def test_a_heartbeat_is_never_ahead_of_the_events_that_a_listener_has_not_got():
    clock = ClockInTurns()
    broker, feed = feed_of(Subscribers(make_event=bytes), clock)
    streams = [Stream() for _ in range(1000)]
    for stream in streams:
        feed.join(stream, {0: 1}, Selection("id"))
    broker.publish(record("t", b"second"))
    clock.take()
    assert streams[0].events != []
    assert streams[-1].events == []
    assert feed.heartbeat(streams[-1]) is None
    assert streams[-1].position == b"id~1"
    take_turns(clock)
    assert feed.heartbeat(streams[-1]) == b"id: id~2\n\n"
    assert len(streams[-1].events) == 1


def large(first, count):
    return [
        ConsumerRecord(topic="t", partition=0, offset=offset, timestamp_ms=0, key=None, value=bytes(7000))
        for offset in range(first, first + count)
    ]


def test_records_from_before_a_reset_do_not_count_as_waiting():
    _, feed = feed_of(Subscribers(make_event=bytes), Clock())
    feed.records_received(large(1, 1100))
    feed.reset()
    feed.records_received(large(1, 300))
    assert feed.overruns == 0


def test_records_that_are_taken_few_at_a_time_do_not_let_more_of_them_wait():
    clock = Clock()
    _, feed = feed_of(Subscribers(make_event=bytes), clock)
    for number in range(200):
        feed.join(RoomyStream(), {0: 1}, Selection("id", skipped=frozenset([number + 1])))
    feed.records_received(large(1, 60))
    take_turns(clock)
    feed.records_received(large(61, 1180))
    assert feed.overruns == 1


def test_who_joins_or_is_quiet_while_a_record_is_taken_for_many_others_misses_nothing():
    clock = ClockInTurns()
    broker = MemoryBroker(clock=clock)
    broker.start()
    broker.publish(record("t", b"first"))
    subscribers = Subscribers(make_event=bytes)
    feed = Feed("t", broker=broker, clock=clock, subscribers=subscribers, unused=lambda _: None)
    for _ in range(10):
        clock.take()
    streams = [Stream() for _ in range(10 * WORK_AT_ONCE)]
    for number, stream in enumerate(streams, 1):
        feed.join(stream, {0: 1}, Selection("id", skipped=frozenset([number])))

    def take_until(is_done):
        for _ in range(10 * len(streams)):
            if is_done():
                return
            clock.take()
        raise AssertionError

    assert feed.heartbeat(streams[-1]) is not None
    broker.publish(record("t", b"second"))
    take_until(lambda: subscribers.is_taking)
    late = Stream()
    assert feed.heartbeat(streams[-1]) is None
    assert feed.join(late, {0: 1}, Selection("id")) == (Joining.AHEAD, ())
    take_until(lambda: not subscribers.is_taking)
    joining, missed = feed.join(late, {0: 1}, Selection("id"))
    assert (joining, [each.offset for each in missed]) == (Joining.JOINED, [1])
    broker.publish(record("t", b"third"))
    take_until(lambda: late.offsets and not subscribers.is_busy)
    assert {tuple(stream.offsets) for stream in streams} == {(1, 2)}
    assert late.offsets == [2]
