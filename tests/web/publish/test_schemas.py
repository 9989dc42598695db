"""Contents that must match the schema of their topic, on every way in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import partial

import pytest
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import Record
from tests.support.callers import by, caller
from tests.support.in_memory import InMemoryService, PromptBroker, request_bytes, schemas_of
from tests.support.secrets import secret
from tests.web.http import assert_problem

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
        "items": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "price": {"type": "number", "minimum": 0}},
                "required": ["sku", "price"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["id", "items"],
}
RIGHT = {"id": "DE-1", "items": [{"sku": "a", "price": 1.5}]}
WRONG = {"id": "1", "items": [{"sku": "a", "price": "1.5", "colour": "red"}, {"price": 2}]}
WHERE = ["/id", "/items/0/colour", "/items/0/price", "/items/1/sku"]
"""The pointers to all faults of the wrong one, sorted."""
JSON = (b"Content-Type", b"application/json")
SECRET = secret("schemas-hook-secret", "the secret of a hook").encode()
CALLERS = (
    caller("both", 'publish = ["orders"]', 'consume = ["orders"]')
    + caller("publisher", 'publish = ["orders"]')
    + caller("reader", 'consume = ["orders"]')
    + caller("other", 'publish = ["others"]', 'consume = ["others"]')
    + """
