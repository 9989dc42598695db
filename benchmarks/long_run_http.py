"""A client of HTTP/1.1 and of event streams for many connections on one thread, which costs little CPU."""

from __future__ import annotations

import heapq
import itertools
import re
import selectors
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Connection", "Event", "EventStream", "Loop", "Response", "request"]

ANSWER_DEADLINE_S = 90
SILENCE_DEADLINE_S = 45
"""A stream has an id each 15 s at least."""
IDLE_TIMEOUT_S = 70
"""The service closes connections without a request after 75 s."""
_LENGTH = re.compile(rb"\r\nContent-Length: *([0-9]+)\r\n", re.IGNORECASE)


class Loop:
    """Sockets that are watched and functions that are due, on one thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def call_at(self, at_s: float, function: Callable[[], None]) -> None:
        """:param at_s: of `time.perf_counter`."""
        heapq.heappush(self._timers, (at_s, next(self._numbers), function))

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        self.call_at(time.perf_counter() + delay_s, function)

    def call_each(self, interval_s: float, function: Callable[[], None]) -> None:
        def call() -> None:
            self.call_later(interval_s, call)
            function()

        self.call_later(interval_s, call)

    def watch(self, watched: socket.socket, on_data: Callable[[], None]) -> None:
        self._selector.register(watched, selectors.EVENT_READ, on_data)

    def forget(self, watched: socket.socket) -> None:
        self._selector.unregister(watched)
        watched.close()

    def run_while(self, condition: Callable[[], bool]) -> None:
        while condition():
            now_s = time.perf_counter()
            while self._timers and self._timers[0][0] <= now_s:
                heapq.heappop(self._timers)[2]()
            wait_s = self._timers[0][0] - time.perf_counter() if self._timers else 1.0
            for key, _ in self._selector.select(max(0.0, min(wait_s, 1.0))):
                # One that another function has forgotten since is closed.
                if key.fileobj.fileno() >= 0:
                    key.data()


def _received(connected: socket.socket) -> bytes:
    """What has come; nothing if the connection was closed or reset."""
    try:
        return connected.recv(1 << 18)
    except OSError:
        return b""


class Response(NamedTuple):
    """A whole answer; its status is 0 where the connection has failed instead."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str | None:
        return _header(self.head, name)


