"""The counts of requests, compared with those of an independent model."""

from __future__ import annotations

import json
from collections import Counter
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.errors import BufferFull, UnknownTopic
from sampleapp.measures import SECONDS
from sampleapp.model import RecordMetadata
from sampleapp.web import Batch, Exchange, Response, TopicTotal
from sampleapp.web.server import Peer
from tests.metrics.service import MeasuredService, of
from tests.support.examples import examples
from tests.support.in_memory import ManualBroker, request_bytes
from tests.web.http import JSON, raw

TOKEN = st.text("!#$%&'*+-.^_`|~0123456789ABCXYZabcxyz", min_size=1, max_size=12)
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]) | TOKEN
KNOWN_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
ROUTES = {("/", "GET"), ("/", "HEAD"), ("/messages", "POST"), ("/metrics", "GET"), ("/metrics", "HEAD")}
PATHS = st.sampled_from(["/", "/messages", "/metrics"]) | st.text(
    st.characters(codec="ascii", exclude_characters="?#", min_codepoint=0x21, max_codepoint=0x7E), max_size=8
).map("/x/{}".format)
BAD_HOSTS = ["a..b", "bad host"]
HOSTS = st.sampled_from(["a.example", "b.example:8080", "[::1]", "", *BAD_HOSTS])
TOPICS = st.sampled_from(["readings", "other", "a", "b"]) | TOKEN
CONTENTS = st.text(max_size=10)
BODIES = st.one_of(
    st.builds(
        lambda topic, key, content: {"topic": topic, "key": key, "content": content},
        TOPICS,
        st.none() | CONTENTS,
        CONTENTS,
    ),
    st.just({"topic": 1}),
)
REQUESTS = st.tuples(METHODS, PATHS, HOSTS, BODIES)
DELAYS_S = (0.0, 0.0004, 0.0007, 0.003, 0.02, 0.4, 7.0, 29.0, 31.0, 1000.0)


def request(method, path, host, body):
    data = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def status_in(sent):
    return sent[9:12].decode()


@examples(60)
@given(st.lists(REQUESTS, max_size=12))
def test_every_answer_counts_once_under_names_that_callers_cannot_make_up(requests):
    service = MeasuredService()
    answers, records, sizes, problems = Counter(), Counter(), Counter(), 0
    for method, path, host, body in requests:
        status = status_in(raw(service, request(method, path, host, body)).sent)
        # A head with such a host is not understood, and read no further.
        is_read = host not in BAD_HOSTS
        counted_method = method if is_read and method in KNOWN_METHODS else "other"
        route = path if is_read and (path, method) in ROUTES else "other"
        answers[counted_method, route, status] += 1
        if (path, method, status) == ("/messages", "POST", "200"):
            records[body["topic"]] += 1
            sizes[body["topic"]] += len((body["key"] or "").encode()) + len(body["content"].encode())
        if int(status) >= 400:
            problems += 1
    counted = service.counted()
    assert of(counted, "sampleapp_http_requests_total") == answers
    assert of(counted, "sampleapp_published_records_total") == records
    assert of(counted, "sampleapp_published_bytes_total") == sizes
    assert sum(of(counted, "sampleapp_problems_total").values()) == problems


@examples(50)
@given(st.lists(st.sampled_from(DELAYS_S), max_size=20))
def test_durations_are_those_from_the_header_to_the_answer(delays):
    broker = ManualBroker()
    service = MeasuredService(broker=broker)
    for delay_s in delays:
        service.connect().send(request_bytes("POST", "/messages", JSON, b'{"topic":"t","content":"c"}'))
        service.clock.advance(delay_s)
        broker.acknowledge()
    counted = service.counted()
    if not delays:
        assert of(counted, "sampleapp_http_request_duration_seconds_count") == {}
        return
    name = "sampleapp_http_request_duration_seconds"
    assert of(counted, f"{name}_count") == {"/messages": len(delays)}
    assert of(counted, f"{name}_sum")["/messages"] == pytest.approx(sum(delays), abs=1e-4)
    buckets = {bound: count for (bound, _), count in of(counted, f"{name}_bucket").items()}
    expected = {str(bound): sum(delay_s <= bound for delay_s in delays) for bound in SECONDS}
    assert buckets == expected | {"+Inf": len(delays)}


def test_the_body_takes_its_time_as_well():
    service = MeasuredService()
    connection = service.connect()
    data = request_bytes("POST", "/messages", JSON, b'{"topic":"t","content":"c"}')
    connection.send(data[:-5])
    service.clock.advance(3)
    connection.send(data[-5:])
    assert of(service.counted(), "sampleapp_http_request_duration_seconds_sum") == {
        "/messages": pytest.approx(3, abs=1e-4)
    }


