"""What becomes of answers that are none of the expected ones."""

from __future__ import annotations

import json

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.web.server import Site

from sampleapp.client import (
    Client,
    ClientError,
    Message,
    PartlyPublished,
    ProblemError,
    ResponseLost,
    UnexpectedResponse,
)
from sampleapp.errors import Fault
from sampleapp.model import RecordMetadata
from tests.support.client_servers import (
    NDJSON,
    PROBLEM,
    V1,
    SilentResource,
    canned,
    listening,
    problem,
    talker,
)


@pytest_twisted.ensureDeferred
async def test_a_problem_is_an_error_with_the_whole_document():
    faults = [{"pointer": "/topic", "detail": "Too long."}, {"pointer": "", "detail": "Too odd."}]
    body = problem(422, type="urn:x", title="Wrong", detail="Too long.", errors=faults)
    with pytest.raises(ProblemError) as caught:
        await canned(422, f"{PROBLEM}; charset=utf-8", body).publish(topic="t", content="c")
    error = caught.value
    assert (error.problem.type, error.problem.title, error.problem.status) == ("urn:x", "Wrong", 422)
    assert error.problem.detail == "Too long."
    assert error.problem.errors == (Fault("/topic", "Too long."), Fault("", "Too odd."))
    assert str(error) == "Wrong (422): Too long. Too odd. (At /topic.)"
    assert error.retry_after_s is None


@pytest_twisted.ensureDeferred
async def test_where_a_fault_is_is_said_only_if_its_own_words_do_not():
    faults = [
        {"pointer": "/Key", "detail": "No such member."},
        {"pointer": "/topic", "detail": "topic is long."},
    ]
    body = problem(422, detail="No such member. topic is long.", errors=faults)
    with pytest.raises(ProblemError) as caught:
        await canned(422, PROBLEM, body).publish(topic="t", content="c")
    assert str(caught.value) == "Title (422): No such member. topic is long. (At /Key.)"


@pytest_twisted.ensureDeferred
async def test_of_many_faults_the_first_are_told_and_all_are_in_the_problem():
    faults = [{"pointer": f"/{n}/x", "detail": f"Odd {n % 15}."} for n in range(30)]
    with pytest.raises(ProblemError) as caught:
        await canned(422, PROBLEM, problem(422, detail="Wrong.", errors=faults)).publish_many(
            [Message(topic="t", content="c")]
        )
    odd = " ".join(f"Odd {n}." for n in range(10))
    where = ", ".join(f"/{n}/x" for n in range(10))
    assert str(caught.value) == (
        f"Title (422): Wrong. {odd} 5 more are in the problem. (At {where}, 20 more.)"
    )
    assert len(caught.value.problem.errors) == 30


@pytest.mark.parametrize(
    ("value", "expected"), [(b"7", 7), (b"Fri, 31 Dec 1999 23:59:59 GMT", None), (b"-1", None)]
)
@pytest_twisted.ensureDeferred
async def test_the_seconds_of_retry_after_are_kept(value, expected):
    with pytest.raises(ProblemError) as caught:
        await canned(503, PROBLEM, problem(503), [("retry-after", value)]).readings()
    assert caught.value.retry_after_s == expected


