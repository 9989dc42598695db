"""
A reader of requests: the heads and bodies of one connection, and the decision on each request by its head.

It knows neither transports nor time limits: it is given bytes, and returns what answers each whole request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol, TypeGuard

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from sampleapp.concurrency.slices import cooperator_on
from sampleapp.errors import SampleAppError
from sampleapp.web.errors import (
    BodyTooLarge,
    ExpectationNotMet,
    LengthRequired,
    MisdirectedRequest,
    RequestError,
    TooManyRequests,
)
from sampleapp.web.responses import Response
from sampleapp.web.server.body import Body, ChunkedBody, MemoryReservation, NoBody, SizedBody, Unverified
from sampleapp.web.server.content_coding import CodedBody, coding_of, has_content
from sampleapp.web.server.head import (
    END_OF_HEAD,
    MAX_HEAD,
    Head,
    PartialHead,
    parse_head,
    rejection_of_long_head,
)
from sampleapp.web.server.hosts import HostRule
from sampleapp.web.server.limits import Limits
from sampleapp.web.server.request import SAFE, Charge, Dispatch, Exchange, Handler, Peer, Request
from sampleapp.web.server.states import BODY, HEADER, IDLE, ConnectionState

_DECODED_AT_ONCE: Final = 64 * 1024
"""Bytes that are decoded immediately, so that small bodies do not wait for a turn of the reactor."""
_SLICE: Final = 256 * 1024
"""Bytes that are decoded in one turn of the reactor: about a millisecond of work."""
_NOT_COUNTED: Final = 4 * 1024
"""Bytes of a body that comes with its head and needs no memory reserved: any connection may take as much."""


class Decoding:
    """Decodes bodies: one slice of one body in each turn of the reactor, even if there are many bodies."""

    def __init__(self, clock: IReactorTime, *, count_rejection: Callable[[str], None] | None = None) -> None:
        """
        :param clock: the reactor.
        :param count_rejection: called for each body over the limit, with the name of the option that is the
            limit.
        """
        self._cooperator = cooperator_on(clock)
        self._count_rejection = count_rejection

    def handle(self, handler: Handler, body: CodedBody, request: Request) -> Response | Deferred[Response]:
        """
        Decode the body of a request, and let a handler answer.

        :param body: the whole compressed body.
        :return: a Deferred if decoding takes more than one slice; it fails with the errors that are raised
            otherwise.
        :raise RequestError: the body cannot be decoded, or is over the limit.
        :raise SampleAppError: as `Request.verify_body`.
        """

        def handle(_: object) -> Response | Deferred[Response]:
            request.body = body.content()
            if request.reservation is not None:
                # The decoder, and its reservation of memory, are no longer needed.
                request.reservation.resize(len(request.body))
            return handler(request)

        verify, request.verify_body = request.verify_body, None
        if verify is not None:
            verify(request, body.encoded())
        if self._decode(body, _DECODED_AT_ONCE, request.charge):
            return handle(None)
        return self._cooperator.cooperate(self._steps(body, request.charge)).whenDone().addCallback(handle)

    def _steps(self, body: CodedBody, charge: Charge | None) -> Iterator[None]:
        while not self._decode(body, _SLICE, charge):
            yield

    def _decode(self, body: CodedBody, most: int, charge: Charge | None) -> bool:
        try:
            return body.decode(most)
        except BodyTooLarge:
            if self._count_rejection is not None:
                self._count_rejection("max-body")
            raise
        finally:
            if charge is not None:
                charge.charge_up_to(body.made)


_CR: Final = 13
_NO_BODY: Final = NoBody()


class RequestServer(Protocol):
    """The server's part in reading requests."""

    dispatch: Dispatch
    limits: Limits
    decoding: Decoding
    """Decodes bodies that come compressed."""
    waiting: int
    """
    The number of requests that wait for their responses; counted by the connections.

    Some of their clients may have gone.
    """

    def seconds(self) -> float:
        """Return the time, in seconds, of a clock that is never set."""

    def new_request_id(self) -> bytes:
        """Return an id for a request that came with none."""

    def reject(self, error: SampleAppError) -> Response:
        """Return the response to a request that is wrong, or over a limit."""

    def response_to(self, failure: Failure, request_id: bytes) -> Response:
        """Return the response to a request whose handler has failed."""

    def count_rejection(self, reason: str) -> None:
        """Count a request, or a connection, that was refused; the reason is the name of an option."""


