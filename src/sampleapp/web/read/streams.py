"""
Streams of the records of a topic, as server-sent events (``text/event-stream``).

A stream reads by itself from its position on until it has reached the feed of the topic, and then joins the
feed: from there on, each event is encoded once for all. A client that does not read as fast as records come
leaves the feed, and its stream reads by itself when the client can take more, and the memory budget has room.
Streams that read by themselves share the pages that they read, as long as one of them sends the page.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from copy import copy
from http import HTTPStatus
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.concurrency.failures import forget_frames_of
from sampleapp.concurrency.rates import Backoff
from sampleapp.concurrency.slices import Rounds, TimeSlices
from sampleapp.errors import Fault, InvalidParameters, SampleAppError
from sampleapp.feeds import Broadcast, Feed, Feeds, Joining, Selection, SubscriberGroup
from sampleapp.feeds.broadcast import id_line, record_events
from sampleapp.model import EARLIEST, ConsumerRecord, GoneRecords, ReadResult, Start, epoch_of
from sampleapp.records.event_stream import encode_event, encode_id
from sampleapp.records.positions import (
    LONGEST_POSITION,
    Cursor,
    Position,
    PositionTooLong,
    TopicReplaced,
    parse_position,
)
from sampleapp.records.read_parameters import StreamParameters, read_stream_parameters
from sampleapp.web.access_control import AuthorizedTopic
from sampleapp.web.errors import is_temporary
from sampleapp.web.read.registry import (
    STREAM_HEADERS,
    EventStream,
    OpenStreams,
    StreamKind,
    response_to_temporary_error,
)
from sampleapp.web.read.topic_reads import ReadTurns, TopicReads
from sampleapp.web.responses import Budget, Event, Response
from sampleapp.web.server import Request

_HEADERS: Final = (*STREAM_HEADERS, (b"Vary", b"Accept"))
_PAGE_RECORDS: Final = 500
_LEAST_PAGE_BYTES: Final = 32 * 1024
_MOST_PAGE_BYTES: Final = 256 * 1024
_RETRY: Final = Backoff(first_s=1.0, max_s=10.0)
_MOST_REJECTIONS: Final = 4
"""
How often the broker may refuse to read for good, as when the topic was deleted, before a stream ends.

