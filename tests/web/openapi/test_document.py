"""``/openapi.json`` says what the service does, and nothing else: both are walked."""

from __future__ import annotations

import hmac
import json
import re
from functools import partial
from hashlib import sha256
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from twisted.internet.defer import fail, succeed

from sampleapp import errors
from sampleapp.access import IssuerKeysNotKnown, Right
from sampleapp.errors import InvalidMessage
from sampleapp.messages.parsing import parse_message
from sampleapp.messages.rest_proxy_bodies import EmbeddedFormat, read_records
from sampleapp.model import (
    Acknowledged,
    ConsumerRecord,
    Extended,
    GoneRecords,
    ReadResult,
    ReplayedRecord,
    is_legal_topic,
)
from sampleapp.service.assembly import build
from sampleapp.service.config import Config
from sampleapp.web import AdminApp, Limits
from sampleapp.web.descriptions import Description
from sampleapp.web.errors import BROKER_REJECTIONS, IDEMPOTENCY_REJECTIONS
from sampleapp.web.openapi.document import openapi_document
from sampleapp.web.routing import App
from tests.support.certificates import Authority
from tests.support.in_memory import Connection, InMemoryService, ManualBroker, MemoryTransport, request_bytes
from tests.support.planned_outcomes import STORED, Plan, PlannedBroker
from tests.support.threads import ReactorWithThreads
from tests.support.work import WorkerBroker, lease_of
from tests.web.http import JSON, MESSAGE, NDJSON, chunked, raw
from tests.web.openapi.described import Described


def described_by(service):
    return Described(json.loads(service.request("GET", "/openapi.json").body))


HOOK = '[hooks.h]\ntopic = "t"\nscheme = "github"\nsecret_files = ["s"]\n'


def signed(body):
    """The header of a request to the hook."""
    return [(b"X-Hub-Signature-256", b"sha256=" + hmac.digest(b"s", body, "sha256").hex().encode())]


class WholeService(InMemoryService):
    """All that is served, with a broker that leaves each answer to the test."""

    def __init__(self, broker=None, **limits):
        super().__init__(broker=broker, **{"allowed_hosts": [], "secrets": {"h": [b"s"]}, **limits})
        self.use_hooks(HOOK)

    def connect(self, transport=MemoryTransport):
        connection = super().connect(transport)
        responses = connection.responses

        def whole_responses(methods):
            # An event stream ends only when it is told to.
            self.site.streams.drain(within_s=1)
            return responses(methods)

        connection.responses = whole_responses
        return connection


@pytest.fixture
def service():
    return WholeService()


@pytest.fixture
def described(service):
    return described_by(service)


def test_the_document_is_openapi_3_1(described):
    assert described.document["openapi"].startswith("3.1.")
    OpenAPIV31SpecValidator(described.document).validate()


def test_every_route_and_method_of_the_service_is_in_the_document_and_no_other():
    reactor = ReactorWithThreads()
    build(Config(broker="memory:", is_open_to_everybody=True), reactor=reactor).privilegedStartService()
    ((_, server, *_),) = reactor.tcpServers
    connection = Connection(server)
    connection.send(request_bytes("GET", "/openapi.json"))
    reactor.threads.do_one()
    (response,) = connection.responses(["GET"])
    served = {
        (method, re.sub("<(?:[a-z]+:)?(.*?)>", r"{\1}", rule.rule))
        for app in server.dispatch.__self__.apps
        for rule in app.url_map.iter_rules()
        for method in rule.methods
    }
    described = Described(json.loads(response.body))
    assert described.operations() == served | {("OPTIONS", path) for _, path in served}
    # The routes of this test are all routes of the service.
    assert described.operations() == described_by(WholeService()).operations()


def test_parameters_that_become_headers_are_described_where_they_are_taken():
    described = described_by(WholeService(record_queries=("DevEUI",)))
    OpenAPIV31SpecValidator(described.document).validate()
    assert {
        (method, path)
        for path, item in described.document["paths"].items()
        for method, operation in item.items()
        if any(each["name"] == "DevEUI" for each in operation.get("parameters", ()))
    } == {("post", "/topics/{topic}"), ("post", "/hooks/{hook}")}


def test_every_example_is_what_its_schema_says(described):
    contents = [
        content
        for item in described.document["paths"].values()
        for operation in item.values()
        for part in (operation.get("requestBody", {}), *operation["responses"].values())
        for content in described.resolved(part).get("content", {}).values()
    ]
    examples = [
        (example["value"], content["schema"])
        for content in contents
        for example in content.get("examples", {}).values()
    ]
    assert len(examples) > 20
    for value, schema in examples:
        assert described.is_valid(value, schema), (value, schema)


@pytest.mark.parametrize("path", ["/live", "/ready", "/metrics", "/topics", "/"])
def test_the_example_of_cache_control_is_what_a_response_has(described, service, path):
    response = service.request("GET", path)
    headers = described.document["paths"][path]["get"]["responses"]["200"]["headers"]
    assert headers["Cache-Control"]["example"].encode() == response.headers[b"cache-control"]


