"""One connection by itself: whatever is written arrives whole and in order, and each request has its time."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import suppress

import pytest
import pytest_twisted
from afkak.common import BrokerMetadata
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.cluster_client.broker_connection import (
    BrokerConnection,
    FrameProtocol,
    SeparateConnection,
)
from sampleapp.brokers.kafka.protocol import MetadataRequest
from tests.support.brokers import eventually, outcomes, within
from tests.support.connection_listener import Connections

STEP_S = 0.25
REQUEST = MetadataRequest(topics=[], auto_create=False)


class NeverConnecting:
    def connect(self, factory):
        return Deferred()


def connection(clock, endpoint=None, *, kind=BrokerConnection):
    return kind(
        clock,
        lambda *_: endpoint or NeverConnecting(),
        BrokerMetadata(1, "broker", 9092),
        "tests",
        lambda _: 1.0,
        listener=Connections(),
        sent=Counter(),
    )


class Reader(Protocol):
    def connectionMade(self):
        self.factory.accepted = self
        self.received = bytearray()
        self.transport.pauseProducing()

    def dataReceived(self, data):
        self.received += data


class _Factory:
    """A connection as its protocol sees it, for writing."""

    def protocol_lost(self, protocol, reason):
        pass


async def connected_protocol(port_number):
    protocol = FrameProtocol()
    protocol.factory = _Factory()
    endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port_number)
    await within(connectProtocol(endpoint, protocol))
    return protocol


@pytest.mark.parametrize("length", [1_500_000, 20_000_000])
@pytest_twisted.ensureDeferred
async def test_requests_that_a_broker_is_slow_to_read_arrive_whole_and_in_order(length):
    factory = Factory.forProtocol(Reader)
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
    protocol = await connected_protocol(port.getHost().port)
    await eventually(lambda: getattr(factory, "accepted", None))
    # The first ones are more than the system takes, the others wait behind them.
    frames = [*[b"a" * length] * (20_000_000 // length), b"b", b"", b"c" * 300_000, b"d" * 3_000_000]
    for frame in frames:
        protocol.send(frame)
    reader = factory.accepted
    reader.transport.resumeProducing()
    expected = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    await eventually(lambda: len(reader.received) >= len(expected))
    protocol.send(b"later")
    expected += b"\0\0\0\5later"
    await eventually(lambda: len(reader.received) >= len(expected))
    assert bytes(reader.received) == expected
    protocol.transport.abortConnection()
    await within(port.stopListening())


@pytest_twisted.ensureDeferred
async def test_a_request_is_on_its_way_without_another_turn_of_the_reactor():
    with socket.create_server(("127.0.0.1", 0)) as server:
        protocol = await connected_protocol(server.getsockname()[1])
        with server.accept()[0] as accepted:
            accepted.settimeout(5)
            protocol.send(b"now")
            assert accepted.recv(100) == b"\0\0\0\3now"
        protocol.transport.abortConnection()


@pytest_twisted.ensureDeferred
async def test_a_large_request_is_written_after_the_turn_of_the_reactor_that_has_made_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        protocol = await connected_protocol(server.getsockname()[1])
        with server.accept()[0] as accepted:
            accepted.settimeout(0)
            protocol.send(b"x" * 3_000_000)
            with pytest.raises(BlockingIOError):
                accepted.recv(100)
            protocol.send(b"later")
            received = bytearray()

            def read():
                with suppress(BlockingIOError):
                    received.extend(accepted.recv(1_000_000))
                return len(received) >= 4 + 3_000_000 + 4 + 5

            await eventually(read)
            assert received == (3_000_000).to_bytes(4, "big") + b"x" * 3_000_000 + b"\0\0\0\5later"
        protocol.transport.abortConnection()


def test_a_transport_of_another_kind_is_written_to_as_usual():
    protocol = FrameProtocol()
    protocol.makeConnection(StringTransport())
    protocol.send(b"frame")
    assert protocol.transport.value() == b"\0\0\0\5frame"


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from([0.5, 1.0, 2.0, 3.5]))))
def test_each_request_fails_when_its_own_time_is_over(asked):
    clock = Clock()
    broker = connection(clock)
    expected, failed = [], []

    def note(failure, deadline_s):
        assert failure.check(RequestFailed)
        assert not failure.value.sent
        assert clock.seconds() == deadline_s
        failed.append(deadline_s)

    for pause_s, timeout_s in asked:
        clock.pump([STEP_S] * int(pause_s / STEP_S))
        expected.append(clock.seconds() + timeout_s)
        broker.ask(REQUEST, timeout_s=timeout_s).addErrback(note, expected[-1])
    while clock.getDelayedCalls():
        clock.advance(STEP_S)
    assert sorted(expected) == failed


@pytest_twisted.ensureDeferred
async def test_a_request_that_was_given_up_is_not_late():
    clock = Clock()
    broker = connection(clock)
    given_up, stays = broker.ask(REQUEST, timeout_s=1), broker.ask(REQUEST, timeout_s=2)
    given_up.addErrback(lambda _: "given up")
    given_up.cancel()
    clock.advance(1.5)
    assert not stays.called
    clock.advance(0.5)
    assert [type(each) for each in await outcomes([given_up, stays])] == [str, RequestFailed]
    assert clock.getDelayedCalls() == []


@pytest_twisted.ensureDeferred
async def test_one_that_is_told_of_the_end_may_give_up_the_others():
    broker = connection(Clock())
    first = broker.ask(REQUEST, timeout_s=1)
    second = broker.ask(REQUEST, timeout_s=1)
    first.addErrback(lambda _: second.cancel())
    second.addErrback(lambda failure: failure.type.__name__)
    broker.fail_removed()
    assert await outcomes([first, second]) == [None, "CancelledError"]


def test_what_is_asked_while_a_connection_is_being_closed_fails_as_well():
    broker = connection(Clock())
    again, connecting = [], []

    def ask_again(_):
        again.append(broker.ask(REQUEST, timeout_s=1))
        connecting.append(broker.when_connected())

    broker.ask(REQUEST, timeout_s=1).addErrback(ask_again)
    broker.close()
    for answer in again + connecting:
        assert "closed" in str(failure_of(answer))


def failure_of(answer):
    failures = []
    answer.addErrback(failures.append)
    return failures[0].value


class Connected:
    """Connects at once, and the connection may be used for so long."""

    def __init__(self, lifetime_ms):
        self.lifetime_ms = lifetime_ms
        self.transports = []

    def connect(self, factory):
        protocol = FrameProtocol()
        protocol.factory = factory
        protocol.api_versions = {3: (0, 12)}
        protocol.session_lifetime_ms = self.lifetime_ms
        self.transports.append(StringTransport())
        protocol.makeConnection(self.transports[-1])
        return succeed(protocol)


def test_a_connection_that_expired_without_being_used_is_made_again_without_a_pause():
    clock, endpoint = Clock(), Connected(1000)
    broker = connection(clock, endpoint)
    for number in range(1, 4):
        assert broker.when_connected().called
        assert len(endpoint.transports) == number
        clock.advance(0.8)
        assert not broker.connected()
        assert endpoint.transports[-1].disconnecting
    broker.close()


def test_nothing_is_asked_on_a_connection_that_is_about_to_expire():
    clock, endpoint = Clock(), Connected(1000)
    broker = connection(clock, endpoint)
    under_way = broker.ask(REQUEST, timeout_s=60)
    clock.advance(0.8)
    [expiring] = endpoint.transports
    expiring.clear()
    later = broker.ask(REQUEST, timeout_s=60)
    clock.advance(10)
    assert expiring.value() == b""
    # The rest would follow a request that is cut off, and no caller waits for it any more.
    under_way.addErrback(lambda _: None)
    under_way.cancel()
    assert expiring.disconnecting
    assert len(endpoint.transports) == 2
    assert endpoint.transports[1].value() != b""
    later.addErrback(lambda _: None)
    broker.close()
    assert clock.getDelayedCalls() == []


def test_a_connection_of_one_owner_says_that_it_expires_and_is_not_made_again():
    clock, endpoint = Clock(), Connected(1000)
    separate = connection(clock, endpoint, kind=SeparateConnection)
    separate.ask(REQUEST, timeout_s=60).addErrback(lambda _: None)
    assert not separate.is_expiring
    clock.advance(0.8)
    assert separate.is_expiring
    [transport] = endpoint.transports
    transport.clear()
    separate.ask(REQUEST, timeout_s=60).addErrback(lambda _: None)
    assert transport.value() != b""
    assert not transport.disconnecting
    separate.close()
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("lifetime_ms", [-1, 0])
def test_a_lifetime_that_is_none_ends_nothing(lifetime_ms):
    clock, endpoint = Clock(), Connected(lifetime_ms)
    broker = connection(clock, endpoint)
    broker.when_connected()
    clock.advance(10)
    assert broker.connected()
    broker.close()


def test_nothing_is_left_running_when_a_connection_is_closed():
    clock = Clock()
    broker = connection(clock)
    failures = []
    broker.ask(REQUEST, timeout_s=1).addErrback(failures.append)
    broker.close()
    assert len(failures) == 1
    assert clock.getDelayedCalls() == []


class Faulty(MetadataRequest):
    """A request that cannot be encoded."""

    def version_for(self, ranges):
        raise KeyError(ranges)


def test_a_request_that_cannot_be_encoded_fails_as_one_that_was_not_sent(no_failure_is_lost):
    clock, endpoint = Clock(), Connected(0)
    broker = connection(clock, endpoint)
    answer = broker.ask(Faulty(topics=[], auto_create=False), timeout_s=1)
    error = failure_of(answer)
    assert (type(error), error.sent) == (RequestFailed, False)
    assert [failure.type for failure in no_failure_is_lost] == [KeyError]
    no_failure_is_lost.clear()
    assert broker.connected()
    broker.ask(REQUEST, timeout_s=1)
    assert endpoint.transports[0].value()


def test_a_request_that_may_be_sent_by_half_is_the_last_one_of_its_connection(no_failure_is_lost):
    clock, endpoint = Clock(), Connected(0)
    broker = connection(clock, endpoint)
    other = broker.ask(REQUEST, timeout_s=1)
    endpoint.transports[0].write = broken
    error = failure_of(broker.ask(REQUEST, timeout_s=1))
    assert (type(error), error.sent) == (RequestFailed, True)
    assert failure_of(other).sent
    assert [failure.type for failure in no_failure_is_lost] == [MemoryError]
    no_failure_is_lost.clear()
    assert not broker.connected()


def broken(*_):
    raise MemoryError
