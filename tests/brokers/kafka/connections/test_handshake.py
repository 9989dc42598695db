"""The handshake on a new connection to a broker, until it is handed over or aborted."""

from __future__ import annotations

import struct

import pytest
import pytest_twisted
from afkak._protocol import bootstrapFactory
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost, NoProtocol
from twisted.internet.protocol import Factory
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.connections.diagnostics import address
from sampleapp.brokers.kafka.connections.handshake import (
    MAX_RESPONSE_BYTES,
    ConnectionClosed,
    HandshakeFactory,
    NotKafka,
)
from tests.support.brokers import eventually, turns, within
from tests.support.connecting import (
    METADATA,
    SECRET,
    USER,
    VERSIONS_REQUEST,
    Connecting,
    Inner,
    Names,
    connected,
    trusting,
)
from tests.support.kafka_simulator.server import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TODAY,
    FakeBroker,
    ServerTLS,
    Silent,
    listening,
    serving,
)

# --- the hand-over -------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_the_protocol_knows_the_versions_before_it_is_connected():
    broker = FakeBroker()
    async with listening(broker) as port, connected(port) as inner:
        assert inner.known == TODAY
        assert inner.session_lifetime_ms == 0
        assert broker.requests == [(API_VERSIONS, 3, b"sampleapp-test")]
        assert inner.received == b""


@pytest_twisted.ensureDeferred
async def test_the_connection_works_in_both_directions_and_its_end_is_told_once():
    broker = FakeBroker()
    async with listening(broker) as port:
        connecting = Connecting(port)
        inner = await within(connecting.connect())
        broker.connections[0].transport.write(b"hello")
        await eventually(lambda: inner.received == b"hello")
        inner.transport.write(struct.pack(">ihhih", 10, METADATA, 4, 7, 0))
        await eventually(lambda: len(broker.requests) == 2)
        # The broker does not know this request, and closes the connection on it.
        await eventually(lambda: inner.lost)
        await turns()
        assert [reason.type for reason in inner.lost] == [ConnectionDone]


@pytest.mark.parametrize("last", [API_VERSIONS, SASL_AUTHENTICATE])
@pytest.mark.parametrize("secure", [False, True])
@pytest_twisted.ensureDeferred
async def test_bytes_right_behind_the_last_answer_come_after_the_news_of_the_connection(
    authority, last, secure
):
    order = []

    class Ordered(Inner):
        def dataReceived(self, data):
            order.append(data)

    sasl = ("sasl=PLAIN",) if last == SASL_AUTHENTICATE else ()
    url = trusting(authority, *sasl) if secure else "kafka://?" + "".join(sasl)
    broker = FakeBroker(mechanisms=["PLAIN"], users={USER: SECRET}, behind={last: b"behind"})
    tls = ServerTLS(authority.server()) if secure else None
    async with listening(broker, tls=tls) as port:
        connection = Connecting(port, url.removesuffix("?")).connect(Ordered)
        inner = await within(connection.addCallback(lambda inner: order.append("connected") or inner))
        await eventually(lambda: len(order) == 2)
        assert order == ["connected", b"behind"]
        inner.transport.abortConnection()
        await eventually(lambda: inner.lost)


@pytest.mark.parametrize("piece", [1, 3])
@pytest_twisted.ensureDeferred
async def test_answers_that_come_in_pieces_are_put_together(piece):
    broker = FakeBroker(mechanisms=["SCRAM-SHA-512"], users={USER: SECRET}, piece=piece)
    async with listening(broker) as port, connected(port, "kafka://?sasl=SCRAM-SHA-512") as inner:
        assert inner.known == TODAY


