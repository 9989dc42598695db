"""
One connection: its requests are read, answered one after the other, and refused so that clients can read why.

It does not know what is served: it asks one callable what to do with a request, see
`sampleapp.web.server.request`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Final, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IPushProducer, ISSLTransport, ITCPTransport
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Server as TCPTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.web.answers import Answer
from sampleapp.web.cors import Cors
from sampleapp.web.problems import problem_answer
from sampleapp.web.request_errors import (
    BodyTooLarge,
    RequestError,
    RequestTooSlow,
    TooManyRequests,
)
from sampleapp.web.server.body import Body, ChunkedBody, SizedBody
from sampleapp.web.server.content_coding import CodedBody, coding_of, has_content
from sampleapp.web.server.decoding import Decoding
from sampleapp.web.server.exchange import Exchange, FormRefusal, OnAnswer, Peer
from sampleapp.web.server.head import (
    END_OF_HEAD,
    MAX_HEAD,
    Head,
    PartialHead,
    parse_head,
    refusal_of_long_head,
    request_id_in,
)
from sampleapp.web.server.limits import Limits
from sampleapp.web.server.progress import acknowledged, limit_unsent, unacknowledged
from sampleapp.web.server.request import Dispatch, Handler, Request

__all__ = ["SAFE", "HTTPConnection", "Server", "State", "is_plain_socket"]


class State:
    """What a connection is at. Only the transitions of the table below are allowed."""

    __slots__ = ("may_become", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.may_become: frozenset[State] = frozenset()

    def __repr__(self) -> str:
        return self.name


IDLE: Final = State("idle")
"""No byte of a request has come."""
HEADER: Final = State("header")
"""A part of a header has come."""
BODY: Final = State("body")
"""The header has come, and a part of the body."""
WAITING: Final = State("waiting")
"""The request is whole, and a handler works on its answer."""
ANSWERING: Final = State("answering")
"""There is an answer, of which the client has to read something before the rest can be sent."""
LINGERING: Final = State("lingering")
"""The client was refused in the middle of its request. What it still sends is dropped, so that it reads."""
CLOSING: Final = State("closing")
"""Nothing more is read; the connection ends when the client has all that it was sent."""
CLOSED: Final = State("closed")
"""It is gone."""

# From each state to those that may follow. A request that comes as a whole skips those of its parts, and one
# that is answered at once does not wait.
TRANSITIONS: Final[dict[State, tuple[State, ...]]] = {
    IDLE: (HEADER, BODY, WAITING, ANSWERING, IDLE, LINGERING, CLOSING, CLOSED),
    HEADER: (BODY, WAITING, ANSWERING, IDLE, LINGERING, CLOSING, CLOSED),
    BODY: (WAITING, ANSWERING, IDLE, LINGERING, CLOSING, CLOSED),
    WAITING: (ANSWERING, IDLE, CLOSING, CLOSED),
    ANSWERING: (IDLE, CLOSING, CLOSED),
    LINGERING: (CLOSED,),
    CLOSING: (CLOSED,),
    CLOSED: (),
}
for _state, _next in TRANSITIONS.items():
    _state.may_become = frozenset(_next)

_READING: Final = (IDLE, HEADER, BODY)

# As nginx has them (lingering_timeout and lingering_time).
_LINGER_IDLE_S: Final = 5.0
_LINGER_S: Final = 30.0
_CLOSE_IDLE_S: Final = 1.0
"""How long a connection may take to end on which there is nothing to read; over TLS the end is answered."""

SAFE: Final = (b"GET", b"HEAD")
"""Methods that only read, and so wait for nothing (RFC 9110, section 9.2.1)."""

_LARGEST_PIECE: Final = 64 * 1024
"""So many bytes are handed to a transport at once."""

_MOST_AT_ONCE: Final = 50
"""So many requests of one connection are looked at before others have their turn."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_NO_ID: Final = b"-"
_START: Final = b"%bDate: %b\r\nX-Request-Id: %b\r\n\r\n"
_LAST_START: Final = b"%bDate: %b\r\nX-Request-Id: %b\r\nConnection: close\r\n\r\n"
"""What stands before a body: of an answer, and of the last one of a connection."""


