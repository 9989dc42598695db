"""What happens on a fresh connection to a broker: the hand-over, and one sentence for each reason."""

from __future__ import annotations

import datetime as dt
import errno
import os
import socket
import struct
from contextlib import asynccontextmanager
from importlib.metadata import version
from urllib.parse import quote

import pytest
import pytest_twisted
from afkak._protocol import bootstrapFactory
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL
from twisted.internet import reactor
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost, NoProtocol, NoRouteError
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from zope.interface import directlyProvides, providedBy

from sampleapp.brokers.kafka.config import parse
from sampleapp.brokers.kafka.connections.diagnostics import not_connected
from sampleapp.brokers.kafka.connections.endpoints import make_endpoint_factory
from sampleapp.brokers.kafka.connections.failure_reason import ConnectionFailed, FailureReason, Peer, address
from sampleapp.brokers.kafka.connections.handshake import (
    MAX_ANSWER_BYTES,
    ConnectionClosed,
    GateFactory,
    NotKafka,
)
from sampleapp.brokers.kafka.connections.security import Security
from sampleapp.brokers.kafka.protocol import ApiVersionsRequest
from tests.support.brokers import eventually, turns, within
from tests.support.certificates import Authority
from tests.support.kafka_server import (
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TODAY,
    Closing,
    FakeBroker,
    ServerTLS,
    Silent,
    listening,
    saying,
    serving,
)

SECRET = "s3cr3t-Xyzzy"
USER = "somebody"
ENVIRON = {"SAMPLEAPP_KAFKA_USERNAME": USER, "SAMPLEAPP_KAFKA_PASSWORD": SECRET}
METADATA = 3
VERSIONS_REQUEST = ApiVersionsRequest(software_name="sampleapp", software_version="1")


class Inner(Protocol):
    """The protocol that a connection is for: it remembers what happens to it."""

    api_versions = None
    session_lifetime_ms = None

    def connectionMade(self):
        self.known = self.api_versions
        self.events = []
        self.lost = []

    def dataReceived(self, data):
        self.events.append(data)

    def connectionLost(self, reason):
        self.lost.append(reason)

    @property
    def received(self):
        return b"".join(self.events)


class Names:
    """Resolves every name to what the test says, or never. Its method is called as Twisted calls it."""

    def __init__(self, *addresses, answering=True):
        self.addresses = addresses
        self.answering = answering

    def resolveHostName(self, receiver, name, portNumber):  # noqa: N803 -- as above
        receiver.resolutionBegan(None)
        if self.answering:
            for host in self.addresses:
                kind = IPv6Address if ":" in host else IPv4Address
                receiver.addressResolved(kind("TCP", host, portNumber))
            receiver.resolutionComplete()


class WithNames:
    """The reactor, with other names."""

    def __init__(self, names):
        self.nameResolver = names
        directlyProvides(self, providedBy(reactor))

    def __getattr__(self, name):
        return getattr(reactor, name)


class Connecting:
    """One way to connect to a port."""

    def __init__(self, port, url="kafka://", *, host="127.0.0.1", timeout_s=20, names=None):
        options = url.partition("://")
        security = Security.load(parse(f"{options[0]}://{address(host, port)}{options[2]}"), environ=ENVIRON)
        make = make_endpoint_factory(
            security=security,
            client_id="sampleapp-test",
            timeout_s=timeout_s,
        )
        self.host = host
        self.port = port
        self.endpoint = make(reactor if names is None else WithNames(names), host, port)

    def connect(self, protocol=Inner):
        factory = protocol if isinstance(protocol, Factory) else Factory.forProtocol(protocol)
        return self.endpoint.connect(factory)

    async def reason(self):
        """Why it failed; no credential is in it and, in public, no address."""
        with pytest.raises(ConnectionFailed) as caught:
            await within(self.connect())
        reason = caught.value.reason
        assert str(caught.value) == reason.sentence
        assert address(self.host, self.port) in reason.sentence
        for public in (str(self.port), self.host, USER, SECRET):
            assert public not in reason.public
        error = caught.value
        while error is not None:
            shown = f"{error!r}{error}{Failure(error).getTraceback()}"
            assert SECRET not in shown
            assert USER not in shown
            error = error.__cause__ or error.__context__
        return reason


