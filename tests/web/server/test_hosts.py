"""Requests for hosts that are not this service, where no credentials are needed (DNS rebinding)."""

from __future__ import annotations

import json
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from twisted.internet.address import IPv4Address, UNIXAddress

from sampleapp.service.assembly import build
from sampleapp.service.config import Config
from sampleapp.web import Limits
from sampleapp.web.server import HostRule, NotAHost, check_host_name
from tests.support.callers import caller
from tests.support.in_memory import InMemoryService, MemoryTransport, PromptBroker
from tests.support.threads import ReactorWithThreads
from tests.web.http import MESSAGE, assert_problem

OWN = [
    "localhost",
    "LOCALHOST",
    "localhost.",
    "a.localhost",
    "a.b.Localhost.",
    "127.0.0.1",
    "127.9.8.7",
    "[::1]",
]
OWN += ["[0:0::1]", "[::ffff:127.0.0.1]", "[::FFFF:7f00:1]"]
FOREIGN = [
    "evil.example",
    "localhost.evil.example",
    "notlocalhost",
    "localhost.localdomain",
    "1.localhost.1",
    "",
]
FOREIGN += [
    "128.0.0.1",
    "10.0.0.1",
    "0.0.0.0",
    "127.0.0.1.evil.example",
    "[::]",
    "[::2]",
    "[::ffff:10.0.0.1]",
    "."[:0],
]
PORTS = ["", ":", ":80", ":8080"]


def post(
    host, *, target=b"/messages", version=b"1.1", method=b"POST", fields=b"Content-Type: application/json\r\n"
):
    named = b"" if host is None else b"Host: %b\r\n" % host.encode()
    return b"%b %b HTTP/%b\r\n%b%bContent-Length: %d\r\n\r\n%b" % (
        *(method, target, version, named, fields),
        *(len(MESSAGE), MESSAGE),
    )


@pytest.fixture
def service():
    return InMemoryService(
        broker=PromptBroker(), allowed_hosts=["gate.example.org", "192.0.2.7", "2001:db8::1"]
    )


def answer(service, data, method="POST"):
    connection = service.connect()
    connection.send(data)
    return connection.responses([method])[0]


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    "host", [*OWN, "gate.example.org", "Gate.Example.ORG.", "192.0.2.7", "[2001:db8::1]", "[2001:DB8:0::1]"]
)
def test_a_request_for_this_service_is_answered(service, host, port):
    assert answer(service, post(host + port)).status == 200


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize(
    "host", [*FOREIGN, "gate.example.com", "a.gate.example.org", "192.0.2.8", "[2001:db8::2]"]
)
def test_a_request_for_another_host_is_rejected_and_publishes_nothing(service, host, port):
    rejected = answer(service, post(host + port))
    assert_problem(rejected, 421)
    problem = json.loads(rejected.body)
    assert problem["type"] == "urn:sampleapp:problem:misdirected-request"
    assert "--allow-host" in problem["detail"]
    assert rejected.headers[b"cache-control"] == b"no-store"
    assert service.broker.records == []


def test_without_a_host_there_is_no_browser(service):
    assert answer(service, post(None, version=b"1.0")).status == 200
    assert_problem(answer(service, post(None)), 400)


def test_the_host_of_a_url_as_the_target_counts_instead(service):
    assert_problem(answer(service, post("localhost", target=b"http://evil.example/messages")), 421)
    assert answer(service, post("evil.example", target=b"http://localhost/messages")).status == 200


@pytest.mark.parametrize(
    ("method", "target"),
    [
        *[
            ("GET", each)
            for each in ("/", "/live", "/ready", "/docs", "/openapi.json", "/topics", "/nothing")
        ],
        *[
            ("HEAD", "/"),
            ("OPTIONS", "/"),
            ("OPTIONS", "*"),
            ("DELETE", "/topics/t?key=k"),
            ("PUT", "/"),
            ("GET", "/%"),
        ],
    ],
)
def test_every_request_is_concerned_and_nothing_else_is_judged_before(service, method, target):
    data = post(
        "evil.example", method=method.encode(), target=target.encode(), fields=b"Content-Encoding: br\r\n"
    )
    assert answer(service, data, method).status == 421


def test_the_body_is_not_waited_for_nor_asked_for(service):
    head = b"POST /messages HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\n"
    for more in (
        b"Content-Length: 9",
        b"Content-Length: 9\r\nExpect: 100-continue",
        b"Transfer-Encoding: chunked",
    ):
        connection = service.connect()
        connection.send(head + more + b"\r\n\r\n")
        assert connection.responses(["POST"])[0].status == 421
        assert connection.is_closed_for_reading


def test_browsers_are_told_nothing_of_origins_that_could_ask():
    allowed = InMemoryService(allowed_origins=["https://example.org"], allowed_hosts=[])
    fields = b"Origin: https://example.org\r\nAccess-Control-Request-Method: POST\r\n"
    rejected = answer(allowed, post("evil.example", method=b"OPTIONS", fields=fields), "OPTIONS")
    assert rejected.status == 421
    assert b"access-control-allow-methods" not in rejected.headers


def test_one_request_for_another_host_does_not_change_what_the_next_one_gets(service):
    connection = service.connect()
    for host in ("localhost", "evil.example", "127.0.0.1", "evil.example"):
        connection.send(post(host))
    assert [each.status for each in connection.responses(["POST"] * 4)] == [200, 421, 200, 421]


