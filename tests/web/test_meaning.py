"""A request is answered with success only if all of it was understood: its query, its fields, its method."""

from __future__ import annotations

import json

import pytest
from twisted.internet.task import Clock
from twisted.web.server import Site

from sampleapp.brokers.memory import MemoryBroker
from tests.support.in_memory import Connection, request_bytes
from tests.web.http import JSON, MESSAGE, NDJSON, raw
from tests.web.openapi.described import Described
from tests.web.openapi.test_document import GROUP, TARGETS, WholeService, signed

PRODUCE = [(b"Content-Type", b"application/vnd.kafka.json.v2+json")]
RECORDS = b'{"records":[{"value":1}]}'
EVENT = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'

# Each of them publishes one record.
PUBLISHING = [
    ("POST", "/messages", JSON, MESSAGE),
    ("POST", "/messages", NDJSON, MESSAGE),
    ("POST", "/topics/t", [], b"v"),
    ("POST", "/topics/t", JSON, b"{}"),
    ("POST", "/topics/t", [(b"Content-Type", b"application/cloudevents+json")], EVENT),
    (
        *("POST", "/topics/t", [(b"Content-Type", b"application/cloudevents-batch+json")]),
        b"[" + EVENT + b"]",
    ),
    ("POST", "/topics/t", PRODUCE, RECORDS),
    ("POST", "/topics/t/partitions/0", PRODUCE, RECORDS),
    ("DELETE", "/topics/t?key=k", [], None),
    ("POST", "/hooks/h", signed(b"v"), b"v"),
]
# Probes and pages do nothing. Loaders and load balancers add parameters that defeat caches.
WITHOUT_MEANING = {"/live", "/ready", "/metrics", "/openapi.json", "/docs", "/docs/readings", "/docs/{file}"}


# Without a signature, a hook says nothing about its parameters, but rejects the request.
SIGNED = "/hooks/{hook}"


def operations(methods):
    described = Described(json.loads(WholeService().request("GET", "/openapi.json").body))
    return sorted((method, path) for method, path in described.operations() if method in methods)


def test_the_requests_of_these_tests_are_of_every_operation_that_publishes():
    assert {(method, target.partition("?")[0]) for method, target, *_ in PUBLISHING} == {
        (method, TARGETS.get(path, path).partition("?")[0])
        for method, path in operations({"POST", "PUT", "PATCH", "DELETE"})
        if not path.startswith(GROUP)
    }


class BothFaces:
    """The service's own connections, and its routes in a site of twisted.web."""

    def __init__(self):
        self.broker = MemoryBroker(clock=Clock())
        self.service = WholeService(broker=self.broker)
        site = Site(self.service.gateway.app.resource(), reactor=self.service.clock)
        self.servers = [self.service.site, site]

    def request(self, method, *request):
        """Return the answers of both, and the number of records that each has published."""
        for server in self.servers:
            before = len(self.broker.records("t"))
            connection = Connection(server)
            connection.send(request_bytes(method, *request))
            self.service.clock.pump([0.001] * 20)
            (answer,) = connection.responses([method])
            yield answer, len(self.broker.records("t")) - before


@pytest.mark.parametrize("request_", PUBLISHING, ids=lambda each: " ".join(each[:2]))
class TestOfEveryRequestThatPublishes:
    def test_it_publishes(self, request_):
        for answer, published in BothFaces().request(*request_):
            assert (answer.status, published) == (200, 1)

    @pytest.mark.parametrize(
        ("name", "value", "status", "word"),
        [
            *(
                (name, method, 400, b"The method of a request is that of its first line")
                for name in (b"X-HTTP-Method-Override", b"x-http-method", b"X-Method-Override")
                for method in (b"DELETE", b"GET", b"POST", b"")
            ),
            (b"Content-Range", b"bytes 0-4/10", 400, b"a part of another one"),
            (b"If-Match", b'"x"', 412, b"on a condition"),
            (b"If-Match", b"*", 412, b"on a condition"),
            (b"If-None-Match", b"*", 412, b"on a condition"),
        ],
    )
    def test_what_would_change_its_meaning_is_rejected(self, request_, name, value, status, word):
        method, target, fields, body = request_
        for answer, published in BothFaces().request(method, target, [*fields, (name, value)], body):
            assert (answer.status, published) == (status, 0)
            assert word in answer.body

    @pytest.mark.parametrize("parameter", ["_method=DELETE", "value=21.5", "Key=k", "timestamp=1", "x"])
    def test_a_parameter_that_it_does_not_know_is_rejected(self, request_, parameter):
        method, target, fields, body = request_
        target += "&" if "?" in target else "?"
        for answer, published in BothFaces().request(method, target + parameter, fields, body):
            assert (answer.status, published) == (422, 0)
            assert f'"{parameter.partition("=")[0]}"' in json.dumps(json.loads(answer.body)).replace(
                '\\"', '"'
            )


