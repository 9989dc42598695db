"""Connections: which side ends them, slow readers, idleness, draining."""

from __future__ import annotations

import sys

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.protocols.policies import WrappingFactory

from sampleapp.web import HTTPServer, response_to_failure
from sampleapp.web.errors import problem_response
from tests.support.in_memory import (
    Connection,
    InMemoryService,
    MemoryTransport,
    PromptBroker,
    request_bytes,
)
from tests.support.simulated_socket import Link, unread_by_client
from tests.web.http import JSON, MESSAGE, raw


def test_http_1_0_is_served_and_the_connection_ends(service):
    connection = raw(service, b"GET / HTTP/1.0\r\n\r\n")
    (response,) = connection.responses(["GET"])
    assert (response.status, response.body) == (200, b"[]")
    assert response.headers[b"connection"] == b"close"
    assert connection.is_lost


def test_the_client_may_ask_that_the_connection_ends(service):
    connection = raw(service, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    (response,) = connection.responses(["GET"])
    assert response.headers[b"connection"] == b"close"
    assert connection.is_lost


class NarrowTransport(MemoryTransport):
    """The server's end of a connection whose client reads only when it is told to."""

    limit = 4096
    is_full = False

    def write(self, data):
        super().write(data)
        if not self.is_full and len(self.value()) > self.limit:
            self.is_full = True
            self.producer.pauseProducing()

    def let_client_read(self):
        data = self.value()
        self.clear()
        self.is_full = False
        if self.producer is not None:
            self.producer.resumeProducing()
        return data


def test_a_client_that_does_not_read_its_answers_gets_no_further_ones_prepared(service):
    for n in range(100):
        service.read(b"%d" % n, b"1.5")
    size = len(service.request("GET").body)
    connection = service.connect(NarrowTransport)
    requests = 100
    connection.send(request_bytes("GET") * requests)
    received = b""
    while data := connection.transport.value():
        assert len(data) <= NarrowTransport.limit + 2 * size
        assert connection.transport.producerState == ("paused" if len(data) > 4096 else "producing")
        received += connection.transport.let_client_read()
        service.clock.advance(0)
    assert received.count(b"HTTP/1.1 200 OK") == requests
    # It was not the end: what comes now is answered as well.
    connection.send(request_bytes("GET"))
    assert connection.transport.value().count(b"HTTP/1.1 200 OK") == 1


def test_a_client_may_close_its_side_and_read_its_answers_afterwards():
    service = InMemoryService()
    connection = service.connect()
    connection.send(
        request_bytes("GET") + request_bytes("POST", "/messages", JSON, MESSAGE) + request_bytes("GET")
    )
    connection.channel.readConnectionLost()
    connection.settle()
    assert not connection.is_lost
    service.broker.acknowledge()
    connection.settle()
    assert connection.is_lost
    assert [response.status for response in connection.responses(["GET", "POST", "GET"])] == [200] * 3


def test_a_client_that_closes_its_side_before_its_request_is_whole_is_not_waited_for(service):
    connection = raw(service, request_bytes("POST", "/messages", JSON, MESSAGE)[:-5])
    connection.channel.readConnectionLost()
    connection.settle()
    assert connection.is_lost
    assert service.broker.records == []


def test_a_client_that_closes_its_side_gets_what_it_has_not_read_yet(service):
    for n in range(100):
        service.read(b"%d" % n, b"1.5")
    connection = service.connect(NarrowTransport)
    connection.send(request_bytes("GET") * 20)
    connection.channel.readConnectionLost()
    received = b""
    while connection.transport.value():
        received += connection.transport.let_client_read()
    connection.settle()
    assert connection.is_lost
    assert received.count(b"HTTP/1.1 200 OK") == 20


@pytest.mark.parametrize("close", [b"close", b"Close", b"close, foo", b"keep-alive,close", b"foo,\tclose"])
def test_a_client_may_ask_for_the_end_of_the_connection_in_every_way(service, close):
    for headers in ([(b"Connection", close)], [(b"Connection", b"foo"), (b"Connection", close)]):
        connection = raw(service, request_bytes("GET", headers=headers))
        (response,) = connection.responses(["GET"])
        assert response.headers[b"connection"] == b"close"
        assert connection.is_lost
        connection = raw(service, request_bytes("GET", "/nothing", headers=headers))
        (response,) = connection.responses(["GET"])
        assert response.headers[b"connection"] == b"close"
        assert connection.is_lost
    (response,) = raw(service, request_bytes("GET", headers=[(b"Connection", b"closed")])).responses(["GET"])
    assert response.headers[b"connection"] == b"keep-alive"


def test_a_client_that_never_reads_the_last_answer_does_not_keep_the_connection(service):
    connection = service.connect()
    # As a real transport does while there is something left to send.
    connection.transport.loseConnection = lambda: None
    connection.send(request_bytes("GET", headers=[(b"Connection", b"close")]))
    assert not connection.transport.aborted
    service.clock.advance(61)
    assert connection.transport.aborted


def test_a_client_cannot_keep_a_closing_connection_by_sending(service):
    connection = service.connect()
    # As over TLS, which reads on until the client has agreed to the end.
    connection.transport.loseConnection = lambda: None
    connection.send(request_bytes("GET", headers=[(b"Connection", b"close")]))
    for _ in range(40):
        connection.send(b"x")
        service.clock.advance(1)
    assert connection.transport.aborted


def test_an_idle_connection_is_closed_after_a_while(service):
    connection = service.connect()
    service.clock.advance(75)
    assert not connection.transport.disconnecting
    service.clock.advance(1)
    connection.settle()
    assert connection.is_lost


def test_a_client_that_leaves_disturbs_nothing_on_the_long_way_either(service):
    service = InMemoryService()
    connection = service.connect()
    connection.send(request_bytes("POST", "/%6Dessages", JSON, MESSAGE))
    connection.lose()
    (publishing,) = service.broker.waiting
    assert not publishing.called
    service.broker.acknowledge()


def a_server_with(handler):
    return HTTPServer(
        lambda _: handler, reject=problem_response, response_to=response_to_failure, reactor=Clock()
    )


def test_an_answer_that_is_none_does_not_leave_the_client_waiting(no_failure_is_lost):
    waiting = Deferred()
    server = a_server_with(lambda _: waiting)
    connection = Connection(server)
    connection.send(request_bytes("GET"))
    waiting.callback("no answer")
    assert connection.transport.aborted
    assert server.waiting == 0
    assert [failure.type for failure in no_failure_is_lost] == [AttributeError]
    no_failure_is_lost.clear()


def test_a_body_is_not_kept_while_its_answer_is_waited_for():
    requests = []

    def handler(request):
        requests.append(request)
        return Deferred()

    connection = Connection(a_server_with(handler))
    connection.send(request_bytes("POST", body=b"x" * 1000))
    connection.send(request_bytes("POST", body=b"x" * 1000))
    alone = [object()]
    assert [sys.getrefcount(each) for each in requests] == [sys.getrefcount(each) for each in alone]


def test_draining_ends_idle_connections_after_a_moment_and_the_others_after_their_answer():
    service = InMemoryService()
    idle, busy, half, line = [service.connect() for _ in range(4)]
    idle.send(request_bytes("GET"))
    busy.send(request_bytes("POST", "/messages", JSON, MESSAGE))
    half.send(request_bytes("POST", "/messages", JSON, MESSAGE)[:40])
    line.send(b"GET /")
    drained = []
    service.site.drain().addCallback(drained.append)
    assert not idle.transport.disconnecting
    service.clock.advance(1)
    for connection in (idle, busy, half, line):
        connection.settle()
    assert [connection.is_lost for connection in (idle, busy, half, line)] == [True, False, False, False]

    service.broker.acknowledge()
    busy.settle()
    (response,) = busy.responses(["POST"])
    assert response.status == 200
    assert response.headers[b"connection"] == b"close"
    assert busy.is_lost
    assert drained == []

    half.send(request_bytes("POST", "/messages", JSON, MESSAGE)[40:])
    service.broker.acknowledge()
    half.settle()
    (response,) = half.responses(["POST"])
    assert response.status == 200
    assert response.headers[b"connection"] == b"close"
    assert drained == []

    line.send(b" HTTP/1.1\r\nHost: a\r\n\r\n")
    (response,) = line.responses(["GET"])
    assert (response.status, response.headers[b"connection"]) == (200, b"close")
    assert drained == [None]


def test_nothing_is_left_to_do_when_the_last_connection_goes_during_a_drain():
    service = InMemoryService()
    idle, busy = service.connect(), service.connect()
    busy.send(request_bytes("POST", "/messages", JSON, MESSAGE))
    drained = []
    service.site.drain().addCallback(drained.append)
    service.site.drain().addCallback(drained.append)
    idle.lose()
    assert service.clock.getDelayedCalls() != []
    service.broker.acknowledge()
    busy.settle()
    assert drained == [None, None]
    assert service.clock.getDelayedCalls() == []


def test_clients_beyond_those_that_are_told_so_are_closed_at_once_whatever_is_below():
    service = InMemoryService(max_connections=0)
    while not (last := service.connect()).transport.aborted:
        assert service.site.connections < 1000
    assert last.sent == b""
    # As TLS does it: its factory makes a connection of whatever it gets.
    wrapped = Connection(WrappingFactory(service.site))
    assert wrapped.transport.aborted
    assert wrapped.sent == b""


def test_whatever_is_left_can_be_cut():
    service = InMemoryService()
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, MESSAGE))
    waiting = service.site.drain()
    service.site.abort()
    assert connection.transport.aborted
    waiting.cancel()
    waiting.addErrback(lambda failure: None)
    connection.settle()


