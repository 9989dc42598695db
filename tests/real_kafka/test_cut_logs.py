"""
Logs that were cut, and have grown past the position since: every reader is told (KIP-320).

The service is frozen until they have, and the consumer of librdkafka does not ask.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from http import HTTPStatus

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.real_kafka.admin import new_topic
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import connect, wait_for_readings
from tests.real_kafka.versions import UNCLEAN_ELECTIONS, needs
from tests.real_kafka.writing import produce
from tests.support.event_streams import EventReader
from tests.support.waiting import wait_until

pytestmark = pytest.mark.release

KEPT, LOST, NEW = 50, 100, 300
OLD = KEPT + LOST
KEYS = 10
PATIENCE_S = 60


class Reader:
    """A stream, until it is closed."""

    def __init__(self, service, topic, *, query="from=earliest", last_event_id=None):
        self._connection = connect(service)
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        self._connection.request("GET", f"/topics/{topic}/records?{query}", headers=headers)
        self._socket = self._connection.sock
        self._answer = self._connection.getresponse()
        self._reader = EventReader()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        # It is cut off when it is closed.
        with suppress(OSError, http.client.HTTPException):
            while received := self._answer.read1():
                self._reader.feed(received)

    def close(self):
        self._socket.shutdown(2)
        self._thread.join(PATIENCE_S)
        self._answer.close()
        self._connection.close()

    @property
    def last_event_id(self):
        return self._reader.last_event_id

    @property
    def resets(self):
        return [json.loads(each.data)["reason"] for each in self._reader.events if each.event == "reset"]

    @property
    def contents(self):
        """Of the records after the last reset."""
        found = []
        for each in list(self._reader.events):
            if each.event == "reset":
                found = []
            else:
                found.append(json.loads(each.data)["content"].encode())
        return found


class CutLog:
    """A topic of one partition, on two nodes or one, whose log gets cut."""

    def __init__(self, cluster, *, replicas):
        self.cluster = cluster
        controller = cluster.controller()
        self.leader, self.follower = (node for node in cluster.nodes if node is not controller)
        self.topic = cluster.admin.create(
            new_topic("cut"),
            assignment=[[self.leader.number, self.follower.number][:replicas]],
            min_insync_replicas=1,
            unclean_leader_election_enable="true",
        )
        cluster.admin.wait_until_in_sync(self.topic, replicas)

    def write(self, begin, end):
        values = [b"%d" % each for each in range(begin, end)]
        produce(self.cluster, self.topic, values, key=lambda value: b"k%d" % (int(value) % KEYS))

    @contextmanager
    def without_leader(self):
        """The directory of the log, while its leader is down."""
        self.leader.stop()
        (found,) = self.leader.data.glob(f"{self.topic}-0")
        yield found
        self.leader.start()
        self.cluster.wait_until_ready()
        self.cluster.admin.wait_until_led_by(self.topic, self.leader.number)


class UncleanElection(CutLog):
    def __init__(self, cluster):
        super().__init__(cluster, replicas=2)

    def prepare(self):
        self.follower.kill9()
        self.cluster.admin.wait_until_in_sync(self.topic, 1)

    def cut(self):
        self.leader.kill9()
        self.follower.start()
        self.cluster.admin.wait_until_led_by(self.topic, self.follower.number)


class LostDisk(CutLog):
    def __init__(self, cluster):
        super().__init__(cluster, replicas=1)

    def prepare(self):
        pass

    def cut(self):
        with self.without_leader() as directory:
            shutil.rmtree(directory)


class OlderCopy(LostDisk):
    def prepare(self):
        with self.without_leader() as directory:
            self._copy = shutil.copytree(directory, self.leader.data.with_name("copy"))

    def cut(self):
        with self.without_leader() as directory:
            shutil.rmtree(directory)
            shutil.copytree(self._copy, directory)
        shutil.rmtree(self._copy)


def page(service, topic, position):
    with closing(connect(service)) as connection:
        connection.request("GET", f"/topics/{topic}/records?from={position}&limit=1000")
        answer = connection.getresponse()
        return answer.status, answer.getheader("Position"), answer.read()


@contextmanager
def librdkafka(cluster, topic):
    """Its consumer, which has read everything."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    wait_until(lambda: found.extend(consumer.consume(OLD, 0.2)) or len(found) == OLD, "it has read")
    yield consumer
    consumer.close()


def tells_truncation(consumer):
    return any("truncation" in str(each.error()) for each in consumer.consume(1000, 0.5))


@pytest.mark.parametrize(
    "kind", [pytest.param(UncleanElection, marks=needs(UNCLEAN_ELECTIONS)), LostDisk, OlderCopy]
)
def test_every_reader_is_told_that_the_log_was_cut(three_nodes, start_service, kind):
    log = kind(three_nodes)
    topic = log.topic
    log.write(0, KEPT)
    log.prepare()
    log.write(KEPT, OLD)
    service = start_service(three_nodes, service_options=["--readings-topic", topic])
    wait_for_readings(service, {f"k{each % KEYS}": float(each) for each in range(OLD - KEYS, OLD)})
    with ExitStack() as stack:

        def stream(**options):
            return stack.enter_context(closing(Reader(service, topic, **options)))

        at_the_end = stream(query="from=latest")
        streams = [stream(), at_the_end]
        wait_until(lambda: len(streams[0].contents) == OLD, "the stream has everything")
        wait_until(lambda: at_the_end.last_event_id, "the stream has begun")
        away = [each.last_event_id for each in streams]
        positions = [page(service, topic, start)[1] for start in ("earliest", "latest")]
        consumer = stack.enter_context(librdkafka(three_nodes, topic))

        service.process.send_signal(signal.SIGSTOP)
        log.cut()
        log.write(1000, 1000 + NEW)
        service.process.send_signal(signal.SIGCONT)

        stored = [each.value for each in read_all(three_nodes.bootstrap, topic)]
        assert len(stored) > OLD
        assert b"%d" % (OLD - 1) not in stored
        for position in positions:
            status, _, problem = page(service, topic, position)
            assert status == HTTPStatus.GONE, (position, status)
            assert json.loads(problem)["type"].endswith(":position-unknown")
        streams += [stream(last_event_id=each) for each in away]
        for each in streams:
            wait_until(
                lambda each=each: each.contents == stored, "a stream has what there is", deadline_s=PATIENCE_S
            )
            assert each.resets == ["position-unknown"]
        wait_for_readings(service, {f"k{int(each) % KEYS}": float(each) for each in stored})
        assert "is read again from its first record" in service.output
        wait_until(lambda: tells_truncation(consumer), "librdkafka has found it", deadline_s=PATIENCE_S)
    three_nodes.restore()
