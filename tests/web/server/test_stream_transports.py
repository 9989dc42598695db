"""Streams on real sockets: TCP, TLS and Unix, with a client that does not read for a while."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from sampleapp.service.listener import Listener
from tests.support.certificates import Authority
from tests.support.streams import GET, StreamingServer, body_of, unchunked

DEADLINE_S = 30
EVENT = b"data: %b\n\n" % (b"x" * 10_000)


@pytest.fixture(params=["tcp", "tls", "unix"])
def endpoint(request, tmp_path):
    """The description of an endpoint, and a function that connects to it."""
    if request.param == "unix":
        path = str(tmp_path / "socket")

        def connect(_):
            client = socket.socket(socket.AF_UNIX)
            client.connect(path)
            return client

        return f"unix:{path}", connect
    if request.param == "tcp":
        return "tcp:0:interface=127.0.0.1", lambda url: socket.create_connection(("127.0.0.1", port_of(url)))
    authority = Authority(tmp_path)
    files = authority.server()
    context = ssl.create_default_context(cafile=authority.certificate)
    return (
        f"https:0:interface=127.0.0.1:privateKey={files.key}:certKey={files.certificate}",
        lambda url: context.wrap_socket(
            socket.create_connection(("127.0.0.1", port_of(url))), server_hostname="localhost"
        ),
    )


def port_of(url):
    return int(url.rstrip("/").rpartition(":")[2])


async def until(condition):
    for _ in range(100 * DEADLINE_S):
        if condition():
            return
        await deferLater(reactor, 0.01)
    raise AssertionError("it does not come to that")


def read_to_the_last_chunk(client):
    received = b""
    while not received.endswith(b"\r\n0\r\n\r\n"):
        data = client.recv(1 << 20)
        assert data, "the connection ended in the middle"
        received += data
    return received


@pytest_twisted.ensureDeferred
async def test_a_client_that_reads_late_gets_everything_and_may_go_on(endpoint):
    description, connect = endpoint
    server = StreamingServer(reactor=reactor)
    listener = Listener.from_description(description, reactor=reactor)
    listener.listen(server.site, on_certificate_rejected=lambda: None)
    try:
        client = await deferToThread(connect, listener.url)
        with closing(client):
            client.settimeout(DEADLINE_S)
            for _ in range(2):
                client.sendall(GET)
                await until(lambda: server.sources and server.sources[-1].calls[-1:] == ["begin"])
                source = server.sources[-1]
                count = 1
                # The systems' own buffers take several megabytes of a TCP connection.
                while source.write(EVENT):
                    assert count < 5000
                    count += 1
                source.at_resumed = lambda source: (source.write(EVENT), source.sink.finish("age"))
                received = await deferToThread(read_to_the_last_chunk, client)
                assert unchunked(body_of(received)) == (EVENT * (count + 1), b"")
                assert source.calls == ["begin", "resumed", "closed: age"]
            client.sendall(GET)
            await until(lambda: len(server.sources) == 3 and server.sources[2].calls == ["begin"])
        await until(lambda: server.sources[2].is_closed)
        assert server.reasons == ["age", "age", "client"]
    finally:
        await listener.stop()
        await server.site.drain()