class Rejection(Exception):
    """A request is answered before it is whole; nothing more of its connection is read."""

    def __init__(self, response: Response) -> None:
        super().__init__(response)
        self.response = response


class RequestReader:
    """Reads the requests of one connection, one after the other."""

    __slots__ = (
        "_body",
        "_charge",
        "_coded",
        "_handler",
        "_host_rule",
        "_length",
        "_partial_head",
        "_peer",
        "_reservation",
        "_server",
        "buffer",
        "exchange",
        "expects_continue",
        "received",
        "request",
    )

    def __init__(
        self, server: RequestServer, peer: Peer, reservation: MemoryReservation, host_rule: HostRule | None
    ) -> None:
        """
        :param reservation: the memory for the body of the request that is being read.
        :param host_rule: the hosts that requests may name; ``None`` allows any host.
        """
        self._server = server
        self._peer = peer
        self._reservation = reservation
        self._host_rule = host_rule
        self._partial_head: PartialHead | None = None
        self._handler: Response | Handler | None = None
        self._body: Body | None = None
        self._coded: CodedBody | None = None
        self._length = 0
        """That of the body that is being read, as announced, in bytes; 0 if it comes in chunks."""
        self._charge: Charge | None = None
        self.buffer = b""
        """Bytes that have come and are not read yet."""
        self.exchange: Exchange | None = None
        """The exchange of the request whose head was read last, until it is answered."""
        self.request: Request | None = None
        """The request whose head was read last."""
        self.expects_continue = False
        """True if the client waits for "100 Continue" before it sends the body that is being read."""
        self.received = 0
        """The length of the body that is being read, as far as it has come, in bytes as sent."""

    @property
    def state(self) -> ConnectionState:
        """The part of a request that is being read."""
        if self._body is not None:
            return BODY
        return IDLE if self._partial_head is None else HEADER

    def read(self) -> Response | Handler | None:
        """
        Read a request from the buffer, which must not be empty.

        :return: the response, or the handler to be called, if the request is whole now; ``None`` if more of
            it must come, or if a body has more in the buffer, to be read in the next turn of the reactor.
        :raise Rejection: the request is answered although it is not whole.
        """
        if self._body is not None:
            return self._read_body()
        data = self.buffer
        if data[0] == _CR:
            # RFC 9112, section 2.2: some clients send an empty line after a body.
            data = self.buffer = _without_empty_lines(data)
            if data in (b"", b"\r"):
                return None
        end = data.find(END_OF_HEAD, 0, MAX_HEAD)
        try:
            if end < 0:
                self._check_partial_head(data)
                return None
            end += len(END_OF_HEAD)
            head = parse_head(data[:end])
        except RequestError as error:
            raise self._rejection(error) from error
        self._partial_head = None
        server = self._server
        self.exchange = exchange = Exchange(
            self._peer, head.request_id or server.new_request_id(), server.seconds(), head
        )
        self.request = request = Request(head.method, head.path, head.query, head.fields, exchange)
        handler = self._decide(request, head)
        request.reservation = reservation = self._reservation
        reservation.owner = exchange.caller if request.verify_body is None else Unverified.SENDERS
        length = head.length
        if length == 0:
            self.buffer = data[end:]
            # Or the next body of this connection would be decoded.
            self._coded = None
            is_usual = head.keeps_alive and head.method != b"POST"
            return handler if is_usual else self._unless_unframed(handler, request, head)
        if length is not None:
            stop = end + length
            if length <= _NOT_COUNTED and stop <= len(data) and length <= self._max_body(request):
                self.buffer = data[stop:]
                if self._coded is None:
                    request.body = data[end:stop]
                else:
                    self._coded.write(data[end:stop])
                    self._coded = None
                return handler if head.keeps_alive else self._unless_unframed(handler, request, head)
        self.buffer = data[end:]
        self._begin_body(handler, request, head)
        return self._read_body() if self.buffer else None

    @property
    def awaits_end(self) -> bool:
        """True if the request is whole unless more bytes come: a last ``DELETE`` that declares no body."""
        return self._body is _NO_BODY

    def end_request(self) -> Response | Handler | None:
        """
        Return the handler of a request that `awaits_end`, now that no more bytes are expected.

        :return: ``None`` if there is no such request.
        :raise Rejection: more bytes are in the buffer.
        """
        if not self.awaits_end:
            return None
        self._read_body()
        handler, self._handler, self._body = self._handler, None, None
        return handler

    def drop(self) -> None:
        """Drop the buffer after a rejection, and charge the caller for it as for a body."""
        if self._charge is not None:
            self._charge.add(len(self.buffer))
        self.buffer = b""

    def clear(self) -> None:
        """Forget the request that is being read, and the buffer."""
        self.buffer = b""
        self._partial_head = self.request = self._handler = self._body = self._coded = None

    def end(self) -> None:
        """Forget everything, now that the connection is lost, and refund the bytes that have not come."""
        if self._charge is not None:
            self._charge.end()
        self.clear()

    def _check_partial_head(self, data: bytes) -> None:
        if len(data) >= MAX_HEAD:
            raise rejection_of_long_head(data)
        if self._partial_head is None:
            self._partial_head = PartialHead()
        self._partial_head.check(data)

    def _unless_unframed(
        self, handler: Response | Handler, request: Request, head: Head
    ) -> Response | Handler | None:
        """
        Return the handler of a request, unless a part of its body would be lost.

        :return: ``None`` if it `awaits_end` first.
        :raise Rejection: the length of the body is not declared (RFC 9112, section 6.3), or more bytes follow
            it on a connection that ends.
        """
        if isinstance(handler, Response) and handler.problem:
            return handler
        if head.method == b"POST" and request.needs_length and not has_content(head.fields):
            raise self._rejection(LengthRequired())
        if head.keeps_alive:
            return handler
        try:
            _NO_BODY.receive(self.buffer)
        except RequestError as error:
            raise self._rejection(error) from error
        if head.method != b"DELETE" or isinstance(handler, Response) or has_content(head.fields):
            return handler
        # Clients send a body that they have not announced in a packet of its own.
        self._handler, self._body, self._charge = handler, _NO_BODY, None
        self._length = self.received = 0
        self.expects_continue = False
        self.buffer = b""
        return None

    def _decide(self, request: Request, head: Head) -> Response | Handler:
        """Choose the handler of a request, or answer it, by its head alone."""
        server, host_rule, host = self._server, self._host_rule, head.host
        if host_rule is not None and host is not None and not host_rule.allows(host):
            return server.reject(MisdirectedRequest(host))
        try:
            handler = server.dispatch(request)
        except Exception:  # noqa: BLE001 -- whatever it is, the caller gets a response
            handler = server.response_to(Failure(), request.exchange.request_id)
        if head.expects_unknown and not (isinstance(handler, Response) and handler.at_once):
            # Not before: an unknown caller learns only that it is unknown.
            return server.reject(ExpectationNotMet())
        if (
            server.waiting >= server.limits.max_waiting
            and not isinstance(handler, Response)
            and request.method not in SAFE
        ):
            server.count_rejection("max-waiting")
            return server.reject(TooManyRequests(server.limits.max_waiting))
        return self._decoding(handler, request, head.codings) if head.codings else handler

    def _decoding(
        self, handler: Response | Handler, request: Request, codings: tuple[bytes, ...]
    ) -> Response | Handler:
        """Make a handler into one that decodes the body first."""
        if isinstance(handler, Response) and handler.problem:
            # A caller that may not call, for example, learns only that.
            return handler
        if not has_content(request.fields):
            return handler
        try:
            coding = coding_of(codings)
        except RequestError as error:
            return self._server.reject(error)
        if not _wants_body(handler, request):
            return handler
        self._coded = coded = CodedBody(
            coding, limit=self._max_body(request), reserve=self._reservation.resize
        )
        return partial(self._server.decoding.handle, handler, coded)

    def _begin_body(self, handler: Response | Handler, request: Request, head: Head) -> None:
        length, max_body = head.length, self._max_body(request)
        self._charge = request.charge
        if length is not None and length > max_body:
            self.drop()
            raise self._rejection_of_body(handler, request)
        if length is not None and _wants_body(handler, request):
            # Memory is reserved as the body comes.
            try:
                self._reservation.require_room(length)
            except RequestError as error:
                self._coded = None
                handler = self._server.reject(error)
        if isinstance(handler, Response) and handler.at_once:
            self.drop()
            raise Rejection(handler)
        self.expects_continue = head.expects_continue and not self.buffer
        if self.expects_continue and isinstance(handler, Response):
            # The client sends its body only after "100 Continue", so this is the end of the request.
            raise Rejection(handler)
        is_wanted, coded = _wants_body(handler, request), self._coded
        self._handler = handler
        self._body = (
            ChunkedBody(max_body, keep=is_wanted, content=coded)
            if length is None
            else SizedBody(length, keep=is_wanted, content=coded)
        )
        self._length = length or 0
        self.received = 0

    def _read_body(self) -> Response | Handler | None:
        body, request, handler = self._body, self.request, self._handler
        if body is None or request is None or handler is None:
            raise AssertionError("The body to be read is missing.")
        data = self.buffer
        try:
            if _wants_body(handler, request):
                size, length = self.received + len(data), self._length
                self._reservation.resize(min(size, length or size), announced=length)
            is_whole, rest = body.receive(data)
        except RequestError as error:
            self.drop()
            if isinstance(error, BodyTooLarge):
                raise self._rejection_of_body(handler, request) from error
            raise self._rejection(error) from error
        size = len(data) - len(rest)
        self.received += size
        if self._charge is not None:
            try:
                self._charge.add(size)
                if not is_whole:
                    self._charge.require_room()
            except SampleAppError as error:
                # Later bytes are not charged, or there would not be room at the time that the response says.
                self._charge = None
                raise Rejection(self._server.reject(error)) from error
        self.buffer = rest
        if not is_whole:
            return None
        request.body = body.content()
        if not self._length and self._coded is None and self._reservation.size:
            # The framing of the chunks was counted, too.
            self._reservation.resize(len(request.body))
        self._body = self._handler = self._coded = self._charge = None
        head = request.exchange.head
        return handler if head is None or head.keeps_alive else self._unless_unframed(handler, request, head)

    def _max_body(self, request: Request) -> int:
        return self._server.limits.max_body if request.max_body is None else request.max_body

    def _rejection(self, error: RequestError) -> Rejection:
        return Rejection(self._server.reject(error))

    def _rejection_of_body(self, handler: Response | Handler, request: Request) -> Rejection:
        """Reject a body over the limit; anything else that is wrong with the request comes first."""
        if isinstance(handler, Response):
            return Rejection(handler)
        self._server.count_rejection("max-body")
        return self._rejection(BodyTooLarge(self._max_body(request)))


def _wants_body(handler: Response | Handler, request: Request) -> TypeGuard[Handler]:
    return request.is_body_wanted and not isinstance(handler, Response)


def _without_empty_lines(data: bytes) -> bytes:
    position = 0
    while data.startswith(b"\r\n", position):
        position += 2
    return data[position:]
