"""Reading a topic as it grows: one event stream after the other, each from where the one before has ended."""

# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from random import uniform
from typing import Self, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from sampleapp.client._errors import ClientError, ProblemError, UnexpectedResponse
from sampleapp.client._exchange import OpenResponse
from sampleapp.client._messages import Gone, decode_record
from sampleapp.concurrency.rates import Backoff
from sampleapp.model import ConsumerRecord, GoneRecords

MAX_EVENT_BYTES = 64 * 1024 * 1024
_MAX_DIGITS = 9
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventTooLong(Exception):
    """An event, or one of its lines, is longer than the limit."""


class Event(Struct, frozen=True):
    """One event of a stream, or an id without an event."""

    name: str
    """The field ``event``; empty if there is none."""
    data: bytes | None
    """The lines of ``data``, joined by line feeds; ``None`` if the block has only an id."""
    id: str | None
    """The field ``id`` of this block; ``None`` if it has none."""


class EventDecoder:
    """Decodes the bytes of one event stream as they arrive, in bounded memory. Does no I/O."""

    def __init__(self, *, max_bytes: int = MAX_EVENT_BYTES) -> None:
        """:param max_bytes: the maximum size of one event, in bytes."""
        self.retry_ms: int | None = None
        """The latest ``retry`` field, in milliseconds."""
        self._max_bytes = max_bytes
        self._begun: list[bytes] = []
        self._size = 0
        self._is_first = True
        self._after_return = False
        self._name = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, data: bytes) -> list[Event]:
        """
        Add the next bytes of the stream; return the events that end in them.

        :raise EventTooLong: an event is longer than the limit. The decoder cannot be used any more.
        """
        # A line may end in CR LF, and the two may arrive apart.
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        if not data:
            return []
        self._after_return = data.endswith(b"\r")
        *ended, rest = _LINE_END.split(data)
        events: list[Event] = []
        for chunk in ended:
            self._count(len(chunk))
            line = chunk
            if self._begun:
                line = b"".join([*self._begun, chunk])
                self._begun.clear()
            event = self._line(line)
            if event is not None:
                events.append(event)
        if rest:
            self._count(len(rest))
            self._begun.append(rest)
        return events

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._max_bytes:
            raise EventTooLong

    def _line(self, line: bytes) -> Event | None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._finished()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit() and len(value) <= _MAX_DIGITS:
            self.retry_ms = int(value)
        # A line that begins with a colon is a comment. Other fields are ignored.
        return None

    def _finished(self) -> Event | None:
        """End a block of lines."""
        name, data, event_id = self._name, self._data, self._id
        self._name, self._data, self._id, self._size = "", [], None, 0
        if not data and event_id is None:
            return None
        return Event(name, b"\n".join(data) if data else None, event_id)


SILENCE_S = 60.0
"""The service sends a line every 15 seconds, so a connection that is silent for this time is lost."""
RETRY_S = 2.0
"""The delay before the stream is asked for again, until the service has named one."""
MAX_RETRY_S = 30.0
MAX_QUEUED_BYTES = 256 * 1024
"""Reading from the connection pauses while there is more that the program has not taken."""


_Result = TypeVar("_Result")


class Gap(Struct, frozen=True):
    """Records were removed, for example by retention, before the stream could read them."""

    gone: tuple[GoneRecords, ...]


class Reset(Struct, frozen=True):
    """
    The position is not one of this topic, which is read from its first record from now on.

    The topic was deleted and made again, or it has lost records, or the position is from another cluster.
    """

    reason: str


StreamItem: TypeAlias = "ConsumerRecord | Gap | Reset"
"""What a stream returns."""


class _GapData(Struct, frozen=True):
    gone: tuple[Gone, ...] = ()


class _ResetData(Struct, frozen=True):
    reason: str = ""


Open: TypeAlias = "Callable[[str | None], Deferred[OpenResponse]]"
"""Ask for a stream that goes on at a position, or where the program began; fails with a `ClientError`."""


