"""A broker that runs against something, and what is asked of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from urllib.parse import urlencode

from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol

from sampleapp.brokers import from_url
from sampleapp.model import RecordMetadata
from tests.support.brokers import eventually, record, within
from tests.support.free_ports import rejecting_port
from tests.support.kafka_log import log_of

FOR_EVER = 10_000
"""More attempts than there is time for."""


@asynccontextmanager
async def running(bootstrap, *, reactor=reactor, stop_within_s=20, **options):
    query = f"?{urlencode(options)}" if options else ""
    broker = from_url(f"kafka://{bootstrap}{query}", reactor=reactor)
    broker.check()
    broker.start()
    try:
        yield broker
    finally:
        await within(broker.stop(deadline_s=stop_within_s))


def soon(deferred):
    """The same Deferred, for what must not wait for anything: half of the default delivery timeout."""
    return deferred.addTimeout(5, reactor)


async def soon_failed(deferred):
    try:
        await soon(deferred)
    except Exception as error:  # noqa: BLE001 -- the test looks at it
        return error
    raise AssertionError("it succeeded")


async def values_in(mock, topic="t"):
    """What the topic holds, by partition and offset."""
    return [each.value for each in await log_of(mock.bootstrap, topic)]


def numbered(count, *, start=0, topic="t", key=b"k"):
    return [record(topic, b"%d" % n, key=key) for n in range(start, start + count)]


def assert_published(answers, log, sent):
    """Each record is in the log exactly once, where its answer says."""
    assert all(isinstance(answer, RecordMetadata) for answer in answers), answers
    places = {(each.partition, each.offset): each.value for each in log}
    assert {(a.partition, a.offset): s.value for a, s in zip(answers, sent, strict=True)} == places
    assert len(log) == len(sent)


class Counted(Factory):
    """Counts the connections to it."""

    def __init__(self, on_connection=None, answer=None):
        self.connections = 0
        self.open = set()
        self._on_connection = on_connection
        self._response = answer

    def buildProtocol(self, address):
        self.connections += 1
        return Peer(self, self._on_connection, self._response)


class Peer(Protocol):
    def __init__(self, counted, on_connection, answer):
        self._counted = counted
        self._on_connection = on_connection
        self._response = answer

    def connectionMade(self):
        self._counted.open.add(self)
        if self._on_connection is not None:
            self._on_connection(self.transport)

    def dataReceived(self, data):
        if self._response is not None:
            self.transport.write(self._response)
            self.transport.loseConnection()

    def connectionLost(self, reason=None):
        self._counted.open.discard(self)


@asynccontextmanager
async def listening(**behaviour):
    """Something that is not Kafka, on a port of its own."""
    factory = Counted(**behaviour)
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
    factory.address = f"127.0.0.1:{port.getHost().port}"
    try:
        yield factory
    finally:
        await port.stopListening()
        for peer in list(factory.open):
            peer.transport.abortConnection()
        await eventually(lambda: not factory.open)


@asynccontextmanager
async def nothing_listening():
    with rejecting_port() as port:
        yield f"127.0.0.1:{port}"


async def keys_by_partition(broker, topic, partitions=3):
    """A key for each partition."""
    keys = {}
    for n in range(100):
        key = b"%d" % n
        keys.setdefault((await within(broker.publish(record(topic, b"", key=key)))).partition, key)
        if len(keys) == partitions:
            break
    return keys
