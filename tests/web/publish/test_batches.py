"""Many messages in one request."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.web.server import Site

from sampleapp import errors
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.web.errors import ROWS
from sampleapp.web.publish.messages import BatchPublisher
from sampleapp.web.publish.publisher import IdempotentRecords
from sampleapp.web.server import Fields, Request
from tests.metrics.service import MeasuredService, of
from tests.support import strategies
from tests.support.callers import by, caller
from tests.support.clocks import ClockInTurns
from tests.support.in_memory import Connection, InMemoryService, ManualBroker, request_bytes
from tests.support.planned_outcomes import STORED, Plan, PlannedBroker, plans
from tests.web.http import JSON, MESSAGE, NDJSON, assert_problem, chunked, raw, same_answer

GOOD = b'{"topic":"t","content":"c"}\n'
PARTLY = "urn:sampleapp:problem:partly-published"


def lines_of(*messages):
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def ask(service, body, headers=NDJSON):
    """Publish a batch, and let it have as many turns of the reactor as it takes."""
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", headers, body))
    return answer_on(service, connection)


def answer_on(service, connection):
    service.clock.advance(0)
    (response,) = connection.responses(["POST"])
    return response


def results_in(response):
    return [json.loads(line) for line in response.body.splitlines()]


messages = st.fixed_dictionaries(
    {"topic": st.sampled_from(["a", "b"]), "content": strategies.texts},
    optional={
        "key": strategies.keys,
        "headers": st.dictionaries(strategies.texts, strategies.texts, max_size=2),
    },
)


@given(st.lists(messages, min_size=1, max_size=8), st.data())
def test_a_list_of_messages_makes_exactly_those_records_in_order_however_it_is_cut(listed, data):
    service = InMemoryService(broker=PlannedBroker())
    body = lines_of(*listed)
    is_chunked = data.draw(st.booleans())
    if is_chunked:
        headers = [*NDJSON, (b"Transfer-Encoding", b"chunked")]
        sent = request_bytes("POST", "/messages", headers) + chunked(
            body, data.draw(st.integers(1, len(body)))
        )
    else:
        sent = request_bytes("POST", "/messages", NDJSON, body)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    connection = service.connect()
    connection.send(*(sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True) if a < b))
    response = answer_on(service, connection)
    assert (response.status, response.headers[b"content-type"]) == (200, b"application/x-ndjson")
    assert [
        (record.topic, record.key, record.value, record.headers, record.timestamp_ms)
        for record in service.broker.published
    ] == [
        (
            each["topic"],
            None if each.get("key") is None else each["key"].encode(),
            each["content"].encode(),
            tuple((name, value.encode()) for name, value in each.get("headers", {}).items()),
            1_700_000_000_000,
        )
        for each in listed
    ]
    results = results_in(response)
    assert [result["topic"] for result in results] == [each["topic"] for each in listed]
    stored = {topic: service.broker.records(topic) for topic in ("a", "b")}
    for each, result in zip(listed, results, strict=True):
        assert stored[result["topic"]][result["offset"]].value == each["content"].encode()


bad_lines = st.sampled_from(
    [
        (b"{", {""}, 400),
        (b"[]", {""}, 422),
        (b'{"topic":"t"}', {"/content"}, 422),
        (b'{"topic":"a b","content":1}', {"/topic", "/content"}, 422),
        (b'{"topic":"t","content":"c","content":"d"}', {"/content"}, 422),
        (b'{"topic":"unknown","content":"c"}', {"/topic"}, 404),
        (b'{"topic":"forbidden","content":"c"}', {"/topic"}, 403),
    ]
)
CALLERS = caller("one", 'publish = ["t", "unknown"]')
BY_ONE = [*NDJSON, by("one")]


@given(st.lists(st.none() | bad_lines, min_size=1, max_size=8).filter(any))
def test_a_batch_with_anything_wrong_publishes_nothing_and_names_all_of_it(lines):
    broker = PlannedBroker(topics={"unknown": errors.UnknownTopic})
    service = InMemoryService(broker=broker, callers=CALLERS)
    body = b"\n".join(GOOD.strip() if line is None else line[0] for line in lines)
    response = ask(service, body, BY_ONE)
    statuses = {line[2] for line in lines if line is not None}
    assert_problem(response, next(status for status in (400, 422, 403, 404) if status in statuses))
    named = [fault["pointer"] for fault in json.loads(response.body)["errors"]]
    wrong = [(number, line) for number, line in enumerate(lines) if line is not None]
    assert sorted(named) == sorted(f"/{number}{place}" for number, line in wrong for place in line[1])
    assert [int(pointer.split("/")[1]) for pointer in named] == sorted(int(p.split("/")[1]) for p in named)
    assert broker.published == []


@pytest.mark.parametrize("body", [b"", b"\n", b"\r\n\n"])
def test_a_body_without_a_message_is_rejected(body):
    service = InMemoryService(broker=PlannedBroker())
    response = ask(service, body)
    assert_problem(response, 422)
    assert "no message" in json.loads(response.body)["detail"]
    assert service.broker.batches == []


@pytest.mark.parametrize(
    ("bad", "status", "sentence"),
    [
        (b'{"topic":"t"}', 422, '"content" is missing'),
        (b"{", 400, "The line is not JSON: Expecting property name enclosed in double quotes (column 2)."),
        (b'{"topic":"forbidden","content":"c"}', 403, "This caller may not publish"),
    ],
)
@pytest.mark.parametrize(("before", "line"), [(GOOD, 2), (b"\n" + GOOD + b"\r\n\n", 5), (b"", 1)])
def test_the_sentence_names_the_line_as_an_editor_counts_it(bad, status, sentence, before, line):
    service = InMemoryService(broker=PlannedBroker(), callers=CALLERS)
    response = ask(service, before + bad + b"\n" + GOOD, BY_ONE)
    assert_problem(response, status)
    detail = json.loads(response.body)["detail"]
    assert detail.startswith(f"Nothing was published. Line {line}: {sentence}"), detail


def test_an_unknown_topic_is_rejected_with_its_line():
    service = InMemoryService(broker=PlannedBroker(topics={"unknown": errors.UnknownTopic}))
    response = ask(service, GOOD + b'{"topic":"unknown","content":"c"}\n')
    assert_problem(response, 404)
    assert json.loads(response.body)["detail"].startswith("Nothing was published. Line 2: ")


@given(
    st.lists(st.none() | bad_lines | st.sampled_from([b"", b"\r"]), min_size=1, max_size=12).filter(
        lambda lines: any(isinstance(line, tuple) for line in lines)
    )
)
def test_each_error_has_its_line_as_an_editor_counts_it(lines):
    broker = PlannedBroker(topics={"unknown": errors.UnknownTopic})
    service = InMemoryService(broker=broker, callers=CALLERS)
    texts = [GOOD.strip() if line is None else line[0] if isinstance(line, tuple) else line for line in lines]
    named = json.loads(ask(service, b"\n".join([*texts, b""]), BY_ONE).body)["errors"]
    messages = [number for number, text in enumerate(texts, 1) if text.strip()]
    assert [fault["line"] for fault in named] == [
        messages[int(fault["pointer"].split("/")[1])] for fault in named
    ]
    assert {fault["line"] for fault in named} == {
        number for number, line in enumerate(lines, 1) if isinstance(line, tuple)
    }


@pytest.mark.parametrize("before", [b"", b"\n\r\n"])
def test_each_error_has_its_line_if_the_broker_has_published_none(before):
    failures = [Plan(error, is_stored=False) for error in (errors.BufferFull, errors.BrokerUnavailable)]
    broker = PlannedBroker(outcomes=failures)
    named = json.loads(
        ask(
            InMemoryService(broker=broker),
            before + GOOD * 2,
        ).body
    )["errors"]
    assert [fault["line"] for fault in named] == [1 + before.count(b"\n"), 2 + before.count(b"\n")]


def test_of_many_faults_100_are_told_with_the_one_that_decides():
    service = InMemoryService(broker=PlannedBroker())
    response = ask(service, b'{"topic":"t"}\n' * 5000 + b"{\n")
    assert_problem(response, 400)
    faults = [fault["pointer"] for fault in json.loads(response.body)["errors"]]
    assert faults == [*(f"/{number}/content" for number in range(99)), "/5000"]
    response = ask(service, b'{"topic":"t"}\n' * 5000)
    faults = [fault["pointer"] for fault in json.loads(response.body)["errors"]]
    assert faults == [f"/{number}/content" for number in range(100)]
    # Each line has two faults, so there are fewer lines than faults.
    response = ask(service, b"{}\n" * 60 + b"{\n")
    assert_problem(response, 400)
    faults = [fault["pointer"] for fault in json.loads(response.body)["errors"]]
    assert (len(faults), faults[-2:]) == (100, ["/49/topic", "/60"])


def test_each_topic_is_looked_for_once_and_before_anything_is_published():
    broker = PlannedBroker(topics={"v": errors.UnknownTopic})
    service = InMemoryService(broker=broker)
    topics = ["t", "u", "t", "v", "v"]
    response = ask(service, lines_of(*({"topic": topic, "content": ""} for topic in topics)))
    assert_problem(response, 404)
    assert broker.checked == [["t", "u", "v"]]
    assert broker.published == []
    assert [fault["pointer"] for fault in json.loads(response.body)["errors"]] == ["/3/topic", "/4/topic"]


@given(st.lists(st.none() | bad_lines, min_size=1, max_size=8))
def test_for_a_batch_with_a_faulty_line_no_topic_is_created(lines):
    broker = PlannedBroker(topics={"unknown": errors.UnknownTopic})
    service = InMemoryService(broker=broker, callers=CALLERS)
    body = b"\n".join(GOOD.strip() if line is None else line[0] for line in lines)
    service.request("POST", "/messages", BY_ONE, body)
    is_faulty = any(line is not None and line[2] != 404 for line in lines)
    assert broker.may_create in ([], [not is_faulty])
    assert broker.may_create or is_faulty


def test_a_batch_that_would_create_very_many_topics_creates_none():
    service = InMemoryService(broker=PlannedBroker())
    response = ask(service, lines_of(*[{"topic": f"t{n}", "content": ""} for n in range(1001)]))
    assert_problem(response, 422)
    assert "1000 other topics" in json.loads(response.body)["detail"]
    assert service.broker.published == []


def test_a_topic_that_a_caller_may_not_publish_to_is_not_even_looked_for():
    broker = PlannedBroker(topics={"secret": errors.UnknownTopic})
    service = InMemoryService(broker=broker, callers=CALLERS)
    response = ask(service, GOOD + b'{"topic":"secret","content":""}', BY_ONE)
    assert_problem(response, 403)
    assert broker.checked == [["t"]]


@pytest.mark.parametrize("kind", [errors.BrokerUnavailable, errors.BrokerIncompatible, errors.UnknownTopic])
def test_what_keeps_a_topic_from_being_looked_for_is_the_answer(kind):
    broker = PlannedBroker(topics={"t": kind})
    response = ask(InMemoryService(broker=broker), GOOD * 3)
    alone = ROWS[kind]
    assert_problem(response, alone.status)
    assert json.loads(response.body)["type"] == alone.type
    assert response.headers.get(b"retry-after") == dict(alone.headers).get(b"Retry-After")
    assert broker.published == []


@given(st.lists(plans, min_size=1, max_size=8))
def test_the_answer_is_true_for_each_message_whatever_the_broker_does(planned):
    broker = PlannedBroker(planned)
    service = InMemoryService(broker=broker)
    response = ask(service, b"".join(b'{"topic":"t","content":"%d"}\n' % n for n in range(len(planned))))
    kinds = [plan.error for plan in planned]
    failed = [kind for kind in kinds if kind is not None]
    if not failed:
        assert response.status == 200
        results = results_in(response)
    elif len(failed) == len(kinds) and not any(kind.possibly_published for kind in failed):
        row = ROWS[failed[0]]
        assert_problem(response, row.status)
        assert json.loads(response.body)["type"] == row.type
        assert (b"retry-after" in response.headers) == (row.status in {429, 503})
        results = [None] * len(kinds)
    else:
        is_over = not any(kind.possibly_published or kind.retriable for kind in failed)
        assert_problem(response, 422 if is_over else 504)
        document = json.loads(response.body)
        assert document["type"] == PARTLY
        results = document["results"]
    assert len(results) == len(kinds)
    stored = broker.records("t")
    for number, (plan, result) in enumerate(zip(planned, results, strict=True)):
        value = b"%d" % number
        if plan.error is None:
            assert (result["topic"], result["partition"]) == ("t", 0)
            assert stored[result["offset"]].value == value
        elif result is not None:
            row = ROWS[plan.error]
            assert (result["status"], result["type"]) == (row.status, row.type)
            assert result["detail"]
        if plan.error is not None and not plan.error.possibly_published:
            assert value not in [record.value for record in stored]


@pytest.mark.parametrize("kind", [errors.BufferFull, errors.BrokerStopped, errors.RecordTooLarge])
def test_what_a_broker_rejects_as_a_whole_has_the_status_of_one(kind):
    response = ask(InMemoryService(broker=PlannedBroker(together=kind)), GOOD * 3)
    assert_problem(response, ROWS[kind].status)
    assert json.loads(response.body)["type"] == ROWS[kind].type
    assert response.headers.get(b"retry-after") == dict(ROWS[kind].headers).get(b"Retry-After")


def test_messages_that_fail_in_different_ways_are_told_apart():
    broker = PlannedBroker(
        [Plan(kind, is_stored=False) for kind in (errors.RecordTooLarge, errors.BufferFull)]
    )
    response = ask(InMemoryService(broker=broker), GOOD * 2)
    assert_problem(response, 413)
    assert [fault["pointer"] for fault in json.loads(response.body)["errors"]] == ["/0", "/1"]


# Limits.


@pytest.mark.parametrize(
    "content_type", [b"application/x-ndjson", b"application/jsonl; charset=utf-8", b"APPLICATION/JSONL"]
)
def test_lines_may_be_announced_in_every_way(content_type):
    service = InMemoryService(broker=PlannedBroker())
    assert ask(service, GOOD * 2, [(b"Content-Type", content_type)]).status == 200
    assert service.broker.batches == [2]


def test_a_rejected_content_type_is_told_which_there_are():
    response = InMemoryService().request("POST", "/messages", [(b"Content-Type", b"text/plain")], GOOD)
    assert response.status == 415
    assert response.headers[b"accept"] == b"application/json, application/x-ndjson, application/jsonl"


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_with_many_messages_has_a_limit_of_its_own(is_chunked):
    service = InMemoryService(broker=PlannedBroker(), max_body=100, max_batch_body=10 * len(GOOD))
    for count, headers, status in [(10, NDJSON, 200), (11, NDJSON, 413), (10, JSON, 413)]:
        connection = service.connect()
        if is_chunked:
            head = request_bytes("POST", "/messages", [*headers, (b"Transfer-Encoding", b"chunked")])
            connection.send(head + chunked(GOOD * count, 50))
        else:
            connection.send(request_bytes("POST", "/messages", headers, GOOD * count))
        assert answer_on(service, connection).status == status
    assert service.broker.batches == [10]


def test_each_message_may_be_as_long_as_one_alone():
    service = InMemoryService(broker=PlannedBroker(), max_body=100)
    response = ask(service, GOOD + GOOD.replace(b'c"}', b"c" * 80 + b'"}'))
    assert_problem(response, 422)
    assert [fault["pointer"] for fault in json.loads(response.body)["errors"]] == ["/1"]


def test_a_batch_takes_its_bytes_of_its_caller_s_rate_and_one_that_is_too_large_what_comes_of_it():
    limited = caller("t", 'publish = ["*"]', "bytes_per_second = 1000")
    limits = {"max_body": 100, "max_batch_body": 2000}
    service = InMemoryService(broker=PlannedBroker(), callers=limited, **limits)
    headers = [*NDJSON, by("t")]
    too_large = raw(service, request_bytes("POST", "/messages", [*headers, (b"Content-Length", b"2001")]))
    assert too_large.responses(["POST"])[0].status == 413
    assert ask(service, GOOD * 50, headers).status == 200
    assert ask(service, GOOD, headers).status == 429
    service.clock.advance(3)
    too_large.send(bytes(1000))
    assert ask(service, GOOD, headers).status == 429


# Other requests during a batch.


class ServiceInTurns(InMemoryService):
    """A service whose broker does everything at once, and which does the rest in turns."""

    make_clock = ClockInTurns


def test_the_records_stay_with_the_broker_when_nobody_waits_for_the_answer_any_more():
    clock, broker = ClockInTurns(), ManualBroker()
    given = []
    broker.publish_many = lambda records: given.append(records) or Deferred()
    request = Request(b"POST", b"/messages", b"", Fields(()), exchange=None, body=GOOD * 5000)
    publisher = BatchPublisher(
        broker, TimeSlices(clock), max_line=1024, idempotent_records=IdempotentRecords()
    )
    answer = publisher.publish(request, now_ms=0)
    answer.addErrback(lambda failure: failure.trap(CancelledError))
    while not given:
        clock.take()
    answer.cancel()
    clock.take()
    assert [len(records) for records in given] == [5000]


@pytest.mark.parametrize("lines", [51, 100, 5000])
def test_an_answered_batch_has_left_nothing_to_be_freed_however_many_come_in_a_turn(lines):
    service = ServiceInTurns(broker=PlannedBroker())
    lists, publish_many = [], service.broker.publish_many

    def keep_lists(records):
        published = publish_many(records)
        lists.extend((records, published.result))
        return published

    service.broker.publish_many = keep_lists
    connections = [service.connect() for _ in range(10)]
    for connection in connections:
        connection.send(request_bytes("POST", "/messages", NDJSON, GOOD * lines))
    while not all(connection.sent for connection in connections):
        service.clock.take()
    assert lists == [[]] * 20


@pytest.mark.parametrize(
    "line",
    [
        GOOD,
        b'{"topic":"t","content":"%b"}\n' % (b"x" * 5000),
        b'{"topic":"t","content":"","key":null}\n',
        b"[]\n",
        b"\n",
        b'{"topic":"unknown","content":""}\n',
    ],
)
def test_messages_on_other_connections_are_answered_while_a_large_batch_is_worked_on(line):
    broker = PlannedBroker(topics={"unknown": errors.UnknownTopic})
    service = ServiceInTurns(broker=broker)
    body = line * (2_000_000 // len(line))
    large = service.connect()
    large.send(request_bytes("POST", "/messages", NDJSON, body))
    turns = 0
    while not large.sent:
        other = service.connect()
        other.send(request_bytes("POST", "/messages", JSON, MESSAGE))
        # At once, whatever the other one is at.
        assert other.responses(["POST"])[0].status == 200
        service.clock.take()
        turns += 1
        assert turns < 1000
    assert turns >= 5
    large.responses(["POST"])


def test_several_large_batches_share_the_turns():
    service = ServiceInTurns(broker=PlannedBroker())
    connections = [service.connect() for _ in range(3)]
    for connection in connections:
        connection.send(request_bytes("POST", "/messages", NDJSON, GOOD * 20_000))
    turns, ended = 0, []
    while len(ended) < 3:
        service.clock.take()
        turns += 1
        ended += [turns] * (sum(bool(connection.sent) for connection in connections) - len(ended))
    # None of them is done when the last one has only begun.
    assert ended[0] > turns / 2
    assert [connection.responses(["POST"])[0].status for connection in connections] == [200] * 3


def test_a_batch_whose_client_goes_away_goes_on():
    service = ServiceInTurns(broker=PlannedBroker())
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", NDJSON, GOOD * 20_000))
    connection.lose()
    assert service.broker.batches == []
    for _ in range(100):
        service.clock.take()
    assert service.broker.batches == [20_000]
    assert service.site.waiting == 0


def test_who_stops_the_service_waits_for_a_batch():
    service = ServiceInTurns(broker=PlannedBroker())
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", NDJSON, GOOD * 20_000))
    drained = []
    service.site.drain().addCallback(drained.append)
    while not connection.sent:
        assert drained == []
        service.clock.take()
    connection.settle()
    assert drained == [None]
    response = connection.responses(["POST"])[0]
    assert (response.status, response.headers[b"connection"]) == (200, b"close")


# Metrics.


def test_batches_are_counted_with_their_records_and_what_is_rejected():
    planned = [STORED, STORED, Plan(errors.BufferFull, is_stored=False)]
    service = MeasuredService(broker=PlannedBroker(planned))
    ask(service, lines_of({"topic": "a", "content": "cc", "key": "k"}, {"topic": "b", "content": "c"}) + GOOD)
    ask(service, GOOD + b'[]\n{"topic":1}\n')
    counted = service.counted()
    assert of(counted, "sampleapp_batches_total") == {(): 2}
    assert of(counted, "sampleapp_published_records_total") == {"a": 1, "b": 1}
    assert of(counted, "sampleapp_published_bytes_total") == {"a": 3, "b": 1}
    assert of(counted, "sampleapp_batch_refused_records_total") == {(): 3}
    problems = of(counted, "sampleapp_problems_total")
    assert {kind for kind, count in problems.items() if count} == {"partly-published", "invalid-message"}


def test_the_trace_of_the_request_goes_into_each_record():
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    service = InMemoryService(broker=PlannedBroker())
    own = {"topic": "t", "content": "", "headers": {"traceparent": "own"}}
    assert ask(service, GOOD * 2 + lines_of(own), [*NDJSON, (b"traceparent", parent)]).status == 200
    of_request = (("traceparent", parent),)
    assert [record.headers for record in service.broker.published] == [
        of_request,
        of_request,
        (("traceparent", b"own"),),
    ]


@pytest.mark.parametrize(
    "body", [GOOD * 3, GOOD * 20_000, b"", b"[]\n" + GOOD, b'{"topic":"u","content":""}']
)
def test_a_site_of_twisted_web_answers_in_the_same_way(body):
    connections = []
    for _ in range(2):
        service = InMemoryService(broker=PlannedBroker(topics={"u": errors.UnknownTopic}))
        site = Site(service.gateway.app.resource()) if connections else service.site
        connection = Connection(site)
        connection.send(request_bytes("POST", "/messages", NDJSON, body))
        service.clock.advance(0)
        connections.append(connection)
    same_answer(connections, "POST")
