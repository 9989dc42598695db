"""
Event streams: the common life of all responses of ``text/event-stream``.

A stream tells its client when to come back, sends its present id when nothing has happened for some time, and
ends by itself after about ten minutes, so that clients move to other instances, and a client that has gone
without a word is forgotten. It always ends between two events. A client that comes back with the last id
continues where it was.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from sampleapp.access import AccessError
from sampleapp.errors import SampleAppError, UnknownTopic
from sampleapp.records.event_stream import MEDIA_TYPE, encode_event, encode_retry, escape_line_ends
from sampleapp.web.errors import is_temporary, problem_response
from sampleapp.web.read.registry import RIGHT_LOST, OpenStream, OpenStreams, StreamKind
from sampleapp.web.responses import Event, Headers, Response, Sink
from sampleapp.web.server import Request
from sampleapp.web.server.fields import Fields

__all__ = ["ENDED_BY", "STREAM_HEADERS", "EventStream", "response_to_temporary_error"]

ENDED_BY: Final = ("age", "drain", RIGHT_LOST)
"""The reasons for which any stream is ended here: its age, the end of the service, a right that was lost."""

STREAM_HEADERS: Final[Headers] = (
    (b"Content-Type", MEDIA_TYPE.encode("ascii")),
    (b"Cache-Control", b"no-store"),
    # nginx would collect events in its buffer, and send them late (ngx_http_proxy_module, proxy_buffering).
    (b"X-Accel-Buffering", b"no"),
)

_RETRY_MS: Final = (1000, 5000)
_RETRY_UNAVAILABLE_MS: Final = 30_000
_QUIET_S: Final = 15.0
_LIFE_S: Final = (540.0, 660.0)
"""Random, so that streams that began together do not end together."""


class EventStream(OpenStream):
    """
    One stream, which a subclass fills: a `sampleapp.web.responses.Source`.

    It must be handed to the server in a response, or be ended with `closed`.
    """

    __slots__ = (
        "_ends_s",
        "_has_started",
        "_is_behind",
        "_quiet_since_s",
        "_sink",
        "_wanted_end",
        "can_write",
        "end_reason",
        "numbers",
    )

    def __init__(
        self, streams: OpenStreams, *, kind: StreamKind, request: Request | None, topic: str | None = None
    ) -> None:
        """Take a slot, which is given back with `closed`; see `OpenStream`."""
        super().__init__(streams, kind=kind, request=request, topic=topic)
        self.numbers = streams.numbers[kind]
        """The numbers of all streams of this kind."""
        self._sink: Sink | None = None
        self.can_write = False
        """True if an event may be written: the stream has begun, it has not ended, and its client reads."""
        self._has_started = self._is_behind = False
        self._wanted_end = ""
        self.end_reason = ""
        """The reason for the end of the stream, when `ended` is called: of `finish`, or of the server."""
        self._quiet_since_s = 0.0
        self._ends_s = 0.0

    # For subclasses to override.

    def started(self) -> None:
        """Write the first events, now or later. The client knows already when to come back."""

    def caught_up(self) -> None:
        """Write on: the client has read everything, after `write` has returned false."""

    def present_id(self) -> Event | None:
        """
        Return an id without an event, for a stream that is quiet.

        :return: ``None`` if there is none, or if an event is written in part only.
        """
        return None

    def is_between_events(self) -> bool:
        """Return false while an event is written in part only, so that the stream must not end."""
        return True

    def ended(self) -> None:
        """Release everything: the stream has ended, perhaps before it began. It is the last call."""

    # For subclasses to call.

    def write(self, event: Event, count: int = 1) -> bool:
        """
        Send a whole event, or a part of one that `is_between_events` knows of.

        :param count: the number of events in it, for metrics.
        :return: false if nothing more may be written: until `caught_up`, or because the stream has ended.
        """
        if self._sink is None:
            return False
        self._quiet_since_s = self.streams.clock.seconds()
        self.numbers.events += count
        self.numbers.bytes += len(event)
        # The stream may end in this call.
        is_taken = self._sink.write(event)
        self.can_write = is_taken and self._sink is not None
        if self._wanted_end and self.is_between_events():
            self.finish(self._wanted_end)
        return self.can_write

    @property
    def is_open(self) -> bool:
        """True from `started` to `ended`."""
        return self._sink is not None

    @property
    def unsent(self) -> int:
        """Bytes that were written, and that the operating system has not taken yet."""
        return 0 if self._sink is None else self._sink.unsent

    def set_behind(self, *, is_behind: bool) -> None:
        """Count an open stream among those that are behind, or not any more. Its end does the latter."""
        is_behind = is_behind and self.is_open
        if is_behind != self._is_behind:
            self._is_behind = is_behind
            self.numbers.behind += 1 if is_behind else -1

    def finish(self, reason: str) -> None:
        """
        End the stream as soon as an event is complete. `ended` is called before or after this returns.

        :param reason: one of a few fixed words, for metrics and the access log.
        """
        self._wanted_end = reason
        if self._sink is not None and self.is_between_events():
            self._sink.finish(reason)

    def abort(self, reason: str) -> None:
        """Cut the connection: for faults, and for a client that must get nothing more."""
        if self._sink is not None:
            self._sink.abort(reason)

    # `Source`

    def begin(self, sink: Sink) -> None:
        """Tell the client when to come back, and begin."""
        self._sink = sink
        random = self.streams.random
        now_s = self.streams.clock.seconds()
        self._ends_s = now_s + random.uniform(*_LIFE_S)
        if self.write(Event(encode_retry(random.randint(*_RETRY_MS)))):
            self._start()

    def _start(self) -> None:
        self._has_started = True
        self.started()

    def resumed(self) -> None:
        """Write on; see `Source.resumed`."""
        self.can_write = True
        if self._has_started:
            self.caught_up()
        else:
            self._start()

    def draining(self) -> None:
        """End, since the service stops; see `Source.draining`."""
        self.finish("drain")

    def closed(self, reason: str) -> None:
        """Release everything; see `Source.closed`."""
        self.end_reason = reason
        self._sink = None
        self.can_write = False
        self.set_behind(is_behind=False)
        try:
            self.close(reason)
        finally:
            self.ended()

    # `OpenStream`

    def right_lost(self, error: AccessError) -> None:
        """End soon, or at once if the client has not taken everything."""
        if self._sink is not None and (self._sink.unsent or not self.is_between_events()):
            # Reading the rest slowly could take minutes.
            self.abort(RIGHT_LOST)
        else:
            self.finish(RIGHT_LOST)

    def visit(self, now_s: float) -> None:
        """Send the present id if the stream is quiet, or end it at its age or without a right."""
        super().visit(now_s)
        if self._sink is None:
            return
        if now_s >= self._ends_s:
            self.finish("age")
        elif self.can_write and now_s - self._quiet_since_s >= _QUIET_S:
            present = self.present_id()
            if present is not None:
                self.write(present)


def response_to_temporary_error(fields: Fields, error: SampleAppError) -> Response:
    """
    Return what ``EventSource`` survives: a stream with the event ``unavailable``, which ends at once.

    Also for a topic that does not exist yet: the page may be there before its first record.

    A browser never tries again after any status but 200
    (https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.3). The data of the event is
    the problem document that other clients get.

    :param fields: of the request.
    :param error: rejects a stream.
    :raise SampleAppError: the error itself, if it is final, or the client is not a browser.
    """
    if not (is_temporary(error) or isinstance(error, UnknownTopic)) or not _is_browser(fields):
        raise error
    problem = escape_line_ends(b"".join(problem_response(error).parts).strip())
    body = encode_retry(_RETRY_UNAVAILABLE_MS) + encode_event(problem, event="unavailable")
    return Response(HTTPStatus.OK, STREAM_HEADERS, body)


def _is_browser(fields: Fields) -> bool:
    # Browsers send Sec-Fetch-Mode to https and to loopback addresses only
    # (https://www.w3.org/TR/fetch-metadata/, section 2.2), but each of them calls itself Mozilla.
    agents = fields.all(b"user-agent")
    return bool(fields.all(b"sec-fetch-mode")) or any(each.startswith(b"Mozilla/") for each in agents)
