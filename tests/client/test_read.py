"""Reading pages of a topic, from a service that answers as the contract says, and from others."""

from __future__ import annotations

import json

import pytest
import pytest_twisted
import treq.testing
from twisted.internet import reactor
from twisted.internet.task import Clock
from twisted.web.resource import Resource

from sampleapp.client import (
    Client,
    Forbidden,
    Page,
    PositionExpired,
    PositionUnknown,
    ProblemError,
    RequestTimedOut,
    ResponseLost,
    TopicReplaced,
    UnexpectedResponse,
)
from sampleapp.errors import InvalidMessage
from sampleapp.model import ConsumerRecord, GoneRecords
from tests.support.client_servers import (
    NDJSON,
    PROBLEM,
    CannedResource,
    SilentResource,
    canned,
    in_memory,
    listening,
    problem,
    talker,
)

PLACE = {"topic": "t", "partition": 3, "offset": 42, "timestamp": 1795363727918}
HEADERS = [("Position", "Ab~1.2.-"), ("Up-To-Date", "true")]


def lines(*records):
    return b"".join(json.dumps(PLACE | record).encode() + b"\n" for record in records)


def record(**members):
    place = {"topic": "t", "partition": 3, "offset": 42, "timestamp_ms": 1795363727918}
    return ConsumerRecord(**place, **({"key": None, "value": None} | members))


@pytest_twisted.ensureDeferred
async def test_a_page_has_its_records_its_position_and_says_that_it_is_up_to_date():
    body = lines({"key": "k", "content": "21.5"}, {"content": None})
    page = await canned(200, NDJSON, body, HEADERS).read(topic="t")
    records = (record(key=b"k", value=b"21.5"), record())
    assert page == Page(records=records, position="Ab~1.2.-", up_to_date=True)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"content": ""}, {"value": b""}),
        ({"key": "", "content": "é"}, {"key": b"", "value": "é".encode()}),
        ({"key_base64": "/w==", "content_base64": "AP8="}, {"key": b"\xff", "value": b"\0\xff"}),
        (
            {"content": "c", "headers": {"b": "1", "a": ""}},
            {"value": b"c", "headers": (("b", b"1"), ("a", b""))},
        ),
        (
            {"content": "c", "headers_base64": [["a", "/w=="], ["a", None]]},
            {"value": b"c", "headers": (("a", b"\xff"), ("a", None))},
        ),
        (
            {"content": "c", "headers": {"b": "1"}, "headers_base64": [["a", "/w=="]]},
            {"value": b"c", "headers": (("b", b"1"), ("a", b"\xff"))},
        ),
        ({"content": "c", "new_member": 1}, {"value": b"c"}),
    ],
)
@pytest_twisted.ensureDeferred
async def test_keys_values_and_headers_are_the_bytes_of_the_record(members, expected):
    page = await canned(200, NDJSON, lines(members), HEADERS).read(topic="t")
    assert page.records == (record(**expected),)


@pytest_twisted.ensureDeferred
async def test_no_record_is_an_empty_page_that_may_have_moved():
    page = await canned(204, NDJSON, b"", [("Position", "Ab~7")]).read(topic="t", wait_s=0)
    assert page == Page(records=(), position="Ab~7", up_to_date=False)


class Asked(CannedResource):
    def render(self, request):
        self.request = (request.path, dict(request.args), request.getHeader("accept"))
        return super().render(request)


@pytest_twisted.ensureDeferred
async def test_all_parameters_are_sent_so_that_any_key_and_time_arrives():
    service = Asked(200, NDJSON, b"", HEADERS)
    await in_memory(service).read(
        topic="t.1", start="2026-11-21T08:00:00+01:00", partitions=[0, 4], key=b"\xff&=+ ", limit=7, wait_s=5
    )
    assert service.request == (
        b"/topics/t.1/records",
        {
            b"from": [b"2026-11-21T08:00:00+01:00"],
            b"partition": [b"0,4"],
            b"key": [b"\xff&=+ "],
            b"limit": [b"7"],
            b"wait": [b"5"],
        },
        NDJSON,
    )


