"""
The work of one turn of the reactor is bounded, whatever the form of a request.

The work is counted in calls, of functions in Python and in C, so that no test depends on the machine. One
call in C may take long, too: `benchmarks/turns.py` measures the time.
"""

from __future__ import annotations

import sys
from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from tests.support.examples import examples
from tests.support.in_memory import InMemoryService

MOST_CALLS = 50_000
"""A millisecond has about 10,000 of them."""
READ_AT_ONCE = 64 * 1024
"""As Twisted reads from a socket."""
HOSTILE_BYTES = 200_000

BODY_TYPES = (
    "application/json",
    "application/x-ndjson",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "application/vnd.kafka.json.v2+json",
    "application/vnd.kafka.binary.v2+json",
    "application/octet-stream",
)
FIELDS = (
    *(
        "Accept",
        "Accept-Encoding",
        "Authorization",
        "Connection",
        "Content-Encoding",
        "Content-Type",
        "Cookie",
    ),
    *("Expect", "Host", "Idempotency-Key", "If-Match", "If-None-Match", "Last-Event-ID", "Origin"),
    *("Sec-Fetch-Site", "Stripe-Signature", "traceparent", "tracestate", "Transfer-Encoding", "X-Request-Id"),
    *("ce-id", "ce-a", "x", "Access-Control-Request-Headers", "webhook-signature"),
)
TARGETS = ("/", "/messages", "/topics/t", "/topics/t/records", "/topics", "/hooks/h", "/docs", "/metrics")
TOKENS = (
    *(
        "a",
        "#",
        "/",
        "//",
        "%41",
        "%2F",
        "%",
        "&",
        "=",
        "a=b",
        ",",
        ";",
        ".",
        "..",
        "-",
        "~",
        "e",
        "\\",
        '"',
        '""',
    ),
    *(
        "[",
        "]",
        "{",
        "}",
        "[]",
        "{}",
        "[],",
        "{},",
        '"a":1,',
        '"#":1,',
        '"#":"",',
        '"",',
        "1,",
        "0",
        ":",
        " ",
        "\t",
    ),
    *(
        "*",
        "a/b",
        "a/b,",
        "q=0.1",
        'W/"a",',
        "t=1,",
        "v1=0,",
        "(",
        ")",
        "\\u003a",
        "\\ud800",
        "+",
        "null",
        "1e1.",
    ),
)
LINES = (
    *(
        '{"topic":"t","content":""}',
        '{"topic":"#","content":""}',
        '{"topic":"t","content_base64":"AAAA"}',
        "{}",
    ),
    *(
        '{"topic":"t","content":"","headers":{"a":"b"}}',
        '{"topic":"t","content":"","headers_base64":[["a",null]]}',
        "[]",
        "1",
        "",
        " ",
        "x",
        '{"topic":"t","content":":\\\\"}',
    ),
)
BEGINNINGS = (
    "",
    "[",
    "{",
    '{"records":[',
    '{"records":[{"value":',
    '{"topic":"t","content":"',
    '["',
    '[{"a":"',
)


class TurningClock(Clock):
    """A clock whose turns are those of a reactor: what a call schedules comes in a later turn."""

    def turn(self) -> None:
        due = [call for call in self.calls if call.getTime() <= self.seconds()]
        for call in due:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)

    @property
    def is_due(self) -> bool:
        return any(call.getTime() <= self.seconds() for call in self.calls)


class Work:
    """Counts calls while it is entered, each of which takes a tenth of a microsecond by the clock."""

    def __init__(self, clock: TurningClock):
        self._clock = clock

    def __enter__(self):
        self.calls = 0
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _count(self, _frame, event, _argument):
        if event in ("call", "c_call"):
            self.calls += 1
            # The clock is at 1.7e9 s, where a smaller step is rounded away.
            self._clock.rightNow += 5e-7


def service_on(clock: TurningClock) -> InMemoryService:
    class Service(InMemoryService):
        make_clock = staticmethod(lambda: clock)

    return Service(broker=MemoryBroker(clock=clock))


def most_calls_of_a_turn(data: bytes) -> int:
    clock = TurningClock()
    connection = service_on(clock).connect()
    pieces = deque(data[at : at + READ_AT_ONCE] for at in range(0, len(data), READ_AT_ONCE))
    most = 0
    while pieces or clock.is_due:
        with Work(clock) as work:
            # A reactor reads from sockets first, and then makes the calls that are due.
            if pieces and connection.transport.producerState == "producing":
                piece = pieces.popleft()
                if not connection.is_lost:
                    connection.channel.dataReceived(piece)
            clock.turn()
        connection.settle()
        most = max(most, work.calls)
        if not clock.is_due and connection.transport.producerState != "producing":
            break
    return most