@pytest.mark.parametrize(
    ("status", "retriable", "possibly_published"),
    [
        (400, False, False),
        (404, False, False),
        (422, False, False),
        (429, True, False),
        (500, True, True),
        (501, False, False),
        (503, True, False),
        (504, True, True),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_problem_says_what_became_of_the_message(status, retriable, possibly_published):
    with pytest.raises(ProblemError) as caught:
        await canned(status, PROBLEM, problem(status)).publish(topic="t", content="c")
    assert (caught.value.retriable, caught.value.possibly_published) == (retriable, possibly_published)


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (503, "text/html", b"<h1>Service Unavailable</h1>"),
        (503, V1, problem(503)),
        (503, PROBLEM, problem(504)),
        (503, PROBLEM, b"<h1>Service Unavailable</h1>"),
        (503, PROBLEM, b'{"title": 1}'),
        (502, "text/html", b"<h1>Bad Gateway</h1>"),
        (200, "text/html", b"<h1>Welcome to the hotel</h1>"),
        (200, V1, b""),
        (200, V1, b'{"topic": "t", "partition": 0, "off'),
        (200, V1, b'{"topic": "t", "partition": 0}'),
        (200, V1, b'{"topic": "t", "partition": "0", "offset": 1}'),
        (200, V1, b'{"topic": "\xff", "partition": 0, "offset": 1}'),
        (200, V1, b"[" * 100_000),
        (202, V1, b'{"topic": "t", "partition": 0, "offset": 1}'),
    ],
)
@pytest_twisted.ensureDeferred
async def test_what_nobody_promised_may_have_published_the_message(status, content_type, body):
    with pytest.raises(UnexpectedResponse) as caught:
        await canned(status, content_type, body).publish(topic="t", content="c")
    assert (caught.value.status, caught.value.possibly_published) == (status, True)


@pytest.mark.parametrize(
    ("status", "headers"), [(301, [("location", b"http://elsewhere.example/")]), (404, []), (407, [])]
)
@pytest_twisted.ensureDeferred
async def test_a_rejection_in_another_form_has_published_nothing(status, headers):
    with pytest.raises(UnexpectedResponse, match=rf"answered {status} \(text/html\)") as caught:
        await canned(status, "text/html", b"<p>", headers).publish(topic="t", content="c")
    assert caught.value.possibly_published is False


@pytest_twisted.ensureDeferred
async def test_a_redirect_is_not_followed_but_told():
    with pytest.raises(UnexpectedResponse, match=r"refers to http://elsewhere\.example/"):
        await canned(301, "text/html", b"", [("location", b"http://elsewhere.example/")]).readings()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", ResponseLost),
        (b"HTTP/1.1 200 OK\r\nConte", ResponseLost),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[1.0, 2.0]", ResponseLost),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[1.0]\r\n", ResponseLost),
        (b"HTTP/1.1 200 OK\r\n\r\n[1.0, 2.", UnexpectedResponse),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", UnexpectedResponse),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_not_whole_may_have_published_the_message(answer, error):
    port, url = await listening(talker(answer))
    try:
        with pytest.raises(ClientError) as caught:
            await Client(base_url=url, reactor=reactor).publish(topic="t", content="c")
    finally:
        await port.stopListening()
    assert type(caught.value) is error
    assert caught.value.__cause__ is not None
    assert caught.value.possibly_published is True


@pytest_twisted.ensureDeferred
async def test_a_body_that_ends_with_its_connection_is_whole_if_its_json_is():
    port, url = await listening(talker(b"HTTP/1.1 200 OK\r\n\r\n[1.0, 2.0]"))
    try:
        assert await Client(base_url=url, reactor=reactor).readings() == [1.0, 2.0]
    finally:
        await port.stopListening()


@pytest_twisted.ensureDeferred
async def test_an_endless_answer_is_not_kept(monkeypatch):
    monkeypatch.setattr("sampleapp.client._exchange.MAX_BODY_BYTES", 10)
    service = SilentResource(b"[1.0, 2.0, 3.0")
    port, url = await listening(Site(service))
    try:
        with pytest.raises(UnexpectedResponse, match="more than 10 bytes"):
            await Client(base_url=url, reactor=reactor).readings()
        await service.gone
    finally:
        await port.stopListening()


TWO = [Message(topic="t", content="1"), Message(topic="t", content="2")]
PLACE = {"topic": "t", "partition": 3, "offset": 9}
PARTLY = "urn:sampleapp:problem:partly-published"