@asynccontextmanager
async def connected(port, url="kafka://", **options):
    connecting = Connecting(port, url, **options)
    inner = await within(connecting.connect())
    try:
        yield inner
    finally:
        inner.transport.abortConnection()
        await eventually(lambda: inner.lost)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def trusting(authority, *more):
    return "kafka+tls://?" + "&".join([f"ca={quote(str(authority.certificate))}", *more])


def as_client(issued):
    return f"certificate={quote(str(issued.certificate))}", f"key={quote(str(issued.key))}"


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
async def test_the_broker_is_told_which_software_connects():
    broker = FakeBroker()
    async with listening(broker) as port, connected(port):
        assert broker.software == ["sampleapp", version("sampleapp")]


@pytest.mark.parametrize("says_known_versions", [True, False])
@pytest_twisted.ensureDeferred
async def test_a_broker_that_does_not_know_the_question_of_today_is_asked_as_it_knows(says_known_versions):
    ranges = TODAY | {API_VERSIONS: (0, 2)}
    broker = FakeBroker(ranges=ranges, says_known_versions=says_known_versions)
    async with listening(broker) as port, connected(port) as inner:
        assert inner.known == ranges
        assert [version for _, version, _ in broker.requests] == [3, 2 if says_known_versions else 0]
        assert len(broker.connections) == 1


@pytest_twisted.ensureDeferred
async def test_a_broker_that_closes_the_connection_on_the_question_of_today_is_asked_the_first_one_next():
    broker = FakeBroker(closing_on={(API_VERSIONS, 3)})
    async with listening(broker) as port:
        connecting = Connecting(port)
        reason = await connecting.reason()
        assert "closed the connection without an answer" in reason.sentence
        inner = await within(connecting.connect())
        assert inner.known == TODAY
        inner.transport.abortConnection()
        await eventually(lambda: inner.lost)
    assert [version for _, version, _ in broker.requests] == [3, 0]


@pytest_twisted.ensureDeferred
async def test_a_broker_that_closes_the_connection_on_any_question_is_asked_either_way_in_turn():
    broker = FakeBroker(closing_on={API_VERSIONS})
    async with listening(broker) as port:
        connecting = Connecting(port)
        sentences = set()
        for _ in range(4):
            sentences.add((await connecting.reason()).sentence)
    assert len(sentences) == 1
    assert [version for _, version, _ in broker.requests] == [3, 0, 3, 0]


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
    made = GateFactory(b"me").buildProtocol(None)
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
        struct.pack(">i", MAX_ANSWER_BYTES + 1),
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


# --- no connection -------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_refused_connection():
    async with listening(serving(Silent)) as port:
        pass
    reason = await Connecting(port).reason()
    assert reason == FailureReason(
        f"127.0.0.1:{port} refused the connection: check the host and the port, and that the broker runs.",
        "Kafka cannot be reached.",
        lasting=False,
    )


@pytest_twisted.ensureDeferred
async def test_a_name_that_does_not_resolve():
    reason = await Connecting(9092, host="kafka.example", names=Names()).reason()
    assert reason.sentence == (
        "The host name of kafka.example:9092 cannot be resolved: check how it is written, and the DNS."
    )
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_name_that_cannot_be_one_as_a_broker_may_advertise_it():
    connecting = Connecting(9092)
    make = make_endpoint_factory(
        security=Security.load(parse("kafka://a"), environ={}),
        client_id="me",
        timeout_s=20,
    )
    connecting.endpoint = make(reactor, "a..b", 9092)
    connecting.host = "a..b"
    assert "cannot be resolved" in (await connecting.reason()).sentence


