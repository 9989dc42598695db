"""Declared routes, their plans, and the resource that serves them inside a site of twisted.web."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Final, NoReturn, TypeAlias

from klein import Klein
from klein.resource import KleinResource
from msgspec import Struct
from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from werkzeug import exceptions

from sampleapp.access import Right
from sampleapp.errors import Fault, InvalidParameters, SampleAppError
from sampleapp.messages.queries import require_no_parameters
from sampleapp.web.answers import Answer, set_answer
from sampleapp.web.cross_site import CrossSiteRule
from sampleapp.web.descriptions import Description
from sampleapp.web.gate import Gate, TopicUse, authorize_topic
from sampleapp.web.problems import problem_answer
from sampleapp.web.request_errors import (
    CrossSiteRequest,
    LengthRequired,
    MalformedRequest,
    PathNotFound,
    PreconditionFailed,
)
from sampleapp.web.routing.failures import answer_to_failure
from sampleapp.web.routing.paths import (
    match_path,
    method_not_allowed,
    openapi_path,
    path_not_found,
    percent_decoded,
    refusal_of_method,
    variables_of,
)
from sampleapp.web.server import SAFE, BodyMemory, Handler, Limits, Request
from sampleapp.web.server.content_coding import check_content_coding, has_content
from sampleapp.web.server.decoding import Decoding
from sampleapp.web.server.fields import check_values
from sampleapp.web.server.head import check_host
from sampleapp.web.twisted_web import Terms, give_request_id, in_form_of, render, request_of, set_terms

__all__ = ["GET_PUBLISHES_NOTHING", "BoundRoute", "Plan", "Routes", "require_meaning"]

Endpoint: TypeAlias = Callable[..., "Answer | Deferred[Answer]"]
"""Answers a `Request`. The variables of its route are keywords; ``topic`` is an `AuthorizedTopic`."""

Admit: TypeAlias = Callable[..., None]
"""
Checks the head of a `Request` and raises a `SampleAppError`.

The variables of its route are keywords; ``topic`` is a `str`, since it is not authorized yet.
"""

_TOPIC: Final = "topic"

GET_PUBLISHES_NOTHING: Final = (
    "GET publishes nothing; to publish, send a POST: the value to /topics/TOPIC?key=KEY, or a message to "
    "/messages"
)
_ALL_IN_BODY: Final = "all parts of the records are in the body"

_OVERRIDES: Final = (b"x-http-method-override", b"x-http-method", b"x-method-override")
_CHANGE_MEANING: Final = frozenset({*_OVERRIDES, b"content-range", b"if-match", b"if-none-match"})


class Plan(Struct, frozen=True):
    """One way to serve a route. A route with several plans chooses one by the head of the request."""

    handler: Endpoint
    """Answers the request when its body is there."""
    admit: Admit | None = None
    """Checks the head, after access control and before the body is read."""
    max_body: int | None = None
    """The limit for the body, in bytes; ``None`` for the server's own limit."""
    takes_query: bool = False
    """True if the handler reads the query, or may ignore it. By default, a request with one is refused."""


class BoundRoute(Struct, frozen=True):
    """A route with the object that serves it and the variables of one path."""

    template: str
    right: Right
    plan: Plan | None
    """``None`` if `choose` returns one for each request."""
    choose: Callable[[Request], Plan]
    topic: str | None
    topic_use: TopicUse | None
    variables: Mapping[str, Any]
    """Without ``topic``."""
    has_variables: bool
    """True if the path has any, ``topic`` included."""

    def handler_of(self, plan: Plan, request: Request) -> Handler:
        """
        Check a request whose caller is known, and return its handler with the variables of the path.

        :raise SampleAppError: the request is refused.
        """
        handler, variables = plan.handler, self.variables
        if plan.admit is not None:
            plan.admit(request, **(variables if self.topic is None else {_TOPIC: self.topic, **variables}))
        if request.method in SAFE and (self.topic is not None or not plan.takes_query):
            require_meaning(request)
            if _has_body(request):
                handler = _refuse_body
        if not plan.takes_query:
            _require_no_query(request)
        if self.topic is None or self.topic_use is None:
            return partial(handler, **variables) if variables else handler
        return partial(handler, topic=authorize_topic(request, self.topic, self.topic_use), **variables)


class _Route(Struct, frozen=True):
    """A declared route."""

    path: str
    methods: tuple[str, ...]
    endpoint: Callable[..., Any]
    """An `Endpoint`, or a method that returns a `Plan`; see `has_plans`."""
    right: Right
    topic_use: TopicUse | None
    description: Description | None
    has_plans: bool = False
    admit: Admit | None = None
    takes_query: bool = False
    owner: Callable[[Any], object] | None = None
    """Returns the object that has this endpoint, given the object that has the routes."""

    @property
    def template(self) -> str:
        """The path as in OpenAPI, such as ``/topics/{topic}``."""
        return openapi_path(self.path)

    def bound(self, instance: object, variables: Mapping[str, Any]) -> BoundRoute:
        owner = instance if self.owner is None else self.owner(instance)
        endpoint = partial(self.endpoint, owner)
        return BoundRoute(
            template=self.template,
            right=self.right,
            plan=None if self.has_plans else Plan(endpoint, self.admit, takes_query=self.takes_query),
            choose=endpoint,
            topic=variables.get(_TOPIC),
            topic_use=self.topic_use,
            variables={name: value for name, value in variables.items() if name != _TOPIC},
            has_variables=bool(variables),
        )