def test_a_request_that_came_before_the_drain_is_answered_after_one_whose_answer_was_on_its_way(service):
    for n in range(100):
        service.read(b"%d" % n, b"1.5")
    link = Link(service.site, service.clock, room=300)
    link.send(request_bytes("GET") * 2)
    service.site.drain()
    link.advance(2)
    answers = link.read_all()
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.count(b"Connection: close") == 1
    assert link.is_lost


@pytest.mark.parametrize("is_known", [True, False])
def test_a_rejected_client_may_take_its_time_to_read_the_answer_before(service, is_known, monkeypatch):
    monkeypatch.setattr("sampleapp.web.server.writer.unacknowledged", unread_by_client)
    for n in range(100):
        service.read(b"%d" % n, b"1.5")
    link = Link(service.site, service.clock, room=300, is_known=is_known)
    link.send(request_bytes("GET") + b"rubbish\r\n\r\n")
    link.finish()
    for _ in range(2):
        link.advance(20)
        link.read()
    link.advance(20)
    answers = link.read_all()
    assert answers.count(b"HTTP/1.1 200 OK") == 1
    assert answers.count(b"HTTP/1.1 400 ") == 1


def kept(response):
    return response.headers.get(b"connection"), response.headers.get(b"keep-alive")


@pytest.mark.parametrize(("idle_timeout_s", "timeout"), [(75, 74), (2, 1), (5.9, 4), (620, 619)])
def test_a_client_is_told_how_long_a_connection_may_be_idle_less_the_way_of_a_request(
    idle_timeout_s, timeout
):
    service = InMemoryService(broker=PromptBroker(), idle_timeout_s=idle_timeout_s)
    requests = [
        ("GET", "/"),
        ("HEAD", "/"),
        ("GET", "/nothing"),
        ("OPTIONS", "/messages"),
        ("POST", "/topics/t"),
    ]
    connection = service.connect()
    for method, target in requests:
        connection.send(request_bytes(method, target))
    responses = connection.responses([method for method, _ in requests])
    assert {response.status for response in responses} == {200, 204, 404}
    for response in responses:
        assert kept(response) == (b"keep-alive", b"timeout=%d" % timeout)
    # No request was too late.
    service.clock.advance(timeout)
    assert not connection.transport.disconnecting


