"""Requests with ``Idempotency-Key``: publish once, however often they are sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.web.server import Site

from sampleapp import errors
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import FINGERPRINT_HEADER, RecordMetadata, ReplayedRecord
from sampleapp.web.errors import IDEMPOTENCY_REJECTIONS, ROWS
from tests.metrics.service import MeasuredService, of
from tests.support import strategies
from tests.support.callers import by, caller
from tests.support.in_memory import Connection, InMemoryService, ManualBroker, request_bytes
from tests.support.planned_outcomes import STORED, Plan, PlannedBroker
from tests.web.http import JSON, MESSAGE, NDJSON, assert_problem

KEY = (b"Idempotency-Key", b"8e03978e-40d5")
REPLAYED = b"idempotent-replayed"
REUSED = "urn:sampleapp:problem:idempotency-key-reused"
PARTLY = "urn:sampleapp:problem:partly-published"
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Service(MeasuredService):
    """A service with a memory broker, which has as many turns of the reactor as it needs."""

    def __init__(self, *outcomes, broker=None, together=None, **options):
        """:param outcomes: of the broker, as for `PlannedBroker`."""
        clock = Clock()
        self.make_clock = lambda: clock
        if broker is None and (outcomes or together):
            broker = PlannedBroker(outcomes, together=together, clock=clock)
        super().__init__(broker=MemoryBroker(clock=clock) if broker is None else broker, **options)

    def ask(self, method, target, headers=(), body=None):
        connection = self.connect()
        connection.send(request_bytes(method, target, headers, body))
        for _ in range(100):
            if connection.sent:
                break
            self.clock.advance(0)
        (response,) = connection.responses([method])
        return response

    def post(self, body, headers=(*JSON, KEY)):
        return self.ask("POST", "/messages", headers, body)

    def lines(self, *messages, key=KEY):
        body = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        return self.ask("POST", "/messages", [*NDJSON, key], body)

    def values(self, topic="t"):
        return [record.value for record in self.broker.records(topic)]


@pytest.fixture
def service():
    return Service()


def problem_of(response, status, kind):
    assert_problem(response, status)
    problem = json.loads(response.body)
    assert problem["type"] == f"urn:sampleapp:problem:{kind}"
    return problem


REQUESTS = {
    "one message": ("POST", "/messages", JSON, MESSAGE),
    "lines": ("POST", "/messages", NDJSON, MESSAGE + b"\n" + MESSAGE.replace(b'"c"', b'"d"')),
    "a body": ("POST", "/topics/t?key=k", [], b"\x00\xff"),
    "no body": ("POST", "/topics/t", [], b""),
    "an event": (
        "POST",
        "/topics/t",
        [(b"ce-specversion", b"1.0"), (b"ce-id", b"1"), (b"ce-source", b"/s"), (b"ce-type", b"t")],
        b"21.5",
    ),
    "a tombstone": ("DELETE", "/topics/t?key=k", [], None),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_is_sent_again_gets_the_first_place_and_publishes_nothing(service, name):
    method, target, headers, body = REQUESTS[name]
    first = service.ask(method, target, [*headers, KEY], body)
    stored = service.broker.records("t")
    assert (first.status, REPLAYED in first.headers) == (200, False)
    assert stored
    for again in range(2):
        # The time of a record that gives none, and its trace, are others at each try.
        service.clock.advance(1)
        trace = [(b"traceparent", PARENT)] * (again > 0)
        answer = service.ask(method, target, [*headers, *trace, KEY], body)
        assert (answer.status, answer.body) == (200, first.body)
        assert answer.headers[REPLAYED] == b"true"
    assert service.broker.records("t") == stored


@pytest.mark.parametrize("name", REQUESTS)
def test_without_a_key_or_with_another_one_it_is_published_again(service, name):
    method, target, headers, body = REQUESTS[name]
    for key in ([], [], [KEY], [(b"Idempotency-Key", b"other")]):
        answer = service.ask(method, target, [*headers, *key], body)
        assert (answer.status, REPLAYED in answer.headers) == (200, False)
    assert len(service.broker.records("t")) == 4 * (2 if name == "lines" else 1)


def test_both_forms_are_the_same_key(service):
    assert service.post(MESSAGE).status == 200
    quoted = service.post(MESSAGE, [*JSON, (b"idempotency-key", b'"8e03978e-40d5";a=1')])
    assert quoted.headers[REPLAYED] == b"true"
    assert service.values() == [b"c"]


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("keys", [[b""], [b'"'], [b"k" * 256], [b"a", b"b"], [b"a", b"a"]])
def test_a_key_that_is_none_or_two_keys_are_rejected(service, name, keys):
    method, target, headers, body = REQUESTS[name]
    fields = [(b"Idempotency-Key", key) for key in keys]
    problem = problem_of(
        service.ask(method, target, [*headers, *fields], body), 400, "malformed-idempotency-key"
    )
    assert "one key of 1 to 255 visible ASCII characters" in problem["detail"]
    assert service.values() == []


def test_a_wrong_key_is_rejected_before_the_body_but_not_before_the_token():
    service = Service(broker=ManualBroker(), callers=caller("one", 'publish = ["t"]'))
    for target in ("/messages", "/topics/t"):
        wrong = [*JSON, (b"Idempotency-Key", b""), (b"Content-Length", b"100"), (b"Expect", b"100-continue")]
        for token, status in ([], 401), ([by("one")], 400):
            connection = service.connect()
            connection.send(request_bytes("POST", target, [*wrong, *token]))
            assert connection.sent.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("target", ["/topics/t", "/topics/t/partitions/0"])
@pytest.mark.parametrize("kind", [b"json", b"binary"])
def test_rest_proxys_media_types_take_no_key(target, kind):
    service = InMemoryService()
    headers = [(b"Content-Type", b"application/vnd.kafka.%b.v2+json" % kind), KEY]
    answer = service.request("POST", target, headers, b'{"records":[{"value":"aGk="}]}')
    assert answer.status == 422
    assert b"Idempotency-Key" in answer.body
    assert json.loads(answer.body)["error_code"] == 422
    assert service.broker.records == []


different = st.sampled_from(
    [
        {"content": "other"},
        {"key": "k"},
        {"key": ""},
        {"headers": {"a": "b"}},
        {"timestamp": 1_700_000_000_000},
    ]
)


@given(different, different)
def test_another_request_with_the_same_key_is_rejected_and_publishes_nothing(first, second):
    service = Service()
    one, two = ({"topic": "t", "content": "c", **each} for each in (first, second))
    assert service.post(json.dumps(one).encode()).status == 200
    answer = service.post(json.dumps(two).encode())
    if first == second:
        assert (answer.status, answer.headers[REPLAYED]) == (200, b"true")
    else:
        problem_of(answer, 422, "idempotency-key-reused")
    assert len(service.values()) == 1


def test_another_body_key_or_attribute_of_an_event_is_another_request(service):
    event = [(b"ce-specversion", b"1.0"), (b"ce-source", b"/s"), (b"ce-type", b"t"), KEY]
    requests = [
        ("POST", "/topics/t?key=k", [*event, (b"ce-id", b"1")], b"1"),
        ("POST", "/topics/t?key=k", [*event, (b"ce-id", b"2")], b"1"),
        ("POST", "/topics/t?key=k", [*event, (b"ce-id", b"1")], b"2"),
        ("POST", "/topics/t?key=l", [*event, (b"ce-id", b"1")], b"1"),
        ("DELETE", "/topics/t?key=k", [KEY], None),
    ]
    assert [service.ask(*each).status for each in requests] == [200, 422, 422, 422, 422]
    assert len(service.broker.records("t")) == 1


@pytest.mark.parametrize(
    ("method", "target", "headers", "body"),
    [
        ("POST", "/topics/t", REQUESTS["an event"][2], b"21.5"),
        ("POST", "/messages", JSON, {"topic": "t", "content": "c", "headers": {"b": "1", "a": "2"}}),
    ],
)
def test_headers_in_another_order_as_from_another_proxy_are_the_same_request(
    service, method, target, headers, body
):
    first, again = body, body
    if isinstance(body, dict):
        first = json.dumps(body).encode()
        again = json.dumps({**body, "headers": {"a": "2", "b": "1"}}).encode()
    assert service.ask(method, target, [*headers, KEY], first).status == 200
    answer = service.ask(method, target, [KEY, *headers[::-1]], again)
    assert (answer.status, answer.headers[REPLAYED]) == (200, b"true")


def test_a_key_belongs_to_its_topic_and_its_caller():
    callers = caller("one", 'publish = ["*"]') + caller("two", 'publish = ["*"]')
    service = Service(callers=callers)
    for name, topic in [("one", "t"), ("two", "t"), ("one", "u"), ("one", "t")]:
        body = json.dumps({"topic": topic, "content": f"{name} {topic}"}).encode()
        assert service.post(body, [*JSON, KEY, by(name)]).status == 200
    assert (service.values("t"), service.values("u")) == ([b"one t", b"two t"], [b"one u"])


@pytest.mark.parametrize("content_type", [JSON, NDJSON])
@pytest.mark.parametrize("key", [[KEY], []])
def test_a_message_that_brings_the_header_of_the_fingerprint_is_rejected(service, content_type, key):
    for headers, pointer in [
        ({"headers": {FINGERPRINT_HEADER: "x"}}, f"/headers/{FINGERPRINT_HEADER}"),
        ({"headers_base64": [[FINGERPRINT_HEADER, None]]}, "/headers_base64/0"),
    ]:
        body = json.dumps({"topic": "t", "content": "c", **headers}).encode()
        problem = problem_of(service.post(body, [*content_type, *key]), 422, "invalid-message")
        (fault,) = problem["errors"]
        assert fault["pointer"].endswith(pointer)
    assert service.values() == []


A, B, C, D = ({"topic": "t", "key": name, "content": name} for name in "ABCD")


def test_lines_that_are_added_at_the_end_are_published_and_the_others_are_not(service):
    first = service.lines(A, B)
    more = service.lines(A, B, C)
    assert more.body.startswith(first.body)
    assert REPLAYED not in more.headers
    assert service.values() == [b"A", b"B", b"C"]
    again = service.lines(A, B)
    assert (again.body, again.headers[REPLAYED]) == (first.body, b"true")
    assert service.values() == [b"A", b"B", b"C"]


def test_a_single_message_is_the_first_line(service):
    single = service.post(json.dumps(A).encode())
    assert single.status == 200
    lines = service.lines(A, B)
    assert (lines.status, service.values()) == (200, [b"A", b"B"])


def test_lines_that_are_others_than_before_are_rejected_and_the_rest_is_published(service):
    service.lines(A, B)
    problem = problem_of(service.lines(A, D, C), 422, "partly-published")
    first, second, third = problem["results"]
    assert first == {"topic": "t", "partition": 0, "offset": 0}
    assert (second["status"], second["type"]) == (422, REUSED)
    assert third == {"topic": "t", "partition": 0, "offset": 2}
    assert service.values() == [b"A", b"B", b"C"]


def test_if_all_lines_are_others_than_before_the_whole_request_is_rejected(service):
    service.lines(A, B)
    problem_of(service.lines(C, D), 422, "idempotency-key-reused")
    assert service.values() == [b"A", b"B"]


def test_known_lines_beside_rejected_ones_are_published_though_not_now(service):
    service.lines(A, B)
    problem = problem_of(service.lines(A, D), 422, "partly-published")
    assert [result.get("offset") for result in problem["results"]] == [0, None]


@given(
    st.lists(st.builds(lambda content: {"topic": "t", "content": content}, strategies.texts), min_size=1),
    st.data(),
)
def test_a_batch_that_was_cut_anywhere_is_completed_by_sending_it_again(messages, data):
    cut = data.draw(st.integers(0, len(messages)))
    outcomes = [STORED] * cut + [Plan(errors.BrokerUnavailable, is_stored=False)] * (len(messages) - cut)
    service = Service(*outcomes)
    answer = service.lines(*messages)
    assert answer.status == (200 if cut == len(messages) else 504 if cut else 503)
    assert service.lines(*messages).status == 200
    assert service.values() == [message["content"].encode() for message in messages]


def test_many_lines_are_known_again_each_by_its_number(service):
    messages = [{"topic": "t", "content": "same"}] * 6000
    assert service.lines(*messages).status == 200
    again = service.lines(*messages, A)
    assert (again.status, len(again.body.splitlines())) == (200, 6001)
    assert len(service.values()) == 6001
    assert service.lines(*messages, A).headers[REPLAYED] == b"true"


@pytest.mark.parametrize("kind", [errors.IllegalTopic, errors.RecordTooLarge, errors.UnknownTopic])
def test_a_rejected_request_does_not_use_its_key(kind):
    service = Service(Plan(kind, is_stored=False))
    assert service.post(MESSAGE).status == ROWS[kind].status
    other = service.post(MESSAGE.replace(b'"c"', b'"d"'))
    assert (other.status, REPLAYED in other.headers) == (200, False)
    assert service.values() == [b"d"]


@pytest.mark.parametrize("kind", [errors.OutcomeUnknown, errors.PublishTimedOut])
@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("name", ["one message", "a body", "lines"])
def test_after_a_504_the_same_request_is_safe_and_the_answer_says_so(kind, is_stored, name):
    method, target, headers, body = REQUESTS[name]
    count = 2 if name == "lines" else 1
    outcomes = [Plan(kind, is_stored=is_stored)] * count
    service = Service(*outcomes)
    first = service.ask(method, target, [*headers, KEY], body)
    assert_problem(first, 504)
    advice = "Sending the same request again, with the same Idempotency-Key, is safe."
    assert json.loads(first.body)["detail"].endswith(advice)
    assert len(service.values()) == (count if is_stored else 0)
    again = service.ask(method, target, [*headers, KEY], body)
    assert (again.status, REPLAYED in again.headers) == (200, is_stored)
    assert len(service.values()) == count
    without = Service(*outcomes)
    assert b"is safe" not in without.ask(method, target, headers, body).body


def test_partly_published_lines_say_that_the_whole_request_may_be_sent_again():
    service = Service(STORED, Plan(errors.OutcomeUnknown, is_stored=False))
    problem = problem_of(service.lines(A, B), 504, "partly-published")
    assert problem["detail"].endswith("with the same Idempotency-Key, is safe.")
    assert service.lines(A, B).status == 200
    assert service.values() == [b"A", b"B"]


@pytest.mark.parametrize("content_type", [JSON, NDJSON])
def test_rejections_of_the_broker_have_their_statuses(content_type):
    expected = {
        errors.IdempotencyKeyReused: (422, "idempotency-key-reused"),
        errors.IdempotencyNotEnabled: (422, "idempotency-not-enabled"),
        errors.TooManyIdempotencyKeys: (429, "too-many-idempotency-keys"),
        errors.IdempotencyNotSupported: (501, "idempotency-not-supported"),
    }
    assert set(expected) == set(IDEMPOTENCY_REJECTIONS) - {errors.MalformedIdempotencyKey}
    for kind, (status, name) in expected.items():
        service = Service(Plan(kind, is_stored=False))
        problem_of(service.post(MESSAGE, [*content_type, KEY]), status, name)
        assert service.values() == []


def test_lines_for_a_topic_that_takes_no_keys_are_rejected_before_any_is_published():
    broker = PlannedBroker(topics={"t": errors.IdempotencyNotEnabled})
    service = Service(broker=broker)
    problem = problem_of(service.lines(A, B), 422, "idempotency-not-enabled")
    # It is about the request, not its lines.
    assert (problem["detail"], "errors" in problem) == ("As planned.", False)
    service.ask("POST", "/messages", NDJSON, json.dumps(A).encode())
    assert broker.published == []
    assert broker.identified == [True, False]


@pytest.mark.parametrize(("seconds", "expected"), [(0.2, b"1"), (1, b"1"), (2.1, b"3")])
def test_too_many_keys_say_when_to_come_again(seconds, expected):
    service = Service(broker=ManualBroker())
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", [*JSON, KEY], MESSAGE))
    error = errors.TooManyIdempotencyKeys("More than 20 a second.", retry_after_s=seconds)
    service.broker.waiting.pop().errback(error)
    (answer,) = connection.responses(["POST"])
    assert (answer.status, answer.headers[b"retry-after"]) == (429, expected)


def test_a_client_that_goes_away_does_not_stop_the_first(service):
    broker = ManualBroker()
    service = Service(broker=broker)
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", [*JSON, KEY], MESSAGE))
    (waiting,) = broker.waiting
    connection.lose()
    assert not waiting.called
    assert service.gateway.idempotent_records.waiting == 1
    broker.acknowledge()
    assert service.gateway.idempotent_records.waiting == 0
    assert service.gateway.idempotent_records.results["first"] == 1


def test_the_same_key_in_flight_waits_and_gets_the_answer():
    service = Service(broker=ManualBroker())
    connections = [service.connect(), service.connect()]
    for connection in connections:
        connection.send(request_bytes("POST", "/messages", [*JSON, KEY], MESSAGE))
    first, second = service.broker.records
    assert first.identity == second.identity
    assert (service.site.waiting, service.gateway.idempotent_records.waiting) == (2, 2)
    assert [connection.sent for connection in connections] == [b"", b""]
    place = {"topic": "t", "partition": 0, "offset": 7}
    service.broker.waiting[0].callback(RecordMetadata(**place))
    service.broker.waiting[1].callback(ReplayedRecord(**place))
    answers = [connection.responses(["POST"])[0] for connection in connections]
    assert [json.loads(answer.body) for answer in answers] == [place, place]
    assert [answer.headers.get(REPLAYED) for answer in answers] == [None, b"true"]


def test_inside_a_site_of_twisted_web_it_is_the_same():
    service = InMemoryService(broker=MemoryBroker(clock=Clock()))
    site = Site(service.gateway.app.resource())
    for replayed in (False, True):
        connection = Connection(site)
        connection.send(request_bytes("POST", "/messages", [*JSON, KEY], MESSAGE))
        assert (b"Idempotent-Replayed: true\r\n" in connection.sent) == replayed
    assert len(service.broker.records("t")) == 1


def test_records_with_a_key_are_counted_by_their_result():
    service = Service()
    service.post(MESSAGE)
    service.post(MESSAGE)
    service.post(MESSAGE, JSON)
    service.post(MESSAGE.replace(b'"c"', b'"d"'))
    service.lines(A, B, key=(b"Idempotency-Key", b"lines"))
    service.lines(A, B, C, key=(b"Idempotency-Key", b"lines"))
    counted = service.counted()
    assert of(counted, "sampleapp_idempotent_records_total") == {
        "first": 4,
        "replayed": 3,
        "refused": 1,
        "unknown": 0,
    }
    assert of(counted, "sampleapp_idempotent_records_waiting") == {(): 0}
    # Only new records are published.
    assert of(counted, "sampleapp_published_records_total") == {"t": len(service.values())}


def test_records_that_wait_or_fail_are_counted_too():
    service = Service(broker=ManualBroker())

    def waiting():
        (count,) = of(service.counted(), "sampleapp_idempotent_records_waiting").values()
        return count

    raw = service.connect()
    raw.send(request_bytes("POST", "/messages", [*NDJSON, KEY], MESSAGE + b"\n" + MESSAGE))
    assert waiting() == 2
    service.broker.waiting[0].errback(errors.OutcomeUnknown("Perhaps."))
    service.broker.waiting[1].errback(errors.BufferFull("Full."))
    assert waiting() == 0
    results = {"first": 0, "replayed": 0, "refused": 1, "unknown": 1}
    assert of(service.counted(), "sampleapp_idempotent_records_total") == results
    together = Service(together=errors.TooManyIdempotencyKeys)
    together.lines(A, B)
    assert of(together.counted(), "sampleapp_idempotent_records_total") == {
        **dict.fromkeys(results, 0),
        "refused": 2,
    }


def test_a_cancelled_publish_no_longer_waits(no_failure_is_lost):
    service = Service(broker=ManualBroker())
    for content_type in (JSON, NDJSON):
        service.connect().send(request_bytes("POST", "/messages", [*content_type, KEY], MESSAGE))
        service.broker.waiting.pop().errback(CancelledError())
    assert service.gateway.idempotent_records.waiting == 0
    no_failure_is_lost.clear()
