"""
Routes, declared with Klein and found in a table.

Klein's own look-up goes through werkzeug and costs more than all the rest of a small request. What is left
to it is to refuse what is in no route.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

from klein import Klein
from klein.resource import KleinResource
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from sampleapp.errors import SampleAppError
from sampleapp.web.answers import Answer
from sampleapp.web.problems import INTERNAL_ERROR, problem_answer
from sampleapp.web.request_errors import MalformedRequest, MethodNotAllowed, PathNotFound, RequestError

if TYPE_CHECKING:
    from sampleapp.web.request import FrontDoorRequest

__all__ = ["RouteTable", "answer_to_failure", "route"]

Result: TypeAlias = Answer | Resource | Coroutine[Deferred[Any], Any, Answer]
Handler: TypeAlias = "Callable[[Any, FrontDoorRequest], Result]"
Endpoint: TypeAlias = "Callable[[Any, FrontDoorRequest], Deferred[None] | None]"

_log = Logger()


def route(app: Klein, path: str, *methods: str) -> Callable[[Handler], Endpoint]:
    """
    Declare what answers the requests for a path.

    The handler returns, or awaits, an `Answer`, or returns a resource that renders the request. What it
    raises becomes a problem document. Should the client go away meanwhile, the handler goes on: see
    `RouteTable`.

    :param path: as it is, without variables.
    :param methods: those that the handler takes. ``HEAD`` has to be named as well.
    """

    def decorate(handler: Handler) -> Endpoint:
        @wraps(handler)
        def endpoint(instance: Any, request: FrontDoorRequest) -> Deferred[None] | None:
            try:
                result = handler(instance, request)
                if isinstance(result, Resource):
                    result.render(request)
                    return None
            except Exception:  # noqa: BLE001 -- whatever it is, the caller gets an answer
                request.write_answer(answer_to_failure(Failure()))
                return None
            if isinstance(result, Answer):
                request.write_answer(result)
                return None
            return Deferred.fromCoroutine(_answer(result, request))

        app.route(path, methods=list(methods))(endpoint)
        return endpoint

    return decorate


async def _answer(handling: Coroutine[Deferred[Any], Any, Answer], request: FrontDoorRequest) -> None:
    try:
        answer = await handling
    except Exception:  # noqa: BLE001 -- nothing cancels it, and whatever it is, the caller gets an answer
        answer = answer_to_failure(Failure())
    request.write_answer(answer)


def answer_to_failure(failure: Failure) -> Answer:
    """What to answer when a handler failed; a fault of the service is logged."""
    if isinstance(failure.value, SampleAppError):
        with suppress(LookupError):
            return problem_answer(failure.value)
    _log.failure("A request met a fault of the service.", failure=failure)
    return INTERNAL_ERROR


class RouteTable(KleinResource):
    """
    The root of a Klein application, which finds each route by one look-up.

    Klein itself would cancel a handler when its client goes away, and so would leave nobody to see what
    becomes of a record that is on its way. Here nobody holds the handler's Deferred.
    """

    def __init__(self, app: Klein) -> None:
        """:raise ValueError: a route has variables, for which there is no look-up."""
        super().__init__(app)
        self._endpoints: dict[tuple[bytes, bytes], str] = {}
        for rule in app.url_map.iter_rules():
            if rule.arguments:
                raise ValueError(f"The route {rule.rule} has variables, which this table does not know.")
            for method in rule.methods or ():
                self._endpoints[method.encode("ascii"), rule.rule.encode("ascii")] = rule.endpoint

    def dispatch(self, request: FrontDoorRequest, path: bytes) -> bool:
        """
        Let the handler of a path answer, if there is one for the request's method.

        :return: whether there was.
        """
        endpoint = self._endpoints.get((request.method, path))
        if endpoint is None:
            return False
        self._app.execute_endpoint(endpoint, request)
        return True

    def render(self, request: FrontDoorRequest) -> Any:  # type: ignore[override] # the only kind there is
        """Answer a request whose path is written in another way, or refuse it."""
        path = b"/" + b"/".join(request.postpath or ())
        if self.dispatch(request, path):
            return NOT_DONE_YET
        try:
            self._check_for_klein(request, path)
        except RequestError as error:
            request.write_answer(problem_answer(error))
            return NOT_DONE_YET
        return super().render(request)

    def _check_for_klein(self, request: FrontDoorRequest, path: bytes) -> None:
        """:raise RequestError: Klein would take the request for another one, or refuse it badly."""
        try:
            path.decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest("The path is not UTF-8 when its percent-encoding is undone.") from None
        if path.startswith(b"//"):
            # Klein does not see the first segment when it is empty.
            raise PathNotFound
        allowed = {method.decode("ascii") for method, known in self._endpoints if known == path}
        if allowed and request.method != request.method.upper():
            # Werkzeug takes "post" for "POST", but methods are case-sensitive (RFC 9110, section 9.1).
            raise MethodNotAllowed({*allowed, "OPTIONS"})
