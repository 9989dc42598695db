"""What three servers see in the same bytes: this service, h11, and Twisted's own."""

from __future__ import annotations

import re
from http import HTTPStatus
from io import BytesIO
from typing import NamedTuple

import h11
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web.http import HTTPChannel
from twisted.web.http import Request as TwistedRequest

from sampleapp.web.errors import problem_response
from sampleapp.web.responses import Response
from sampleapp.web.server import HTTPServer
from tests.support.simulated_socket import Link

_ABSOLUTE_FORM = re.compile(rb"https?://[^/?]*", re.IGNORECASE)


class Seen(NamedTuple):
    """A request that a server has understood."""

    method: bytes
    path: bytes
    query: bytes
    body: bytes


class Rejected(NamedTuple):
    """What a server did not take for a request; it reads nothing after that."""

    reason: str


def _seen(method: bytes, target: bytes, body: bytes) -> Seen:
    path, _, query = target.partition(b"?")
    match = _ABSOLUTE_FORM.match(path)
    if match is not None:
        path = path[match.end() :] or b"/"
    return Seen(method, path, query, body)


class Waiting(NamedTuple):
    """The server waits for more, or the connection has been closed as the client had asked."""


def seen_by_service(data: bytes) -> list[Seen | Rejected | Waiting]:
    """What this service's own connections make of it; a refusal's reason is its status."""
    seen = []

    def handle(request):
        seen.append(Seen(request.method, request.path, request.query, request.body))
        return Response(HTTPStatus.OK)

    def fail(failure, _request_id):
        failure.raiseException()

    clock = Clock()
    link = Link(
        HTTPServer(lambda request: handle, reject=problem_response, response_to=fail, reactor=clock), clock
    )
    link.send(data)
    # It waits for the body of a DELETE that declares none, if that ends the connection.
    clock.advance(0.05)
    received = link.read_all()
    link.reset()
    last = re.findall(rb"^HTTP/1\.1 ([2-5]\d\d) ", received, re.MULTILINE)[-1:]
    if last and last != [b"200"]:
        return [*seen, Rejected(last[0].decode())]
    return [*seen, Waiting()]


def starts_by_h11(data: bytes) -> list[int]:
    """Where requests begin, by h11: as many places as it sees requests, and the one after the last."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    starts = [0]
    try:
        while True:
            event = connection.next_event()
            if event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return starts
            if isinstance(event, h11.EndOfMessage):
                starts.append(len(data) - len(connection.trailing_data[0]))
                connection.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
    except h11.ProtocolError:
        return starts


def seen_by_h11(data: bytes) -> list[Seen | Rejected | Waiting]:
    """What h11 makes of it, as a server that answers each request when it is whole."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    events = []
    body = bytearray()
    request = None
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request, body = event, bytearray()
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                events.append(_seen(request.method, request.target, bytes(body)))
                connection.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return [*events, Waiting()]
                connection.start_next_cycle()
            else:
                return [*events, Waiting()]
    except h11.RemoteProtocolError as error:
        return [*events, Rejected(str(error))]


class _TwistedRequest(TwistedRequest):
    def gotLength(self, length):
        # It would be a file on disk.
        self.content = BytesIO()

    def process(self):
        self.content.seek(0)
        self.channel.seen.append(_seen(self.method, self.uri, self.content.read()))
        self.setResponseCode(404)
        self.setHeader(b"Content-Length", b"0")
        self.finish()


def seen_by_twisted(data: bytes) -> list[Seen | Rejected | Waiting]:
    """What Twisted's server makes of it."""
    channel = HTTPChannel()
    channel.requestFactory = _TwistedRequest
    channel.seen = []
    transport = StringTransport()
    channel.makeConnection(transport)
    # A line without end is not rejected before more has come.
    for start in range(0, len(data), 60_000):
        if not transport.disconnecting:
            try:
                channel.dataReceived(data[start : start + 60_000])
            except ValueError as error:
                # Of int(), which does not read thousands of digits.
                return [*channel.seen, Rejected(str(error))]
    last = re.findall(rb"^HTTP/1\.1 ([2-5]\d\d) ", transport.value(), re.MULTILINE)[-1:]
    if last and last != [b"404"]:
        return [*channel.seen, Rejected(last[0].decode())]
    return [*channel.seen, Waiting()]
