"""
The server's side of one HTTP/1.1 connection: the states between its reader, its handlers and its writer.

It does not know the routes: it asks one callable how to answer a request, see `sampleapp.web.server.request`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IDelayedCall,
    IHalfCloseableProtocol,
    IHandshakeListener,
    ISSLTransport,
)
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.concurrency.failures import forget_frames_of
from sampleapp.web.errors import RequestError, RequestTooSlow
from sampleapp.web.responses import Response, Source
from sampleapp.web.server.body import BodyMemory, MemoryReservation
from sampleapp.web.server.deadlines import CLOSE_IDLE_S, Action, Deadlines
from sampleapp.web.server.head import Head, request_id_in
from sampleapp.web.server.hosts import HostRule
from sampleapp.web.server.reader import Rejection, RequestReader, RequestServer
from sampleapp.web.server.request import (
    SAFE,
    Exchange,
    ExtendResponse,
    FormRejection,
    Handler,
    OnResponse,
    Peer,
    Request,
)
from sampleapp.web.server.states import (
    BODY,
    CLOSED,
    CLOSING,
    HANDSHAKE,
    IDLE,
    LINGERING,
    READING,
    RESPONDING,
    STREAMING,
    WAITING,
    ConnectionState,
    IllegalTransition,
)
from sampleapp.web.server.stream import ResponseStream, Streams, close_source
from sampleapp.web.server.writer import LARGEST_PART, ClientEnd, ResponseWriter, client_end

_MAX_REQUESTS_PER_TURN: Final = 50
"""The most pipelined requests of one connection that are answered in one turn of the reactor."""
_LONGEST_TURN_S: Final = 0.005
"""The time after which further pipelined requests of one connection are answered in the next turn."""
_ABANDONED_S: Final = 60.0
"""
The longest time that a client which has closed its side of the connection is worked for.

