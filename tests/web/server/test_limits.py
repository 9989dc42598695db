"""Limits for each client: each rejection is counted once, under the option that is the limit."""

from __future__ import annotations

import os
import resource
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.task import Clock

from sampleapp.web import Descriptors, HTTPServer, Limits, response_to_failure
from sampleapp.web.errors import problem_response
from sampleapp.web.responses import Response
from tests.support.in_memory import InMemoryService, MemoryTransport, PromptBroker, request_bytes
from tests.support.logs import logged_lines
from tests.support.simulated_socket import Link
from tests.web.http import JSON, MESSAGE, assert_problem

POST = request_bytes("POST", "/messages", JSON, MESSAGE)
HERE = [
    IPv4Address("TCP", "127.0.0.1", 1),
    IPv4Address("TCP", "127.8.9.10", 1),
    IPv6Address("TCP", "::1", 1),
    IPv6Address("TCP", "::ffff:127.0.0.1", 1),
    UNIXAddress(b""),
]
ELSEWHERE = [
    IPv4Address("TCP", "192.0.2.1", 1),
    IPv6Address("TCP", "2001:db8::1", 1),
    IPv6Address("TCP", "fe80::1%eth0", 1),
    IPv6Address("TCP", "::ffff:192.0.2.1", 1),
]


def connect_from(service, address):
    """The server's end of a connection from there, and the transport; None if it was only closed."""
    connection = service.site.buildProtocol(address)
    transport = MemoryTransport(peerAddress=address)
    connection.makeConnection(transport)
    return None if transport.aborted else (connection, transport)


def is_rejected(connected):
    return connected is None or connected[1].value().startswith(b"HTTP/1.1 503 ")


def test_a_header_that_does_not_come_is_counted():
    service = InMemoryService(header_timeout_s=5)
    for connection in [service.connect() for _ in range(3)]:
        connection.send(b"GET / HTTP/1.1\r\n")
    whole = service.connect()
    whole.send(request_bytes("GET"))
    service.clock.pump([1] * 8)
    assert +service.site.rejections == {"header-timeout": 3}


