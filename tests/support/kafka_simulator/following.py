"""A subscription of a simulated topic, and who hears of it."""

from __future__ import annotations

from collections import defaultdict

from twisted.internet.defer import Deferred

from sampleapp.brokers.kafka.consumer import Consumer, Subscription
from sampleapp.brokers.shared.following import Subscriptions
from sampleapp.brokers.shared.health import HealthTracker
from sampleapp.model import EARLIEST
from tests.support.brokers import Recorder
from tests.support.kafka_simulator.log import TOPIC

__all__ = ["FollowingSetup"]


class FollowingSetup:
    """A subscription of the topic, and who hears of it."""

    def __init__(
        self,
        cluster,
        *,
        started=True,
        max_batch_bytes=64 * 1024 * 1024,
        start=EARLIEST,
        recorder=Recorder,
        **options,
    ):
        self.cluster = cluster
        self.health_tracker = HealthTracker()
        self.recorder = recorder(**options)
        self.followings = Subscriptions()
        self.consumer = Consumer(new_client=cluster.new_client, clock=cluster.clock)
        self.max_batch_bytes = max_batch_bytes
        self.start = start
        self.following = self.follow(self.recorder)
        if started:
            self.followings.start()

    def follow(self, observer, *, topic=TOPIC, start=None):
        following = Subscription(
            topic=topic,
            observer=observer,
            consumer=self.consumer,
            clock=self.cluster.clock,
            health_tracker=self.health_tracker,
            ended=self.followings.ended,
            start=self.start if start is None else start,
            max_batch_bytes=self.max_batch_bytes,
        )
        self.followings.add(following)
        return following

    @property
    def records(self):
        """What it was told since it began, or began anew."""
        return self.recorder.records[max(self.recorder.reset_at, default=0) :]

    @property
    def values(self):
        return [each.value for each in self.records]

    @property
    def caught_up(self):
        return bool(self.recorder.caught_up_at)

    @property
    def unavailable_reason(self):
        return self.following.unavailable_reason()

    @property
    def reasons(self):
        return self.health_tracker.health().reasons

    def catch_up(self):
        self.cluster.until(lambda: self.caught_up)
        return self.values

    def until(self, count):
        self.cluster.until(lambda: len(self.records) >= count)
        return self.values

    def assert_each_exactly_once(self):
        found = defaultdict(list)
        for each in self.records:
            found[each.partition].append((each.offset, each.value))
        assert dict(found) == {
            number: sorted(log.shown.items()) for number, log in self.cluster.logs.items() if log.shown
        }

    def stop(self):
        """Stop it; what it was told until then is all that it will be told."""
        connected = any(not client.closed for client in self.cluster.clients)
        stopping = [
            self.following.stop(),
            Deferred.fromCoroutine(self.followings.stop()),
            self.following.stop(),
        ]
        told = len(self.recorder.records), len(self.recorder.caught_up_at)
        # Connections take their time to close.
        assert stopping[1].called is not connected
        self.cluster.run(self.cluster.latency_s)
        assert [self.result_of(each) for each in stopping] == [None] * 3
        assert all(client.closed and not client.open for client in self.cluster.clients)
        self.cluster.run(20)
        assert self.cluster.clock.getDelayedCalls() == []
        assert (len(self.recorder.records), len(self.recorder.caught_up_at)) == told
        assert self.health_tracker.health().ready
        # Reading makes no topics.
        assert not any(creates for _, _, creates in self.cluster.loads)

    def result_of(self, deferred):
        results = []
        deferred.addBoth(results.append)
        assert results, "it has not fired"
        return results[0]
