"""The service and its clients with TLS."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from contextlib import ExitStack, closing, suppress
from urllib.parse import urlsplit

import pytest

from tests.support.command import sampleapp
from tests.support.process import (
    DEADLINE_S,
    connect,
    publish,
)


@pytest.mark.parametrize("scheme", [pytest.param("ssl", marks=pytest.mark.slow), "https"])
def test_tls_works_beside_plain_http(start, certificate, scheme):
    key_file, certificate_file = certificate
    tls = f"{scheme}:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(options=["--listen", tls, "--max-body", "1000"])
    secure = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1))
    context = ssl.create_default_context(cafile=certificate_file)
    context.set_alpn_protocols(["h2", "http/1.1"])

    def connect_securely():
        return http.client.HTTPSConnection("localhost", secure.port, timeout=DEADLINE_S, context=context)

    with closing(connect_securely()) as connection, closing(connect(service)) as plain:
        assert publish(connection, "1", topic="readings", key="a") == (
            200,
            {"topic": "readings", "partition": 0, "offset": 0},
        )
        assert publish(plain, "2", topic="readings", key="a")[1]["offset"] == 1
    with closing(connect_securely()) as connection:
        status, problem = publish(connection, "x" * 1000)
        assert (status, problem["status"]) == (413, 413)
    with closing(connect_securely()) as idle:
        assert publish(idle, "3")[0] == 200
        # The limit for bodies would not hold in HTTP/2.
        assert idle.sock.selected_alpn_protocol() == "http/1.1"
        # A client that does not answer the end of TLS is not waited for.
        assert service.stop() == -15
    assert "still running" not in service.output
    # Nobody who reads the log knows the names of classes.
    assert "HTTPServer" not in service.output


def test_a_connection_that_the_service_ends_is_closed_as_soon_as_its_client_has_the_answer(
    start, certificate
):
    key_file, certificate_file = certificate
    tls = f"https:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(options=["--listen", tls, "--send-timeout", "3600"])
    port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port
    context = ssl.create_default_context(cafile=certificate_file)
    for fields, status in [("Host: localhost\r\nConnection: close", 200), ("Host: a\r\nHost: b", 400)]:
        with open_securely(port, context) as connection:
            connection.sendall(f"GET /live HTTP/1.1\r\n{fields}\r\n\r\n".encode())
            assert until_the_end(connection).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "version",
    [None, pytest.param(ssl.TLSVersion.TLSv1_2, marks=pytest.mark.slow), ssl.TLSVersion.TLSv1_3],
)
def test_a_client_whose_body_is_rejected_gets_the_whole_answer_and_a_clean_end(start, certificate, version):
    key_file, certificate_file = certificate
    tls = f"https:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(options=["--listen", tls])
    port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port
    context = ssl.create_default_context(cafile=certificate_file)
    if version is None:
        opened = socket.create_connection(("127.0.0.1", urlsplit(service.url).port), timeout=DEADLINE_S)
    else:
        context.minimum_version = context.maximum_version = version
        opened = open_securely(port, context)
    with opened as connection:
        fields = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 20000000\r\n\r\n"
        connection.sendall(b"POST /messages HTTP/1.1\r\n" + fields)
        # More than the buffers of the system take.
        for _ in range(200):
            connection.sendall(bytes(100_000))
        answer = until_the_end(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert f"\r\nContent-Length: {len(body)}\r\n".encode() in head


def open_securely(port, context):
    """A connection, on which an end of TCP without the end of TLS is an error."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    return context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)


def until_the_end(connection):
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_hsts_is_sent_over_tls_alone_and_only_if_it_is_wanted(start, certificate):
    key_file, certificate_file = certificate
    tls = f"https:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    context = ssl.create_default_context(cafile=certificate_file)

    def fields(service):
        port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port
        secure = http.client.HTTPSConnection("localhost", port, timeout=DEADLINE_S, context=context)
        for connection in (connect(service), secure):
            with closing(connection):
                connection.request("GET", "/nothing")
                response = connection.getresponse()
                response.read()
                yield (
                    response.getheader("Strict-Transport-Security"),
                    response.getheader("X-Content-Type-Options"),
                )

    assert [*fields(start(options=["--listen", tls]))] == [(None, "nosniff"), ("max-age=31536000", "nosniff")]
    assert [*fields(start(options=["--listen", tls, "--no-hsts"]))] == [(None, "nosniff"), (None, "nosniff")]


def test_a_certificate_that_is_not_trusted_is_told_apart_from_an_answer_that_is_no_http(start, certificate):
    key_file, certificate_file = certificate
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(options=["--listen", tls])
    port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port
    reason = "is not signed by a trusted authority: to trust one more, name the file of its certificate"
    for host in ("localhost", "127.0.0.1"):
        _, stderr = sampleapp(service, "publish", "t", "c", url=f"https://{host}:{port}/", code=1)
        sentence = f"The certificate of https://{host}:{port}/messages {reason}"
        assert sentence in stderr
        assert "SSL_CERT_FILE" in stderr
        assert "SSL routines" not in stderr
        assert "Is the service running?" not in stderr
        assert "may have been published" not in stderr


def test_handshakes_that_are_not_completed_are_cut_and_others_are_served(start, certificate):
    key_file, certificate_file = certificate
    tls = f"https:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(options=["--listen", tls, "--header-timeout", "1", "--max-connections", "400"])
    port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port
    # The beginning of a ClientHello that says that it has 16 KiB.
    begun = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xf0\x03\x03" + bytes(16_000)
    context = ssl.create_default_context(cafile=certificate_file)
    with ExitStack() as opened:
        clients = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
            for _ in range(60)
        ]
        for client in clients:
            client.sendall(begun)
        secure = http.client.HTTPSConnection("localhost", port, timeout=DEADLINE_S, context=context)
        with closing(secure):
            assert publish(secure, "1")[0] == 200
            for client in clients:
                with suppress(ConnectionError):
                    assert client.recv(1) == b""
            # A complete handshake has no deadline of its own.
            assert publish(secure, "2")[0] == 200
    with closing(connect(service)) as plain:
        plain.request("GET", "/metrics")
        metrics = plain.getresponse().read().decode()
    counted = dict(re.findall(r'^sampleapp_refusals_total\{limit="(.*?)"\} (\d+)', metrics, re.MULTILINE))
    # 40 handshakes at once are a tenth of the connections.
    assert int(counted["tls-handshakes"]) + int(counted["header-timeout"]) == 60
    assert int(counted["tls-handshakes"]) >= 20
