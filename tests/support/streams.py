"""A server whose answers are sent piece by piece, each by a source that the test writes to."""

from __future__ import annotations

from http import HTTPStatus

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from sampleapp.web import HTTPServer, Limits, response_to_failure
from sampleapp.web.errors import problem_response
from sampleapp.web.responses import Event, Response

GET = b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"
GET_1_0 = b"GET /stream HTTP/1.0\r\n\r\n"
GET_WHOLE = b"GET /whole HTTP/1.1\r\nHost: a\r\n\r\n"


class Source:
    """Remembers what the connection calls, and does what the test says."""

    def __init__(self):
        self.calls = []
        self.sink = None
        self.may_write = False
        self.at_begin = self.at_resumed = self.at_drain = lambda _: None

    def begin(self, sink):
        self._called("begin")
        self.sink = sink
        self.may_write = True
        self.at_begin(self)

    def resumed(self):
        self._called("resumed")
        self.may_write = True
        self.at_resumed(self)

    def draining(self):
        self._called("draining")
        self.at_drain(self)

    def closed(self, reason):
        self._called(f"closed: {reason}")

    def write(self, data):
        self.may_write = self.sink.write(Event(data))
        return self.may_write

    @property
    def is_closed(self):
        return bool(self.calls) and self.calls[-1].startswith("closed")

    def _called(self, name):
        assert not self.is_closed, f"{name} came after the end"
        self.calls.append(name)


class StreamingServer:
    """Answers ``/stream`` with a source, at once or (``/later``) when the test says, and others whole."""

    def __init__(self, *, now_s=1_700_000_000, extend_response=None, reactor=None, **limits):
        self.clock = Clock() if reactor is None else reactor
        if reactor is None:
            self.clock.advance(now_s)
        self.sources, self.later, self.answers, self.ends = [], [], [], []
        self.new_source = Source
        self.site = HTTPServer(
            self._dispatch,
            reject=problem_response,
            response_to=response_to_failure,
            reactor=self.clock,
            limits=Limits(**limits),
            on_response=lambda exchange, answer: self.answers.append((exchange, answer)),
            on_stream_end=lambda exchange, answer, end: self.ends.append((exchange, answer, end)),
            extend_response=extend_response,
        )
        self.site.new_request_id = lambda: b"1"

    def _dispatch(self, request):
        return {b"/stream": self._stream, b"/later": self._stream_later}.get(request.path, self._whole)

    def _whole(self, _):
        return Response(HTTPStatus.OK, body=b"whole")

    def _stream(self, _):
        self.sources.append(self.new_source())
        return Response(
            HTTPStatus.OK, headers=((b"Content-Type", b"text/event-stream"),), source=self.sources[-1]
        )

    def _stream_later(self, request):
        waiting = Deferred()
        self.later.append(waiting)
        return waiting.addCallback(lambda _: self._stream(request))

    @property
    def reasons(self):
        return [end.reason for _, _, end in self.ends]


def unchunked(data):
    """The content of chunks (RFC 9112, section 7.1), and the bytes after the last one; None without it."""
    content, position = b"", 0
    while (end := data.find(b"\r\n", position)) >= 0:
        size = int(data[position:end], 16)
        stop = end + 2 + size
        if len(data) < stop + 2:
            break
        assert data[stop : stop + 2] == b"\r\n"
        if size == 0:
            return content, data[stop + 2 :]
        content += data[end + 2 : stop]
        position = stop + 2
    return content, None


def body_of(received):
    """The body of the first answer of those that were received."""
    return received[received.index(b"\r\n\r\n") + 4 :]