@pytest_twisted.ensureDeferred
async def test_each_connection_of_an_endpoint_has_a_handshake_of_its_own():
    broker = FakeBroker(mechanisms=["SCRAM-SHA-256"], users={USER: SECRET})
    async with listening(broker) as port:
        connecting = Connecting(port, "kafka://?sasl=SCRAM-SHA-256")
        inners = [await within(connecting.connect()) for _ in range(3)]
        assert len(broker.connections) == len(set(map(id, inners))) == 3
        assert [key for key, _, _ in broker.requests] == [18, 17, 36, 36] * 3
        for inner in inners:
            inner.transport.loseConnection()
        await eventually(lambda: all(inner.lost for inner in inners))


@pytest_twisted.ensureDeferred
async def test_a_connection_that_is_lost_while_it_is_handed_over_is_told_to_the_protocol():
    class Leaving(Inner):
        def connectionMade(self):
            super().connectionMade()
            self.transport.abortConnection()

    async with listening(FakeBroker()) as port:
        inner = await within(Connecting(port).connect(Leaving))
        await eventually(lambda: inner.lost)
        assert len(inner.lost) == 1


@pytest_twisted.ensureDeferred
async def test_a_factory_that_builds_no_protocol_costs_no_connection():
    class Refusing(Factory):
        def buildProtocol(self, addr):
            return None

    broker = FakeBroker()
    async with listening(broker) as port:
        with pytest.raises(NoProtocol):
            await within(Connecting(port).connect(Refusing()))
        await eventually(lambda: broker.lost)


@pytest_twisted.ensureDeferred
async def test_loopback_by_name_is_reached_on_whatever_address_answers():
    names = Names("::1", "127.0.0.1")
    async with listening(FakeBroker()) as port, connected(port, host="kafka.example", names=names) as inner:
        assert inner.transport.getPeer().host == "127.0.0.1"


@pytest_twisted.ensureDeferred
async def test_afkaks_bootstrap_protocol_asks_over_the_connection():
    broker = FakeBroker(mechanisms=["SCRAM-SHA-256"], users={USER: SECRET})
    async with listening(broker) as port:
        protocol = await within(Connecting(port, "kafka://?sasl=SCRAM-SHA-256").connect(bootstrapFactory))
        answer = await within(protocol.request(struct.pack(">hhih", API_VERSIONS, 0, 77, 0)))
        assert answer[:4] == struct.pack(">i", 77)
        assert protocol.api_versions == TODAY
        protocol.transport.loseConnection()
        await eventually(lambda: broker.lost)


# --- the gate, without a network -----------------------------------------------------------------------


class Wire(StringTransport):
    def setTcpNoDelay(self, enabled):
        pass

    setTcpKeepAlive = setTcpNoDelay


def gate():
    made = HandshakeFactory(b"me").buildProtocol(None)
    wire = Wire()
    made.makeConnection(wire)
    return made, wire


def answer(correlation_id=1, ranges=((18, 0, 4),)):
    body = struct.pack(">ihi", correlation_id, 0, len(ranges))
    body += b"".join(struct.pack(">hhh", *each) for each in ranges)
    return struct.pack(">i", len(body)) + body


def asked(made):
    return Deferred.fromCoroutine(made.ask(VERSIONS_REQUEST, version=0))


@given(st.lists(st.integers(1, 20)))
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(sizes):
    made, wire = gate()
    results = []
    asked(made).addCallback(results.append)
    data = answer()
    for size in [*sizes, len(data)]:
        assert results == [] or not data
        if data:
            made.dataReceived(data[:size])
        data = data[size:]
    assert [result.ranges for result in results] == [{18: (0, 4)}]
    assert wire.value() == b"\0\0\0\x0c\0\x12\0\0\0\0\0\x01\0\x02me"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.7\r\n",
        b"\x15\x03\x03\0\x02\x02\x28",
        struct.pack(">i", MAX_RESPONSE_BYTES + 1),
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 3),
        answer(correlation_id=2),
        struct.pack(">iihib", 11, 1, 0, 0, 0),
        struct.pack(">iih", 6, 1, 0),
        struct.pack(">iihi", 10, 1, 0, 2**31 - 1),
    ],
)
def test_what_cannot_be_an_answer_is_known_at_once_and_nothing_after_it_is_looked_at(data):
    made, _ = gate()
    failures = []
    asked(made).addErrback(failures.append)
    for position in range(len(data)):
        made.dataReceived(data[position : position + 1])
    made.dataReceived(answer())
    made.connectionLost(Failure(ConnectionDone()))
    assert [failure.type for failure in failures] == [NotKafka]