def test_each_response_about_work_has_an_example_and_is_not_stored(described):
    operations = {
        f"{method} {path}": operation["responses"]["200"]
        for path, item in described.document["paths"].items()
        for method, operation in item.items()
        if "/groups/" in path and method in ("get", "post")
    }
    assert len(operations) == 4
    for name, response in operations.items():
        assert response["content"]["application/json"]["examples"], name
        assert response["headers"]["Cache-Control"]["example"] == "no-store", name


def test_no_pattern_has_what_only_python_knows(described):
    # OpenAPI has the patterns of ECMA-262.
    assert not re.search(r"\\\\[AZ]|\(\?P", json.dumps(described.document))


def test_every_operation_with_a_body_says_how_it_may_be_compressed(described):
    bodies = [
        operation["requestBody"]
        for item in described.document["paths"].values()
        for operation in item.values()
        if "requestBody" in operation
    ]
    assert bodies
    for body in bodies:
        assert "`Content-Encoding: gzip`" in body["description"]
        assert "`Content-Encoding: zstd`" in body["description"]


def test_publishing_a_message_comes_first_and_each_group_begins_with_its_simplest_operation(described):
    first = {}
    for path, operations in described.document["paths"].items():
        for method, operation in operations.items():
            first.setdefault(operation["tags"][0], f"{method.upper()} {path}")
    assert list(first.items())[:2] == [("Messages", "POST /messages"), ("Readings", "GET /")]
    assert [tag["name"] for tag in described.document["tags"]] == list(first)


def test_no_two_operations_have_the_same_id(described):
    ids = [
        operation["operationId"]
        for item in described.document["paths"].values()
        for operation in item.values()
    ]
    assert len(ids) == len(set(ids))


def test_what_generators_name_methods_by_has_a_suffix_for_head_and_options_only(described):
    ids = {
        method: {
            item[method]["operationId"] for item in described.document["paths"].values() if method in item
        }
        for method in ("delete", "post", "head", "options")
    }
    assert ids["delete"] == {"delete_key"}
    assert ids["post"] == {
        *("ack", "extend", "produce_to_partition", "publish", "publish_to_topic", "pull", "receive_hook")
    }
    assert all(each.endswith("_head") for each in ids["head"])
    assert all(each.endswith("_options") for each in ids["options"])


# Requests that provoke each declared answer. Each function yields the answers of one operation.


def answers_of_every_operation(method, target, headers=(), body=None):
    """Yield the answers of the server itself, which any operation may get."""

    def ask(more=(), **limits):
        service = WholeService(**limits)
        connection = raw(service, request_bytes(method, target, [*headers, *more], body))
        return service, connection

    def answer(connection):
        return connection.responses([method])[0]

    yield answer(ask([(b"Host", b"again")])[1])
    if method == "POST":
        yield answer_without_length(target, headers)
    elsewhere = request_bytes(method, f"http://other.example{target}", headers, body)
    yield answer(raw(WholeService(), elsewhere))
    yield answer(ask([(b"Expect", b"a wonder")])[1])
    yield answer(ask([(b"Content-Encoding", b"br"), *([] if body else [(b"Content-Length", b"0")])])[1])
    if method != "OPTIONS":
        undecodable = [*headers, (b"Content-Encoding", b"gzip")]
        yield WholeService().request(method, target, undecodable, b"x")
    yield answer(ask([(b"X-Long", b"x" * 17_000)])[1])
    if method not in {"GET", "HEAD", "OPTIONS"}:
        yield answer(ask([(b"Origin", b"https://other.example")])[1])
        yield answer(ask([(b"If-Match", b"*")])[1])

    service = WholeService(max_body=10)
    chunks = request_bytes(method, target, [*headers, (b"Transfer-Encoding", b"chunked")]) + chunked(
        b"x" * 11, 11
    )
    connection = raw(service, chunks)
    yield answer(connection)

    connection = raw(service, request_bytes(method, target, [*headers, (b"Content-Length", b"9")])[:-2])
    service.clock.pump([1] * 12)
    yield answer(connection)

    service = WholeService(max_connections=1, kept_for_loopback=0)
    _first, second = service.connect(), service.connect()
    second.send(request_bytes(method, target, headers, body))
    # The answer comes before the method is known, and so has a body.
    (turned_away,) = second.responses(["GET"])
    yield turned_away._replace(body=b"") if method == "HEAD" else turned_away

    service = WholeService()
    service.site.dispatch = faulty
    yield answer(raw(service, request_bytes(method, target, headers, body)))


def answer_without_length(target, headers):
    framed = request_bytes("POST", target, headers, b"")
    return raw(WholeService(), framed.replace(b"Content-Length: 0\r\n", b"")).responses(["POST"])[0]


def faulty(request):
    raise ZeroDivisionError


def answers_with_validators(method, target):
    service = WholeService()
    first = service.request(method, target)
    yield first
    yield service.request(method, target, [(b"If-None-Match", first.headers[b"etag"])])


def answers_of_readings(method):
    yield from answers_with_validators(method, "/")
    service = WholeService()
    service.read(b"kitchen", b"21.5")
    for accept in (b"text/html", b"application/vnd.sampleApp.v2+json"):
        yield service.request(method, "/", [(b"Accept", accept)])
    yield service.request(method, "/", [(b"If-Match", b'"other"')])
    yield service.request(method, "/?key=kitchen&value=21.5")
    service.follower.reset()
    yield service.request(method, "/")


