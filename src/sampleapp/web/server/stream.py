"""Responses that are sent part by part: events of a source, written to the transport of one connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

from msgspec import Struct
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.concurrency.slices import SlicedWork
from sampleapp.web.responses import Event, Response, Source
from sampleapp.web.server.body import MemoryReservation
from sampleapp.web.server.request import Exchange
from sampleapp.web.server.writer import LARGEST_PART, ResponseWriter

MAX_UNSENT: Final = 256 * 1024
"""The unsent bytes of a stream above which its source is told to wait."""

_LAST_CHUNK: Final = b"0\r\n\r\n"

_log = Logger(namespace=__name__)


class StreamEnd(Struct, frozen=True):
    """The end of a response that was sent part by part, for the access log."""

    reason: str
    """A fixed word: of the source, or one of `sampleapp.web.responses.SERVER_REASONS`."""
    bytes_sent: int
    """The bytes of the body that the operating system has taken, with the framing of chunks."""


class StreamOwner(Protocol):
    """The connection of a stream."""

    def stream_ended(self, stream: ResponseStream, reason: str) -> None:
        """Count the stream, and forget it. Its last bytes may be unsent."""

    def continue_after_stream(self, *, is_sent: bool) -> None:
        """
        Go on with the next request.

        :param is_sent: false if bytes of the stream are unsent, and are sent first.
        """

    def cut(self) -> None:
        """Cut the connection."""


class _Framing:
    """The head of a response, or its end."""

    __slots__ = ("chunk", "view")

    def __init__(self, data: bytes) -> None:
        self.chunk = self.view = data


class ResponseStream:
    """
    A `sampleapp.web.responses.Sink`: sends events at once while the socket takes them.

    Further events wait in a queue. Each is in memory, and in the memory budget, once for all clients.
    """

    __slots__ = (
        "_handed",
        "_has_finished",
        "_held",
        "_is_beginning",
        "_is_chunked",
        "_is_source_waiting",
        "_offset",
        "_owner",
        "_queue",
        "_reservation",
        "_send",
        "_source",
        "_writer",
        "_written",
        "exchange",
        "response",
        "unsent",
    )

    def __init__(
        self,
        owner: StreamOwner,
        writer: ResponseWriter,
        exchange: Exchange,
        response: Response,
        source: Source,
        *,
        is_chunked: bool,
        reservation: MemoryReservation,
    ) -> None:
        """
        :param is_chunked: frame events as chunks; otherwise the end of the connection ends the body.
        :param reservation: of the client in the memory budget; counts the bytes that it has not taken.
        """
        self._owner = owner
        self._reservation = reservation
        self._writer = writer
        self._source: Source | None = source
        self._is_chunked = is_chunked
        self.exchange = exchange
        self.response = response
        self.unsent = 0
        self._written = 0
        self._handed = 0
        # The unsent bytes, from `_offset` in the first part on; None if there are none.
        self._queue: deque[bytes | memoryview] | None = None
        self._offset = 0
        # Those whose bytes are in the queue, one for each of its parts.
        self._held: deque[Event | _Framing | None] = deque()
        # None while bytes that are sent now would overtake others.
        self._send: Callable[[bytes], int] | None = writer.direct_send
        self._is_source_waiting = False
        self._is_beginning = True
        self._has_finished = False

    @property
    def written(self) -> int:
        """All bytes that were written, without the head; more than before if there was anything new."""
        return self._written

    @property
    def bytes_taken(self) -> int:
        """The bytes of the body that the operating system has taken."""
        return max(0, self._written - self.unsent)

    @property
    def progress(self) -> int:
        """A number that grows when the client reads."""
        return self._writer.bytes_read(self._written - self.unsent)

    # For the connection.

    def begin(self, head: bytes, *, is_draining: bool) -> bool:
        """
        Write the head of the response, and let the source begin.

        :return: true if the source has finished the response already: then the connection must go on.
        """
        self._written = -len(head)
        self.write(_Framing(head))
        source = self._source
        if source is not None:
            self._call(partial(source.begin, self))
        if is_draining:
            self.drain()
        self._is_beginning = False
        return self._has_finished

    def drain(self) -> None:
        """Tell the source that the service stops."""
        if self._source is not None:
            self._call(self._source.draining)

    def sent(self) -> None:
        """Let the source write on, now that nothing is unsent."""
        if self._is_source_waiting and self._source is not None:
            self._is_source_waiting = False
            self._call(self._source.resumed)

    def end(self, reason: str) -> None:
        """Close the source. The first reason counts, and later calls do nothing."""
        source, self._source = self._source, None
        if source is not None:
            self._send = None
            self._owner.stream_ended(self, reason)
            close_source(source, reason, self.exchange.request_id)

    # For the source.

    def write(self, event: Event | _Framing) -> bool:
        """Send an event; see `sampleapp.web.responses.Sink.write`."""
        data = event.chunk if self._is_chunked else event.view
        self._written += len(data)
        send = self._send
        if send is None:
            return self._write_later(data, 0, event)
        # Giving the bytes to the transport, and waiting for the reactor, costs about twice as much.
        try:
            sent = send(data)  # type: ignore[arg-type] # sockets take any buffer
        except OSError:
            # The socket's buffer is full. Any other error is left to the reactor, which will meet it as well.
            sent = 0
        return sent == len(data) or self._write_later(data, sent, event)

    def finish(self, reason: str) -> None:
        """End the response properly; see `sampleapp.web.responses.Sink.finish`."""
        if self._source is None:
            return
        if self._is_chunked:
            self.write(_Framing(_LAST_CHUNK))
        if self._writer.is_full and self._queue is None:
            self._queue_first(b"", 0)
        self._has_finished = True
        self.end(reason)
        if not self._is_beginning:
            self._owner.continue_after_stream(is_sent=self.is_sent)

    def abort(self, reason: str) -> None:
        """Cut the connection; see `sampleapp.web.responses.Sink.abort`."""
        if self._source is not None:
            self.end(reason)
            self._owner.cut()

    @property
    def is_sent(self) -> bool:
        """True if the transport has everything, and takes more."""
        return self._queue is None

    # Writing.

    def _write_later(self, data: bytes | memoryview, offset: int, event: Event | _Framing) -> bool:
        if self._source is None:
            self._written -= len(data)
            return False
        queue = self._queue
        if queue is not None:
            queue.append(data)
            self._held.append(event)
            self.unsent += len(data)
        elif len(data) > LARGEST_PART or not self._writer.write_unless_full(bytes(data)):
            self._queue_first(data, offset, event)
        if isinstance(event, Event) and self._held:
            event.hold(self._reservation)
        # With nothing in the queue, nothing would call `sent`.
        if self._queue is None or (self.unsent <= MAX_UNSENT and self._reservation.has_room(0)):
            return True
        self._is_source_waiting = True
        return False

    def _queue_first(
        self, data: bytes | memoryview, offset: int, event: Event | _Framing | None = None
    ) -> None:
        self._queue = deque((data,))
        self._held.append(event)
        self._offset = offset
        self._send = None
        self.unsent += len(data) - offset
        self._writer.write_as_read(self)

    # The queue as an iterator of parts, of which the writer takes the next when the last one is sent.

    def __iter__(self) -> ResponseStream:
        return self

    def __next__(self) -> bytes:
        self.unsent -= self._handed
        self._handed = 0
        queue = self._queue
        if not queue:
            self._queue = None
            self._reservation.release()
            if self._source is not None:
                self._send = self._writer.socket_send
            raise StopIteration
        part = self._next_part(queue)
        self._handed = len(part)
        # The transport has a copy.
        self._reservation.count(len(part))
        return part

    def _next_part(self, queue: deque[bytes | memoryview]) -> bytes:
        start = self._offset
        first = queue[0]
        left = len(first) - start
        if left > LARGEST_PART:
            self._offset = stop = start + LARGEST_PART
            return bytes(first[start:stop])
        self._offset = 0
        parts = [queue.popleft()[start:]]
        self._held.popleft()
        while queue and left + len(queue[0]) <= LARGEST_PART:
            parts.append(queue.popleft())
            self._held.popleft()
            left += len(parts[-1])
        return b"".join(parts)

    def _call(self, method: Callable[[], None]) -> None:
        try:
            method()
        except Exception:  # noqa: BLE001 -- whatever it is, the connection must not stay open
            _log.failure(
                "A fault in the service: an answer was cut off. (X-Request-Id: {request_id})",
                request_id=self.exchange.request_id.decode("ascii"),
            )
            self.abort("fault")


def close_source(source: Source, reason: str, request_id: bytes) -> None:
    """Tell a source that its response has ended; an error of it is logged."""
    try:
        source.closed(reason)
    except Exception:  # noqa: BLE001 -- whatever it is, the connection goes on
        _log.failure(
            "A fault in the service: an answer could not be closed. (X-Request-Id: {request_id})",
            request_id=request_id.decode("ascii"),
        )


_STEP_S: Final = 0.02
_MOST_AT_ONCE: Final = 40
"""The most streams that are ended in one turn of the reactor, in which each takes about 30 µs."""


OnStreamEnd: TypeAlias = Callable[[Exchange, Response, StreamEnd], None]
"""Called once for each response that was sent part by part, at its end. It must not raise."""


class Streams:
    """The open streams of a server."""

    def __init__(self, reactor: IReactorTime, on_end: OnStreamEnd | None = None) -> None:
        """:param on_end: called at the end of each stream."""
        self._reactor = reactor
        self._on_end = on_end
        self._open: set[ResponseStream] = set()
        self._draining = SlicedWork(
            reactor, self._drain_next, fault="A stream could not be ended", steps=_MOST_AT_ONCE
        )
        self._left: list[ResponseStream] = []
        self._count, self._within_s, self._began_s = 0, 0.0, 0.0

    @property
    def open(self) -> int:
        """The number of open streams."""
        return len(self._open)

    def add(self, stream: ResponseStream) -> None:
        """Add a stream that begins."""
        self._open.add(stream)

    def remove(self, stream: ResponseStream, reason: str) -> None:
        """Remove a stream that has ended, and report it."""
        self._open.discard(stream)
        self._report(stream.exchange, stream.response, StreamEnd(reason, stream.bytes_taken))
        if not self._open:
            self._left.clear()
            self._draining.stop()

    def drop(self, exchange: Exchange, response: Response, reason: str) -> None:
        """Close the source of a response that never began, if it has one, and report it."""
        if response.source is not None:
            self._report(exchange, response, StreamEnd(reason, 0))
            close_source(response.source, reason, exchange.request_id)

    def _report(self, exchange: Exchange, response: Response, end: StreamEnd) -> None:
        if self._on_end is None:
            return
        try:
            self._on_end(exchange, response, end)
        except Exception:  # noqa: BLE001 -- whatever it is, the source and the connection must end as well
            _log.failure(
                "A fault in the service: the end of an answer was not counted. (X-Request-Id: {request_id})",
                request_id=exchange.request_id.decode("ascii"),
            )

    def drain(self, within_s: float) -> None:
        """
        Tell all sources that the service stops, one after the other.

        :param within_s: the time over which they are spread evenly, in seconds, so that their clients do not
            come to another instance at the same moment.
        """
        if self._open and not self._left:
            self._left = [*self._open]
            self._count, self._within_s, self._began_s = len(self._left), within_s, self._reactor.seconds()
            self._draining.run()

    def _drain_next(self) -> float | None:
        """End one stream if it is due; see `SlicedWork`."""
        if not self._left:
            return None
        elapsed_s, count, within_s = self._reactor.seconds() - self._began_s, self._count, self._within_s
        due = count if elapsed_s >= within_s else int(count * elapsed_s / within_s) + 1
        if len(self._left) <= count - due:
            return max(_STEP_S, within_s / count)
        self._left.pop().drain()
        return 0.0
