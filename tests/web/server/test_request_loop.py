"""One loop over the requests of a connection: however they are answered, and whatever fails meanwhile."""

from __future__ import annotations

import re
import select
import socket
import struct
import sys
from contextlib import ExitStack
from http import HTTPStatus
from itertools import cycle, islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.tcp import Server
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure

from sampleapp.errors import BrokerUnavailable
from sampleapp.web import HTTPServer, Limits, response_to_failure
from sampleapp.web.errors import problem_response
from sampleapp.web.responses import Event, Response
from tests.support.clocks import ClockInTurns
from tests.support.examples import examples
from tests.support.in_memory import Connection, InMemoryService, ManualBroker, request_bytes
from tests.support.streams import Source
from tests.support.waiting import wait_until

MANY = 5000
AT_ONCE = 50
"""The most requests of one connection in one turn of the reactor."""


def depth():
    """The number of frames on the stack."""
    frame, count = sys._getframe(), 0  # noqa: SLF001 -- the only way to see the stack without making it larger
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


class Handlers:
    """A server whose handlers do what the query of a request names."""

    def __init__(self, **parts):
        self.clock = Clock()
        self.clock.advance(1000)
        self.later, self.depths, self.in_turn = [], [], []
        self.server = HTTPServer(
            lambda request: getattr(self, request.query.decode()),
            **{
                "reject": problem_response,
                "response_to": response_to_failure,
                "reactor": self.clock,
                **parts,
            },
        )

    def _begin(self):
        self.depths.append(depth())

    def plain(self, _):
        self._begin()
        return Response(HTTPStatus.OK, body=b"plain")

    def fired(self, _):
        self._begin()
        return succeed(Response(HTTPStatus.OK, body=b"fired"))

    def failed(self, _):
        self._begin()
        return fail(BrokerUnavailable("It is away."))

    def raises(self, _):
        self._begin()
        raise BrokerUnavailable("It is away.")

    def chained(self, _):
        self._begin()
        inner = Deferred()
        outer = succeed(None).addCallback(lambda _: inner)
        inner.callback(Response(HTTPStatus.OK, body=b"chained"))
        return outer

    def coroutine(self, _):
        self._begin()

        async def answer():
            await succeed(None)
            return Response(HTTPStatus.OK, body=b"coroutine")

        return Deferred.fromCoroutine(answer())

    def next_turn(self, _):
        self._begin()
        waiting = Deferred()
        self.clock.callLater(0, waiting.callback, Response(HTTPStatus.OK, body=b"next_turn"))
        return waiting

    def stream(self, _):
        self._begin()
        source = Source()

        def write_all(each):
            each.write(b"data: x\n\n")
            each.sink.finish("end")

        source.at_begin = write_all
        return Response(HTTPStatus.OK, source=source)

    def waits(self, _):
        self._begin()
        self.later.append(Deferred())
        return self.later[-1]

    def fires_the_first(self, _):
        self._begin()
        self.later.pop(0).callback(Response(HTTPStatus.OK, body=b"at last"))
        return Response(HTTPStatus.OK, body=b"fired")


WAYS = {
    "plain": 200,
    "fired": 200,
    "failed": 503,
    "raises": 503,
    "chained": 200,
    "coroutine": 200,
    "next_turn": 200,
    "stream": 200,
}


def get(way):
    return request_bytes("GET", f"/?{way}")


def statuses(data):
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", data)]


@examples(20)
@given(ways=st.lists(st.sampled_from(sorted(WAYS)), min_size=1, max_size=8))
def test_no_answer_deepens_the_stack_and_each_request_of_a_long_pipeline_is_answered(ways):
    handlers = Handlers()
    connection = Connection(handlers.server)
    count = MANY if len(ways) == 1 else 500
    asked = list(islice(cycle(ways), count))
    connection.send(b"".join(map(get, asked)))
    handlers.clock.advance(0)
    assert statuses(connection.sent) == [WAYS[way] for way in asked]
    # The first request of a turn may come from the network, the end of a turn, or a handler.
    assert max(handlers.depths) <= min(handlers.depths) + 20
    assert handlers.server.waiting == 0


@pytest.mark.parametrize("way", sorted(WAYS))
def test_pipelined_requests_have_the_same_share_of_a_turn_however_they_are_answered(way):
    handlers = Handlers()
    connection = Connection(handlers.server)
    at_end_of_turn = [0]
    call_next_turn = handlers.server.call_next_turn

    def end_turn(function):
        at_end_of_turn.append(len(handlers.depths))
        call_next_turn(function)

    handlers.server.call_next_turn = end_turn
    connection.send(get(way) * MANY)
    handlers.clock.advance(0)
    assert len(handlers.depths) == MANY
    shares = [after - before for before, after in pairwise([*at_end_of_turn, MANY])]
    assert max(shares) == AT_ONCE


