"""
The readings: ``GET /`` in the version that ``Accept`` chooses, and ``GET /changes`` as an event stream.

Each event is encoded once, for all streams, and put at the end of a log. A stream reads the log at its own
pace, from the index of the state that it began with. When this index has left the log, the client is too
slow, and the stream begins again with all readings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias
from weakref import ref

import msgspec
from twisted.internet.defer import Deferred

from sampleapp.concurrency.slices import Rounds
from sampleapp.errors import InvalidParameters, SampleAppError
from sampleapp.messages.queries import (
    GET_PUBLISHES_NOTHING,
    parameters_of_get,
    require_no_message,
    unknown_parameters,
)
from sampleapp.model import MEDIA_TYPES, Reading, Version
from sampleapp.readings import LONG_ID, Representation, encode_gradually
from sampleapp.readings.changes import Change, Changes, ReadingsState
from sampleapp.records.event_stream import (
    END_OF_EVENT,
    begin_event,
    encode_event,
    encode_id,
    escape_line_ends,
)
from sampleapp.web.errors import PreconditionFailed
from sampleapp.web.negotiation import choose_version, match_fails, none_match_fails
from sampleapp.web.read.registry import (
    STREAM_HEADERS,
    EventStream,
    OpenStreams,
    StreamKind,
    response_to_temporary_error,
)
from sampleapp.web.responses import Budget, Event, Response, SharedBody
from sampleapp.web.server import MemoryReservation, Request
from sampleapp.web.server.writer import LARGEST_PART
from sampleapp.web.twisted_web import RequestResource

GetRepresentation: TypeAlias = Callable[[Version], "Representation | Deferred[Representation]"]
"""
Returns the current readings in a version, or a Deferred of the readings at this or a later time.

It raises, or fails with, `sampleapp.errors.ReadingsNotReady`.
"""


class AcceptDispatch(RequestResource):
    """Answers each request with the readings in the version that its ``Accept`` header chooses."""

    def __init__(self, get_representation: GetRepresentation) -> None:
        """:param get_representation: returns the readings."""
        super().__init__()
        self._versions: Mapping[Version, _Readings] = {
            version: _Readings(version, get_representation) for version in MEDIA_TYPES
        }

    def respond(self, request: Request) -> Response | Deferred[Response]:
        """
        Answer with the representation of the chosen version, or 304 if the client's copy is current.

        :return: a Deferred if it must be encoded first; it fails with the errors named here.
        :raise InvalidParameters: the query has a part of a message. Any other query is ignored.
        :raise ReadingsNotReady: the collection is not complete yet.
        :raise BodyMemoryFull: clients that read slowly hold too much of earlier ones.
        :raise PreconditionFailed: by ``If-Match``, which is evaluated before ``If-None-Match`` (RFC 9110,
            section 13.2.2).
        """
        if request.query:
            require_no_message(request.query, GET_PUBLISHES_NOTHING)
        fields = request.fields
        response = self._versions[choose_version(fields.joined(b"Accept"))].respond(request)
        tags = fields.joined(b"If-Match")
        if tags is None:
            return response
        if isinstance(response, Deferred):
            return response.addCallback(_require_match, tags)
        return _require_match(response, tags)


def _require_match(response: Response, tags: bytes) -> Response:
    if match_fails(tags, dict(response.headers)[b"ETag"]):
        raise PreconditionFailed
    return response


class _Readings:
    """The responses with the readings in one version."""

    def __init__(self, version: Version, get_representation: GetRepresentation) -> None:
        self._version = version
        self._get_representation = get_representation
        self._represented: Representation | None = None
        self._body: bytes | SharedBody = b""

    def respond(
        self, request: Request, representation: Representation | Deferred[Representation] | None = None
    ) -> Response | Deferred[Response]:
        """
        Answer with the representation, or 304 if the client's copy is current.

        :param representation: for the response; the current one by default.
        """
        if representation is None:
            representation = self._get_representation(self._version)
        if representation is not self._represented:
            if isinstance(representation, Deferred):
                return representation.addCallback(lambda made: self.respond(request, made))
            self._make_responses(representation, request.reservation)
        tags = request.fields.joined(b"If-None-Match")
        is_fresh = tags is not None and none_match_fails(tags, self._etag)
        return self._not_modified if is_fresh else self._whole

    def _make_responses(self, representation: Representation, reservation: MemoryReservation | None) -> None:
        if reservation is not None:
            # Also what clients hold that read earlier ones slowly.
            reservation.require_room(0)
        self._represented = representation
        self._etag = representation.etag.encode("ascii")
        validators = (
            (b"ETag", self._etag),
            (b"Vary", b"Accept"),
            (b"Cache-Control", b"no-cache"),
        )
        self._not_modified = Response(HTTPStatus.NOT_MODIFIED, validators)
        content_type = representation.media_type.encode("ascii")
        parts = representation.parts
        # A single part that is small is sent in one write, which is cheaper.
        body = parts[0] if len(parts) == 1 and len(parts[0]) < LARGEST_PART else SharedBody(parts)
        if reservation is not None and isinstance(self._body, SharedBody):
            self._body.replace(parts if isinstance(body, bytes) else body, reservation)
        self._body = body
        self._whole = Response(HTTPStatus.OK, ((b"Content-Type", content_type), *validators), body)


_READINGS: Final = "readings"
_READING: Final = "reading"
_REMOVED: Final = "removed"

_LEAST_LOG: Final = 2 * 1024 * 1024
_MOST_LOG: Final = 4 * 1024 * 1024
"""
Limits for the memory of the events that are kept for streams that are behind, in bytes.

