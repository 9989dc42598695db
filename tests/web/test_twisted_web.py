"""
The same requests through the service's own connections, and through its resource in a site of twisted.web.

Statuses, header fields and bodies are equal. Only these differ, and are not tested here: errors of each
server's own parser (framing, a missing or repeated ``Host``, ``Expect``, limits of size), targets that are
not paths (``*``, a whole URL), and the fields about the server and the connection (``Date``, ``Connection``).
"""

from __future__ import annotations

import gzip
import hmac
import json
from http import HTTPStatus
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import Site

from sampleapp.errors import BrokerUnavailable, OutcomeUnknown, UnknownTopic
from sampleapp.web.responses import Response
from sampleapp.web.twisted_web import RequestResource
from tests.support import strategies
from tests.support.callers import FULL, by, caller
from tests.support.examples import examples
from tests.support.in_memory import Connection, InMemoryService, ManualBroker, PromptBroker, request_bytes
from tests.support.streams import Source, body_of, unchunked
from tests.web.http import JSON, MESSAGE, same_answer

ACCEPT_2 = (b"Accept", b"application/vnd.sampleApp.v2+json")

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "Post", "BREW")
TARGETS = (
    *(
        "/",
        "/?x=1",
        "/?",
        "/messages",
        "/messages?x=%zz&y",
        "/%6Dessages",
        "/%6dessages",
        "/messages/",
        "/Messages",
    ),
    *(
        "/nothing",
        "//",
        "//messages",
        "/./messages",
        "/messages/..",
        "/%2F",
        "/%2Fmessages",
        "/messages%2F",
        "/%",
    ),
    *(
        "/topics",
        "/topics/",
        "/topics/t",
        "/topics/t?key=a+%FF",
        "/topics/t?key=1&key=2&x",
        "/topics/t?key",
        "/topics/..",
        "/topics/a%2Fb",
        "/topics/%74?key=",
        "/topics/%C3%A4",
        "/topics/t/t",
    ),
    *("/%ff", "/%C3%A4", "/messages;x", "/v1/readings", "/%00", "/%3F", "/messages%3Fx=1", "/%2A", "/%2E"),
)
CONTENT_TYPES = (
    *(
        (),
        JSON,
        [(b"Content-Type", b"application/json; charset=utf-16")],
        [(b"content-TYPE", b"APPLICATION/JSON")],
    ),
    *(
        [(b"Content-Type", b"text/plain")],
        [(b"Content-Type", b"")],
        [*JSON, *JSON],
        [(b"Content-Type", b"\xe4\x80")],
    ),
    *([*JSON, (b"Content-Encoding", b"identity")], [*JSON, (b"Content-Encoding", b"gzip")]),
    *([*JSON, (b"Content-Encoding", b"br")], [*JSON, (b"Content-Encoding", b"zstd, gzip")]),
)
BODIES = (
    *(None, b"", b"{", b"[]", b"null", b"{}", MESSAGE, b'{"topic":"t","content":"c","key":null}', b"\xff"),
    *(
        b'{"topic":"t","key":"","content":""}',
        b'{"topic":"../x","content":1,"kye":"k"}',
        b'{"topic":"","a/b~":[]}',
    ),
    json.dumps({"topic": "t", "key": "\0", "content": "\U0001f600\n"}).encode(),
    b'{"topic":"t","content":"\\ud800"}',
    gzip.compress(MESSAGE, mtime=0),
)
HOSTS = (b"a", b"", b"[::1]:80", b"127.0.0.1", b"a..b", b"a b", b"x@y", b"\xff")


class BothWays:
    """Two services in the same state: one on its own connections, one in a site of twisted.web."""

    def __init__(self, broker=PromptBroker, callers=None, secrets=None):
        self.services = [InMemoryService(broker=broker(), callers=callers, secrets=secrets) for _ in range(2)]
        for service in self.services:
            service.read(b"kitchen", b"21.5")
            service.read(b"hall", b"-1e300")
        own, other = self.services
        self.etags = {
            version: own.request("GET", headers=[by("full"), *([ACCEPT_2] if version == 2 else [])]).headers[
                b"etag"
            ]
            for version in (1, 2)
        }
        self.servers = [own.site, Site(other.gateway.app.resource(), reactor=other.clock)]

    def send(self, data, method="GET"):
        """Send one request to both, and return its only answer, which is the same."""
        connections = [Connection(server) for server in self.servers]
        for connection in connections:
            connection.send(data)
        return self.received(connections, method)

    def received(self, connections, method):
        answer = same_answer(connections, method)
        own, other = (service.broker.records for service in self.services)
        assert own == other
        return answer


