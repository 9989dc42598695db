"""
Routes, declared with Klein and found in a table.

Klein's own look-up goes through werkzeug and costs more than all the rest of a small request. It is what
answers inside any other site of twisted.web; the service's own connections find the same handlers here: those
without variables by one look-up, and the others by werkzeug's rules, which are remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial, wraps
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from klein import Klein
from klein.resource import KleinResource
from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from werkzeug import exceptions
from werkzeug.routing import MapAdapter

from sampleapp.access import Right
from sampleapp.errors import SampleAppError
from sampleapp.web.answers import Answer, set_answer
from sampleapp.web.cross_site import CrossSiteRule
from sampleapp.web.descriptions import Description
from sampleapp.web.error_objects import in_form_for, not_found
from sampleapp.web.gate import Gate
from sampleapp.web.problems import INTERNAL_ERROR, problem_answer
from sampleapp.web.request_errors import CrossSiteRequest, MalformedRequest, MethodNotAllowed, PathNotFound
from sampleapp.web.server import Handler, Limits, Request
from sampleapp.web.server.content_coding import check_content_coding
from sampleapp.web.server.decoding import Decoding
from sampleapp.web.server.head import Head, check_host
from sampleapp.web.twisted_web import Terms, give_request_id, in_form_of, render, request_of, set_terms

__all__ = ["RouteTable", "Routes", "answer_to_failure", "refusal_in_form"]

Endpoint: TypeAlias = Callable[..., "Answer | Deferred[Answer]"]
"""A method that answers a `Request`. The variables of its route are keywords."""

Admit: TypeAlias = Callable[..., None]
"""Raises what is wrong with a `Request`, judged by its head. The variables of the route are keywords."""

MaxBody: TypeAlias = Callable[..., "int | None"]
"""A method that tells how long the body of a `Request` may be. The variables of the route are keywords."""

_MOST_REMEMBERED: Final = 512
_LONGEST_REMEMBERED: Final = 1024
_NO_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_NO_METHOD: Final = "-"

_log = Logger()


class _Bound(Struct, frozen=True):
    path: str
    handler: Handler
    admit: Callable[[Request], None] | None
    right: Right
    max_body: Callable[[Request], int | None] | None = None


class _Route(Struct, frozen=True):
    path: str
    methods: tuple[str, ...]
    endpoint: Endpoint
    admit: Admit | None
    right: Right
    description: Description | None
    max_body: MaxBody | None = None
    owner: Callable[[Any], object] | None = None
    """Finds whose handler it is, from the instance whose handlers the others are."""

    def bound(self, instance: object, variables: Mapping[str, Any]) -> _Bound:
        owner = instance if self.owner is None else self.owner(instance)
        return _Bound(
            self.path,
            partial(self.endpoint, owner, **variables),
            partial(self.admit, **variables) if self.admit is not None and variables else self.admit,
            self.right,
            None if self.max_body is None else partial(self.max_body, owner, **variables),
        )


class Routes:
    """
    What a Klein application declares, in a form that both ways of serving it can use.

    ::

        class Topics:
            routes = Routes()

            @routes.route("/topics/<topic>", "POST")
            def publish(self, request: Request, *, topic: str) -> Answer: ...
    """

    def __init__(self) -> None:
        self.app = Klein()
        """The application; each handler is an endpoint of it."""
        self.by_endpoint: dict[str, _Route] = {}
        """What was declared, by the names that Klein gives its endpoints."""
        self.app.handle_errors(Exception)(_refuse)

    def route(
        self,
        path: str,
        *methods: str,
        admit: Admit | None = None,
        right: Right = Right.ANY,
        description: Description | None = None,
        max_body: MaxBody | None = None,
    ) -> Callable[[Endpoint], Callable[..., Any]]:
        """
        Declare what answers the requests for a path.

        What the handler raises, or fails with, becomes a problem document. Should the client go away
        meanwhile, the handler goes on.

        :param path: with variables as werkzeug has them: ``/topics/<topic>``, ``/parts/<int:number>``. Where
            several routes fit, it is the one that has the method and is most exact. A variable is given as a
            keyword, with its percent-encoding undone once.
        :param methods: those that the handler takes. ``HEAD`` comes with ``GET``.
        :param admit: looks at the request before its body is taken, and raises what is wrong with it. It is
            given the variables, too.
        :param right: what a caller has to have for it.
        :param description: what ``/openapi.json`` says of it. Each route of the service has one.
        :param max_body: a method that tells how long the body of a request may be, in bytes; ``None`` leaves
            that to the server, which is so by default. It is asked before anything else.
        """

        def decorate(handler: Endpoint) -> Callable[..., Deferred[bytes]]:
            return self._declare(_Route(path, methods, handler, admit, right, description, max_body))

        return decorate

    def include(self, part: Routes, of: Callable[[Any], object]) -> None:
        """
        Take in the routes of a part, so that one application serves them all.

        :param part: whose routes are all declared already. No handler has the name of one that is here.
        :param of: finds the instance whose handlers those are, given the one whose handlers these are.
        """
        for route in part.by_endpoint.values():
            self._declare(replace(route, owner=of))

    def _declare(self, route: _Route) -> Callable[..., Deferred[bytes]]:
        @wraps(route.endpoint)
        def endpoint(instance: Any, request: IRequest, **variables: Any) -> Deferred[bytes]:
            bound = route.bound(instance, variables)
            admit = partial(_limit_and_admit, bound)
            return render(request, admit=admit, handler=bound.handler, answer_to=answer_to_failure)

        self.by_endpoint[route.endpoint.__name__] = route
        self.app.route(route.path, methods=list(route.methods))(endpoint)
        return endpoint

    def resource(
        self,
        instance: object,
        *,
        gate: Gate | None = None,
        cross_site: CrossSiteRule | None = None,
        max_body: int | None = None,
    ) -> Resource:
        """
        Make the root of a site, or a part of one, for any program with twisted.web.

        :param instance: whose handlers they are.
        :param gate: lets requests in; by default everybody may do everything.
        :param cross_site: what pages of other sites may do; by default none of them may publish.
        :param max_body: how long a body that came compressed may be when it is decoded, in bytes; 1 MiB by
            default. How long it may be as it comes is up to the site.
        """
        return _RoutesResource(
            self.app.__get__(instance, type(instance)),
            routes=self,
            gate=gate,
            cross_site=CrossSiteRule() if cross_site is None else cross_site,
            max_body=Limits().max_body if max_body is None else max_body,
        )

    def right_to(self, method: bytes, path: bytes) -> Right:
        """Return what a caller has to have for a request, whether or not something answers it."""
        try:
            endpoint, _ = _match(self.app.url_map.bind(""), method, path)
        except SampleAppError:
            return Right.ANY
        return self.by_endpoint[endpoint].right


def _limit_and_admit(bound: _Bound, request: Request) -> None:
    if bound.max_body is not None:
        request.max_body = bound.max_body(request)
    if bound.admit is not None:
        bound.admit(request)


def answer_to_failure(failure: Failure, request_id: bytes) -> Answer:
    """What to answer when a handler failed; a fault of the service is logged, with the id of the request."""
    if isinstance(failure.value, SampleAppError):
        with suppress(LookupError):
            return problem_answer(failure.value)
    _log.failure(
        "A request met a fault of the service. (X-Request-Id: {request_id})",
        failure=failure,
        request_id=request_id.decode("ascii", "backslashreplace"),
    )
    return INTERNAL_ERROR


def refusal_in_form(answer: Answer, head: Head) -> Answer:
    """Give a refusal the form that its client reads, see `sampleapp.web.error_objects`."""
    fields = head.fields
    return in_form_for(
        answer,
        method=head.method,
        path=head.path,
        content_types=fields.all(b"Content-Type"),
        accept=fields.joined(b"Accept"),
    )


class RouteTable:
    """The routes of Klein applications, as the service's own connections find them."""

    def __init__(
        self,
        routes: Routes,
        instance: object,
        *others: tuple[Routes, object],
        gate: Gate | None = None,
        cross_site: CrossSiteRule | None = None,
    ) -> None:
        """
        :param instance: whose handlers they are.
        :param others: more routes, each with the instance whose handlers they are. No path may be in two.
        :param gate: lets requests in; by default everybody may do everything.
        :param cross_site: what pages of other sites may do; by default none of them may publish.
        """
        self._gate = gate
        self._check_site = (CrossSiteRule() if cross_site is None else cross_site).check
        self._parts = ((routes, instance), *others)
        self.routes = tuple(part for part, _ in self._parts)
        """All that it finds."""
        self._urls = [part.app.url_map.bind("") for part, _ in self._parts]
        self._exact = {
            (method.encode("ascii"), rule.rule.encode("ascii")): part.by_endpoint[rule.endpoint].bound(
                its_instance, {}
            )
            for part, its_instance in self._parts
            for rule in part.app.url_map.iter_rules()
            # What may also be sent in another spelling is found by that of werkzeug.
            if not rule.arguments and rule.rule == quote(rule.rule)
            for method in rule.methods or ()
        }
        self._remembered = lru_cache(maxsize=_MOST_REMEMBERED)(self._find)

    @property
    def is_guarded(self) -> bool:
        """Whether it is asked who calls."""
        return self._gate is not None

    @property
    def methods(self) -> set[str]:
        """All that any path takes."""
        return {
            method
            for part, _ in self._parts
            for rule in part.app.url_map.iter_rules()
            for method in rule.methods or ()
        }

    def dispatch(self, request: Request) -> Answer | Handler:
        """
        Find what answers a request, before its body is taken.

        :raise SampleAppError: nothing does, or the request may not come in.
        """
        bound = self._exact.get((request.method, request.path))
        if bound is None:
            found = self._find_by_rules(request)
            if isinstance(found, Answer):
                return found
            bound = found
        request.exchange.route = bound.path
        if bound.max_body is not None:
            # Known to the gate, too, for what is refused takes nothing of its caller's rate.
            request.max_body = bound.max_body(request)
        finish = None if self._gate is None else self._gate.admit(request, bound.right)
        self._check_site(request)
        if bound.admit is not None:
            bound.admit(request)
        return bound.handler if finish is None else finish(bound.handler)

    def _find_by_rules(self, request: Request) -> _Bound | Answer:
        """
        Find what answers a request whose path is not declared as it was sent.

        :return: an answer if nothing does.
        :raise SampleAppError: nothing does, or nobody may know.
        """
        find = self._remembered if len(request.path) <= _LONGEST_REMEMBERED else self._find
        try:
            if request.path != b"*":
                return find(request.method, request.path)
            answer = _answer_for_whole_server(request)
        except MethodNotAllowed as error:
            answer = _refusal_of_method(request.method, error)
        except SampleAppError:
            self._admit_unserved(request)
            raise
        self._admit_unserved(request)
        return answer

    def _admit_unserved(self, request: Request) -> None:
        """Let nobody find out without credentials what there is, and what not."""
        if self._gate is not None:
            self._gate.admit(request, Right.ANY)

    def _find(self, method: bytes, path: bytes) -> _Bound:
        for urls, (routes, instance) in zip(self._urls, self._parts, strict=True):
            with suppress(PathNotFound):
                endpoint, variables = _match(urls, method, path)
                return routes.by_endpoint[endpoint].bound(instance, variables)
        raise not_found(path)


