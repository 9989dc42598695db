"""What only real sockets can show."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing
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
    post = b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    post += b"Content-Length: %d\r\n\r\n"
    for request in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", post % len(body) + body):
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
            b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(64):
            client.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        received = b""
        while data := client.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b'"detail":"The body is larger than 1000 bytes' in received


def test_a_name_of_another_site_that_points_to_the_service_gets_nothing(start):
    def status(service, host, target="/live"):
        connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=DEADLINE_S)
        with closing(connection):
            connection.request("GET", target, headers={"Host": host})
            response = connection.getresponse()
            response.read()
            return response.status

    service = start(options=["--allow-host", "gate.example.org"])
    hosts = {"evil.example": 421, "gate.example.org": 200, "localhost:1": 200, "127.0.0.1": 200, "[::1]": 200}
    assert {host: status(service, host) for host in hosts} == hosts
    assert status(start(options=["--open-to-everybody"]), "evil.example") == 200
