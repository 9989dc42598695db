"""The table of routes that the service's own connections use."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from sampleapp.access import Right
from sampleapp.errors import SampleAppError
from sampleapp.web.errors import MalformedRequest, MethodNotAllowed, PathNotFound
from sampleapp.web.responses import Response
from sampleapp.web.routing.app import App, BoundRoute, require_meaning
from sampleapp.web.routing.paths import match_path, path_not_found, percent_decoded, rejection_of_method
from sampleapp.web.server import SAFE, Handler, Request

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
            response = rejection_of_method(request.method, error)
        except SampleAppError:
            self._authenticate(request)
            raise
        self._authenticate(request)
        return response

    def _authenticate(self, request: Request) -> None:
        """Authenticate before 404, 405 and OPTIONS, so that routes are not disclosed."""
        if self._access_control is not None:
            self._access_control.authorize(request, Right.ANY)

    def _find(self, method: bytes, path: bytes) -> BoundRoute:
        text = percent_decoded(path)
        for app, urls in zip(self.apps, self._urls, strict=True):
            with suppress(PathNotFound):
                endpoint, variables = match_path(urls, method, text)
                return app.routes[endpoint].bound(app.instance, variables)
        raise path_not_found(path, self._urls)


def _response_for_whole_server(request: Request) -> Response:
    if request.method != b"OPTIONS":
        raise MalformedRequest('The target "*" is for OPTIONS only.')
    # A server-wide OPTIONS is a ping (RFC 9110, section 9.3.7).
    return Response(HTTPStatus.NO_CONTENT)