class Routes:
    """
    The routes of a Klein application, for Klein and for `RouteTable`.

    ::

        class RawPublishing:
            routes = Routes()

            @routes.route("/topics/<topic>", "POST", right=Right.PUBLISH, topic_use=TO_PUBLISH)
            def publish(self, request: Request, *, topic: AuthorizedTopic) -> Answer: ...
    """

    def __init__(self) -> None:
        self.app = app = Klein()
        """The application; each handler is an endpoint of it."""
        self.by_endpoint: dict[str, _Route] = {}
        """The declared routes, by the names that Klein gives to its endpoints."""

        def refuse(self: object, request: IRequest, failure: Failure) -> bytes:  # noqa: ARG001 -- Klein's names
            return _refuse(app, request, failure)

        app.handle_errors(Exception)(refuse)

    def route(
        self,
        path: str,
        *methods: str,
        admit: Admit | None = None,
        takes_query: bool = False,
        right: Right = Right.ANY,
        topic_use: TopicUse | None = None,
        description: Description | None = None,
    ) -> Callable[[Endpoint], Callable[..., Any]]:
        """
        Declare the handler of a path.

        An exception of the handler, or a failure of its Deferred, becomes a problem document. If the client
        disconnects, the handler continues.

        :param path: with variables as in werkzeug: ``/topics/<topic>``, ``/parts/<int:number>``. Of several
            routes that fit, the most exact one that has the method is used. The handler gets each variable as
            a keyword, percent-decoded once.
        :param methods: the methods that the handler takes. ``GET`` includes ``HEAD``.
        :param admit: checks the head of a request before its body is read; see `Admit`.
        :param takes_query: see `Plan.takes_query`.
        :param right: the right that a caller needs.
        :param topic_use: the use for which a caller needs the topic in the path. Required if the path has the
            variable ``topic``.
        :param description: the operation in ``/openapi.json``. Each route of the service has one.
        :raise ValueError: the path has the variable ``topic`` without a use, or a use without the variable.
        """

        def decorate(handler: Endpoint) -> Callable[..., Deferred[bytes]]:
            return self._declare(
                _Route(
                    path,
                    methods,
                    handler,
                    admit=admit,
                    takes_query=takes_query,
                    right=right,
                    topic_use=topic_use,
                    description=description,
                )
            )

        return decorate

    def planned_route(
        self,
        path: str,
        *methods: str,
        right: Right = Right.ANY,
        topic_use: TopicUse | None = None,
        description: Description | None = None,
    ) -> Callable[[Callable[[Any, Request], Plan]], Callable[..., Any]]:
        """
        Declare a path that is served in several ways.

        The method returns the `Plan` for a request. It is called before access control, so it must not raise
        or disclose anything: what it refuses, it refuses by the plan's ``admit``.

        The parameters are those of `route`.
        """

        def decorate(choose: Callable[[Any, Request], Plan]) -> Callable[..., Deferred[bytes]]:
            return self._declare(
                _Route(
                    path,
                    methods,
                    choose,
                    has_plans=True,
                    right=right,
                    topic_use=topic_use,
                    description=description,
                )
            )

        return decorate

    def include(self, part: Routes, of: Callable[[Any], object]) -> None:
        """
        Add the routes of a part, so that one application serves them all.

        :param part: all its routes are declared. No handler may have the name of one that is here.
        :param of: returns the object that has the handlers of the part, given the object that has these.
        """
        for route in part.by_endpoint.values():
            self._declare(replace(route, owner=of))

    def _declare(self, route: _Route) -> Callable[..., Deferred[bytes]]:
        if (_TOPIC in variables_of(route.path)) != (route.topic_use is not None):
            raise ValueError(
                f"The route {route.path} must have the variable <topic> and topic_use, or neither of them."
            )

        @wraps(route.endpoint)
        def endpoint(instance: Any, request: IRequest, **variables: Any) -> Deferred[bytes]:
            bound = route.bound(instance, variables)
            return render(request, admit=partial(_admit, bound), answer_to=answer_to_failure)

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
        Return the root of a site, or a part of one, for any program with twisted.web.

        :param instance: the object that has the handlers.
        :param gate: authenticates and authorizes requests; by default any caller has all rights.
        :param cross_site: the rule for pages of other sites; by default they may not publish.
        :param max_body: the limit for a compressed body once it is decoded, in bytes; 1 MiB by default. The
            site itself limits bodies as they arrive.
        """
        return _RoutesResource(
            self.app.__get__(instance, type(instance)),
            routes=self,
            gate=gate,
            cross_site=CrossSiteRule() if cross_site is None else cross_site,
            max_body=Limits().max_body if max_body is None else max_body,
        )

    def right_to(self, method: bytes, path: bytes) -> Right:
        """Return the right that a caller needs for a request; `Right.ANY` if there is no such route."""
        try:
            endpoint, _ = self.match(method, path)
        except SampleAppError:
            return Right.ANY
        return self.by_endpoint[endpoint].right

    def match(self, method: bytes, path: bytes) -> tuple[str, Mapping[str, Any]]:
        """
        Return the name of the endpoint of a request, and the variables in its path.

        :raise RequestError: there is no such route.
        """
        urls = self.app.url_map.bind("")
        try:
            return match_path(urls, method, percent_decoded(path))
        except PathNotFound:
            raise path_not_found(path, [urls]) from None


def require_meaning(request: Request) -> None:
    """
    Refuse header fields that would give the request another meaning than its method and its body.

    A server that ignores them does something else than it was asked to do, and says that it was done.

    :raise MalformedRequest: the request asks for another method, or its body is a part of another one.
    :raise PreconditionFailed: it may only be done under a condition.
    """
    fields = request.fields
    if _CHANGE_MEANING.isdisjoint(fields.names()):
        return
    for name in _OVERRIDES:
        if fields.all(name):
            raise MalformedRequest(
                f"The method of a request is that of its first line, {request.method.decode('ascii')}. "
                f"{name.decode('ascii')} is not supported. Nothing was published."
            )
    if request.method in SAFE:
        return
    if fields.all(b"content-range"):
        raise MalformedRequest(
            "A body with Content-Range is a part of another one (RFC 9110, section 14.4), and would become a "
            "record of its own. Send all of it in one request, without Content-Range. Nothing was published."
        )
    if fields.all(b"if-match") or fields.all(b"if-none-match"):
        raise PreconditionFailed(
            "Nothing can be published on a condition: omit If-Match and If-None-Match. Nothing was published."
        )


def _require_no_query(request: Request) -> None:
    """:raise InvalidParameters: there is a query."""
    if request.query:
        is_safe = request.method in SAFE
        require_no_parameters(request.query, GET_PUBLISHES_NOTHING if is_safe else _ALL_IN_BODY)


def _has_body(request: Request) -> bool:
    length = request.fields.joined(b"content-length") or b"0"
    return bool(length.strip(b"0") or request.fields.all(b"transfer-encoding"))


def _refuse_body(_request: Request, **_: object) -> NoReturn:
    raise InvalidParameters(
        [Fault("", f"GET takes no body; parameters are in the query. {GET_PUBLISHES_NOTHING}.")]
    )


def _admit(bound: BoundRoute, request: Request) -> Handler:
    if request.method not in SAFE:
        require_meaning(request)
    plan = bound.choose(request) if bound.plan is None else bound.plan
    request.max_body = plan.max_body
    handler = bound.handler_of(plan, request)
    if request.method == b"POST" and not has_content(request.fields):
        raise LengthRequired
    return handler


class _RoutesResource(KleinResource):
    """Klein's resource, with access control and with problem documents instead of Klein's own errors."""

    def __init__(
        self, app: Klein, *, routes: Routes, gate: Gate | None, cross_site: CrossSiteRule, max_body: int
    ) -> None:
        super().__init__(app)
        self._routes = routes
        self._gate = gate
        self._cross_site = cross_site
        self._max_body = max_body
        self._decoding: Decoding | None = None
        self._memory = BodyMemory(Limits().max_body_memory)

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
        check_values(own.fields)
        # Klein fails with a traceback on a host name that IDNA cannot encode.
        check_host(own.fields, is_required=False)
        # Relative to this resource's place in its site.
        path = b"".join(b"/%b" % segment for segment in own.path.split(b"/")[1 + len(request.prepath) :])
        if self._gate is not None:
            self._gate.admit(own, self._routes.right_to(own.method, path))
        if self._decoding is None:
            # Only a site has a reactor.
            self._decoding = Decoding(request.site.reactor)
        set_terms(request, Terms(own.caller, own.charge, self._max_body, self._decoding, self._memory))
        if own.method == b"OPTIONS" and has_content(own.fields):
            # No handler answers OPTIONS, so nothing else checks the coding.
            check_content_coding(own.fields)
        # Refuses paths that Klein would take for another path.
        percent_decoded(path)
        if own.method != own.method.upper():
            self._routes.match(own.method, path)
        try:
            self._cross_site.check(own)
        except CrossSiteRequest:
            # An unknown path or method (404, 405) takes precedence.
            self._routes.match(own.method, path)
            raise


def _refuse(app: Klein, request: IRequest, failure: Failure) -> bytes:
    """Answer Klein's own errors with a problem document; the errors of handlers do not get here."""
    error = failure.value
    if isinstance(error, exceptions.MethodNotAllowed):
        answer = refusal_of_method(request.method, method_not_allowed(error))
    elif isinstance(error, exceptions.HTTPException):
        answer = problem_answer(path_not_found(request.path, [app.url_map.bind("")]))
    else:
        answer = answer_to_failure(failure, give_request_id(request, None))
    return set_answer(request, in_form_of(request, answer))