def answers_of_changes(method):
    service = WholeService()
    yield service.request(method, "/changes")
    yield service.request(method, "/changes?key=kitchen")
    service.follower.reset()
    yield service.request(method, "/changes")
    yield WholeService(max_streams=0).request(method, "/changes")


def answers_of_readiness(method):
    service = WholeService()
    yield service.request(method, "/ready")
    service.fail("Kafka does not answer.")
    yield service.request(method, "/ready")


def fill(service, owner):
    """Let an owner have as much memory for bodies as it may."""
    service.site.body_memory.add(owner, service.site.body_memory.limit // (2 if owner else 1))


def answers_to_publishing(*request):
    service = WholeService()

    def publish(result):
        connection = raw(service, request_bytes(*request))
        if result is None:
            service.broker.acknowledge()
        else:
            service.broker.waiting.pop().errback(result)
        return connection.responses([request[0]])[0]

    yield publish(None)
    for kind in BROKER_REJECTIONS:
        yield publish(kind("It failed."))
    full = WholeService(max_waiting=1)
    raw(full, request_bytes(*request))
    yield full.request(*request)
    full = WholeService(max_body_memory=10)
    fill(full, "")
    headers = [*(request[2] if len(request) > 2 else ()), (b"Content-Length", b"1")]
    yield raw(full, request_bytes(*request[:2], headers)).responses([request[0]])[0]


ONE_CHECK = {"are_processes_prompt": False, "max_body_memory": 8000}
"""Room for one check by a schema, which goes on until the test ends it."""


def answers_of_checks(method, target, headers, body):
    """Yield the answers to contents that do not match, or cannot be checked."""
    request = request_bytes(method, target, headers, body)
    yield WholeService(schemas={"t": False}).request(method, target, headers, body)

    def waiting():
        service = WholeService(schemas={"t": False}, **ONE_CHECK)
        return service, raw(service, request)

    service, connection = waiting()
    service.processes.started[0].work()
    service.clock.advance(1)
    yield connection.responses([method])[0]
    service, connection = waiting()
    for _ in range(3):
        service.processes.started[-1].end(9)
        service.clock.advance(1)
    yield connection.responses([method])[0]
    service, _ = waiting()
    yield service.request(method, target, headers, body)


def answers_with_a_key(method, target, headers=(), body=None):
    def ask(key=b"k", outcome=None):
        service = WholeService()
        fields = [*headers, (b"Idempotency-Key", key)]
        connection = raw(service, request_bytes(method, target, fields, body))
        if isinstance(outcome, errors.SampleAppError):
            service.broker.waiting.pop().errback(outcome)
        elif outcome is not None:
            service.broker.waiting.pop().callback(outcome)
        return connection.responses([method])[0]

    yield ask(b"")
    yield ask(outcome=ReplayedRecord(topic="t", partition=0, offset=0))
    for kind in IDEMPOTENCY_REJECTIONS:
        if issubclass(kind, errors.PublishError):
            yield ask(outcome=kind("It failed."))


def answers_to_messages():
    yield from answers_to_publishing("POST", "/messages", JSON, MESSAGE)
    yield from answers_with_a_key("POST", "/messages", JSON, MESSAGE)
    service = WholeService()
    yield service.request("POST", "/messages", (), MESSAGE)
    yield service.request("POST", "/messages?key=k", JSON, MESSAGE)
    yield service.request("POST", "/messages", JSON, b"{")
    yield service.request("POST", "/messages", JSON, b"{}")
    yield from answers_of_checks("POST", "/messages", JSON, MESSAGE)

    def publish_many(result):
        connection = raw(service, request_bytes("POST", "/messages", NDJSON, MESSAGE + b"\n" + MESSAGE))
        service.broker.acknowledge()
        if result is None:
            service.broker.acknowledge()
        else:
            service.broker.waiting.pop().errback(result)
        return connection.responses(["POST"])[0]

    yield publish_many(None)
    yield publish_many(errors.BufferFull("It failed."))
    yield publish_many(errors.RecordTooLarge("It failed."))


def answers_to_raw_bodies():
    yield from answers_to_publishing("POST", "/topics/t?key=k", (), b"anything")
    yield from answers_with_a_key("POST", "/topics/t?key=k", (), b"anything")
    service = WholeService()
    yield service.request("POST", "/topics/a:b?x=y", [(b"ce-specversion", b"")], b"")
    yield service.request("POST", "/topics/t", [*JSON, (b"Content-Type", b"text/plain")], b"{}")
    yield service.request("POST", "/topics/t", JSON, RECORDS)
    yield from answers_of_checks("POST", "/topics/t", (), b"{}")


def answers_to_hooks():
    request = ("POST", "/hooks/h", signed(b"anything"), b"anything")
    yield from answers_to_publishing(*request)
    yield from answers_with_a_key(*request)
    service = WholeService()
    yield service.request("POST", "/hooks/h", (), b"anything")
    yield service.request("POST", "/hooks/h?x=y", *request[2:])
    yield from answers_of_checks(*request)
    for other in (request, ("POST", "/topics/t", (), b"anything")):
        full = WholeService(schemas={"t": False}, **ONE_CHECK)
        raw(full, request_bytes(*other))
        yield full.request(*request)
    full = WholeService()
    fill(full, "hook:h")
    headers = [*request[2], (b"Content-Length", b"8")]
    connection = raw(full, request_bytes(*request[:2], headers))
    connection.send(b"anyt", b"hing")
    yield connection.responses(["POST"])[0]
    service.use_hooks(f"{HOOK}requests_per_second = 1")
    raw(service, request_bytes(*request))
    yield service.request(*request)


def answers_to_url_checks(method):
    service = WholeService()
    yield service.request(method, "/hooks/h?ssl_check=1")
    yield service.request(method, "/hooks/h")
    yield service.request(method, "/hooks/h", signed(b""))
    service.use_hooks(f"{HOOK}requests_per_second = 1")
    service.request(method, "/hooks/h", signed(b""))
    yield service.request(method, "/hooks/h", signed(b""))


def answers_to_tombstones():
    yield from answers_to_publishing("DELETE", "/topics/t?key=k")
    yield from answers_with_a_key("DELETE", "/topics/t?key=k")
    yield WholeService().request("DELETE", "/topics/t")
    yield WholeService().request("DELETE", "/topics/t?key=k", (), b"body")


V2 = [(b"Content-Type", b"application/vnd.kafka.json.v2+json")]
RECORDS = b'{"records":[{"value":1,"partition":0}]}'


def answers_to_produce_requests(target):
    yield from answers_to_publishing("POST", target, V2, RECORDS)
    yield answer_without_length(target, V2)
    service = WholeService(broker=PlannedBroker([STORED, Plan(errors.RecordTooLarge, is_stored=False)]))
    yield service.request("POST", target, V2, RECORDS)
    yield service.request("POST", target, V2, RECORDS.replace(b"[{", b'[{"value":1},{'))
    yield service.request("POST", target, V2, b"{")
    yield service.request("POST", target, V2, b"{}")
    yield from answers_of_checks("POST", target, V2, RECORDS)
    yield service.request("POST", target, [*V2, (b"Accept", b"text/html")], RECORDS)
    yield service.request("POST", target, [(b"Content-Type", b"application/vnd.kafka.avro.v2+json")], b"")
    yield service.request("POST", target.replace("/t", "/a:b", 2), V2, RECORDS)


def answers_to_raw_bodies_and_produce_requests():
    yield from answers_to_raw_bodies()
    yield from answers_to_produce_requests("/topics/t")
    accept = (b"Accept", b"application/json")
    yield WholeService(broker=PlannedBroker()).request("POST", "/topics/t", [*V2, accept], RECORDS)


class SilentBroker(ManualBroker):
    """A broker that cannot be asked which topics there are."""

    def list_topics(self):
        return fail(errors.BrokerUnavailable("It does not answer."))

    def describe_topics(self, topics):
        return self.list_topics()


def answers_about_topics(method, target):
    service = WholeService(broker=PlannedBroker())
    yield service.request(method, target)
    service.request("POST", "/topics/t", V2, RECORDS)
    for name, value in [(b"Accept", b"*/*"), (b"Accept", b"text/html")]:
        yield service.request(method, target, [(name, value)])
    yield service.request(method, target.replace("/0", "/1"))
    yield WholeService(callers=CALLERS).request(method, target, [(b"Authorization", b"Bearer nobody")])
    for accept in (b"*/*", b"*/*, application/problem+json"):
        yield WholeService(broker=SilentBroker()).request(method, target, [(b"Accept", accept)])


def answers_of_schemas(method):
    target = "/topics/t/schema"
    yield WholeService(schemas={"t": True}).request(method, target)
    yield WholeService().request(method, target)
    yield WholeService(callers=CALLERS).request(method, target, [(b"Authorization", b"Bearer nobody")])


def answers_of_metrics(method):
    for accept in (b"*/*", b"application/openmetrics-text"):
        yield WholeService().request(method, "/metrics", [(b"Accept", accept)])


def answers_of_files(method):
    service = WholeService()
    page = service.request("GET", "/docs").body.decode()
    for name in re.findall('"(docs/[^"]+[.][^"]+)"', page):
        yield from answers_with_validators(method, f"/{name}")
    yield service.request(method, "/docs/other.js")


class ReadBroker(ManualBroker):
    """A broker that has one record, or one answer to every read."""

    def __init__(self, *, error=None, **fields):
        super().__init__()
        self.error = error
        self.fields = fields

    def follow(self, *, topic, observer, start):
        return SimpleNamespace(stop=lambda: succeed(None), unavailable_reason=lambda: None)

    def read(self, request):
        if self.error is not None:
            return fail(self.error)
        record = ConsumerRecord(
            topic=request.topic, partition=0, offset=0, timestamp_ms=0, key=None, value=b"v"
        )
        fields = {"topic_id": "x", "records": [record], "positions": {0: 1}, "ends": {0: 1}, "partitions": 1}
        return succeed(ReadResult(**{**fields, **self.fields}))


def answers_of_records(method):
    target = "/topics/t/records"

    def ask(query="", *, limits=None, accept=b"*/*", **fields):
        service = WholeService(broker=ReadBroker(**fields), **(limits or {}))
        return service.request(method, target + query, [(b"Accept", accept)])

    yield ask()
    yield ask(accept=b"text/event-stream")
    yield ask(records=())
    yield ask("?limit=0")
    yield ask("?from=y~1")
    yield ask("?from=x~1", records=(), beyond={0: 0})
    yield ask("?from=x~1", records=(), gone=[GoneRecords(0, 1, 2)])
    yield ask("?wait=1", records=(), limits={"max_streams": 0})
    yield ask("?wait=1", records=(), limits={"max_followed_topics": 0})
    yield ask(limits={"max_body_memory": 10})
    service = WholeService(broker=ReadBroker())
    fill(service, "")
    yield service.request(method, target)
    for kind in (
        errors.UnknownTopic,
        errors.UnknownPartition,
        errors.TopicNotAuthorized,
        errors.BrokerUnavailable,
        errors.BrokerIncompatible,
        errors.BrokerStopped,
    ):
        yield ask(error=kind("It failed."))


OF_WORK = (
    errors.OutcomeUnknown,
    errors.TopicNotAuthorized,
    errors.WorkNotSupported,
    errors.BrokerUnavailable,
    errors.BrokerStopped,
)


def answers_to_workers(action, body, answer, kinds):
    path = f"/topics/t/groups/g/{action}"

    def ask(answer, body=body, headers=JSON, *, path=path, **limits):
        service = WholeService(broker=WorkerBroker(), **limits)
        connection = raw(service, request_bytes("POST", path, headers, json.dumps(body).encode()))
        if service.broker.asked:
            waiting = service.broker.asked[0].answer
            (waiting.errback if isinstance(answer, Exception) else waiting.callback)(answer)
        return connection.responses(["POST"])[0]

    yield ask(answer)
    for kind in (*OF_WORK, *kinds):
        yield ask(kind("It failed."))
    yield ask(None, body=[])
    yield ask(None, headers=[])
    yield ask(None, path=path.replace("/g/", "/a:b/"))
    yield WholeService().request("POST", path, JSON, b"{")
    full = WholeService(max_waiting=1)
    raw(full, request_bytes("POST", "/messages", JSON, MESSAGE))
    yield full.request("POST", path, JSON, b"{}")
    full = WholeService(max_body_memory=10)
    fill(full, "")
    yield raw(full, request_bytes("POST", path, [*JSON, (b"Content-Length", b"1")])).responses(["POST"])[0]
    if action == "pull":
        yield ask(None)
        yield ask(None, {"wait": 1}, max_streams=0)


def answers_about_groups(method):
    for answer in (17, None, *(kind("It failed.") for kind in (*OF_WORK, errors.UnknownTopic))):
        service = WholeService(broker=WorkerBroker())
        connection = raw(service, request_bytes(method, "/topics/t/groups/g"))
        waiting = service.broker.asked[0].answer
        (waiting.errback if isinstance(answer, Exception) else waiting.callback)(answer)
        yield connection.responses([method])[0]
    yield WholeService().request(method, "/topics/t/groups/a:b")


LEASE = {"lease": "bGVhc2U"}
RECORDS_OF_TOPIC = "/topics/{topic}/records"
GROUP = "/topics/{topic}/groups/{group}"
SCHEMA_OF_TOPIC = "/topics/{topic}/schema"
ONE_PARTITION = "/topics/{topic}/partitions/{partition}"
ANSWERS = {
    ("GET", "/"): lambda: answers_of_readings("GET"),
    ("HEAD", "/"): lambda: answers_of_readings("HEAD"),
    ("GET", "/changes"): lambda: answers_of_changes("GET"),
    ("HEAD", "/changes"): lambda: answers_of_changes("HEAD"),
    ("POST", "/messages"): answers_to_messages,
    ("POST", "/topics/{topic}"): answers_to_raw_bodies_and_produce_requests,
    ("POST", "/hooks/{hook}"): answers_to_hooks,
    ("GET", "/hooks/{hook}"): lambda: answers_to_url_checks("GET"),
    ("HEAD", "/hooks/{hook}"): lambda: answers_to_url_checks("HEAD"),
    ("POST", ONE_PARTITION): lambda: answers_to_produce_requests("/topics/t/partitions/0"),
    **{
        (method, path): partial(answers_about_topics, method, target)
        for method in ("GET", "HEAD")
        for path, target in [
            ("/topics", "/topics"),
            ("/topics/{topic}", "/topics/t"),
            ("/topics/{topic}/partitions", "/topics/t/partitions"),
            (ONE_PARTITION, "/topics/t/partitions/0"),
        ]
    },
    ("GET", SCHEMA_OF_TOPIC): lambda: answers_of_schemas("GET"),
    ("HEAD", SCHEMA_OF_TOPIC): lambda: answers_of_schemas("HEAD"),
    ("GET", RECORDS_OF_TOPIC): lambda: answers_of_records("GET"),
    ("HEAD", RECORDS_OF_TOPIC): lambda: answers_of_records("HEAD"),
    ("GET", GROUP): lambda: answers_about_groups("GET"),
    ("HEAD", GROUP): lambda: answers_about_groups("HEAD"),
    ("POST", f"{GROUP}/pull"): lambda: answers_to_workers(
        "pull", {}, lease_of(), [errors.UnknownTopic, errors.TooManyLeases]
    ),
    ("POST", f"{GROUP}/ack"): lambda: answers_to_workers(
        "ack", LEASE, Acknowledged(accepted=1, released=2, rejected=3), [errors.LeaseLost]
    ),
    ("POST", f"{GROUP}/extend"): lambda: answers_to_workers(
        "extend", LEASE, Extended(token=b"t", ends_ms=0), [errors.LeaseLost, errors.TooManyLeases]
    ),
    ("DELETE", "/topics/{topic}"): answers_to_tombstones,
    ("GET", "/live"): lambda: [WholeService().request("GET", "/live")],
    ("HEAD", "/live"): lambda: [WholeService().request("HEAD", "/live")],
    ("GET", "/ready"): lambda: answers_of_readiness("GET"),
    ("HEAD", "/ready"): lambda: answers_of_readiness("HEAD"),
    ("GET", "/openapi.json"): lambda: answers_with_validators("GET", "/openapi.json"),
    ("GET", "/docs"): lambda: answers_with_validators("GET", "/docs"),
    ("HEAD", "/docs"): lambda: answers_with_validators("HEAD", "/docs"),
    ("GET", "/docs/readings"): lambda: answers_with_validators("GET", "/docs/readings"),
    ("HEAD", "/docs/readings"): lambda: answers_with_validators("HEAD", "/docs/readings"),
    ("GET", "/docs/{file}"): lambda: answers_of_files("GET"),
    ("HEAD", "/docs/{file}"): lambda: answers_of_files("HEAD"),
    ("GET", "/metrics"): lambda: answers_of_metrics("GET"),
    ("HEAD", "/metrics"): lambda: answers_of_metrics("HEAD"),
    ("HEAD", "/openapi.json"): lambda: answers_with_validators("HEAD", "/openapi.json"),
}
"""
By the method and the path of each operation.

What the server may answer to every request is not among them, nor is ``OPTIONS``.
"""
TARGETS = {
    "/docs/{file}": "/docs/a.js",
    "/hooks/{hook}": "/hooks/h",
    "/topics/{topic}": "/topics/t?key=k",
    "/topics/{topic}/partitions": "/topics/t/partitions",
    RECORDS_OF_TOPIC: "/topics/t/records",
    SCHEMA_OF_TOPIC: "/topics/t/schema",
    ONE_PARTITION: "/topics/t/partitions/0",
    **{f"{GROUP}{action}": f"/topics/t/groups/g{action}" for action in ("", "/pull", "/ack", "/extend")},
}
"""Of paths with variables: one that is served."""


def answers_to(method, path):
    target = TARGETS.get(path, path)
    if method in {"GET", "HEAD"}:
        target = target.partition("?")[0]
    headers = JSON if method == "POST" else ()
    if path == "/hooks/{hook}":
        headers = [*headers, *signed(b"x")]
    yield from answers_of_every_operation(method, target, headers)
    if method == "OPTIONS":
        yield WholeService().request("OPTIONS", target)
    else:
        yield from ANSWERS[method, path]()


def test_every_declared_answer_is_given_and_every_given_answer_is_declared(described, no_failure_is_lost):
    given_answers = {
        described.outcome(method, path, answer)
        for method, path in described.operations()
        for answer in answers_to(method, path)
    }
    for_rest_proxy = described.operations_with_error_objects()
    declared = described.outcomes()
    # For clients of REST Proxy, the form of an error does not always contain its type.
    assert {given for given in given_answers if given[:2] not in for_rest_proxy} == {
        each for each in declared if each[:2] not in for_rest_proxy
    }
    assert {given for given in given_answers if given[3]} <= declared
    assert {given[:3] for given in given_answers} == {each[:3] for each in declared}
    assert {failure.type for failure in no_failure_is_lost} == {ZeroDivisionError}
    no_failure_is_lost.clear()


def test_a_status_has_one_component_whose_problems_are_those_of_the_operations_and_of_no_operation(described):
    types = {}
    for name, component in described.document["components"]["responses"].items():
        if name != "Options":
            properties = component["content"]["application/problem+json"]["schema"]["properties"]
            # The names of statuses are others in other versions of Python.
            assert name == str(properties["status"]["const"])
            types[int(name)] = set(properties["type"]["enum"])
    named = {404: {"about:blank"}, 405: {"about:blank"}}
    for method, _, status, kind in described.outcomes():
        if status >= 400 and method != "HEAD":
            named.setdefault(status, set()).add(kind)
    assert types == named


CALLERS = f"""
[callers.one]
read = true
consume = ["*"]
work = ["*"]
metrics = true
requests_per_second = 1
[[callers.one.tokens]]
sha256 = "{sha256(b"one").hexdigest()}"

[callers.two]
publish = ["*"]
consume = ["*"]
work = ["*"]
[[callers.two.tokens]]
sha256 = "{sha256(b"two").hexdigest()}"

[callers.nobody]
[[callers.nobody.tokens]]
sha256 = "{sha256(b"nobody").hexdigest()}"
"""


def answers_to_callers(method, path):
    """Yield the answers of access control."""
    service = WholeService(callers=CALLERS)

    def ask(*tokens):
        # Not as clients of REST Proxy are told it.
        headers = [(b"Accept", b"*/*, application/problem+json")]
        headers += [(b"Authorization", b"Bearer " + token) for token in tokens]
        return service.request(method, TARGETS.get(path, path), headers)

    yield ask()
    yield ask(b"wrong")
    yield ask(b"one", b"one")
    if method != "OPTIONS":
        yield ask(b"nobody")
    if path in ("/changes", RECORDS_OF_TOPIC) and method != "OPTIONS":
        full = WholeService(callers=CALLERS, max_streams_per_caller=0)
        target = TARGETS.get(path, path) + "?wait=1" * (path == RECORDS_OF_TOPIC)
        yield full.request(method, target, [(b"Authorization", b"Bearer one")])
    if path == f"{GROUP}/pull" and method == "POST":
        full = WholeService(callers=CALLERS, max_streams_per_caller=0, broker=WorkerBroker())
        yield full.request(method, TARGETS[path], [*JSON, (b"Authorization", b"Bearer one")], b'{"wait":1}')
    if method in ("POST", "DELETE") or (path == RECORDS_OF_TOPIC and method != "OPTIONS"):
        full = WholeService(callers=CALLERS, broker=ReadBroker())
        fill(full, "two")
        headers = [(b"Authorization", b"Bearer two"), (b"Accept", b"*/*, application/problem+json")]
        if method in ("POST", "DELETE"):
            headers += [*(V2 if path == ONE_PARTITION else JSON), (b"Content-Length", b"1")]
        yield raw(full, request_bytes(method, TARGETS.get(path, path), headers)).responses([method])[0]
    if method == "POST" and path in ("/messages", "/topics/{topic}"):
        full = WholeService(callers=CALLERS, schemas={"t": False}, **ONE_CHECK)
        headers = [*JSON, (b"Authorization", b"Bearer two")]
        raw(full, request_bytes(method, TARGETS.get(path, path), headers, MESSAGE))
        yield full.request(method, TARGETS.get(path, path), headers, MESSAGE)
    while (answer := ask(b"one")).status != 429:
        pass
    yield answer

    service.site.dispatch = key_not_known
    yield ask(b"a.b.c")


def key_not_known(request):
    raise IssuerKeysNotKnown(retry_after_s=2)


def test_where_it_is_asked_who_calls_that_is_described_and_nothing_else_changes():
    guarded = described_by(WholeService(callers=CALLERS))
    # With credentials, requests may be for any host.
    everybody = described_by(WholeService(allowed_hosts=None))
    OpenAPIV31SpecValidator(guarded.document).validate()
    rejected = {
        guarded.outcome(method, path, answer)
        for method, path in guarded.operations()
        if guarded.document["paths"][path][method.lower()]["security"]
        for answer in answers_to_callers(method, path)
    }
    # For clients of REST Proxy, the form of an error does not contain its type.
    of_rest_proxy = ("POST", ONE_PARTITION, 429)
    rejected.remove((*of_rest_proxy, ""))
    rejected.add((*of_rest_proxy, "urn:sampleapp:problem:body-memory-of-caller-full"))
    rejected.add((*of_rest_proxy, "urn:sampleapp:problem:schema-checks-of-caller-full"))
    assert rejected | everybody.outcomes() == guarded.outcomes()
    assert rejected - everybody.outcomes()
    assert set(guarded.document["components"]["securitySchemes"]) == {"token", "password"}
    assert "securitySchemes" not in everybody.document["components"]


@pytest.mark.parametrize("asks", [True, False])
def test_client_certificates_are_described_where_an_endpoint_asks_for_them(tmp_path, asks):
    authority = Authority(tmp_path)
    files = authority.server()
    (tmp_path / "callers.toml").write_text(CALLERS)
    endpoint = f"https:8443:privateKey={files.key}:certKey={files.certificate}"
    config = Config(
        broker="memory:",
        listen=("tcp:8080", f"{endpoint}:clientCA={authority.certificate}" if asks else endpoint),
        callers=str(tmp_path / "callers.toml"),
    )
    reactor = ReactorWithThreads()
    build(config, reactor=reactor).privilegedStartService()
    connection = Connection(reactor.tcpServers[0][1])
    connection.send(request_bytes("GET", "/openapi.json"))
    reactor.threads.do_one()
    (response,) = connection.responses(["GET"])
    described = Described(json.loads(response.body))
    OpenAPIV31SpecValidator(described.document).validate()
    assert "Strict-Transport-Security" in described.document["components"]["headers"]
    schemes = {"token", "password", *(["certificate"] if asks else [])}
    assert set(described.document["components"]["securitySchemes"]) == schemes
    named = {name for way in described.document["paths"]["/"]["get"]["security"] for name in way}
    assert named == schemes


ORIGIN = b"https://example.org"


def test_what_pages_of_other_sites_are_told_is_described_and_nothing_else_changes():
    service = WholeService(allowed_origins=[ORIGIN.decode()], callers=CALLERS)
    described, without = described_by(service), described_by(WholeService(callers=CALLERS))
    OpenAPIV31SpecValidator(described.document).validate()
    assert described.outcomes() == without.outcomes()
    asked = (b"Access-Control-Request-Method", b"GET")
    for method, path in described.operations():
        for headers in [[], [(b"Origin", ORIGIN)], [(b"Origin", ORIGIN), asked]]:
            for credentials in [[], [(b"Authorization", b"Bearer nobody")]]:
                answer = service.request(method, TARGETS.get(path, path), [*headers, *credentials])
                described.outcome(method, path, answer)


@pytest.mark.parametrize(("listen", "has_hsts"), [("tcp:8080", True), ("https:8443", False)])
def test_hsts_is_described_only_where_it_is_sent(tmp_path, listen, has_hsts):
    files = Authority(tmp_path).server()
    if listen.startswith("https"):
        listen = f"{listen}:privateKey={files.key}:certKey={files.certificate}"
    config = Config(
        broker="memory:",
        is_open_to_everybody=True,
        listen=(listen,),
        admin=listen,
        has_hsts=has_hsts,
        limits=Limits(kept_for_admin=9),
    )
    reactor = ReactorWithThreads()
    build(config, reactor=reactor).privilegedStartService()
    for _, factory, *_ in reactor.tcpServers:
        connection = Connection(getattr(factory, "wrappedFactory", factory))
        connection.send(request_bytes("GET", "/openapi.json"))
        if reactor.threads.waiting:
            reactor.threads.do_one()
        (response,) = connection.responses(["GET"])
        assert "Strict-Transport-Security" not in json.loads(response.body)["components"]["headers"]


def test_what_is_public_is_said_to_be():
    guarded = described_by(WholeService(callers=CALLERS))
    public = {
        path for path, item in guarded.document["paths"].items() if item.get("get", {}).get("security") == []
    }
    pages = {"/live", "/ready", "/openapi.json", "/docs", "/docs/readings", "/docs/{file}"}
    assert public == {*pages, "/hooks/{hook}"}


def test_what_is_answered_elsewhere_is_described_too(service, described):
    responses = described.document["components"]["responses"]
    for response, name in [
        (service.request("GET", "/nothing"), "404"),
        (service.request("PUT", "/messages"), "405"),
    ]:
        schema = responses[name]["content"]["application/problem+json"]["schema"]
        assert described.is_valid(json.loads(response.body), schema)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.sampled_from([".", "..", "...", "t" * 249, "t" * 250]),
)
TOPICS = st.one_of(VALUES, st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True))
DOCUMENTS = st.one_of(
    VALUES,
    st.lists(VALUES, max_size=2),
    st.fixed_dictionaries({}, optional={"topic": TOPICS, "content": VALUES, "key": VALUES, "Key": VALUES}),
    st.fixed_dictionaries({"topic": TOPICS, "content": st.text()}, optional={"key": st.none() | st.text()}),
)


