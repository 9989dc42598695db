"""All connections of a server together: their limits, their clock, and their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionAborted
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    ILoggingContext,
    IProtocolNegotiationFactory,
    IReactorTime,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper
from twisted.python.failure import Failure
from twisted.web.http import datetimeToString
from zope.interface import implementer

from sampleapp.web.answers import Answer
from sampleapp.web.cors import Cors
from sampleapp.web.problems import problem_answer
from sampleapp.web.request_errors import TooManyConnections
from sampleapp.web.server.connection import CLOSED, TRANSITIONS, HTTPConnection, is_plain_socket
from sampleapp.web.server.decoding import Decoding
from sampleapp.web.server.descriptors import Descriptors
from sampleapp.web.server.exchange import Exchange, FormRefusal, OnAnswer
from sampleapp.web.server.head import Head
from sampleapp.web.server.limits import Limits
from sampleapp.web.server.loopback import is_on_loopback
from sampleapp.web.server.request import Dispatch, Handler, Request
from sampleapp.web.server.request_ids import new_request_ids

__all__ = ["HTTPServer"]

_SWEEP_S: Final = 1.0
_SWEPT_AT_ONCE: Final = 500
_DRAIN_GRACE_S: Final = 0.5
"""How long a connection without a request is kept at the end, for the one that may be on its way."""
_LOG_INTERVAL_S: Final = 10.0
_REASONS: Final = (
    "client-certificate",
    "descriptors",
    "header-timeout",
    "idle-timeout",
    "max-body",
    "max-connections",
    "max-waiting",
    "min-body-rate",
    "send-timeout",
)
"""Why requests and connections are refused; so that those that never were count as 0."""
_TURNED_AWAY: Final = {
    "max-connections": (
        "Turned away {count} connection(s): {most} are open, which is the limit (--max-connections)."
    ),
    "descriptors": (
        "Closed {count} connection(s) at once: the process has as many files open as it may (ulimit -n)."
    ),
}


@implementer(ILoggingContext, IProtocolNegotiationFactory)
class HTTPServer(Factory):
    """Makes the connections, knows which are open, and can wait until none is."""

    noisy = False
    _log = Logger()

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        answer_to: Callable[[Failure, bytes], Answer],
        reactor: IReactorTime,
        limits: Limits | None = None,
        descriptors: Descriptors | None = None,
        form_refusal: FormRefusal | None = None,
        on_answer: OnAnswer | None = None,
        cors: Cors | None = None,
    ) -> None:
        """
        :param dispatch: decides on each request.
        :param answer_to: what to answer when that, or a handler, has failed; is given the id of the request,
            too.
        :param reactor: tells the time, in seconds since the epoch.
        :param limits: what a client may cost.
        :param descriptors: of the process; they are not looked at by default.
        :param form_refusal: gives refusals another form for clients that read it; none by default.
        :param on_answer: is told of each answer; nobody is by default.
        :param cors: the sites whose pages may use the server from a browser; none by default.
        """
        self.dispatch = dispatch if cors is None else _answering_preflights(dispatch, cors)
        self.cors = cors
        self.answer_to = answer_to
        self.form_refusal: FormRefusal = _leave_as_it_is if form_refusal is None else form_refusal
        self.on_answer: OnAnswer = _tell_nobody if on_answer is None else on_answer
        self.new_request_id = new_request_ids()
        self.limits = Limits() if limits is None else limits
        self.decoding = Decoding(reactor, refused=self.refused)
        self.is_draining = False
        self.waiting = 0
        self.refusals: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        """
        How many requests and connections were refused since the start, by the option that says when.

        ``descriptors`` are the process's own limit.
        """
        self.seconds = reactor.seconds
        self.next_sweep_s = 0.0
        self._reactor = reactor
        self._descriptors = descriptors
        self._connections: set[HTTPConnection] = set()
        self._turned_away: set[HTTPConnection] = set()
        self._sweeping: IDelayedCall | None = None
        self._closing_idle: IDelayedCall | None = None
        self._drained: list[Deferred[None]] = []
        self._date = b""
        self._dated_s = -1
        self._logged_s = -_LOG_INTERVAL_S
        self._turned_away_since_logged: Counter[str] = Counter()

    def logPrefix(self) -> str:
        """What Twisted calls it in the log, when it begins to listen."""
        return "sampleapp"

    def acceptableProtocols(self) -> list[bytes]:
        """What TLS may negotiate (ALPN)."""
        return [b"http/1.1"]

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections) + len(self._turned_away)

    def connections_by_state(self) -> dict[str, int]:
        """How many connections are in each state; see `sampleapp.web.server.connection`."""
        states = Counter([each.state for each in self._connections])
        states.update([each.state for each in self._turned_away])
        # What is gone is none any more.
        return {state.name: states[state] for state in TRANSITIONS if state is not CLOSED}

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        """Make what serves a connection, or tells the client that there are too many."""
        limits = self.limits
        count, most = len(self._connections), limits.max_connections
        if self._descriptors is not None and self._descriptors.are_short():
            self._turn_away("descriptors")
            return _Unserved()
        if count < most or (count < most + limits.kept_for_loopback and is_on_loopback(addr)):
            return HTTPConnection(self)
        self._turn_away("max-connections")
        if len(self._turned_away) >= limits.max_turned_away:
            return _Unserved()
        return HTTPConnection(self, turned_away=problem_answer(TooManyConnections(most)))

    def _turn_away(self, reason: str) -> None:
        self.refused(reason)
        self._turned_away_since_logged[reason] += 1
        self._log_turned_away()

    def _log_turned_away(self) -> None:
        now_s = self.seconds()
        if now_s - self._logged_s < _LOG_INTERVAL_S:
            return
        for reason, count in self._turned_away_since_logged.items():
            self._logged_s = now_s
            self._log.warn(_TURNED_AWAY[reason], count=count, most=self.limits.max_connections)
        self._turned_away_since_logged.clear()

    def opened(self, connection: HTTPConnection, *, is_turned_away: bool) -> None:
        """Take note of a connection."""
        (self._turned_away if is_turned_away else self._connections).add(connection)
        if self._sweeping is None:
            self._sweep_later()

    def closed(self, connection: HTTPConnection) -> None:
        """Take note that a connection is gone."""
        self._connections.discard(connection)
        self._turned_away.discard(connection)
        if not self.connections:
            for timer in (self._sweeping, self._closing_idle):
                if timer is not None:
                    timer.cancel()
            self._sweeping = self._closing_idle = None
            drained, self._drained = self._drained, []
            for waiting in drained:
                waiting.callback(None)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function after all that others have to do now."""
        self._reactor.callLater(0, function)

    def refused(self, reason: str) -> None:
        """Count a request, or a connection, that was refused; the reason is the name of an option."""
        self.refusals[reason] += 1

    def http_date(self) -> bytes:
        """The time for a ``Date`` header (RFC 9110, section 6.6.1), which changes once a second."""
        now_s = int(self.seconds())
        if now_s != self._dated_s:
            self._date = datetimeToString(now_s)
            self._dated_s = now_s
        return self._date

    def _sweep_later(self) -> None:
        self._sweeping = self._reactor.callLater(_SWEEP_S, self._sweep)
        self.next_sweep_s = self.seconds() + _SWEEP_S

    def _sweep(self) -> None:
        """Hold every client to the limits: one clock for all of them."""
        self._sweep_later()
        self._log_turned_away()
        self._sweep_some([*self._connections, *self._turned_away])

    def _sweep_some(self, left: list[HTTPConnection]) -> None:
        now_s = self.seconds()
        for connection in left[-_SWEPT_AT_ONCE:]:
            connection.sweep(now_s)
        del left[-_SWEPT_AT_ONCE:]
        if left:
            # Between them, the others are served.
            self._reactor.callLater(0, self._sweep_some, left)

    def drain(self) -> Deferred[None]:
        """
        Let the requests that are in flight end, and close each connection that has none.

        A connection without a request is kept for a moment, for the one that may be on its way.

        :return: fires with ``None`` when no connection is left. An answer that was handed to its connection
            is not on the wire yet, so requests that have ended are not enough.
        """
        self.is_draining = True
        if self._connections and self._closing_idle is None:
            self._closing_idle = self._reactor.callLater(_DRAIN_GRACE_S, self._close_idle)
        return self.wait_until_closed()

    def _close_idle(self) -> None:
        self._closing_idle = None
        for connection in tuple(self._connections):
            connection.close_if_idle()

    def wait_until_closed(self) -> Deferred[None]:
        """Fires with ``None`` when no connection is left; cancelling it only stops the waiting."""
        if not self.connections:
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._drained.remove)
        self._drained.append(waiting)
        return waiting

    def abort(self) -> None:
        """Cut every connection that is left."""
        for connection in (*self._connections, *self._turned_away):
            connection.abort()


class _Unserved(Protocol):
    """
    A connection that is closed at once.

    A factory may say so with ``None``, but not below TLS: Twisted's `WrappingFactory` does not know that.
    """

    def connectionMade(self) -> None:
        """Close it."""
        transport: Any = self.transport
        transport.abortConnection()
        while isinstance(transport, ProtocolWrapper):
            transport = transport.transport
        if is_plain_socket(transport):
            # Before the next one is accepted, which may need its descriptor.
            transport.connectionLost(Failure(ConnectionAborted()))


def _leave_as_it_is(answer: Answer, _head: Head) -> Answer:
    return answer


def _tell_nobody(_exchange: Exchange, _answer: Answer) -> None:
    pass


def _answering_preflights(dispatch: Dispatch, cors: Cors) -> Dispatch:
    """Let browsers ask before anybody asks them for credentials, which they do not send then."""

    def answer_preflight_or_dispatch(request: Request) -> Answer | Handler:
        if request.method == b"OPTIONS":
            fields = request.fields
            asked = fields.joined(b"Access-Control-Request-Method")
            preflight = cors.preflight(fields.all(b"Origin"), asked)
            if preflight is not None:
                return preflight
        return dispatch(request)

    return answer_preflight_or_dispatch