@pytest_twisted.ensureDeferred
async def test_a_name_server_that_does_not_answer():
    connecting = Connecting(9092, host="kafka.example", names=Names(answering=False), timeout_s=0.02)
    reason = await connecting.reason()
    assert reason.sentence.startswith("kafka.example:9092 did not accept a connection in time: check the ")
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_an_address_that_there_is_no_way_to_is_named_with_what_the_system_says_of_it():
    # A multicast address: no TCP connection to it is possible anywhere.
    with socket.socket() as one, pytest.raises(OSError, match=r".") as refused:
        one.connect(("224.0.0.1", 9092))
    reason = await Connecting(9092, host="224.0.0.1").reason()
    assert reason.sentence == (
        f"224.0.0.1:9092 cannot be reached ({os.strerror(refused.value.errno)}): check the address, and the "
        "network to it."
    )
    assert not reason.lasting


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoRouteError(errno.EHOSTUNREACH), "No route to host"),
        (ConnectError(errno.ENETUNREACH, "network"), "Network is unreachable"),
        (ConnectError(string="odd"), "no reason is known"),
    ],
)
def test_why_there_is_no_connection_is_said_in_the_words_of_the_system(error, said):
    reason = not_connected(Peer(host="a.example", port=9092), error)
    assert reason.sentence == (
        f"a.example:9092 cannot be reached ({said}): check the address, and the network to it."
    )


# --- not a broker, or not this way ---------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_answer():
    async with listening(serving(Silent)) as port:
        reason = await Connecting(port, timeout_s=0.1).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} accepted the connection but did not answer in time: check that this is the port "
        "of a Kafka listener, and that the broker is not overloaded; if it is a TLS port, use kafka+tls://."
    )
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_server_that_closes_the_connection():
    async with listening(serving(Closing)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} closed the connection without an answer: if it is a TLS port, use kafka+tls://; "
        "Kafka older than 0.10 does the same."
    )
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_tls_port_that_is_spoken_to_in_plain_text(authority):
    async with listening(FakeBroker(), tls=ServerTLS(authority.server())) as port:
        reason = await Connecting(port).reason()
    assert "use kafka+tls://" in reason.sentence