def test_after_the_end_every_question_fails_at_once():
    made, _ = gate()
    made.connectionLost(Failure(ConnectionLost()))
    failures = []
    asked(made).addErrback(failures.append)
    made.secured().addErrback(failures.append)
    assert [failure.type for failure in failures] == [ConnectionClosed] * 2


def test_a_question_that_was_cancelled_is_not_answered_any_more():
    made, _ = gate()
    failures = []
    question = asked(made).addErrback(failures.append)
    question.cancel()
    made.dataReceived(answer())
    made.connectionLost(Failure(ConnectionDone()))
    assert [failure.type for failure in failures] == [CancelledError]


def test_bytes_before_any_question_are_no_answer_to_the_next():
    made, _ = gate()
    made.dataReceived(answer())
    failures = []
    asked(made).addErrback(failures.append)
    assert [failure.type for failure in failures] == [NotKafka]


@pytest.mark.parametrize(
    ("host", "shown"),
    [("a.example", "a.example:1"), ("::1", "[::1]:1"), ("a\nb", "'a\\nb':1")],
)
def test_an_address_is_written_as_people_do(host, shown):
    assert address(host, 1) == shown


# --- cancelling ----------------------------------------------------------------------------------------


async def cancelled(connecting, until):
    """Cancel when something has come about; nothing may be left."""
    before = set(reactor.getDelayedCalls())
    results = []
    connection = connecting.connect().addBoth(results.append)
    await eventually(until)
    connection.cancel()
    assert [result.type for result in results] == [CancelledError]
    await eventually(lambda: not set(reactor.getDelayedCalls()) - before)


@pytest_twisted.ensureDeferred
async def test_cancelling_while_a_name_is_looked_up():
    names = Names(answering=False)
    await cancelled(Connecting(9092, host="kafka.example", names=names), lambda: True)


@pytest_twisted.ensureDeferred
async def test_cancelling_while_tcp_connects():
    async with listening(serving(Silent)) as port:
        await cancelled(Connecting(port), lambda: True)


@pytest.mark.parametrize("url", ["kafka://", "kafka+tls://"])
@pytest_twisted.ensureDeferred
async def test_cancelling_while_an_answer_is_awaited_closes_the_connection(url):
    server = serving(Silent)
    async with listening(server) as port:
        await cancelled(Connecting(port, url), lambda: server.connections)
        await eventually(lambda: server.lost)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("key", [API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE])
@pytest_twisted.ensureDeferred
async def test_cancelling_during_any_question_closes_the_connection(authority, key, secure):
    broker = FakeBroker(mechanisms=["SCRAM-SHA-256"], users={USER: SECRET}, silent_on={key})
    url = trusting(authority, "sasl=SCRAM-SHA-256") if secure else "kafka://?sasl=SCRAM-SHA-256"
    tls = ServerTLS(authority.server()) if secure else None
    async with listening(broker, tls=tls) as port:
        await cancelled(Connecting(port, url), lambda: broker.requests and broker.requests[-1][0] == key)
        await eventually(lambda: broker.lost)


@pytest_twisted.ensureDeferred
async def test_a_failure_leaves_neither_a_connection_nor_a_delayed_call(authority):
    before = set(reactor.getDelayedCalls())
    broker = FakeBroker(ranges={})
    async with listening(broker, tls=ServerTLS(authority.server())) as port:
        await Connecting(port, trusting(authority)).reason()
        await eventually(lambda: broker.lost)
    await eventually(lambda: not set(reactor.getDelayedCalls()) - before)