@pytest.fixture(scope="module")
def message_schema():
    described = described_by(WholeService())
    return lambda value: described.is_valid(value, {"$ref": "#/components/schemas/Message"})


@given(DOCUMENTS)
def test_the_schema_of_a_message_takes_what_the_parser_takes(message_schema, value):
    try:
        parse_message(json.dumps(value).encode())
    except InvalidMessage:
        assert not message_schema(value)
    else:
        assert message_schema(value)


NUMBERS = st.one_of(
    st.integers(-1, 10**18),
    st.sampled_from([0, 1, 842, 2**31 - 1, 2**31, 10**11 - 1, 10**11, 10**14 - 1, 10**14]),
).flatmap(lambda number: st.sampled_from([number, float(number), number + 0.5]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NUMBERS)
def test_the_schema_takes_the_integers_that_the_parsers_take_also_with_a_fraction_of_zero(described, number):
    def compare(read, body, schema):
        try:
            read(json.dumps(body).encode())
        except InvalidMessage:
            assert not described.is_valid(body, {"$ref": f"#/components/schemas/{schema}"})
        else:
            assert described.is_valid(body, {"$ref": f"#/components/schemas/{schema}"})

    def read_produce_request(body):
        list(read_records(body, EmbeddedFormat.JSON, topic="t", partition=None, timestamp_ms=0))

    compare(parse_message, {"topic": "t", "content": "c", "timestamp": number}, "Message")
    compare(read_produce_request, {"records": [{"value": 1, "partition": number}]}, "JSONProduceRequest")


@given(TOPICS.filter(lambda topic: isinstance(topic, str)))
def test_the_schema_of_a_topic_is_the_rule_for_topics(message_schema, topic):
    assert message_schema({"topic": topic, "content": ""}) == is_legal_topic(topic)


def test_the_document_is_public_and_has_a_tag(service):
    first = service.request("GET", "/openapi.json")
    assert first.headers[b"cache-control"] == b"no-cache"
    again = service.request("GET", "/openapi.json", [(b"If-None-Match", first.headers[b"etag"])])
    assert (again.status, again.body, again.headers[b"etag"]) == (304, b"", first.headers[b"etag"])
    assert AdminApp.app.routes["openapi"].right is Right.NONE


def test_a_route_without_a_description_is_no_part_of_a_document():
    app = App()

    @app.route("/secret", methods=["GET"])
    def secret(self, request):
        raise NotImplementedError

    with pytest.raises(ValueError, match="/secret has no description"):
        openapi_document([app], version="1")


def test_a_description_names_the_variables_of_its_path():
    app = App()

    @app.route(
        "/shelves/<shelf>", methods=["GET"], description=Description(tag="t", summary="s", successes=())
    )
    def shelf(self, request, *, shelf):
        raise NotImplementedError

    with pytest.raises(ValueError, match="shelf"):
        openapi_document([app], version="1")
