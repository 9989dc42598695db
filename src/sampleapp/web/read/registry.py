"""
Open streams and waiting pages: their limits, the rights of their callers, and the common life of streams.

A stream tells its client when to come back, sends its present id when nothing has happened for some time, and
ends by itself after about ten minutes, so that clients move to other instances, and a client that has gone
without a word is forgotten. It always ends between two events. A client that comes back with the last id
continues where it was.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from functools import partial
from http import HTTPStatus
from random import Random
from typing import Any, Final, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime

from sampleapp.access import AccessError, Caller, Right, TooManyStreamsOfCaller
from sampleapp.concurrency.slices import Rounds, TimeSlices
from sampleapp.errors import SampleAppError, UnknownTopic, forget_frames
from sampleapp.records.event_stream import MEDIA_TYPE, encode_event, encode_retry, escape_line_ends
from sampleapp.web.access_control import TO_CONSUME, TO_WORK, AccessControl, Grant
from sampleapp.web.errors import TooManyStreams, TooManyTopics, is_temporary, problem_response
from sampleapp.web.responses import Event, Headers, Response, Sink
from sampleapp.web.server import Limits, Request
from sampleapp.web.server.fields import Fields

RIGHT_LOST: Final = "right"
"""The reason for the end of a stream whose caller has lost its right."""

_VISIT_S: Final = 1.0
"""Rights are checked every second, so that a stream ends within 5 s, also if there are 10,000 to check."""
_RETRY_AFTER_S: Final = 30.0

_ENDED_AT_ONCE: Final = 20
"""Pages and pulls that are answered in one turn of the reactor when the service stops: two milliseconds."""

T = TypeVar("T")


class StreamKind(Enum):
    """The kind of a long response: the label ``kind`` of metrics."""

    RECORDS = "records"
    """A stream of the records of a topic."""
    CHANGES = "changes"
    """A stream of the readings as they change (``/changes``)."""
    PAGE = "page"
    """A page that waits for its first record. Pages and pulls have slots of their own beside streams."""
    PULL = "pull"
    """A pull that waits for its first message."""

    @property
    def is_long_poll(self) -> bool:
        """True for requests that wait, and false for streams."""
        return self in (StreamKind.PAGE, StreamKind.PULL)

    @property
    def in_words(self) -> str:
        """The plural, for rejections."""
        return "waiting pages and pulls" if self.is_long_poll else "streams"


class StreamNumbers:
    """The numbers of one kind of streams. The code that sends events adds to them directly."""

    __slots__ = ("behind", "bytes", "ended", "events", "open")

    def __init__(self) -> None:
        self.open = 0
        """Streams that are open now."""
        self.behind = 0
        """Open streams that read for themselves, since they are not up to date."""
        self.events = 0
        """Events that were sent since the start, heartbeats included."""
        self.bytes = 0
        """Bytes of these events."""
        self.ended: Counter[str] = Counter()
        """Streams that ended since the start, by the reason."""


class OpenStream:
    """A stream or a waiting page: its slot among those that are open, and the right of its caller."""

    __slots__ = ("_grant", "_is_closed", "_is_lost", "kind", "slot", "streams", "topic")

    def __init__(
        self, streams: OpenStreams, *, kind: StreamKind, request: Request | None, topic: str | None = None
    ) -> None:
        """
        Take a slot, until `close` is called.

        :param request: its caller must have, and keep, the right to read; may be ``None`` where all callers
            have all rights.
        :param topic: the topic that is followed for it; ``None`` for the readings. A pull has
            ``TOPIC/GROUP``, which is not followed.
        :raise TooManyStreams: all slots are taken.
        :raise TooManyTopics: streams and waiting pages read too many other topics.
        :raise AccessError: the caller has too many streams, or has lost its right since it was admitted.
        """
        self.streams = streams
        self.kind = kind
        self.topic = None if kind is StreamKind.PULL else topic
        self._is_closed = self._is_lost = False
        self._grant = streams.grant(kind, request, topic)
        self.slot = streams.slot_of(kind, self._grant)
        """The group of slots that it counts in: True for long polls, and the name of the caller."""
        streams.add(self)

    def right_lost(self, error: AccessError) -> None:
        """
        End: the caller has lost its right.

        :param error: the error that the same request would get now.
        """

    def visit(self, now_s: float) -> None:
        """
        Check the right of the caller; called every second.

        :param now_s: the time of the reactor's clock, in seconds.
        """
        grant = self._grant
        if grant is None or self._is_lost or grant.is_current:
            return
        try:
            grant.check()
        except AccessError as error:
            self._is_lost = True
            self.right_lost(error)

    def abort(self, reason: str) -> None:
        """End at once, after a fault."""

    def close(self, reason: str) -> None:
        """
        Give the slot back. Only the first call has an effect.

        :param reason: the reason for the end: one of a few fixed words, for metrics.
        """
        if not self._is_closed:
            self._is_closed = True
            self.streams.remove(self, RIGHT_LOST if self._is_lost else reason)


class LongPoll(OpenStream):
    """A page or a pull that waits, while its caller has the right."""

    __slots__ = ("_error", "_waiting", "ended_by", "is_over")

    def __init__(
        self, streams: OpenStreams, *, kind: StreamKind, request: Request, topic: str, ended_by: str
    ) -> None:
        """
        Take a slot; see `OpenStream`.

        :param ended_by: the reason for an end at its time, or by a result.
        """
        super().__init__(streams, kind=kind, request=request, topic=topic)
        self._waiting: Deferred[Any] | None = None
        self._error: AccessError | None = None
        self.ended_by = ended_by
        """The reason for the end, for metrics."""
        self.is_over = False
        """True if the request is to be answered without a record or message."""

    def right_lost(self, error: AccessError) -> None:
        """End the wait with an error."""
        self._error = error
        self._cancel()

    def check(self) -> None:
        """:raise AccessError: the caller has lost its right, perhaps while nothing was waited for."""
        if self._error is not None:
            raise self._error from None

    def end(self, reason: str) -> None:
        """
        End the wait early, as if its time were over.

        :param reason: one of a few fixed words, for metrics.
        """
        self.ended_by = reason
        self.is_over = True
        self._cancel()

    async def wait(self, waiting: Deferred[T]) -> T | None:
        """
        Wait for a Deferred.

        :return: its result; ``None`` if the wait was ended.
        :raise AccessError: the caller has lost its right.
        """
        self._waiting = waiting
        try:
            return await waiting
        except CancelledError as error:
            # Frames of its traceback refer to it.
            forget_frames(error)
            self.check()
            if not self.is_over:
                raise
            return None
        finally:
            self._waiting = None

    def _cancel(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


class OpenStreams:
    """All open streams and waiting pages of the service."""

    def __init__(
        self,
        *,
        clock: IReactorTime,
        access_control: AccessControl | None = None,
        limits: Limits | None = None,
        random: Random | None = None,
    ) -> None:
        """
        :param clock: measures the life of each stream.
        :param access_control: knows the rights of callers; by default any caller has all rights, and no limit
            of its own.
        :param random: spreads the times at which clients come back.
        """
        limits = Limits() if limits is None else limits
        self.limit = limits.max_streams
        """The most streams, and the most waiting pages and pulls."""
        self._most_topics = limits.max_followed_topics
        self._limit_per_caller = limits.max_streams_per_caller
        self.clock = clock
        self.random = Random() if random is None else random  # noqa: S311 -- not a secret
        self._access_control = access_control
        self._open: Rounds[OpenStream] = Rounds(
            clock,
            lambda stream: stream.visit(clock.seconds()),
            fault="A fault in a stream or a waiting page; a stream's connection was cut",
            on_fault=lambda stream: stream.abort("fault"),
            every_s=_VISIT_S,
        )
        self._slots: Counter[bool] = Counter()
        self._slots_by_caller: Counter[tuple[bool, str]] = Counter()
        self._topics: Counter[str] = Counter()
        self.numbers: dict[StreamKind, StreamNumbers] = {kind: StreamNumbers() for kind in StreamKind}
        """The numbers of each kind."""
        self.rejections: Counter[str] = Counter(
            {"max-streams": 0, "max-streams-per-caller": 0, "max-followed-topics": 0}
        )
        """Streams and pages that were rejected since the start, by the option that is the limit."""

    def __len__(self) -> int:
        return len(self._open)

    async def end_waits(self, kind: StreamKind, slices: TimeSlices) -> None:
        """Answer the requests of a kind that wait, gradually, since the service stops."""
        waits = [each for each in self._open if isinstance(each, LongPoll) and each.kind is kind]
        while waits:
            await slices.next()
            for each in waits[:_ENDED_AT_ONCE]:
                each.end("drain")
            del waits[:_ENDED_AT_ONCE]

    # For the streams.

    def grant(self, kind: StreamKind, request: Request | None, topic: str | None) -> Grant | None:
        """Check that one more may be opened; see `OpenStream`. Return the right of its caller."""
        may = _may_read if topic is None else partial(_may_use, kind, topic)
        grant = (
            None
            if self._access_control is None or request is None
            else self._access_control.grant(request, may)
        )
        is_long_poll, name = self.slot_of(kind, grant)
        if self._slots[is_long_poll] >= self.limit:
            self.rejections["max-streams"] += 1
            raise TooManyStreams(self.limit, what=kind.in_words)
        is_new = topic is not None and topic not in self._topics and kind is not StreamKind.PULL
        if is_new and len(self._topics) >= self._most_topics:
            self.rejections["max-followed-topics"] += 1
            raise TooManyTopics(self._most_topics)
        if grant is not None:
            most = grant.caller.max_streams
            limit = self._limit_per_caller if most is None else most
            if self._slots_by_caller[is_long_poll, name] >= limit:
                self.rejections["max-streams-per-caller"] += 1
                raise TooManyStreamsOfCaller(limit, what=kind.in_words, retry_after_s=_RETRY_AFTER_S)
        return grant

    @staticmethod
    def slot_of(kind: StreamKind, grant: Grant | None) -> tuple[bool, str]:
        """Return `OpenStream.slot`."""
        return kind.is_long_poll, "" if grant is None else grant.caller.name

    def add(self, stream: OpenStream) -> None:
        """Add a stream that was granted."""
        self._slots[stream.slot[0]] += 1
        self._slots_by_caller[stream.slot] += 1
        self.numbers[stream.kind].open += 1
        if stream.topic is not None:
            self._topics[stream.topic] += 1
        self._open.add(stream)

    def remove(self, stream: OpenStream, reason: str) -> None:
        """Remove a stream that has ended; for `OpenStream.close`, which calls it once."""
        self._open.discard(stream)
        numbers = self.numbers[stream.kind]
        numbers.open -= 1
        numbers.ended[reason] += 1
        self._slots[stream.slot[0]] -= 1
        # Issuers can make any number of callers.
        _take_one(self._slots_by_caller, stream.slot)
        if stream.topic is not None:
            _take_one(self._topics, stream.topic)


def _take_one(counter: Counter[T], key: T) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _may_use(kind: StreamKind, topic: str, caller: Caller) -> bool:
    return (TO_WORK if kind is StreamKind.PULL else TO_CONSUME).is_granted(caller, topic)


def _may_read(caller: Caller) -> bool:
    return caller.has(Right.READ)


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
