"""
Routes, declared with Klein and found in a table.

Klein's own look-up goes through werkzeug and costs more than all the rest of a small request. It is what
answers inside any other site of twisted.web; the service's own connections find the same handlers here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from klein import Klein
from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest

from sampleapp.errors import SampleAppError
from sampleapp.web.answers import Answer
from sampleapp.web.problems import INTERNAL_ERROR, problem_answer
from sampleapp.web.request_errors import MalformedRequest, MethodNotAllowed, PathNotFound
from sampleapp.web.server import Handler, Request
from sampleapp.web.twisted_web import render

__all__ = ["RouteTable", "Routes", "answer_to_failure", "decoded_path"]

Admit: TypeAlias = Callable[[Request], None]
"""Raises what is wrong with a request, judged by its head."""

_log = Logger()


class _Route(Struct, frozen=True):
    handler: Callable[[Any, Request], Answer | Deferred[Answer]]
    admit: Admit | None


class Routes:
    """What a Klein application declares, in a form that both ways of serving it can use."""

    def __init__(self) -> None:
        self.app = Klein()
        """The application; each handler is an endpoint of it."""
        self.by_endpoint: dict[str, _Route] = {}

    def route(
        self, path: str, *methods: str, admit: Admit | None = None
    ) -> Callable[[Callable[[Any, Request], Answer | Deferred[Answer]]], Callable[..., Any]]:
        """
        Declare what answers the requests for a path.

        What the handler raises, or fails with, becomes a problem document. Should the client go away
        meanwhile, the handler goes on.

        :param path: as it is, without variables.
        :param methods: those that the handler takes. ``HEAD`` has to be named as well.
        :param admit: looks at the request before its body is taken, and raises what is wrong with it.
        """

        def decorate(
            handler: Callable[[Any, Request], Answer | Deferred[Answer]],
        ) -> Callable[[Any, IRequest], Deferred[bytes]]:
            @wraps(handler)
            def endpoint(instance: Any, request: IRequest) -> Deferred[bytes]:
                return render(
                    request, admit=admit, handler=partial(handler, instance), answer_to=answer_to_failure
                )

            self.by_endpoint[handler.__name__] = _Route(handler, admit)
            self.app.route(path, methods=list(methods))(endpoint)
            return endpoint

        return decorate


def answer_to_failure(failure: Failure) -> Answer:
    """What to answer when a handler failed; a fault of the service is logged."""
    if isinstance(failure.value, SampleAppError):
        with suppress(LookupError):
            return problem_answer(failure.value)
    _log.failure("A request met a fault of the service.", failure=failure)
    return INTERNAL_ERROR


class _Bound(Struct, frozen=True):
    handler: Handler
    admit: Admit | None


class RouteTable:
    """The routes of a Klein application, each found by one look-up."""

    def __init__(self, routes: Routes, instance: object) -> None:
        """
        :param instance: whose handlers they are.
        :raise ValueError: a route has variables, for which there is no look-up.
        """
        self._bound: dict[tuple[bytes, bytes], _Bound] = {}
        self._methods: dict[bytes, set[str]] = {}
        for rule in routes.app.url_map.iter_rules():
            if rule.arguments:
                raise ValueError(f"The route {rule.rule} has variables, which this table does not know.")
            declared = routes.by_endpoint[rule.endpoint]
            bound = _Bound(partial(declared.handler, instance), declared.admit)
            path = rule.rule.encode("ascii")
            for method in rule.methods or ():
                self._bound[method.encode("ascii"), path] = bound
                self._methods.setdefault(path, set()).add(method)

    def dispatch(self, request: Request) -> Answer | Handler:
        """
        Find what answers a request, before its body is taken.

        :raise SampleAppError: nothing does, or the request may not come in.
        """
        bound = self._bound.get((request.method, request.path))
        if bound is None:
            return self._dispatch_slowly(request)
        if bound.admit is not None:
            bound.admit(request)
        return bound.handler

    def _dispatch_slowly(self, request: Request) -> Answer | Handler:
        if request.path == b"*":
            # A probe of the server as a whole (RFC 9110, section 9.3.7).
            if request.method == b"OPTIONS":
                return Answer(HTTPStatus.NO_CONTENT)
            raise MalformedRequest('The target "*" is for OPTIONS only.')
        path = decoded_path(request.path)
        if path != request.path and (request.method, path) in self._bound:
            return self.dispatch(Request(request.method, path, request.query, request.fields))
        methods = self._methods.get(path)
        if methods is None:
            raise PathNotFound
        allowed = MethodNotAllowed({*methods, "OPTIONS"})
        if request.method == b"OPTIONS":
            return Answer(HTTPStatus.NO_CONTENT, allowed.headers)
        raise allowed


def decoded_path(path: bytes) -> bytes:
    """
    Undo the percent-encoding of a path.

    :raise MalformedRequest: it is not UTF-8 then.
    :raise PathNotFound: a segment holds a slash then, so it is no path of this service.
    """
    if b"%" not in path:
        return path
    segments = [unquote_to_bytes(segment) for segment in path.split(b"/")]
    decoded = b"/".join(segments)
    try:
        decoded.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedRequest("The path is not UTF-8 when its percent-encoding is undone.") from None
    if any(b"/" in segment for segment in segments):
        raise PathNotFound
    return decoded