@pytest_twisted.ensureDeferred
async def test_a_tls_port_that_says_so_with_an_alert():
    async with listening(saying(b"\x15\x03\x03\0\x02\x02\x50", closing=True)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == f"127.0.0.1:{port} speaks TLS: use kafka+tls:// for this port."
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_web_server():
    async with listening(saying(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")) as port:
        reason = await Connecting(port).reason()
    assert reason == FailureReason(
        f"127.0.0.1:{port} answers in HTTP, so it is not a port of Kafka: check the host and the port.",
        "What answers at the address of Kafka is not Kafka.",
        lasting=True,
    )


@pytest.mark.parametrize(
    "words", [b"SSH-2.0-OpenSSH_9.7\r\n", b"-ERR unknown\r\n", b"\0\0\0\x04nope", b"\x7f" * 5]
)
@pytest_twisted.ensureDeferred
async def test_another_server(words):
    async with listening(saying(words)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} does not answer in Kafka's protocol: check the host and the port."
    )
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_server_that_closes_the_connection_in_the_middle_of_something_else():
    async with listening(saying(b"no", closing=True)) as port:
        reason = await Connecting(port).reason()
    assert "does not answer in Kafka's protocol" in reason.sentence


# --- versions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranges", "what"),
    [
        ({0: (0, 2)}, "speaks Produce only up to version 2: Kafka 0.11 or newer is needed."),
        ({1: (0, 3)}, "speaks Fetch only up to version 3: Kafka 0.11 or newer is needed."),
        ({2: (0, 0)}, "speaks ListOffsets only up to version 0: Kafka 0.11 or newer is needed."),
        ({3: (0, 3)}, "speaks Metadata only up to version 3: Kafka 0.11 or newer is needed."),
        ({0: (9, 20)}, "speaks Produce only from version 9 on: a newer version of this service is needed."),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_broker_without_our_versions_is_incompatible_and_says_which(ranges, what):
    async with listening(FakeBroker(ranges=TODAY | ranges)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == f"127.0.0.1:{port} {what}"
    assert reason.incompatible
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_the_controllers_own_listener_is_not_one_for_clients():
    controller = {key: ends for key, ends in TODAY.items() if key not in {0, 3}}
    async with listening(FakeBroker(ranges=controller)) as port:
        reason = await Connecting(port).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} does not take Metadata requests: give a listener of a broker, not of a KRaft "
        "controller."
    )
    assert reason.incompatible


@pytest_twisted.ensureDeferred
async def test_a_broker_that_does_not_say_its_versions():
    async with listening(FakeBroker(versions_error=35)) as port:
        reason = await Connecting(port).reason()
    assert "UNSUPPORTED_VERSION" in reason.sentence
    assert reason.incompatible


# --- TLS -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest_twisted.ensureDeferred
async def test_tls_to_an_address_or_a_name_that_the_certificate_has(authority, newest):
    issued = authority.server(dns=["*.kafka.example"], ip=["127.0.0.1", "::1"])
    async with listening(FakeBroker(), tls=ServerTLS(issued, newest=newest)) as port:
        async with connected(port, trusting(authority)) as inner:
            assert inner.known == TODAY
            assert inner.transport.getPeerCertificate() is not None
        for host in ("b1.kafka.example", "b1.kafka.example."):
            async with connected(port, trusting(authority), host=host, names=Names("127.0.0.1")) as inner:
                assert inner.known == TODAY


@pytest_twisted.ensureDeferred
async def test_an_intermediate_authority_is_trusted_by_its_root_or_by_itself(authority, tmp_path):
    between = Authority(tmp_path, "between", parent=authority)
    async with listening(FakeBroker(), tls=ServerTLS(between.server())) as port:
        for trusted in (authority, between):
            async with connected(port, trusting(trusted)) as inner:
                assert inner.known == TODAY


@pytest_twisted.ensureDeferred
async def test_the_protocol_gets_the_real_tls_transport_and_its_end(authority):
    broker = FakeBroker()
    async with listening(broker, tls=ServerTLS(authority.server())) as port:
        inner = await within(Connecting(port, trusting(authority)).connect())
        broker.connections[0].transport.write(b"x" * 100_000)
        await eventually(lambda: len(inner.received) == 100_000)
        inner.transport.loseConnection()
        await eventually(lambda: inner.lost and broker.lost)
        assert len(inner.lost) == 1


@pytest_twisted.ensureDeferred
async def test_a_certificate_for_another_name(authority):
    issued = authority.server(dns=["a.example", "b.example"], ip=["10.0.0.1"])
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        reason = await Connecting(port, trusting(authority)).reason()
        assert reason == FailureReason(
            f"The certificate of 127.0.0.1:{port} is for a.example, b.example and 10.0.0.1, not for "
            "127.0.0.1: connect to a name that it has, or give the broker a certificate that has this one.",
            "The connection to Kafka cannot be made secure.",
            lasting=True,
        )
        elsewhere = Connecting(port, trusting(authority), host="c.example", names=Names("127.0.0.1"))
        assert "not for c.example" in (await elsewhere.reason()).sentence


@pytest_twisted.ensureDeferred
async def test_a_certificate_for_many_other_names(authority):
    issued = authority.server(dns=[f"{i}.example" for i in range(100)], ip=())
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert " is for 0.example, 1.example, 2.example, 3.example, 4.example and others, not " in reason.sentence


@pytest_twisted.ensureDeferred
async def test_a_certificate_with_a_name_that_is_not_allowed_is_not_accepted_for_its_others(authority):
    issued = authority.server(dns=["*.com"])
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence.startswith(f"The certificate of 127.0.0.1:{port} has a name that is not allowed (")


@pytest_twisted.ensureDeferred
async def test_a_certificate_without_any_name_is_not_accepted_for_its_common_name(authority):
    issued = authority.server("localhost", dns=(), ip=())
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        connecting = Connecting(port, trusting(authority), host="localhost", names=Names("127.0.0.1"))
        reason = await connecting.reason()
    assert reason.sentence.startswith(
        f"The certificate of localhost:{port} names no host: it needs localhost as a"
    )


@pytest_twisted.ensureDeferred
async def test_a_certificate_of_another_authority(authority, tmp_path):
    other = Authority(tmp_path, "other")
    async with listening(FakeBroker(), tls=ServerTLS(other.server())) as port:
        reason = await Connecting(port, trusting(authority)).reason()
        assert reason.sentence == (
            f"The certificate of 127.0.0.1:{port} is not signed by a trusted authority: check that the file "
            "given with ca= has the authority that signed it."
        )
        assert reason.lasting
        reason = await Connecting(port, "kafka+tls://").reason()
        assert reason.sentence == (
            f"The certificate of 127.0.0.1:{port} is not signed by a trusted authority: give the authority's "
            "certificate with ca=."
        )


@pytest_twisted.ensureDeferred
async def test_a_certificate_that_has_expired(authority):
    async with listening(FakeBroker(), tls=ServerTLS(authority.expired())) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence == (
        f"The certificate of 127.0.0.1:{port} has expired: renew it, or set this machine's clock."
    )
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_certificate_that_is_not_valid_yet(authority):
    issued = authority.server(start=dt.timedelta(hours=1))
    async with listening(FakeBroker(), tls=ServerTLS(issued)) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence.startswith(f"The certificate of 127.0.0.1:{port} is not valid yet: ")


@pytest_twisted.ensureDeferred
async def test_a_clients_certificate_is_not_one_for_a_broker(authority):
    async with listening(FakeBroker(), tls=ServerTLS(authority.client())) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence.startswith(f"The certificate of 127.0.0.1:{port} cannot be used (OpenSSL's ")


@pytest_twisted.ensureDeferred
async def test_nothing_is_asked_of_a_broker_whose_certificate_is_not_right(authority, tmp_path):
    broker = FakeBroker(mechanisms=["PLAIN"], users={USER: SECRET})
    async with listening(broker, tls=ServerTLS(authority.server(dns=["a.example"], ip=()))) as port:
        await Connecting(port, trusting(authority, "sasl=PLAIN")).reason()
        await eventually(lambda: broker.lost)
    assert broker.requests == []


@pytest.mark.parametrize("newest", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest_twisted.ensureDeferred
async def test_a_broker_that_requires_a_client_certificate(authority, tmp_path, newest):
    tls = ServerTLS(authority.server(), client_ca=authority.certificate, newest=newest)
    async with listening(FakeBroker(), tls=tls) as port:
        async with connected(port, trusting(authority, *as_client(authority.client()))) as inner:
            assert inner.known == TODAY
        reason = await Connecting(port, trusting(authority)).reason()
        if newest == SSL.TLS1_3_VERSION:
            assert reason.sentence == (
                f"127.0.0.1:{port} requires a client certificate: give certificate= and key=."
            )
        else:
            # TLS 1.2 has no alert for this alone.
            assert "whether it requires a client certificate" in reason.sentence
        assert reason.lasting
        stranger = Authority(tmp_path, "stranger").client("strange")
        reason = await Connecting(port, trusting(authority, *as_client(stranger))).reason()
        assert reason.sentence == (
            f"127.0.0.1:{port} refused the client certificate (unknown ca): check that the broker trusts its "
            "authority, and that it has not expired."
        )
        assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_client_certificate_with_the_chain_to_its_authority(authority, tmp_path):
    between = Authority(tmp_path, "between", parent=authority)
    tls = ServerTLS(authority.server(), client_ca=authority.certificate)
    url = trusting(authority, *as_client(between.client()))
    async with listening(FakeBroker(), tls=tls) as port, connected(port, url) as inner:
        assert inner.known == TODAY


@pytest_twisted.ensureDeferred
async def test_a_plain_text_port_that_is_spoken_to_in_tls(authority):
    async with listening(FakeBroker()) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} closed the connection during the TLS handshake: if it is a plain-text port, use "
        "kafka:// for it."
    )
    assert not reason.lasting


@pytest.mark.parametrize(
    "words",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\x06\0\0\0\x01\0\x23",
        b"SSH-2.0-OpenSSH_9.7\r\n",
        b"\xff" * 9,
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_server_that_answers_tls_in_plain_text(authority, words):
    async with listening(saying(words)) as port:
        reason = await Connecting(port, trusting(authority)).reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} does not speak TLS: use kafka:// for this port, or give the port of a TLS "
        "listener."
    )
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_answer_tls(authority):
    async with listening(serving(Silent)) as port:
        reason = await Connecting(port, trusting(authority), timeout_s=0.1).reason()
    assert "accepted the connection but did not answer the TLS handshake in time" in reason.sentence
    assert not reason.lasting


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            {"timeout_s": 0.3},
            "did not answer in time: check that this is the port of a Kafka listener, and that",
        ),
        (
            {},
            "closed the connection without an answer: if it requires a client certificate, give certificate=",
        ),
    ],
)
@pytest_twisted.ensureDeferred
async def test_tls_works_but_nothing_behind_it_does(authority, options, what):
    behind = serving(Silent if options else Closing)
    async with listening(behind, tls=ServerTLS(authority.server())) as port:
        reason = await Connecting(port, trusting(authority), **options).reason()
        assert what in reason.sentence
        assert "kafka+tls" not in reason.sentence


