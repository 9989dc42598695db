"""Requests of clients of Confluent's REST Proxy, API v2, and the answers to them."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from twisted.internet.defer import fail
from twisted.internet.task import Clock
from twisted.web.server import Site

from sampleapp import errors
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import PartitionDescription, TopicDescription
from tests.support import strategies
from tests.support.callers import FULL, by, caller
from tests.support.in_memory import Connection, InMemoryService, PromptBroker, request_bytes
from tests.support.planned_outcomes import STORED, Plan, PlannedBroker, plans
from tests.web.http import assert_problem, chunked, same_headers
from tests.web.publish.test_batches import ServiceInTurns

V2 = b"application/vnd.kafka.v2+json"
JSON_TYPE = b"application/vnd.kafka.json.v2+json"
JSON = [(b"Content-Type", JSON_TYPE)]
BINARY = [(b"Content-Type", b"application/vnd.kafka.binary.v2+json")]
RECORDS = b'{"records":[{"value":1}]}'
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Cluster(PlannedBroker):
    """Three partitions for each topic of some, of which one has no leader."""

    def __init__(self, *outcomes, names=("orders", "t"), **options):
        super().__init__(outcomes, **options)
        self.names = names

    def _publish(self, record):
        # The broker below has one partition.
        outcome = super()._publish(replace(record, partition=None))
        self.published[-1] = record
        return outcome

    def list_topics(self):
        return super().list_topics().addCallback(lambda _: sorted(self.names))

    def describe_topics(self, topics):
        wanted = [name for name in self.names if name in topics]
        found = super().describe_topics([])
        partitions = (
            PartitionDescription(partition=0, leader=1, replicas=(1, 2), in_sync=(1,)),
            PartitionDescription(partition=1, leader=2, replicas=(1, 2), in_sync=(1, 2)),
            PartitionDescription(partition=2, leader=None, replicas=(2,), in_sync=()),
        )
        return found.addCallback(
            lambda _: [TopicDescription(name=name, partitions=partitions) for name in wanted]
        )


def service_with(*outcomes, **options):
    return InMemoryService(broker=Cluster(*outcomes, **options))


def assert_error(response, status, code, media_type=V2):
    assert response.status == status
    assert response.headers[b"content-type"] == media_type
    error = json.loads(response.body)
    assert set(error) == {"error_code", "message"}
    assert error["error_code"] == code
    assert error["message"]
    return error["message"]


def body_of(*records):
    return json.dumps({"records": records}).encode()


def rejection(kind):
    return Plan(kind, is_stored=False)


def test_records_of_json_are_published_and_answered_as_by_rest_proxy():
    service = service_with()
    body = body_of(
        {"key": "kitchen", "value": {"celsius": 21.50}}, {"value": "text"}, {"key": 7, "value": None}
    )
    response = service.request("POST", "/topics/t", [*JSON, (b"traceparent", PARENT)], body)
    assert response.status == 200
    assert response.headers[b"content-type"] == V2
    assert json.loads(response.body) == {
        "offsets": [{"partition": 0, "offset": n, "error_code": None, "error": None} for n in range(3)],
        "key_schema_id": None,
        "value_schema_id": None,
    }
    records = service.broker.published
    assert [(each.topic, each.key, each.value, each.partition) for each in records] == [
        ("t", b'"kitchen"', b'{"celsius":21.5}', None),
        ("t", None, b'"text"', None),
        ("t", b"7", None, None),
    ]
    assert {(each.timestamp_ms, each.headers) for each in records} == {
        (1_700_000_000_000, (("traceparent", PARENT),))
    }
    assert service.broker.batches == [3]


@example([(b"k" * 200, b"v" * 200)] * 3, 1)
@given(
    st.lists(st.tuples(st.none() | st.binary(), st.binary()), min_size=1, max_size=5),
    st.none() | st.integers(1, 9),
)
def test_records_of_base64_are_published_byte_for_byte_however_they_come(contents, chunk_size):
    service = service_with()
    records = [
        {"key": key if key is None else b64encode(key).decode(), "value": b64encode(value).decode()}
        for key, value in contents
    ]
    connection = service.connect()
    if chunk_size is None:
        connection.send(request_bytes("POST", "/topics/t", BINARY, body_of(*records)))
    else:
        head = request_bytes("POST", "/topics/t", [*BINARY, (b"Transfer-Encoding", b"chunked")])
        connection.send(head + chunked(body_of(*records), chunk_size))
        # Many chunks are read in several turns.
        service.clock.pump([0] * 50)
    (response,) = connection.responses(["POST"])
    assert response.status == 200
    assert [(each.key, each.value) for each in service.broker.published] == contents


@pytest.mark.parametrize(
    "content_type",
    [
        b"APPLICATION/vnd.kafka.JSON.v2+json",
        JSON_TYPE + b"; charset=utf-8",
        JSON_TYPE + b" ;q=1",
    ],
)
def test_media_types_have_no_case_and_parameters_do_not_matter(content_type):
    for target in ("/topics/t", "/topics/t/partitions/0"):
        assert (
            service_with().request("POST", target, [(b"Content-Type", content_type)], RECORDS).status == 200
        )


def test_a_compressed_body_is_read_as_any_other():
    service = service_with()
    headers = [*JSON, (b"Content-Encoding", b"gzip")]
    assert service.request("POST", "/topics/t", headers, gzip.compress(RECORDS)).status == 200
    assert [each.value for each in service.broker.published] == [b"1"]
    assert_error(service.request("POST", "/topics/t", headers, b"no gzip"), 400, 400)


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (None, V2),
        (b"", V2),
        (b"*/*", V2),
        (b"application/*", V2),
        (V2, V2),
        (V2 + b", application/vnd.kafka+json, application/json", V2),
        (b"application/vnd.kafka+json", b"application/vnd.kafka+json"),
        (b"application/json", b"application/json"),
        (b"application/json, " + V2 + b";q=0.5", b"application/json"),
        (b"not/valid/at/all", V2),
        *[
            (each, each)
            for each in (
                b"application/vnd.kafka.json.v2+json",
                b"application/vnd.kafka.binary.v2+json",
                b"application/vnd.kafka.avro.v1+json",
            )
        ],
        (b"application/vnd.kafka.json.v2+json, " + V2, V2),
        (
            b"application/vnd.kafka.JSON.v2+json; charset=utf-8, text/plain",
            b"application/vnd.kafka.json.v2+json",
        ),
    ],
)
def test_the_answer_has_the_type_that_the_client_takes(accept, media_type):
    headers = [] if accept is None else [(b"Accept", accept)]
    service = service_with()
    for response in (
        service.request("POST", "/topics/t", [*JSON, *headers], RECORDS),
        service.request("GET", "/topics", headers),
    ):
        assert (response.status, response.headers[b"content-type"]) == (200, media_type)
    assert_error(service.request("POST", "/topics/t", [*JSON, *headers], b"{}"), 422, 422, media_type)


@pytest.mark.parametrize("accept", [b"text/html", V2 + b";q=0", b"*/*;q=0", b"image/*"])
def test_a_client_that_takes_no_answer_publishes_nothing(accept):
    service = service_with()
    for method, target, headers, body in [
        ("POST", "/topics/t", JSON, RECORDS),
        ("POST", "/topics/t/partitions/0", JSON, RECORDS),
        ("GET", "/topics", [], None),
        ("GET", "/topics/t", [], None),
    ]:
        assert_error(service.request(method, target, [*headers, (b"Accept", accept)], body), 406, 406)
    assert service.broker.published == []


def test_a_record_goes_to_the_partition_that_it_names_or_else_to_that_of_the_path():
    service = service_with()
    body = body_of({"value": 1}, {"value": 2, "partition": 2}, {"value": 3, "partition": None})
    for target, of_path in [("/topics/t", None), ("/topics/t/partitions/1", 1)]:
        assert service.request("POST", target, JSON, body).status == 200
        assert [each.partition for each in service.broker.published[-3:]] == [of_path, 2, of_path]


@pytest.mark.parametrize(
    ("target", "partition"),
    [("/topics/t", 3), ("/topics/t/partitions/3", None), ("/topics/t/partitions/0", 2**31 - 1)],
)
def test_with_a_partition_that_does_not_exist_nothing_is_published(target, partition):
    service = service_with()
    response = service.request(
        "POST", target, JSON, body_of({"value": 1}, {"value": 1, "partition": partition})
    )
    assert "it has 3" in assert_error(response, 404, 40402)
    assert service.broker.published == []


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (errors.UnknownTopic, 404, 40401),
        (errors.TopicNotAuthorized, 403, 40301),
        (errors.BrokerUnavailable, 503, 50302),
        (errors.BrokerStopped, 503, 503),
    ],
)
def test_with_a_topic_that_cannot_be_published_to_nothing_is_published(reason, status, code):
    for target in ("/topics/t", "/topics/t/partitions/0"):
        service = service_with(topics={"t": reason})
        response = service.request("POST", target, JSON, RECORDS)
        assert_error(response, status, code)
        assert (b"retry-after" in response.headers) == (status == 503)
        assert service.broker.published == []


def test_more_than_the_broker_has_room_for_is_rejected_as_a_whole():
    service = service_with(together=errors.BufferFull)
    response = service.request("POST", "/topics/t", JSON, RECORDS)
    assert_error(response, 503, 503)
    assert response.headers[b"retry-after"] == b"1"


@pytest.mark.parametrize(
    ("headers", "body", "status", "code", "message"),
    [
        (JSON, b"", 400, 400, "it is empty"),
        (JSON, b"{", 400, 400, "The body is not JSON"),
        (JSON, b'{"records":[]}', 422, 422, '"records" is empty'),
        (JSON, b'{"foo":"bar"}', 422, 422, '"foo" is not a member'),
        (JSON, b'{"records":[{"valur":1}]}', 422, 422, 'a member "valur"'),
        (JSON, b'{"records":"an array"}', 422, 422, "must be an array"),
        (BINARY, b'{"records":["an object"]}', 422, 422, "is not an object"),
        (BINARY, b'{"records":[{"value":"not base64"}]}', 422, 40801, "that is not base64"),
        (BINARY, b'{"records":[{"value":{"a":1}}]}', 422, 40801, "not a string of base64"),
        (BINARY, b'{"records":[{"value":"?"},{"x":1}]}', 422, 422, "records[0]"),
        (JSON, rb'{"key_schema":"\q","records":[{"value":1}]}', 400, 400, "escaped character"),
        (JSON, b'{"key_schema":"\xff","records":[{"value":1}]}', 400, 400, "not UTF-8"),
        (JSON, b'{"key_schema_id":01,"records":[{"value":1}]}', 400, 400, "invalid number"),
        (JSON, rb'{"records":[{"value":"\ud800"}]}', 400, 400, "lone surrogate"),
        (JSON, b'{"records":[' + b"{}," * 20_000 + b"{}]}", 422, 422, "more than 20000 records"),
        (JSON, b'{"records":[{"value":1,"partition":-1}]}', 422, 422, '"partition" that is not an integer'),
    ],
)
def test_what_is_wrong_with_a_body_is_told_in_an_error_object(headers, body, status, code, message):
    for target in ("/topics/t", "/topics/t/partitions/0"):
        service = service_with()
        assert message in assert_error(service.request("POST", target, headers, body), status, code)
        assert service.broker.published == []
        assert service.broker.checked == []


@pytest.mark.parametrize("topic", ["a:b", "..", "t" * 250, "%C3%A4"])
def test_a_topic_that_cannot_be_is_rejected(topic):
    for target in (f"/topics/{topic}", f"/topics/{topic}/partitions/0"):
        assert "topic in the path" in assert_error(
            service_with().request("POST", target, JSON, b"{"), 422, 422
        )


NOT_HERE = [
    b"application/vnd.kafka.avro.v2+json",
    b"application/vnd.kafka.jsonschema.v2+json",
    b"application/vnd.kafka.protobuf.v2+json",
    b"application/vnd.kafka.binary.v1+json",
    b"application/vnd.kafka.v2+json",
    b"application/vnd.kafka+json",
    b"Application/VND.Kafka.avro.v2+JSON; charset=utf-8",
]


@pytest.mark.parametrize("content_type", NOT_HERE)
def test_what_rest_proxy_reads_otherwise_never_becomes_a_record_as_it_is(content_type):
    for target in ("/topics/t", "/topics/t/partitions/0"):
        service = service_with()
        response = service.request("POST", target, [(b"Content-Type", content_type)], RECORDS)
        assert JSON_TYPE.decode() in assert_error(response, 415, 415)
        assert response.headers[b"accept"] == JSON_TYPE + b", application/vnd.kafka.binary.v2+json"
        assert service.broker.published == []


@pytest.mark.parametrize("headers", [[], [(b"Content-Type", b"application/json")]])
def test_records_of_a_client_that_accepts_a_type_of_rest_proxy_never_become_a_record_as_they_are(headers):
    service = service_with()
    response = service.request("POST", "/topics/t", [*headers, (b"Accept", V2)], RECORDS)
    assert JSON_TYPE.decode() in assert_error(response, 415, 415)
    assert service.broker.published == []


@pytest.mark.parametrize("headers", [[], [(b"Content-Type", b"application/json")], [*JSON, *BINARY]])
def test_a_partition_takes_only_what_rest_proxy_knows(headers):
    response = service_with().request("POST", "/topics/t/partitions/0", headers, RECORDS)
    assert response.status == 415
    if not headers or headers[0][1] == b"application/json":
        assert_problem(response, 415)


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("/consumers/group", "no consumers"),
        ("/consumers/group/instances/one/records", "no consumers"),
        ("/v3/clusters", "API v3"),
        ("/v3/clusters/x/topics/t/records", "API v3"),
        ("/brokers", "brokers"),
        ("/topics/t/partitions/0/offsets", "offsets"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_not_there_of_rest_proxy_is_named(target, word, method):
    headers = [(b"Accept", V2)]
    assert word in assert_error(service_with().request(method, target, headers), 404, 404)
    plain = service_with().request(method, target, [(b"Accept", b"application/problem+json")])
    assert_problem(plain, 404)
    assert word in json.loads(plain.body)["detail"]


# Outcomes of the records.


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.RecordTooLarge, 413, 50002),
        (errors.RecordRefused, 422, 50002),
        (errors.TopicNotAuthorized, 403, 40301),
        (errors.UnknownTopic, 404, 40401),
        (errors.UnknownPartition, 404, 40402),
        (errors.BrokerUnavailable, 503, 50003),
        (errors.BufferFull, 503, 50003),
        (errors.BrokerIncompatible, 503, 50003),
        (errors.PublishTimedOut, 504, 50003),
        (errors.OutcomeUnknown, 504, 50003),
    ],
)
def test_where_no_record_is_published_the_status_is_that_of_the_first_failure(error, status, code):
    service = service_with(rejection(error), rejection(error))
    response = service.request("POST", "/topics/t", JSON, body_of({"value": 1}, {"value": 2}))
    assert response.status == status
    assert (b"retry-after" in response.headers) == (status == 503)
    entry = {"partition": None, "offset": None, "error_code": code, "error": "As planned."}
    assert json.loads(response.body) == {
        "offsets": [entry, entry],
        "key_schema_id": None,
        "value_schema_id": None,
    }


@given(st.lists(plans, min_size=1, max_size=8))
@example([STORED, rejection(errors.RecordTooLarge)])
@example([rejection(errors.RecordTooLarge), rejection(errors.PublishTimedOut)])
def test_the_status_and_each_entry_are_true_for_any_mixture_of_outcomes(outcomes):
    service = service_with(*outcomes)
    response = service.request(
        "POST", "/topics/t", JSON, body_of(*[{"value": n} for n in range(len(outcomes))])
    )
    answer = json.loads(response.body)
    assert (response.status == 200) == all(plan.error is None for plan in outcomes)
    stored = {each.offset: each.value for each in service.broker.records("t")}
    for number, (plan, entry) in enumerate(zip(outcomes, answer["offsets"], strict=True)):
        if plan.error is None:
            assert stored[entry["offset"]] == str(number).encode()
            assert (entry["partition"], entry["error_code"], entry["error"]) == (0, None, None)
        else:
            assert (entry["partition"], entry["offset"]) == (None, None)
            assert entry["error_code"] >= 40000
            assert entry["error"]
    failed = [plan.error for plan in outcomes if plan.error is not None]
    if any(each.possibly_published for each in failed):
        assert response.status == 504
    elif len(failed) < len(outcomes) and failed:
        assert response.status == (504 if any(each.retriable for each in failed) else 422)
    # After 503, nothing was published.
    assert response.status != 503 or not stored


def test_what_was_published_and_what_was_not_is_counted():
    service = service_with(STORED, rejection(errors.RecordTooLarge), STORED)
    answers = []
    service.site.on_response = lambda _exchange, answer: answers.append(answer)
    service.request("POST", "/topics/t", JSON, body_of({"key": "k", "value": 1}, {"value": 2}, {"value": 33}))
    service.request("POST", "/topics/t", JSON, body_of({"value": 1}, {"x": 1}, {"y": 1, "z": 1}))
    partly, rejected = answers
    (total,) = partly.batch.published
    assert (total.topic, total.records, total.bytes) == ("t", 2, 6)
    assert (partly.batch.records, partly.batch.rejected, partly.problem) == (2, 1, "partly-published")
    assert (rejected.batch.records, rejected.batch.rejected, rejected.problem) == (0, 2, "invalid-message")


def test_each_step_of_a_large_body_has_a_turn_of_its_own():
    service = ServiceInTurns(broker=Cluster())
    connection = service.connect()
    body = b'{"records": [{"value": "%b"}]}' % (b"x" * 500_000)
    connection.send(request_bytes("POST", "/topics/t", JSON, body))
    turns = 0
    while not connection.sent:
        assert service.broker.published == []
        service.clock.take()
        turns += 1
    # White space is removed, the records are decoded, and each has its key and value copied.
    assert turns >= 3


def test_a_long_body_lets_others_in():
    service = ServiceInTurns(broker=Cluster())
    count = 12_000
    body = body_of(*[{"key": f"k{n}", "value": {"text": "x" * 60}} for n in range(count)])
    connection, other = service.connect(), service.connect()
    connection.send(request_bytes("POST", "/topics/t", JSON, body))
    assert connection.responses([]) == []
    other.send(request_bytes("POST", "/topics/t", JSON, RECORDS))
    assert other.responses(["POST"])[0].status == 200
    turns = 0
    while not connection.sent:
        service.clock.take()
        turns += 1
    (response,) = connection.responses(["POST"])
    assert response.status == 200
    assert [each["offset"] for each in json.loads(response.body)["offsets"]] == list(range(1, count + 1))
    assert turns > 4


# Which topics there are.


REPLICAS = [
    [{"broker": 1, "leader": True, "in_sync": True}, {"broker": 2, "leader": False, "in_sync": False}],
    [{"broker": 1, "leader": False, "in_sync": True}, {"broker": 2, "leader": True, "in_sync": True}],
    [{"broker": 2, "leader": False, "in_sync": False}],
]
PARTITIONS = [
    {"partition": number, "leader": leader, "replicas": REPLICAS[number]}
    for number, leader in enumerate([1, 2, -1])
]


def test_topics_and_partitions_are_described_as_by_rest_proxy():
    service = service_with()
    expected = {
        "/topics": ["orders", "t"],
        "/topics/t": {"name": "t", "configs": {}, "partitions": PARTITIONS},
        "/topics/t/partitions": PARTITIONS,
        "/topics/t/partitions/2": PARTITIONS[2],
    }
    for target, document in expected.items():
        response = service.request("GET", target)
        assert (response.status, response.headers[b"content-type"]) == (200, V2)
        assert json.loads(response.body) == document
        head = service.request("HEAD", target)
        assert (head.status, same_headers(head), head.body) == (200, same_headers(response), b"")


@pytest.mark.parametrize(
    "target", ["/topics/u", "/topics/u/partitions", "/topics/u/partitions/0", "/topics/a:b"]
)
def test_a_topic_that_there_is_not_is_not_found(target):
    assert_error(service_with().request("GET", target), 404, 40401)


@pytest.mark.parametrize("number", ["3", "-1", "x", "1.0", "%D9%A1", "9" * 1900])
def test_a_partition_that_there_is_not_is_not_found(number):
    for method in ("GET", "POST"):
        body = (JSON, RECORDS) if method == "POST" else ()
        response = service_with().request(method, f"/topics/t/partitions/{number}", *body)
        assert_error(response, 404, 40402)


def test_a_topic_that_is_made_by_its_first_record_has_one_partition():
    service = InMemoryService(broker=MemoryBroker(clock=Clock()))
    body = body_of({"value": 1}, {"value": 2, "partition": 1})
    assert_error(service.request("POST", "/topics/new", JSON, body), 404, 40402)
    assert service.broker.records("new") == []
    assert service.request("POST", "/topics/new/partitions/0", JSON, RECORDS).status == 200
    assert len(service.broker.records("new")) == 1


class SilentBroker(Cluster):
    def list_topics(self):
        return fail(errors.BrokerUnavailable("The broker does not answer."))

    def describe_topics(self, topics):
        return self.list_topics()


def test_a_broker_that_cannot_be_asked_is_said_to_be_unavailable():
    service = InMemoryService(broker=SilentBroker())
    for target in ("/topics", "/topics/t", "/topics/t/partitions", "/topics/t/partitions/0"):
        assert_error(service.request("GET", target), 503, 50302)
    assert_error(service.request("POST", "/topics/t/partitions/0", JSON, RECORDS), 503, 50302)
    assert service.broker.published == []


# Rights, and errors of the service itself.


CALLERS = "".join(
    [
        FULL,
        caller("publisher", 'publish = ["t", "x.*"]'),
        caller("consumer", 'consume = ["orders"]'),
        caller("reader", "read = true"),
        caller("limited", 'publish = ["*"]', "requests_per_second = 1"),
        caller("nobody"),
    ]
)


@pytest.mark.parametrize(
    ("name", "names", "of_t", "of_orders", "publishing"),
    [
        ("full", ["orders", "t"], 200, 200, 200),
        ("publisher", ["t"], 200, 403, 200),
        ("consumer", ["orders"], 403, 200, 403),
        ("reader", [], 403, 403, 403),
        ("nobody", [], 403, 403, 403),
    ],
)
def test_a_caller_sees_the_topics_that_it_may_publish_to_or_consume(name, names, of_t, of_orders, publishing):
    service = InMemoryService(broker=Cluster(), callers=CALLERS)

    def get(target):
        return service.request("GET", target, [by(name)])

    assert json.loads(get("/topics").body) == names
    for suffix in ("", "/partitions", "/partitions/0"):
        assert [get(f"/topics/{topic}{suffix}").status for topic in ("t", "orders")] == [of_t, of_orders]
        if of_orders == 403:
            # The answer does not reveal whether the topic exists.
            assert get(f"/topics/unknown{suffix}").status == 403
    for target in ("/topics/t", "/topics/t/partitions/0"):
        assert service.request("POST", target, [*JSON, by(name)], RECORDS).status == publishing


def test_who_may_not_is_told_so_in_an_error_object_before_the_body_is_taken():
    service = InMemoryService(broker=Cluster(), callers=CALLERS)
    for target in ("/topics/orders", "/topics/orders/partitions/0"):
        for headers, status, code in [
            ([], 401, 40101),
            ([by("somebody")], 401, 40101),
            ([by("publisher")], 403, 40301),
            ([by("reader")], 403, 40301),
        ]:
            connection = service.connect()
            fields = [*JSON, *headers, (b"Expect", b"100-continue"), (b"Content-Length", b"10")]
            connection.send(request_bytes("POST", target, fields))
            (response,) = connection.responses(["POST"])
            assert_error(response, status, code)
            assert (b"www-authenticate" in response.headers) == (status == 401)
    service.request("POST", "/topics/t", [*JSON, by("limited")], RECORDS)
    response = service.request("POST", "/topics/t", [*JSON, by("limited")], RECORDS)
    assert_error(response, 429, 42901)
    assert b"retry-after" in response.headers


@pytest.mark.parametrize(
    ("more", "limits", "status", "code"),
    [
        ([(b"Content-Length", b"4001")], {"max_body": 1000, "max_batch_body": 9000}, 413, 413),
        ([(b"Content-Encoding", b"br"), (b"Content-Length", b"24")], {}, 415, 415),
        ([(b"Content-Length", b"24")], {"max_waiting": 0}, 503, 503),
        ([(b"Origin", b"https://other.example"), (b"Content-Length", b"24")], {}, 403, 403),
    ],
)
def test_what_the_server_rejects_before_anything_else_is_an_error_object_too(more, limits, status, code):
    service = InMemoryService(broker=PromptBroker(), **limits)
    connection = service.connect()
    connection.send(request_bytes("POST", "/topics/t", [*JSON, *more]) + RECORDS)
    (response,) = connection.responses(["POST"])
    assert_error(response, status, code)
    assert service.broker.records == []


def test_a_body_may_be_four_times_as_long_as_that_of_a_message():
    service = InMemoryService(broker=Cluster(), max_body=1000, max_batch_body=2000)
    body = RECORDS.ljust(4000)
    assert service.request("POST", "/topics/t", JSON, body).status == 200
    assert_error(service.request("POST", "/topics/t", JSON, body + b" "), 413, 413)


def test_a_fault_of_the_service_is_an_error_object(no_failure_is_lost):
    service = InMemoryService(broker=Cluster())
    service.broker.check_topics = None
    assert_error(service.request("POST", "/topics/t", JSON, RECORDS), 500, 500)
    assert [failure.type for failure in no_failure_is_lost] == [TypeError]
    no_failure_is_lost.clear()


def test_others_are_rejected_with_problem_documents():
    service = service_with()
    assert_problem(service.request("POST", "/messages", JSON, b"{}"), 415)
    assert_problem(service.request("GET", "/messages", [(b"Accept", V2)]), 405)
    assert_problem(service.request("POST", "/messages", [], b"{}"), 415)
    assert_problem(service.request("POST", "/topics/a:b", [], b""), 422)
    assert_problem(service.request("GET", "/topics/u", [(b"Accept", b"*/*, application/problem+json")]), 404)
    assert_problem(service.request("GET", "/topicsx"), 404)


@pytest.mark.parametrize("path", ["/topics/u", "/topics/t/partitions/9"])
def test_a_client_that_prefers_plain_json_gets_it_and_problem_documents(path):
    service = service_with()
    accept = [(b"Accept", b"application/json, */*;q=0.1")]
    listed = service.request("GET", "/topics", accept)
    assert (listed.status, listed.headers[b"content-type"]) == (200, b"application/json")
    assert_problem(service.request("GET", path, accept), 404)
    assert service.request("GET", path).headers[b"content-type"] == V2


# Inside a site of twisted.web.


def in_twisted_web(service):
    return Site(service.gateway.app.resource())


@given(
    st.sampled_from(["GET", "POST", "PUT"]),
    st.sampled_from(
        [
            "/topics",
            "/topics/t",
            "/topics/u",
            "/topics/t/partitions/0",
            "/topics/t/partitions/9",
            "/v3/clusters",
        ]
    ),
    st.sampled_from([JSON, BINARY, [(b"Content-Type", NOT_HERE[0])], []]),
    st.sampled_from([[], [(b"Accept", V2)], [(b"Accept", b"text/html")], [(b"Accept", b"application/json")]]),
    st.sampled_from([RECORDS, b'{"records":[{"value":"Zg=="}]}', b"{", b'{"records":[{"x":1}]}']),
)
def test_the_answers_inside_twisted_web_are_the_same(method, target, content_type, accept, body):
    answers = []
    for inside in (False, True):
        service = service_with()
        connection = Connection(in_twisted_web(service)) if inside else service.connect()
        connection.send(request_bytes(method, target, [*content_type, *accept], body))
        (response,) = connection.responses([method])
        answers.append((response.status, response.headers.get(b"content-type"), response.body))
    assert answers[0] == answers[1]


@given(strategies.json_values, strategies.json_values)
def test_what_was_published_reads_back_as_the_same_json(key, value):
    service = service_with()
    assert service.request("POST", "/topics/t", JSON, body_of({"key": key, "value": value})).status == 200
    (record,) = service.broker.published
    read = [None if each is None else json.loads(each) for each in (record.key, record.value)]
    assert read == [key, value]