[hooks.shop]
topic = "orders"
scheme = "github"
secret_files = ["1"]
"""
)


def text(content):
    return json.dumps(content).encode()


class Service(InMemoryService):
    """A service with as many turns of the reactor as it needs."""

    def request(self, method, target="/", headers=(), body=None):
        connection = self.connect()
        connection.send(request_bytes(method, target, headers, body))
        self.clock.advance(0)
        (response,) = connection.responses([method])
        return response


def use(service, by_name):
    """Take other schemas."""
    files = {f"{name}.json": text(schema) for name, schema in by_name.items()}
    service.validation.use(files, schemas_of(by_name) if by_name else {})


def service_with(**arguments):
    return Service(**{"schemas": {"orders": ORDER}, "broker": PromptBroker(), **arguments})


def message(content, topic="orders"):
    return {"topic": topic, "content": json.dumps(content)}


def one(service, content):
    return service.post(text(message(content)))


def one_in_base64(service, content):
    return service.post(text({"topic": "orders", "content_base64": base64.b64encode(text(content)).decode()}))


def lines(service, *contents):
    body = b"\n".join(text(message(each)) for each in contents)
    return service.request("POST", "/messages", [(b"Content-Type", b"application/x-ndjson")], body)


def raw(service, content, fields=(JSON,)):
    return service.request("POST", "/topics/orders", fields, text(content))


EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def binary_event(service, content):
    return raw(service, content, [JSON, *((f"ce-{k}".encode(), v.encode()) for k, v in EVENT.items())])


def structured_event(service, content):
    return raw(service, EVENT | {"data": content}, [(b"Content-Type", b"application/cloudevents+json")])


def structured_event_in_base64(service, content):
    event = EVENT | {"data_base64": base64.b64encode(text(content)).decode()}
    return raw(service, event, [(b"Content-Type", b"application/cloudevents+json")])


def events(service, *contents):
    body = [EVENT | {"data": content} for content in contents]
    return raw(service, body, [(b"Content-Type", b"application/cloudevents-batch+json")])


def produce_json(service, *contents):
    body = {"records": [{"value": content} for content in contents]}
    return raw(service, body, [(b"Content-Type", b"application/vnd.kafka.json.v2+json")])


def produce_binary(service, *contents):
    body = {"records": [{"value": base64.b64encode(text(content)).decode()} for content in contents]}
    return raw(service, body, [(b"Content-Type", b"application/vnd.kafka.binary.v2+json")])


def hook(service, content):
    signature = b"sha256=" + hmac.digest(SECRET, text(content), hashlib.sha256).hex().encode()
    return service.request("POST", "/hooks/shop", [JSON, (b"X-Hub-Signature-256", signature)], text(content))


WAYS = {
    "one message": (one, "/content"),
    "one message in base64": (one_in_base64, "/content_base64"),
    "lines": (lines, "/0/content"),
    "any body": (raw, ""),
    "a CloudEvent in binary mode": (binary_event, ""),
    "a CloudEvent in structured mode": (structured_event, "/data"),
    "a CloudEvent with its data in base64": (structured_event_in_base64, "/data_base64"),
    "a batch of CloudEvents": (events, "/0/data"),
    "a hook": (partial(hook), ""),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def for_hooks(way):
    return {"callers": CALLERS, "secrets": {"shop": [SECRET]}} if way is WAYS["a hook"] else {}


def faults_of(response):
    assert_problem(response, 422)
    problem = json.loads(response.body)
    assert problem["type"] == "urn:sampleapp:problem:schema-mismatch"
    return problem["errors"]


def pointers(response):
    return sorted(each["pointer"] for each in faults_of(response))


@ways
def test_content_that_does_not_match_is_rejected_with_all_faults_on_every_way_in(way):
    send, prefix = way
    service = service_with(**for_hooks(way))
    assert pointers(send(service, WRONG)) == [prefix + each for each in WHERE]
    assert service.broker.records == []


@ways
def test_content_that_matches_is_published_on_every_way_in(way):
    send, _ = way
    service = service_with(**for_hooks(way))
    assert send(service, RIGHT).status == 200
    (record,) = service.broker.records
    assert json.loads(record.value).get("data", RIGHT) == RIGHT


@ways
@pytest.mark.parametrize("schemas", [None, {"others": False}])
def test_a_topic_without_a_schema_takes_any_content(way, schemas):
    send, _ = way
    service = service_with(**for_hooks(way), schemas=schemas)
    assert send(service, WRONG).status == 200


@pytest.mark.parametrize("produce", [produce_json, produce_binary])
def test_records_of_rest_proxy_that_do_not_match_are_named_in_its_form(produce):
    service = service_with()
    assert produce(service, RIGHT).status == 200
    response = produce(service, RIGHT, WRONG)
    assert (response.status, response.headers[b"content-type"]) == (422, b"application/vnd.kafka.v2+json")
    error = json.loads(response.body)
    assert error["error_code"] == 422
    assert '/records/1/value/items/1/sku: "sku" is missing; the schema requires it.' in error["message"]
    assert len(service.broker.records) == 1


def test_each_fault_says_what_would_be_right():
    assert {each["pointer"]: each["detail"] for each in faults_of(one(service_with(), WRONG))} == {
        "/content/id": '"id" must match the pattern "^[A-Z]{2}-[0-9]+$".',
        "/content/items/0/colour": '"colour" is not allowed by the schema; omit it.',
        "/content/items/0/price": '"price" must be a number.',
        "/content/items/1/sku": '"sku" is missing; the schema requires it.',
    }


def test_faults_name_no_values_of_the_content():
    hidden = secret("value-in-a-content", "a value")
    for schema in (
        {"type": "integer"},
        {"const": 1},
        {"enum": ["a"]},
        {"not": {}},
        {"anyOf": [{"maxLength": 1}]},
    ):
        response = one(service_with(schemas={"orders": schema}), hidden)
        assert faults_of(response)
        assert hidden.encode() not in response.body


@pytest.mark.parametrize("body", [b"", b"text", b'{"id":', b"\xff", b'"\\ud800"', b"NaN", b"1e400"])
def test_what_is_not_json_does_not_match(body):
    service = service_with(schemas={"orders": True})
    response = service.request("POST", "/topics/orders", [], body)
    assert [each["pointer"] for each in faults_of(response)] == [""]


@pytest.mark.parametrize(
    "body",
    [b'{"id":1,"id":2}', b'{"a":{"b":":","b":":"}}', b'{"a":"\\u003a","a":"\\u003a"}', b'{"a:":1,"a:":1}'],
)
def test_a_repeated_member_does_not_match(body):
    service = service_with(schemas={"orders": True})
    (fault,) = faults_of(service.request("POST", "/topics/orders", [], body))
    assert fault["detail"] == "A member is there more than once in the content."


@pytest.mark.parametrize(
    "more", [b'"data":1', b'"d\\u0061ta":1', b'"data":{"a":":"}', b'"\\u003a":1,"data":1']
)
@pytest.mark.parametrize("form", [b"application/cloudevents+json", b"application/cloudevents-batch+json"])
def test_an_event_with_a_repeated_member_is_rejected(form, more):
    service = service_with()
    event = text(EVENT | {"data": RIGHT})[:-1]
    for sent, status in ((event + b"}", 200), (event[:1] + more + b"," + event[1:] + b"}", 422)):
        body = b"[" + sent + b"]" if b"batch" in form else sent
        assert service.request("POST", "/topics/orders", [(b"Content-Type", form)], body).status == status
    assert len(service.broker.records) == 1


@pytest.mark.parametrize("form", [b"application/cloudevents+json", b"application/cloudevents-batch+json"])
def test_an_event_has_few_attributes_if_its_data_are_checked(form):
    service = service_with()
    event = text(EVENT | {"data": RIGHT | {"note": ":" * 20_000}})[:-1]
    many = b"".join(b',"a%d":""' % number for number in range(10_001))
    for topic, more, status in (("orders", b"", 200), ("orders", many, 422), ("others", many, 200)):
        sent = event + more + b"}"
        body = b"[" + sent + b"]" if b"batch" in form else sent
        response = service.request("POST", f"/topics/{topic}", [(b"Content-Type", form)], body)
        assert response.status == status
    assert len(service.broker.records) == 2


@pytest.mark.parametrize(
    "body", [b'{"a":"\\u003a:","b":"\\\\u003a"}', b'{":":1,"\\u003A\\u003a":"\\\\\\u003a"}']
)
def test_colons_in_strings_repeat_no_member(body):
    service = service_with(schemas={"orders": True})
    assert service.request("POST", "/topics/orders", [], body).status == 200


def test_a_tombstone_always_matches():
    service = service_with(schemas={"orders": False})
    assert service.request("DELETE", "/topics/orders?key=a").status == 200
    assert produce_json(service, None).status == 200


def test_a_batch_names_the_faults_of_each_message_and_publishes_nothing():
    service = service_with()
    response = lines(service, RIGHT, WRONG, RIGHT, WRONG)
    assert pointers(response) == sorted(f"/{n}/content{each}" for n in (1, 3) for each in WHERE)
    assert service.broker.records == []
    assert pointers(events(service, RIGHT, WRONG)) == [f"/1/data{each}" for each in WHERE]


@pytest.mark.parametrize("send", [lines, events, produce_json])
def test_a_batch_names_a_hundred_faults_at_most(send):
    response = send(service_with(), *[WRONG] * 60)
    assert response.status == 422
    if send is not produce_json:
        assert len(faults_of(response)) == 100


def test_the_faults_of_one_content_are_a_hundred_at_most():
    schema = {"items": {"type": "string"}}
    assert len(faults_of(one(service_with(schemas={"orders": schema}), [1] * 500))) == 100


def test_a_batch_may_mix_topics_with_and_without_a_schema():
    service = service_with()
    body = text(message(WRONG, "others")) + b"\n" + text(message(RIGHT))
    fields = [(b"Content-Type", b"application/x-ndjson")]
    assert service.request("POST", "/messages", fields, body).status == 200
    body += b"\n" + text(message(WRONG))
    assert pointers(service.request("POST", "/messages", fields, body)) == [
        f"/2/content{each}" for each in WHERE
    ]


def test_rights_are_checked_before_the_schema():
    service = service_with(callers=CALLERS, secrets={"shop": [SECRET]})
    assert_problem(service.post(text(message(WRONG)), [JSON, by("reader")]), 403)
    assert_problem(raw(service, WRONG, [JSON, by("other")]), 403)
    response = service.request(
        "POST", "/messages", [(b"Content-Type", b"application/x-ndjson"), by("other")], text(message(WRONG))
    )
    assert b"price" not in response.body
    assert_problem(response, 403)


def test_a_hook_with_a_wrong_signature_is_told_nothing_about_the_schema():
    service = service_with(callers=CALLERS, secrets={"shop": [SECRET]})
    fields = [JSON, (b"X-Hub-Signature-256", b"sha256=" + b"0" * 64)]
    assert_problem(service.request("POST", "/hooks/shop", fields, text(WRONG)), 401)


def test_a_key_is_not_used_by_content_that_does_not_match():
    service = service_with(broker=MemoryBroker(clock=Clock()))
    fields = [JSON, (b"Idempotency-Key", b"k")]
    assert pointers(service.post(text(message(WRONG)), fields))
    first = service.post(text(message(RIGHT)), fields)
    again = service.post(text(message(RIGHT)), fields)
    assert (first.status, again.status, again.body) == (200, 200, first.body)
    assert b"idempotent-replayed" not in first.headers
    assert again.headers[b"idempotent-replayed"] == b"true"


def test_other_schemas_count_from_the_next_request_on():
    service = service_with(schemas={"orders": True})
    assert one(service, WRONG).status == 200
    use(service, {"orders": ORDER})
    assert_problem(one(service, WRONG), 422)
    use(service, {})
    assert one(service, WRONG).status == 200


@pytest.mark.parametrize("name", ["publisher", "reader", "both"])
def test_a_schema_is_served_to_callers_who_may_publish_or_read(name):
    service = service_with(callers=CALLERS, secrets={"shop": [SECRET]})
    response = service.request("GET", "/topics/orders/schema", [by(name)])
    assert (response.status, json.loads(response.body)) == (200, ORDER)
    assert response.headers[b"content-type"] == b"application/schema+json"


def test_a_schema_is_not_served_to_others_nor_is_one_that_is_not_there():
    service = service_with(callers=CALLERS, secrets={"shop": [SECRET]})
    assert service.request("GET", "/topics/orders/schema", [by("other")]).status == 403
    assert service.request("GET", "/topics/orders/schema").status == 401
    assert service.request("GET", "/topics/others/schema", [by("other")]).status == 404
    assert service_with(schemas=None).request("GET", "/topics/orders/schema").status == 404


def test_a_record_is_as_it_was_sent():
    service = service_with()
    body = json.dumps(RIGHT, indent=3).encode()
    service.request("POST", "/topics/orders", [JSON], body)
    assert service.broker.records == [
        Record(
            topic="orders",
            key=None,
            value=body,
            timestamp_ms=1_700_000_000_000,
            headers=(("content-type", b"application/json"),),
        )
    ]
