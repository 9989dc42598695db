"""Adapter for sites of twisted.web: converts their requests, and writes the responses of handlers to them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from sampleapp.web.errors import BodyTooLarge
from sampleapp.web.failures import in_form_for, response_to_failure
from sampleapp.web.responses import Event, Response, Source, set_head
from sampleapp.web.server import BodyMemory, Exchange, Fields, Handler, MemoryReservation, Peer, Request
from sampleapp.web.server.content_coding import CodedBody, coding_of, content_codings, has_content
from sampleapp.web.server.content_types import merge_content_types
from sampleapp.web.server.head import request_id_of
from sampleapp.web.server.reader import Decoding
from sampleapp.web.server.request import new_request_ids
from sampleapp.web.server.stream import MAX_UNSENT, close_source


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


_CONVERTED: Final = "_sampleapp_converted"

_new_request_id = new_request_ids()


class BodyLimits(NamedTuple):
    """The memory and the limits for the bodies of a site. The site itself limits them as they arrive."""

    max_body: int
    """The limit for the decoded body, in bytes, if the route has none of its own."""
    decoding: Decoding
    memory: BodyMemory
    """For decoded bodies and their records."""


def convert(request: IRequest, limits: BodyLimits | None = None) -> Request:
    """
    Convert a request of twisted.web, whose body is received, unless it was converted before.

    :param limits: for its body; ``None`` if no handler of it reads the body.
    """
    converted: tuple[Request, BodyLimits | None] | None = getattr(request, _CONVERTED, None)
    if converted is not None:
        return converted[0]
    path, _, query = request.uri.partition(b"?")
    fields = Fields(
        (name, value) for name, values in request.requestHeaders.getAllRawHeaders() for value in values
    )
    merge_content_types(fields)
    exchange = Exchange(
        Peer(getattr(request, "transport", None)),
        give_request_id(request, request_id_of(fields)),
        time.monotonic(),
    )
    reservation = None if limits is None else MemoryReservation(limits.memory)
    own = Request(
        request.method, path, query, fields, exchange, request.content.read(), reservation=reservation
    )
    setattr(request, _CONVERTED, (own, limits))
    return own


def in_form_of(request: IRequest, response: Response) -> Response:
    """Return an error in the form that the client of a request of twisted.web reads."""
    if not response.problem:
        return response
    accepts = request.requestHeaders.getRawHeaders(b"accept")
    return in_form_for(
        response,
        method=request.method,
        path=convert(request).path,
        content_types=tuple(request.requestHeaders.getRawHeaders(b"content-type", ())),
        accept=None if accepts is None else b", ".join(accepts),
    )


def give_request_id(request: IRequest, own: bytes | None) -> bytes:
    """
    Return the id of a request. If it has none yet, set one in the header of its response.

    :param own: the id that the client sent, if any.
    """
    given: list[bytes] | None = request.responseHeaders.getRawHeaders(b"x-request-id")
    if given is not None:
        return given[0]
    request_id = own or _new_request_id()
    request.responseHeaders.setRawHeaders(b"x-request-id", [request_id])
    return request_id


class RequestResource(Resource):
    """A resource that answers in any site of twisted.web, and in the service's own server."""

    isLeaf = True

    def respond(self, request: Request) -> Response | Deferred[Response]:
        """
        Answer a request.

        :raise SampleAppError: the request is rejected; a Deferred can fail with it as well.
        """
        raise NotImplementedError

    def render(self, request: Any) -> int:
        """
        Answer inside a site of twisted.web.

        :param request: uses more than its interface has.
        """

        def finish(body: bytes) -> None:
            request.write(body)
            request.finish()

        def fail(failure: Failure) -> None:
            if not failure.check(CancelledError):
                request.processingFailed(failure)

        rendered = render(request, check=lambda _: self.respond)
        request.notifyFinish().addErrback(lambda _: rendered.cancel())
        rendered.addCallbacks(finish, fail)
        return NOT_DONE_YET