@pytest_twisted.ensureDeferred
async def test_a_broker_that_closes_the_connection_on_the_client_certificate_without_a_word(authority):
    async with listening(serving(Closing), tls=ServerTLS(authority.server())) as port:
        reason = await Connecting(port, trusting(authority, *as_client(authority.client()))).reason()
    assert "check that the broker trusts the client certificate" in reason.sentence


# --- SASL ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("newest", [0, 1, 2])
@pytest_twisted.ensureDeferred
async def test_right_credentials_with_each_mechanism_and_version(mechanism, newest):
    broker = FakeBroker(
        ranges=TODAY | {36: (0, newest)},
        mechanisms=["SCRAM-SHA-256", "PLAIN", "SCRAM-SHA-512"],
        users={USER: SECRET},
        lifetime_ms=3_600_000,
    )
    async with listening(broker) as port, connected(port, f"kafka://?sasl={mechanism}") as inner:
        assert inner.known == TODAY | {36: (0, newest)}
        assert inner.session_lifetime_ms == (3_600_000 if newest else 0)
        assert broker.requests[:2] == [(18, 3, b"sampleapp-test"), (17, 1, b"sampleapp-test")]
        assert {version for key, version, _ in broker.requests if key == 36} == {min(newest, 1)}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("users", [{USER: "other"}, {}])
