"""
Routes: declared on a Klein application, served by Klein or by a table.

Klein's own look-up goes through werkzeug and costs more than the rest of a small request. It serves the
routes inside any site of twisted.web. The service's own connections use `RouteTable`: paths without variables
are found by one look-up in a dict, and paths with variables by werkzeug's rules, whose results are cached.

A route whose path has the variable ``topic`` declares for which use a caller needs the topic. Its handler is
only ever called with an `AuthorizedTopic`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial, wraps
from http import HTTPStatus
from inspect import iscoroutinefunction
from typing import Any, Final, NoReturn, ParamSpec, TypeAlias, TypeVar
from urllib.parse import quote, unquote_to_bytes

from klein import Klein
from klein.interfaces import IKleinRequest
from klein.resource import KleinResource
from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import Resource
from werkzeug import exceptions
from werkzeug.routing import MapAdapter, Rule

from sampleapp.access import Right
from sampleapp.errors import Fault, InvalidParameters, SampleAppError
from sampleapp.messages.queries import GET_PUBLISHES_NOTHING, require_no_parameters
from sampleapp.web.access_control import AccessControl, TopicUse, authorize_topic
from sampleapp.web.cors import CrossSiteRule
from sampleapp.web.descriptions import Description
from sampleapp.web.errors import (
    CrossSiteRequest,
    LengthRequired,
    MalformedRequest,
    MethodNotAllowed,
    PathNotFound,
    PreconditionFailed,
    problem_response,
)
from sampleapp.web.failures import LONGEST_PATH, not_found, response_to_failure
from sampleapp.web.responses import Response, set_response
from sampleapp.web.server import SAFE, BodyMemory, Handler, Limits, Request
from sampleapp.web.server.content_coding import check_content_coding, has_content
from sampleapp.web.server.fields import check_values
from sampleapp.web.server.head import check_host
from sampleapp.web.server.reader import Decoding
from sampleapp.web.twisted_web import (
    BodyLimits,
    RequestResource,
    convert,
    give_request_id,
    in_form_of,
    render,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")

Endpoint: TypeAlias = Callable[..., "Response | Deferred[Response]"]
"""Answers a `Request`. The variables of its route are keywords; ``topic`` is an `AuthorizedTopic`."""

CheckHead: TypeAlias = Callable[..., None]
"""
Checks the head of a `Request` and raises a `SampleAppError`.

The variables of its route are keywords; ``topic`` is a `str`, since it is not authorized yet.
"""

_TOPIC: Final = "topic"

_ALL_IN_BODY: Final = "all of the request is in the body"

_OVERRIDES: Final = (b"x-http-method-override", b"x-http-method", b"x-method-override")
_CHANGE_MEANING: Final = frozenset({*_OVERRIDES, b"content-range", b"if-match", b"if-none-match"})

_INCOMPLETE_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_TRAILING_SLASH: Final = re.compile(rb"[^/]/\Z")
_VARIABLE: Final = re.compile(r"<(?:[^<>]*:)?([^<>:]+)>")
_UNKNOWN_METHOD: Final = "-"


class Variant(Struct, frozen=True):
    """One way to serve a route. A route with several variants chooses one by the head of the request."""

    handler: Endpoint
    """Answers the request when its body is there."""
    check_head: CheckHead | None = None
    """Checks the head, after access control and before the body is read."""
    max_body: int | None = None
    """The limit for the body, in bytes; ``None`` for the server's own limit."""
    takes_query: bool = False
    """True if the handler reads the query, or may ignore it. By default, a request with one is rejected."""


class AccessPolicy(Struct, frozen=True):
    """The checks before a request is served: by default any caller has all rights."""

    access_control: AccessControl | None = None
    """Authenticates and authorizes requests; ``None`` if callers need no credentials."""
    cross_site: CrossSiteRule = CrossSiteRule()
    """The rule for pages of other sites; by default they may not publish."""


