"""
Event streams while everything goes wrong that may: what each client gets is what the topic has.

Two services serve the streams of one topic. Nodes of Kafka are killed and frozen, leaders change, services
are killed, frozen and restarted, partitions are added, records are deleted, the topic is deleted and made
again, and transactions are committed, aborted, and left open for a while. Clients leave, come back to any
service, and read slowly. In the end, each has got every record that a consumer of librdkafka reads, once and
in order, unless it was told that the record is missing.

``SAMPLEAPP_STREAMS_SEED`` chooses the faults, and ``SAMPLEAPP_STREAMS_FAULTS`` their number.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from os import environ

import pytest
from confluent_kafka import KafkaException, Producer

from tests.real_kafka.admin import new_topic
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import kafka_url
from tests.real_kafka.stream_clients import Reference, StreamClient, check_items
from tests.real_kafka.world import ReturningService, World
from tests.real_kafka.writing import produce
from tests.support.waiting import wait_until

SEED = int(environ.get("SAMPLEAPP_STREAMS_SEED", "1"))
FAULTS = int(environ.get("SAMPLEAPP_STREAMS_FAULTS", "4"))

pytestmark = [pytest.mark.one_version, pytest.mark.timeout(600 + 60 * FAULTS)]

PARTITIONS = 4
CATCH_UP_S = 90
KEYS = [b"a", b"b", b"c"]
_TRANSACTION_S = 20


class Writer:
    """Writes all the time: alone, and in transactions that are committed, aborted, or open for a while."""

    def __init__(self, cluster, topic, rng):
        self._cluster, self.topic, self._random = cluster, topic, rng
        self.generation = 0
        self.partitions = PARTITIONS
        self._number = 0
        self._may_write = threading.Event()
        self._may_write.set()
        self._stopping = threading.Event()
        self._idle = [threading.Event(), threading.Event()]
        self._threads = [
            threading.Thread(target=self._run, args=(each, write), daemon=True)
            for each, write in zip(self._idle, (self._write, self._write_transaction), strict=True)
        ]
        self.committed = self.aborted = 0

    def __enter__(self):
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._may_write.set()
        for each in self._threads:
            each.join(60)

    @contextlib.contextmanager
    def paused(self):
        """Nothing is written, and no transaction is open."""
        self._may_write.clear()
        for each in self._idle:
            assert each.wait(90), "the writer did not come to rest"
        try:
            yield
        finally:
            self._may_write.set()

    def _run(self, idle, write):
        while not self._stopping.is_set():
            if not self._may_write.is_set():
                idle.set()
                self._may_write.wait()
                idle.clear()
                continue
            try:
                write()
            except (KafkaException, BufferError):
                # The leader is away, or the topic; what was stored all the same is found in the topic.
                time.sleep(0.2)

    def _produce(self, producer, count):
        for _ in range(count):
            self._number += 1
            value = f"{self.generation}:{self._number}:{'x' * self._random.choice([0, 10, 2000])}"
            producer.produce(
                self.topic,
                value.encode(),
                key=self._random.choice(KEYS),
                partition=self._random.randrange(self.partitions),
            )

    def _write(self):
        producer = self._new_producer()
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s and self._may_write.is_set() and not self._stopping.is_set():
            self._produce(producer, self._random.randint(1, 20))
            producer.poll(0)
            time.sleep(0.05)
        producer.flush(20)
        producer.purge()
        producer.flush(5)

    def _write_transaction(self):
        producer = self._new_producer(**{"transactional.id": self.topic, "transaction.timeout.ms": 30_000})
        producer.init_transactions(_TRANSACTION_S)
        for _ in range(5):
            if not self._may_write.is_set():
                break
            producer.begin_transaction()
            try:
                self._produce(producer, self._random.randint(1, 10))
                producer.flush(10)
                time.sleep(self._random.choice([0, 0.1, 0.5, 3]))
                if self._random.random() < 0.5:
                    producer.abort_transaction(_TRANSACTION_S)
                    self.aborted += 1
                else:
                    producer.commit_transaction(_TRANSACTION_S)
                    self.committed += 1
            except KafkaException:
                with contextlib.suppress(KafkaException):
                    producer.abort_transaction(_TRANSACTION_S)
                raise

    def _new_producer(self, **config):
        return Producer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "log_level": 0,
                "enable.idempotence": True,
                "message.timeout.ms": 15_000,
                "linger.ms": 5,
                **config,
            }
        )


class StreamsWorld(World):
    """The writer as well, and what else may happen to a topic."""

    def __init__(self, cluster, services, writer, reference):
        super().__init__(cluster, services, writer.topic, seed=SEED)
        self.writer, self.reference = writer, reference

    def faults(self):
        return [*super().faults(), self.add_partitions, self.delete_records, self.make_the_topic_again]

    def suffer(self, count):
        """Have so many faults; return their names."""
        for _ in range(count):
            time.sleep(self.random.uniform(0.5, 3))
            self.happen()
        time.sleep(3)
        return self.happened

    def snapshot(self):
        self.reference.add(self.writer.generation, read_all(self.cluster.bootstrap, self.topic))

    def end_generation(self):
        """Write a last record of each key to each partition, and wait until nothing holds it back."""
        generation, partitions = self.writer.generation, self.writer.partitions
        for partition in range(partitions):
            for key in KEYS:
                value = f"{generation}:end".encode()
                produce(self.cluster, self.topic, [value], partition=partition, key=lambda _, key=key: key)

        def is_complete():
            self.snapshot()
            return len(ends_of(self.reference, generation)) == partitions * len(KEYS)

        wait_until(is_complete, "transactions that were left open have ended", deadline_s=90)

    def add_partitions(self):
        self.cluster.admin.add_partitions(self.topic, self.writer.partitions + 1)
        self.writer.partitions += 1

    def delete_records(self):
        generation = self.writer.generation

        def has_records():
            self.snapshot()
            return self.reference.records[generation]

        # It may have been made just now.
        wait_until(has_records, "the topic has records", deadline_s=90)
        partition, offset = self.random.choice(list(self.reference.records[generation]))
        # Said before it is done: a client may be told in between.
        place = generation, partition
        self.reference.deleted_before[place] = max(offset, self.reference.deleted_before[place])
        self.cluster.admin.delete_records(self.topic, partition, self.reference.deleted_before[place])

    def make_the_topic_again(self):
        with self.writer.paused():
            self.end_generation()
            admin = self.cluster.admin
            admin.delete(self.topic)
            time.sleep(self.random.uniform(0, 3))
            self.writer.partitions = self.random.randint(1, PARTITIONS + 1)
            admin.create(self.topic, partitions=self.writer.partitions)
            self.writer.generation += 1


CLIENTS = {
    "all": "",
    "another": "",
    "slow": "",
    "one partition": "&partition=0",
    "one key": "&key=b",
}
"""The queries of the clients."""
WANTED = {
    "one partition": lambda partition, _: partition == 0,
    "one key": lambda _, key: key == b"b",
}


@pytest.fixture
def services(three_nodes, tmp_path):
    """Two of them."""
    made = [ReturningService(tmp_path / f"service-{n}", kafka_url(three_nodes)) for n in range(2)]
    yield made
    for each in made:
        each.kill()


@pytest.fixture
def clients(services):
    """Makes the clients of a topic, which come back until the end."""
    made = []

    def make(topic):
        urls = [each.url for each in services]
        for number, (name, query) in enumerate(CLIENTS.items()):
            path = f"/topics/{topic}/records?from=earliest{query}"
            made.append(StreamClient(name, urls, path, seed=SEED + number, is_slow=name == "slow"))
            made[-1].start()
        return made

    yield make
    for each in made:
        each.stop()


def test_each_client_gets_each_record_once_and_in_order_or_is_told(three_nodes, services, clients):
    topic = three_nodes.admin.create(new_topic("streams"), partitions=PARTITIONS)
    three_nodes.admin.wait_until_in_sync(topic, 3)
    reading = clients(topic)
    with Writer(three_nodes, topic, random.Random(SEED)) as writer:
        world = StreamsWorld(three_nodes, services, writer, Reference())
        done = world.suffer(FAULTS)
        with writer.paused():
            world.end_generation()
    done = f"seed {SEED}: {done}; {writer.committed} committed, {writer.aborted} aborted"
    ends = ends_of(world.reference, writer.generation)
    for each in reading:
        each.hurry()
        wait_for_the_end(each, ends, writer.generation)
    for each in reading:
        assert each.broken == [], (each.name, each.broken, done)
        counts = check_items(f"{each.name} ({done})", each.items, world.reference, wanted=wanted_by(each))
        assert counts["message"], each.name
        done += f"\n{each.name}: {dict(counts)}, answers {dict(each.statuses)}"
    print(done)  # noqa: T201 -- shown with -s, or if the test fails
    for each in services:
        assert "Traceback" not in each.output, each.output


def wanted_by(client):
    return WANTED.get(client.name, lambda *_: True)


def ends_of(reference, generation):
    """The keys of the last records of a generation, by their places."""
    records = reference.records[generation]
    return {place: key for place, (key, value) in records.items() if value == f"{generation}:end"}


def wait_for_the_end(client, ends, generation):
    expected = {place for place, key in ends.items() if wanted_by(client)(place[0], key)}

    def has_all():
        found = {
            (each.data["partition"], each.data["offset"])
            for each in client.items[-5000:]
            if each.event == "message" and each.data["content"] == f"{generation}:end"
        }
        return expected <= found or client.broken

    # What is missing is said by the check.
    with contextlib.suppress(AssertionError):
        wait_until(has_all, f"{client.name} has got everything", deadline_s=CATCH_UP_S)