@pytest_twisted.ensureDeferred
async def test_wrong_credentials(mechanism, users):
    # A broker's own callback may say anything, also what must not be repeated.
    broker = FakeBroker(mechanisms=[mechanism], users=users, refusal=f"{USER} has not {SECRET}")
    async with listening(broker) as port:
        reason = await Connecting(port, f"kafka://?sasl={mechanism}").reason()
        await eventually(lambda: broker.lost)
    assert reason == FailureReason(
        f"127.0.0.1:{port} refused the credentials for {mechanism}: check the user name and the password, "
        f"and that the broker has them for {mechanism}.",
        "Kafka does not let this service in.",
        lasting=True,
    )


@pytest_twisted.ensureDeferred
async def test_a_mechanism_that_is_not_offered():
    broker = FakeBroker(mechanisms=["SCRAM-SHA-512", "GSSAPI", "PLAIN"])
    async with listening(broker) as port:
        reason = await Connecting(port, "kafka://?sasl=SCRAM-SHA-256").reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} does not offer SCRAM-SHA-256: it offers GSSAPI, PLAIN and SCRAM-SHA-512; use "
        "sasl= with what is offered there, or switch this mechanism on at the broker."
    )
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_listener_without_sasl():
    async with listening(FakeBroker(mechanisms=None)) as port:
        reason = await Connecting(port, "kafka://?sasl=PLAIN").reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} does not do SASL on this listener: leave out sasl=, or give the port of another."
    )
    assert reason.lasting