class BoundRoute(Struct, frozen=True):
    """A route with the object that serves it and the variables of one path."""

    template: str
    right: Right
    variant: Variant | None
    """``None`` if `choose` returns one for each request."""
    choose: Callable[[Request], Variant]
    topic: str | None
    topic_use: TopicUse | None
    variables: Mapping[str, Any]
    """Without ``topic``."""
    has_variables: bool
    """True if the path has any, ``topic`` included."""

    def handler_of(self, variant: Variant, request: Request) -> Handler:
        """
        Check a request whose caller is known, and return its handler with the variables of the path.

        :raise SampleAppError: the request is rejected.
        """
        handler, variables = variant.handler, self.variables
        if variant.check_head is not None:
            named = variables if self.topic is None else {_TOPIC: self.topic, **variables}
            variant.check_head(request, **named)
        if request.method in SAFE and (self.topic is not None or not variant.takes_query):
            require_meaning(request)
            if _has_body(request):
                handler = _reject_body
        if not variant.takes_query:
            _require_no_query(request)
        use = self.topic_use
        if self.topic is None or use is None:
            return partial(handler, **variables) if variables else handler
        topic = authorize_topic(request, self.topic, use, variables[use.part] if use.part else "")
        return partial(handler, topic=topic, **variables)


class Route(Struct, frozen=True):
    """A declared route."""

    path: str
    methods: tuple[str, ...]
    endpoint: Callable[..., Any]
    """An `Endpoint` that may also return a `RequestResource`; with `has_variants`, it returns a `Variant`."""
    right: Right
    topic_use: TopicUse | None
    description: Description | None
    has_variants: bool
    check_head: CheckHead | None
    takes_query: bool

    @property
    def template(self) -> str:
        """The path as in OpenAPI, such as ``/topics/{topic}``."""
        return _openapi_path(self.path)

    def bound(
        self, instance: object, variables: Mapping[str, Any], *, renders_resources: bool = False
    ) -> BoundRoute:
        """
        Bind the route to the object that serves it, and to the variables of one path.

        :param renders_resources: True if the caller renders a resource that the endpoint returns. By default,
            the resource is asked for its response.
        """
        endpoint = partial(self.endpoint, instance)
        variant = None
        if not self.has_variants:
            handler = endpoint if renders_resources or variables else partial(_response, endpoint)
            variant = Variant(handler, self.check_head, takes_query=self.takes_query)
        return BoundRoute(
            template=self.template,
            right=self.right,
            variant=variant,
            choose=endpoint,
            topic=variables.get(_TOPIC),
            topic_use=self.topic_use,
            variables={name: value for name, value in variables.items() if name != _TOPIC},
            has_variables=bool(variables),
        )