def render(request: IRequest, *, check: Callable[[Request], Handler]) -> Deferred[Any]:
    """
    Let a handler answer a request of twisted.web.

    :param check: checks the request and returns its handler. An error of it, or of the handler, becomes a
        response.
    :return: fires with the end of the body, after status and header fields are set; or with the resource that
        the handler returns instead of a response. Cancelling it does not cancel the handler, so that the
        outcome of a record that is being published is still observed; see `Request.ends_with_client`.
    """
    working = _Working()

    async def serve() -> None:
        own = convert(request)
        try:
            response = _handle(request, check(own), own)
            if isinstance(response, Deferred):
                response = await working.add(response, own)
        except Exception:  # noqa: BLE001 -- nothing cancels it, and whatever it is, the caller gets a response
            response = response_to_failure(Failure(), own.exchange.request_id)
        finally:
            if own.reservation is not None:
                own.reservation.release()
        if isinstance(response, RequestResource):
            rendered.callback(response)
        else:
            _send(request, response, rendered)

    rendered: Deferred[Any] = Deferred(working.cancel)
    Deferred.fromCoroutine(serve()).addErrback(rendered.errback)
    return rendered


def _send(request: Any, response: Response, rendered: Deferred[bytes]) -> None:
    """Send a response, whose last bytes are the Deferred's result, unless the client has disconnected."""
    source = response.source
    if rendered.called:
        if source is not None:
            close_source(source, "client", give_request_id(request, None))
        return
    response = in_form_of(request, response)
    set_head(request, response)
    body = response.body
    if source is not None:
        if request.method != b"HEAD":
            SiteStream(request, source, rendered).begin()
            return
        close_source(source, "head", give_request_id(request, None))
    if isinstance(body, bytes):
        rendered.callback(body)
    elif request.method == b"HEAD":
        rendered.callback(b"")
    else:
        _PartSender(request, iter(body), rendered).resumeProducing()


class _Working:
    """The work of a handler, which is cancelled if it is useless without the client."""

    def __init__(self) -> None:
        self._useless: tuple[Deferred[Response], Request] | None = None

    def add(self, work: Deferred[Response], request: Request) -> Deferred[Response]:
        """Add the work for a request, and return it."""
        if request.ends_with_client:
            self._useless = work, request
        return work

    def cancel(self, rendered: Deferred[bytes]) -> None:
        """Forget the client, which has disconnected."""
        rendered.errback(CancelledError())
        if self._useless is not None:
            work, request = self._useless
            request.client_has_finished = True
            work.cancel()


def _handle(request: Any, handler: Handler, own: Request) -> Response | Deferred[Response]:
    """Let a handler answer a request, after decoding a compressed body."""
    limits: BodyLimits | None = getattr(request, _CONVERTED)[1]
    codings = content_codings(own.fields)
    if limits is None or own.reservation is None or not codings or not has_content(own.fields):
        return handler(own)
    coding = coding_of(codings)
    max_body = limits.max_body if own.max_body is None else own.max_body
    if len(own.body) > max_body:
        raise BodyTooLarge(max_body)
    coded = CodedBody(coding, limit=max_body, reserve=own.reservation.resize)
    coded.write(own.body)
    own.body = b""
    return limits.decoding.handle(handler, coded, own)


@implementer(IPushProducer)
class _PartSender:
    """Writes a body in parts as the client reads: joining a large one would take tens of milliseconds."""

    def __init__(self, request: Any, parts: Iterator[bytes], rendered: Deferred[bytes]) -> None:
        """
        :param request: of twisted.web; uses more than its interface has.
        :param rendered: fires when all parts are written.
        """
        self._request = request
        self._parts = parts
        self._rendered = rendered
        self._is_paused = False
        request.registerProducer(self, streaming=True)

    def resumeProducing(self) -> None:
        """Write parts until the transport is full."""
        self._is_paused = False
        for part in self._parts:
            self._request.write(part)
            if self._is_paused or self._rendered.called:
                return
        self._request.unregisterProducer()
        self._rendered.callback(b"")

    def pauseProducing(self) -> None:
        """Stop writing until `resumeProducing`."""
        self._is_paused = True

    def stopProducing(self) -> None:
        """Stop writing, since the client has disconnected."""
        self._parts = iter(())
