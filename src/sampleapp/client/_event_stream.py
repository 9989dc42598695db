"""Decoding of event streams: ``text/event-stream`` (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import re

from msgspec import Struct

__all__ = ["Event", "EventDecoder", "EventTooLong"]

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
