"""A reader of event streams that does what a browser's EventSource does (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from urllib.parse import urlsplit

from sampleapp.client._stream import EventDecoder

DEADLINE_S = 20
SITE = "https://shop.example"


class EventSource(threading.Thread):
    """
    Reads events in a thread of its own, and comes back when it has lost its connection.

    Any answer but 200 with the right type ends it for good, and so does one that another site may not read.
    """

    def __init__(self, url, *, origin=SITE):
        super().__init__(daemon=True)
        self.events = []
        """Of each event its name, its data, and the time at which it came."""
        self.answers = []
        """Of each answer its status and its headers."""
        self.failure = None
        """Why it has ended for good."""
        self._url = urlsplit(url)
        self._origin = origin
        self._last_id = ""
        self._socket = None
        self._retry_s = 0.2
        self._ended = threading.Event()
        self._news = threading.Condition()
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ended.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self.join(DEADLINE_S)

    def wait_for(self, condition):
        """Wait until a condition holds; it is called after each answer and event."""
        with self._news:
            held = self._news.wait_for(lambda: condition() or self.failure, DEADLINE_S)
            assert self.failure is None, self.failure
            assert held, (self.events, self.answers)

    def run(self):
        while not self._ended.is_set() and self.failure is None:
            # A connection that is lost is the reason to come back.
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._read()
            self._ended.wait(self._retry_s)

    def _read(self):
        headers = {"Accept": "text/event-stream", "Sec-Fetch-Mode": "cors", "Cache-Control": "no-cache"}
        if self._origin is not None:
            headers["Origin"] = self._origin
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        connection = http.client.HTTPConnection(self._url.hostname, self._url.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.connect()
            self._socket = connection.sock
            connection.request("GET", f"{self._url.path}?{self._url.query}", headers=headers)
            response = connection.getresponse()
            self._tell(lambda: self.answers.append((response.status, dict(response.headers))))
            allowed = response.headers.get("Access-Control-Allow-Origin")
            if response.status != 200 or response.headers.get_content_type() != "text/event-stream":
                self._tell(lambda: setattr(self, "failure", f"{response.status}: {response.read()[:500]}"))
            elif self._origin is not None and allowed not in {"*", self._origin}:
                self._tell(lambda: setattr(self, "failure", f"not for {self._origin}: {response.headers}"))
            else:
                self._take_all(response)

    def _take_all(self, response):
        decoder = EventDecoder()
        while data := response.read1(65536):
            for event in decoder.feed(data):
                if event.id is not None:
                    self._last_id = event.id
                if event.data:
                    found = (event.name or "message", event.data.decode(), time.monotonic())
                    self._tell(lambda found=found: self.events.append(found))
            if decoder.retry_ms is not None:
                self._retry_s = decoder.retry_ms / 1000

    def _tell(self, change):
        with self._news:
            change()
            self._news.notify_all()
