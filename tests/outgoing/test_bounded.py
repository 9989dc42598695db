"""Answers that are too long, or come in tiny pieces, from servers that the service or the command asks."""

from __future__ import annotations

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import LogLevel
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.access.issuer_keys import MAX_BYTES, FetchFailed, fetch_with
from sampleapp.client import Client, ResponseLost, UnexpectedResponse
from sampleapp.outgoing.https import MAX_HEAD, MAX_INTERIM, BoundedPool, HeadTooLong
from tests.support.client_servers import listening, talker
from tests.support.logs import logged

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HEADS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "interim answers in another spelling": (b"", b"X/1.1 0_1_03 \n\r\n"),
    "header lines": (OK, b"a: b\r\n"),
    "continuations of a header line": (OK + b"a: b\r\n", b" c\r\n"),
    "a header line": (OK + b"a: ", b"x" * 1000),
    "a status line": (b"HTTP/1.1 200 ", b"x" * 1000),
    "one byte": (b"", b"x"),
}
BODIES = {
    "trailers": (CHUNKED + b"1\r\n{\r\n0\r\n", b"a: b\r\n"),
    "the extension of a chunk": (CHUNKED + b"1;a=", b"b" * 1000),
    "the length of a chunk": (CHUNKED, b"0" * 1000),
}
LONG_BODIES = {
    "small chunks": (CHUNKED, b"10\r\n" + b"{" * 16 + b"\r\n"),
    "a body without a length": (OK + b"\r\n", b"{" * 1000),
}


@implementer(IPushProducer)
class Endless(Protocol):
    """Answers with a beginning, and then with the same bytes again and again, as fast as they are read."""

    is_paused = None

    def dataReceived(self, _data):
        if self.is_paused is None:
            self.is_paused = False
            self.transport.registerProducer(self, streaming=True)
            self.transport.write(self.factory.beginning)
            self._write()

    def _write(self):
        while not self.is_paused:
            self.transport.write(self.factory.again * (8192 // len(self.factory.again)))

    def pauseProducing(self):
        self.is_paused = True

    def resumeProducing(self):
        self.is_paused = False
        self._write()

    def stopProducing(self):
        self.is_paused = True

    def connectionLost(self, _reason):
        if not self.factory.gone.called:
            self.factory.gone.callback(None)


def endless(beginning, again):
    factory = Factory.forProtocol(Endless)
    factory.beginning, factory.again, factory.gone = beginning, again, Deferred()
    return factory


@pytest.mark.parametrize("what", [*HEADS, *BODIES, *LONG_BODIES])
@pytest_twisted.ensureDeferred
async def test_keys_are_not_read_without_an_end(what):
    factory = endless(*(HEADS | BODIES | LONG_BODIES)[what])
    port, url = await listening(factory)
    said = {
        **dict.fromkeys(HEADS, "a head of more than 16384 bytes, or more than 10 interim answers"),
        **dict.fromkeys(BODIES, "does not answer in valid HTTP"),
        **dict.fromkeys(LONG_BODIES, f"answers with more than {MAX_BYTES} bytes"),
    }[what]
    with logged(LogLevel.info) as lines:
        try:
            with pytest.raises(FetchFailed, match=said):
                await fetch_with(reactor)(url)
            await factory.gone
        finally:
            await port.stopListening()
    assert len([line for line in lines if "Ignoring" in line["log_format"]]) <= MAX_INTERIM


@pytest.mark.parametrize("what", [*HEADS, *BODIES])
@pytest_twisted.ensureDeferred
async def test_the_client_does_not_read_an_answer_without_an_end(what):
    factory = endless(*(HEADS | BODIES)[what])
    port, url = await listening(factory)
    client = Client(base_url=url, reactor=reactor)
    try:
        with pytest.raises((UnexpectedResponse, ResponseLost)):
            await client.readings()
        await factory.gone
        await client.close()
    finally:
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_bytes_after_the_length_of_a_body_are_no_part_of_it():
    factory = endless(OK + b"Content-Length: 2\r\n\r\n{}", b"more")
    port, url = await listening(factory)
    try:
        assert await fetch_with(reactor)(url) == b"{}"
        await factory.gone
    finally:
        await port.stopListening()


@pytest.mark.parametrize("count", [0, 1, MAX_INTERIM])
@pytest_twisted.ensureDeferred
async def test_some_interim_answers_and_a_long_head_are_allowed(count):
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * count
    long = b"a: %b\r\n" % (b"b" * 1000) * 14
    port, url = await listening(
        talker(interim + OK + long + b"Content-Length: 40000\r\n\r\n" + b"\n\n" * 20_000)
    )
    try:
        assert await fetch_with(reactor)(url) == b"\n\n" * 20_000
    finally:
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_each_answer_of_a_connection_that_is_kept_has_limits_of_its_own():
    head = OK + b"a: %b\r\nContent-Length: 4\r\n\r\n21.5" % (b"b" * 8000)

    class Keeping(Protocol):
        def dataReceived(self, data):
            self.factory.requests.append(data)
            self.transport.write(head.replace(b"21.5", b"[1] "))

    factory = Factory.forProtocol(Keeping)
    factory.requests = []
    port, url = await listening(factory)
    client = Client(base_url=url, reactor=reactor)
    try:
        for _ in range(10):
            assert await client.readings() == [1]
        await client.close()
    finally:
        await port.stopListening()
    assert len(factory.requests) == 10
    assert 10 * len(head) > MAX_HEAD


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(b"HTTP/1.1 204 No Content\r\nPosition: a~1\r\n\r\n", id="no body"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nPosition: a~1\r\nContent-Type: application/x-ndjson\r\n"
            b"Content-Length: 4096\r\n\r\n" + b"\n" * 4096,
            id="a body of one slice",
        ),
    ],
)
@pytest_twisted.ensureDeferred
async def test_bytes_that_come_before_a_request_are_not_taken_as_its_answer(page):
    place = b'{"topic":"t","partition":0,"offset":%d}'
    answer = OK + b"Content-Length: %d\r\n\r\n%b"
    early, right = (answer % (len(body), body) for body in (place % 77, place % 42))

    class Confused(Protocol):
        def dataReceived(self, data):
            self.transport.write(page + early if data.startswith(b"GET") else right)

    port, url = await listening(Factory.forProtocol(Confused))
    client = Client(base_url=url, reactor=reactor)
    try:
        await client.read(topic="t")
        published = await client.publish(topic="t", content="c")
        await client.close()
    finally:
        await port.stopListening()
    assert published.offset == 42


