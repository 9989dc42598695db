"""Adapter for sites of twisted.web: converts their requests, and writes the answers of handlers to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, NoReturn

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.server import NOT_DONE_YET
from zope.interface import implementer

from sampleapp.access import Caller
from sampleapp.web.answers import Answer, set_head
from sampleapp.web.error_objects import in_form_for
from sampleapp.web.request_errors import BodyTooLarge
from sampleapp.web.server import BodyMemory, Exchange, Fields, Handler, Limits, Peer, Request, Share
from sampleapp.web.server.content_coding import CodedBody, coding_of, content_codings, has_content
from sampleapp.web.server.decoding import Decoding
from sampleapp.web.server.head import request_id_of
from sampleapp.web.server.request import Charge
from sampleapp.web.server.request_ids import new_request_ids
from sampleapp.web.server.stream import close_source
from sampleapp.web.twisted_stream import SiteStream

__all__ = ["Terms", "give_request_id", "in_form_of", "render", "render_resource", "request_of", "set_terms"]

_TERMS: Final = "_sampleapp_terms"

_new_request_id = new_request_ids()


class Terms(NamedTuple):
    """Results of access control and limits of a request, kept for when the request is converted again."""

    caller: Caller | None
    """The authenticated caller; ``None`` if callers need no credentials."""
    charge: Charge | None
    """Charges the decoded body to the caller's rate; ``None`` if the caller has no rate."""
    max_body: int
    """The limit for the decoded body, in bytes, if the route has none of its own."""
    decoding: Decoding
    memory: BodyMemory
    """For decoded bodies and their records. The site limits the bodies as received."""


def request_of(request: IRequest) -> Request:
    """Convert a request of twisted.web, whose body is received."""
    path, _, query = request.uri.partition(b"?")
    fields = Fields(
        (name, value) for name, values in request.requestHeaders.getAllRawHeaders() for value in values
    )
    exchange = Exchange(
        Peer(getattr(request, "transport", None)),
        give_request_id(request, request_id_of(fields)),
        time.monotonic(),
    )
    terms = _terms_of(request)
    caller = None if terms is None else terms.caller
    if caller is not None:
        exchange.caller = caller.name
    share = None if terms is None else Share(terms.memory)
    if share is not None:
        share.owner = exchange.caller
    return Request(request.method, path, query, fields, exchange, request.content.read(), caller, share=share)


def set_terms(request: IRequest, terms: Terms) -> None:
    """Store terms in a request of twisted.web, for when it is converted again."""
    setattr(request, _TERMS, terms)


def _terms_of(request: IRequest) -> Terms | None:
    terms: Terms | None = getattr(request, _TERMS, None)
    return terms


def in_form_of(request: IRequest, answer: Answer) -> Answer:
    """Return an error in the form that the client of a request of twisted.web reads."""
    if not answer.problem:
        return answer
    accepts = request.requestHeaders.getRawHeaders(b"accept")
    return in_form_for(
        answer,
        method=request.method,
        path=request.uri.partition(b"?")[0],
        content_types=tuple(request.requestHeaders.getRawHeaders(b"content-type", ())),
        accept=None if accepts is None else b", ".join(accepts),
    )


def give_request_id(request: IRequest, own: bytes | None) -> bytes:
    """
    Return the id of a request. If it has none yet, set one in the header of its answer.

    :param own: the id that the client sent, if any.
    """
    given: list[bytes] | None = request.responseHeaders.getRawHeaders(b"x-request-id")
    if given is not None:
        return given[0]
    request_id = own or _new_request_id()
    request.responseHeaders.setRawHeaders(b"x-request-id", [request_id])
    return request_id