def test_a_time_of_less_than_a_second_is_not_promised():
    service = InMemoryService(idle_timeout_s=1.5)
    assert kept(service.request("GET")) == (None, None)


def test_no_time_is_promised_on_a_connection_that_ends(service):
    close = [(b"Connection", b"close")]
    old = request_bytes("GET").replace(b"HTTP/1.1", b"HTTP/1.0")
    too_early = raw(service, b"nothing\r\n\r\n")
    for connection in (raw(service, request_bytes("GET", headers=close)), raw(service, old), too_early):
        (response,) = connection.responses(["GET"])
        assert kept(response) == (b"close", None)
    connection = service.connect()
    service.site.drain()
    connection.send(request_bytes("GET"))
    (response,) = connection.responses(["GET"])
    assert kept(response) == (b"close", None)


def test_a_304_tells_the_time_as_well(service):
    tag = service.request("GET").headers[b"etag"]
    response = service.request("GET", headers=[(b"If-None-Match", tag)])
    assert response.status == 304
    assert kept(response) == (b"keep-alive", b"timeout=74")


def test_a_stream_tells_the_time_unless_its_end_is_that_of_the_connection(service):
    request = request_bytes("GET", "/changes", [(b"Accept", b"text/event-stream")])
    assert b"\r\nKeep-Alive: timeout=74\r\n" in raw(service, request).sent
    sent = raw(service, request.replace(b"HTTP/1.1", b"HTTP/1.0")).sent
    assert b"Keep-Alive" not in sent
    assert b"\r\nConnection: close\r\n" in sent