@given(
    rate=st.integers(1, 5000),
    grace_s=st.integers(0, 20),
    pieces=st.lists(st.integers(0, 20_000), min_size=1, max_size=30),
)
def test_a_body_is_rejected_in_the_first_second_in_which_it_is_too_slow_on_average(rate, grace_s, pieces):
    service = InMemoryService(body_rate=rate, body_grace_s=grace_s)
    connection = service.connect()
    length = sum(pieces) + 1
    connection.send(b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
    connection.send(b"Content-Length: %d\r\n\r\n" % length)
    received = 0
    for second, size in enumerate(pieces, start=1):
        connection.send(b" " * size)
        received += size
        service.clock.advance(1)
        if second >= grace_s and received < rate * second:
            assert connection.responses(["POST"])[0].status == 408
            assert +service.site.rejections == {"min-body-rate": 1}
            return
        assert connection.sent == b""
    assert +service.site.rejections == {}


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_stands_still_is_rejected_however_fast_it_was(is_chunked):
    service = InMemoryService(body_idle_timeout_s=30, max_body=10**6)
    connection = service.connect()
    length = (b"Transfer-Encoding", b"chunked") if is_chunked else (b"Content-Length", b"900000")
    connection.send(request_bytes("POST", "/topics/t", [length]) + (b"dbba0\r\n" if is_chunked else b""))
    service.clock.pump([1] * 5)
    connection.send(bytes(500_000))
    service.clock.pump([1] * 28)
    # One byte is enough to go on.
    connection.send(b"x")
    service.clock.pump([1] * 30)
    assert connection.sent == b""
    service.clock.pump([1] * 2)
    (answer,) = connection.responses(["POST"])
    assert_problem(answer, 408)
    assert b"No byte of the body arrived for 30 seconds." in answer.body
    assert answer.headers[b"connection"] == b"close"
    assert +service.site.rejections == {"body-idle-timeout": 1}


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_was_fast_is_not_kept_by_a_byte_now_and_then(is_chunked):
    service = InMemoryService(body_idle_timeout_s=30, max_body=10**6)
    connection = service.connect()
    length = (b"Transfer-Encoding", b"chunked") if is_chunked else (b"Content-Length", b"900000")
    connection.send(request_bytes("POST", "/topics/t", [length]) + (b"dbba0\r\n" if is_chunked else b""))
    connection.send(bytes(800_000))
    seconds = 0
    while not connection.sent:
        service.clock.pump([1] * 14)
        seconds += 14
        assert seconds < 150
        connection.send(b"x")
    (answer,) = connection.responses(["POST"])
    assert_problem(answer, 408)
    assert +service.site.rejections == {"min-body-rate": 1}
    assert service.site.body_memory.reserved == 0


def test_a_body_that_comes_at_the_lowest_rate_is_taken_however_long_it_takes():
    service = InMemoryService(broker=PromptBroker(), body_idle_timeout_s=30, body_rate=1000, max_body=10**6)
    connection = service.connect()
    connection.send(request_bytes("POST", "/topics/t", [(b"Content-Length", b"400000")]))
    for _ in range(20):
        connection.send(bytes(20_000))
        # It stands still in between.
        service.clock.pump([1] * 20)
    assert connection.responses(["POST"])[0].status == 200


def test_connections_without_a_request_are_counted_and_those_that_a_client_closes_are_not():
    service = InMemoryService(idle_timeout_s=20)
    new, used, gone = [service.connect() for _ in range(3)]
    used.send(request_bytes("GET"))
    gone.lose()
    service.clock.pump([1] * 22)
    for connection in (new, used):
        connection.settle()
        assert connection.is_lost
    assert +service.site.rejections == {"idle-timeout": 2}
    assert service.site.connections == 0


def test_the_limits_hold_for_every_connection_of_many():
    service = InMemoryService(idle_timeout_s=5)
    connections = [service.connect() for _ in range(1234)]
    service.clock.pump([1] * 8)
    for connection in connections:
        connection.settle()
    assert +service.site.rejections == {"idle-timeout": 1234}
    assert service.site.connections == 0


def test_bodies_over_the_limit_are_counted_however_their_length_is_told():
    service = InMemoryService(max_body=100)
    head = b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    for rest in (
        b"Content-Length: 101\r\n\r\n",
        b"Content-Length: 99999999999999999999999\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n65\r\n",
    ):
        connection = service.connect()
        connection.send(head + rest)
        assert connection.responses(["POST"])[0].status == 413
    assert +service.site.rejections == {"max-body": 3}


def test_requests_beyond_those_that_may_wait_are_counted_and_readers_are_none_of_them():
    service = InMemoryService(max_waiting=2)
    connections = [service.connect() for _ in range(5)]
    for connection in connections:
        connection.send(POST)
    assert [connection.sent[9:12] for connection in connections] == [b"", b"", b"503", b"503", b"503"]
    assert +service.site.rejections == {"max-waiting": 3}
    assert service.request("GET").status == 200
    assert service.request("OPTIONS", "/messages").status == 204
    # The client is gone, but the broker still works for it.
    connections[0].lose()
    assert service.post(MESSAGE).status == 503
    service.broker.acknowledge()
    service.connect().send(POST)
    assert len(service.broker.waiting) == 2
    assert +service.site.rejections == {"max-waiting": 4}


def test_as_many_connections_are_taken_as_may_be_and_32_more_from_this_machine():
    for local in HERE:
        for remote in ELSEWHERE:
            service = InMemoryService(max_connections=3)
            remotes = [connect_from(service, remote) for _ in range(4)]
            assert [is_rejected(each) for each in remotes] == [False] * 3 + [True]
            locals_ = [connect_from(service, local) for _ in range(33)]
            assert [is_rejected(each) for each in locals_] == [False] * 32 + [True]
            assert +service.site.rejections == {"max-connections": 2}


def test_of_many_rejected_clients_only_some_get_an_answer_and_one_line_a_while_is_logged():
    service = InMemoryService(max_connections=1, max_rejected=4)
    connect_from(service, ELSEWHERE[0])
    with logged_lines() as lines:
        rejected = [connect_from(service, ELSEWHERE[0]) for _ in range(100)]
        assert [each is not None for each in rejected] == [True] * 4 + [False] * 96
        assert len(lines) == 1
        service.clock.pump([1] * 9)
        assert len(lines) == 1
        service.clock.pump([1] * 2)
    assert lines == [
        f"Rejected {count} connection(s): 1 are open, which is the limit (--max-connections)."
        for count in (1, 99)
    ]
    assert service.site.rejections["max-connections"] == 100


def test_a_rejected_client_does_not_delay_the_shutdown():
    service = InMemoryService(max_connections=1)
    connect_from(service, ELSEWHERE[0])[0].connectionLost()
    connection = service.connect()
    connection.send(b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n")
    service.site.drain()
    service.clock.pump([1] * 2)
    assert connection.transport.aborted


def test_a_client_that_closes_after_its_rejection_is_not_lingered_for():
    service = InMemoryService()
    connection = service.connect()
    connection.send(b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n")
    assert not connection.transport.disconnecting
    connection.channel.readConnectionLost()
    assert connection.transport.disconnecting


@pytest.mark.parametrize("is_sending", [False, True])
def test_a_rejected_client_that_does_not_close_is_reset_only_while_it_sends(is_sending):
    service = InMemoryService()
    link = Link(service.site, service.clock)
    link.send(b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n")
    for _ in range(31):
        # Its system has received the answer, which the client may not have read yet.
        link.socket.unread.clear()
        link.send(b"x" if is_sending and not link.is_lost else b"")
        link.advance(1)
    assert link.is_over
    assert link.is_lost
    assert link.socket.is_reset is is_sending


def test_further_bytes_of_a_client_do_not_prolong_a_connection_that_ends():
    service = InMemoryService(broker=PromptBroker(), send_timeout_s=10)
    connection = service.connect()
    connection.transport.loseConnection = lambda: None
    connection.send(request_bytes("GET", headers=[(b"Connection", b"close")]))
    for _ in range(12):
        service.clock.advance(1)
        connection.send(b"x")
    assert connection.transport.aborted


@given(
    descriptors=st.integers(1, 20_000),
    most=st.integers(1, 20_000),
    for_admin=st.sampled_from([0, 32]),
)
def test_limits_within_descriptors_are_never_over_them_and_never_above_what_was_asked_for(
    descriptors, most, for_admin
):
    asked = Limits(max_connections=most, kept_for_admin=for_admin)
    limits = asked.within(descriptors)
    assert limits.descriptors <= max(descriptors, 4)
    assert limits.kept_for_admin <= for_admin
    assert limits.for_admin().max_connections == limits.kept_for_admin >= min(for_admin, 1)
    assert limits.for_admin().descriptors == limits.kept_for_admin
    assert limits.max_connections <= asked.max_connections
    assert limits.kept_for_loopback <= asked.kept_for_loopback
    assert min(limits.max_connections, limits.kept_for_loopback, limits.max_rejected) >= 1
    if asked.descriptors <= descriptors:
        assert limits == asked


@pytest.fixture
def lowest_free():
    """The number that the next file gets that the process opens."""
    descriptor = os.dup(0)
    os.close(descriptor)
    return descriptor


def test_without_descriptors_connections_are_closed_at_once_and_counted(lowest_free):
    closed = (
        "Closed 1 connection(s) without an answer: "
        "the process has reached its limit of open files (ulimit -n)."
    )
    for limit, is_taken in ((lowest_free + 1, False), (2 * lowest_free + 100, True)):
        server = HTTPServer(
            lambda request: Response(HTTPStatus.OK),
            reject=problem_response,
            response_to=response_to_failure,
            reactor=Clock(),
            descriptors=Descriptors(limit),
        )
        with logged_lines() as lines:
            transports = [MemoryTransport() for _ in range(10)]
            for transport in transports:
                server.buildProtocol(HERE[0]).makeConnection(transport)
        assert all(transport.aborted is not is_taken for transport in transports)
        assert lines == ([] if is_taken else [closed])
        assert +server.rejections == ({} if is_taken else {"descriptors": 10})


def test_connections_that_are_rejected_for_another_reason_are_logged_at_once():
    class ShortFromTheSecondOn(Descriptors):
        asked = 0

        def are_short(self):
            self.asked += 1
            return self.asked > 1

    server = HTTPServer(
        lambda request: Response(HTTPStatus.OK),
        reject=problem_response,
        response_to=response_to_failure,
        reactor=Clock(),
        limits=Limits(max_connections=0, kept_for_loopback=0),
        descriptors=ShortFromTheSecondOn(1000),
    )
    with logged_lines() as lines:
        for _ in range(3):
            server.buildProtocol(HERE[0]).makeConnection(MemoryTransport())
    assert [line.split(" connection")[0] for line in lines] == ["Rejected 1", "Closed 1"]


def test_where_the_own_limit_may_not_be_raised_there_are_fewer_connections(monkeypatch):
    def reject(*arguments):
        raise PermissionError

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1000, 100_000))
    monkeypatch.setattr(resource, "setrlimit", reject)
    assert Descriptors.of_process(for_connections=10_288).for_connections == 872


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1000, 100_000, 10_416),
        (1000, resource.RLIM_INFINITY, 10_416),
        (1000, 5000, 5000),
        (65536, 65536, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_own_limit_is_raised_as_far_as_is_needed_and_allowed(monkeypatch, soft, hard, expected):
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: raised.append(limits))
    descriptors = Descriptors.of_process(for_connections=10_288)
    assert raised == ([] if expected is None else [(expected, hard)])
    assert descriptors.for_connections >= min(10_288, (expected or 100_000) - 128)


def test_a_fault_in_holding_one_connection_to_its_limits_keeps_no_other_from_it(
    monkeypatch, no_failure_is_lost
):
    service = InMemoryService(header_timeout_s=1)
    connections = [service.connect() for _ in range(3)]
    faulty = connections[1].channel
    sweep = type(faulty).sweep
    monkeypatch.setattr(
        type(faulty), "sweep", lambda each, now_s: 1 / 0 if each is faulty else sweep(each, now_s)
    )
    for connection in connections:
        connection.send(b"GET / HTTP/1.1\r\n")
    service.clock.pump([0.5] * 8)
    assert [connection.sent[:12] for connection in connections] == [b"HTTP/1.1 408", b"", b"HTTP/1.1 408"]
    assert connections[1].transport.aborted
    assert {failure.type for failure in no_failure_is_lost} == {ZeroDivisionError}
    no_failure_is_lost.clear()