It takes some seconds, in which a topic that is deleted and created again is there again.
"""
_LITTLE_PAUSES: Final = Backoff(first_s=0.01, max_s=0.5)
_LOOKS_FOR_ROOM_S: Final = 0.25
"""The time between looks for room in the memory budget, for all streams that wait for it."""
_LOOKS_AHEAD: Final = 7
"""How often a stream that is ahead of the feed waits for it, about a second, before it reads by itself."""

_encode: Final = msgspec.json.Encoder().encode


class _Page(Event):
    """The events of some records that were read, and the result of reading them, without the records."""

    __slots__ = ("count", "result")

    def __init__(self, data: bytes, count: int, result: ReadResult) -> None:
        super().__init__(data)
        self.count: Final = count
        self.result: Final = result


class _GapData(msgspec.Struct, frozen=True):
    """The data of an event ``gap``."""

    gone: Sequence[GoneRecords]


class _ResetData(msgspec.Struct, frozen=True):
    """The data of an event ``reset``."""

    reason: str


class RecordStreams:
    """Opens the streams of records of the service."""

    def __init__(
        self,
        reads: TopicReads,
        feeds: Feeds,
        *,
        streams: OpenStreams,
        clock: IReactorTime,
    ) -> None:
        """
        :param reads: reads for one stream.
        :param feeds: made with `Event` for ``make_event``.
        :param streams: all streams of the service.
        """
        self.feeds: Final = feeds
        self.streams: Final = streams
        self.clock: Final = clock
        self.turns: Final = ReadTurns(reads, clock)
        self.slices: Final = TimeSlices(clock)
        self.pages: Final[WeakValueDictionary[Hashable, _Page]] = WeakValueDictionary()
        """What streams that read by themselves are sending, by the cursor from which it begins."""
        self.without_room: Final[Rounds[RecordStream]] = Rounds(
            clock,
            RecordStream.look_for_room,
            fault="A fault in a stream of records; its connection was cut",
            on_fault=RecordStream.failed,
            every_s=_LOOKS_FOR_ROOM_S,
        )
        """The streams that wait for room in the memory budget; first come, first served."""

    def open(self, request: Request, topic: AuthorizedTopic) -> Deferred[Response]:
        """
        Open a stream.

        :return: fires with its response, when the start is known and can be read. A browser gets a response
            also if there are too many streams, or the broker cannot be reached; see
            `response_to_temporary_error`. Fails with a `SampleAppError`: wrong parameters, no such topic or
            partition, and a position that cannot be continued, unless it is the id of an event. Cancelling
            it ends everything.
        """
        return Deferred.fromCoroutine(self._open(request, topic))

    async def _open(self, request: Request, topic: str) -> Response:
        parameters = read_stream_parameters(request.query, request.fields.all(b"last-event-id"))
        try:
            stream = RecordStream(self, topic, parameters, request)
            try:
                await stream.prepare(parameters)
            except BaseException:
                stream.closed("refused")
                raise
        except SampleAppError as error:
            response = response_to_temporary_error(request.fields, error)
            return msgspec.structs.replace(response, headers=_HEADERS)
        return Response(HTTPStatus.OK, _HEADERS, source=stream)


class RecordStream(EventStream):
    """One stream: a source of a response, and a subscriber of a feed."""

    __slots__ = (
        "_at",
        "_begins_with",
        "_begins_with_count",
        "_budget",
        "_epoch",
        "_feed",
        "_headers",
        "_is_reading",
        "_key",
        "_needed_bytes",
        "_owner",
        "_page_bytes",
        "_partitions",
        "_room",
        "_topic",
        "_turn",
        "_waiting",
        "group",
        "joined",
        "position",
    )

    _log = Logger()

    def __init__(
        self, owner: RecordStreams, topic: str, parameters: StreamParameters, request: Request
    ) -> None:
        """
        :raise TooManyStreams: all slots are taken.
        :raise TooManyTopics: streams and waiting pages read too many other topics.
        :raise AccessError: the caller has too many streams, or has lost its right.
        """
        super().__init__(owner.streams, kind=StreamKind.RECORDS, request=request, topic=topic)
        self._owner: Final = owner
        self._topic: Final = topic
        self._key: Final = parameters.key
        self._headers: Final = parameters.headers
        self._partitions: Final = parameters.partitions
        self._at: Cursor | None = Cursor(topic, parameters.start, parameters.partitions)
        """Where it reads by itself; ``None`` while the feed does it."""
        self._begins_with = b""
        self._begins_with_count = 0
        self._feed: Feed | None = None
        self._turn: Final = owner.turns.turn(request)
        self._epoch: object = None
        """That of the feed when the cursor was last read from."""
        self._waiting: Deferred[Any] | None = None
        self._is_reading = False
        self._page_bytes = 2 * _LEAST_PAGE_BYTES
        self._budget: Final[Budget | None] = request.reservation
        self._needed_bytes = 0
        """The memory for the next page, if it was read already and there was no room for its events."""
        self._room: Budget | None = None
        """Memory that is reserved for the next page, after a wait for it."""
        self.group: SubscriberGroup | None = None
        self.joined = 0
        self.position = b""

    async def prepare(self, parameters: StreamParameters) -> None:
        """
        Look up where the stream begins, so that the response can have a status.

        :raise SampleAppError: the stream cannot begin.
        """
        cursor = self._at
        assert cursor is not None  # noqa: S101 -- for mypy: it has just been made
        await self._wait(self._turn.begin())
        try:
            result = await self._read(cursor, limit=0)
        finally:
            self._turn.end()
        if not parameters.resumes:
            cursor.require_all(result)
        cursor.require_partition(result, source=parameters.source)
        await self._wait(self._owner.slices.next())
        if not cursor.topic_id:
            first = Broadcast(cursor.before(result), self._selection(cursor, result.topic_id)).position
        else:
            first = self._broadcast(cursor).position
        # A gap or a reset, if there is one.
        events, self._begins_with_count = self._take(cursor, result)
        if max(len(first), len(self._broadcast(cursor).position)) > LONGEST_POSITION:
            raise InvalidParameters([Fault("/partition", f"A position of this topic {PositionTooLong()}.")])
        self._begins_with = id_line(first) + b"\n" + events

    # `EventStream`

    def started(self) -> None:
        """Send the first position, and the events that were read for it already."""
        begins_with, self._begins_with = self._begins_with, b""
        self.set_behind(is_behind=True)
        if self.write(Event(begins_with), 1 + self._begins_with_count):
            self._read_on()

    def caught_up(self) -> None:
        """Read on."""
        self._page_bytes = _LEAST_PAGE_BYTES
        self._read_on()

    def present_id(self) -> Event | None:
        """Return the event that has only the position."""
        if self._feed is not None and self.group is not None:
            event: Event | None = self._feed.heartbeat(self)
            return event
        return None if self._at is None else Event(encode_id(self._broadcast(self._at).position.decode()))

    def ended(self) -> None:
        """Leave the feed, and stop reading."""
        if self._feed is not None:
            self._feed.leave(self)
        if self._waiting is not None:
            self._waiting.cancel()

    # `sampleapp.feeds.Subscriber`

    def has_room(self, event: Event) -> bool:
        """Return whether the memory budget has room for a large event if the client does not take it."""
        if self._budget is None or event.is_held or not self.unsent:
            return True
        return self._budget.has_room(len(event))

    def receive(self, event: Event, count: int) -> bool:
        """Send events of the feed. If the client does not read them in time, read by itself from then on."""
        if self.write(event, count):
            return True
        self._leave()
        return False

    def detached(self, *, is_reset: bool) -> None:
        """Read by itself: the feed has not all records any more, or the topic was made again."""
        cursor = self._leave()
        if is_reset and cursor.topic_id == "_":
            # Nothing but the feed tells the new topic from the former one.
            cursor.begin_again()
            if not self.write(Event(self._reset_event(cursor, "topic-replaced"))):
                return
        self._read_on()

    def failed(self) -> None:
        """Cut the connection: the client comes back with its last id."""
        self.abort("fault")

    # Reading by itself

    def _leave(self) -> Cursor:
        try:
            position: Position | Start = parse_position(self.position.decode("ascii"))
        except PositionTooLong:
            # Partitions were added. The client gets the reason when it comes back.
            position = EARLIEST
            self.finish("position")
        cursor = self._at = Cursor(self._topic, position, self._partitions)
        self.set_behind(is_behind=True)
        return cursor

    def _read_on(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            Deferred.fromCoroutine(self._read_until_joined()).addErrback(self._failed)

    async def _read_until_joined(self) -> None:
        try:
            failures = looks = empty = 0
            while self.can_write and self._at is not None:
                cursor = self._at
                found = self._join(cursor)
                if found is Joining.JOINED:
                    continue
                if found is Joining.AHEAD and looks < _LOOKS_AHEAD:
                    looks += 1
                    await self._pause(_LITTLE_PAUSES.delay_s(looks))
                    continue
                try:
                    is_read = await self._send_page(cursor)
                except SampleAppError as error:
                    self._release_room()
                    failures += 1
                    if failures > _MOST_REJECTIONS and not is_temporary(error):
                        # The client comes back, and gets the status and the problem of the error.
                        self.finish("error")
                        return
                    await self._pause(_RETRY.delay_s(failures))
                    continue
                failures = looks = 0
                self._release_room()
                if not is_read:
                    await self._wait_for_room()
                    continue
                await self._wait_for_client()
                empty = 0 if cursor is not self._at else empty + 1
                if empty:
                    # The feed was made during the read, or it is that of the former topic still: the latter
                    # is noticed in some seconds.
                    await self._pause(_LITTLE_PAUSES.delay_s(empty))
        finally:
            self._is_reading = False
            self._release_room()

    def _join(self, cursor: Cursor) -> Joining:
        """Join the feed if it has all records from here on. Then the feed knows the position."""
        feed = self._feed = self._owner.feeds.feed(self._topic)
        if feed is None or not cursor.topic_id or feed.epoch is not self._epoch:
            return Joining.BEHIND
        selection = self._selection(cursor, cursor.topic_id)
        found, missed = feed.join(self, cursor.offsets, selection)
        if missed and not self._has_room():
            feed.leave(self)
            return Joining.BEHIND
        if found is Joining.JOINED:
            broadcast = Broadcast(cursor.offsets, selection)
            self._at = None
            self.set_behind(is_behind=False)
            if missed and not self.write(Event(_events(broadcast, missed, self.position)), len(missed)):
                self._leave()
                feed.leave(self)
        return found

    def _has_room(self) -> bool:
        budget = self._budget
        return budget is None or self._room is not None or budget.has_room(self._memory_of_page)

    @property
    def _memory_of_page(self) -> int:
        return max(self._page_bytes, self._needed_bytes)

    async def _wait_for_room(self) -> None:
        streams = self._owner.without_room
        streams.add(self)
        try:
            await self._wait(Deferred())
        finally:
            streams.discard(self)

    def look_for_room(self) -> None:
        """Reserve the memory for the next page, and read on, if the budget has room for it now."""
        budget, waiting = self._budget, self._waiting
        if budget is not None and waiting is not None and self._has_room():
            self._room = budget.hold(self._memory_of_page)
            waiting.callback(None)

    def _release_room(self) -> None:
        if self._room is not None:
            self._room.release()
            self._room = None

    async def _send_page(self, cursor: Cursor) -> bool:
        """
        Send the next records, and move on. The cursor is not changed.

        :return: false if the memory budget has no room for them.
        """
        pages, name = self._owner.pages, self._name_of_page(cursor)
        page = pages.get(name)
        if page is None:
            await self._wait(self._turn.begin())
            try:
                # Another stream may have read it in the meantime.
                page = pages.get(name)
                if page is None:
                    return await self._read_page(cursor, name)
            finally:
                self._turn.end()
        after = copy(cursor)
        after.advance(page.result)
        self._send(page, after)
        return True

    async def _read_page(self, cursor: Cursor, name: Hashable) -> bool:
        if not self._has_room():
            return False
        result = await self._read(cursor, limit=_PAGE_RECORDS)
        if not self.can_write:
            return True
        await self._wait(self._owner.slices.next())
        after = copy(cursor)
        events, count = self._take(after, result)
        if not events:
            if after.offsets != cursor.offsets:
                self._at = after
            return True
        page = _Page(events, count, msgspec.structs.replace(result, records=()))
        self._release_room()
        if self._budget is not None and not self._budget.has_room(len(page)):
            self._needed_bytes = len(page)
            return False
        if cursor.topic_id not in {"", "_"} and cursor.problem(result) is None and not result.gone:
            self._owner.pages[name] = page
        self._send(page, after)
        return True

    def _send(self, page: _Page, after: Cursor) -> None:
        self._needed_bytes = 0
        self._at = after
        self.write(page, page.count)

    def _name_of_page(self, cursor: Cursor) -> Hashable:
        # With their epochs: of two logs, one may have been cut before an offset.
        offsets = tuple((each, at, epoch_of(at)) for each, at in sorted(cursor.offsets.items()))
        return (
            self._topic,
            cursor.topic_id,
            offsets,
            cursor.partitions,
            cursor.skipped,
            self._key,
            self._headers,
        )

    async def _wait_for_client(self) -> None:
        """Read nothing more for a client that has not taken the last page yet."""
        pauses = 0
        while self.can_write and self.unsent:
            pauses += 1
            await self._pause(_LITTLE_PAUSES.delay_s(pauses))
        if pauses > 1:
            self._page_bytes = _LEAST_PAGE_BYTES
        else:
            # If the records had other keys: look at more of them at once.
            self._page_bytes = min(2 * self._page_bytes, _MOST_PAGE_BYTES)

    async def _read(self, cursor: Cursor, *, limit: int) -> ReadResult:
        epoch = self._owner.feeds.epoch(self._topic)
        # Not cancelled with the stream: it counts in the limit of reads until it ends, also if the client is
        # gone.
        result = await self._turn.read(cursor, limit=limit, max_bytes=self._page_bytes, key=self._key)
        # If the feed was reset during the read, the result may be that of the former topic.
        self._epoch = epoch
        return result

    def _take(self, cursor: Cursor, result: ReadResult) -> tuple[bytes, int]:
        """Go on after a result; return its events, and their number."""
        problem = cursor.problem(result)
        if problem is not None:
            cursor.begin_again(result)
            reason = "topic-replaced" if isinstance(problem, TopicReplaced) else "position-unknown"
            return self._reset_event(cursor, reason), 1
        broadcast = Broadcast(cursor.before(result), self._selection(cursor, result.topic_id))
        events, count = b"", 0
        if result.gone:
            for gone in result.gone:
                broadcast.move(gone.partition, gone.earliest)
            data = _encode(_GapData(result.gone))
            events, count = encode_event(data, event="gap", event_id=broadcast.position.decode("ascii")), 1
        cursor.advance(result)
        records = result.records
        if self._key is not None or self._headers:
            records = [record for record in records if record.matches(self._key, self._headers)]
        return events + _events(broadcast, records, self._broadcast(cursor).position), count + len(records)

    def _reset_event(self, cursor: Cursor, reason: str) -> bytes:
        position = self._broadcast(cursor).position.decode("ascii")
        return encode_event(_encode(_ResetData(reason)), event="reset", event_id=position)

    def _broadcast(self, cursor: Cursor) -> Broadcast:
        return Broadcast(cursor.offsets, self._selection(cursor, cursor.topic_id or "_"))

    def _selection(self, cursor: Cursor, topic_id: str) -> Selection:
        partitions = None if cursor.partitions is None else frozenset(cursor.partitions)
        return Selection(topic_id, partitions, cursor.skipped, self._key, self._headers)

    async def _pause(self, delay_s: float) -> None:
        timer: IDelayedCall
        over: Deferred[None] = Deferred(lambda _: timer.cancel())
        timer = self._owner.clock.callLater(delay_s, over.callback, None)
        await self._wait(over)

    async def _wait(self, waiting: Deferred[Any]) -> Any:
        """Wait for something, which is cancelled if the stream ends."""
        self._waiting = waiting
        try:
            return await waiting
        finally:
            self._waiting = None

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) is not None and not self.is_open:
            # Its traceback refers to frames that refer to it.
            forget_frames_of(failure)
        else:
            self._log.failure("A fault in a stream of records; its connection was cut", failure=failure)
            self.abort("fault")


def _events(broadcast: Broadcast, records: Iterable[ConsumerRecord], position: bytes) -> bytes:
    """
    Encode the next records of a stream.

    :param broadcast: the positions of the stream before them.
    :param position: the position after them, which the last one has.
    """
    events = record_events(records)
    if not events:
        return b""
    parts: list[bytes] = []
    if broadcast.has_frequent_ids:
        for record, event in zip(records, events, strict=True):
            broadcast.move_past(record)
            parts += id_line(broadcast.position), event
        parts[-2] = id_line(position)
    else:
        parts += events[:-1]
        parts += id_line(position), events[-1]
    return b"".join(parts)
