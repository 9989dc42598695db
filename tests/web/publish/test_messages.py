"""``POST /messages`` over HTTP."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp import errors
from sampleapp.access import AccessError
from sampleapp.records.positions import PositionError
from sampleapp.web.errors import ROWS, RequestError
from tests.support import strategies
from tests.support.in_memory import InMemoryService, PromptBroker, request_bytes

JSON = [(b"Content-Type", b"application/json")]


def encoded(**members):
    return json.dumps(members).encode()


@pytest.fixture
def service():
    return InMemoryService()


@given(strategies.topics, strategies.texts, st.fixed_dictionaries({}, optional={"key": strategies.keys}))
def test_a_message_becomes_exactly_one_record_of_exactly_its_bytes(topic, content, key):
    service = InMemoryService(broker=PromptBroker())
    response = service.post(encoded(topic=topic, content=content, **key))
    (record,) = service.broker.records
    assert response.status == 200
    assert response.headers[b"content-type"] == b"application/json"
    assert json.loads(response.body) == {"topic": topic, "partition": 0, "offset": 0}
    assert record.topic == topic
    assert record.value == content.encode("utf-8")
    assert record.key == (key["key"].encode("utf-8") if key.get("key") is not None else None)
    assert record.timestamp_ms == 1_700_000_000_000


def test_an_empty_key_is_a_key_and_null_is_none():
    service = InMemoryService(broker=PromptBroker())
    service.post(encoded(topic="t", content="c", key=""))
    service.post(encoded(topic="t", content="c", key=None))
    service.post(encoded(topic="t", content="c"))
    assert [record.key for record in service.broker.records] == [b"", None, None]


@given(st.dictionaries(strategies.texts, strategies.texts), strategies.numbers_of_time)
def test_headers_and_the_timestamp_are_those_of_the_record(headers, timestamp):
    service = InMemoryService(broker=PromptBroker())
    body = encoded(topic="t", content="c", headers=headers, timestamp=timestamp)
    assert service.post(body).status == 200
    (record,) = service.broker.records
    assert record.headers == tuple((name, value.encode("utf-8")) for name, value in headers.items())
    assert record.timestamp_ms == timestamp


def test_the_answer_waits_for_the_broker_and_tells_its_record_s_own_place(service):
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, encoded(topic="t", content="c")))
    assert connection.sent == b""
    service.broker.acknowledge(partition=7, offset=42)
    (response,) = connection.responses(["POST"])
    assert json.loads(response.body) == {"topic": "t", "partition": 7, "offset": 42}


members = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("topic", "key", "content", "x"), strategies.json_values)
)


@given(members.map(json.dumps).map(str.encode) | st.binary(max_size=50))
def test_a_rejected_request_publishes_nothing_and_the_body_s_fault_decides_the_status(body):
    service = InMemoryService(broker=PromptBroker())
    response = service.post(body)
    try:
        document = json.loads(body.decode("utf-8"))
    except ValueError:
        assert response.status == 400
    else:
        right = (
            isinstance(document, dict)
            and set(document) <= {"topic", "key", "content"}
            and isinstance(document.get("content"), str)
            and isinstance(document.get("key"), str | None)
            and isinstance(document.get("topic"), str)
            and re.fullmatch(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", document["topic"])
        )
        assert response.status == (200 if right else 422)
    if response.status != 200:
        assert service.broker.records == []
        problem = json.loads(response.body)
        assert problem["status"] == response.status
        assert response.headers[b"content-type"] == b"application/problem+json"
        assert ("errors" in problem) == (response.status == 422)


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("form", [b"[%b,%b]", b"%b\n%b\n", b"%b %b", b"[]%.0b%.0b", b"[[1]]%.0b%.0b"])
def test_many_messages_as_one_are_rejected_with_the_type_that_takes_them(service, form, size):
    one = encoded(topic="t", content="x" * size)
    response = service.post(form % (one, one))
    assert response.status in (400, 422)
    assert "as application/x-ndjson, one on each line." in json.loads(response.body)["detail"]
    assert service.broker.records == []


def test_an_answer_in_json_ends_its_line_but_for_the_readings():
    service = InMemoryService(broker=PromptBroker())
    published = service.post(encoded(topic="t", content="c"))
    rejected = service.post(b"no JSON")
    for answer in (published, rejected, service.request("GET", "/live"), service.request("GET", "/topics")):
        assert answer.body.endswith(b"\n")
        assert answer.headers[b"content-length"] == b"%d" % len(answer.body)
    assert not service.request("GET", "/").body.endswith(b"\n")


def test_every_fault_is_named_with_its_place(service):
    response = service.post(b'{"topic":"no/topic","Key":"k","content":21.5}')
    problem = json.loads(response.body)
    assert response.status == 422
    assert {"/topic", "/Key", "/content"} == {error["pointer"] for error in problem["errors"]}
    assert service.broker.records == []


@pytest.mark.parametrize(
    "content_type",
    [b"application/json", b"application/json; charset=utf-8", b"APPLICATION/JSON;a=b", b"application/json ;"],
)
def test_json_may_be_said_in_every_way_and_with_parameters(content_type):
    service = InMemoryService(broker=PromptBroker())
    body = encoded(topic="t", content="c")
    assert service.post(body, [(b"Content-Type", content_type)]).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"Content-Type", b"text/plain")],
        [(b"Content-Type", b"")],
        [(b"Content-Type", b"application/json-seq")],
        [(b"Content-Type", b"application/jsonx")],
        [(b"Content-Type", b"text/plain; application/json")],
        [(b"Content-Type", b"application/x-www-form-urlencoded")],
        [(b"Content-Type", b"multipart/form-data; boundary=x")],
        [(b"Content-Type", b"\xff")],
        [(b"Content-Type", b"application/json"), (b"Content-Type", b"text/plain")],
        [(b"Content-Type", b"application/json"), (b"Content-Encoding", b"br")],
    ],
)
def test_another_or_no_content_type_or_a_coding_is_rejected(service, headers):
    response = service.post(encoded(topic="t", content="c"), headers)
    assert response.status == 415
    assert response.headers[b"content-type"] == b"application/problem+json"
    assert service.broker.records == []


@pytest.mark.parametrize(
    ("content_types", "shown"),
    [
        ([b"application/x-www-form-urlencoded"], "application/x-www-form-urlencoded"),
        ([b"text/plain; charset=utf-8"], "text/plain; charset=utf-8"),
        ([b""], "empty"),
        ([], "none"),
        ([b"application/json", b"text/plain"], "application/json, and text/plain"),
        ([b"a\x9b31m\xff"], "a\ufffd31m\ufffd"),
        ([b"a" * 5000], f"{'a' * 100}…"),
    ],
)
def test_a_rejected_content_type_is_shown_in_printable_characters(service, content_types, shown):
    response = service.post(b"{}", [(b"Content-Type", value) for value in content_types])
    assert json.loads(response.body)["detail"] == (
        "The Content-Type must be application/json for one message, or application/x-ndjson for one message "
        f"on each line. The Content-Type of this request: {shown}."
    )


def domain_errors(cls=errors.SampleAppError):
    for subclass in cls.__subclasses__():
        yield subclass
        yield from domain_errors(subclass)


MODULES_OF_ERRORS = {
    "sampleapp.access.errors",
    "sampleapp.errors",
    "sampleapp.records.positions",
    "sampleapp.web.errors",
}
# These are never raised themselves, or never while a request is running; or the resource names their faults.
NOT_FOR_CALLERS = {
    errors.MessageError,
    errors.PublishError,
    errors.StartUpError,
    errors.InvalidOption,
    errors.WorkError,
    errors.UnknownIds,
    AccessError,
    PositionError,
    RequestError,
}


def test_every_error_has_exactly_one_row_in_the_table():
    product = {error for error in domain_errors() if error.__module__.startswith("sampleapp.")}
    outward = {error for error in product if error.__module__ in MODULES_OF_ERRORS}
    assert outward - NOT_FOR_CALLERS == set(ROWS)


publish_errors = [error for error in ROWS if issubclass(error, errors.PublishError)]


@pytest.mark.parametrize("error", publish_errors)
def test_the_status_keeps_the_promise_that_the_error_makes(service, error):
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, encoded(topic="t", content="c")))
    service.broker.waiting[0].errback(error("Because."))
    (response,) = connection.responses(["POST"])
    assert response.status == ROWS[error].status
    assert (response.status == 504) == error.possibly_published
    if response.status in {429, 503}:
        assert response.headers[b"retry-after"] == b"1"
    else:
        assert b"retry-after" not in response.headers
    if 400 <= response.status < 500 and response.status != 429:
        assert not error.retriable
    assert json.loads(response.body)["detail"] == "Because."


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.TopicNotAuthorized, 403),
        (errors.UnknownTopic, 404),
        (errors.RecordTooLarge, 413),
        (errors.BufferFull, 503),
        (errors.BrokerUnavailable, 503),
        (errors.BrokerStopped, 503),
        (errors.PublishTimedOut, 504),
        (errors.OutcomeUnknown, 504),
    ],
)
def test_errors_have_the_statuses_of_the_contract(error, status):
    assert ROWS[error].status == status


def test_an_error_without_a_row_of_its_own_is_answered_by_what_it_is_a_kind_of(service):
    class DiskIsFull(errors.BrokerUnavailable):
        pass

    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, encoded(topic="t", content="c")))
    service.broker.waiting[0].errback(DiskIsFull("Full."))
    (response,) = connection.responses(["POST"])
    assert response.status == 503


@pytest.mark.parametrize("error", [ZeroDivisionError, errors.StartUpError, errors.SampleAppError])
def test_a_fault_of_the_service_is_500_tells_nothing_of_the_inside_and_is_logged(
    service, no_failure_is_lost, error
):
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, encoded(topic="t", content="c")))
    service.broker.waiting[0].errback(error("secret of /etc/sampleapp"))
    (response,) = connection.responses(["POST"])
    assert response.status == 500
    assert response.headers[b"content-type"] == b"application/problem+json"
    assert b"secret" not in connection.sent
    assert b"Error" not in connection.sent.replace(b"Internal Server Error", b"")
    assert b"Traceback" not in connection.sent
    (failure,) = no_failure_is_lost
    assert failure.check(error)
    no_failure_is_lost.clear()


def test_a_client_that_goes_away_does_not_disturb_the_publishing(service):
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, encoded(topic="t", content="c")))
    connection.lose()
    (publishing,) = service.broker.waiting
    assert not publishing.called
    service.broker.acknowledge()
    assert connection.sent == b""


def test_a_failure_after_the_client_went_away_is_no_fault_of_the_service(service):
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, encoded(topic="t", content="c")))
    connection.lose()
    service.broker.waiting[0].errback(errors.BrokerUnavailable("Away."))
    assert connection.sent == b""
