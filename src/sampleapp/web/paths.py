"""Paths of requests: percent-decoding, matching by werkzeug's rules, and the errors 404 and 405."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from werkzeug import exceptions
from werkzeug.routing import MapAdapter

from sampleapp.web.errors import MalformedRequest, MethodNotAllowed, PathNotFound, problem_response
from sampleapp.web.failures import LONGEST_PATH, not_found
from sampleapp.web.responses import Response

_INCOMPLETE_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_TRAILING_SLASH: Final = re.compile(rb"[^/]/\Z")
_VARIABLE: Final = re.compile(r"<(?:[^<>]*:)?([^<>:]+)>")
_UNKNOWN_METHOD: Final = "-"


def match_path(urls: MapAdapter, method: bytes, path: str) -> tuple[str, Mapping[str, Any]]:
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
        raise method_not_allowed(error) from None
    except exceptions.HTTPException:
        # This includes werkzeug's redirects, which clients of a service do not follow.
        raise PathNotFound from None


def method_not_allowed(error: exceptions.MethodNotAllowed) -> MethodNotAllowed:
    """Convert werkzeug's error, and add OPTIONS, which every path has."""
    return MethodNotAllowed({*(error.valid_methods or ()), "OPTIONS"})


def openapi_path(path: str) -> str:
    """Return the path of a route as in OpenAPI, such as ``/topics/{topic}``."""
    return _VARIABLE.sub(r"{\1}", path)


def percent_decoded(path: bytes) -> str:
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


def variables_of(path: str) -> list[str]:
    """Return the names of the variables in the path of a route."""
    return _VARIABLE.findall(path)


def path_not_found(path: bytes, all_urls: Iterable[MapAdapter]) -> PathNotFound:
    """
    Make the error for an unknown path; it names the right path if only a trailing slash is wrong.

    :raise PathNotFound: the path has an encoded slash.
    """
    if _TRAILING_SLASH.search(path):
        shorter = percent_decoded(path[:-1])
        for urls in all_urls:
            template = _template_of(urls, shorter)
            if template is not None:
                return PathNotFound(f"A trailing slash makes a different path: use {template}.")
    return not_found(path)


def _template_of(urls: MapAdapter, path: str) -> str | None:
    """Return the path of the route that has this path, whatever its methods, as in OpenAPI."""
    for method in urls.allowed_methods(path):
        rule, _ = urls.match(path, method, return_rule=True)
        return openapi_path(rule.rule)
    return None


def rejection_of_method(method: bytes, error: MethodNotAllowed) -> Response:
    """Answer with the methods of a path: 204 for OPTIONS, otherwise 405."""
    if method == b"OPTIONS":
        return Response(HTTPStatus.NO_CONTENT, error.headers)
    return problem_response(error)