Between them, it is the length of the whole collection: more would be worse than beginning again.
"""
_LOG_ENTRY_BYTES: Final = 300
"""The memory of an event in the log beside its bytes: its objects, and the tag after it."""
_WRITTEN_AT_ONCE: Final = 64 * 1024
"""Bytes for one client in one turn of the reactor, so that a large collection delays nobody else."""
_ENCODED_AT_ONCE: Final = 64 * 1024
"""Bytes of events that are encoded in one step."""
_KEPT_WHOLE: Final = 1024 * 1024
"""The most bytes of a collection that are kept as an event while no stream is writing it."""

_encode = msgspec.json.Encoder().encode


class ChangesResource:
    """All streams of changes, and their common log."""

    def __init__(self, changes: Changes, *, streams: OpenStreams) -> None:
        """
        :param changes: observed while there is a stream.
        :param streams: all streams of the service.
        """
        self.changes = changes
        self._streams = streams
        self._open: Rounds[ChangeStream] = Rounds(
            streams.clock,
            ChangeStream.write_on,
            fault="A fault in a stream of changes; its connection was cut",
            on_fault=lambda stream: stream.abort("fault"),
        )
        self._log_of_events = _EventLog()
        self.state: _Start | None = None
        """The latest state from which a stream can begin."""
        self.budget: Budget | None = None
        """For states that are there only for clients that read them slowly; ``None`` if they do not count."""

    def respond(self, request: Request) -> Response:
        """
        Answer with a stream; a browser gets one that ends at once instead of a temporary error.

        :raise InvalidParameters: the query has more than the id of the last event.
        :raise ReadingsNotReady: the collection is not complete yet.
        :raise TooManyStreams: as many are open as may be.
        :raise AccessError: the caller has too many streams, or has lost its right.
        """
        try:
            self.changes.require_complete()
            last_event_id = _last_event_id(request)
            if self.budget is None and request.reservation is not None:
                self.budget = request.reservation.hold(0, owner="")
            stream = ChangeStream(self, self._streams, request, last_event_id=last_event_id)
        except SampleAppError as error:
            return response_to_temporary_error(request.fields, error)
        return Response(HTTPStatus.OK, STREAM_HEADERS, source=stream)

    # For the streams.

    def add(self, stream: ChangeStream) -> None:
        """Add a stream that has begun."""
        if not self._open:
            self.changes.observe(self)
        self._open.add(stream)

    def remove(self, stream: ChangeStream) -> None:
        """Remove a stream that has ended. Does nothing if it never began."""
        if stream not in self._open:
            return
        self._open.discard(stream)
        if not self._open:
            self.changes.ignore()
            self.state = None
            self._log_of_events.clear(self.budget)

    def write_later(self, stream: ChangeStream) -> None:
        """Let a stream write on in the next turn of the reactor."""
        self._open.visit_again(stream)

    @property
    def events(self) -> _EventLog:
        """The latest events."""
        return self._log_of_events

    # `IChangesObserver`

    def began(self, state: ReadingsState) -> None:
        """Let all streams begin from a state."""
        self._log_of_events.clear(self.budget)
        self._set_state(state)
        self._open.begin()

    def changed(self, changes: Sequence[Change], state: ReadingsState | None) -> Iterator[None]:
        """Encode changes in steps, once for all streams."""
        events: list[bytes] = []
        size = 0
        for number, change in enumerate(changes, 1):
            if len(change.id) > LONG_ID:
                parts = []
                for part in _long_change(change):
                    parts.append(Event(part))
                    yield
                tag = _tag_of(change)
                self._log_of_events.append(_LongEvent(parts, tag), 1, tag, self.budget)
                continue
            events.append(_encode_change(change))
            size += len(events[-1])
            if number == len(changes) or size >= _ENCODED_AT_ONCE or len(changes[number].id) > LONG_ID:
                event = Event(b"".join(events))
                self._log_of_events.append(event, len(events), _tag_of(change), self.budget)
                events, size = [], 0
                yield
        if state is not None:
            self._set_state(state)
        self._open.begin()

    def _set_state(self, state: ReadingsState) -> None:
        length = state.representation.length
        self._log_of_events.limit = min(max(length, _LEAST_LOG), _MOST_LOG)
        start = _Start(state, self._log_of_events.end)
        if self.state is not None and self.state.may_be_read and self.budget is not None:
            self.state.body.replace(start.body, self.budget)
        self.state = start


class ChangeStream(EventStream):
    """One client's stream of changes."""

    def __init__(
        self, resource: ChangesResource, streams: OpenStreams, request: Request, *, last_event_id: str
    ) -> None:
        """
        :param resource: all streams of changes.
        :param last_event_id: the id that the client has; empty if it has none.
        """
        super().__init__(streams, kind=StreamKind.CHANGES, request=request)
        self._resource = resource
        # The tag of the client's copy; empty if it has none.
        self._tag = last_event_id
        # The index in the log; None for a stream that must begin from a state, which is not older than this.
        self._log_index: int | None = None
        self._least_number = resource.changes.number
        # The long event that is being written, and the number of its next part.
        self._partial: _Whole | _LongEvent | None = None
        self._next_part = 0

    def started(self) -> None:
        """Begin from the current state, once there is one."""
        self._resource.add(self)
        self.write_on()

    def caught_up(self) -> None:
        """Write the changes since then."""
        self.set_behind(is_behind=False)
        self.write_on()

    def present_id(self) -> Event | None:
        """Return the tag of the client's copy."""
        return Event(encode_id(self._tag)) if self._tag and self._partial is None else None

    def is_between_events(self) -> bool:
        """Return false while a long event is written in part only."""
        return self._partial is None

    def ended(self) -> None:
        """Leave the others."""
        self._partial = None
        self._resource.remove(self)

    def visit(self, now_s: float) -> None:
        """Cut a client that reads a former state slowly, when these take half of the memory."""
        super().visit(now_s)
        budget = self._resource.budget
        if (
            self._partial is not None
            and self._partial.is_replaced
            and budget is not None
            and not budget.has_room(0)
        ):
            self.abort("max-body-memory")

    def write_on(self) -> None:
        """Write what the client does not have yet, but only some of a large collection."""
        left = _WRITTEN_AT_ONCE
        while self.can_write and left > 0:
            if self._partial is not None:
                left -= self._write_part(self._partial)
            elif self._log_index is None:
                if not self._begin_from_state():
                    return
            else:
                written = self._write_from_log(self._log_index)
                if written == 0:
                    return
                left -= written
        if self.can_write:
            self._resource.write_later(self)

    def write(self, event: Event, count: int = 1) -> bool:
        """Send an event; see `EventStream.write`."""
        can_write = super().write(event, count)
        if not can_write:
            self.set_behind(is_behind=True)
        return can_write

    def _begin_from_state(self) -> bool:
        start = self._resource.state
        if start is None or start.number < self._least_number or start.index < self._resource.events.start:
            return False
        self._log_index = start.index
        if start.tag != self._tag:
            self._tag = ""
            self._partial, self._next_part = start.whole(), 0
        return True

    def _write_part(self, whole: _Whole | _LongEvent) -> int:
        event = whole.part(self._next_part)
        self._next_part += 1
        is_last = self._next_part == whole.count
        if is_last:
            self._partial, self._tag = None, whole.tag
        self.write(event, int(is_last))
        return len(event)

    def _write_from_log(self, index: int) -> int:
        events = self._resource.events
        if index < events.start:
            # Every state that is kept is later.
            self._log_index, self._least_number = None, 0
            return 1
        if index == events.end:
            return 0
        event, count, tag = events[index]
        self._log_index = index + 1
        if isinstance(event, _LongEvent):
            self._partial, self._next_part = event, 0
            return self._write_part(event)
        self._tag = tag
        self.write(event, count)
        return len(event)


