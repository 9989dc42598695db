"""The lines of the access log, and that no client can forge one."""

from __future__ import annotations

import re
from http import HTTPStatus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.logs import AccessLogFormat
from sampleapp.logs.access_log import AccessLog
from sampleapp.model import ReplayedRecord
from sampleapp.web import Batch, Exchange, Response, StreamEnd, TopicTotal
from sampleapp.web.server import Peer
from sampleapp.web.server.head import parse_head
from tests.support.in_memory import InMemoryService, ManualBroker, PromptBroker, request_bytes
from tests.support.strategies import field_bytes
from tests.support.streams import Source
from tests.web.http import JSON, MESSAGE

QUOTED = r'"((?:[^"\\]|\\.)*)"'
# After Apache's nine fields: the id, the seconds, the route, where the record is, how many there are, and
# why a stream has ended.
COMBINED = re.compile(
    rf"(\S+) - (\S+) \[([^]]+)\] {QUOTED} (\d{{3}}) (\d+|-) {QUOTED} {QUOTED} "
    r"(\S+) (\d+\.\d{6}) (\S+) (\S+) (\d+|-) (\d+|-) (\d+|-) (\S+)\n"
)
NAMES = (
    *("client", "caller", "time", "request", "status", "bytes", "referer", "agent"),
    *("request_id", "seconds", "route", "topic", "partition", "offset", "records", "ended_by"),
)


class LoggingService(InMemoryService):
    """The service, whose answers are written down."""

    def __init__(self, path, line_format, **arguments):
        super().__init__(on_response=self.responded, **arguments)
        self.path = path
        self.line_format = line_format
        self.open()

    def responded(self, exchange, answer):
        self.log.responded(exchange, answer)

    def open(self):
        self.log = AccessLog(
            path=str(self.path), line_format=self.line_format, clock=self.clock, now=self.clock.seconds
        )
        self.log.open()

    def logged(self):
        """The text that was written since the last time."""
        # It is all written when it is closed.
        self.log.close()
        text = self.path.read_text(encoding="utf-8")
        self.path.unlink()
        self.open()
        return text


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    directory = tmp_path_factory.mktemp("access")
    services = {
        each.value: LoggingService(directory / each.value, each, broker=PromptBroker())
        for each in AccessLogFormat
    }
    yield services
    for service in services.values():
        service.log.close()


@pytest.fixture
def combined(services):
    def lines():
        text = services["combined"].logged()
        return [
            dict(zip(NAMES, COMBINED.fullmatch(line).groups(), strict=True))
            for line in text.splitlines(keepends=True)
        ]

    services["combined"].lines = lines
    return services["combined"]


@pytest.fixture
def as_json(services):
    services["json"].lines = lambda: [
        msgspec.json.decode(line) for line in services["json"].logged().splitlines()
    ]
    return services["json"]


def test_a_message_that_was_published_is_told_with_its_record(combined, as_json):
    headers = [
        *JSON,
        (b"User-Agent", b"tests/1"),
        (b"Referer", b"http://a/b?token=1"),
        (b"X-Request-Id", b"7"),
    ]
    for service in (combined, as_json):
        assert service.request("POST", "/messages?", headers, MESSAGE).status == 200
    assert combined.lines() == [
        {
            "client": "127.0.0.1",
            "caller": "-",
            "time": "14/Nov/2023:22:13:20 +0000",
            "request": "POST /messages HTTP/1.1",
            "status": "200",
            "bytes": "39",
            "referer": "http://a/b",
            "agent": "tests/1",
            "request_id": "7",
            "seconds": "0.000000",
            "route": "/messages",
            "topic": "t",
            "partition": "0",
            "offset": "0",
            "records": "1",
            "ended_by": "-",
        }
    ]
    assert as_json.lines() == [
        {
            "time": "2023-11-14T22:13:20.000Z",
            "status": 200,
            "bytes": 39,
            "seconds": 0.0,
            "request_id": "7",
            "client": "127.0.0.1",
            "method": "POST",
            "path": "/messages",
            "route": "/messages",
            "protocol": "HTTP/1.1",
            "topic": "t",
            "partition": 0,
            "offset": 0,
            "records": 1,
            "referer": "http://a/b",
            "user_agent": "tests/1",
        }
    ]


def test_the_time_that_an_answer_took_is_there(tmp_path):
    service = LoggingService(tmp_path / "log", AccessLogFormat.JSON, broker=ManualBroker())
    service.connect().send(request_bytes("POST", "/messages", JSON, MESSAGE))
    assert service.logged() == ""
    service.clock.advance(0.25)
    service.broker.acknowledge()
    line = msgspec.json.decode(service.logged())
    assert (line["time"], line["seconds"]) == ("2023-11-14T22:13:20.000Z", 0.25)
    service.log.close()


@pytest.mark.parametrize(
    ("data", "request_line", "status", "route"),
    [
        (request_bytes("HEAD", "/"), "HEAD / HTTP/1.1", "200", "/"),
        (request_bytes("GET", "/nothing?key=secret"), "GET /nothing HTTP/1.1", "404", "-"),
        (request_bytes("GET", "/messages"), "GET /messages HTTP/1.1", "405", "-"),
        (b"GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0", "200", "/"),
        (b"nonsense\r\n\r\n", "-", "400", "-"),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "-", "400", "-"),
    ],
)
def test_each_answer_has_a_line_be_it_a_rejection(combined, data, request_line, status, route):
    connection = combined.connect()
    connection.send(data)
    (line,) = combined.lines()
    assert (line["request"], line["status"], line["route"]) == (request_line, status, route)
    body = connection.sent.partition(b"\r\n\r\n")[2]
    assert line["bytes"] == (str(len(body)) if body else "-")
    assert b"X-Request-Id: %b\r\n" % line["request_id"].encode() in connection.sent


