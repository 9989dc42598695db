"""The HTTP server: a factory of connections, their limits, the timer for their deadlines, and shutdown."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.address import UNIXAddress
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

from sampleapp.concurrency.slices import Rounds
from sampleapp.errors import SampleAppError
from sampleapp.web.errors import TooManyConnections
from sampleapp.web.responses import Response
from sampleapp.web.server.body import BodyMemory
from sampleapp.web.server.connection import HTTPConnection
from sampleapp.web.server.head import Head
from sampleapp.web.server.hosts import HostRule
from sampleapp.web.server.limits import Descriptors, Limits
from sampleapp.web.server.reader import Decoding
from sampleapp.web.server.request import (
    Dispatch,
    Exchange,
    ExtendResponse,
    FormRejection,
    OnResponse,
    is_on_loopback,
    new_request_ids,
)
from sampleapp.web.server.states import CLOSED, TRANSITIONS
from sampleapp.web.server.stream import OnStreamEnd, Streams
from sampleapp.web.server.writer import is_plain_socket

_SWEEP_S: Final = 1.0
_DRAIN_GRACE_S: Final = 0.5
"""The time for which a connection without a request stays open at shutdown: a request may be in flight."""
_LOG_INTERVAL_S: Final = 10.0
_REASONS: Final = (
    "body-idle-timeout",
    "client-certificate",
    "descriptors",
    "header-timeout",
    "idle-timeout",
    "max-body",
    "max-body-memory",
    "max-connections",
    "max-waiting",
    "min-body-rate",
    "send-timeout",
    "tls-handshakes",
)
"""The reasons for rejecting requests and connections, listed so that each of them is counted from 0."""
_REJECTIONS: Final = {
    "max-connections": (
        "Rejected {count} connection(s): {most} are open, which is the limit (--max-connections)."
    ),
    "descriptors": (
        "Closed {count} connection(s) without an answer: the process has reached its limit of open files "
        "(ulimit -n)."
    ),
}


@implementer(ILoggingContext, IProtocolNegotiationFactory)
class HTTPServer(Factory):
    """Makes connections, keeps the set of open ones, checks their deadlines, and closes them at shutdown."""

    noisy = False
    _log = Logger()

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        reject: Callable[[SampleAppError], Response],
        response_to: Callable[[Failure, bytes], Response],
        reactor: IReactorTime,
        limits: Limits | None = None,
        descriptors: Descriptors | None = None,
        form_rejection: FormRejection | None = None,
        on_response: OnResponse | None = None,
        on_stream_end: OnStreamEnd | None = None,
        extend_response: ExtendResponse | None = None,
        has_hsts: bool = True,
        host_rule: HostRule | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        :param dispatch: chooses a handler for each request, by its head.
        :param reject: makes the response to a request that is wrong, or over a limit.
        :param response_to: makes the response when the dispatch or a handler has failed, from the failure and
            the id of the request.
        :param reactor: measures time, in seconds.
        :param limits: for each client, and for all clients together.
        :param descriptors: of the process; not checked by default.
        :param form_rejection: converts rejections into another form, for clients that read it; none by
            default.
        :param on_response: called for each response.
        :param on_stream_end: called for each response that is sent part by part, at its end.
        :param extend_response: adds header fields to each response, for browsers for example.
        :param has_hsts: true to tell browsers on TLS connections to use only TLS (RFC 6797).
        :param host_rule: the hosts that requests over TCP may name; any host by default.
        :param now: the time of day for ``Date``, in seconds since the epoch.
        """
        self.dispatch = dispatch
        self.extend_response = extend_response
        self.has_hsts = has_hsts
        self._host_rule = host_rule
        self.response_to = response_to
        self.reject = reject
        self.form_rejection: FormRejection = _unchanged if form_rejection is None else form_rejection
        self.on_response: OnResponse = _ignore_response if on_response is None else on_response
        self.new_request_id = new_request_ids()
        self.limits = Limits() if limits is None else limits
        self.decoding = Decoding(reactor, count_rejection=self.count_rejection)
        self.body_memory = BodyMemory(self.limits.max_body_memory, count_rejection=self.count_rejection)
        self.streams = Streams(reactor, on_stream_end)
        self.is_draining = False
        self.reading: HTTPConnection | None = None
        self.waiting = 0
        self.rejections: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        """
        The numbers of rejected requests and connections since the start, by the option that is the limit.

        ``descriptors`` stands for the process's own limit.
        """
        self.seconds = reactor.seconds
        self._now = now
        self.next_sweep_s = 0.0
        self._reactor = reactor
        self._descriptors = descriptors
        rounds = partial(
            Rounds[HTTPConnection],
            reactor,
            self._sweep,
            fault="A fault in checking the deadlines of a connection; the connection was closed",
            on_fault=HTTPConnection.abort,
            every_s=_SWEEP_S,
            on_begin=self._sweep_begins,
        )
        self._connections = rounds()
        self._rejected = rounds()
        # The one that has taken longest is first.
        self._handshakes: OrderedDict[HTTPConnection, None] = OrderedDict()
        self._closing_idle: IDelayedCall | None = None
        self._drained: list[Deferred[None]] = []
        self._for_next_turns: deque[Callable[[], None]] = deque()
        self._date = b""
        self._dated_s = -1
        self._logged_s: dict[str, float] = {}
        self._rejections_since_logged: Counter[str] = Counter()

    def logPrefix(self) -> str:
        """Return the name in Twisted's log lines about listening."""
        return "sampleapp"

    def acceptableProtocols(self) -> list[bytes]:
        """List the protocols that TLS may negotiate (ALPN)."""
        return [b"http/1.1"]

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections) + len(self._rejected)

    def connections_by_state(self) -> dict[str, int]:
        """Count the connections in each state; see `sampleapp.web.server.states`."""
        states = Counter([each.state for each in self._connections])
        states.update([each.state for each in self._rejected])
        # A closed connection is not in the sets.
        return {state.name: states[state] for state in TRANSITIONS if state is not CLOSED}

    @property
    def requests_in_flight(self) -> int:
        """The number of requests whose header has come, and whose answer is not written yet."""
        states = self.connections_by_state()
        return sum(states[state] for state in ("body", "waiting", "answering"))

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        """Make a protocol that serves a connection, or refuses it if there are too many."""
        limits = self.limits
        count, most = len(self._connections), limits.max_connections
        if self._descriptors is not None and self._descriptors.are_short():
            self._reject("descriptors")
            return _Unserved()
        if count < most or (count < most + limits.kept_for_loopback and is_on_loopback(addr)):
            # A site's name cannot point to a Unix socket.
            is_unix = isinstance(addr, UNIXAddress)
            return HTTPConnection(self, host_rule=None if is_unix else self._host_rule)
        self._reject("max-connections")
        if len(self._rejected) >= limits.max_rejected:
            return _Unserved()
        return HTTPConnection(self, rejection=self.reject(TooManyConnections(most)))

    def _reject(self, reason: str) -> None:
        self.count_rejection(reason)
        self._rejections_since_logged[reason] += 1
        self._log_rejections()

    def _log_rejections(self) -> None:
        now_s = self.seconds()
        for reason, count in list(self._rejections_since_logged.items()):
            if now_s - self._logged_s.get(reason, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
                self._logged_s[reason] = now_s
                self._log.warn(_REJECTIONS[reason], count=count, most=self.limits.max_connections)
                del self._rejections_since_logged[reason]

    def add_connection(self, connection: HTTPConnection, *, is_rejected: bool) -> None:
        """Add an open connection."""
        (self._rejected if is_rejected else self._connections).add(connection)
        if self.connections == 1:
            self.next_sweep_s = self.seconds() + _SWEEP_S

    def begin_handshake(self, connection: HTTPConnection) -> None:
        """Add a TLS handshake; if there are too many, cut the one that has taken longest."""
        handshakes = self._handshakes
        if len(handshakes) >= self.limits.max_handshakes:
            oldest, _ = handshakes.popitem(last=False)
            self.count_rejection("tls-handshakes")
            oldest.abort()
        handshakes[connection] = None

    def end_handshake(self, connection: HTTPConnection) -> None:
        """Remove a TLS handshake, if it is still there."""
        self._handshakes.pop(connection, None)

    def remove_connection(self, connection: HTTPConnection) -> None:
        """Remove a connection that is closed."""
        self.end_handshake(connection)
        self._connections.discard(connection)
        self._rejected.discard(connection)
        if not self.connections:
            if self._closing_idle is not None:
                self._closing_idle.cancel()
                self._closing_idle = None
            drained, self._drained = self._drained, []
            for waiting in drained:
                waiting.callback(None)

    def call_next_turn(self, function: Callable[[], None]) -> None:
        """Call a function in the next turn of the reactor that has no other one to call."""
        self._for_next_turns.append(function)
        if len(self._for_next_turns) == 1:
            # A call that is scheduled while sockets are read comes in the same turn.
            self._reactor.callLater(0, self._reactor.callLater, 0, self._call_one)

    def call_later(self, delay_s: float, function: Callable[[], None]) -> IDelayedCall:
        """Call a function after a time, in seconds."""
        return self._reactor.callLater(delay_s, function)

    def _call_one(self) -> None:
        function = self._for_next_turns.popleft()
        if self._for_next_turns:
            self._reactor.callLater(0, self._call_one)
        function()

    def count_rejection(self, reason: str) -> None:
        """Count a request, or a connection, that was refused; the reason is the name of an option."""
        self.rejections[reason] += 1

    def http_date(self) -> bytes:
        """Return the time for a ``Date`` header (RFC 9110, section 6.6.1), which changes once a second."""
        now_s = int(self._now())
        if now_s != self._dated_s:
            self._date = datetimeToString(now_s)
            self._dated_s = now_s
        return self._date

    def _sweep(self, connection: HTTPConnection) -> None:
        connection.sweep(self.seconds())

    def _sweep_begins(self) -> None:
        self.next_sweep_s = self.seconds() + _SWEEP_S
        self._log_rejections()

    def drain(self, *, streams_within_s: float = 0.0) -> Deferred[None]:
        """
        Finish the requests that are in flight, and close each connection that has none.

        A connection without a request stays open for a moment, since one may be in flight.

        :param streams_within_s: the time over which the ends of the streams are spread, in seconds.
        :return: fires with ``None`` when no connection is left. The end of all requests is not enough: a
            response that was handed to its connection may not be on the wire yet.
        """
        self.is_draining = True
        if self._connections and self._closing_idle is None:
            self._closing_idle = self._reactor.callLater(_DRAIN_GRACE_S, self._close_idle)
        self.streams.drain(streams_within_s)
        return self.wait_until_closed()

    def _close_idle(self) -> None:
        self._closing_idle = None
        for connection in tuple(self._connections):
            connection.close_if_idle()

    def wait_until_closed(self) -> Deferred[None]:
        """Return a Deferred that fires with ``None`` when no connection is left, and may be cancelled."""
        if not self.connections:
            return succeed(None)
        waiting: Deferred[None] = Deferred(self._drained.remove)
        self._drained.append(waiting)
        return waiting

    def abort(self) -> None:
        """Cut all remaining connections."""
        for connection in (*self._connections, *self._rejected):
            connection.abort("drain-timeout")


class _Unserved(Protocol):
    """
    A connection that is closed at once.

    A factory may return ``None`` instead, but not below TLS: Twisted's `WrappingFactory` does not support it.
    """

    def connectionMade(self) -> None:
        """Close it."""
        transport: Any = self.transport
        transport.abortConnection()
        while isinstance(transport, ProtocolWrapper):
            transport = transport.transport
        if is_plain_socket(transport):
            # Its descriptor is released before the next connection is accepted, which may need it.
            transport.connectionLost(Failure(ConnectionAborted()))


def _unchanged(response: Response, _head: Head) -> Response:
    return response


def _ignore_response(_exchange: Exchange, _response: Response) -> None:
    pass