@pytest.mark.parametrize(
    "members",
    [
        {"topic": "..", "key": None},
        {"topic": "t", "key": "\ud800"},
        # The service would look for the header "a" with "b:c".
        {"topic": "t", "headers": [("a:b", "c")]},
        {"topic": "t", "headers": [("\ud800", b"c")]},
        {"topic": "t", "headers": [("a", "\ud800")]},
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_impossible_topic_key_or_header_is_rejected_before_anything_is_sent(members):
    with pytest.raises(InvalidMessage):
        await in_memory(Resource()).read(**members)


@pytest_twisted.ensureDeferred
async def test_an_expired_position_says_what_is_gone_and_where_to_go_on():
    gone = [{"partition": 0, "asked": 5, "earliest": 9}]
    body = problem(410, type="urn:sampleapp:problem:position-expired", gone=gone, resume="Ab~9")
    with pytest.raises(PositionExpired, match="Detail") as caught:
        await canned(410, PROBLEM, body).read(topic="t", start="Ab~5")
    assert caught.value.gone == (GoneRecords(0, 5, 9),)
    assert (caught.value.resume, caught.value.retriable) == ("Ab~9", False)


@pytest.mark.parametrize(
    ("name", "kind"), [("topic-replaced", TopicReplaced), ("position-unknown", PositionUnknown)]
)
@pytest_twisted.ensureDeferred
async def test_a_position_of_another_topic_or_cluster_has_an_error_of_its_own(name, kind):
    with pytest.raises(kind) as caught:
        await canned(410, PROBLEM, problem(410, type=f"urn:sampleapp:problem:{name}")).read(topic="t")
    assert (caught.value.gone, caught.value.resume) == ((), None)


@pytest.mark.parametrize(("status", "kind"), [(403, Forbidden), (404, ProblemError), (503, ProblemError)])
@pytest_twisted.ensureDeferred
async def test_other_problems_are_the_errors_of_every_request(status, kind):
    with pytest.raises(kind) as caught:
        await canned(status, PROBLEM, problem(status)).read(topic="t")
    assert caught.value.retriable is (status == 503)


@pytest.mark.parametrize(
    ("status", "content_type", "body", "headers"),
    [
        (200, NDJSON, lines({"content": "c"}), []),
        (200, "text/html", b"<p>", HEADERS),
        (200, NDJSON, b"[]\n", HEADERS),
        (200, NDJSON, lines({"content": 1}), HEADERS),
        (200, NDJSON, lines({"content_base64": "?"}), HEADERS),
        (200, NDJSON, lines({"content": "c"})[:-9], HEADERS),
        (204, "text/html", b"", []),
        (206, NDJSON, b"", HEADERS),
    ],
)
@pytest_twisted.ensureDeferred
async def test_an_answer_of_another_program_is_unexpected(status, content_type, body, headers):
    with pytest.raises(UnexpectedResponse):
        await canned(status, content_type, body, headers).read(topic="t")


def test_the_deadline_leaves_the_service_the_time_that_it_was_asked_to_wait():
    clock = Clock()
    agent = treq.testing.RequestTraversalAgent(SilentResource())
    client = Client(base_url="https://service.example", reactor=clock, agent=agent, timeout_s=30)
    failures = []
    client.read(topic="t", wait_s=60).addErrback(failures.append)
    clock.advance(89)
    assert failures == []
    clock.advance(1)
    (failure,) = failures
    assert failure.check(RequestTimedOut)
    assert str(failure.value) == "https://service.example/topics/t/records did not answer within 90 seconds."


@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest_twisted.ensureDeferred
async def test_a_page_that_ends_only_with_its_connection_is_lost_since_lines_may_be_missing(sent):
    head = b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in HEADERS)
    body = lines(*[{"content": "c"}] * sent)
    port, url = await listening(
        talker(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%b\r\n%b" % (NDJSON.encode(), head, body))
    )
    client = Client(base_url=url, reactor=reactor)
    try:
        with pytest.raises(ResponseLost):
            await client.read(topic="t")
        await client.close()
    finally:
        await port.stopListening()