class Stream:
    """
    The records of a topic, and those that are added, as an asynchronous iterator.

    It does not end by itself. When the connection is lost, or the service restarts or is busy, it asks for
    the stream again, from where it has ended. So nothing is missing, and nothing comes twice. The iterator
    raises an error if the first request fails, whatever the reason; and later, if the service refuses to go
    on: `sampleapp.client.Forbidden`, for example. You may iterate again after an error.

    Nothing is read from the connection while the program does not ask for items, but for 256 KiB. If that
    takes more than half a minute, the service ends the connection, and the stream goes on later.
    """

    def __init__(self, *, open_stream: Open, reactor: IReactorTime, position: str | None) -> None:
        """:param position: where to begin; ``None`` if the request says so."""
        self._open = open_stream
        self._reactor = reactor
        self._position = position
        self._body: _Body | None = None
        self._waiting: deque[Event] = deque()
        self._read_until: dict[int, int] = {}
        self._has_begun = False
        self._is_closed = False
        self._is_busy = False
        self._pending: Deferred[object] | None = None
        self._failures = 0
        self._retry_s = RETRY_S

    @property
    def position(self) -> str | None:
        """
        The position after the last item that was returned; ``None`` before the service has named one.

        Give it to `Client.stream` or `Client.read` to go on later, or in another process. If a topic has so
        many partitions that a position has over 128 bytes, the service names one only for groups of records;
        then this is the position before the group, and the records of one group may be read again.
        """
        return self._position

    def close(self) -> None:
        """End the iteration, and close the connection."""
        self._is_closed = True
        self._waiting.clear()
        if self._body is not None:
            self._body.abort()
        if self._pending is not None:
            self._pending.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamItem:
        """
        Return the next item; wait until there is one.

        :raise sampleapp.client.ClientError: see the class.
        """
        if self._is_busy:
            raise RuntimeError("Only one coroutine at a time may iterate over a stream.")
        self._is_busy = True
        try:
            while not self._is_closed:
                while self._waiting:
                    item = self._take(self._waiting.popleft())
                    if item is not None:
                        self._take_ids()
                        return item
                if self._body is None:
                    await self._connect()
                else:
                    await self._receive(self._body)
        except CancelledError:
            if not self._is_closed:
                raise
        finally:
            self._is_busy = False
        raise StopAsyncIteration

    async def _connect(self) -> None:
        """Ask for the stream, again and again after it was there once."""
        while True:
            if self._has_begun:
                await self._until(deferLater(self._reactor, self._delay_s()))
            try:
                opened = await self._until(self._open(self._position))
            except ClientError as error:
                if not self._has_begun or not error.retriable:
                    raise
                self._failures += 1
                retry_after_s = error.retry_after_s if isinstance(error, ProblemError) else None
                if retry_after_s is not None:
                    await self._until(deferLater(self._reactor, min(retry_after_s, MAX_RETRY_S)))
            else:
                self._has_begun = True
                self._body = _Body(url=opened.url, reactor=self._reactor)
                opened.response.deliverBody(self._body)
                return

    async def _until(self, waiting: Deferred[_Result]) -> _Result:
        """Wait for a Deferred, which `close` cancels."""
        self._pending = cast("Deferred[object]", waiting)
        try:
            return await waiting
        finally:
            self._pending = None

    def _delay_s(self) -> float:
        backoff = Backoff(first_s=self._retry_s, max_s=max(self._retry_s, MAX_RETRY_S))
        if self._failures == 0:
            # The service has chosen it at random, for each client.
            return self._retry_s
        delay_s = backoff.delay_s(self._failures)
        return uniform(delay_s / 2, delay_s)  # noqa: S311 -- not a secret

    async def _receive(self, body: _Body) -> None:
        try:
            events = await body.receive()
        except UnexpectedResponse:
            self._end(body)
            raise
        if body.retry_ms is not None:
            self._retry_s = body.retry_ms / 1000
        if events:
            self._failures = 0
            self._waiting.extend(events)
        elif self._body is body:
            self._failures += not body.has_received
            self._end(body)

    def _end(self, body: _Body) -> None:
        body.abort()
        self._body = None

    def _take(self, event: Event) -> StreamItem | None:
        """Return what an event means; advance the position."""
        item = None if event.data is None else self._item(event.name, event.data)
        if event.id is not None:
            self._position = event.id
        return item

    def _take_ids(self) -> None:
        """Advance the position over the ids that follow without an item."""
        while self._waiting and self._waiting[0].data is None:
            self._take(self._waiting.popleft())

    def _item(self, name: str, data: bytes) -> StreamItem | None:
        try:
            if name in {"", "message"}:
                return self._new(decode_record(data))
            if name == "gap":
                gap = msgspec.json.decode(data, type=_GapData)
                return Gap(tuple([each.records() for each in gap.gone]))
            if name == "reset":
                self._read_until.clear()
                return Reset(msgspec.json.decode(data, type=_ResetData).reason)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UnexpectedResponse(
                f"An event of the stream is not one of this service: {error}. Does its version support this "
                "request?"
            ) from error
        return None

    def _new(self, record: ConsumerRecord) -> ConsumerRecord | None:
        """Return a record unless it was returned before: a stream goes on at the beginning of a group."""
        if record.offset < self._read_until.get(record.partition, 0):
            return None
        self._read_until[record.partition] = record.offset + 1
        return record


