"""Requests with neither ``Content-Length`` nor chunks: a body that would be lost is never a success."""

from __future__ import annotations

import hmac
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import ConnectionAborted, ConnectionLost
from twisted.python.failure import Failure
from twisted.web.server import Site

from tests.support.callers import FULL, by, caller
from tests.support.in_memory import Connection, InMemoryService, PromptBroker, request_bytes
from tests.web.http import JSON, NDJSON, assert_problem, raw

HOOK = '[hooks.h]\ntopic = "t"\nscheme = "github"\nsecret_files = ["s"]\n'
SIGNED = (b"X-Hub-Signature-256", b"sha256=" + hmac.digest(b"s", b"", "sha256").hex().encode())
VARIABLES = {"hook": "h", "partition": "0"}
"""The values of variables in paths; of any other, and of a new one, it is a topic."""


def a_service(callers=None):
    service = InMemoryService(broker=PromptBroker(), callers=callers, secrets={"h": [b"s"]})
    service.use_hooks(HOOK)
    return service


@pytest.fixture
def service():
    return a_service()


def posts():
    """The targets of all operations with POST, as the service describes them."""
    paths = json.loads(a_service().request("GET", "/openapi.json").body)["paths"]
    return sorted(
        re.sub("{(.*?)}", lambda found: VARIABLES.get(found[1], "t"), path)
        for path, item in paths.items()
        if "post" in item
    )


def unframed(method, target, headers=(), *, version="1.1"):
    head = request_bytes(method, target, headers, b"").replace(b"Content-Length: 0\r\n", b"")
    return head.replace(b"HTTP/1.1", f"HTTP/{version}".encode(), 1)


CONTENT_TYPES = [(), JSON, NDJSON, [(b"Content-Type", b"application/vnd.kafka.json.v2+json")]]
BODIES = [b"", b"19.0", b'{"topic":"t","content":"c"}', b'{"records":[{"value":1}]}', b"\r\n"]


@pytest.mark.parametrize("target", posts())
@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("close", [(), [(b"Connection", b"close")]], ids=["keep-alive", "close"])
def test_a_post_without_a_length_publishes_nothing_and_is_told_to_send_one(service, target, version, close):
    statuses = set()
    # A pull without a type has no body.
    for headers in CONTENT_TYPES[target.endswith("/pull") :]:
        for body in BODIES:
            fields = [*headers, SIGNED, *close]
            connection = raw(service, unframed("POST", target, fields, version=version) + body)
            status = int(connection.sent.split(b" ")[1])
            assert connection.sent.count(b"HTTP/1.1 ") == 1
            assert b"Connection: close\r\n" in connection.sent or status != 411
            statuses.add(status)
    # What is wrong with the rest of the header is told first.
    assert {411} <= statuses <= {411, 415, 422}
    assert service.broker.records == []


@pytest.mark.parametrize("headers", [JSON, NDJSON])
def test_the_rejection_names_both_ways_and_that_of_an_empty_body(service, headers):
    (response,) = raw(service, unframed("POST", "/messages", headers)).responses(["POST"])
    assert_problem(response, 411)
    problem = json.loads(response.body)
    assert problem["type"] == "urn:sampleapp:problem:length-required"
    for words in ("Content-Length", "chunked", "Content-Length: 0"):
        assert words in problem["detail"]


def test_clients_of_rest_proxy_are_rejected_in_their_form(service):
    (response,) = raw(service, unframed("POST", "/topics/t", CONTENT_TYPES[-1])).responses(["POST"])
    assert response.status == 411
    assert json.loads(response.body)["error_code"] == 411


def test_an_empty_body_is_said_by_its_length(service):
    assert service.request("POST", "/topics/t", (), b"").status == 200
    chunks = request_bytes("POST", "/topics/t", [(b"Transfer-Encoding", b"chunked")]) + b"0\r\n\r\n"
    (response,) = raw(service, chunks).responses(["POST"])
    assert response.status == 200
    assert [record.value for record in service.broker.records] == [b"", b""]