class App(Klein):
    """
    A Klein application whose routes say which right, and which use of a topic, a caller needs.

    ::

        class Service:
            app = App()
            access = AccessPolicy()

            @app.route("/topics/<topic>", methods=["POST"], right=Right.PUBLISH, topic_use=TO_PUBLISH)
            async def publish(self, request: Request, *, topic: AuthorizedTopic) -> Response: ...

    ``Service().app.resource()`` serves it in any site of twisted.web, and `RouteTable` on the service's own
    connections. Both check requests by the attribute ``access`` of the object.
    """

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[str, Route] = {}
        """The routes, by the names of their endpoints."""
        self.handle_errors(Exception)(_respond_to_error)

    def __get__(self, instance: Any, owner: object) -> App:
        """Return the application bound to an object, on which its handlers are called."""
        bound = super().__get__(instance, owner)
        assert isinstance(bound, App)  # noqa: S101 -- Klein makes an object of the same class
        bound.routes = self.routes
        return bound

    @property
    def instance(self) -> Any:
        """The object on which the handlers are called; ``None`` if the application is not bound."""
        return self._instance

    @property
    def access(self) -> AccessPolicy:
        """The access policy of the object."""
        access: AccessPolicy = self.instance.access
        return access

    def route(  # type: ignore[override] # not all arguments of werkzeug's rules
        self,
        path: str,
        *,
        methods: Sequence[str],
        right: Right = Right.ANY,
        topic_use: TopicUse | None = None,
        has_variants: bool = False,
        check_head: CheckHead | None = None,
        takes_query: bool = False,
        description: Description | None = None,
    ) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
        """
        Declare the handler of a path: a method that takes a `Request`, and the variables as keywords.

        It returns an `Response` or a Deferred of one; it may be a coroutine function. If its path has no
        variables, it may return a `RequestResource`, which answers then. Its errors become problem documents.
        If the client disconnects, it continues.

        :param path: with variables as in werkzeug: ``/topics/<topic>``, ``/parts/<int:number>``. Of several
            routes that fit, the most exact one that has the method is used. The handler gets each variable
            percent-decoded once, and ``topic`` as an `AuthorizedTopic`.
        :param methods: the methods that the handler takes. ``GET`` includes ``HEAD``.
        :param right: the right that a caller needs.
        :param topic_use: the use for which a caller needs the topic in the path. Required if the path has the
            variable ``topic``.
        :param has_variants: True if the method chooses a `Variant` by the head of the request, which then
            serves it. It is called before access control, so it must not raise or disclose anything: what it
            rejects, it rejects by ``check_head`` of a variant.
        :param check_head: checks the head of a request before its body is read; see `CheckHead`.
        :param takes_query: see `Variant.takes_query`.
        :param description: the operation in ``/openapi.json``. Each route of the service has one.
        :raise ValueError: the path has the variable ``topic`` without a use, or a use without the variable.
        """
        if (_TOPIC in _VARIABLE.findall(path)) != (topic_use is not None):
            raise ValueError(
                f"The route {path} must have the variable <topic> and topic_use, or neither of them."
            )

        def declare(handler: Callable[_P, _T]) -> Callable[_P, _T]:
            route = Route(
                path,
                tuple(methods),
                _with_deferred(handler) if iscoroutinefunction(handler) else handler,
                right=right,
                topic_use=topic_use,
                description=description,
                has_variants=has_variants,
                check_head=check_head,
                takes_query=takes_query,
            )

            @wraps(handler)
            def serve(instance: Any, request: IRequest, **variables: Any) -> Deferred[Any]:
                bound = route.bound(instance, variables, renders_resources=True)
                return render(request, check=partial(_check, bound))

            self.routes[handler.__name__] = route
            super(App, self).route(path, methods=list(methods))(serve)
            return handler

        return declare

    def resource(self, *, max_body: int | None = None) -> Resource:  # type: ignore[override] # one more argument
        """
        Return the root of a site, or a part of one, for any program with twisted.web.

        :param max_body: the limit for a compressed body once it is decoded, in bytes; 1 MiB by default. The
            site itself limits bodies as they arrive.
        """
        return _AppResource(self, max_body=Limits().max_body if max_body is None else max_body)

    def match(self, method: bytes, path: bytes) -> tuple[Route, Mapping[str, Any]]:
        """
        Return the route of a request, and the variables in its path.

        :param path: as it was sent.
        :raise RequestError: there is no such route.
        """
        urls = self.url_map.bind("")
        try:
            endpoint, variables = _match_path(urls, method, _percent_decoded(path))
        except PathNotFound:
            raise _path_not_found(path, [urls]) from None
        return self.routes[endpoint], variables

    def is_public(self, path: bytes) -> bool:
        """
        Return whether a path, or the one without a slash at its end, needs no credentials with any method.

        :param path: as it was sent.
        """
        urls = self.url_map.bind("")
        try:
            rules = _rules_of(urls, _percent_decoded(_without_slash(path)))
        except SampleAppError:
            return False
        return bool(rules) and all(self.routes[rule.endpoint].right is Right.NONE for rule in rules)


def _response(
    endpoint: Callable[[Request], Response | Deferred[Response] | RequestResource], request: Request
) -> Response | Deferred[Response]:
    result = endpoint(request)
    return result.respond(request) if isinstance(result, RequestResource) else result


