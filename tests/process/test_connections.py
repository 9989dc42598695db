"""What only real sockets can show."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from tests.support.process import (
    DEADLINE_S,
    wait_for_readings,
)


def test_a_client_that_closes_its_side_after_its_request_is_answered(start):
    service = start()
    url = urlsplit(service.url)
    wait_for_readings(service, b"[]")
    body = b'{"topic":"t","content":"c"}'
    post = (
        b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    for request in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", post % len(body) + body):
        with socket.create_connection((url.hostname, url.port), timeout=DEADLINE_S) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            received = b""
            while data := client.recv(65536):
                received += data
        assert received.startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_sends_too_much_can_read_why_while_it_still_sends(start):
    url = urlsplit(start(options=["--max-body", "1000"]).url)
    with socket.create_connection((url.hostname, url.port), timeout=DEADLINE_S) as client:
        client.sendall(
            b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(64):
            client.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        received = b""
        while data := client.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b'"detail":"The body is larger than the 1000 bytes' in received