class _LongEvent:
    """The change of a reading with a long id, in parts."""

    def __init__(self, parts: Sequence[Event], tag: str) -> None:
        self._parts = parts
        self.part: Final = parts.__getitem__
        self.count = len(parts)
        """The number of parts."""
        self.tag: Final = tag
        """The id of the event."""
        self._length = sum(map(len, parts))
        self.is_replaced = False
        """True if it has left the log, and is there only for clients that read it slowly."""

    def __len__(self) -> int:
        """Return the length of all parts, in bytes."""
        return self._length

    def replace(self, budget: Budget | None) -> None:
        """Count its memory as long as a client reads it: it leaves the log."""
        self.is_replaced = True
        if budget is not None:
            for part in self._parts:
                part.hold(budget)


_Logged: TypeAlias = Event | _LongEvent


class _EventLog:
    """The latest events, up to a limit of memory. Each has an index, a number that grows by one."""

    def __init__(self) -> None:
        self._events: deque[tuple[_Logged, int, str]] = deque()
        self._bytes = 0
        self.start = 0
        """The index of the first event that is kept."""
        self.limit = _LEAST_LOG

    @property
    def end(self) -> int:
        """The index of the next event."""
        return self.start + len(self._events)

    def __getitem__(self, index: int) -> tuple[_Logged, int, str]:
        """Return an event, the number of changes in it, and the tag after it, which may be empty."""
        return self._events[index - self.start]

    def append(self, event: _Logged, count: int, tag: str, budget: Budget | None) -> None:
        """
        Add an event, and drop the oldest ones over the limit.

        :param budget: for those that are there only for clients that read them slowly.
        """
        self._events.append((event, count, tag))
        self._bytes += len(event) + _LOG_ENTRY_BYTES
        while self._bytes > self.limit and len(self._events) > 1:
            self._drop(budget)

    def clear(self, budget: Budget | None) -> None:
        """Drop all events. No stream continues across this index."""
        while self._events:
            self._drop(budget)
        self.start += 1

    def _drop(self, budget: Budget | None) -> None:
        event, _, _ = self._events.popleft()
        self._bytes -= len(event) + _LOG_ENTRY_BYTES
        self.start += 1
        if isinstance(event, _LongEvent):
            event.replace(budget)


