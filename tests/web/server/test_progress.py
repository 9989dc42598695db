"""The client's progress in reading, as its system reports it."""

from __future__ import annotations

import socket
import sys
from contextlib import closing, suppress
from types import SimpleNamespace

import pytest

from sampleapp.web.server.writer import acknowledged, limit_unsent, unacknowledged
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")


def fill(server):
    with suppress(BlockingIOError):
        while True:
            server.send(b"x" * 16384)


def test_bytes_that_a_client_reads_are_acknowledged_however_much_is_sent_meanwhile():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server = listener.accept()[0]
        with closing(server):
            server.settimeout(0)
            transport = SimpleNamespace(socket=server)
            limit_unsent(transport)
            fill(server)
            before = acknowledged(transport)
            # Far from the megabytes that it would be otherwise.
            assert 0 < unacknowledged(transport) < 1024 * 1024

            def reads_more():
                client.recv(65536)
                fill(server)
                return acknowledged(transport) > before

            wait_until(reads_more, "the client's system acknowledges more")
            assert unacknowledged(transport) > 0


def test_for_a_unix_socket_only_unacknowledged_bytes_are_known():
    server, client = socket.socketpair()
    with closing(server), closing(client):
        transport = SimpleNamespace(socket=server)
        limit_unsent(transport)
        server.send(b"x" * 1000)
        assert acknowledged(transport) is None
        assert unacknowledged(transport) >= 1000
        client.recv(1000)
        assert unacknowledged(transport) == 0


def test_without_a_socket_nothing_is_known():
    transport = SimpleNamespace()
    limit_unsent(transport)
    assert (acknowledged(transport), unacknowledged(transport)) == (None, None)
