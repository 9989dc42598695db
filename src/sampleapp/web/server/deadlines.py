"""The deadlines of a connection: how long a client may take, for each state of its connection."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import ClassVar, Final, NamedTuple

from sampleapp.web.server.limits import Limits
from sampleapp.web.server.reader import RequestReader
from sampleapp.web.server.states import (
    BODY,
    CLOSING,
    HANDSHAKE,
    HEADER,
    IDLE,
    LINGERING,
    RESPONDING,
    STREAMING,
    ConnectionState,
)
from sampleapp.web.server.stream import ResponseStream
from sampleapp.web.server.writer import ResponseWriter

# As nginx has them (lingering_timeout and lingering_time).
_LINGER_IDLE_S: Final = 5.0
_LINGER_S: Final = 30.0
CLOSE_IDLE_S: Final = 1.0
"""The time that a connection with nothing to read may take to end; over TLS the client answers the end."""

_RATED_IDLE_TIMEOUTS: Final = 2
"""The rate of a body is checked again for each period of so many ``body_idle_timeout_s``."""

_DRAIN_IDLE_S: Final = 2.0
"""The time for which the client of a stream may read nothing of it at shutdown: it can come back."""


class Action(Enum):
    """The end of a connection that has missed a deadline."""

    REJECT = "reject"
    """Answer that the request comes too slowly."""
    CLOSE = "close"
    """Close the connection, on which there is no request."""
    END = "end"
    """End a connection that is closing, since the client has received everything."""
    ABORT = "abort"
    """Cut the connection."""


class Missed(NamedTuple):
    """A deadline that was missed."""

    action: Action
    limit: str = ""
    """The option that is the limit; empty if the client is not to blame."""
    detail: str = ""
    """A sentence for the client that is rejected."""


class Deadlines:
    """The deadlines of one connection, as of the state that it is in."""

    __slots__ = (
        "_acknowledged_since_s",
        "_is_draining",
        "_last_progress",
        "_limits",
        "_moved_s",
        "_rated_s",
        "_read_before",
        "_reader",
        "_received_before",
        "_received_when_rated",
        "_writer",
        "_written_before",
        "close_timeout_s",
        "dropped_s",
        "since_s",
        "stream",
    )

    def __init__(self, limits: Limits, reader: RequestReader, writer: ResponseWriter) -> None:
        self._limits = limits
        self._reader = reader
        self._writer = writer
        self._acknowledged_since_s = -1.0
        self._last_progress: object = None
        self._received_before = self._received_when_rated = 0
        self._moved_s = self._rated_s = 0.0
        self._is_draining = False
        self._read_before = self._written_before = 0
        self.stream: ResponseStream | None = None
        """The stream that is being sent, or whose end is."""
        self.since_s = 0.0
        """The start of the state, or the latest progress in it: seconds of the server's clock."""
        self.dropped_s = 0.0
        """The time when bytes were last dropped after a rejection."""
        self.close_timeout_s = limits.send_timeout_s
        """The longest time without progress of a connection that is closing, in seconds."""

    def start_reading(self, now_s: float) -> None:
        """Begin to measure how long the header, or the body, takes to come."""
        self.since_s = self._moved_s = self._rated_s = now_s
        self._received_before = self._received_when_rated = 0

    def start_sending(self, now_s: float) -> None:
        """Begin to measure how long the client takes to read."""
        self.since_s = self.dropped_s = now_s
        self._last_progress = self._writer.progress()

    def start_streaming(self, stream: ResponseStream, now_s: float) -> None:
        """Begin to measure how long the client takes to read of a stream."""
        self.stream = stream
        self.since_s = now_s
        self._read_before = stream.progress
        self._written_before = -1

    def send_timeout_s(self, *, is_draining: bool) -> float:
        """Return how long the client may read nothing, in seconds; not as long of a stream at shutdown."""
        timeout_s = self._limits.send_timeout_s
        return min(timeout_s, _DRAIN_IDLE_S) if is_draining and self.stream is not None else timeout_s

    def check(self, state: ConnectionState, now_s: float, *, is_draining: bool) -> Missed | None:
        """
        Check the deadlines of a state.

        :param now_s: the time, in seconds.
        :param is_draining: the server stops, so that connections linger for a shorter time.
        """
        check = self._checks.get(state)
        if check is None:
            return None
        self._is_draining = is_draining
        return check(self, now_s, now_s - self.since_s)

    def _check_idle(self, now_s: float, elapsed_s: float) -> Missed | None:
        if self.since_s != self._acknowledged_since_s:
            if self._writer.is_unread():
                # The end of the last response is still in the buffers of the systems.
                return self._check_answering(now_s, elapsed_s)
            self._acknowledged_since_s = self.since_s
        return Missed(Action.CLOSE, "idle-timeout") if elapsed_s >= self._limits.idle_timeout_s else None

    def _check_handshake(self, _now_s: float, elapsed_s: float) -> Missed | None:
        return Missed(Action.ABORT, "header-timeout") if elapsed_s >= self._limits.header_timeout_s else None

    def _check_header(self, _now_s: float, elapsed_s: float) -> Missed | None:
        timeout_s = self._limits.header_timeout_s
        if elapsed_s < timeout_s:
            return None
        return _too_slow("header-timeout", f"The header did not arrive within {timeout_s:g} seconds.")

    def _check_body(self, now_s: float, elapsed_s: float) -> Missed | None:
        limits, received = self._limits, self._reader.received
        is_slow = elapsed_s >= limits.body_grace_s and received < limits.body_rate * elapsed_s
        # Of a body that was fast, a byte now and then would keep all of it in memory for hours.
        period_s = now_s - self._rated_s
        if period_s >= _RATED_IDLE_TIMEOUTS * limits.body_idle_timeout_s:
            is_slow |= received - self._received_when_rated < limits.body_rate * period_s
            self._rated_s, self._received_when_rated = now_s, received
        if is_slow:
            return _too_slow(
                "min-body-rate",
                f"The body arrives more slowly than {limits.body_rate} bytes a second, which is the minimum.",
            )
        if received != self._received_before:
            self._received_before, self._moved_s = received, now_s
        elif now_s - self._moved_s >= limits.body_idle_timeout_s:
            return _too_slow(
                "body-idle-timeout",
                f"No byte of the body arrived for {limits.body_idle_timeout_s:g} seconds.",
            )
        return None

    def _check_answering(self, now_s: float, _elapsed_s: float) -> Missed | None:
        if self._makes_no_progress(now_s, self.send_timeout_s(is_draining=self._is_draining)):
            return Missed(Action.ABORT, "send-timeout")
        return None

    def _check_streaming(self, now_s: float, _elapsed_s: float) -> Missed | None:
        stream = self.stream
        if stream is None:
            return None
        if not stream.unsent:
            # Bytes that the client has read need no second check.
            written = stream.written
            if written == self._written_before or not self._writer.is_unread():
                self._written_before = written
                self.since_s = now_s
                return None
        read, before = stream.progress, self._read_before
        self._read_before = read
        if read > before:
            self.since_s = now_s
        elif now_s - self.since_s >= self.send_timeout_s(is_draining=self._is_draining):
            return Missed(Action.ABORT, "send-timeout")
        return None

    def _check_closing(self, now_s: float, elapsed_s: float) -> Missed | None:
        is_unread = self._writer.is_unread()
        if self._makes_no_progress(now_s, self.close_timeout_s):
            return Missed(Action.ABORT, "send-timeout" if is_unread else "")
        if self._writer.is_plain and not is_unread and elapsed_s >= self._linger_idle_s:
            return Missed(Action.END)
        return None

    def _check_lingering(self, now_s: float, elapsed_s: float) -> Missed | None:
        if self._writer.is_unread():
            # It may be the response to the request before the one that was rejected.
            return self._check_answering(now_s, elapsed_s)
        if now_s - self.dropped_s >= self._linger_idle_s:
            # Not with a reset: systems drop what the client has not read yet.
            return Missed(Action.END if self._writer.is_plain else Action.ABORT)
        return Missed(Action.ABORT) if elapsed_s >= _LINGER_S else None

    _checks: ClassVar[dict[ConnectionState, Callable[[Deadlines, float, float], Missed | None]]] = {
        HANDSHAKE: _check_handshake,
        IDLE: _check_idle,
        HEADER: _check_header,
        BODY: _check_body,
        RESPONDING: _check_answering,
        STREAMING: _check_streaming,
        CLOSING: _check_closing,
        LINGERING: _check_lingering,
    }
    """For each state that a client can prolong."""

    @property
    def _linger_idle_s(self) -> float:
        return CLOSE_IDLE_S if self._is_draining else _LINGER_IDLE_S

    def _makes_no_progress(self, now_s: float, timeout_s: float) -> bool:
        progress = self._writer.progress()
        if progress != self._last_progress:
            self._last_progress = progress
            self.since_s = now_s
            return False
        return now_s - self.since_s >= timeout_s


def _too_slow(limit: str, detail: str) -> Missed:
    return Missed(Action.REJECT, limit, detail)