@pytest_twisted.ensureDeferred
async def test_when_some_messages_were_published_the_error_says_for_each():
    failed = {"status": 504, "type": "urn:sampleapp:problem:no-answer", "detail": "Perhaps."}
    body = problem(504, type=PARTLY, results=[PLACE, failed])
    with pytest.raises(PartlyPublished, match=r"^Title \(504\): Detail\.$") as caught:
        await canned(504, PROBLEM, body).publish_many(TWO)
    assert (caught.value.retriable, caught.value.possibly_published) == (True, True)
    stored, error = caught.value.results
    assert stored == RecordMetadata(topic="t", partition=3, offset=9)
    assert (error.problem.type, error.problem.status, error.possibly_published) == (failed["type"], 504, True)
    assert str(error) == "Gateway Timeout (504): Perhaps."


@pytest_twisted.ensureDeferred
async def test_a_message_that_was_rejected_for_good_among_others_was_not_published():
    body = problem(422, type=PARTLY, results=[{"status": 413, "detail": "Too large."}, PLACE])
    with pytest.raises(PartlyPublished) as caught:
        await canned(422, PROBLEM, body).publish_many(TWO)
    assert (caught.value.retriable, caught.value.possibly_published) == (False, True)
    assert (caught.value.results[0].retriable, caught.value.results[0].possibly_published) == (False, False)


@pytest.mark.parametrize("status", [422, 504])
@pytest.mark.parametrize(
    "members",
    [
        {},
        {"results": []},
        {"results": [PLACE]},
        {"results": [PLACE, {}]},
        {"results": [PLACE, {"topic": "t", "partition": 0}]},
        {"results": [PLACE, {"status": "422"}]},
        {"results": "none"},
    ],
)
@pytest_twisted.ensureDeferred
async def test_results_that_do_not_fit_the_messages_leave_all_of_them_in_doubt(status, members):
    with pytest.raises(UnexpectedResponse) as caught:
        await canned(status, PROBLEM, problem(status, type=PARTLY, **members)).publish_many(TWO)
    assert (caught.value.status, caught.value.possibly_published) == (status, True)


@pytest_twisted.ensureDeferred
async def test_when_none_of_many_messages_was_published_the_error_is_as_for_one():
    faults = [{"pointer": "/1/topic", "detail": "Too odd."}]
    with pytest.raises(ProblemError) as caught:
        await canned(422, PROBLEM, problem(422, errors=faults)).publish_many(TWO)
    assert type(caught.value) is ProblemError
    assert caught.value.problem.errors == (Fault("/1/topic", "Too odd."),)
    assert caught.value.possibly_published is False


@pytest.mark.parametrize("lines", [0, 1, 3])
@pytest_twisted.ensureDeferred
async def test_an_answer_for_another_number_of_messages_leaves_them_in_doubt(lines):
    body = b'{"topic": "t", "partition": 0, "offset": 1}\n' * lines
    with pytest.raises(UnexpectedResponse, match=f"{lines} results for 2 messages") as caught:
        await canned(200, "application/x-ndjson", body).publish_many(TWO)
    assert caught.value.possibly_published is True


@pytest.mark.parametrize(
    "member", [{"topic": "another"}, {"partition": -1}, {"offset": -1}], ids=["topic", "partition", "offset"]
)
@pytest_twisted.ensureDeferred
async def test_a_place_that_cannot_be_that_of_the_message_leaves_it_in_doubt(member):
    place = json.dumps(PLACE | member).encode()
    client = canned(200, V1, place)
    publishing = [
        lambda: client.publish(topic="t", content="c"),
        lambda: client.publish_raw(topic="t", body=b"c"),
        lambda: client.delete(topic="t", key="k"),
        lambda: canned(200, NDJSON, b"%b\n" % place * 2).publish_many(TWO),
        lambda: canned(
            504, PROBLEM, problem(504, type=PARTLY, results=[PLACE | member, {"status": 504}])
        ).publish_many(TWO),
    ]
    for publish in publishing:
        with pytest.raises(UnexpectedResponse) as caught:
            await publish()
        assert caught.value.possibly_published is True