class _Body(Protocol):
    """The body of one stream: decodes it as it arrives, and pauses while events wait to be taken."""

    def __init__(self, *, url: str, reactor: IReactorTime) -> None:
        self.has_received = False
        """True if an event has arrived."""
        self._url = url
        self._reactor = reactor
        self._decoder = EventDecoder()
        self._events: list[Event] = []
        self._size = 0
        self._is_paused = False
        self._ended = False
        self._failure: UnexpectedResponse | None = None
        self._waiter: Deferred[None] | None = None
        self._silence: IDelayedCall | None = None

    @property
    def retry_ms(self) -> int | None:
        """The delay that the service has named, in milliseconds."""
        return self._decoder.retry_ms

    def receive(self) -> Deferred[list[Event]]:
        """
        Return the next events; wait for one.

        :return: fires with an empty list if the stream has ended. Fails with `UnexpectedResponse`. Cancelling
            it stops only the waiting.
        """
        if not self._events and not self._ended:
            self._resume()
        if self._events or self._ended:
            return succeed(None).addCallback(lambda _: self._taken())
        self._silence = self._reactor.callLater(SILENCE_S, self.abort)
        self._waiter = Deferred()
        return self._waiter.addBoth(self._waited)

    def dataReceived(self, data: bytes) -> None:
        """Decode."""
        if self._ended:
            return
        try:
            events = self._decoder.feed(data)
        except EventTooLong:
            self._failure = UnexpectedResponse(f"{self._url} sent an event that is too long.")
            self.abort()
            return
        if self._silence is not None:
            self._silence.reset(SILENCE_S)
        self._events += events
        self._size += len(data)
        if not events:
            return
        self.has_received = True
        self._wake()
        if self._events and self._size > MAX_QUEUED_BYTES and not self._is_paused:
            self._is_paused = True
            self._pause()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: ARG002 -- Twisted's signature
        """End: what has arrived of an unfinished event is dropped."""
        self._ended = True
        self._wake()

    def abort(self) -> None:
        """Close the connection."""
        self._ended = True
        if self.transport is not None:
            self.transport.loseConnection()
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.callback(None)

    def _waited(self, result: object) -> list[Event] | Failure:
        self._waiter = None
        if self._silence is not None and self._silence.active():
            self._silence.cancel()
        self._silence = None
        return result if isinstance(result, Failure) else self._taken()

    def _taken(self) -> list[Event]:
        events, self._events, self._size = self._events, [], 0
        if not events and self._failure is not None:
            raise self._failure
        return events

    def _pause(self) -> None:
        # A response hands its body a proxy of the transport, which is not typed as a producer.
        pause = getattr(self.transport, "pauseProducing", None)
        if pause is not None:
            pause()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            resume = getattr(self.transport, "resumeProducing", None)
            if resume is not None:
                resume()