class _Start:
    """A state from which a stream can begin, and the index in the log of the changes after it."""

    def __init__(self, state: ReadingsState, index: int) -> None:
        self.number = state.number
        self.tag: Final = _id_of(state.representation.etag)
        self.index = index
        self._length = state.representation.length
        self.body: Final = SharedBody(state.representation.parts)
        self._whole: ref[_Whole] | None = None
        self._kept: _Whole | None = None

    @property
    def may_be_read(self) -> bool:
        """True if streams may be writing it, or a former state that has some of its parts."""
        return bool(self.body.counted) or self._present_whole() is not None

    def _present_whole(self) -> _Whole | None:
        return None if self._whole is None else self._whole()

    def whole(self) -> _Whole:
        """Return the event with all readings."""
        whole = self._present_whole()
        if whole is None:
            whole = _Whole(self.body, self.tag)
            self._whole = ref(whole)
            if self._length <= _KEPT_WHOLE:
                self._kept = whole
        return whole


class _Whole:
    """The event with all readings, in parts, each of which is made when the first stream needs it."""

    def __init__(self, body: SharedBody, tag: str) -> None:
        self.body: Final = body
        self._parts: list[Event] = []
        self.count = len(body)
        """The number of parts."""
        self.tag: Final = tag
        """The id of the event."""

    @property
    def is_replaced(self) -> bool:
        """True if it is there only for clients that read it slowly."""
        return self.body.is_replaced

    def part(self, number: int) -> Event:
        """Return a part; those before it have been asked for."""
        if number == len(self._parts):
            data = escape_line_ends(self.body[number])
            if number == 0:
                data = begin_event(event=_READINGS, event_id=self.tag) + data
            if number == self.count - 1:
                data += END_OF_EVENT
            self._parts.append(Event(data))
        return self._parts[number]


def _encode_change(change: Change) -> bytes:
    if change.value is None:
        data, event = _encode({"id": change.id}), _REMOVED
    else:
        data, event = _encode(Reading(change.id, change.value)), _READING
    return encode_event(escape_line_ends(data), event=event, event_id=_tag_of(change))


def _long_change(change: Change) -> Iterator[bytes]:
    """Encode the event of a reading with a long id in parts."""
    event = _REMOVED if change.value is None else _READING
    before = begin_event(event=event, event_id=_tag_of(change))
    for part in encode_gradually(change.id, change.value, before=before):
        yield escape_line_ends(part)
    yield END_OF_EVENT


def _tag_of(change: Change) -> str:
    return "" if change.etag is None else _id_of(change.etag)


def _id_of(etag: str) -> str:
    return etag[1:-1]


def _last_event_id(request: Request) -> str:
    parameters = dict(parameters_of_get(request.query)) if request.query else {}
    # Polyfills of EventSource append the second one to the URL when they come back.
    given = [parameters.pop(name, b"") for name in (b"last_event_id", b"lastEventId")]
    if parameters:
        raise InvalidParameters(list(unknown_parameters(parameters, 'the only one is "last_event_id"')))
    # An id that is not ASCII, or that is there twice, is none of ours.
    value = request.fields.joined(b"last-event-id") or given[1] or given[0]
    return value.decode("ascii", "replace")
