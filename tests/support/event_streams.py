"""A reader of event streams that is not ours: the algorithm of the specification, line by line."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["EventReader", "ReadEvent", "RecordingSink"]

_LINE_END = re.compile(r"\r\n|\r|\n")


class ReadEvent(NamedTuple):
    """An event as a browser dispatches it."""

    event: str
    data: str
    event_id: str


class EventReader:
    """What a browser makes of the bytes of a stream (HTML, section 9.2.6)."""

    def __init__(self, last_event_id=""):
        self.events: list[ReadEvent] = []
        self.last_event_id = last_event_id
        """What it would send as ``Last-Event-ID``."""
        self.ids: list[str] = []
        """Each value that `last_event_id` was set to, with events and without."""
        self.retry_ms = None
        self._bytes = b""
        self._id = last_event_id
        self._begin()

    def come_back(self):
        """Begin with another connection: what was read of an event in part is gone."""
        self._bytes = b""
        self._id = self.last_event_id
        self._begin()

    @classmethod
    def of(cls, received: bytes) -> EventReader:
        """A reader that has read this."""
        reader = cls()
        reader.feed(received)
        return reader

    def _begin(self):
        self._event, self._data = "", []

    def feed(self, received: bytes) -> list[ReadEvent]:
        """Read some more; returns the events that this has completed."""
        before = len(self.events)
        self._bytes += received
        # A CR at the end may be the first half of CR LF; here it never is one.
        end = self._bytes.rfind(b"\n") + 1
        lines, self._bytes = self._bytes[:end].decode(), self._bytes[end:]
        for line in _LINE_END.split(lines)[:-1]:
            self._read_line(line)
        return self.events[before:]

    def _read_line(self, line):
        if line == "":
            if self._id != self.last_event_id:
                self.ids.append(self._id)
            self.last_event_id = self._id
            if self._data:
                self.events.append(ReadEvent(self._event or "message", "\n".join(self._data), self._id))
            self._begin()
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isdigit():
            self.retry_ms = int(value)


class RecordingSink:
    """The client's end of a stream, which a test may let fall behind; see `sampleapp.web.responses.Sink`."""

    def __init__(self, source):
        self.source = source
        self.sent = b""
        self.is_full = False
        self.ended_by = None
        """The reason for the end; ``None`` before it."""
        self.is_cut = False

    @property
    def unsent(self):
        return 300_000 if self.is_full else 0

    def write(self, event):
        if self.ended_by is None:
            self.sent += event.data
        return not self.is_full

    def finish(self, reason):
        if self.ended_by is None:
            self.ended_by = reason
            self.source.closed(reason)

    def abort(self, reason):
        self.is_cut = True
        self.finish(reason)

    def resume(self):
        """Let the client read everything."""
        self.is_full = False
        self.source.resumed()