@pytest.fixture(scope="module")
def both():
    return BothWays()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_every_path_is_answered_alike(both, method):
    statuses = {both.send(request_bytes(method, target), method).status for target in TARGETS}
    assert 404 in statuses
    assert statuses <= {200, 204, 400, 404, 405, 415, 422}


@pytest.mark.parametrize("headers", CONTENT_TYPES)
def test_every_body_of_every_content_type_is_answered_alike(both, headers):
    for body in BODIES:
        assert both.send(request_bytes("POST", "/messages", headers, body)).status in {200, 400, 415, 422}
        assert both.send(request_bytes("PUT", "/messages", headers, body)).status in {405, 415}
        assert both.send(request_bytes("POST", "/topics/t", headers, body)).status in {200, 400, 415}
        deleted = both.send(request_bytes("DELETE", "/topics/t?key=k", headers, body))
        assert deleted.status in {200, 400, 415, 422}
        assert both.send(request_bytes("OPTIONS", "/messages", headers, body)).status in {204, 415}


def test_every_event_is_answered_alike(both):
    required = [(b"Ce-Specversion", b"1.0"), (b"ce-id", b"1"), (b"ce-Source", b"/"), (b"ce-type", b"t")]
    others = [
        [],
        [(b"Content-Type", b"application/json"), (b"ce-subject", b'"a b" %C3%A4')],
        [(b"Content-Type", b"application/cloudevents+json; charset=utf-8")],
        [(b"ce-subject", b"%ff"), (b"ce-subject", b"\xff"), (b"Ce-X-Y", b"")],
        [(b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")],
    ]
    statuses = set()
    for fields, more in product((required, required[:1], required[1:]), others):
        for body in (b"{}", b'{"specversion":"1.0","id":"1","source":"/","type":"t"}'):
            headers = [*fields, *more]
            statuses.add(both.send(request_bytes("POST", "/topics/t?key=k", headers, body)).status)
        assert both.services[0].broker.records[-1:] == both.services[1].broker.records[-1:]
    assert statuses == {200, 422}
    assert {len(record.headers) for record in both.services[0].broker.records} >= {1, 4, 5, 6}


def test_every_request_to_a_hook_is_answered_alike():
    hook = '[hooks.h]\ntopic = "t"\nscheme = "github"\nsecret_files = ["s"]\n'
    both = BothWays(callers=FULL + hook, secrets={"h": [b"s"]})
    statuses = set()
    packed = gzip.compress(MESSAGE, mtime=0)
    codings = ([], [(b"Content-Encoding", b"gzip")], [(b"Content-Encoding", b"br")])
    for body, coding, target in product(
        (MESSAGE, packed, b""), codings, ("/hooks/h", "/hooks/h?x", "/hooks/i")
    ):
        digest = hmac.digest(b"s", body, "sha256").hex().encode()
        for value in (digest, digest[::-1], b""):
            headers = [*coding, (b"X-Hub-Signature-256", b"sha256=" + value)]
            statuses.add(both.send(request_bytes("POST", target, headers, body), "POST").status)
    assert statuses == {200, 400, 401, 415, 422}
    assert {record.value for record in both.services[0].broker.records} == {MESSAGE, packed, b""}


def test_every_version_and_condition_of_the_readings_is_answered_alike(both):
    accepts = ([], [ACCEPT_2], [(b"Accept", b"*/*;q=0.1"), ACCEPT_2], [(b"Accept", b'text/html, ";')])
    tags = [None, b"*", b'"x"', b"", *both.etags.values(), b"W/" + both.etags[1]]
    statuses = set()
    for method, accept, match, none_match in product(("GET", "HEAD"), accepts, tags, tags):
        conditions = [(b"If-Match", match), (b"If-None-Match", none_match)]
        headers = [*accept, *(each for each in conditions if each[1] is not None)]
        statuses.add(both.send(request_bytes(method, "/", headers), method).status)
    assert statuses == {200, 304, 412}


def test_every_host_is_answered_alike(both):
    for host, target in product(HOSTS, ("/", "/nothing")):
        data = b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (target.encode(), host)
        assert both.send(data).status in {200, 400, 404}
    assert both.send(b"GET / HTTP/1.0\r\n\r\n").status == 200


def test_rights_to_topics_are_answered_alike():
    both = BothWays(callers=FULL + caller("one", 'publish = ["t"]') + caller("reader", "read = true"))
    for name, path, method in product(
        ("one", "reader", "nobody"), ("/topics/t", "/topics/u", "/topics/.."), ("POST", "DELETE")
    ):
        answer = both.send(request_bytes(method, f"{path}?key=k", [by(name)]), method)
        assert (
            answer.status
            == {
                "nobody": 401,
                "reader": 403,
                "one": {"/topics/t": 200, "/topics/u": 403, "/topics/..": 422}[path],
            }[name]
        )
    assert {record.topic for record in both.services[0].broker.records} == {"t"}


def test_failures_are_answered_alike(no_failure_is_lost):
    failures = [
        BrokerUnavailable("Gone."),
        OutcomeUnknown("Perhaps."),
        UnknownTopic("No."),
        ZeroDivisionError("secret"),
    ]
    both = BothWays(ManualBroker)
    for failure in failures:
        connections = [Connection(server) for server in both.servers]
        for connection, service in zip(connections, both.services, strict=True):
            connection.send(request_bytes("POST", "/messages", JSON, MESSAGE))
            service.broker.waiting.pop().errback(failure)
        assert b"secret" not in both.received(connections, "POST").body
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError, ZeroDivisionError]
    no_failure_is_lost.clear()
    for service in both.services:
        service.follower.reset()
    for method in ("GET", "HEAD"):
        assert both.send(request_bytes(method, "/", [(b"If-Match", b'"x"')]), method).status == 503


def test_the_bytes_of_a_large_batch_are_charged_there_too():
    callers = caller("one", 'publish = ["t"]', "bytes_per_second = 1", "bytes_burst = 1")
    service = InMemoryService(broker=PromptBroker(), callers=callers)
    site = Site(service.gateway.app.resource(), reactor=service.clock)
    batch = json.dumps({"topic": "t", "content": "x" * 100_000}).encode() + b"\n"
    statuses = []
    for _ in range(2):
        connection = Connection(site)
        headers = [by("one"), (b"Content-Type", b"application/x-ndjson")]
        connection.send(request_bytes("POST", "/messages", headers, batch * 15))
        service.clock.pump([0.001] * 50)
        statuses += [answer.status for answer in connection.responses(["POST"])]
    assert statuses == [200, 429]


def test_errors_below_a_path_of_the_site_are_those_of_its_root():
    service = InMemoryService(broker=PromptBroker())
    root = Resource()
    root.putChild(b"part", service.gateway.app.resource())
    own, part = service.site, Site(root, reactor=service.clock)
    of_rest_proxy = [(b"Accept", b"application/vnd.kafka.v2+json")]
    for method, target in product(
        ("GET", "POST"), ("/messages", "/topics/a%20b", "/topics/", "/topics/t/records?x", "/consumers/c")
    ):
        connections = [Connection(own), Connection(part)]
        for connection, prefix in zip(connections, ("", "/part"), strict=True):
            connection.send(request_bytes(method, prefix + target, of_rest_proxy))
        assert same_answer(connections, method).status >= 400


@pytest.mark.parametrize("target", ["/topics/t", "/topics/t/records"])
@pytest.mark.parametrize("field", [(b"X-A", b"\x7f"), (b"Host", b"a b")])
def test_a_field_that_no_route_takes_gets_the_same_error_below_a_path_of_the_site(target, field):
    resource = InMemoryService(broker=PromptBroker()).gateway.app.resource()
    root = Resource()
    root.putChild(b"part", resource)
    connections = [Connection(Site(resource)), Connection(Site(root))]
    for connection, prefix in zip(connections, ("", "/part"), strict=True):
        connection.send(request_bytes("GET", prefix + target, [field]))
    assert same_answer(connections, "GET").status == 400


requests = st.tuples(
    st.sampled_from(METHODS),
    st.sampled_from(TARGETS),
    st.lists(
        st.one_of(
            st.tuples(st.just(b"Accept"), strategies.accept_like),
            st.sampled_from(
                [(b"ce-specversion", b"1.0"), (b"ce-id", b"1"), (b"ce-source", b"/"), (b"ce-type", b"t")]
            ),
            st.sampled_from([*JSON, (b"If-Match", b"*"), (b"If-None-Match", b"*"), (b"Origin", b"null")]),
        ),
        max_size=4,
    ),
    st.one_of(st.sampled_from(BODIES), st.binary(max_size=50)),
)


@examples(300)
@given(requests)
def test_any_request_is_answered_alike(both, request):
    method, target, headers, body = request
    both.send(request_bytes(method, target, headers, body), method)


@pytest.mark.parametrize("value", [b"\x01", b"text/\x1bplain", b"a\x7f"])
def test_a_control_character_in_a_field_is_rejected_there_too(value):
    service = InMemoryService(broker=PromptBroker())
    connection = Connection(Site(service.gateway.app.resource(), reactor=service.clock))
    connection.send(request_bytes("POST", "/topics/t", [(b"Content-Type", value)], b"x"))
    (response,) = connection.responses(["POST"])
    assert response.status == 400
    assert service.broker.records == []


class StreamResource(RequestResource):
    """A resource in a site of twisted.web whose answer is sent piece by piece."""

    def __init__(self):
        super().__init__()
        self.source = Source()

    def respond(self, _request):
        return Response(HTTPStatus.OK, ((b"Content-Type", b"text/event-stream"),), source=self.source)


@pytest.fixture
def streaming_site():
    resource = StreamResource()
    connection = Connection(Site(resource, reactor=Clock()))
    return connection, resource.source


def test_a_site_of_twisted_web_sends_events_as_they_come(streaming_site):
    connection, source = streaming_site
    connection.send(request_bytes("GET", "/stream"))
    head, _, rest = connection.sent.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert b"text/event-stream" in head
    assert b"Content-Length" not in head
    assert rest == b""
    assert source.write(b"one")
    assert connection.sent.endswith(b"\r\n\r\n3\r\none\r\n")
    source.sink.finish("age")
    assert unchunked(body_of(connection.sent)) == (b"one", b"")
    assert source.calls == ["begin", "closed: age"]


def test_a_site_of_twisted_web_tells_the_source_to_wait_while_the_client_does_not_read(streaming_site):
    connection, source = streaming_site
    connection.send(request_bytes("GET", "/stream"))
    connection.transport.producer.pauseProducing()
    count = 0
    while source.write(b"x" * 10_000):
        count += 1
    assert 250_000 < source.sink.unsent <= 300_000
    assert body_of(connection.sent) == b""
    connection.transport.producer.resumeProducing()
    assert source.calls == ["begin", "resumed"]
    source.sink.finish("age")
    assert unchunked(body_of(connection.sent)) == (b"x" * 10_000 * (count + 1), b"")


def test_a_site_of_twisted_web_sends_what_waits_after_the_source_has_ended(streaming_site):
    connection, source = streaming_site
    connection.send(request_bytes("GET", "/stream"))
    producer = connection.transport.producer
    producer.pauseProducing()
    source.write(b"one")
    source.sink.finish("age")
    assert source.is_closed
    assert body_of(connection.sent) == b""
    producer.resumeProducing()
    assert unchunked(body_of(connection.sent)) == (b"one", b"")


def test_a_source_in_a_site_of_twisted_web_is_closed_when_its_client_goes_away(streaming_site):
    connection, source = streaming_site
    connection.send(request_bytes("GET", "/stream"))
    connection.lose()
    assert source.calls == ["begin", "closed: client"]
    assert not source.write(b"late")
    source.sink.finish("late")


def test_a_source_in_a_site_of_twisted_web_is_closed_at_once_if_only_the_head_is_wanted(streaming_site):
    connection, source = streaming_site
    connection.send(request_bytes("HEAD", "/stream"))
    assert source.calls == ["closed: head"]
    assert body_of(connection.sent) == b""


def test_a_source_in_a_site_of_twisted_web_can_cut_the_connection(streaming_site):
    connection, source = streaming_site
    connection.send(request_bytes("GET", "/stream"))
    source.write(b"one")
    source.sink.abort("broken")
    assert source.calls == ["begin", "closed: broken"]
    assert connection.transport.disconnecting
    assert unchunked(body_of(connection.sent)) == (b"one", None)
