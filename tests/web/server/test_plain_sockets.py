"""Connections on Twisted's own transport for TCP, which is written to without asking the reactor first."""

from __future__ import annotations

import socket

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.tcp import Server
from twisted.python.failure import Failure

from tests.support.in_memory import InMemoryService, request_bytes
from tests.web.http import JSON, MESSAGE


class NoReactor:
    """Records the calls of the transport; the test calls the transport instead of a reactor."""

    def __init__(self):
        self.clock = Clock()
        self.callLater = self.clock.callLater
        self.readers = set()
        self.writers = set()
        self.addReader, self.removeReader = self.readers.add, self.readers.discard
        self.addWriter, self.removeWriter = self.writers.add, self.writers.discard


class Socket:
    """A connection over the loopback interface to a service."""

    def __init__(self, service):
        with socket.create_server(("127.0.0.1", 0)) as port:
            self.client = socket.create_connection(port.getsockname(), timeout=5)
            accepted, address = port.accept()
        accepted.setblocking(False)  # noqa: FBT003 -- it is the method of a socket
        self.reactor = NoReactor()
        protocol = service.site.buildProtocol(IPv4Address("TCP", *address))
        self.transport = Server(accepted, protocol, address, None, 0, self.reactor)
        protocol.makeConnection(self.transport)

    def read(self):
        return self.client.recv(1 << 20)

    def turn(self):
        """Write the waiting bytes, and close the connection if the transport asks for it."""
        while self.reactor.writers:
            reason = self.transport.doWrite()
            if reason is not None:
                self.transport.connectionLost(Failure(reason))

    def finish(self):
        """Let the client close its side, and the server take note of it."""
        self.client.shutdown(socket.SHUT_WR)
        while (reason := self.transport.doRead()) is None:
            pass
        self.transport.readConnectionLost(Failure(reason))
        self.reactor.clock.advance(0)


@pytest.fixture
def connect():
    """Opens such connections, and closes both of their ends when the test is over."""
    opened = []

    def connect(service):
        opened.append(Socket(service))
        return opened[-1]

    yield connect
    for each in opened:
        each.client.close()
        each.transport.connectionLost(Failure(ConnectionDone()))


EXPECTING = request_bytes(
    "POST",
    "/messages",
    [*JSON, (b"Expect", b"100-continue"), (b"Content-Length", b"%d" % len(MESSAGE))],
)


def test_the_word_to_go_on_is_never_overtaken_by_the_answer(service, connect):
    # The reactor reads from a socket before it writes to it, and a client need not wait for that word.
    connection = connect(service)
    connection.client.sendall(EXPECTING)
    connection.transport.doRead()
    connection.client.sendall(MESSAGE)
    connection.transport.doRead()
    connection.turn()
    lines = [line for line in connection.read().split(b"\r\n") if line.startswith(b"HTTP/")]
    assert lines == [b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OK"]


def test_an_answer_is_not_lost_when_the_connection_ends_though_the_client_sends_on(connect):
    service = InMemoryService()
    connection = connect(service)
    connection.client.sendall(request_bytes("POST", "/messages", JSON, MESSAGE))
    connection.transport.doRead()
    # If a socket is closed before all is read, the system resets the connection.
    connection.client.sendall(request_bytes("POST", "/messages", JSON, MESSAGE))
    connection.transport.doRead()
    connection.client.sendall(request_bytes("POST", "/messages", JSON, MESSAGE))
    service.site.drain()
    service.broker.acknowledge()
    connection.turn()
    received = b""
    while data := connection.read():
        received += data
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert b"Connection: close" in received
    assert len(service.broker.records) == 1
    connection.finish()
    assert connection.transport.disconnected


def test_a_rejected_client_that_has_read_why_is_not_waited_for(service, connect):
    connection = connect(service)
    connection.client.sendall(b"hello\r\n\r\n")
    connection.transport.doRead()
    connection.turn()
    assert connection.read().startswith(b"HTTP/1.1 400 ")
    assert connection.read() == b""
    assert not connection.transport.disconnected
    connection.finish()
    assert connection.transport.disconnected