def test_a_clock_that_is_set_back_takes_nothing_away():
    service = MeasuredService(broker=ManualBroker())
    service.connect().send(request_bytes("POST", "/messages", JSON, b'{"topic":"t","content":"c"}'))
    service.clock.rightNow -= 3600
    service.broker.acknowledge()
    counted = service.counted()
    assert of(counted, "sampleapp_http_request_duration_seconds_sum") == {"/messages": 0}
    assert of(counted, "sampleapp_http_request_duration_seconds_count") == {"/messages": 1}


def test_topics_after_the_first_hundred_count_as_one():
    service = MeasuredService()
    for number in range(250):
        service.post(b'{"topic":"t%d","key":"k","content":"cc"}' % number)
    # One that has the name of all the others is one of them.
    service.post(b'{"topic":"other","content":"cc"}')
    service.post(b'{"topic":"t7","content":"cc"}')
    counted = service.counted()
    records = of(counted, "sampleapp_published_records_total")
    assert records == {f"t{number}": 1 for number in range(100)} | {"t7": 2, "other": 151}
    assert of(counted, "sampleapp_published_bytes_total")["other"] == 150 * 3 + 2


def test_records_of_batches_count_for_their_topics_and_as_batches():
    service = MeasuredService()
    for published, rejected, problem in (
        ([("t", 2, 30), ("u", 1, 5)], 0, ""),
        ([("t", 1, 7)], 4, "publish-timed-out"),
        ([], 3, "invalid-message"),
    ):
        totals = tuple(TopicTotal(*total) for total in published)
        batch = Batch(published=totals, records=sum(total.records for total in totals), rejected=rejected)
        answer = Response(HTTPStatus.OK, batch=batch, problem=problem)
        service.counts.responded(Exchange(Peer(None), b"1", service.clock.seconds()), answer)
    service.post(b'{"topic":"t","content":"cc"}')
    counted = service.counted()
    assert of(counted, "sampleapp_published_records_total") == {"t": 4, "u": 1}
    assert of(counted, "sampleapp_published_bytes_total") == {"t": 39, "u": 5}
    assert of(counted, "sampleapp_batches_total") == {(): 3}
    assert of(counted, "sampleapp_batch_refused_records_total") == {(): 7}
    problems = of(counted, "sampleapp_problems_total")
    assert {kind for kind, count in problems.items() if count} == {"publish-timed-out", "invalid-message"}


def test_a_topic_may_have_the_name_of_all_the_others_from_the_start():
    service = MeasuredService()
    service.post(b'{"topic":"other","content":"c"}')
    for number in range(100):
        service.post(b'{"topic":"t%d","content":"c"}' % number)
    records = of(service.counted(), "sampleapp_published_records_total")
    assert len(records) == 100
    assert records["other"] == 2


@given(st.lists(st.tuples(TOKEN, st.sampled_from(list(HTTPStatus)), TOKEN, TOKEN), max_size=300))
def test_nothing_in_an_answer_makes_more_series_than_there_is_room_for(answers):
    service = MeasuredService()
    for _, status, topic, problem in answers:
        record = RecordMetadata(topic=topic, partition=0, offset=0)
        service.counts.responded(Exchange(Peer(None), b"1", 0.0), Response(status, record=record))
        service.counts.responded(Exchange(Peer(None), b"1", 0.0), Response(status, problem=problem))
    counted = service.counted()
    assert len(of(counted, "sampleapp_published_records_total")) <= 101
    assert set(of(counted, "sampleapp_problems_total")) <= {*MeasuredService().counts.problems, "other"}
    assert {route for _, route, _ in of(counted, "sampleapp_http_requests_total")} <= {"other"}


def test_problems_are_counted_by_their_kind():
    service = MeasuredService(broker=ManualBroker(), max_body=100)
    post = request_bytes("POST", "/messages", JSON, b'{"topic":"t","content":"c"}')
    for error in (UnknownTopic("No."), BufferFull("No."), BufferFull("No.")):
        service.connect().send(post)
        service.broker.waiting.pop().errback(error)
    service.post(b"{")
    service.post(b"{}")
    service.post(bytes(101))
    service.request("GET", "/nothing")
    service.request("PUT", "/messages")
    raw(service, b"\0\0\0\0\r\n\r\n")
    problems = of(service.counted(), "sampleapp_problems_total")
    assert {kind: count for kind, count in problems.items() if count} == {
        "bad-request": 1,
        "body-too-large": 1,
        "buffer-full": 2,
        "invalid-message": 1,
        "malformed-message": 1,
        "method-not-allowed": 1,
        "not-found": 1,
        "unknown-topic": 1,
    }


def test_a_fault_of_the_service_is_a_problem_of_its_own(no_failure_is_lost):
    service = MeasuredService(broker=ManualBroker())
    service.connect().send(request_bytes("POST", "/messages", JSON, b'{"topic":"t","content":"c"}'))
    service.broker.waiting.pop().errback(ValueError("a fault"))
    assert of(service.counted(), "sampleapp_problems_total")["internal-server-error"] == 1
    assert len(no_failure_is_lost) == 1
    no_failure_is_lost.clear()
