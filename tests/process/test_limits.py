"""Limits for each client, tested through real sockets."""

from __future__ import annotations

import http.client
import json
import resource
import select
import signal
import socket
import ssl
import sys
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest

from tests.support.live_service import TWISTD_SAMPLEAPP
from tests.support.process import (
    DEADLINE_S,
    answer_on,
    connect,
    has_read_all_of,
    locked,
    publish,
    send_message,
    wait_for_readings,
)
from tests.support.waiting import wait_until

HEAD = b"POST /messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: application/vnd.sampleApp.v2+json\r\n%b\r\n"
CLOSE = b"Connection: close\r\n"


def open_socket(service):
    url = urlsplit(service.url)
    return socket.create_connection((url.hostname, url.port), timeout=DEADLINE_S)


def until_the_end(client):
    received = b""
    while data := client.recv(65536):
        received += data
    return received


def problem_in(received):
    """The status of the only answer, and its document."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"\r\nConnection: close\r\n" in head + b"\r\n"
    return int(head[9:12]), json.loads(body)


def test_a_header_that_does_not_come_is_rejected_after_the_header_timeout(start):
    service = start(options=["--header-timeout", "0.3"])
    with open_socket(service) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        status, problem = problem_in(until_the_end(client))
    assert (status, problem["detail"]) == (408, "The header did not arrive within 0.3 seconds.")


def test_a_body_that_comes_too_slowly_is_rejected_after_the_grace(start):
    service = start(options=["--min-body-rate", "2000", "--body-grace", "0.3"])
    with open_socket(service) as client:
        client.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + b" " * 100)
        status, problem = problem_in(until_the_end(client))
    detail = "The body arrives more slowly than 2000 bytes a second, which is the minimum."
    assert (status, problem["detail"]) == (408, detail)


def test_a_connection_without_a_request_is_closed_after_the_idle_timeout_and_nothing_is_logged(start):
    service = start(options=["--idle-timeout", "0.3"])
    wait_for_readings(service, b"[]")
    service.wait_for_output("Serving 0 readings")
    before = service.output
    with open_socket(service) as new, open_socket(service) as used:
        used.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert until_the_end(used).startswith(b"HTTP/1.1 200 ")
        assert until_the_end(new) == b""
    assert service.output == before


class Reader:
    """A client that asks for the readings, and reads of them what it is told to."""

    def __init__(self, raw, *, over=None, fields=b""):
        raw.settimeout(DEADLINE_S)
        self.socket = raw if over is None else over(raw)
        self.received = b""
        self.socket.sendall(GET % fields)

    def read(self, size):
        data = self.socket.recv(size)
        self.received += data
        return data

    def is_cut(self):
        poll = select.poll()
        poll.register(self.socket, 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))

    def body(self):
        """Read the rest of the answer."""
        while b"\r\n\r\n" not in self.received:
            assert self.read(2048)
        head, _, _ = self.received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(self.received) < len(head) + 4 + length:
            assert self.read(65536), "cut in the middle"
        return self.received[len(head) + 4 :]


@pytest.fixture
def reached(start, tmp_path, certificate):
    """A service with a short send timeout, and ways to connect to it: a function for each kind of socket."""
    key_file, certificate_file = certificate
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(
        broker="memory:",
        options=["--send-timeout", "1", "--listen", tls, "--listen", f"unix:{tmp_path / 'http.sock'}"],
    )
    port = urlsplit(service.url).port
    tls_port = urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port
    context = ssl.create_default_context(cafile=certificate_file)

    def tcp(port, *, buffer=8192):
        raw = socket.socket()
        # So that the system takes little for a client that does not read, and soon shows what it reads.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        raw.connect(("127.0.0.1", port))
        return raw

    def unix():
        raw = socket.socket(socket.AF_UNIX)
        raw.connect(str(tmp_path / "http.sock"))
        return raw

    return service, {
        "TCP": lambda **how: Reader(tcp(port), **how),
        "wide TCP": lambda **how: Reader(tcp(port, buffer=65536), **how),
        "TLS": lambda **how: Reader(
            tcp(tls_port), over=lambda raw: context.wrap_socket(raw, server_hostname="localhost"), **how
        ),
        "Unix": lambda **how: Reader(unix(), **how),
    }


def test_a_client_that_reads_nothing_is_cut_after_the_send_timeout_and_one_that_reads_slowly_is_not(reached):
    service, ways = reached
    stuck = {}

    def ask(name, way, fields=b""):
        stuck[name] = ways[way](fields=fields)

    with ExitStack() as stack, closing(connect(service)) as connection:
        known = {}

        def add_readings(count):
            for n in range(len(known), count):
                # Long ids make few readings a large answer.
                key = f"{n:02000}"
                assert publish(connection, f"{n}.5", topic="readings", key=key)[0] == 200
                known[key] = n + 0.5

        # Such answers fit into the buffers of the systems as a whole.
        add_readings(25)
        ask("small", "TCP")
        ask("small, the last", "TCP", CLOSE)
        add_readings(90)
        ask("middle", "wide TCP")
        ask("middle, the last", "wide TCP", CLOSE)
        # And this one does not.
        add_readings(600)
        slow = {}
        for way in ("TCP", "TLS", "Unix"):
            ask(way, way)
            ask(f"{way}, the last", way, CLOSE)
            slow[way] = ways[way]()
        for reader in (*stuck.values(), *slow.values()):
            stack.enter_context(closing(reader.socket))
        # What is closed with so little to be read is left to the system.
        del stuck["small, the last"]

        def all_are_cut():
            for way, reader in slow.items():
                # The system tells of Unix sockets only when a client has read some 32 KiB.
                reader.read(2048 if way == "Unix" else 512)
            return all(reader.is_cut() for reader in stuck.values())

        wait_until(all_are_cut, "the clients that read nothing are cut")
        for way, reader in slow.items():
            assert len(reader.received) < 1_000_000, way
            readings = {each["id"]: each["value"] for each in json.loads(reader.body())}
            assert readings == known, way


def test_beyond_the_greatest_number_of_connections_a_client_is_told_so(start):
    service = start(options=["--max-connections", "2"])
    wait_for_readings(service, b"[]")
    wait_until(lambda: has_read_all_of(service, 0), "that connection is gone")
    with ExitStack() as stack:
        # 32 more for clients on this machine, as all clients of a test are.
        clients = [stack.enter_context(closing(connect(service))) for _ in range(2 + 32)]

        def is_answered(client):
            client.request("GET", "/")
            with client.getresponse() as response:
                return response.status == 200 and response.read() == b"[]"

        assert all(is_answered(client) for client in clients)
        with open_socket(service) as surplus:
            answer = until_the_end(surplus)
        status, problem = problem_in(answer)
        assert status == 503
        assert problem["type"] == "urn:sampleapp:problem:too-many-connections"
        assert b"\r\nRetry-After: 1\r\n" in answer
        service.wait_for_output(r"Rejected 1 connection\(s\): 2 are open")
        assert all(is_answered(client) for client in clients)
        clients.pop().close()
        wait_until(lambda: has_room(service), "there is room again")


def has_room(service):
    """Whether one more connection is taken."""
    with closing(connect(service)) as client:
        try:
            client.request("GET", "/")
            return client.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def test_beyond_the_greatest_number_of_waiting_requests_a_client_is_told_so_before_its_body(start, tmp_path):
    service = start(options=["--max-waiting", "2"])
    wait_for_readings(service, b"[]")
    with ExitStack() as stack:
        waiting = [stack.enter_context(closing(connect(service))) for _ in range(2)]
        with locked(tmp_path):
            for number, client in enumerate(waiting):
                send_message(client, str(number))
            wait_until(lambda: has_read_all_of(service, 2), "the service has both requests")
            with open_socket(service) as surplus:
                surplus.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 27\r\n\r\n")
                status, problem = problem_in(until_the_end(surplus))
            assert (status, problem["type"]) == (503, "urn:sampleapp:problem:too-many-requests-waiting")
            # Who reads waits for nothing.
            with closing(connect(service)) as reader:
                reader.request("GET", "/")
                assert reader.getresponse().status == 200
        assert [answer_on(client)[0] for client in waiting] == [200, 200]
        with closing(connect(service)) as client:
            assert publish(client, "2")[0] == 200


def with_descriptors(soft, hard):
    """A command that starts the service with such limits."""
    code = (
        "import os, resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); os.execv(sys.argv[1], sys.argv[1:])"
    )
    return (sys.executable, "-c", code, *TWISTD_SAMPLEAPP)


def test_the_service_raises_its_own_limit_of_open_files_as_far_as_it_needs(start):
    options = ["--max-connections", "100"]
    service = start(command=with_descriptors(100, 600), options=options)
    soft, hard = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    # 100, 32 for clients on this machine, 256 that are rejected with a response, 128 for everything else.
    assert (soft, hard) == (516, 600)
    assert "open at once" not in service.output


def logged_since(service, before):
    """Its lines since then; but for one of the start, which may come late."""
    return [line for line in service.output.removeprefix(before).splitlines() if "/docs" not in line]


def test_with_few_descriptors_fewer_connections_are_taken_and_the_others_cost_nothing(start):
    service = start(command=with_descriptors(100, 100))
    assert "At most 38 connections can be open, not 10000 (--max-connections): the process" in service.output
    before = service.output
    with closing(connect(service)) as first:
        assert publish(first, "1")[0] == 200
        with ExitStack() as stack:
            clients = [stack.enter_context(open_unless_closed_already(service)) for _ in range(200)]
            answers = [wait_for_readable(client) for client in clients[44:]]
            # The last slots are for those that are told, the others are only closed.
            assert {answer[:12] for answer in answers} == {b"HTTP/1.1 503", b""}
            assert publish(first, "2")[0] == 200
        wait_until(lambda: has_room(service), "there is room again")
    logged = logged_since(service, before)
    assert [line for line in logged if "EMFILE" in line or "accept" in line] == []
    assert len(logged) <= 2


def test_a_burst_over_tls_costs_no_more_descriptors_than_there_are(start, certificate):
    key_file, certificate_file = certificate
    tls = f"ssl:0:interface=127.0.0.1:privateKey={key_file}:certKey={certificate_file}"
    service = start(command=with_descriptors(64, 64), options=["--listen", tls])
    wait_for_readings(service, b"[]")
    address = ("127.0.0.1", urlsplit(service.wait_for_output(r"Listening at (https://\S+)").group(1)).port)
    context = ssl.create_default_context(cafile=certificate_file)
    service.wait_for_output("Serving 0 readings")
    before = service.output

    def is_served():
        try:
            # Wrapped before it connects, because wrapping a connection that was reset leaks its socket:
            # https://github.com/python/cpython/issues/113280
            with context.wrap_socket(socket.socket(), server_hostname="localhost") as client:
                client.settimeout(DEADLINE_S)
                client.connect(address)
                client.sendall(GET % CLOSE)
                return until_the_end(client).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False

    assert is_served()
    with ExitStack() as stack:
        # So that all of them are there when it accepts again.
        service.process.send_signal(signal.SIGSTOP)
        try:
            clients = [
                stack.enter_context(socket.create_connection(address, timeout=DEADLINE_S)) for _ in range(200)
            ]
        finally:
            service.process.send_signal(signal.SIGCONT)
        assert {wait_for_readable(client) for client in clients[44:]} == {b""}
    wait_until(is_served, "there is room again")
    logged = logged_since(service, before)
    assert [line for line in logged if "EMFILE" in line or "accept" in line] == []
    assert len(logged) <= 2


def open_unless_closed_already(service):
    try:
        return open_socket(service)
    except ConnectionResetError:
        # It was closed before this process has seen it open. This one reads as closed, too.
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours


def wait_for_readable(client):
    try:
        return client.recv(65536)
    except ConnectionResetError:
        return b""