def _with_deferred(function: Callable[..., Any]) -> Callable[..., Deferred[Response]]:
    @wraps(function)
    def call(*args: Any, **variables: Any) -> Deferred[Response]:
        return Deferred.fromCoroutine(function(*args, **variables))

    return call


def require_meaning(request: Request) -> None:
    """
    Reject header fields that would give the request another meaning than its method and its body.

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
        require_no_parameters(
            request.query, GET_PUBLISHES_NOTHING if is_safe else _ALL_IN_BODY, is_get=is_safe
        )


def _has_body(request: Request) -> bool:
    length = request.fields.joined(b"content-length") or b"0"
    return bool(length.strip(b"0") or request.fields.all(b"transfer-encoding"))


def _reject_body(_request: Request, **_: object) -> NoReturn:
    raise InvalidParameters(
        [Fault("", f"GET takes no body; parameters are in the query. {GET_PUBLISHES_NOTHING}.")]
    )


def _check(bound: BoundRoute, request: Request) -> Handler:
    """Check a request in a site of twisted.web, and return its handler."""
    if request.method not in SAFE:
        require_meaning(request)
    variant = bound.choose(request) if bound.variant is None else bound.variant
    request.max_body = variant.max_body
    handler = bound.handler_of(variant, request)
    if request.method == b"POST" and request.needs_length and not has_content(request.fields):
        raise LengthRequired
    return handler


class _AppResource(KleinResource):
    """Klein's resource, with access control and with problem documents instead of Klein's own errors."""

    def __init__(self, app: App, *, max_body: int) -> None:
        super().__init__(app)
        self._app: App = app
        self._access = app.access
        self._max_body = max_body
        self._decoding: Decoding | None = None
        self._memory = BodyMemory(Limits().max_body_memory)

    def render(self, request: IRequest) -> Any:
        """Answer a request, or reject it."""
        try:
            self._check(request)
        except SampleAppError as error:
            return set_response(request, in_form_of(request, problem_response(error)))
        return super().render(request)

    def _check(self, request: Any) -> None:
        if self._decoding is None:
            # Only a site has a reactor.
            self._decoding = Decoding(request.site.reactor)
        request.content.seek(0)
        own = convert(request, BodyLimits(self._max_body, self._decoding, self._memory))
        # Relative to this resource's place in its site.
        path = b"".join(b"/%b" % segment for segment in own.path.split(b"/")[1 + len(request.prepath) :])
        own.path = path
        check_values(own.fields)
        # Klein fails with a traceback on a host name that IDNA cannot encode.
        check_host(own.fields, is_required=False)
        access_control = self._access.access_control
        if access_control is not None:
            access_control.authorize(own, self._right_to(own.method, path))
        if own.reservation is not None:
            own.reservation.owner = own.exchange.caller
        if own.method == b"OPTIONS" and has_content(own.fields):
            # No handler answers OPTIONS, so nothing else checks the coding.
            check_content_coding(own.fields)
        # Rejects paths that Klein would take for another path.
        if _percent_decoded(path).encode() != b"".join(b"/%b" % segment for segment in request.postpath):
            raise PathNotFound
        if own.method != own.method.upper():
            self._app.match(own.method, path)
        try:
            self._access.cross_site.check(own)
        except CrossSiteRequest:
            # An unknown path or method (404, 405) takes precedence.
            self._app.match(own.method, path)
            raise

    def _right_to(self, method: bytes, path: bytes) -> Right:
        """Return the right that a caller needs for a request, also if there is no such route."""
        try:
            route, _ = self._app.match(method, path)
        except SampleAppError:
            is_open = method != b"OPTIONS" and self._app.is_public(path)
            return Right.NONE if is_open else Right.ANY
        return route.right


def _respond_to_error(self: object, request: IRequest, failure: Failure) -> bytes:  # noqa: ARG001 -- Klein's
    """Answer Klein's own errors with a problem document; the errors of handlers do not get here."""
    error = failure.value
    if isinstance(error, exceptions.MethodNotAllowed):
        response = _rejection_of_method(request.method, _method_not_allowed(error))
    elif isinstance(error, exceptions.HTTPException):
        urls = IKleinRequest(request).mapper.map.bind("")
        response = problem_response(_path_not_found(convert(request).path, [urls]))
    else:
        response = response_to_failure(failure, give_request_id(request, None))
    return set_response(request, in_form_of(request, response))