@pytest.mark.parametrize("key", [SASL_HANDSHAKE, SASL_AUTHENTICATE])
@pytest_twisted.ensureDeferred
async def test_a_broker_that_closes_the_connection_during_sasl(key):
    broker = FakeBroker(mechanisms=["PLAIN"], users={USER: SECRET}, closing_on={key})
    async with listening(broker) as port:
        reason = await Connecting(port, "kafka://?sasl=PLAIN").reason()
    assert reason.sentence == (
        f"127.0.0.1:{port} closed the connection during SASL with PLAIN: check that the listener has SASL "
        "on, and the log of the broker."
    )
    assert not reason.lasting


@pytest.mark.parametrize("key", [SASL_HANDSHAKE, SASL_AUTHENTICATE])
@pytest_twisted.ensureDeferred
async def test_a_broker_that_does_not_answer_during_sasl(key):
    broker = FakeBroker(mechanisms=["PLAIN"], silent_on={key})
    async with listening(broker) as port:
        reason = await Connecting(port, "kafka://?sasl=PLAIN", timeout_s=0.2).reason()
    assert f"127.0.0.1:{port} did not finish SASL with PLAIN in time" in reason.sentence
    assert not reason.lasting


@pytest_twisted.ensureDeferred
async def test_a_broker_that_is_too_old_for_sasl():
    ranges = {key: ends for key, ends in TODAY.items() if key != SASL_AUTHENTICATE}
    async with listening(FakeBroker(ranges=ranges | {17: (0, 0)}, mechanisms=["PLAIN"])) as port:
        reason = await Connecting(port, "kafka://?sasl=PLAIN").reason()
        assert reason.sentence == (
            f"127.0.0.1:{port} has no SaslAuthenticate requests: SASL needs Kafka 1.0 or newer."
        )
        assert reason.incompatible
        async with connected(port) as inner:
            assert inner.known == ranges | {17: (0, 0)}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (
            {"final": b"v=AAAA"},
            "does not know the password for SCRAM-SHA-256 itself: it may only pretend to be the",
        ),
        ({"final": b"e=other-error"}, "refused the credentials for SCRAM-SHA-256"),
        ({"final": b"?"}, "does not keep to SCRAM-SHA-256 (its last message is not one of SCRAM)"),
        (
            {"iterations": 10_000_000},
            "does not keep to SCRAM-SHA-256 (it asks for 10000000 iterations, not 4096",
        ),
        ({"iterations": 1}, "does not keep to SCRAM-SHA-256 (it asks for 1 iterations, not 4096"),
        ({"nonce": ""}, "does not keep to SCRAM-SHA-256 (it did not add to the nonce"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_server_that_does_not_prove_itself_is_not_used(options, what):
    broker = FakeBroker(mechanisms=["SCRAM-SHA-256"], users={USER: SECRET}, **options)
    async with listening(broker) as port:
        reason = await Connecting(port, "kafka://?sasl=SCRAM-SHA-256").reason()
        await eventually(lambda: broker.lost)
    assert f"127.0.0.1:{port} {what}" in reason.sentence
    assert reason.lasting


@pytest_twisted.ensureDeferred
async def test_tls_with_a_client_certificate_and_sasl_at_once(authority):
    broker = FakeBroker(mechanisms=["SCRAM-SHA-512"], users={USER: SECRET}, piece=5)
    tls = ServerTLS(authority.server(), client_ca=authority.certificate)
    url = trusting(authority, *as_client(authority.client()), "sasl=SCRAM-SHA-512")
    async with listening(broker, tls=tls) as port, connected(port, url) as inner:
        assert inner.known == TODAY


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
