"""Streams of records through the whole service: heads, errors, rights, and clients that come back."""

from __future__ import annotations

import json

import pytest
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.web.read.registry import StreamKind
from tests.support.callers import by, caller
from tests.support.event_streams import EventReader
from tests.support.in_memory import InMemoryService, request_bytes
from tests.support.record_pages import PATH, PageService
from tests.support.streams import body_of, unchunked

STREAM = (b"Accept", b"text/event-stream")
BROWSER = (b"Sec-Fetch-Mode", b"cors")


@pytest.fixture
def service():
    return PageService(partitions=2)


@pytest.fixture
def topic(service):
    return service.topic


def opened(service, query="", *headers, method="GET", settle_s=0.2):
    """A connection on which a stream was asked for."""
    connection = service.connect()
    connection.send(request_bytes(method, PATH + query, [STREAM, *headers]))
    pass_time(service, settle_s)
    return connection


def pass_time(service, seconds):
    for _ in range(int(seconds * 100)):
        service.clock.advance(0.01)


def read(connection, last_event_id=""):
    """What a client makes of the stream so far."""
    assert connection.sent.startswith(b"HTTP/1.1 200 OK\r\n"), connection.sent
    reader = EventReader(last_event_id)
    reader.feed(unchunked(body_of(connection.sent))[0])
    return reader


def test_a_client_that_comes_back_gets_everything_once(service, topic):
    first = opened(service, settle_s=1)
    topic.append(0, b"a")
    pass_time(service, 0.2)
    received = read(first)
    first.lose()
    topic.append(1, b"b")
    topic.append(0, b"c")
    second = opened(service, "", (b"Last-Event-ID", received.last_event_id.encode()))
    topic.append(1, b"d")
    pass_time(service, 0.2)
    contents = [event.data.partition('"content":"')[2][0] for event in received.events + read(second).events]
    assert contents[0] == "a"
    assert sorted(contents) == ["a", "b", "c", "d"]


def test_the_head_of_a_stream(service):
    head = opened(service).sent.partition(b"\r\n\r\n")[0].lower()
    assert b"\r\ncontent-type: text/event-stream" in head
    assert b"\r\nvary: accept" in head
    assert b"\r\ncache-control: no-store" in head
    assert b"\r\ntransfer-encoding: chunked" in head
    assert b"content-length" not in head


def test_head_is_answered_at_once_and_leaves_nothing(service, topic):
    connection = opened(service, method="HEAD")
    (answer,) = [connection.sent]
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert service.gateway.streams.numbers[StreamKind.RECORDS].open == 0
    assert topic.followings == []


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?partition=2", 404),
        ("?from=other~1", 410),
        ("?from=id0~9", 410),
        ("?limit=5", 422),
        ("?from=yesterday", 422),
        ("?last_event_id=x", 422),
        ("?lastEventId=x", 422),
        ("?lastEventId=&lastEventId=", 422),
    ],
)
def test_a_stream_that_cannot_begin_has_a_status(service, query, status):
    connection = opened(service, query)
    assert connection.sent.startswith(b"HTTP/1.1 %d " % status)
    assert b"application/problem+json" in connection.sent
    assert b"\r\nvary: accept" in connection.sent.lower()
    assert service.gateway.streams.numbers[StreamKind.RECORDS].open == 0


def test_too_many_streams_are_rejected_and_a_browser_is_told_when_to_come_back():
    service = PageService(max_streams=1)
    opened(service)
    assert opened(service).sent.startswith(b"HTTP/1.1 503 ")
    connection = opened(service, "", BROWSER)
    body = connection.sent.partition(b"\r\n\r\n")[2]
    reader = EventReader.of(body)
    assert reader.retry_ms == 30_000
    assert [event.event for event in reader.events] == ["unavailable"]


def test_a_browser_comes_back_to_a_topic_that_does_not_exist_yet():
    service = InMemoryService(broker=MemoryBroker(clock=Clock()))
    headers = [STREAM, BROWSER]
    assert service.request("GET", PATH, [STREAM]).status == 404
    assert service.request("GET", PATH.replace("/t/", "/no!/"), headers).status == 422
    response = service.request("GET", PATH, headers)
    assert (response.status, response.headers[b"content-type"]) == (200, b"text/event-stream")
    reader = EventReader.of(response.body)
    ((event, data, event_id),) = reader.events
    assert (event, event_id, reader.last_event_id, reader.retry_ms) == ("unavailable", "", "", 30_000)
    assert json.loads(data)["type"].endswith(":unknown-topic")
    assert service.gateway.streams.numbers[StreamKind.RECORDS].open == 0


@pytest.mark.parametrize("other", ["", "&from=earliest", "&last_event_id=id0~0.0"])
def test_a_polyfill_comes_back_with_its_id_in_the_url(service, topic, other):
    for content in (b"a", b"b"):
        topic.append(0, content)
    events = read(opened(service, f"?lastEventId=id0~1.0{other}")).events
    assert [json.loads(each.data)["content"] for each in events] == ["b"]


def test_a_stream_ends_within_seconds_when_its_caller_loses_the_right():
    service = PageService(callers=caller("c", 'consume = ["t"]'))
    connection = opened(service, "", by("c"))
    assert connection.sent.startswith(b"HTTP/1.1 200 ")
    service.use_callers(caller("c", 'consume = ["other"]'))
    pass_time(service, 5)
    assert unchunked(body_of(connection.sent))[1] == b""
    assert opened(service, "", by("c")).sent.startswith(b"HTTP/1.1 403 ")


class BusyClock(Clock):
    """A clock on which a thousandth of a second passes at every fourth look at it: everything takes time."""

    def seconds(self):
        self.rightNow += 0.00025
        return super().seconds()


class BusyService(PageService):
    """A service whose work takes time."""

    make_clock = BusyClock


@pytest.mark.parametrize("count", [1, 40, 400])
def test_the_right_of_a_stream_is_checked_also_after_many_streams_have_lost_theirs(count):
    granted, lost = caller("c", 'consume = ["t"]'), caller("c", 'consume = ["other"]')
    service = BusyService(callers=granted)
    numbers = service.gateway.streams.numbers[StreamKind.RECORDS]
    for streams in (count, 1, count):
        connections = [opened(service, "", by("c"), settle_s=0.02) for _ in range(streams)]
        pass_time(service, 1)
        assert numbers.open == streams
        service.use_callers(lost)
        pass_time(service, 5)
        assert {unchunked(body_of(connection.sent))[1] for connection in connections} == {b""}
        assert (numbers.open, numbers.behind) == (0, 0)
        service.use_callers(granted)


def test_a_stream_to_a_client_of_http_1_0_ends_with_the_connection(service, topic):
    connection = service.connect()
    connection.send(b"GET %b HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n" % PATH.encode())
    pass_time(service, 1)
    topic.append(0, b"a")
    pass_time(service, 0.2)
    assert b"chunked" not in connection.sent.lower()
    assert len(EventReader.of(body_of(connection.sent)).events) == 1


def test_a_client_that_goes_while_its_stream_is_prepared_leaves_nothing(service, topic):
    connection = opened(service, settle_s=0)
    connection.lose()
    pass_time(service, 60)
    assert service.gateway.streams.numbers[StreamKind.RECORDS].open == 0
    assert topic.followings == []