_MOST_CACHED: Final = 512
_LONGEST_CACHED: Final = 1024


class RouteTable:
    """The routes of one or more Klein applications, as the service's own connections use them."""

    def __init__(self, app: App, *others: App) -> None:
        """
        :param app: bound to the object that has its handlers, and the access policy for all.
        :param others: more bound applications. No path may be in two.
        """
        access = app.access
        self._access_control = access.access_control
        self._check_site = access.cross_site.check
        self.apps = (app, *others)
        """All applications in the table."""
        self._urls = [each.url_map.bind("") for each in self.apps]
        self._exact = {
            (method.encode("ascii"), rule.rule.encode("ascii")): each.routes[rule.endpoint].bound(
                each.instance, {}
            )
            for each in self.apps
            for rule in each.url_map.iter_rules()
            # Paths that clients may also percent-encode in another way are left to werkzeug's rules.
            if not rule.arguments and rule.rule == quote(rule.rule)
            for method in rule.methods or ()
        }
        self._find_cached = lru_cache(maxsize=_MOST_CACHED)(self._find)

    @property
    def methods(self) -> set[str]:
        """The methods of all routes."""
        return {
            method for app in self.apps for rule in app.url_map.iter_rules() for method in rule.methods or ()
        }

    def dispatch(self, request: Request) -> Response | Handler:
        """
        Check the head of a request, before its body is read, and return its handler.

        :raise SampleAppError: there is no such route, or the request is rejected.
        """
        bound = self._exact.get((request.method, request.path))
        if bound is None:
            found = self._find_by_rules(request)
            if isinstance(found, Response):
                return found
            bound = found
        request.exchange.route = bound.template
        variant = bound.variant
        if variant is None:
            variant = bound.choose(request)
        # Before access control, which does not charge a caller's rate for a body that is over the limit.
        request.max_body = variant.max_body
        if self._access_control is not None:
            self._access_control.authorize(request, bound.right)
        self._check_site(request)
        is_plain = not bound.has_variables and variant.check_head is None
        if request.method in SAFE:
            request.is_body_wanted = False
            is_plain = is_plain and variant.takes_query
        else:
            require_meaning(request)
            is_plain = is_plain and not request.query
        return variant.handler if is_plain else bound.handler_of(variant, request)

    def _find_by_rules(self, request: Request) -> BoundRoute | Response:
        """
        Find the route of a path that is not in the table as it was sent.

        :return: a response if the request has no route, but is not an error either.
        :raise SampleAppError: there is no such route, or the request has no valid credentials.
        """
        find = self._find_cached if len(request.path) <= _LONGEST_CACHED else self._find
        try:
            if request.path != b"*":
                return find(request.method, request.path)
            response = _response_for_whole_server(request)
        except MethodNotAllowed as error:
            response = _rejection_of_method(request.method, error)
        except SampleAppError:
            self._authenticate(request)
            raise
        self._authenticate(request)
        return response

    def _authenticate(self, request: Request) -> None:
        """
        Authenticate before 404, 405 and OPTIONS, so that routes are not disclosed.

        Everybody may know the paths without credentials, and a token would not help there.
        """
        if self._access_control is None:
            return
        if request.method != b"OPTIONS" and any(app.is_public(request.path) for app in self.apps):
            return
        self._access_control.authorize(request, Right.ANY)

    def _find(self, method: bytes, path: bytes) -> BoundRoute:
        text = _percent_decoded(path)
        for app, urls in zip(self.apps, self._urls, strict=True):
            with suppress(PathNotFound):
                endpoint, variables = _match_path(urls, method, text)
                return app.routes[endpoint].bound(app.instance, variables)
        raise _path_not_found(path, self._urls)