def _answer_for_whole_server(request: Request) -> Answer:
    if request.method != b"OPTIONS":
        raise MalformedRequest('The target "*" is for OPTIONS only.')
    # A probe (RFC 9110, section 9.3.7).
    return Answer(HTTPStatus.NO_CONTENT)


def _refusal_of_method(method: bytes, error: MethodNotAllowed) -> Answer:
    """Tell which methods the path takes: as a refusal, or because it was asked for."""
    if method == b"OPTIONS":
        return Answer(HTTPStatus.NO_CONTENT, error.headers)
    return problem_answer(error)


def _match(urls: MapAdapter, method: bytes, path: bytes) -> tuple[str, Mapping[str, Any]]:
    """
    Find the name of an endpoint, and the variables in the path, by werkzeug's rules.

    :raise RequestError: there is none.
    """
    text = _decoded(path)
    name = method.decode("ascii")
    try:
        # Werkzeug takes "post" for "POST", but methods are case-sensitive (RFC 9110, section 9.1).
        return urls.match(text, name if name == name.upper() else _NO_METHOD)
    except exceptions.MethodNotAllowed as error:
        raise _method_not_allowed(error) from None
    except exceptions.HTTPException:
        # A redirect is one as well, which callers of a service do not follow.
        raise PathNotFound from None