It may still read the response, but no handler takes as long then: a wait for records ends at once.
"""

_AWAITED_END_S: Final = 0.05
"""The time after a head in which the bytes of a body that it does not declare are expected."""

_NO_ID: Final = b"-"

_log = Logger(namespace=__name__)
_P = ParamSpec("_P")


def _cut_after_fault(
    method: Callable[Concatenate[HTTPConnection, _P], None],
) -> Callable[Concatenate[HTTPConnection, _P], None]:
    """Make a method of a connection cut it if the method fails: then no client waits, and nothing is kept."""

    @wraps(method)
    def contained(connection: HTTPConnection, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(connection, *args, **kwargs)
        except Exception:  # noqa: BLE001 -- whatever it is, the connection must not stay
            connection.fail(Failure())

    return contained


class Server(RequestServer, Protocol):
    """The server of a connection."""

    has_hsts: bool
    """True to tell browsers on TLS connections to use only TLS (RFC 6797)."""
    form_rejection: FormRejection
    extend_response: ExtendResponse | None
    on_response: OnResponse
    body_memory: BodyMemory
    """The memory for all bodies together."""
    streams: Streams
    """The responses that are sent part by part."""
    is_draining: bool
    """True during shutdown: connections end after the response that is due."""
    reading: HTTPConnection | None
    """The connection whose requests are read and answered now; set by the connections."""
    next_sweep_s: float
    """The time of the next check of deadlines; used as the time where a second does not matter."""

    def http_date(self) -> bytes:
        """Return the time for a ``Date`` header."""

    def call_next_turn(self, function: Callable[[], None]) -> None:
        """Call a function in the next turn of the reactor."""

    def call_later(self, delay_s: float, function: Callable[[], None]) -> IDelayedCall:
        """Call a function after a time, in seconds."""

    def add_connection(self, connection: HTTPConnection, *, is_rejected: bool) -> None:
        """Add a connection, or one that is only refused because there are too many."""

    def begin_handshake(self, connection: HTTPConnection) -> None:
        """Add a TLS handshake; if there are too many, cut the one that has taken longest."""

    def end_handshake(self, connection: HTTPConnection) -> None:
        """Remove a TLS handshake, if it is still there."""

    def remove_connection(self, connection: HTTPConnection) -> None:
        """Remove a connection."""


@implementer(IHalfCloseableProtocol, IHandshakeListener)
class HTTPConnection(TwistedProtocol):
    """
    The server's side of one HTTP/1.1 connection.

    A client may be refused while it is still sending. If the socket were closed then, the system would send
    a reset, which can overtake the response (RFC 9112, section 9.6). So the connection stays open for a
    while, and drops all further bytes.
    """

    transport: Any
    _reader: RequestReader
    _writer: ResponseWriter
    _deadlines: Deadlines

    def __init__(
        self, server: Server, *, rejection: Response | None = None, host_rule: HostRule | None = None
    ) -> None:
        """
        :param rejection: the only answer, if the number of connections is over its limit.
        :param host_rule: the hosts that requests may name; any host by default.
        """
        self._server = server
        self._host_rule = host_rule
        self._rejection = rejection
        self._state = IDLE
        self._stream: ResponseStream | None = None
        self._reservation = MemoryReservation(server.body_memory)
        self._cancel: Callable[[], None] | None = None
        self._waiting_request: Request | None = None
        """The request that `_cancel` is for."""
        self._is_last_response = False
        self._client_has_finished = False
        self._waits_for_next_turn = False
        self._awaited_end: IDelayedCall | None = None
        """The end of the time for which a request that is whole is held back: a body may follow it."""
        self._left = 0
        """The number of requests that may still be read in this turn of the reactor."""

    @property
    def state(self) -> ConnectionState:
        """The state of the connection."""
        return self._state

    # Called by the transport.

    def connectionMade(self) -> None:
        """Begin to wait for a request."""
        transport, server = self.transport, self._server
        has_tls = ISSLTransport.providedBy(transport)
        self._peer = Peer(transport)
        self._reader = RequestReader(server, self._peer, self._reservation, self._host_rule)
        self._writer = ResponseWriter(
            transport,
            idle_timeout_s=server.limits.idle_timeout_s,
            has_hsts=server.has_hsts and has_tls,
            on_written=self._continue_after_response,
        )
        self._deadlines = Deadlines(server.limits, self._reader, self._writer)
        server.add_connection(self, is_rejected=self._rejection is not None)
        self._deadlines.since_s = server.next_sweep_s
        if self._rejection is not None:
            self._reject(self._rejection)
        elif has_tls:
            self._enter(HANDSHAKE)
            server.begin_handshake(self)

    def handshakeCompleted(self) -> None:
        """Begin to wait for a request, now that the TLS handshake is complete."""
        if self._state is HANDSHAKE:
            self._server.end_handshake(self)
            self._enter(IDLE)
            self._deadlines.since_s = self._server.next_sweep_s

    def dataReceived(self, data: bytes) -> None:
        """Read requests from data that has come."""
        if self._state is HANDSHAKE:
            # A protocol in between, such as that of haproxy:, does not tell of the handshake.
            self.handshakeCompleted()
        self._reader.buffer += data
        # TLS hands over data that it has decrypted, even when it is told to pause.
        if not self._waits_for_next_turn:
            self._left = _MAX_REQUESTS_PER_TURN
            self._read()

    @_cut_after_fault
    def readConnectionLost(self) -> None:
        """Answer the requests that the client has sent before it closed its side of the connection."""
        self._client_has_finished = True
        if self._state in READING:
            if not self._waits_for_next_turn:
                self._end_reading()
        elif self._state is LINGERING or self._state is CLOSING:
            self.transport.loseConnection()
        else:
            self._shorten_response()

    def writeConnectionLost(self) -> None:
        """Do nothing: this side was closed by the service itself."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Forget the client; a handler that works on its request goes on, unless it only reads."""
        if self._awaited_end is not None:
            self._stop_awaiting_end()
            if reason.check(ConnectionDone):
                # With TLS, this is how the client says that it has sent everything.
                self._serve_without_client()
        if self._state is not WAITING:
            self._reader.exchange = None
            self._reservation.release()
        self._enter(CLOSED)
        try:
            if self._stream is not None:
                self._stream.end("client")
            self._reader.end()
            self._writer.end()
        finally:
            self._deadlines.stream = None
            self._server.remove_connection(self)
            if self._cancel is not None and self._waiting_request is not None:
                self._waiting_request.client_has_finished = True
                self._cancel()

    # Reading.

    def _read(self) -> None:
        """
        Read and answer the requests in the buffer, one after the other.

        This loop is never inside another one, whatever has answered the request before: its handler at once,
        or the handler of a request of another connection.
        """
        server = self._server
        if server.reading is self:
            return
        if server.reading is not None:
            if self._reader.buffer or self._client_has_finished:
                self._read_in_next_turn()
            return
        server.reading = self
        try:
            self._read_requests()
        except Exception:  # noqa: BLE001 -- as in `_cut_after_fault`, which would cost more for each request
            self.fail(Failure())
        finally:
            server.reading = None
        if self._client_has_finished and not self._waits_for_next_turn and self._state in READING:
            self._end_reading()

    def _end_reading(self) -> None:
        """Answer the request that a body could have followed, or close: the client sends nothing more."""
        if self._reader.awaits_end:
            self._end_request_body()
        else:
            self._close()

    def _read_requests(self) -> None:
        reader, server = self._reader, self._server
        until_s = 0.0
        while reader.buffer:
            state = self._state
            if state not in READING:
                self._hold_back(state)
                return
            if state is IDLE:
                if self._left <= 0:
                    self._read_in_next_turn()
                    return
                self._left -= 1
            try:
                handler = reader.read()
            except Rejection as rejection:
                self._reject(rejection.response)
                return
            if handler is None:
                self._await_more()
                return
            self._handle(handler)
            if reader.buffer:
                now_s = server.seconds()
                until_s = until_s or now_s + _LONGEST_TURN_S
                if now_s >= until_s:
                    self._left = 0

    def _hold_back(self, state: ConnectionState) -> None:
        if state is WAITING or state is RESPONDING or state is STREAMING:
            # One after the other: the next request is read once this one is answered.
            self.transport.pauseProducing()
        else:
            self._deadlines.dropped_s = self._server.seconds()
            self._reader.drop()

    def _await_more(self) -> None:
        """Enter the state of the part of the request that is incomplete, or is read in the next turn."""
        reader = self._reader
        state = reader.state
        if state is not self._state:
            if state is BODY and reader.expects_continue:
                self._writer.write_continue()
            self._enter(state)
            self._deadlines.start_reading(self._server.seconds())
            if reader.awaits_end:
                self._awaited_end = self._server.call_later(_AWAITED_END_S, self._look_once_more)
        if state is BODY and reader.buffer:
            self._read_in_next_turn()

    def _look_once_more(self) -> None:
        # A busy reactor has not read yet the bytes that came in time.
        self._awaited_end = self._server.call_later(0, self._end_request_body)

    @_cut_after_fault
    def _end_request_body(self) -> None:
        """Answer a request that was held back, unless bytes have followed it."""
        self._stop_awaiting_end()
        try:
            handler = self._reader.end_request()
        except Rejection as rejection:
            self._reject(rejection.response)
            return
        if handler is not None:
            self._handle(handler)

    def _serve_without_client(self) -> None:
        """Carry out a request that was held back, unless bytes have followed it, without a response."""
        with suppress(Rejection):
            handler: Any = self._reader.end_request()
            request = self._reader.request

            def serve() -> None:
                maybeDeferred(handler, request).addBoth(self._respond_later)

            self._enter(WAITING)
            self._server.waiting += 1
            self._server.call_next_turn(serve)

    def _stop_awaiting_end(self) -> None:
        timer, self._awaited_end = self._awaited_end, None
        if timer is not None and timer.active():
            timer.cancel()

    def _read_in_next_turn(self) -> None:
        """Read more requests in the next turn of the reactor, after those of other connections."""
        self._waits_for_next_turn = True
        self.transport.pauseProducing()
        self._server.call_next_turn(self._next_turn_began)

    def _next_turn_began(self) -> None:
        self._waits_for_next_turn = False
        self._left = _MAX_REQUESTS_PER_TURN
        self._read_on()

    def _read_on(self) -> None:
        """Read the requests that have come while another was answered, or the rest of a body."""
        if self._state not in READING or self._server.reading is self:
            return
        if self._reader.buffer:
            self.transport.resumeProducing()
        self._read()

    # Answering.

    def _handle(self, handler: Response | Handler) -> None:
        reader = self._reader
        # Not kept while the handler works: the body may be large, and the handler keeps the needed parts.
        request, reader.request = reader.request, None
        if type(handler) is Response:
            self._respond(handler)
            return
        if self._client_has_finished and request is not None:
            request.client_has_finished = True
        try:
            result = handler(request)  # type: ignore[operator,arg-type] # both were just made
        except Exception:  # noqa: BLE001 -- whatever it is, the caller gets a response
            result = self._response_to(Failure())
        # The exact type first: `isinstance` of an abstract class such as `Deferred` is five times as slow.
        if type(result) is Response or not isinstance(result, Deferred):
            self._respond(result)
            return
        self._enter(WAITING)
        self._deadlines.since_s = self._server.next_sweep_s
        if request is not None and request.ends_with_client:
            self._cancel, self._waiting_request = result.cancel, request
        else:
            self._server.waiting += 1
        result.addBoth(self._respond_later)

    @_cut_after_fault
    def _respond_later(self, result: Response | Failure) -> None:
        """Answer a request for which the connection waits, unless the client has gone."""
        server = self._server
        if self._cancel is None:
            server.waiting -= 1
        self._cancel = self._waiting_request = None
        response = self._response_to(result) if isinstance(result, Failure) else result
        if self._state is WAITING:
            self._respond(response)
            self._read_on()
            return
        self._reservation.release()
        exchange, self._reader.exchange = self._reader.exchange, None
        if exchange is not None:
            # The client has gone; the outcome of its request is counted, and logged, all the same.
            try:
                server.on_response(exchange, response)
            finally:
                server.streams.drop(exchange, response, "client")

    def _response_to(self, failure: Failure) -> Response:
        response = self._server.response_to(failure, self._request_id)
        forget_frames_of(failure)
        return response

    @property
    def _request_id(self) -> bytes:
        exchange = self._reader.exchange
        return _NO_ID if exchange is None else exchange.request_id

    def _respond(self, response: Response) -> None:
        """Answer the request that is whole now."""
        exchange = self._reader.exchange
        if exchange is None or (head := exchange.head) is None:
            raise IllegalTransition("The request to be answered is missing.")
        if response.source is not None:
            if head.method != b"HEAD":
                self._begin_stream(response, response.source, exchange, head)
                return
            close_source(response.source, "head", exchange.request_id)
        server, body = self._server, response.body
        if type(body) is not bytes or len(body) >= LARGEST_PART:
            response = self._count_large(response, head)
        if response.problem:
            response = server.form_rejection(response, head)
        if server.extend_response is not None:
            response = server.extend_response(response, head)
        self._reader.exchange = None
        server.on_response(exchange, response)
        self._is_last_response = is_last = not head.keeps_alive or server.is_draining
        if self._writer.write(
            response,
            exchange.request_id,
            server.http_date(),
            is_head=head.method == b"HEAD",
            is_last=is_last,
        ):
            self._end_request()
            return
        # It may be read slowly. Its request needs no memory any more.
        self._reservation.count(0 if head.method == b"HEAD" else response.unshared_length)
        self._enter(RESPONDING)
        self._deadlines.start_sending(server.seconds())
        if self._writer.write_rest():
            self._end_request()

    def _count_large(self, response: Response, head: Head) -> Response:
        """
        Count a large response instead of its request, unless all clients share it.

        :return: another one if it does not fit, and only reads. Other requests have had their effect.
        """
        if head.method == b"HEAD":
            return response
        size = response.unshared_length
        if head.method not in SAFE:
            self._reservation.count(size)
            return response
        try:
            self._reservation.resize(size)
        except RequestError as error:
            return self._server.reject(error)
        return response

    @_cut_after_fault
    def _continue_after_response(self) -> None:
        if self._stream is not None:
            self._stream.sent()
            return
        self._end_request()
        self._deadlines.stream = None
        self._read_on()

    def _begin_stream(self, response: Response, source: Source, exchange: Exchange, head: Head) -> None:
        """Begin a response that is sent part by part."""
        server, writer = self._server, self._writer
        try:
            if server.extend_response is not None:
                response = server.extend_response(response, head)
            self._reader.exchange = None
            server.on_response(exchange, response)
            is_chunked = head.is_1_1
            self._is_last_response = is_last = (
                not head.keeps_alive or not is_chunked or server.is_draining or self._client_has_finished
            )
            start = writer.start_stream(
                response, exchange.request_id, server.http_date(), is_chunked=is_chunked, is_last=is_last
            )
            self._enter(STREAMING)
        except Exception:
            server.streams.drop(exchange, response, "fault")
            raise
        self._reservation.release()
        stream = self._stream = ResponseStream(
            self, writer, exchange, response, source, is_chunked=is_chunked, reservation=self._reservation
        )
        server.streams.add(stream)
        self._deadlines.start_streaming(stream, server.seconds())
        if stream.begin(start, is_draining=server.is_draining):
            self._end_stream(is_sent=stream.is_sent)
        elif self._client_has_finished:
            self._shorten_response()

    def stream_ended(self, stream: ResponseStream, reason: str) -> None:
        """Count a stream, and forget it."""
        self._stream = None
        self._server.streams.remove(stream, reason)

    @_cut_after_fault
    def continue_after_stream(self, *, is_sent: bool) -> None:
        """Go on with the next request, once the stream is sent."""
        self._end_stream(is_sent=is_sent)
        self._read_on()

    def _shorten_response(self) -> None:
        """
        End a stream or a wait for records, now that the client has closed its side of the connection.

        The client may be gone, and nothing else would show it before much is written.
        """
        if self._stream is not None:
            self._is_last_response = True
            self._stream.finish("client")
        elif self._waiting_request is not None:
            self._waiting_request.client_has_finished = True
            if self._waiting_request.end_wait is not None:
                self._waiting_request.end_wait()

    def _end_stream(self, *, is_sent: bool) -> None:
        if is_sent:
            self._end_request()
            self._deadlines.stream = None
        else:
            self._enter(RESPONDING)
            self._deadlines.start_sending(self._server.seconds())

    def _end_request(self) -> None:
        """Await the next request, now that the last byte of a response was handed over."""
        if self._reservation.size:
            self._reservation.release()
        # Requests in the buffer are still answered, unless a response has told the client that it is the
        # last.
        if self._is_last_response or (self._server.is_draining and not self._reader.buffer):
            self._close()
        else:
            self._enter(IDLE)
            self._deadlines.since_s = self._server.next_sweep_s

    # Ending.

    @_cut_after_fault
    def _reject(self, response: Response) -> None:
        """Answer the request that is being read, read no more of it, and close the connection soon."""
        server, reader = self._server, self._reader
        self._stop_awaiting_end()
        exchange = reader.exchange or Exchange(
            self._peer, request_id_in(reader.buffer) or server.new_request_id(), server.seconds()
        )
        head = exchange.head
        # RFC 9110, section 9.3.2: a response to HEAD has no content, even if the rest is not understood.
        is_head = reader.buffer.startswith(b"HEAD ") if head is None else head.method == b"HEAD"
        if head is not None:
            response = server.form_rejection(response, head)
        if server.extend_response is not None:
            response = server.extend_response(response, head)
        reader.exchange = None
        server.on_response(exchange, response)
        self._enter(LINGERING)
        self._deadlines.start_sending(server.seconds())
        self._reservation.release()
        reader.clear()
        self._writer.write_rejection(response, exchange.request_id, server.http_date(), is_head=is_head)
        if self._client_has_finished or ISSLTransport.providedBy(self.transport):
            # With TLS, this only sends close_notify, which the client awaits (RFC 9112, section 9.8).
            self.transport.loseConnection()
        else:
            self.transport.loseWriteConnection()

    def _close(self, *, timeout_s: float | None = None) -> None:
        """
        End the connection once the client has received everything.

        :param timeout_s: seconds without progress after which the connection is cut; the limit for answers by
            default.
        """
        server, writer, deadlines = self._server, self._writer, self._deadlines
        self._enter(CLOSING)
        deadlines.start_sending(server.seconds())
        if timeout_s is None:
            timeout_s = deadlines.send_timeout_s(is_draining=server.is_draining)
        deadlines.close_timeout_s = timeout_s
        has_unread = bool(self._reader.buffer)
        self._reservation.release()
        self._reader.clear()
        writer.release()
        if (
            writer.is_plain
            and not self._client_has_finished
            and (has_unread or writer.is_unread(LARGEST_PART))
        ):
            # The system would reset a connection that is closed before all is read, and drop the response
            # (RFC 9112, section 9.6); and it may keep unsent bytes for minutes.
            self.transport.loseWriteConnection()
            self.transport.resumeProducing()
        else:
            self.transport.loseConnection()

    @_cut_after_fault
    def close_if_idle(self) -> None:
        """End the connection, unless a request is being read or answered."""
        if self._state is HANDSHAKE:
            self.abort()
        elif self._state is IDLE and not self._waits_for_next_turn:
            self._close(timeout_s=CLOSE_IDLE_S)

    def abort(self, reason: str = "fault") -> None:
        """
        Cut the connection.

        :param reason: of the end of the stream, if one is being sent.
        """
        try:
            if self._stream is not None:
                self._stream.end(reason)
        finally:
            self.cut()

    def fail(self, failure: Failure) -> None:
        """Cut the connection after a fault, and log the fault afterwards, since that may fail as well."""
        request_id = self._request_id
        try:
            if self._state is not CLOSED:
                self.abort()
            if CLOSING in self._state.may_become:
                self._enter(CLOSING)
            self._reader.clear()
            self._reservation.release()
        finally:
            _log.failure(
                "A fault in the service: a connection was cut. (X-Request-Id: {request_id})",
                failure=failure,
                request_id=request_id.decode("ascii"),
            )

    def cut(self) -> None:
        """Cut the connection, whose stream has ended."""
        self._writer.end()
        self.transport.abortConnection()

    def sweep(self, now_s: float) -> None:
        """
        End the connection if its client has missed a deadline, or is gone.

        :param now_s: the time, in seconds.
        """
        server = self._server
        if (self._reader.buffer or self._client_has_finished) and self._state in (WAITING, STREAMING):
            # While nothing is read from a connection, and after its end, the reactor does not watch it.
            self._check_client(now_s)
        if self._state is RESPONDING and self._writer.writes_replaced and not self._reservation.has_room(0):
            server.count_rejection("max-body-memory")
            self.abort("max-body-memory")
            return
        missed = self._deadlines.check(self._state, now_s, is_draining=server.is_draining)
        if missed is None:
            return
        if missed.limit:
            server.count_rejection(missed.limit)
        if missed.action is Action.REJECT:
            self._reject(server.reject(RequestTooSlow(missed.detail)))
        elif missed.action is Action.CLOSE:
            self._close(timeout_s=CLOSE_IDLE_S)
        elif missed.action is Action.END:
            self.transport.loseConnection()
        else:
            self.abort(missed.limit or "client")

    def _check_client(self, now_s: float) -> None:
        end = client_end(self.transport)
        if end is ClientEnd.DISCONNECTED:
            self.abort("client")
        elif end is not None or self._client_has_finished:
            if self._state is WAITING and now_s - self._deadlines.since_s >= _ABANDONED_S:
                self.abort("client")
            else:
                self._shorten_response()

    def _enter(self, state: ConnectionState) -> None:
        if state not in self._state.may_become:
            raise IllegalTransition(f"{self._state} cannot become {state}.")
        self._state = state