class Recorder(Protocol):
    """Records what it gets, and pauses its transport as a test says."""

    def __init__(self):
        self.received = []
        self.ends = []

    def dataReceived(self, data):
        self.received.append(data)

    def connectionLost(self, reason):
        self.ends.append(reason.value)


class Endpoint:
    """Connects at once, in memory."""

    def connect(self, factory):
        self.transport = StringTransport()
        self.protocol = factory.buildProtocol(None)
        self.protocol.makeConnection(self.transport)
        connected = Deferred()
        connected.callback(self.protocol)
        return connected


class Turns(Clock):
    """A clock whose ``advance(1)`` is one turn of a reactor."""

    def callLater(self, when, *args, **kwargs):
        return super().callLater(when or 1, *args, **kwargs)


def connected(clock):
    endpoint, recorder = Endpoint(), []
    pool = BoundedPool(clock, persistent=False)
    pool._factory = lambda *_: Factory.forProtocol(Recorder)  # noqa: SLF001 -- instead of Twisted's client
    pool.getConnection("key", endpoint).addCallback(recorder.append)
    return endpoint.protocol, endpoint.transport, recorder[0]


@given(
    sizes=st.lists(st.integers(1, 50_000), max_size=6),
    steps=st.lists(st.sampled_from(["receive", "turn", "pause", "resume", "lose"]), max_size=40),
)
def test_all_that_comes_is_passed_on_in_order_in_slices_and_only_when_it_is_wanted(sizes, steps):
    clock = Turns()
    connection, transport, recorder = connected(clock)
    # A body, which has no limit here.
    recorder.transport.pauseProducing()
    recorder.transport.resumeProducing()
    waiting = [bytes([place]) * size for place, size in enumerate(sizes)]
    sent, is_wanted, is_lost = b"", True, False
    for step in [*steps, "resume", *["turn"] * 90]:
        before = len(recorder.received)
        if step == "receive" and waiting and not is_lost and transport.producerState == "producing":
            sent += waiting[0]
            connection.dataReceived(waiting.pop(0))
        elif step == "turn":
            clock.advance(1)
        elif step == "pause" and not recorder.ends:
            recorder.transport.pauseProducing()
            is_wanted = False
        elif step == "resume" and not recorder.ends:
            recorder.transport.resumeProducing()
            is_wanted = True
        elif step == "lose" and not is_lost:
            is_lost = True
            connection.connectionLost(Failure(ConnectionDone()))
        assert len(recorder.received) - before <= 1
        assert is_wanted or len(recorder.received) == before
        assert sent.startswith(b"".join(recorder.received))
        if recorder.ends:
            assert b"".join(recorder.received) == sent
    assert b"".join(recorder.received) == sent
    assert all(len(each) <= 4096 for each in recorder.received)
    assert len(recorder.ends) == is_lost
    assert is_lost or transport.producerState == "producing"
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize(
    "head", [OK + b"a: b\r\n" * 4000, b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20], ids=["long", "interim"]
)
def test_a_head_that_is_too_long_ends_the_request_also_if_the_server_has_closed_in_the_meantime(head):
    clock = Turns()
    connection, _, recorder = connected(clock)
    connection.dataReceived(head)
    connection.connectionLost(Failure(ConnectionDone()))
    clock.pump([1] * 30)
    assert [type(end) for end in recorder.ends] == [HeadTooLong]
    assert len(b"".join(recorder.received)) <= MAX_HEAD
    assert clock.getDelayedCalls() == []


def test_a_server_that_does_not_close_its_side_is_cut():
    clock = Clock()
    connection, transport, recorder = connected(clock)
    recorder.transport.loseConnection()
    assert transport.disconnecting
    connection.dataReceived(b"more")
    transport.abortConnection = lambda: connection.connectionLost(Failure(ConnectionDone()))
    clock.advance(5)
    assert recorder.received == []
    assert len(recorder.ends) == 1
    assert clock.getDelayedCalls() == []