def _header(head: bytes, name: str) -> str | None:
    found = re.search(rb"\r\n%b: *([^\r]*)" % name.encode(), head, re.IGNORECASE)
    return None if found is None else found[1].decode()


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection:
    """A connection that is kept alive, with at most one request on it; opened again when it was closed."""

    def __init__(self, loop: Loop, port: int, on_fault: Callable[[str], None]) -> None:
        self._loop = loop
        self._port = port
        self._on_fault = on_fault
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._needed = 0
        self._request = b""
        self._on_answer: Callable[[Response], None] | None = None
        self._last_s = time.perf_counter()
        loop.call_each(5, self._check_deadline)

    def ask(self, asked: bytes, on_response: Callable[[Response], None]) -> None:
        assert self._on_answer is None
        self._request, self._on_answer, self._last_s = asked, on_response, time.perf_counter()
        try:
            if self._socket is None:
                self._open()
            self._socket.sendall(asked)
        except OSError as error:
            self._fail(f"failed while a request was sent ({error})")

    def _open(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.watch(self._socket, self._on_data)

    def _on_data(self) -> None:
        data = _received(self._socket)
        if not data:
            if self._on_answer is not None:
                self._fail("was closed without a whole answer")
                return
            if time.perf_counter() - self._last_s < IDLE_TIMEOUT_S:
                self._on_fault("A connection was closed between two requests.")
            self._close()
            return
        self._buffer += data
        if len(self._buffer) >= self._needed:
            self._take()

    def _take(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[: end + 2])
        status = int(head[9:12])
        length = _LENGTH.search(head)
        has_body = status not in (204, 304)
        if has_body and length is None:
            self._fail("got an answer without Content-Length")
            return
        self._needed = end + 4 + (int(length[1]) if has_body else 0)
        if len(self._buffer) < self._needed:
            return
        answer = Response(status, head, bytes(self._buffer[end + 4 :]))
        if len(self._buffer) > self._needed:
            self._on_fault(f"There are bytes after an answer: {answer}")
        if (answer.header("Connection") or "").lower() == "close":
            self._close()
        self._buffer.clear()
        self._needed = 0
        self._finish(answer)

    def _finish(self, answer: Response) -> None:
        on_response, self._on_answer, self._last_s = self._on_answer, None, time.perf_counter()
        on_response(answer)

    def _fail(self, reason: str) -> None:
        first_line = self._request.partition(b"\r\n")[0].decode()
        self._on_fault(f"A connection {reason}: {first_line}")
        self._close()
        self._finish(Response(0, b"", b""))

    def _close(self) -> None:
        if self._socket is not None:
            self._loop.forget(self._socket)
        self._socket = None
        self._buffer.clear()
        self._needed = 0

    def _check_deadline(self) -> None:
        if self._on_answer is not None and time.perf_counter() - self._last_s > ANSWER_DEADLINE_S:
            self._fail(f"had no answer within {ANSWER_DEADLINE_S} s")


class Event(NamedTuple):
    """An event of a stream; one that has only an id has no data."""

    type: str
    data: bytes


class EventStream:
    """A stream of events that goes on where it was when it ends, by `Last-Event-ID`."""

    def __init__(
        self,
        loop: Loop,
        port: int,
        *,
        path: str,
        headers: dict[str, str],
        on_event: Callable[[Event], None],
        on_rejected: Callable[[Response], None],
        on_fault: Callable[[str], None],
    ) -> None:
        """:param on_refused: gets each answer that is not a stream; the client comes back after it."""
        self.opened = 0
        self._loop = loop
        self._port = port
        self._path = path
        self._headers = headers
        self._on_event = on_event
        self._on_rejected = on_rejected
        self._on_fault = on_fault
        self._last_event_id: str | None = None
        self._socket: socket.socket | None = None
        loop.call_each(5, self._check_silence)
        self._open()

    def hang_up(self) -> None:
        """Leave in the middle, and come back."""
        self._come_back()

    def _open(self) -> None:
        headers = {**self._headers, "Accept": "text/event-stream"}
        if self._last_event_id is not None:
            headers["Last-Event-ID"] = self._last_event_id
        self.opened += 1
        self._head: bytes | None = None
        self._chunked = bytearray()
        self._events = b""
        self._last_s = time.perf_counter()
        try:
            self._socket = socket.create_connection(("127.0.0.1", self._port))
        except OSError as error:
            self._on_fault(f"The stream {self._path} could not be opened: {error}")
            self._loop.call_later(1, self._open)
            return
        self._socket.settimeout(0)
        self._socket.sendall(request("GET", self._path, headers))
        self._loop.watch(self._socket, self._on_data)

    def _on_data(self) -> None:
        data = _received(self._socket)
        if not data:
            self._on_fault(f"The stream {self._path} was cut.")
            self._come_back()
            return
        self._last_s = time.perf_counter()
        self._chunked += data
        if self._head is None and not self._take_head():
            return
        self._take_chunks()

    def _take_head(self) -> bool:
        head, separator, rest = bytes(self._chunked).partition(b"\r\n\r\n")
        if not separator:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            self._on_rejected(Response(int(head[9:12]), head + b"\r\n", rest))
            self._come_back()
            return False
        self._head = head
        self._chunked[:] = rest
        return True

    def _take_chunks(self) -> None:
        start = 0
        parts = [self._events]
        has_ended = False
        while (end := self._chunked.find(b"\r\n", start)) >= 0:
            size = int(self._chunked[start:end], 16)
            if len(self._chunked) < end + 4 + size:
                break
            parts.append(bytes(self._chunked[end + 2 : end + 2 + size]))
            start = end + 4 + size
            if size == 0:
                has_ended = True
                break
        del self._chunked[:start]
        *events, self._events = b"".join(parts).split(b"\n\n")
        for event in events:
            self._take_event(event)
        if has_ended:
            if self._events:
                self._on_fault(f"The stream {self._path} ended within an event.")
            self._come_back()

    def _take_event(self, text: bytes) -> None:
        event_type, data = "message", b""
        for line in text.split(b"\n"):
            if line.startswith(b"data: "):
                data = line[6:]
            elif line.startswith(b"id: "):
                self._last_event_id = line[4:].decode()
            elif line.startswith(b"event: "):
                event_type = line[7:].decode()
        if data:
            self._on_event(Event(event_type, data))

    def _come_back(self) -> None:
        if self._socket is not None:
            self._loop.forget(self._socket)
            self._socket = None
            self._loop.call_later(1, self._open)

    def _check_silence(self) -> None:
        if self._socket is not None and time.perf_counter() - self._last_s > SILENCE_DEADLINE_S:
            self._on_fault(f"The stream {self._path} was silent for {SILENCE_DEADLINE_S} s.")
            self._come_back()