def render(
    request: IRequest,
    *,
    admit: Callable[[Request], Handler],
    answer_to: Callable[[Failure, bytes], Answer],
) -> Deferred[bytes]:
    """
    Let a handler answer a request of twisted.web.

    :param admit: checks the request and returns its handler.
    :param answer_to: returns the answer to an error of ``admit`` or the handler, given the id of the request.
    :return: fires with the end of the body, after status and header fields are set. Cancelling it does not
        cancel the handler, so that the outcome of a record that is being published is still observed; see
        `Request.ends_with_client`.
    """
    working = _Working()

    async def answer() -> None:
        share = None
        try:
            own = request_of(request)
            share = own.share
            answer = _handle(request, admit(own), own)
            if isinstance(answer, Deferred):
                answer = await working.add(answer, own)
        except Exception:  # noqa: BLE001 -- nothing cancels it, and whatever it is, the caller gets an answer
            answer = answer_to(Failure(), give_request_id(request, None))
        finally:
            if share is not None:
                share.release()
        _send(request, answer, rendered)

    rendered: Deferred[bytes] = Deferred(working.cancel)
    Deferred.fromCoroutine(answer()).addErrback(rendered.errback)
    return rendered


def _send(request: Any, answer: Answer, rendered: Deferred[bytes]) -> None:
    """Send an answer, whose last bytes are the result of the Deferred, unless the client has disconnected."""
    source = answer.source
    if rendered.called:
        if source is not None:
            close_source(source, "client", give_request_id(request, None))
        return
    answer = in_form_of(request, answer)
    set_head(request, answer)
    body = answer.body
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
        _PieceSender(request, iter(body), rendered).resumeProducing()


class _Working:
    """The work of a handler, which is cancelled if it is useless without the client."""

    def __init__(self) -> None:
        self._useless: tuple[Deferred[Answer], Request] | None = None

    def add(self, work: Deferred[Answer], request: Request) -> Deferred[Answer]:
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


def _handle(request: Any, handler: Handler, own: Request) -> Answer | Deferred[Answer]:
    """Let a handler answer a request, after decoding a compressed body."""
    # A resource other than that of `Routes` sets no terms.
    terms = _terms_of(request) or Terms(
        None, None, Limits().max_body, Decoding(request.site.reactor), BodyMemory(Limits().max_body_memory)
    )
    share = Share(terms.memory) if own.share is None else own.share
    codings = content_codings(own.fields)
    if not codings or not has_content(own.fields):
        return handler(own)
    coding = coding_of(codings)
    max_body = terms.max_body if own.max_body is None else own.max_body
    if len(own.body) > max_body:
        raise BodyTooLarge(max_body)
    coded = CodedBody(coding, limit=max_body, reserve=share.resize)
    coded.write(own.body)
    own.charge = terms.charge
    own.body = b""
    return terms.decoding.handle(handler, coded, own)


def render_resource(request: Any, handler: Handler) -> int:
    """
    Let a handler answer a request, as a resource's ``render`` does.

    Errors of the handler are left to twisted.web.

    :param request: of twisted.web; uses more than its interface has.
    """

    def finish(body: bytes) -> None:
        request.write(body)
        request.finish()

    def fail(failure: Failure) -> None:
        if not failure.check(CancelledError):
            request.processingFailed(failure)

    rendered = render(request, admit=lambda _: handler, answer_to=_raise)
    request.notifyFinish().addErrback(lambda _: rendered.cancel())
    rendered.addCallbacks(finish, fail)
    return NOT_DONE_YET


def _raise(failure: Failure, _request_id: bytes) -> NoReturn:
    failure.raiseException()


@implementer(IPushProducer)
class _PieceSender:
    """Writes a body in pieces as the client reads: joining a large one would take tens of milliseconds."""

    def __init__(self, request: Any, pieces: Iterator[bytes], rendered: Deferred[bytes]) -> None:
        """
        :param request: of twisted.web; uses more than its interface has.
        :param rendered: fires when all pieces are written.
        """
        self._request = request
        self._pieces = pieces
        self._rendered = rendered
        self._is_paused = False
        request.registerProducer(self, streaming=True)

    def resumeProducing(self) -> None:
        """Write pieces until the transport is full."""
        self._is_paused = False
        for piece in self._pieces:
            self._request.write(piece)
            if self._is_paused or self._rendered.called:
                return
        self._request.unregisterProducer()
        self._rendered.callback(b"")

    def pauseProducing(self) -> None:
        """Stop writing until `resumeProducing`."""
        self._is_paused = True

    def stopProducing(self) -> None:
        """Stop writing, since the client has disconnected."""
        self._pieces = iter(())