def filled(unit: str, length: int) -> str:
    """Repeat a unit up to a length, with a number in the place of each "#"."""
    if not unit:
        return ""
    text = unit * (length // len(unit))
    parts = text.split("#")
    return (
        "".join(f"{part}{number}" for number, part in enumerate(parts))[:length] if len(parts) > 1 else text
    )


units = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4).map("".join)


class Form(bytes):
    """The bytes of a request, of which only the ends are shown."""

    def __repr__(self):
        return f"<{len(self)} bytes, {self[:300]!s} ... {self[-100:]!s}>"


def request(target="/topics/t", fields=(), body=b"", method="POST", *, length=True) -> Form:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", *fields]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return Form("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def chunks(content: str, size: int, extension: str, trailers: str) -> bytes:
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    framed = "".join(f"{len(piece):x}{extension}\r\n{piece}\r\n" for piece in pieces)
    return f"{framed}0\r\n{trailers}\r\n".encode("latin-1")


of_paths = st.builds(
    lambda method, path, unit, query: request(
        path + "/" * (not query) + filled(unit, 15_000).replace(" ", "").replace("\t", ""),
        method=method,
        length=False,
    ),
    st.sampled_from(["GET", "POST", "OPTIONS"]),
    st.sampled_from(TARGETS).flatmap(lambda path: st.sampled_from([path, path + "?"])),
    units,
    st.booleans(),
)
of_fields = st.builds(
    lambda method, target, field, unit: request(target, [f"{field}: {filled(unit, 15_000)}"], method=method),
    st.sampled_from(["GET", "POST", "OPTIONS"]),
    st.sampled_from(TARGETS),
    st.sampled_from(FIELDS),
    units,
)
of_many_fields = st.builds(
    lambda target, field, unit: request(target, filled(f"{field}: {unit}\n", 15_000).splitlines()),
    st.sampled_from(TARGETS),
    st.sampled_from([*FIELDS, "a#", "ce-a#"]),
    units,
)
of_chunks = st.builds(
    lambda target, type_, size, extension, trailer: request(
        target,
        [f"Content-Type: {type_}", "Transfer-Encoding: chunked"],
        chunks("x" * (HOSTILE_BYTES // 4), size, extension, filled(trailer, 16_000)),
        length=False,
    ),
    st.sampled_from(["/messages", "/topics/t", "/hooks/h"]),
    st.sampled_from(BODY_TYPES),
    st.sampled_from([1, 2, 3, 16, 1000]),
    st.sampled_from(["", "", ";a", ";a=b"]),
    st.sampled_from(["", "a:\r\n", "a#: b\r\n", "a:" + "\t " * 100 + "b\r\n"]),
)
of_bodies = st.builds(
    lambda target, type_, beginning, unit: request(
        target, [f"Content-Type: {type_}"], (beginning + filled(unit, HOSTILE_BYTES)).encode()
    ),
    st.sampled_from(["/messages", "/topics/t"]),
    st.sampled_from(BODY_TYPES),
    st.sampled_from(BEGINNINGS),
    units,
)
of_lines = st.builds(
    lambda lines, end: request(
        "/messages",
        ["Content-Type: application/x-ndjson"],
        filled("".join(line + end for line in lines), HOSTILE_BYTES).encode(),
    ),
    st.lists(st.sampled_from(LINES), min_size=1, max_size=3),
    st.sampled_from(["\n", "\r\n"]),
)
of_pipelines = st.builds(
    lambda method, target, fields: Form(request(target, fields, method=method) * 500),
    st.sampled_from(["GET", "POST", "OPTIONS"]),
    st.sampled_from(TARGETS),
    st.lists(st.sampled_from(["Accept: a/b", "Content-Type: text/plain", "a: b"]), max_size=3),
)


@pytest.mark.slow
@examples(150)
@given(data=st.one_of(of_paths, of_fields, of_many_fields, of_chunks, of_bodies, of_lines, of_pipelines))
@example(
    data=request("/topics/t", ["Transfer-Encoding: chunked"], chunks("x" * 50_000, 1, "", ""), length=False)
)
@example(data=request("/a" * 7_500, method="GET"))
@example(data=request("/" + "%41" * 5_000 + "/", method="GET"))
@example(data=request("/live", ["a:"] * 3_500, method="GET"))
def test_no_form_of_a_request_makes_a_turn_of_many_steps(data):
    assert most_calls_of_a_turn(data) < MOST_CALLS


def test_many_connections_with_small_chunks_share_the_turns():
    clock = TurningClock()
    service = service_on(clock)
    body = request("/topics/t", ["Transfer-Encoding: chunked"], chunks("x" * 5_000, 1, "", ""), length=False)
    connections = [service.connect() for _ in range(20)]
    for connection in connections:
        connection.channel.dataReceived(body)
    while clock.is_due:
        with Work(clock) as work:
            clock.turn()
        assert work.calls < MOST_CALLS
    for connection in connections:
        (response,) = connection.responses(["POST"])
        assert response.status == 200