def test_credentials_and_rights_come_first():
    service = a_service(FULL + caller("reader", "read = true"))
    for headers, status in [((), 401), ([by("nobody")], 401), ([by("reader")], 403), ([by("full")], 411)]:
        connection = raw(service, unframed("POST", "/topics/t", headers) + b"19.0")
        assert connection.sent.startswith(b"HTTP/1.1 %d " % status)
    for path, status in [("/nothing", 404), ("/metrics", 405), ("/", 405)]:
        assert raw(service, unframed("POST", path, [by("full")])).sent.startswith(b"HTTP/1.1 %d " % status)
    assert service.broker.records == []


@pytest.mark.parametrize("hook", ["h", "unknown"])
def test_it_does_not_tell_which_hooks_there_are(service, hook):
    wrong = (SIGNED[0], SIGNED[1][:-1] + b"x")
    for headers, status in [((), 401), ([wrong], 401), ([SIGNED], 411)]:
        sent = raw(service, unframed("POST", f"/hooks/{hook}", headers)).sent
        assert sent.startswith(b"HTTP/1.1 %d " % status), hook


@pytest.mark.parametrize(
    ("method", "target"),
    [("DELETE", "/topics/t?key=k"), ("GET", "/"), ("GET", "/topics/t/records"), ("OPTIONS", "/messages")],
)
@pytest.mark.parametrize(("version", "close"), [("1.0", ()), ("1.1", [(b"Connection", b"close")])])
def test_bytes_behind_the_last_request_of_a_connection_are_rejected_with_it(
    service, method, target, version, close
):
    request = unframed(method, target, close, version=version)
    connection = raw(service, request + b"19.0")
    assert connection.sent.startswith(b"HTTP/1.1 400 ")
    assert b"More bytes follow the last request of this connection." in connection.sent
    assert connection.sent.count(b"HTTP/1.1 ") == 1
    assert service.broker.records == []
    # An empty line is not a body (RFC 9112, section 2.2).
    for end in (b"", b"\r\n", b"\n"):
        connection = raw(service, request + end)
        wait(service)
        assert connection.sent.startswith(b"HTTP/1.1 20")
    assert len(service.broker.records) == (3 if method == "DELETE" else 0)


@pytest.mark.parametrize("is_later", [False, True])
def test_bytes_behind_a_request_without_a_body_are_the_next_request_of_a_connection_that_goes_on(
    service, is_later
):
    # RFC 9112, section 6.3: without Content-Length and Transfer-Encoding, a request has no body.
    connection, segments = service.connect(), [unframed("DELETE", "/topics/t?key=k"), b"19.0\r\n\r\n"]
    for segment in segments if is_later else [b"".join(segments)]:
        connection.send(segment)
    deleted, next_one = connection.responses(["DELETE", "GET"])
    assert (deleted.status, next_one.status) == (200, 400)
    assert [(record.key, record.value) for record in service.broker.records] == [(b"k", None)]


@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]),
    target=st.sampled_from(
        ["/", "/messages", "/topics/t?key=k", "/topics/t/partitions/0", "/hooks/h", "/nothing"]
    ),
    headers=st.sampled_from(CONTENT_TYPES),
    version=st.sampled_from(["1.0", "1.1"]),
    body=st.binary(min_size=1, max_size=40),
    is_later=st.booleans(),
)
def test_nothing_is_published_for_a_request_whose_body_would_be_lost(
    method, target, headers, version, body, *, is_later
):
    service = a_service()
    head = unframed(method, target, [*headers, SIGNED, (b"Connection", b"close")], version=version)
    connection = service.connect()
    # Of these methods, only DELETE publishes, and so only it waits for a body that comes later.
    connection.send(*([head, body] if is_later and method in ("POST", "DELETE") else [head + body]))
    wait(service)
    if body.strip(b"\r\n"):
        assert service.broker.records == []
        assert not connection.sent.startswith(b"HTTP/1.1 2")


