"""A producer of a simulated cluster, and what became of its records."""

from __future__ import annotations

import itertools
from collections import Counter

from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.clock_check import ClockCheck
from sampleapp.brokers.kafka.producer import Producer, ProducerSettings, ReplayDetection
from sampleapp.brokers.kafka.producer.partitioner import partition_for_key
from sampleapp.brokers.kafka.protocol import ProduceRequest
from sampleapp.model import RecordMetadata
from tests.support.brokers import record
from tests.support.kafka_simulator.client import SimulatedClient
from tests.support.kafka_simulator.cluster import Cluster

__all__ = [
    "TIMEOUT_S",
    "ProducerSetup",
    "Slow",
    "assert_true",
    "keys_of",
    "publish_now",
    "publish_one_by_one",
    "stop_and_assert_nothing_is_left",
    "warm",
]

TIMEOUT_S = 2.0
LATENCY_S = 0.01
NOW_S = 1_795_000_000.0
"""The time of day when the clock is at 0."""
SETTINGS = {
    "buffer_bytes": 64 * 1024 * 1024,
    "delivery_timeout_s": TIMEOUT_S,
    "codec": Codec.NONE,
    "idempotence": True,
    "auto_create": False,
}


class Slow(list):
    """Records of which each look at some of them takes time, as it does where there are really many."""

    def __init__(self, records, clock):
        super().__init__(records)
        self._clock = clock

    def __getitem__(self, which):
        if isinstance(which, slice):
            self._clock.rightNow += 0.0002
        return super().__getitem__(which)


class ProducerSetup:
    """A producer of a cluster, and the outcome of each record."""

    def __init__(self, *, partitions=2, brokers=(1,), client=SimulatedClient, **settings):
        self.cluster = Cluster(partitions, brokers=brokers, latency_s=LATENCY_S)
        # As of brokers that are older than the ids of topics.
        self.cluster.topic_id = None
        self.clock = self.cluster.clock
        self.client = client(self.cluster)
        self.replays = ReplayDetection(new_client=lambda: SimulatedClient(self.cluster), clock=self.clock)
        self.clock_check = ClockCheck(
            new_client=lambda: SimulatedClient(self.cluster),
            clock=self.clock,
            now=lambda: NOW_S + self.clock.seconds(),
        )
        self.producer = Producer(
            client=self.client,
            replays=self.replays,
            clock_check=self.clock_check,
            settings=ProducerSettings(**{**SETTINGS, **settings}),
            clock=self.clock,
        )
        self.published = []

    def decide(self, next_fate):
        """Have this function decide what becomes of the next Produce requests."""
        self.cluster.fates[ProduceRequest] = next_fate

    def publish(self, value, *, key=b"k", topic="t"):
        answer = self.producer.publish(record(topic, value, key=key))
        outcome = []
        answer.addBoth(outcome.append)
        self.published.append((value, key, outcome))
        return outcome

    def publish_many(self, values, *, keys=(b"k",), topic="t"):
        """Publish some values together, with these keys in turn; return the outcomes, once for each."""
        pairs = list(zip(values, itertools.cycle(keys), strict=False))
        outcomes = [[] for _ in pairs]
        for (value, key), outcome in zip(pairs, outcomes, strict=True):
            self.published.append((value, key, outcome))

        def told(result):
            results = [result] * len(pairs) if isinstance(result, Failure) else result
            for each, outcome in zip(results, outcomes, strict=True):
                outcome.append(each)

        records = Slow([record(topic, value, key=key) for value, key in pairs], self.clock)
        self.producer.publish_many(records).addBoth(told)
        return outcomes

    def advance(self, seconds, step_s=0.01):
        self.clock.pump([step_s] * max(1, round(seconds / step_s)))

    def settled(self):
        """Every answer, in order: metadata or exception."""
        return [
            outcome[0].value if isinstance(outcome[0], Failure) else outcome[0]
            for _, _, outcome in self.published
        ]


def warm(**settings):
    """A setup in which the topic and the producer id are known already."""
    world = ProducerSetup(**settings)
    outcome = world.publish(b"first")
    world.advance(0.5)
    assert isinstance(outcome[0], RecordMetadata)
    return world


def publish_now(world, value, **kwargs):
    outcome = world.publish(value, **kwargs)
    world.advance(0.5)
    assert isinstance(outcome[0], RecordMetadata), outcome
    return outcome


def publish_one_by_one(world, count):
    """Be the only caller for a while: each record is published when the one before is answered."""
    for number in range(count):
        publish_now(world, b"%d" % number)


def assert_true(world):
    """Check that the answers to callers agree with the logs of the partitions."""
    found = Counter(value for values in world.cluster.values() for value in values)
    for (value, _, outcome), answer in zip(world.published, world.settled(), strict=True):
        assert len(outcome) == 1
        assert found[value] <= 1, f"{value} was published twice"
        if isinstance(answer, RecordMetadata):
            assert world.cluster.values()[answer.partition][answer.offset] == value
        elif not answer.possibly_published:
            assert found[value] == 0, f"{value} is there, in spite of {answer!r}"
    for key in (b"a", b"b", b"c"):
        places = [
            (answer.partition, answer.offset)
            for (_, its_key, _), answer in zip(world.published, world.settled(), strict=True)
            if its_key == key and isinstance(answer, RecordMetadata)
        ]
        assert places == sorted(places)


def stop_and_assert_nothing_is_left(world):
    """To be called after `give_up`: it is time for everything that could still happen."""
    world.producer.stop()
    world.advance(3 * TIMEOUT_S)
    assert world.producer.buffered_bytes == 0
    assert world.clock.getDelayedCalls() == []
    assert_true(world)


def keys_of(partitions):
    """A key for each partition."""
    keys = {}
    for number in range(100 * partitions):
        key = b"%d" % number
        keys.setdefault(partition_for_key(key, partitions), key)
    return [keys[partition] for partition in range(partitions)]