def _method_not_allowed(error: exceptions.MethodNotAllowed) -> MethodNotAllowed:
    return MethodNotAllowed({*(error.valid_methods or ()), "OPTIONS"})


def _decoded(path: bytes) -> str:
    """
    Undo the percent-encoding of a path, once.

    :raise MalformedRequest: it is no percent-encoding (RFC 3986, section 2.1), or not that of UTF-8.
    :raise PathNotFound: a segment is empty, or holds a slash then, so it is no path of this service.
    """
    if _NO_ESCAPE.search(path):
        raise MalformedRequest("In a path, % begins an octet of two hexadecimal digits; % itself is %25.")
    segments = [unquote_to_bytes(segment) for segment in path.split(b"/")]
    try:
        decoded = b"/".join(segments).decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedRequest("The path is not UTF-8 when its percent-encoding is undone.") from None
    # Werkzeug and Klein take several slashes for one, or redirect.
    if b"//" in path or any(b"/" in segment for segment in segments):
        raise PathNotFound
    return decoded


class _RoutesResource(KleinResource):
    """Klein's resource, which is not asked what it would take for another request, or refuse badly."""

    def __init__(
        self, app: Klein, *, routes: Routes, gate: Gate | None, cross_site: CrossSiteRule, max_body: int
    ) -> None:
        super().__init__(app)
        self._routes = routes
        self._gate = gate
        self._cross_site = cross_site
        self._max_body = max_body
        self._decoding: Decoding | None = None

    def render(self, request: IRequest) -> Any:
        """Answer a request, or refuse it."""
        try:
            self._check(request)
        except SampleAppError as error:
            return set_answer(request, in_form_of(request, problem_answer(error)))
        return super().render(request)

    def _check(self, request: Any) -> None:
        own = request_of(request)
        request.content.seek(0)
        # Klein meets a name that IDNA cannot encode with a traceback.
        check_host(own.fields, is_required=False)
        # Without the place of this resource in its site.
        path = b"".join(b"/%b" % segment for segment in own.path.split(b"/")[1 + len(request.prepath) :])
        finish = None
        if self._gate is not None:
            finish = self._gate.admit(own, self._routes.right_to(own.method, path))
        if self._decoding is None:
            # Only a site has a reactor.
            self._decoding = Decoding(request.site.reactor)
        set_terms(request, Terms(own.caller, finish, self._max_body, self._decoding))
        if own.method == b"OPTIONS":
            # No handler answers these.
            check_content_coding(own.fields)
        # What Klein would take for another path is refused.
        _decoded(path)
        if own.method != own.method.upper():
            _match(self._app.url_map.bind(""), own.method, path)
        try:
            self._cross_site.check(own)
        except CrossSiteRequest:
            # That there is no such path, or method of it, is said first.
            _match(self._app.url_map.bind(""), own.method, path)
            raise


def _refuse(self: object, request: IRequest, failure: Failure) -> bytes:  # noqa: ARG001 -- Klein's names
    """Answer what Klein refuses, or meets; what handlers raise is answered before."""
    error = failure.value
    if isinstance(error, exceptions.MethodNotAllowed):
        answer = _refusal_of_method(request.method, _method_not_allowed(error))
    elif isinstance(error, exceptions.HTTPException):
        answer = problem_answer(not_found(request.path))
    else:
        answer = answer_to_failure(failure, give_request_id(request, None))
    return set_answer(request, in_form_of(request, answer))