def test_a_unix_socket_has_no_such_rule(service):
    channel, transport = service.site.buildProtocol(UNIXAddress(None)), MemoryTransport()
    channel.makeConnection(transport)
    channel.dataReceived(post("evil.example"))
    assert transport.value().startswith(b"HTTP/1.1 200 ")


class Port:
    def __init__(self, interface):
        self._interface = interface

    def getHost(self):
        return IPv4Address("TCP", self._interface, 8080)


class Running:
    """The service that `build` makes of a configuration, with requests to each of its ports."""

    def __init__(self, **options):
        self.factories = []
        self._reactor = reactor = ReactorWithThreads()
        reactor.listenTCP = self._listen
        config = Config(broker="memory:", limits=Limits(kept_for_admin=9), **options)
        build(config, reactor=reactor).privilegedStartService()

    def _listen(self, port, factory, backlog=50, interface=""):
        self.factories.append(factory)
        return Port(interface or "0.0.0.0")

    def statuses(self, host, target=b"/live"):
        return [self.status(factory, host, target) for factory in self.factories]

    def status(self, factory, host, target):
        channel, transport = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1)), MemoryTransport()
        channel.makeConnection(transport)
        channel.dataReceived(b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (target, host.encode()))
        self._do_work_of_threads()
        return int(transport.value()[9:12])

    def _do_work_of_threads(self):
        while self._reactor.threads.waiting:
            self._reactor.threads.do_one()

    def describes(self):
        for factory in self.factories:
            channel, transport = factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1)), MemoryTransport()
            channel.makeConnection(transport)
            channel.dataReceived(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self._do_work_of_threads()
            document = json.loads(transport.value().partition(b"\r\n\r\n")[2])
            OpenAPIV31SpecValidator(document).validate()
            yield "421" in document["paths"]["/live"]["get"]["responses"]


LOCAL, LOCAL_ADMIN = ("tcp:8080:interface=127.0.0.1",), "tcp:9090:interface=127.0.0.1"


@pytest.mark.parametrize(
    ("options", "is_rejected"),
    [
        ({}, [True]),
        ({"admin": LOCAL_ADMIN}, [True, True]),
        ({"admin": "tcp:9090"}, [True, False]),
        ({"callers": True}, [False]),
        ({"callers": True, "admin": LOCAL_ADMIN}, [False, True]),
        ({"callers": True, "admin": "tcp:9090", "listen": ("tcp:8080",)}, [False, False]),
        ({"is_open_to_everybody": True}, [False]),
        ({"is_open_to_everybody": True, "admin": LOCAL_ADMIN}, [False, False]),
        ({"allowed_hosts": ("evil.example",), "admin": LOCAL_ADMIN}, [False, False]),
    ],
)
def test_the_rule_holds_on_loopback_if_no_credentials_are_needed(tmp_path, options, is_rejected):
    (tmp_path / "callers.toml").write_text(caller("full", "read = true"))
    (tmp_path / "callers.toml").chmod(0o600)
    if "callers" in options:
        options = {**options, "callers": str(tmp_path / "callers.toml")}
    running = Running(**{"listen": LOCAL, **options})
    assert running.statuses("evil.example") == [421 if each else 200 for each in is_rejected]
    assert running.statuses("localhost:8080") == [200] * len(is_rejected)
    if "allowed_hosts" not in options:
        assert [*running.describes()] == is_rejected


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("gate.example.org", "gate.example.org"),
        ("GATE.example.org.", "gate.example.org"),
        ("gate", "gate"),
        ("my_gate", "my_gate"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_a_name_or_an_address_may_be_allowed(text, host):
    assert check_host_name(text) == host


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("*", "--callers"),
        ("*.example.org", "gate.example.org"),
        ("", "gate.example.org"),
        (".", "gate.example.org"),
        ("a..b", "gate.example.org"),
        ("a b", "gate.example.org"),
        ("https://gate.example.org/x", "without a scheme or a path, such as gate.example.org"),
        ("gate.example.org/", "without a scheme or a path"),
        ("gate.example.org:8080", "without a port, gate.example.org"),
        ("[2001:db8::1]:80", "without a port, [2001:db8::1]"),
        ("[::1", "gate.example.org"),
        ("bücher.example", "xn--"),
    ],
)
def test_a_text_that_is_not_a_host_is_rejected_with_advice(text, hint):
    with pytest.raises(NotAHost) as caught:
        check_host_name(text)
    assert hint in str(caught.value)


@given(st.one_of(st.ip_addresses(), st.integers(0, 2**24 - 1).map(lambda n: ip_address((127 << 24) + n))))
def test_exactly_loopback_addresses_need_not_be_allowed(address):
    named = f"[{address}]" if address.version == 6 else f"{address}"
    mapped = getattr(address, "ipv4_mapped", None) or address
    assert HostRule().allows(named.encode()) == mapped.is_loopback
    assert HostRule([check_host_name(str(address))]).allows(f"{named}:8080".encode())


@given(st.from_regex(r"[a-z0-9_-]{1,5}(\.[a-z0-9_-]{1,5}){0,3}\.?", fullmatch=True))
def test_a_name_is_compared_whole_and_without_regard_to_case(name):
    rule = HostRule([check_host_name("gate.example.org")])
    is_known = name.removesuffix(".") == "localhost" or name.removesuffix(".").endswith(".localhost")
    assert rule.allows(name.encode()) == is_known or name.startswith("127.")
    assert HostRule([check_host_name(name)]).allows(name.upper().encode())
