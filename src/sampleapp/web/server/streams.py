"""The open streams of a server, whose ends are spread over time at shutdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.concurrency.sliced_work import SlicedWork
from sampleapp.web.responses import Response
from sampleapp.web.server.exchange import Exchange
from sampleapp.web.server.stream import ResponseStream, StreamEnd, close_source

__all__ = ["OnStreamEnd", "Streams"]

_STEP_S: Final = 0.02
_MOST_AT_ONCE: Final = 40
"""The most streams that are ended in one turn of the reactor, in which each takes about 30 µs."""

_log = Logger(namespace=__name__)

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