def _response_for_whole_server(request: Request) -> Response:
    if request.method != b"OPTIONS":
        raise MalformedRequest('The target "*" is for OPTIONS only.')
    # A server-wide OPTIONS is a ping (RFC 9110, section 9.3.7).
    return Response(HTTPStatus.NO_CONTENT)


def _match_path(urls: MapAdapter, method: bytes, path: str) -> tuple[str, Mapping[str, Any]]:
    """
    Return the name of an endpoint, and the variables in the path, by werkzeug's rules.

    :param path: percent-decoded.
    :raise RequestError: there is no such route.
    """
    name = method.decode("ascii")
    try:
        # Werkzeug takes "post" for "POST", but methods are case-sensitive (RFC 9110, section 9.1).
        return urls.match(path, name if name == name.upper() else _UNKNOWN_METHOD)
    except exceptions.MethodNotAllowed as error:
        raise _method_not_allowed(error) from None
    except exceptions.HTTPException:
        # This includes werkzeug's redirects, which clients of a service do not follow.
        raise PathNotFound from None


def _method_not_allowed(error: exceptions.MethodNotAllowed) -> MethodNotAllowed:
    """Convert werkzeug's error, and add OPTIONS, which every path has."""
    return MethodNotAllowed({*(error.valid_methods or ()), "OPTIONS"})


def _openapi_path(path: str) -> str:
    """Return the path of a route as in OpenAPI, such as ``/topics/{topic}``."""
    return _VARIABLE.sub(r"{\1}", path)


def _percent_decoded(path: bytes) -> str:
    """
    Percent-decode a path, once.

    :raise MalformedRequest: the percent-encoding is malformed (RFC 3986, section 2.1), or not of UTF-8.
    :raise PathNotFound: the path is too long, or a segment is empty or contains an encoded slash; no path of
        this service is so.
    """
    if len(path) > LONGEST_PATH:
        raise PathNotFound(f"No resource has a path of more than {LONGEST_PATH} bytes.")
    if _INCOMPLETE_ESCAPE.search(path):
        raise MalformedRequest("In a path, % must be followed by two hexadecimal digits; % itself is %25.")
    segments = [unquote_to_bytes(segment) for segment in path.split(b"/")]
    try:
        decoded = b"/".join(segments).decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedRequest("The percent-decoded path is not valid UTF-8.") from None
    # Werkzeug and Klein merge several slashes into one, or redirect.
    if b"//" in path or any(b"/" in segment for segment in segments):
        raise PathNotFound
    return decoded


def _path_not_found(path: bytes, all_urls: Iterable[MapAdapter]) -> PathNotFound:
    """
    Make the error for an unknown path; it names the right path if only a trailing slash is wrong.

    :raise PathNotFound: the path has an encoded slash.
    """
    shorter = _without_slash(path)
    if shorter != path:
        text = _percent_decoded(shorter)
        for urls in all_urls:
            for rule in _rules_of(urls, text):
                template = _openapi_path(rule.rule)
                return PathNotFound(f"A trailing slash makes a different path: use {template}.")
    return not_found(path)


def _without_slash(path: bytes) -> bytes:
    return path[:-1] if _TRAILING_SLASH.search(path) else path


def _rules_of(urls: MapAdapter, path: str) -> list[Rule]:
    """Return the routes that have a path, with any method, as werkzeug's rules."""
    return [urls.match(path, method, return_rule=True)[0] for method in urls.allowed_methods(path)]


def _rejection_of_method(method: bytes, error: MethodNotAllowed) -> Response:
    """Answer with the methods of a path: 204 for OPTIONS, otherwise 405."""
    if method == b"OPTIONS":
        return Response(HTTPStatus.NO_CONTENT, error.headers)
    return problem_response(error)
