"""``/topics/{topic}``: any body as a record, and tombstones."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.errors import PublishError
from sampleapp.model import Record
from sampleapp.web.errors import ROWS
from tests.support import strategies
from tests.support.brokers import Recorder
from tests.support.callers import by, caller
from tests.support.in_memory import InMemoryService, ManualBroker, PromptBroker, request_bytes
from tests.web.http import assert_problem, chunked

EVENT = [
    (b"Ce-Specversion", b"1.0"),
    (b"Ce-Type", b"com.example.someevent"),
    (b"Ce-Source", b"/mycontext"),
    (b"Ce-Id", b"1234"),
]
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def record_of(**members):
    return Record(**{"topic": "t", "key": None, "timestamp_ms": 1_700_000_000_000, **members})


def pointers_of(response):
    assert_problem(response, 422)
    problem = json.loads(response.body)
    assert problem["type"] == "urn:sampleapp:problem:invalid-parameters"
    return [fault["pointer"] for fault in problem["errors"]]


content_types = st.none() | st.sampled_from(
    [
        *[b"application/json", b"text/plain", b"", b"application/octet-stream", b"application/x-ndjson"],
        *[b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"no type", b"\xff"],
    ]
)


@example("t", None, bytes(1000), None, (1, []))
@given(
    strategies.topics,
    st.none() | st.binary(),
    st.binary(),
    content_types,
    st.tuples(st.none() | st.integers(1, 20), st.lists(st.floats(0, 1), max_size=5)),
)
def test_any_body_in_any_segments_becomes_one_record_byte_for_byte(topic, key, body, content_type, pieces):
    chunk_size, cuts = pieces
    service = InMemoryService(broker=PromptBroker())
    target = f"/topics/{topic}" if key is None else f"/topics/{topic}?key={quote_from_bytes(key)}"
    headers = [] if content_type is None else [(b"Content-Type", content_type)]
    if chunk_size is None:
        data = request_bytes("POST", target, headers, body)
    else:
        head = request_bytes("POST", target, [*headers, (b"Transfer-Encoding", b"chunked")])
        data = head + chunked(body, chunk_size)
    places = [0, *sorted(int(cut * len(data)) for cut in cuts), len(data)]
    connection = service.connect()
    connection.send(*(data[start:end] for start, end in pairwise(places)))
    # Many chunks are read in several turns.
    service.clock.pump([0] * 50)
    (response,) = connection.responses(["POST"])
    assert (response.status, json.loads(response.body)) == (
        200,
        {"topic": topic, "partition": 0, "offset": 0},
    )
    # Without the white space around it, as HTTP has it.
    kept = () if content_type is None else (("content-type", content_type),)
    assert service.broker.records == [record_of(topic=topic, key=key, value=body, headers=kept)]


@given(strategies.topics, st.binary())
def test_a_tombstone_has_its_key_and_no_value(topic, key):
    service = InMemoryService(broker=PromptBroker())
    response = service.request("DELETE", f"/topics/{topic}?key={quote_from_bytes(key)}")
    assert (response.status, json.loads(response.body)) == (
        200,
        {"topic": topic, "partition": 0, "offset": 0},
    )
    assert service.broker.records == [record_of(topic=topic, key=key, value=None)]


def test_a_tombstone_removes_a_reading_s_key_from_what_is_stored():
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    service = InMemoryService(broker=broker)
    service.request("POST", "/topics/t?key=a+b", [], b"21.5")
    service.request("DELETE", "/topics/t?key=a%20b")
    observer = Recorder()
    broker.follow(topic="t", observer=observer)
    clock.pump([0.1] * 10)
    assert [(record.key, record.value) for record in observer.records] == [(b"a b", b"21.5"), (b"a b", None)]
    broker.stop(deadline_s=0)


def test_a_post_without_any_body_is_an_empty_value(service):
    assert service.request("POST", "/topics/t").status == 200
    assert service.broker.records == [record_of(value=b"", timestamp_ms=1_700_000_000_000)]


@pytest.mark.parametrize(
    ("method", "target", "pointers"),
    [
        ("POST", "/topics/..", ["/topic"]),
        ("POST", "/topics/.?x", ["/topic", "/x"]),
        ("POST", f"/topics/{'t' * 250}", ["/topic"]),
        ("POST", "/topics/a%20b", ["/topic"]),
        ("POST", "/topics/a%0A", ["/topic"]),
        ("POST", "/topics/%C3%A4?key=1&key=2&Key=3", ["/topic", "/key", "/Key"]),
        ("POST", "/topics/t?partition=1", ["/partition"]),
        ("DELETE", "/topics/t", ["/key"]),
        ("DELETE", "/topics/t?", ["/key"]),
        ("DELETE", "/topics/a:b?k=1", ["/topic", "/k", "/key"]),
        ("DELETE", "/topics/t?key=1&key=2", ["/key"]),
    ],
)
def test_all_that_is_wrong_with_path_and_query_is_named_and_nothing_published(
    service, method, target, pointers
):
    assert sorted(pointers_of(service.request(method, target))) == sorted(pointers)
    assert service.broker.records == []


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/topics", 405),
        ("/topics/", 404),
        ("/topics/a/b", 404),
        ("/topics/a%2Fb", 404),
        ("/topics/%ff", 400),
        ("/topics/%", 400),
    ],
)
def test_what_is_no_segment_is_no_topic(service, target, status):
    for method in ("POST", "DELETE"):
        assert_problem(service.request(method, f"{target}?key=k"), status)
    assert service.broker.records == []


def test_a_tombstone_takes_no_body(service):
    response = service.request("DELETE", "/topics/t?key=k", [], b"{}")
    assert pointers_of(response) == [""]
    assert service.request("DELETE", "/topics/t?key=k", [], b"").status == 200
    assert len(service.broker.records) == 1


# Envelopes of REST Proxy.

ENVELOPE = b'{"records":[{"value":{"name":"x"}}]}'
ANY = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just([{"records": []}])
record_members = st.sampled_from(["key", "value", "partition"])
any_record = st.dictionaries(record_members, ANY, max_size=3)
SCHEMAS = ["key_schema", "value_schema", "key_schema_id", "value_schema_id"]
nearly_records = st.lists(
    any_record | st.dictionaries(record_members | st.just("time"), ANY) | ANY, max_size=3
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "records": st.lists(any_record, max_size=3) | nearly_records | ANY,
        **dict.fromkeys(SCHEMAS, ANY),
        "total": ANY,
    },
).flatmap(lambda document: st.permutations([*document.items()]).map(dict))
not_of_rest_proxy = content_types.filter(lambda each: each is None or b"," not in each)


def is_envelope(document):
    """Say what the contract says, with another decoder."""
    if not document.keys() <= {"records", *SCHEMAS} or not isinstance(document.get("records"), list):
        return False
    return all(
        isinstance(record, dict) and record.keys() <= {"key", "value", "partition"}
        for record in document["records"]
    )


@example({"records": []}, None, 0, b"")
@example({"records": [{}]}, None, 0, b"\xef\xbb\xbf")
@example({"records": [{"value": "\ud800"}]}, None, None, b"")
@example({"records": [{"value": "\ud83d\ude00"}, {"time": 1}]}, None, None, b"")
@example({"records": [{"value": 1}] * 10_001}, b"application/json", None, b"")
@example({"records": [{"value": "x" * 2_000}] * 500}, b"application/json", None, b"")
@example({"records": [{"value": "x" * 2_000}] * 500, "next": 1}, b"application/json", None, b"")
@given(documents, not_of_rest_proxy, st.none() | st.integers(0, 2), st.sampled_from([b"", b" ", b"\r\n\t"]))
def test_an_envelope_becomes_no_record_in_another_type_than_its_own(document, content_type, indent, before):
    body = before + json.dumps(document, indent=indent).encode()
    service = InMemoryService(broker=PromptBroker())
    headers = [] if content_type is None else [(b"Content-Type", content_type)]
    response = service.request("POST", "/topics/t?key=k", headers, body)
    if is_envelope(document):
        assert response.status == 415
        assert response.headers[b"content-type"] == b"application/vnd.kafka.v2+json"
        answer = json.loads(response.body)
        assert answer["error_code"] == 415
        for word in ("vnd.kafka.json.v2+json", "vnd.kafka.binary.v2+json", "envelope=value"):
            assert word in answer["message"]
        assert service.broker.records == []
        response = service.request("POST", "/topics/t?envelope=value&key=k", headers, body)
    assert response.status == 200
    assert [(record.key, record.value) for record in service.broker.records] == [(b"k", body)]


@pytest.mark.parametrize(
    "body",
    [
        ENVELOPE[:-1],
        ENVELOPE + b"x",
        b'{"records":[{"value":NaN}]}',
        b'{"records"',
        b'{"recordset":[]}',
        b'{"value_schema_id":1}',
        b"[%b]" % ENVELOPE,
        b'"records"',
    ],
)
def test_a_body_that_only_begins_like_an_envelope_is_a_value(service, body):
    assert service.request("POST", "/topics/t", [], body).status == 200
    assert service.broker.records[0].value == body


def test_of_a_very_long_body_the_beginning_decides():
    service = InMemoryService(broker=PromptBroker(), max_body=4 * 1024 * 1024)
    long = b"x" * 2 * 1024 * 1024
    envelope = b'{"records":[{"value":"%b"}]}' % long
    assert service.request("POST", "/topics/t", [], envelope).status == 415
    assert service.broker.records == []
    other = b'{"records":[{"value":1}],"next":"%b"}' % long
    assert service.request("POST", "/topics/t", [], other).status == 200


def test_a_compressed_envelope_is_one_too(service):
    coded = [(b"Content-Encoding", b"gzip"), (b"Content-Type", b"application/json")]
    assert service.request("POST", "/topics/t", coded, gzip.compress(ENVELOPE)).status == 415
    assert service.request("POST", "/topics/t?envelope=value", coded, gzip.compress(ENVELOPE)).status == 200
    assert [record.value for record in service.broker.records] == [ENVELOPE]


def test_the_data_of_an_event_may_look_like_an_envelope(service):
    headers = [*EVENT, (b"Content-Type", b"application/json")]
    assert service.request("POST", "/topics/t", headers, ENVELOPE).status == 200
    assert service.broker.records[0].value == ENVELOPE


@pytest.mark.parametrize(
    ("method", "query", "content_type"),
    [
        ("POST", "envelope=records", b"application/json"),
        ("POST", "envelope=", b"application/json"),
        ("POST", "envelope=value&envelope=value", b"application/json"),
        ("DELETE", "key=k&envelope=value", b"application/json"),
    ],
)
def test_the_parameter_for_an_envelope_has_one_value_and_no_meaning_elsewhere(
    service, method, query, content_type
):
    headers = [(b"Content-Type", content_type)]
    body = b"" if method == "DELETE" else ENVELOPE
    assert pointers_of(service.request(method, f"/topics/t?{query}", headers, body)) == ["/envelope"]
    of_rest_proxy = [(b"Content-Type", b"application/vnd.kafka.json.v2+json")]
    assert service.request("POST", "/topics/t?envelope=value", of_rest_proxy, ENVELOPE).status == 422
    assert service.broker.records == []


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/topics/granted", b"HTTP/1.1 100 "),
        ("DELETE", "/topics/granted?key=k", b"HTTP/1.1 100 "),
        ("POST", "/topics/other", b"HTTP/1.1 403 "),
        ("DELETE", "/topics/other?key=k", b"HTTP/1.1 403 "),
        ("POST", "/topics/a:b", b"HTTP/1.1 422 "),
        ("POST", "/topics/granted?x", b"HTTP/1.1 422 "),
        ("DELETE", "/topics/granted", b"HTTP/1.1 422 "),
    ],
)
def test_rights_path_and_query_are_looked_at_before_the_body_is_taken(method, target, status):
    service = InMemoryService(broker=PromptBroker(), callers=caller("one", 'publish = ["granted"]'))
    connection = service.connect()
    headers = [by("one"), (b"Expect", b"100-continue"), (b"Content-Length", b"5")]
    connection.send(request_bytes(method, target, headers))
    assert connection.sent.startswith(status)
    if status == b"HTTP/1.1 403 ":
        assert b"may not publish to the topic other." in connection.sent


publish_errors = [error for error in ROWS if issubclass(error, PublishError)]


@pytest.mark.parametrize("error", publish_errors)
@pytest.mark.parametrize(("method", "target"), [("POST", "/topics/t"), ("DELETE", "/topics/t?key=k")])
def test_every_failure_has_the_status_that_it_has_for_a_message(error, method, target):
    service = InMemoryService(broker=ManualBroker())
    connection = service.connect()
    connection.send(request_bytes(method, target))
    service.broker.waiting[0].errback(error("Because."))
    (response,) = connection.responses([method])
    assert_problem(response, ROWS[error].status)


STRUCTURED = b' {"specversion":"1.0","id":"1","source":"s","type":"t","partitionkey":"p"}'


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([*EVENT, (b"ce-partitionkey", b"p")], b""),
        ([(b"Content-Type", b"application/cloudevents+json")], STRUCTURED),
    ],
)
def test_the_partitionkey_of_an_event_is_the_key_unless_the_query_has_one(service, headers, body):
    for target, key in [("/topics/t", b"p"), ("/topics/t?key=k", b"k"), ("/topics/t?key=", b"")]:
        assert service.request("POST", target, headers, body).status == 200
        record = service.broker.records[-1]
        assert (record.key, record.value) == (key, body)
        assert body or record.headers[-1] == ("ce_partitionkey", b"p")


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        (b"application/cloudevents+json", b"not json", 400),
        (b"application/cloudevents+json", b"{}", 422),
        (b"application/cloudevents+avro", STRUCTURED, 415),
        (b"application/cloudevents", STRUCTURED, 415),
    ],
)
def test_a_structured_event_that_is_none_is_rejected(service, content_type, body, status):
    response = service.request("POST", "/topics/t", [(b"Content-Type", content_type)], body)
    assert_problem(response, status)
    assert service.broker.records == []


EVENT_HEADERS = (
    ("ce_specversion", b"1.0"),
    ("ce_type", b"com.example.someevent"),
    ("ce_source", b"/mycontext"),
    ("ce_id", b"1234"),
)
BATCHED = [(b"Content-Type", b"application/cloudevents-batch+json; charset=utf-8")]


def test_each_event_of_a_batch_becomes_a_structured_record(service):
    body = b"[%b,%b]" % (STRUCTURED, STRUCTURED.replace(b'"p"', b"null"))
    response = service.request("POST", "/topics/t", [*BATCHED, (b"traceparent", PARENT)], body)
    assert (response.status, response.headers[b"content-type"]) == (200, b"application/x-ndjson")
    assert [json.loads(line)["offset"] for line in response.body.splitlines()] == [0, 1]
    headers = (("content-type", b"application/cloudevents+json"), ("traceparent", PARENT))
    assert service.broker.records == [
        record_of(key=b"p", value=STRUCTURED.strip(), headers=headers),
        record_of(key=None, value=STRUCTURED.strip().replace(b'"p"', b"null"), headers=headers),
    ]


@pytest.mark.parametrize(
    ("body", "status", "pointers"),
    [
        (b"[%b,{}]" % STRUCTURED, 422, ["/1/specversion", "/1/id", "/1/source", "/1/type"]),
        (b"[%b,{},nul]" % STRUCTURED, 400, None),
        (b"[]", 422, [""]),
        (b"{}", 400, None),
        (b'{"specversion":', 400, None),
    ],
)
def test_of_a_batch_with_anything_wrong_nothing_is_published(service, body, status, pointers):
    response = service.request("POST", "/topics/t", BATCHED, body)
    assert_problem(response, status)
    if pointers is not None:
        assert [fault["pointer"] for fault in json.loads(response.body)["errors"]] == pointers
    assert service.broker.records == []


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_an_event_keeps_its_attributes_and_its_trace(service, mode):
    content_type = {"binary": b"application/xml", "structured": b"application/cloudevents+json"}[mode]
    headers = [*EVENT, (b"Content-Type", content_type), (b"traceparent", PARENT)]
    assert service.request("POST", "/topics/t?key=k", headers, STRUCTURED).status == 200
    assert service.broker.records == [
        record_of(
            key=b"k",
            value=STRUCTURED,
            headers=(
                ("content-type", content_type),
                *(EVENT_HEADERS if mode == "binary" else ()),
                ("traceparent", PARENT),
            ),
        )
    ]


def test_what_an_event_lacks_is_named_with_all_else_that_is_wrong(service):
    response = service.request("POST", "/topics/a:b?x", EVENT[:1], b"")
    assert pointers_of(response) == ["/topic", "/x", "/ce-id", "/ce-source", "/ce-type"]
    assert service.broker.records == []


def test_a_trace_becomes_headers_of_tombstones_as_well(service):
    service.request("DELETE", "/topics/t?key=k", [(b"traceparent", PARENT), (b"tracestate", b"a=b")])
    assert service.broker.records[0].headers == (("traceparent", PARENT), ("tracestate", b"a=b"))


GITHUB = [
    (b"Content-Type", b"application/json"),
    (b"User-Agent", b"GitHub-Hookshot/1"),
    (b"X-GitHub-Event", b"push"),
    (b"X-GitHub-Delivery", b"17"),
    (b"X-Hub-Signature-256", b"sha256=00"),
    (b"Cookie", b"secret"),
    (b"traceparent", PARENT),
]
KEPT = (("content-type", b"application/json"), ("x-github-event", b"push"), ("x-github-delivery", b"17"))


KEPT_OF_PLAIN = (("content-type", b"text/plain"), ("x-a", b"1"))
STRUCTURED_HEADERS = (("content-type", b"application/cloudevents+json"),)


@pytest.mark.parametrize(("method", "target"), [("POST", "/topics/t"), ("DELETE", "/topics/t?key=k")])
def test_chosen_headers_of_a_request_become_headers_of_its_record(method, target):
    service = InMemoryService(broker=PromptBroker(), record_headers=("x-github-*", "x-hub-*"))
    assert service.request(method, target, GITHUB).status == 200
    assert service.broker.records[0].headers == (*KEPT, ("traceparent", PARENT))


@pytest.mark.parametrize(
    ("content_type", "body", "own"),
    [
        (b"application/xml", b"<a/>", EVENT_HEADERS),
        (b"application/cloudevents+json", STRUCTURED, ()),
        (b"application/cloudevents-batch+json", b"[%b]" % STRUCTURED, ()),
    ],
)
def test_the_records_of_events_have_one_content_type_and_the_chosen_headers(content_type, body, own):
    service = InMemoryService(broker=PromptBroker(), record_headers=("x-*",))
    headers = [*(EVENT if own else ()), (b"Content-Type", content_type), (b"X-Own", b"1")]
    assert service.request("POST", "/topics/t", headers, body).status == 200
    kept = (("content-type", content_type.replace(b"-batch", b"")), *own, ("x-own", b"1"))
    assert [record.headers for record in service.broker.records] == [kept]


@pytest.mark.parametrize(
    ("headers", "body", "own"),
    [
        ([], b"up", ()),
        ([(b"Content-Type", b"text/plain"), (b"X-A", b"1")], b"", KEPT_OF_PLAIN),
        (EVENT, b"<a/>", EVENT_HEADERS),
        ([(b"Content-Type", b"application/cloudevents+json")], STRUCTURED, STRUCTURED_HEADERS),
        (
            [(b"Content-Type", b"application/cloudevents-batch+json")],
            b"[%b]" % STRUCTURED,
            STRUCTURED_HEADERS,
        ),
    ],
)
def test_chosen_parameters_become_headers_of_the_record(headers, body, own):
    service = InMemoryService(
        broker=PromptBroker(), record_headers=("x-*",), record_queries=("event", "DevEUI")
    )
    fields = [*headers, (b"traceparent", PARENT)]
    response = service.request("POST", "/topics/t?DevEUI=00%ff+&key=k&event=up", fields, body)
    assert response.status == 200
    (record,) = service.broker.records
    assert (record.key, record.value.strip()) == (b"k", body.strip(b"[ ]"))
    assert record.headers == (
        *own,
        ("deveui", b"00\xff "),
        ("event", b"up"),
        ("traceparent", PARENT),
    )


@pytest.mark.parametrize("named", [(), ("event",)])
def test_a_parameter_that_is_not_chosen_is_rejected_with_the_option(named):
    service = InMemoryService(broker=PromptBroker(), record_queries=named)
    response = service.request("POST", "/topics/t?Event=up&event", [], b"x")
    assert_problem(response, 422)
    (fault, *_) = json.loads(response.body)["errors"]
    assert fault == {
        "pointer": "/Event",
        "detail": 'There is no parameter "Event" here; there are "key" and "envelope", besides those that '
        "the service's option --record-query names.",
    }
    assert_problem(service.request("POST", "/topics/t?event=a&event=b", [], b"x"), 422)
    # Tombstones and REST Proxy's API take none.
    assert_problem(service.request("DELETE", "/topics/t?key=k&event=up"), 422)
    produce = (b"Content-Type", b"application/vnd.kafka.json.v2+json")
    body = b'{"records": [{"value": 1}]}'
    assert service.request("POST", "/topics/t?event=up", [produce], body).status == 422
    assert service.broker.records == []


def test_messages_and_records_for_rest_proxy_keep_no_headers_of_their_request():
    service = InMemoryService(broker=PromptBroker(), record_headers=("x-*",))
    own = (b"X-Own", b"1")
    message = b'{"topic": "t", "content": ""}'
    service.request("POST", "/messages", [(b"Content-Type", b"application/json"), own], message)
    produce = (b"Content-Type", b"application/vnd.kafka.json.v2+json")
    service.request("POST", "/topics/t", [produce, own], b'{"records": [{"value": 1}]}')
    assert [record.headers for record in service.broker.records] == [(), ()]


def test_an_event_has_its_content_type_once_and_also_where_others_have_none():
    for is_recorded in (True, False):
        service = InMemoryService(
            broker=PromptBroker(), record_headers=("x-*",), has_record_content_type=is_recorded
        )
        service.request("POST", "/topics/t", [*EVENT, (b"Content-Type", b"a/b"), (b"X-A", b"1")])
        headers = service.broker.records[0].headers
        assert [header for header in headers if not header[0].startswith("ce_")] == [
            ("content-type", b"a/b"),
            ("x-a", b"1"),
        ]


def test_what_pages_of_other_sites_send_is_not_published(service):
    for method in ("POST", "DELETE"):
        response = service.request(method, "/topics/t?key=k", [(b"Origin", b"https://other.example")])
        assert_problem(response, 403)
    assert service.broker.records == []


def test_routes_and_topics_are_counted_under_names_that_nobody_makes_up():
    routes = []
    service = InMemoryService(broker=PromptBroker())
    service.site.on_response = lambda exchange, answer: routes.append((exchange.route, answer.record.topic))
    for n in range(3):
        service.request("POST", f"/topics/t{n}")
        service.request("DELETE", f"/topics/t{n}?key={n}")
    assert {route for route, _ in routes} == {"/topics/{topic}"}
    assert {topic for _, topic in routes} == {"t0", "t1", "t2"}
