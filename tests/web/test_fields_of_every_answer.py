"""The header fields of every answer, from all layers of the service."""

from __future__ import annotations

import pytest
from twisted.web.server import Site

from sampleapp.service.assembly import build
from sampleapp.service.config import Config
from sampleapp.web import Limits
from tests.support.certificates import Authority
from tests.support.in_memory import Connection, InMemoryService, PromptBroker, request_bytes
from tests.support.threads import ReactorWithThreads
from tests.support.tls_in_memory import Client, Server, client_context
from tests.web.http import JSON, MESSAGE

ALLOWED = "https://example.org"
PREFLIGHT = [(b"Origin", ALLOWED.encode()), (b"Access-Control-Request-Method", b"POST")]
CHUNKED = [*JSON, (b"Transfer-Encoding", b"chunked")]


def no_sniffing(sent):
    """Return the number of times that each answer has the field."""
    heads = [part.partition(b"\r\n\r\n")[0] for part in sent.split(b"HTTP/1.1 ")[1:]]
    return [head.count(b"\r\nX-Content-Type-Options: nosniff") for head in heads if not head.startswith(b"1")]


@pytest.fixture
def service():
    return InMemoryService(
        broker=PromptBroker(),
        allowed_origins=[ALLOWED],
        max_body=1000,
        max_connections=1,
        kept_for_loopback=0,
    )


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request_bytes("GET", "/"), 200),
        (request_bytes("HEAD", "/"), 200),
        (request_bytes("GET", "/live"), 200),
        (request_bytes("GET", "/docs"), 200),
        (request_bytes("GET", "/openapi.json"), 200),
        (request_bytes("GET", "/", [(b"If-None-Match", b"*")]), 304),
        (request_bytes("POST", "/messages", JSON, MESSAGE), 200),
        (request_bytes("OPTIONS", "/messages"), 204),
        (request_bytes("OPTIONS", "*"), 204),
        (request_bytes("OPTIONS", "/messages", PREFLIGHT), 204),
        (request_bytes("GET", "/nothing"), 404),
        (request_bytes("PUT", "/"), 405),
        (request_bytes("POST", "/messages", JSON, b"x" * 1001), 413),
        (request_bytes("POST", "/messages", CHUNKED) + b"fffffff\r\n", 413),
        (request_bytes("POST", "/messages", JSON, b"{"), 400),
        (request_bytes("GET", "/" + "x" * 20_000), 431),
        (b"PING\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
    ],
)
def test_no_answer_may_be_taken_for_something_else_than_it_says(service, data, status):
    connection = service.connect()
    connection.send(data)
    assert connection.sent.startswith(b"HTTP/1.1 %d " % status)
    assert no_sniffing(connection.sent) == [1]


def test_an_answer_to_a_client_that_is_too_slow_may_not_either(service):
    connection = service.connect()
    connection.send(b"GET / HT")
    service.clock.pump([1] * 12)
    assert connection.sent.startswith(b"HTTP/1.1 408 ")
    assert no_sniffing(connection.sent) == [1]


def test_an_answer_to_a_client_that_is_turned_away_may_not_either(service):
    service.connect()
    connection = service.connect()
    assert connection.sent.startswith(b"HTTP/1.1 503 ")
    assert no_sniffing(connection.sent) == [1]


def test_answers_for_operators_may_not_either():
    reactor = ReactorWithThreads()
    config = Config(
        broker="memory:", is_open_to_everybody=True, admin="tcp:9090", limits=Limits(kept_for_admin=9)
    )
    build(config, reactor=reactor).privilegedStartService()
    assert len(reactor.tcpServers) == 2
    for _, server, *_ in reactor.tcpServers:
        for target in ("/live", "/ready", "/metrics", "/openapi.json", "/nothing"):
            connection = Connection(server)
            connection.send(request_bytes("GET", target))
            reactor.pump([0] * 50)
            if reactor.threads.waiting:
                reactor.threads.do_one()
            assert no_sniffing(connection.sent) == [1]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request_bytes("GET", "/"), 200),
        (request_bytes("GET", "/", [(b"If-None-Match", b"*")]), 304),
        (request_bytes("POST", "/messages", JSON, MESSAGE), 200),
        (request_bytes("POST", "/messages", JSON, b"{"), 400),
        (request_bytes("OPTIONS", "/messages"), 204),
        (request_bytes("PUT", "/messages"), 405),
        (request_bytes("GET", "/nothing"), 404),
        (request_bytes("GET", "/%ff"), 400),
    ],
)
def test_answers_inside_a_site_of_twisted_web_may_not_either(service, data, status):
    connection = Connection(Site(service.gateway.app.resource(), reactor=service.clock))
    connection.send(data)
    assert connection.sent.startswith(b"HTTP/1.1 %d " % status)
    assert no_sniffing(connection.sent) == [1]


@pytest.fixture
def ask(tmp_path):
    """Send data with TLS to a server with these options, and return the answer."""
    authority = Authority(tmp_path)
    server = authority.server()

    def ask(scheme, data, **options):
        description = f"{scheme}:8443:privateKey={server.key}:certKey={server.certificate}"
        return Client(Server(description, **options), client_context(authority)).ask(data)

    return ask


@pytest.mark.parametrize("scheme", ["https", "ssl"])
@pytest.mark.parametrize(
    ("data", "status"),
    [(request_bytes("GET", "/"), 200), (b"PING\r\n", 400), (b"GET / HTTP/1.1\r\n\r\n", 400)],
)
def test_browsers_that_come_with_tls_are_told_to_come_with_nothing_else(ask, scheme, data, status):
    answer = ask(scheme, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"\r\nStrict-Transport-Security: max-age=31536000\r\n") == 1
    assert no_sniffing(answer) == [1]


def test_they_are_not_told_if_the_operator_does_not_want_it(ask):
    answer = ask("https", request_bytes("GET", "/"), has_hsts=False)
    assert b"strict-transport-security" not in answer.lower()
    assert no_sniffing(answer) == [1]


def test_without_tls_nobody_is_told_of_it(service):
    assert b"strict-transport-security" not in service.request("GET", "/").headers