@pytest.mark.parametrize(("totals", "topic"), [([], None), ([("a", 2)], "a"), ([("a", 2), ("b", 3)], None)])
def test_a_batch_is_told_with_how_many_records_it_has_made(combined, as_json, totals, topic):
    published = tuple(TopicTotal(name, records, 10) for name, records in totals)
    count = sum(records for _, records in totals)
    batch = Batch(published=published, records=count, rejected=1)
    for service in (combined, as_json):
        service.site.on_response(
            Exchange(Peer(None), b"7", service.clock.seconds()), Response(HTTPStatus.OK, batch=batch)
        )
    (line,) = combined.lines()
    where = (line["topic"], line["partition"], line["offset"], line["records"])
    assert where == (topic or "-", "-", "-", str(count))
    (line,) = as_json.lines()
    assert (line.get("topic"), line["records"], "offset" in line) == (topic, count, False)


def test_a_replayed_record_is_told_with_its_place_as_none_that_was_published(combined, as_json):
    replayed = ReplayedRecord(topic="t", partition=1, offset=42)
    for service in (combined, as_json):
        service.site.on_response(
            Exchange(Peer(None), b"7", service.clock.seconds()), Response(HTTPStatus.OK, replayed=replayed)
        )
    (line,) = combined.lines()
    assert (line["topic"], line["partition"], line["offset"], line["records"]) == ("t", "1", "42", "0")
    (line,) = as_json.lines()
    assert (line["topic"], line["partition"], line["offset"], line["records"]) == ("t", 1, 42, 0)


def unescaped(text):
    """Decode the escaped form of a client's text, with independent rules."""
    named = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
    return re.sub(
        r"\\(?:x([0-9a-f]{2})|(.))",
        lambda match: chr(int(match[1], 16)) if match[1] else named[match[2]],
        text,
    ).encode("latin-1")


targets = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30).map("/".__add__)
request_ids = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128)


@given(targets, field_bytes, field_bytes, request_ids)
def test_no_client_can_end_a_line_or_a_field(services, target, agent, referer, request_id):
    fields = [(b"User-Agent", agent), (b"Referer", referer), (b"X-Request-Id", request_id.encode())]
    sent = [services[name].request("GET", target, fields) for name in ("combined", "json")]
    (line,) = services["combined"].logged().splitlines(keepends=True)
    logged = dict(zip(NAMES, COMBINED.fullmatch(line).groups(), strict=True))
    assert unescaped(logged["request_id"]) == request_id.encode()
    assert logged["status"] == str(sent[0].status)
    if logged["request"] != "-":
        path = target.partition("?")[0].encode()
        method, logged_path, protocol = unescaped(logged["request"]).split(b" ")
        assert (method, logged_path, protocol) == (b"GET", path, b"HTTP/1.1")
        # The value that the server reads: control characters are replaced, and surrounding blanks removed.
        controls = bytes(octet for octet in (*range(1, 32), 127) if octet != 9)
        value = agent.strip(b" \t").translate(bytes.maketrans(controls, b"\xff" * len(controls)))
        assert unescaped(logged["agent"]) == value
    (line,) = services["json"].logged().splitlines()
    logged = msgspec.json.decode(line)
    assert (logged["request_id"], logged["status"]) == (request_id, sent[1].status)


@given(st.text())
def test_no_caller_s_name_can_end_a_line_or_a_field(services, caller):
    for name, service in services.items():
        dispatch = service.site.dispatch

        def named(request, dispatch=dispatch):
            request.exchange.caller = caller
            return dispatch(request)

        service.site.dispatch = named
        try:
            service.request("GET", "/")
        finally:
            service.site.dispatch = dispatch
        line, rest = service.logged().split("\n")
        assert rest == ""
        if name == "combined":
            (_, logged, *_) = COMBINED.fullmatch(line + "\n").groups()
            assert logged.isascii()
            assert unescaped(logged).decode() == (caller or "-")
        else:
            assert msgspec.json.decode(line).get("caller", "") == caller


def test_a_stream_gets_its_line_at_its_end_with_bytes_duration_and_reason(combined, as_json):
    for service in (combined, as_json):
        exchange = Exchange(
            Peer(None),
            b"7",
            service.clock.seconds() - 600,
            parse_head(request_bytes("GET", "/topics/t/records")),
        )
        answer = Response(HTTPStatus.OK, source=Source())
        service.log.responded(exchange, answer)
        assert service.lines() == []
        service.log.stream_ended(exchange, answer, StreamEnd("age", 12_345))
    (line,) = combined.lines()
    assert (line["bytes"], line["seconds"], line["ended_by"]) == ("12345", "600.000000", "age")
    (line,) = as_json.lines()
    assert (line["bytes"], line["seconds"], line["ended_by"]) == (12_345, 600, "age")


def test_a_request_for_the_head_of_a_stream_gets_its_line_at_once(combined):
    exchange = Exchange(
        Peer(None), b"7", combined.clock.seconds(), parse_head(request_bytes("HEAD", "/topics/t/records"))
    )
    combined.log.responded(exchange, Response(HTTPStatus.OK, source=Source()))
    (line,) = combined.lines()
    assert (line["bytes"], line["ended_by"]) == ("-", "-")
