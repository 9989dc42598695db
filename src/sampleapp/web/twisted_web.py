"""The same handlers inside a site of twisted.web: what comes and goes there, as ours and back."""

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
from sampleapp.web.server import Exchange, Fields, Handler, Limits, Peer, Request
from sampleapp.web.server.content_coding import CodedBody, coding_of, content_codings, has_content
from sampleapp.web.server.decoding import Decoding
from sampleapp.web.server.head import request_id_of
from sampleapp.web.server.request_ids import new_request_ids

__all__ = ["Terms", "give_request_id", "in_form_of", "render", "render_resource", "request_of", "set_terms"]

_TERMS: Final = "_sampleapp_terms"

_new_request_id = new_request_ids()


class Terms(NamedTuple):
    """On what terms a request is taken: found out once, and needed when it is read again."""

    caller: Caller | None
    """Who makes it; ``None`` if nobody was asked for it."""
    finish: Callable[[Handler], Handler] | None
    """What its handler has to go through, if anything."""
    max_body: int
    """How long its body may be when it is decoded, in bytes, unless its route says so."""
    decoding: Decoding


def request_of(request: IRequest) -> Request:
    """Read a request of twisted.web, whose body is there already."""
    path, _, query = request.uri.partition(b"?")
    fields = Fields(
        (name, value) for name, values in request.requestHeaders.getAllRawHeaders() for value in values
    )
    exchange = Exchange(
        Peer(getattr(request, "transport", None)),
        give_request_id(request, request_id_of(fields)),
        time.time(),
    )
    terms = _terms_of(request)
    caller = None if terms is None else terms.caller
    if caller is not None:
        exchange.caller = caller.name
    return Request(request.method, path, query, fields, exchange, request.content.read(), caller)


def set_terms(request: IRequest, terms: Terms) -> None:
    """Note in a request of twisted.web on what terms it is taken, for when it is read again."""
    setattr(request, _TERMS, terms)


def _terms_of(request: IRequest) -> Terms | None:
    terms: Terms | None = getattr(request, _TERMS, None)
    return terms


def in_form_of(request: IRequest, answer: Answer) -> Answer:
    """Give a refusal the form that a request of twisted.web expects of it."""
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
    Give a request the id by which it is known, unless it has one, and put that into its answer.

    :param own: the one that the client has given it, if any.
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
    handler: Handler,
    answer_to: Callable[[Failure, bytes], Answer],
    admit: Callable[[Request], None] | None = None,
) -> Deferred[bytes]:
    """
    Let a handler answer a request of twisted.web.

    :param answer_to: what to answer when the handler has failed; is given the id of the request, too.
    :param admit: looks at the request first, and raises what is wrong with it.
    :return: fires with the end of the body, once status and header fields are set. Cancelling it does not
        reach the handler, so that somebody sees what becomes of a record that is on its way.
    """

    async def answer() -> None:
        try:
            own = request_of(request)
            if admit is not None:
                admit(own)
            answer = _handle(request, handler, own)
            if isinstance(answer, Deferred):
                answer = await answer
        except Exception:  # noqa: BLE001 -- nothing cancels it, and whatever it is, the caller gets an answer
            answer = answer_to(Failure(), give_request_id(request, None))
        if rendered.called:
            # The client has gone.
            return
        answer = in_form_of(request, answer)
        set_head(request, answer)
        body = answer.body
        if isinstance(body, bytes):
            rendered.callback(body)
        elif request.method == b"HEAD":
            rendered.callback(b"")
        else:
            _PieceSender(request, iter(body), rendered).resumeProducing()

    rendered: Deferred[bytes] = Deferred()
    Deferred.fromCoroutine(answer()).addErrback(rendered.errback)
    return rendered


def _handle(request: Any, handler: Handler, own: Request) -> Answer | Deferred[Answer]:
    """Let a handler answer a request, whose body is decoded first if it was compressed."""
    # A resource that is not that of routes has no terms.
    terms = _terms_of(request) or Terms(None, None, Limits().max_body, Decoding(request.site.reactor))
    if terms.finish is not None:
        handler = terms.finish(handler)
    codings = content_codings(own.fields)
    if not codings:
        return handler(own)
    coding = coding_of(codings)
    if not has_content(own.fields):
        return handler(own)
    max_body = terms.max_body if own.max_body is None else own.max_body
    if len(own.body) > max_body:
        raise BodyTooLarge(max_body)
    coded = CodedBody(coding, limit=max_body)
    coded.write(own.body)
    own.body = b""
    return terms.decoding.handle(handler, coded, own)


def render_resource(request: Any, handler: Handler) -> int:
    """
    Let a handler answer a request, as a resource's ``render`` does.

    What it raises, or fails with, is left to twisted.web.

    :param request: of twisted.web, with what its interface does not name.
    """

    def finish(body: bytes) -> None:
        request.write(body)
        request.finish()

    def fail(failure: Failure) -> None:
        if not failure.check(CancelledError):
            request.processingFailed(failure)

    rendered = render(request, handler=handler, answer_to=_raise)
    request.notifyFinish().addErrback(lambda _: rendered.cancel())
    rendered.addCallbacks(finish, fail)
    return NOT_DONE_YET


def _raise(failure: Failure, _request_id: bytes) -> NoReturn:
    failure.raiseException()


@implementer(IPushProducer)
class _PieceSender:
    """Hands over a body in pieces as the client reads: to join a large one takes tens of milliseconds."""

    def __init__(self, request: Any, pieces: Iterator[bytes], rendered: Deferred[bytes]) -> None:
        """
        :param request: of twisted.web, with what its interface does not name.
        :param rendered: fires when all pieces are handed over.
        """
        self._request = request
        self._pieces = pieces
        self._rendered = rendered
        self._is_paused = False
        request.registerProducer(self, streaming=True)

    def resumeProducing(self) -> None:
        """Hand over what the transport has room for."""
        self._is_paused = False
        for piece in self._pieces:
            self._request.write(piece)
            if self._is_paused or self._rendered.called:
                return
        self._request.unregisterProducer()
        self._rendered.callback(b"")

    def pauseProducing(self) -> None:
        """Hand over nothing more for now."""
        self._is_paused = True

    def stopProducing(self) -> None:
        """Hand over nothing more: nobody is there."""
        self._pieces = iter(())
