"""Answers that are sent part by part in a site of twisted.web."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.web.responses import Event, Source
from sampleapp.web.server.stream import MAX_UNSENT, close_source

__all__ = ["SiteStream"]


@implementer(IPushProducer)
class SiteStream:
    """
    A `sampleapp.web.responses.Sink` in a site of twisted.web.

    The site frames the events. It has no `--send-timeout`, and does not tell the source when it stops.
    """

    _log = Logger()

    def __init__(self, request: Any, source: Source, rendered: Deferred[bytes]) -> None:
        """
        :param request: of twisted.web; uses more than its interface has.
        :param rendered: fires when the response has ended.
        """
        self._request = request
        self._source: Source | None = source
        self._rendered = rendered
        self._is_paused = False
        self._is_source_waiting = False
        (self._request_id,) = request.responseHeaders.getRawHeaders(b"x-request-id", (b"-",))
        self._queue: deque[Event] = deque()
        self.unsent = 0

    def begin(self) -> None:
        """Let the source begin."""
        self._request.registerProducer(self, streaming=True)
        self._request.notifyFinish().addErrback(lambda _: self._end("client"))
        if self._source is not None:
            # The head: twisted.web writes it with the first bytes, which may come much later.
            self._request.write(b"")
            self._call(partial(self._source.begin, self))

    def write(self, event: Event) -> bool:
        """Send an event; see `Sink.write`."""
        if self._source is None:
            return False
        if not self._is_paused:
            self._request.write(event.data)
            return True
        self._queue.append(event)
        self.unsent += len(event)
        self._is_source_waiting = self.unsent > MAX_UNSENT
        return not self._is_source_waiting

    def finish(self, reason: str) -> None:
        """End the response properly; see `Sink.finish`."""
        if self._source is not None:
            self._end(reason)
            if not self._queue:
                self._finish_request()

    def abort(self, reason: str) -> None:
        """Cut the connection; see `Sink.abort`."""
        if self._source is not None:
            self._end(reason)
            self._queue.clear()
            self._request.loseConnection()

    def pauseProducing(self) -> None:
        """Queue further events: the client has not read enough."""
        self._is_paused = True

    def resumeProducing(self) -> None:
        """Write the events of the queue, and let the source go on when it is empty."""
        self._is_paused = False
        while self._queue:
            if self._is_paused:
                return
            event = self._queue.popleft()
            self.unsent -= len(event)
            self._request.write(event.data)
        if self._source is None:
            self._finish_request()
        elif self._is_source_waiting and not self._is_paused:
            self._is_source_waiting = False
            self._call(self._source.resumed)

    def stopProducing(self) -> None:
        """Do nothing: the request's own notification follows."""

    def _end(self, reason: str) -> None:
        source, self._source = self._source, None
        if source is not None:
            close_source(source, reason, self._request_id)

    def _finish_request(self) -> None:
        if not self._rendered.called:
            self._request.unregisterProducer()
            self._rendered.callback(b"")

    def _call(self, method: Callable[[], None]) -> None:
        try:
            method()
        except Exception:  # noqa: BLE001 -- whatever it is, the connection must not stay open
            self._log.failure("A fault in the service: an answer was cut off.")
            self.abort("fault")
