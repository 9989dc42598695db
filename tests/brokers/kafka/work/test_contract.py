"""Groups of workers on simulated share groups pass the contract."""

from __future__ import annotations

import time
from contextlib import contextmanager
from uuid import NAMESPACE_OID, uuid5

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import LoopingCall

from sampleapp.brokers.kafka.batches import Codec, encode_batch
from sampleapp.brokers.kafka.consumer import TopicReader
from sampleapp.brokers.kafka.protocol import OF_BROKER
from sampleapp.brokers.kafka.work import GroupWork
from sampleapp.model import RecordMetadata
from sampleapp_testing import WorkContract
from tests.support.in_memory import PromptBroker
from tests.support.kafka_simulator import Cluster

STEP_S = 0.02

pytestmark = pytest.mark.usefixtures("bytes_on_the_wire")


class ManyTopics(Cluster):
    """A cluster whose topics all have ids."""

    def __init__(self, **options):
        super().__init__(**options)
        self.topics.clear()
        self.has_readers = True
        self.is_going_on = False
        for node_id in self.brokers:
            self.configs[OF_BROKER, f"{node_id}"] = {"group.share.delivery.count.limit": "5"}

    def known_to(self, node_id, topic=""):
        logs = self.topics.get(topic, {})
        return (uuid5(NAMESPACE_OID, topic) if logs else None), logs


class SimulatedBroker(PromptBroker):
    """A broker whose time goes on with the reactor, and faster."""

    def __init__(self, cluster, *, most_leases):
        super().__init__()
        self.cluster = cluster
        began_s = time.time()
        self.work = GroupWork(
            client=self.cluster.new_client(),
            read=TopicReader(new_client=self.cluster.new_client, clock=self.cluster.clock).read,
            clock=self.cluster.clock,
            now=lambda: began_s + self.cluster.clock.seconds(),
            most_leases=most_leases,
        )
        self.going_on = LoopingCall(self.cluster.run, STEP_S)
        self.going_on.clock = reactor
        self.count = 0

    def start(self):
        if not self.cluster.is_going_on:
            self.cluster.is_going_on = True
            self.going_on.start(0.001)

    def publish(self, record):
        if record.topic not in self.cluster.topics:
            self.cluster.add_partitions(2, topic=record.topic)
        self.count += 1
        number = self.count % 2
        data = encode_batch([record], codec=Codec.NONE, producer_id=-1, epoch=-1, base_sequence=-1)
        _, offset = self.cluster.topics[record.topic][number].append_batch(data)
        return succeed(RecordMetadata(topic=record.topic, partition=number, offset=offset))

    def publish_many(self, records):
        return succeed([self.publish(each).result for each in records])

    def list_topics(self):
        return succeed(sorted(self.cluster.topics))

    def stop(self, *, deadline_s):
        stopping = Deferred.fromCoroutine(self.work.stop())
        return stopping.addBoth(lambda _: self.going_on.running and self.going_on.stop())


class TestWorkOnSimulatedKafka(WorkContract):
    is_shared = True

    @contextmanager
    def new_broker(self):
        self.cluster = ManyTopics(brokers=(1, 2))
        yield self.again(None)
        assert self.cluster.share_groups.sessions == {}

    def again(self, broker):
        return SimulatedBroker(self.cluster, most_leases=self.most_leases)

    async def end_leases(self):
        self.cluster.run(31)