def test_requests_that_were_left_for_the_next_turn_are_not_answered_at_the_end_of_the_present_one():
    handlers = Handlers(reactor=ClockInTurns())
    clock = handlers.server._reactor  # noqa: SLF001 -- the turns of the server's own clock
    connection = Connection(handlers.server)
    connection.send(get("plain") * MANY)
    assert len(handlers.depths) == AT_ONCE
    # The reactor has read from the socket, and now makes the calls that are due, in the same turn.
    clock.take()
    assert len(handlers.depths) == AT_ONCE
    clock.take()
    assert len(handlers.depths) == 2 * AT_ONCE


def test_a_turn_with_pipelined_requests_ends_after_some_milliseconds():
    handlers = Handlers()
    seconds = handlers.server.seconds
    # Each look at the clock, 2 ms have gone.
    handlers.server.seconds = lambda: seconds() + 0.002 * len(handlers.depths)
    connection = Connection(handlers.server)
    connection.send(get("plain") * MANY)
    assert 1 < len(handlers.depths) < 10
    handlers.clock.advance(0)
    assert len(handlers.depths) == MANY


def test_answers_that_set_one_another_off_do_not_deepen_the_stack():
    # Each connection has a request that waits, and behind it one whose handler answers that of the next.
    handlers = Handlers()
    connections = [Connection(handlers.server) for _ in range(1000)]
    for connection in connections:
        connection.send(get("waits") + get("fires_the_first"))
    handlers.depths.clear()
    handlers.later.append(Deferred())
    handlers.later.pop(0).callback(Response(HTTPStatus.OK, body=b"at last"))
    handlers.clock.advance(0)
    assert len(handlers.depths) == len(connections)
    assert max(handlers.depths) <= min(handlers.depths) + 20
    assert all(connection.sent.count(b"HTTP/1.1 200 OK") == 2 for connection in connections)


class Boom(Exception):
    """A fault."""


def boom(*_):
    raise Boom


def with_stream(source=None):
    """Answer with a stream, whose source writes nothing unless the test says so."""
    return lambda _: Response(HTTPStatus.OK, source=Source() if source is None else source)


def ready(_):
    return Response(HTTPStatus.OK, body=b"ready")


def raising(_):
    raise BrokerUnavailable("It is away.")


class NotFormed:
    """Stands for an answer, and is none."""


FAULTS = {
    "on_response": ({"on_response": boom}, ready, get("x")),
    "on_answer, later": ({"on_response": boom}, lambda _: succeed(ready(None)), get("x")),
    "extend_response": ({"extend_response": boom}, ready, get("x")),
    "extend_answer, of a rejection": ({"extend_response": boom}, ready, b"rubbish\r\n\r\n"),
    "extend_answer, of a stream": ({"extend_response": boom}, with_stream(), get("x")),
    "form_rejection": ({"form_rejection": boom}, raising, get("x")),
    "form_refusal, of a rejection": (
        {"form_rejection": boom},
        ready,
        request_bytes("POST", "/", [(b"Content-Length", b"%d" % 10**9)]),
    ),
    "reject": ({"reject": boom}, ready, b"rubbish\r\n\r\n"),
    "response_to": ({"response_to": boom}, raising, get("x")),
    "answer_to, later": ({"response_to": boom}, lambda _: fail(BrokerUnavailable("Away.")), get("x")),
    "no answer": ({}, lambda _: NotFormed(), get("x")),
    "no answer, later": ({}, lambda _: succeed(NotFormed()), get("x")),
    "no answer at all": ({}, lambda _: None, get("x")),
}


@pytest.mark.parametrize("behind", [b"", get("x") * 500], ids=["alone", "in a pipeline"])
@pytest.mark.parametrize(("parts", "handler", "data"), FAULTS.values(), ids=FAULTS)
def test_a_fault_while_answering_cuts_the_connection_and_is_logged_afterwards(
    parts, handler, data, behind, no_failure_is_lost
):
    handlers = Handlers(limits=Limits(max_body=1000), **parts)
    handlers.x = handler
    connection = Connection(handlers.server)
    cut_before = []

    def look(event):
        if event.get("log_failure") is not None:
            cut_before.append(connection.transport.aborted)

    globalLogPublisher.addObserver(look)
    try:
        if handlers.server.dispatch is not None:
            handlers.server.dispatch = lambda _: handler
        connection.send(data + behind)
    finally:
        globalLogPublisher.removeObserver(look)
    assert cut_before == [True]
    assert connection.is_lost
    assert len(no_failure_is_lost) == 1
    no_failure_is_lost.clear()
    server = handlers.server
    assert (server.connections, server.waiting, server.body_memory.reserved) == (0, 0, 0)
    assert server.reading is None
    assert server.streams.open == 0
    # The last connection has ended, and so has the timer.
    assert handlers.clock.getDelayedCalls() == []


