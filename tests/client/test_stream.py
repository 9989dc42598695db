"""Streams of a topic, from a server that follows a script for each connection."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPullProducer
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from zope.interface import implementer

from sampleapp.client import (
    Client,
    ClientError,
    Forbidden,
    Gap,
    Reset,
    ServiceUnreachable,
    UnexpectedResponse,
)
from sampleapp.client import _stream as streams
from sampleapp.errors import InvalidMessage
from sampleapp.model import ConsumerRecord, GoneRecords
from tests.support.client_servers import PROBLEM, listening, problem

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"retry: 1\n\n"
)


def event(offset, *, partition=0, position=None, topic="t"):
    """One record as an event; its id is the position after it, or none if the position is empty."""
    line = {"topic": topic, "partition": partition, "offset": offset, "timestamp": 1, "content": f"{offset}"}
    position = f"A~{offset + 1}" if position is None else position
    return f"data: {json.dumps(line)}\n{f'id: {position}' if position else ''}\n\n".replace(
        "\n\n\n", "\n\n"
    ).encode()


def control(name, position, **members):
    return f"event: {name}\nid: {position}\ndata: {json.dumps(members)}\n\n".encode()


def rejection(status, *headers):
    body = problem(status)
    head = [
        f"HTTP/1.1 {status} Rejected",
        f"Content-Type: {PROBLEM}",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


class _Connection(Protocol):
    def connectionMade(self):
        self.received = b""

    def dataReceived(self, data):
        self.received += data
        if self.received.endswith(b"\r\n\r\n"):
            self.factory.asked(self)

    def connectionLost(self, reason):
        self.factory.ended.append(self)


class Script(Factory):
    """For each request one answer: its bytes, and true if the connection stays open after them."""

    protocol = _Connection
    noisy = False

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.connections = []
        self.ended = []

    def asked(self, connection):
        self.connections.append(connection)
        lines = connection.received.decode().split("\r\n")
        position = [line.partition(": ")[2] for line in lines if line.lower().startswith("last-event-id:")]
        self.requests.append((lines[0].split()[1], *position))
        answer, stays_open = self.answers.pop(0)
        connection.transport.write(answer)
        if not stays_open:
            connection.transport.loseConnection()


class Reading:
    """A client of a script, and its stream."""

    def __init__(self, *answers, **arguments):
        self.script = Script(*answers)
        self._arguments = {"topic": "t", "start": "earliest"} | arguments

    async def __aenter__(self):
        self._port, url = await listening(self.script)
        self.client = Client(base_url=url, reactor=reactor)
        self.stream = self.client.stream(**self._arguments)
        return self

    async def __aexit__(self, *_):
        self.stream.close()
        await self.client.close()
        await self._port.stopListening()

    async def take(self, count):
        """Return the offsets of the next records, or other items."""
        items = [await self.stream.__anext__() for _ in range(count)]
        return [item.offset if isinstance(item, ConsumerRecord) else item for item in items]


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr(streams, "RETRY_S", 0.001)
    monkeypatch.setattr(streams, "MAX_RETRY_S", 0.01)


@pytest_twisted.ensureDeferred
async def test_a_stream_goes_on_where_it_has_ended():
    first = HEAD + b"id: A~0\n\n" + event(0) + event(1)
    async with Reading((first, False), (HEAD + b"id: A~2\n\n" + event(2), True)) as reading:
        assert await reading.take(3) == [0, 1, 2]
        assert reading.stream.position == "A~3"
        assert reading.script.requests == [
            ("/topics/t/records?from=earliest",),
            ("/topics/t/records", "A~2"),
        ]


@pytest_twisted.ensureDeferred
async def test_an_event_that_was_cut_off_is_read_again():
    cut = HEAD + event(0) + event(1)[:-1]
    async with Reading((cut, False), (HEAD + event(1), True)) as reading:
        assert await reading.take(2) == [0, 1]
        assert reading.script.requests[1] == ("/topics/t/records", "A~1")


@pytest_twisted.ensureDeferred
async def test_a_group_with_one_id_at_its_end_is_read_again_but_returned_once():
    group = [event(0, position=""), event(7, partition=1, position=""), event(1, position="A~2.8")]
    cut = HEAD + b"id: A~0\n\n" + group[0] + group[1]
    async with Reading((cut, False), (HEAD + b"".join(group), True)) as reading:
        assert await reading.take(2) == [0, 7]
        assert reading.stream.position == "A~0"
        assert await reading.take(1) == [1]
        assert reading.stream.position == "A~2.8"


@pytest_twisted.ensureDeferred
async def test_ids_alone_move_the_position_before_the_next_request():
    quiet = HEAD + event(0) + b"id: A~5\n\n"
    async with Reading((quiet, False), (HEAD + event(5), True)) as reading:
        assert await reading.take(1) == [0]
        assert await reading.take(1) == [5]
        assert reading.script.requests[1] == ("/topics/t/records", "A~5")


@pytest_twisted.ensureDeferred
async def test_a_busy_service_is_asked_again():
    answers = [
        (HEAD + event(0), False),
        (rejection(503, "Retry-After: 1"), False),
        (b"", False),
        (rejection(429), False),
        (HEAD, False),
        (HEAD + event(1), True),
    ]
    async with Reading(*answers) as reading:
        assert await reading.take(2) == [0, 1]
        assert len(reading.script.requests) == 6


@pytest_twisted.ensureDeferred
async def test_the_first_request_fails_as_every_request_does():
    async with Reading((rejection(503), False), (HEAD + event(0), True)) as reading:
        with pytest.raises(ClientError, match="503"):
            await reading.take(1)
        assert await reading.take(1) == [0]


@pytest_twisted.ensureDeferred
async def test_no_service_is_an_error():
    port, url = await listening(Script())
    await port.stopListening()
    with pytest.raises(ServiceUnreachable):
        await Client(base_url=url, reactor=reactor).stream(topic="t").__anext__()


@pytest_twisted.ensureDeferred
async def test_the_loss_of_the_right_is_an_error_after_everything_that_came():
    async with Reading((HEAD + event(0) + event(1), False), (rejection(403), False)) as reading:
        assert await reading.take(2) == [0, 1]
        with pytest.raises(Forbidden):
            await reading.take(1)


@pytest_twisted.ensureDeferred
async def test_gaps_and_resets_are_items_in_their_place():
    first = HEAD + event(8) + control("gap", "A~20", gone=[{"partition": 0, "asked": 9, "earliest": 20}])
    again = event(20) + control("reset", "B~", reason="topic-replaced") + event(0, position="B~1")
    async with Reading((first + again, True), start="A~8") as reading:
        gap, reset = Gap((GoneRecords(0, 9, 20),)), Reset("topic-replaced")
        assert await reading.take(5) == [8, gap, 20, reset, 0]
        assert reading.stream.position == "B~1"
        assert reading.script.requests == [("/topics/t/records", "A~8")]


@pytest_twisted.ensureDeferred
async def test_what_the_service_may_add_later_is_left_out():
    data = HEAD + control("unavailable", "A~3", detail="…") + control("new", "A~4") + b": comment\n\n"
    async with Reading((data + event(4), True)) as reading:
        assert await reading.take(1) == [4]


@pytest.mark.parametrize("data", [b"data: {}\n\n", b"data: \xff\n\n", b"event: gap\ndata: []\n\n"])
@pytest_twisted.ensureDeferred
async def test_an_event_of_another_program_is_an_error(data):
    async with Reading((HEAD + data, True)) as reading:
        with pytest.raises(UnexpectedResponse, match="not one of this service"):
            await reading.take(1)


@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_not_a_stream_is_an_error():
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n<p>"
    async with Reading((answer, False)) as reading:
        with pytest.raises(UnexpectedResponse, match="text/html"):
            await reading.take(1)


@pytest_twisted.ensureDeferred
async def test_a_silent_connection_is_given_up(monkeypatch):
    async with Reading((HEAD + event(0), True), (HEAD + event(1), True)) as reading:
        assert await reading.take(1) == [0]
        # Not before: the first response may take longer.
        with monkeypatch.context() as patched:
            patched.setattr(streams, "SILENCE_S", 0.05)
            waiting = Deferred.fromCoroutine(reading.take(1))
        assert await waiting == [1]


@pytest_twisted.ensureDeferred
async def test_closing_ends_the_iteration_and_the_connection():
    async with Reading((HEAD + event(0), True)) as reading:
        with closing(reading.stream) as stream:
            items = []
            async for item in stream:
                items.append(item.offset)
                reactor.callLater(0.01, stream.close)
        assert items == [0]
        await deferLater(reactor, 0.05)
        assert len(reading.script.ended) == 1


@pytest_twisted.ensureDeferred
async def test_a_stream_that_waits_to_ask_again_can_be_closed():
    async with Reading((HEAD + b"retry: 60000\n\n" + event(0), False)) as reading:
        items = []
        async for item in reading.stream:
            items.append(item.offset)
            reactor.callLater(0.05, reading.stream.close)
        assert items == [0]


@pytest_twisted.ensureDeferred
async def test_cancelling_stops_only_the_waiting():
    async with Reading((HEAD + event(0), True)) as reading:
        assert await reading.take(1) == [0]
        waiting = Deferred.fromCoroutine(reading.take(1))
        with pytest.raises(RuntimeError, match="one coroutine"):
            await reading.take(1)
        waiting.cancel()
        with pytest.raises(CancelledError):
            await waiting
        later = Deferred.fromCoroutine(reading.take(1))
        reading.script.connections[0].transport.write(event(1))
        assert await later == [1]


@implementer(IPullProducer)
class Events:
    """Writes one event after the other, as fast as they are read."""

    def __init__(self, transport, count):
        self.transport, self.count, self.written = transport, count, 0
        transport.registerProducer(self, streaming=False)

    def resumeProducing(self):
        if self.written == self.count:
            self.transport.unregisterProducer()
        else:
            self.transport.write(b":" + b"x" * 10_000 + b"\n" + event(self.written + 1))
            self.written += 1

    def stopProducing(self):
        pass


@pytest_twisted.ensureDeferred
async def test_a_program_that_takes_nothing_is_sent_no_more_than_fits():
    async with Reading((HEAD + event(0), True)) as reading:
        assert await reading.take(1) == [0]
        events = Events(reading.script.connections[0].transport, 2000)
        before = None
        while events.written != before:
            before = events.written
            await deferLater(reactor, 0.2)
        # The buffers of the system, and those of the stream.
        assert events.written < 2000
        assert await reading.take(2000) == list(range(1, 2001))


def test_an_impossible_topic_is_rejected_at_once():
    with pytest.raises(InvalidMessage):
        Client(base_url="http://service.example", reactor=reactor).stream(topic="..")
