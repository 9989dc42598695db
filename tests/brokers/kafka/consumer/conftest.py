"""Followings and readers on a cluster that is simulated."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.consumer import TopicReader
from sampleapp.model import EARLIEST, ReadRequest
from tests.support.kafka_simulator import TOPIC, Cluster, FollowingSetup


class PageRead:
    """A reader of a cluster, whose clock a test moves on."""

    def __init__(self, cluster, **options):
        self.cluster = cluster
        cluster.has_readers = True
        self.reader = TopicReader(new_client=cluster.new_client, clock=cluster.clock, **options)

    def begin(self, starts=(), *, others=EARLIEST, limit=500, max_bytes=2**20, topic=TOPIC):
        request = ReadRequest(
            topic=topic, starts=dict(starts), others=others, limit=limit, max_bytes=max_bytes
        )
        return self.reader.read(request)

    def read(self, starts=(), **options):
        return self.result_of(self.begin(starts, **options))

    def result_of(self, reading: Deferred):
        results = []
        reading.addBoth(results.append)
        self.cluster.until(lambda: results)
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]

    def stop(self):
        stopping = self.reader.stop()
        self.cluster.run(1)
        assert stopping.called
        assert all(client.closed and not client.open for client in self.cluster.clients)
        # Reading makes no topics.
        assert not any(creates for _, _, creates in self.cluster.loads)
        self.cluster.run(20)
        assert self.cluster.clock.getDelayedCalls() == []


@pytest.fixture
def setup():
    """Makes subscriptions of a cluster, and stops them at the end."""
    made = []

    def make(cluster, **options):
        made.append(FollowingSetup(cluster, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def new_reader():
    """Makes readers, and stops them at the end."""
    made = []

    def make(cluster=None, **options):
        made.append(PageRead(cluster or Cluster(), **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()