@pytest.mark.parametrize("target", [each for each in posts() if not each.startswith("/hooks/")])
def test_inside_a_site_of_twisted_web_a_post_needs_a_length_as_well(service, target):
    headers = JSON if target == "/messages" or "/groups/" in target else CONTENT_TYPES[-1]
    connection = Connection(Site(service.gateway.app.resource(), reactor=service.clock))
    connection.send(unframed("POST", target, headers))
    assert connection.sent.startswith(b"HTTP/1.1 411 ")
    assert service.broker.records == []


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 0\r\n\r\nabc",
        b"Content-Length: 2\r\n\r\nabcdef",
        b"Content-Length: 2\r\n\r\nab\r\ncd",
    ],
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_length_that_is_too_small_does_not_make_a_record_of_a_part_of_the_body(service, version, body):
    head = b"POST /topics/t HTTP/%b\r\nHost: localhost\r\nConnection: close\r\n" % version
    connection = raw(service, head + body)
    assert connection.sent.startswith(b"HTTP/1.1 400 ")
    assert service.broker.records == []


def test_bytes_behind_the_last_chunk_of_the_last_request_of_a_connection_are_rejected_with_it(service):
    head = (
        b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    assert raw(service, head + b"1\r\na\r\n0\r\n\r\nb").sent.startswith(b"HTTP/1.1 400 ")
    assert service.broker.records == []
    assert raw(service, head + b"1\r\na\r\n0\r\n\r\n\r\n").sent.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("target", "status"), [("/topics/t", 400), ("/hooks/h", 401), ("/hooks/unknown", 401)]
)
def test_an_empty_body_with_a_coding_takes_nothing_of_the_next_body(target, status):
    service = a_service(FULL)
    connection = service.connect()
    coded = [(b"Content-Encoding", b"gzip"), by("full"), (SIGNED[0], b"sha256=" + b"0" * 64)]
    connection.send(request_bytes("POST", target, coded, b""))
    assert connection.sent.startswith(b"HTTP/1.1 %d " % status)
    connection.transport.clear()
    connection.send(request_bytes("POST", "/topics/t", [by("full")], b"hello"))
    assert connection.sent.startswith(b"HTTP/1.1 200 ")
    assert [record.value for record in service.broker.records] == [b"hello"]


LAST = [("1.0", ()), ("1.0", [(b"Connection", b"keep-alive")]), ("1.1", [(b"Connection", b"close")])]
WAIT_S = 0.05


def delete(version, headers, target="/topics/t?key=k"):
    return unframed("DELETE", target, headers, version=version)


def wait(service):
    """Let the time pass in which the bytes of a body are expected."""
    service.clock.pump([WAIT_S, 0, 0])


@pytest.mark.parametrize(("version", "headers"), LAST)
@pytest.mark.parametrize("after_s", [0, 0.001, 0.02, 0.049])
def test_the_body_of_a_delete_that_comes_later_than_its_head_is_rejected(service, version, headers, after_s):
    for body in (b"19.0", b"\r\nx", b"DELETE /topics/t?key=k HTTP/1.0\r\n\r\n"):
        connection = raw(service, delete(version, headers))
        service.clock.advance(after_s)
        assert connection.sent == b""
        connection.send(body)
        assert connection.sent.startswith(b"HTTP/1.1 400 ")
        wait(service)
        assert connection.sent.count(b"HTTP/1.1 ") == 1
    assert service.broker.records == []


def test_a_busy_reactor_reads_what_came_in_time_before_a_delete_is_served(service):
    call_later = service.site.call_later
    # The timer is called late, and the socket is read before the reactor's next turn.
    service.site.call_later = lambda delay_s, function: call_later(delay_s or 0.001, function)
    connection = raw(service, delete(*LAST[0]))
    service.clock.advance(WAIT_S)
    connection.send(b"19.0")
    wait(service)
    assert connection.sent.startswith(b"HTTP/1.1 400 ")
    assert service.broker.records == []


