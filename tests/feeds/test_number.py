"""The number of feeds is bounded: an unused one ends before another begins."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.feeds import Feeds
from sampleapp.model import Record


def use_for_a_moment(feeds, topic):
    waiting = feeds.wait(topic, {0: 1})
    waiting.addErrback(lambda failure: failure.trap(CancelledError))
    waiting.cancel()


def test_an_unused_feed_ends_before_another_begins_and_one_that_is_used_does_not():
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    for topic in "abcd":
        broker.publish(Record(topic=topic, key=None, value=b"", timestamp_ms=1))
    clock.pump([0.1] * 5)
    feeds = Feeds(broker, clock, most=2)
    used = feeds.wait("a", {0: 1})
    use_for_a_moment(feeds, "b")
    assert len(feeds) == 2
    use_for_a_moment(feeds, "c")
    use_for_a_moment(feeds, "d")
    assert len(feeds) == 2
    assert not used.called
    feeds.stop()
    broker.stop(deadline_s=0)
    clock.pump([0.1] * 5)