class Server(Protocol):
    """What a connection asks of the server that it belongs to."""

    dispatch: Dispatch
    limits: Limits
    cors: Cors | None
    """The sites whose pages may use the server from a browser."""
    form_refusal: FormRefusal
    on_answer: OnAnswer
    decoding: Decoding
    """What decodes bodies that come compressed."""
    is_draining: bool
    """Whether connections end after the answer that is due."""
    waiting: int
    """
    How many requests wait for what answers them; counted by the connections.

    Some of their clients may have gone.
    """

    next_sweep_s: float
    """When the connections are swept next: in the place of the time where a second does not matter."""

    def seconds(self) -> float:
        """Return the time, in seconds since the epoch."""

    def http_date(self) -> bytes:
        """Return the time for a ``Date`` header."""

    def new_request_id(self) -> bytes:
        """Return an id for a request that came with none."""

    def answer_to(self, failure: Failure, request_id: bytes) -> Answer:
        """Return what to answer when a handler has failed."""

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function after all that others have to do now."""

    def refused(self, reason: str) -> None:
        """Count a request, or a connection, that was refused."""

    def opened(self, connection: HTTPConnection, *, is_turned_away: bool) -> None:
        """Take note of a connection, which may be one that is only told that there are too many."""

    def closed(self, connection: HTTPConnection) -> None:
        """Take note that a connection is gone."""


class IllegalTransition(AssertionError):
    """A fault of this module: a connection was to become what it may not."""


@implementer(IHalfCloseableProtocol, IPushProducer)
class HTTPConnection(TwistedProtocol):
    """
    The server's side of one HTTP/1.1 connection.

    A client that is refused while it is still sending would, if the socket were closed at once, be sent a
    reset that can overtake the answer (RFC 9112, section 9.6). So the answer is sent, and what still comes is
    dropped for a while.
    """

    transport: Any

    def __init__(self, server: Server, *, turned_away: Answer | None = None) -> None:
        """:param turned_away: what to tell the client, if it is to have no request answered."""
        self._server = server
        self._turned_away = turned_away
        self._state = IDLE
        self._since_s = 0.0
        self._buffer = b""
        self._partial_head: PartialHead | None = None
        self._head: Head | None = None
        self._exchange: Exchange | None = None
        self._request: Request | None = None
        self._handler: Answer | Handler | None = None
        self._body: Body | None = None
        self._coded: CodedBody | None = None
        self._received = 0
        self._pieces: Iterator[bytes] | None = None
        self._pieces_handed = 0
        self._last_progress: Any = None
        self._read_s = -1.0
        self._dropped_s = 0.0
        self._is_last_answer = False
        self._close_timeout_s = 0.0
        self._is_full = False
        self._client_has_finished = False
        self._waits_for_turn = False
        self._sends_at_once = False
        self._send_some: Callable[[bytes], int] = _send_nothing
        # The transport may still have something to write, which what is sent at once would overtake.
        self._has_unsent = False

    @property
    def state(self) -> State:
        """What it is at."""
        return self._state

    # What the transport calls.

    def connectionMade(self) -> None:
        """Begin to wait for a request."""
        transport = self.transport
        self._peer = Peer(transport)
        self._server.opened(self, is_turned_away=self._turned_away is not None)
        self._since_s = self._server.next_sweep_s
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            limit_unsent(transport)
        self._sends_at_once = is_plain_socket(transport)
        if self._sends_at_once:
            # `writeSomeData` takes three calls more for each answer.
            self._send_some = transport.getHandle().send
        else:
            transport.registerProducer(self, streaming=True)
        if self._turned_away is not None:
            self._refuse(self._turned_away)

    def dataReceived(self, data: bytes) -> None:
        """Take what has come."""
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        if self._waits_for_turn:
            # TLS hands over what it has decrypted, whether or not it is told to pause.
            self._buffer = data
        else:
            self._take(data)

    def readConnectionLost(self) -> None:
        """Answer what the client has sent before it closed its side of the connection."""
        self._client_has_finished = True
        if self._state in _READING:
            if not self._waits_for_turn:
                self._close()
        elif self._state is LINGERING or self._state is CLOSING:
            self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: this side was closed by the service itself."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Take note that nobody is there any more; a handler that works goes on."""
        if self._state is not WAITING:
            self._exchange = None
        self._enter(CLOSED)
        self._buffer = b""
        self._forget_request()
        self._pieces = None
        self._server.closed(self)

    def pauseProducing(self) -> None:
        """Hand over nothing more of an answer: what the client has not read is in the way."""
        self._is_full = True

    def resumeProducing(self) -> None:
        """Go on with the answer."""
        self._is_full = False
        if self._state is ANSWERING:
            self._hand_over()

    def stopProducing(self) -> None:
        """Do nothing: `connectionLost` follows."""

    # Reading.

    def _take(self, data: bytes) -> None:
        turns = _MOST_AT_ONCE
        while data:
            turns -= 1
            if turns < 0 and self._state is IDLE:
                self._wait_for_turn(data)
                return
            state = self._state
            if state is IDLE or state is HEADER:
                data = self._take_head(data)
            elif state is BODY:
                data = self._take_body(data)
            elif state is WAITING or state is ANSWERING:
                # One after the other: the next request is looked at once this one is answered.
                self._buffer = data
                self.transport.pauseProducing()
                return
            else:
                if state is LINGERING:
                    self._dropped_s = self._server.seconds()
                return
        if self._client_has_finished and self._state in _READING:
            self._close()

    def _wait_for_turn(self, data: bytes) -> None:
        """Let others have theirs first, who may have sent only one request."""
        self._buffer = data
        self._waits_for_turn = True
        self.transport.pauseProducing()
        self._server.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        self._go_on()

    def _take_head(self, data: bytes) -> bytes:  # noqa: PLR0911 -- each request passes here, once
        """Read a head; returns what comes after it, or after the whole request."""
        if data[0] == 13:  # noqa: PLR2004 -- CR
            # RFC 9112, section 2.2: some clients send an empty line after a body.
            data = _without_empty_lines(data)
            if data in (b"", b"\r"):
                self._buffer = data
                return b""
        end = data.find(END_OF_HEAD, 0, MAX_HEAD)
        try:
            if end < 0:
                self._take_part_of_head(data)
                return b""
            end += len(END_OF_HEAD)
            head = parse_head(data[:end])
        except RequestError as error:
            self._buffer = data
            self._refuse_for(error)
            return b""
        self._partial_head = None
        server = self._server
        self._head = head
        self._exchange = exchange = Exchange(
            self._peer, head.request_id or server.new_request_id(), server.seconds(), head
        )
        self._request = request = Request(head.method, head.path, head.query, head.fields, exchange)
        handler = self._dispatch(request, head.codings)
        length = head.length
        if length is not None and length > self._max_body(request):
            self._refuse_body(handler, request)
            return b""
        if length == 0:
            self._handle(handler)
            return data[end:]
        stop = len(data) if length is None else end + length
        if length is not None and stop <= len(data):
            if self._coded is None:
                request.body = data[end:stop]
            else:
                self._coded.write(data[end:stop])
            self._handle(handler)
            return data[stop:]
        if isinstance(handler, Answer) and handler.at_once:
            self._refuse(handler)
            return b""
        return self._begin_body(handler, request, head, data[end:])

    def _dispatch(self, request: Request, codings: tuple[bytes, ...]) -> Answer | Handler:
        server = self._server
        try:
            handler = server.dispatch(request)
        except Exception:  # noqa: BLE001 -- whatever it is, the caller gets an answer
            return self._answer_to(Failure())
        if (
            server.waiting >= server.limits.max_waiting
            and not isinstance(handler, Answer)
            and request.method not in SAFE
        ):
            server.refused("max-waiting")
            return problem_answer(TooManyRequests(server.limits.max_waiting))
        return self._decoding(handler, request, codings) if codings else handler

    def _decoding(
        self, handler: Answer | Handler, request: Request, codings: tuple[bytes, ...]
    ) -> Answer | Handler:
        """Make a handler into one that is given the body as it was before it was compressed."""
        if isinstance(handler, Answer) and handler.problem:
            # Who may not call, for example, is told only that.
            return handler
        try:
            coding = coding_of(codings)
        except RequestError as error:
            return problem_answer(error)
        if isinstance(handler, Answer) or not has_content(request.fields):
            return handler
        self._coded = coded = CodedBody(coding, limit=self._max_body(request))
        return partial(self._server.decoding.handle, handler, coded)

    def _take_part_of_head(self, data: bytes) -> None:
        if len(data) >= MAX_HEAD:
            raise refusal_of_long_head(data)
        if self._partial_head is None:
            self._partial_head = PartialHead()
        self._partial_head.check(data)
        self._buffer = data
        if self._state is IDLE:
            self._enter(HEADER)
            self._since_s = self._server.seconds()

    def _max_body(self, request: Request) -> int:
        return self._server.limits.max_body if request.max_body is None else request.max_body

    def _begin_body(self, handler: Answer | Handler, request: Request, head: Head, data: bytes) -> bytes:
        is_wanted = not isinstance(handler, Answer)
        if head.expects_continue and not data:
            if isinstance(handler, Answer):
                # The client sends its body only if it is told to, so this is the end of the request.
                self._refuse(handler)
                return b""
            self.transport.write(_CONTINUE)
            self._has_unsent = True
        self._handler = handler
        self._body = (
            ChunkedBody(self._max_body(request), keep=is_wanted, content=self._coded)
            if head.length is None
            else SizedBody(head.length, keep=is_wanted, content=self._coded)
        )
        self._enter(BODY)
        self._since_s = self._server.seconds()
        self._received = 0
        return data

    def _take_body(self, data: bytes) -> bytes:
        body, request, handler = self._body, self._request, self._handler
        if body is None or request is None or handler is None:
            raise IllegalTransition("There is no body to take.")
        self._received += len(data)
        try:
            rest = body.receive(data)
        except RequestError as error:
            if isinstance(error, BodyTooLarge):
                self._refuse_body(handler, request)
            else:
                self._refuse_for(error)
            return b""
        if rest is None:
            return b""
        request.body = body.content()
        self._body = None
        self._handle(handler)
        return rest

    # Answering.

    def _handle(self, handler: Answer | Handler) -> None:
        if type(handler) is Answer:
            self._answer(handler)
            return
        try:
            result = handler(self._request)  # type: ignore[operator,arg-type] # both were just made
        except Exception:  # noqa: BLE001 -- whatever it is, the caller gets an answer
            result = self._answer_to(Failure())
        if isinstance(result, Deferred):
            self._enter(WAITING)
            # Whoever works on it has what is needed of the body.
            self._request = None
            self._server.waiting += 1
            result.addCallbacks(self._answer_at_last, self._fail)
        else:
            self._answer(result)

    def _answer_at_last(self, answer: Answer) -> None:
        self._server.waiting -= 1
        request_id = self._request_id
        if self._state is WAITING:
            try:
                self._answer(answer)
                self._go_on()
            except Exception:  # noqa: BLE001 -- nobody else sees it, and the client would wait for ever
                self._server.answer_to(Failure(), request_id)
                self.abort()
        elif self._exchange is not None:
            # The client has gone; what became of its request is counted, and logged, all the same.
            exchange, self._exchange = self._exchange, None
            self._server.on_answer(exchange, answer)

    def _fail(self, failure: Failure) -> None:
        self._answer_at_last(self._answer_to(failure))

    def _answer_to(self, failure: Failure) -> Answer:
        return self._server.answer_to(failure, self._request_id)

    @property
    def _request_id(self) -> bytes:
        exchange = self._exchange
        return _NO_ID if exchange is None else exchange.request_id

    def _go_on(self) -> None:
        """Look at what has come while a request was answered."""
        if self._state is not IDLE:
            return
        if self._buffer:
            data, self._buffer = self._buffer, b""
            self.transport.resumeProducing()
            self._take(data)
        elif self._client_has_finished:
            self._close()

    def _answer(self, answer: Answer) -> None:
        """Answer the request that is whole now."""
        head, exchange = self._head, self._exchange
        if head is None or exchange is None:
            raise IllegalTransition("There is no request to answer.")
        server = self._server
        if answer.problem:
            answer = server.form_refusal(answer, head)
        if server.cors is not None:
            answer = server.cors.extend(answer, head.fields.all(b"Origin"))
        self._exchange = None
        server.on_answer(exchange, answer)
        self._is_last_answer = not head.keeps_alive or server.is_draining
        start = (_LAST_START if self._is_last_answer else _START) % (
            answer.head,
            server.http_date(),
            exchange.request_id,
        )
        body = answer.body
        if head.method == b"HEAD":
            self._send(start)
        elif type(body) is bytes and len(body) < _LARGEST_PIECE:
            self._send(start + body)
        else:
            self._send_in_pieces(_pieces(start, answer.pieces))

    def _send(self, data: bytes) -> None:
        if self._sends_at_once:
            # To ask the reactor when the socket is ready, and then not to, costs more than to send.
            sent = self._send_now(data)
            if sent == len(data):
                self._answered()
            else:
                self._send_later(iter((data[sent:],)))
            return
        self.transport.write(data)
        if self._is_full:
            self._send_later(iter(()))
        else:
            self._answered()

    def _send_now(self, data: bytes) -> int:
        if self._has_unsent:
            return 0
        try:
            return self._send_some(data)
        except OSError:
            # There is no room; any other error is for the reactor, which will meet it as well.
            return 0

    def _send_in_pieces(self, pieces: Iterator[bytes]) -> None:
        if self._sends_at_once:
            for piece in pieces:
                sent = self._send_now(piece)
                if sent != len(piece):
                    self._send_later(chain((piece[sent:],), pieces))
                    return
            self._answered()
        else:
            self._send_later(pieces)
            self._hand_over()

    def _send_later(self, pieces: Iterator[bytes]) -> None:
        self._enter(ANSWERING)
        self._since_s = self._server.seconds()
        self._pieces = pieces
        self._pieces_handed = 0
        self._last_progress = self._progress()
        if self._sends_at_once:
            # Asked for the first piece at once, and for each further one when nothing is left to be written.
            self.transport.registerProducer(self, streaming=False)

    def _hand_over(self) -> None:
        """Give the transport what it has room for: a piece, if it asks for each."""
        for piece in self._pieces or ():
            self._pieces_handed += 1
            self.transport.write(piece)
            if self._sends_at_once or self._is_full:
                return
        self._pieces = None
        if self._sends_at_once:
            self.transport.unregisterProducer()
        self._answered()
        self._go_on()

    def _answered(self) -> None:
        """Go on after an answer whose last byte was handed over."""
        self._has_unsent = False
        self._forget_request()
        # What has come already was sent in good faith if no answer has said that it is the last.
        if self._is_last_answer or (self._server.is_draining and not self._buffer):
            self._close()
        else:
            self._enter(IDLE)
            self._since_s = self._server.next_sweep_s

    def _forget_request(self) -> None:
        self._head = self._request = self._handler = self._body = self._coded = None

    # Ending.

    def _refuse(self, answer: Answer) -> None:
        """Answer the request that is being read, read no more of it, and close the connection soon."""
        # RFC 9110, section 9.3.2: an answer to HEAD has no content, even if the rest is not understood.
        is_head = self._buffer.startswith(b"HEAD ") if self._head is None else self._head.method == b"HEAD"
        server = self._server
        exchange = self._exchange or Exchange(
            self._peer, request_id_in(self._buffer) or server.new_request_id(), server.seconds()
        )
        if exchange.head is not None:
            answer = server.form_refusal(answer, exchange.head)
        if server.cors is not None:
            answer = server.cors.extend(
                answer, () if exchange.head is None else exchange.head.fields.all(b"Origin")
            )
        self._exchange = None
        server.on_answer(exchange, answer)
        self._enter(LINGERING)
        self._since_s = self._dropped_s = server.seconds()
        self._last_progress = self._progress()
        self._forget_request()
        self._partial_head = None
        self._buffer = b""
        self._release_transport()
        start = _LAST_START % (answer.head, server.http_date(), exchange.request_id)
        self.transport.write(start if is_head else start + b"".join(answer.pieces))
        if self._client_has_finished:
            self.transport.loseConnection()
        elif not ISSLTransport.providedBy(self.transport):
            # TLS has no half-closed connections that clients could be expected to know.
            self.transport.loseWriteConnection()

    def _refuse_for(self, error: RequestError) -> None:
        if isinstance(error, BodyTooLarge):
            self._server.refused("max-body")
        self._refuse(problem_answer(error))

    def _refuse_body(self, handler: Answer | Handler, request: Request) -> None:
        """Refuse a body over the limit, or say what is wrong with the request anyway."""
        if isinstance(handler, Answer):
            self._refuse(handler)
        else:
            self._refuse_for(BodyTooLarge(self._max_body(request)))

    def _close(self, *, timeout_s: float | None = None) -> None:
        """
        End the connection once the client has been sent everything.

        :param timeout_s: how long that may make no progress; the limit for answers by default.
        """
        self._enter(CLOSING)
        self._since_s = self._server.seconds()
        self._last_progress = self._progress()
        self._close_timeout_s = self._server.limits.send_timeout_s if timeout_s is None else timeout_s
        has_unread = bool(self._buffer)
        self._buffer = b""
        self._forget_request()
        self._partial_head = None
        self._release_transport()
        if (
            self._sends_at_once
            and not self._client_has_finished
            and (has_unread or self._is_unread(_LARGEST_PIECE))
        ):
            # The system would reset a connection that is closed before all is read, and the answer with it
            # (RFC 9112, section 9.6); and it may keep what is not sent yet for minutes.
            self.transport.loseWriteConnection()
            self.transport.resumeProducing()
        else:
            self.transport.loseConnection()

    def _is_unread(self, threshold: int = 0) -> bool:
        unread = unacknowledged(self.transport)
        return unread is not None and unread > threshold

    def _release_transport(self) -> None:
        """A transport with a producer would wait for it to end."""
        if not self._sends_at_once:
            self.transport.unregisterProducer()

    def close_if_idle(self) -> None:
        """End the connection, unless a request is being read or answered."""
        if self._state is IDLE and not self._waits_for_turn:
            self._close(timeout_s=_CLOSE_IDLE_S)

    def abort(self) -> None:
        """Cut the connection."""
        self.transport.abortConnection()

    # Time.

    def sweep(self, now_s: float) -> None:
        """
        Hold the client to the limits.

        :param now_s: the time, in seconds.
        """
        overdue = self._overdue.get(self._state)
        if overdue is not None:
            overdue(self, now_s, now_s - self._since_s)

    def _check_idle(self, now_s: float, elapsed_s: float) -> None:
        if self._since_s != self._read_s:
            if self._is_unread():
                # The end of the last answer is still in the buffers of the systems.
                self._check_answering(now_s, elapsed_s)
                return
            self._read_s = self._since_s
        if elapsed_s >= self._server.limits.idle_timeout_s:
            self._server.refused("idle-timeout")
            self._close(timeout_s=_CLOSE_IDLE_S)

    def _check_header(self, _now_s: float, elapsed_s: float) -> None:
        timeout_s = self._server.limits.header_timeout_s
        if elapsed_s >= timeout_s:
            self._give_up("header-timeout", f"The header has not come within {timeout_s:g} seconds.")

    def _check_body(self, _now_s: float, elapsed_s: float) -> None:
        limits = self._server.limits
        if elapsed_s >= limits.body_grace_s and self._received < limits.body_rate * elapsed_s:
            self._give_up("min-body-rate", f"The body comes slower than {limits.body_rate} bytes a second.")

    def _check_answering(self, now_s: float, _elapsed_s: float) -> None:
        if self._makes_no_progress(now_s, self._server.limits.send_timeout_s):
            self._server.refused("send-timeout")
            self.abort()

    def _check_closing(self, now_s: float, elapsed_s: float) -> None:
        is_unread = self._is_unread()
        if self._makes_no_progress(now_s, self._close_timeout_s):
            if is_unread:
                self._server.refused("send-timeout")
            self.abort()
        elif self._sends_at_once and not is_unread and elapsed_s >= self._linger_idle_s():
            self.transport.loseConnection()

    def _linger_idle_s(self) -> float:
        return _CLOSE_IDLE_S if self._server.is_draining else _LINGER_IDLE_S

    def _check_lingering(self, now_s: float, elapsed_s: float) -> None:
        if self._is_unread():
            # It may be the answer to the request before the one that was refused.
            self._check_answering(now_s, elapsed_s)
        elif elapsed_s >= _LINGER_S or now_s - self._dropped_s >= self._linger_idle_s():
            self.abort()

    _overdue: ClassVar = {
        IDLE: _check_idle,
        HEADER: _check_header,
        BODY: _check_body,
        ANSWERING: _check_answering,
        CLOSING: _check_closing,
        LINGERING: _check_lingering,
    }
    """What looks whether time is over, in each state that a client can draw out."""

    def _give_up(self, reason: str, detail: str) -> None:
        self._server.refused(reason)
        self._refuse(problem_answer(RequestTooSlow(detail)))

    def _makes_no_progress(self, now_s: float, timeout_s: float) -> bool:
        progress = self._progress()
        if progress != self._last_progress:
            self._last_progress = progress
            self._since_s = now_s
            return False
        return now_s - self._since_s >= timeout_s

    def _progress(self) -> object:
        """Return what differs from before if the client has read more."""
        read = acknowledged(self.transport)
        return (self._pieces_handed, unacknowledged(self.transport)) if read is None else read

    def _enter(self, state: State) -> None:
        if state not in self._state.may_become:
            raise IllegalTransition(f"{self._state} cannot become {state}.")
        self._state = state


def is_plain_socket(transport: Any) -> bool:
    """Whether a transport is nothing but a socket, as TCP and Unix endpoints have it."""
    return isinstance(transport, TCPTransport) and not transport.TLS


def _send_nothing(_: bytes) -> int:
    return 0


def _without_empty_lines(data: bytes) -> bytes:
    position = 0
    while data.startswith(b"\r\n", position):
        position += 2
    return data[position:]


def _pieces(start: bytes, body: Iterable[bytes]) -> Iterator[bytes]:
    """Cut an answer into pieces, none of them much larger than `_LARGEST_PIECE`."""
    for large in body:
        for position in range(0, len(large), _LARGEST_PIECE):
            yield start + large[position : position + _LARGEST_PIECE]
            start = b""
    if start:
        yield start