@pytest.mark.parametrize("ending", ["client", "cut", "finished"])
def test_a_fault_in_reporting_the_end_of_a_stream_keeps_neither_connection_nor_source(
    ending, no_failure_is_lost
):
    handlers = Handlers(on_stream_end=boom)
    source = Source()
    handlers.server.dispatch = lambda _: with_stream(source)
    connection = Connection(handlers.server)
    connection.send(get("x"))
    if ending == "client":
        connection.lose()
    elif ending == "cut":
        handlers.server.abort()
    else:
        source.sink.finish("end")
        connection.lose()
    connection.settle()
    assert connection.is_lost
    assert source.is_closed
    assert handlers.server.connections == 0
    assert [failure.type for failure in no_failure_is_lost] == [Boom]
    no_failure_is_lost.clear()


def test_a_fault_at_the_deadline_of_a_connection_cuts_it(no_failure_is_lost):
    handlers = Handlers(on_response=boom)
    connection = Connection(handlers.server)
    connection.send(b"GET / HT")
    for _ in range(20):
        handlers.clock.advance(1)
    connection.settle()
    assert connection.is_lost
    assert [failure.type for failure in no_failure_is_lost] == [Boom]
    no_failure_is_lost.clear()


def test_a_fault_in_turning_a_client_away_keeps_no_connection(no_failure_is_lost):
    handlers = Handlers(on_response=boom, limits=Limits(max_connections=0, kept_for_loopback=0))
    connection = Connection(handlers.server)
    connection.settle()
    assert connection.is_lost
    assert handlers.server.connections == 0
    no_failure_is_lost.clear()


# Clients that are gone, as the system shows it.


class NoReactor:
    """Watches no socket: as the reactor does with one that nobody reads, or writes to."""

    def __init__(self, clock):
        self.callLater = clock.callLater
        self.addReader = self.removeReader = self.addWriter = self.removeWriter = lambda _: None


class Pair:
    """A connection over loopback, or over a Unix socket, whose server does not watch it."""

    def __init__(self, server, clock, *, is_unix=False):
        if is_unix:
            accepted, self.client = socket.socketpair()
        else:
            with socket.create_server(("127.0.0.1", 0)) as port:
                self.client = socket.create_connection(port.getsockname())
                accepted, _ = port.accept()
        address = IPv4Address("TCP", "127.0.0.1", 1)
        self.protocol = server.buildProtocol(address)
        if is_unix:
            accepted.setblocking(False)  # noqa: FBT003 -- it is the method of a socket
        self.transport = Server(accepted, self.protocol, ("127.0.0.1", 1), None, 0, NoReactor(clock))
        self.protocol.makeConnection(self.transport)
        self.clock = clock

    def send(self, data):
        self.client.sendall(data)
        wait_until(lambda: select.select([self.transport.socket], [], [], 0)[0], "it has come")
        self.transport.doRead()

    def reset(self):
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()

    def read_the_end(self):
        """Let the server read that the client has closed its side."""
        wait_until(lambda: select.select([self.transport.socket], [], [], 0)[0], "it has come")
        reason = self.transport.doRead()
        assert reason is not None
        self.transport.readConnectionLost(Failure(reason))

    def pass_time(self, seconds):
        for _ in range(seconds):
            self.clock.advance(1)
            self.clock.advance(0)


@pytest.fixture
def pair():
    with ExitStack() as opened:

        def pair(handlers, **options):
            made = Pair(handlers.server, handlers.clock, **options)
            opened.callback(made.client.close)
            opened.callback(
                lambda: (
                    made.transport.disconnected or made.transport.connectionLost(Failure(ConnectionDone()))
                )
            )
            return made

        yield pair


@pytest.mark.parametrize("is_unix", [False, True])
def test_a_client_that_is_gone_keeps_no_connection_though_nothing_is_read_from_it(pair, is_unix):
    handlers = Handlers()
    each = pair(handlers, is_unix=is_unix)
    each.send(get("waits") + get("plain"))
    each.pass_time(100)
    assert not each.transport.disconnected
    if is_unix:
        each.client.close()
    else:
        each.reset()
    each.pass_time(2)
    assert each.transport.disconnected
    assert handlers.server.connections == 0


def test_the_answer_for_a_client_that_closed_its_side_still_comes(pair):
    handlers = Handlers()
    each = pair(handlers)
    each.send(get("waits") + get("plain"))
    each.client.shutdown(socket.SHUT_WR)
    each.pass_time(30)
    handlers.later.pop().callback(Response(HTTPStatus.OK, body=b"at last"))
    received = each.client.recv(1 << 16)
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert b"at last" in received