@pytest.mark.parametrize(("version", "headers"), LAST)
def test_a_delete_without_a_body_is_served_after_the_time_for_one(service, version, headers):
    for end in ([], [b"\r\n"], [b"\r", b"\n"]):
        connection = raw(service, delete(version, headers))
        connection.send(*end)
        service.clock.advance(WAIT_S - 0.001)
        assert connection.sent == b""
        service.clock.advance(0.001)
        connection.settle()
        (response,) = connection.responses(["DELETE"])
        assert response.status == 200
        assert connection.is_lost
    assert [record.value for record in service.broker.records] == [None] * 3


def test_a_delete_is_served_at_once_when_its_client_has_closed_its_side(service):
    for version, headers in LAST:
        connection = raw(service, delete(version, headers))
        connection.channel.readConnectionLost()
        assert connection.sent.startswith(b"HTTP/1.1 200 ")
    # A body that came before is rejected all the same, and a part of a head is dropped.
    connection = raw(service, delete(*LAST[0]) + b"\r\n")
    connection.channel.dataReceived(b"19.0")
    connection.channel.readConnectionLost()
    assert connection.sent.startswith(b"HTTP/1.1 400 ")
    assert len(service.broker.records) == len(LAST)


@pytest.mark.parametrize("reason", [ConnectionLost, ConnectionAborted])
def test_a_delete_whose_client_is_gone_before_its_end_publishes_nothing(service, reason):
    calls = service.clock.getDelayedCalls()
    connection = raw(service, delete(*LAST[0]))
    connection.channel.connectionLost(Failure(reason()))
    assert len(service.clock.getDelayedCalls()) <= len(calls) + 1
    wait(service)
    assert service.broker.records == []
    assert service.site.connections == 0


def test_close_notify_ends_the_wait_as_well(service):
    # With TLS, it is the end of both directions: the request is carried out without a response.
    raw(service, delete(*LAST[0])).lose()
    wait(service)
    assert len(service.broker.records) == 1


@pytest.mark.parametrize(
    "request_",
    [
        delete("1.1", ()),
        delete("1.1", [(b"Connection", b"close"), (b"content-length", b"0")]),
        delete("1.0", [(b"content-length", b"0")]),
        delete("1.1", [(b"Connection", b"close"), (b"Transfer-Encoding", b"chunked")]) + b"0\r\n\r\n",
        delete("1.0", (), "/topics/t"),
        delete("1.0", (), "/nothing"),
        unframed("GET", "/", version="1.0"),
        unframed("HEAD", "/", version="1.0"),
        unframed("OPTIONS", "/messages", version="1.0"),
        unframed("POST", "/topics/t", [(b"Content-Length", b"5")], version="1.0") + b"hello",
        unframed("POST", "/topics/t", version="1.0"),
    ],
)
def test_nothing_else_waits_for_bytes_behind_a_request(service, request_):
    assert raw(service, request_).sent.startswith(b"HTTP/1.1 ")


def test_a_delete_may_be_the_last_of_pipelined_requests(service):
    connection = raw(service, request_bytes("GET") + delete("1.1", ()) + delete(*LAST[2]))
    assert connection.sent.count(b"HTTP/1.1 200 ") == 2
    wait(service)
    assert connection.sent.count(b"HTTP/1.1 200 ") == 3
    assert len(service.broker.records) == 2


def test_a_delete_that_is_held_back_is_finished_when_the_service_drains(service):
    connection = raw(service, delete(*LAST[0]))
    drained = service.site.drain()
    wait(service)
    connection.settle()
    assert connection.sent.startswith(b"HTTP/1.1 200 ")
    assert drained.called


def test_what_a_client_expects_does_not_ask_for_a_body_that_is_not_declared(service):
    connection = raw(service, delete("1.1", [(b"Connection", b"close"), (b"Expect", b"100-continue")]))
    wait(service)
    assert connection.sent.startswith(b"HTTP/1.1 200 ")