@pytest.mark.parametrize("query", ["key=a&value=21.5", "value=1", "content=c", "topic=t&content=c", "key"])
def test_a_get_that_would_publish_is_told_how_to_publish(query):
    """A device that can only send GET would be told 200, and its values would be lost."""
    for method, path in operations({"GET", "HEAD"}):
        if path in WITHOUT_MEANING:
            continue
        target = f"{TARGETS.get(path, path).partition('?')[0]}?{query}"
        answer = WholeService().request(method, target)
        if path == SIGNED:
            assert answer.status == 401
            continue
        if "/records" in path and query == "key":
            assert answer.status < 300
            continue
        assert answer.status == 422, (method, target)
        if method == "GET" and not path.endswith(("/records", "/changes")):
            assert b"GET publishes nothing; to publish, send a POST" in answer.body


def test_any_parameter_is_rejected_where_it_could_mean_something():
    for method, path in operations({"GET", "HEAD"}):
        target = TARGETS.get(path, path).partition("?")[0]
        status = WholeService().request(method, f"{target}?v=1").status
        assert (status == 422) == (path not in {*WITHOUT_MEANING, SIGNED, "/"}), (method, path)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "target",
    ["/topics", "/topics/t", "/topics/t/partitions", "/topics/t/partitions/0", "/topics/t/records?limit=1"],
)
def test_a_get_of_topics_takes_no_body_and_no_other_method(target, method):
    assert WholeService().request(method, target, [], b"21.5").status == 422
    chunks = [(b"Transfer-Encoding", b"chunked")]
    connection = WholeService().connect()
    connection.send(request_bytes(method, target, chunks) + b"4\r\n21.5\r\n0\r\n\r\n")
    assert [answer.status for answer in connection.responses([method])] == [422]
    override = [(b"X-HTTP-Method-Override", b"POST")]
    assert WholeService().request(method, target, override).status == 400
    # As many clients send it with each request.
    for face in ([], [(b"Content-Length", b"0")]):
        assert WholeService().request(method, target, face).status in (200, 204, 404)


def test_the_id_of_the_last_event_may_be_in_the_query_of_changes():
    service = WholeService()
    service.read(b"kitchen", b"21.5")
    tag = service.request("GET", "/", [(b"Accept", b"application/vnd.sampleApp.v2+json")]).headers[b"etag"]
    known = tag.strip(b'"').decode()

    def events(query, *fields):
        connection = raw(service, request_bytes("GET", f"/changes?{query}", fields))
        service.clock.pump([0.1] * 10)
        return connection.sent

    for name in ("last_event_id", "lastEventId"):
        assert b"event: readings" not in events(f"{name}={known}")
        assert b"event: readings" in events(f"{name}=other")
    # The field is of the latest event; the URL stays that of the first request.
    assert b"event: readings" not in events("last_event_id=other", (b"Last-Event-ID", known.encode()))
    assert b"event: readings" not in events(f"last_event_id=other&lastEventId={known}")
    assert b"event: readings" not in events(f"evs_buffer_size_limit=9&evs_last_event_id={known}&_=1")


@pytest.mark.parametrize("path", ["/", "/topics", "/topics/t", "/topics/t/records", "/live", "/openapi.json"])
def test_what_only_libraries_add_to_a_get_means_nothing(path):
    service = WholeService()
    query = "?_=1700000000000&evs_preamble=2056"
    assert service.request("GET", path + query).status == service.request("GET", path).status
    assert service.request("POST", f"/topics/t{query}", body=b"x").status == 422


@pytest.mark.parametrize("version", ["v2", "json.v2", "binary.v2", "avro.v2", "v1", "v3"])
@pytest.mark.parametrize(
    "content_type",
    [
        *(
            b"application/json",
            b"text/plain",
            b"application/cloudevents+json",
            b"application/octet-stream",
            b"",
        ),
        *(b"application/vnd.kafka.v2+json", b"application/vnd.kafka.avro.v2+json"),
        *(b"application/vnd.kafka.jsonschema.v2+json", b"application/vnd.kafka.protobuf.v2+json"),
        *(
            b"application/vnd.kafka.json.v1+json",
            b"application/vnd.kafka.json+json",
            b"application/vnd.kafka+json",
        ),
    ],
)
@pytest.mark.parametrize("target", ["/topics/t", "/topics/t?key=k", "/topics/t/partitions/0"])
def test_an_envelope_of_rest_proxy_never_becomes_a_record_of_its_own(target, content_type, version):
    fields = [(b"Accept", b"text/html, Application/vnd.kafka.%b+json;q=0.5" % version.encode())]
    fields += [(b"Content-Type", content_type)] * bool(content_type)
    for answer, published in BothFaces().request(
        "POST", target, fields, b'{"records":[{"value":"S2Fma2E="}]}'
    ):
        assert (answer.status, published) == (415, 0)
        assert answer.headers[b"content-type"].startswith(b"application/vnd.kafka")
        error = json.loads(answer.body)
        assert error["error_code"] == 415
        for right in ("application/vnd.kafka.json.v2+json", "application/vnd.kafka.binary.v2+json"):
            assert right in error["message"]
