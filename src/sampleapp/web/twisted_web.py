"""The same handlers inside a site of twisted.web: what comes and goes there, as ours and back."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest

from sampleapp.web.answers import Answer, set_answer
from sampleapp.web.server import Fields, Handler, Request

__all__ = ["render", "request_of"]


def request_of(request: IRequest) -> Request:
    """Read a request of twisted.web, whose body is there already."""
    path, _, query = request.uri.partition(b"?")
    fields = [(name, value) for name, values in request.requestHeaders.getAllRawHeaders() for value in values]
    return Request(request.method, path, query, Fields(fields), request.content.read())


def render(
    request: IRequest,
    *,
    handler: Handler,
    answer_to: Callable[[Failure], Answer],
    admit: Callable[[Request], None] | None = None,
) -> Deferred[bytes]:
    """
    Let a handler answer a request of twisted.web.

    :param answer_to: what to answer when the handler has failed.
    :param admit: looks at the request first, and raises what is wrong with it.
    :return: fires with the body, once status and header fields are set. Cancelling it does not reach the
        handler, so that somebody sees what becomes of a record that is on its way.
    """

    async def answer() -> None:
        try:
            own = request_of(request)
            if admit is not None:
                admit(own)
            answer = handler(own)
            if isinstance(answer, Deferred):
                answer = await answer
        except Exception:  # noqa: BLE001 -- nothing cancels it, and whatever it is, the caller gets an answer
            answer = answer_to(Failure())
        rendered.callback(set_answer(request, answer))

    rendered: Deferred[bytes] = Deferred()
    Deferred.fromCoroutine(answer()).addErrback(rendered.errback)
    return rendered
