"""TLS handshakes that do not come to an end: how long, and how many."""

from __future__ import annotations

import ssl

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from sampleapp.web import Limits
from tests.support.tls_in_memory import Client, Server, client_context

HEADER_TIMEOUT_S = 10
LEAST = 32
"""The number of handshakes at once that each server takes."""
BEGUN = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xf0\x03\x03" + bytes(16_000)
"""The beginning of a ClientHello that says that it has 16 KiB."""


@pytest.fixture(params=["https", "ssl"])
def plain(request, files):
    """Starts a server that does not ask for certificates."""

    def plain(*, limits=None):
        description = f"{request.param}:8443:privateKey={files.key}:certKey={files.certificate}"
        return Server(description, limits=limits)

    return plain


def begin(server, data=BEGUN):
    """Begin a handshake, and never end it."""
    protocol, transport = server.accept()
    if data:
        protocol.dataReceived(data)
    return protocol, transport


def pass_time(server, seconds):
    for _ in range(seconds):
        server.reactor.advance(1)


def settle(connections):
    """Let connections end that the server has cut; return the others."""
    cut = [each for each in connections if each[1].aborted]
    for protocol, _ in cut:
        protocol.connectionLost(Failure(ConnectionDone()))
    return [each for each in connections if each not in cut]


@pytest.mark.parametrize("data", [b"", b"\x16", BEGUN[:100], BEGUN])
def test_a_handshake_has_the_time_of_a_header_however_much_of_it_has_come(plain, data):
    server = plain()
    connection = begin(server, data)
    assert server.site.connections_by_state()["handshake"] == 1
    pass_time(server, HEADER_TIMEOUT_S - 1)
    assert not connection[1].aborted
    for _ in range(3):
        pass_time(server, 1)
        left = settle([connection] if server.site.connections else [])
    assert left == []
    assert server.site.rejections["header-timeout"] == 1
    assert server.site.connections == 0


def test_bytes_that_come_now_and_then_do_not_prolong_a_handshake(plain):
    server = plain()
    connection = begin(server, b"")
    for position in range(HEADER_TIMEOUT_S + 2):
        connection[0].dataReceived(BEGUN[position : position + 1])
        pass_time(server, 1)
    assert connection[1].aborted
    settle([connection])


def test_a_connection_whose_handshake_is_complete_has_the_time_of_an_idle_one(plain, authority):
    server = plain()
    client = Client(server, client_context(authority))
    assert server.site.connections_by_state()["idle"] == 1
    pass_time(server, 3 * HEADER_TIMEOUT_S)
    assert client.ask().startswith(b"HTTP/1.1 200 OK")
    client.close()
    assert not server.site.rejections["header-timeout"]


def test_of_too_many_handshakes_the_one_that_has_taken_longest_is_cut(plain, authority):
    server = plain(limits=Limits(max_connections=100))
    begun = [begin(server) for _ in range(LEAST)]
    assert server.site.rejections["tls-handshakes"] == 0
    more = [begin(server) for _ in range(5)]
    assert [each[1].aborted for each in begun + more] == [True] * 5 + [False] * LEAST
    assert server.site.rejections["tls-handshakes"] == 5
    left = settle(begun + more)
    # Who comes now is served, and connections that are open stay so.
    client = Client(server, client_context(authority))
    left = settle(left)
    assert len(left) == LEAST - 1
    others = [begin(server) for _ in range(LEAST)]
    assert client.ask().startswith(b"HTTP/1.1 200 OK")
    client.close()
    pass_time(server, HEADER_TIMEOUT_S + 2)
    assert settle(left + others) == []
    assert server.site.connections == 0


def test_the_number_of_handshakes_is_a_tenth_of_that_of_connections():
    assert Limits().max_handshakes == 1000
    assert Limits(max_connections=10).max_handshakes == LEAST
    assert Limits().within(1500).max_handshakes < 150
    assert Limits(kept_for_admin=32).for_admin().max_handshakes == LEAST


def test_a_handshake_that_has_failed_is_over(plain, authority):
    server = plain()
    context = client_context(authority)
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLError):
        Client(server, context)
    pass_time(server, HEADER_TIMEOUT_S + 2)
    assert server.site.connections_by_state()["handshake"] <= 1


def test_handshakes_do_not_hold_up_the_end_of_the_service(plain):
    server = plain()
    connections = [begin(server) for _ in range(3)]
    drained = []
    server.site.drain().addCallback(drained.append)
    pass_time(server, 1)
    assert settle(connections) == []
    assert drained == [None]