def test_no_connection_waits_for_ever_for_an_answer_that_only_a_gone_client_could_have_wanted(pair):
    handlers = Handlers()
    each = pair(handlers)
    each.send(get("waits"))
    each.client.shutdown(socket.SHUT_WR)
    each.read_the_end()
    each.pass_time(50)
    assert not each.transport.disconnected
    each.pass_time(20)
    assert each.transport.disconnected
    # Its handler goes on.
    handlers.later.pop().callback(Response(HTTPStatus.OK, body=b"at last"))
    assert handlers.server.waiting == 0


class Streaming(Handlers):
    """Answers with streams that the test writes to, at once or later."""

    def __init__(self):
        super().__init__()
        self.sources = []

    def stream(self, _):
        self.sources.append(Source())
        return Response(HTTPStatus.OK, source=self.sources[-1])

    def stream_later(self, _):
        self.later.append(Deferred())
        return self.later[-1].addCallback(self.stream)


ENDED = ["begin", "closed: client"]


@pytest.mark.parametrize("behind", [b"", b"\r\n", get("plain")], ids=["alone", "an empty line", "a request"])
def test_a_stream_ends_when_its_client_closes_its_side_whenever_that_is(pair, behind):
    # The end comes together with the request, before the stream begins, or later.
    for moment in ("with it", "before it", "after it"):
        handlers = Streaming()
        each = pair(handlers)
        each.send(get("stream" if moment == "after it" else "stream_later") + behind)
        each.client.shutdown(socket.SHUT_WR)
        if moment == "before it" and not behind:
            each.read_the_end()
        if moment != "after it":
            handlers.later.pop().callback(None)
        if not behind and moment != "before it":
            each.read_the_end()
        each.pass_time(2)
        (source,) = handlers.sources
        assert source.calls == ENDED, moment
        assert handlers.server.streams.open == 0


def test_a_stream_that_was_asked_for_behind_a_request_ends_as_well(pair):
    handlers = Streaming()
    each = pair(handlers)
    each.send(get("waits"))
    each.send(get("stream") + get("plain"))
    each.client.shutdown(socket.SHUT_WR)
    handlers.later.pop().callback(Response(HTTPStatus.OK, body=b"at last"))
    each.pass_time(2)
    (source,) = handlers.sources
    assert source.calls == ENDED


def test_events_are_not_lost_that_a_stream_has_written_before_its_client_closed_its_side(pair):
    handlers = Streaming()
    each = pair(handlers)
    each.send(get("stream") + get("plain"))
    handlers.sources[0].sink.write(Event(b"data: x\n\n"))
    each.client.shutdown(socket.SHUT_WR)
    each.pass_time(2)
    assert b"data: x\n\n" in each.client.recv(1 << 16)


class AnswersTheFirst(ManualBroker):
    """Stores the first record when the second one is published."""

    def publish(self, record):
        published = super().publish(record)
        if len(self.records) == 2:
            self.acknowledge(0)
        return published


def test_a_connection_that_another_one_has_answered_is_read_on():
    service = InMemoryService(broker=AnswersTheFirst())
    first, second = service.connect(), service.connect()
    message = request_bytes(
        "POST", "/messages", [(b"Content-Type", b"application/json")], b'{"topic":"t","content":"c"}'
    )
    first.send(message)
    second.send(message)
    for _ in range(5):
        service.clock.advance(0.1)
    assert first.sent.startswith(b"HTTP/1.1 200 ")
    assert first.transport.producerState == "producing"


def test_a_connection_that_another_one_has_answered_ends_if_its_client_has_finished():
    service = InMemoryService(broker=AnswersTheFirst())
    first, second = service.connect(), service.connect()
    message = request_bytes(
        "POST", "/messages", [(b"Content-Type", b"application/json")], b'{"topic":"t","content":"c"}'
    )
    first.send(message)
    first.channel.readConnectionLost()
    second.send(message)
    service.clock.advance(0)
    first.settle()
    assert first.sent.startswith(b"HTTP/1.1 200 ")
    assert first.is_lost


def test_a_client_that_closes_its_side_after_a_slow_upload_is_not_cut():
    service = InMemoryService(broker=ManualBroker())
    connection = service.connect()
    body = b'{"topic":"t","content":"%b"}\n' % (b"x" * 1000) * 200
    head = [(b"Content-Type", b"application/x-ndjson"), (b"Content-Length", b"%d" % len(body))]
    connection.send(request_bytes("POST", "/messages", head))
    for start in range(0, len(body), len(body) // 70):
        connection.send(body[start : start + len(body) // 70])
        service.clock.advance(1)
    assert len(service.broker.records) == 200
    connection.channel.readConnectionLost()
    for _ in range(5):
        service.clock.advance(1)
    assert not connection.transport.aborted
