"""
Answers to the failures of handlers, and the form of errors for their clients.

Clients of REST Proxy get ``{"error_code": 40401, "message": "…"}``.

All code that rejects a request makes a problem document. For a client of REST Proxy, this module converts it,
whether the request was rejected before its body was read, by access control or by a handler. The codes are
those of REST Proxy (``io.confluent.kafkarest.Errors`` and ``io.confluent.rest.exceptions``' mappers). Where
REST Proxy has no code, the status is the code, as in REST Proxy.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.errors import BrokerUnavailable, SampleAppError
from sampleapp.web.errors import INTERNAL_ERROR, INTERNAL_ERROR_OF_READ, PathNotFound, problem_response
from sampleapp.web.responses import Headers, Response, json_line
from sampleapp.web.rest_proxy_documents import PLAIN, RESPONSE, ErrorObject, is_of_rest_proxy, response_type
from sampleapp.web.server.head import Head

_PROBLEM: Final = (b"Content-Type", b"application/problem+json")

_AUTHENTICATION: Final = 40101
_AUTHORIZATION: Final = 40301
_CODES: Final = {
    "no-credentials": _AUTHENTICATION,
    "invalid-credentials": _AUTHENTICATION,
    "ambiguous-credentials": _AUTHENTICATION,
    "not-granted": _AUTHORIZATION,
    "topic-not-authorized": _AUTHORIZATION,
    "unknown-topic": 40401,
    "unknown-partition": 40402,
    "rate-exceeded": 42901,
    "broker-unavailable": 50302,
}
"""By the kind of problem; see `sampleapp.web.Response.problem`."""


class _Detail(Struct):
    detail: str


# Paths of REST Proxy that the service does not have.
_ABSENT: Final = (
    (
        re.compile(rb"/consumers(?:/|$)"),
        "The service has no consumers of REST Proxy's API. Read a topic with GET /topics/{topic}/records.",
    ),
    (re.compile(rb"/v3(?:/|$)"), "The service does not support REST Proxy's API v3, only v2."),
    (re.compile(rb"/brokers(?:/|$)"), "The service does not list the brokers of the cluster."),
    (
        re.compile(rb"/topics/[^/]+/partitions/[0-9]+/offsets$"),
        "The service does not list the offsets of a partition.",
    ),
)

_OF_REST_PROXY: Final = re.compile(rb"/topics(?:/[^/]+(?:/partitions(?:/[^/]+(?:/offsets|/messages)?)?)?)?/?")
"""Paths to read that only REST Proxy has, or that it has as well."""
_NOT_OF_REST_PROXY: Final = re.compile(rb"application/problem\+json|text/event-stream", re.IGNORECASE)
"""Media types that no client of REST Proxy names."""
_RECORDS: Final = re.compile(rb"/topics/[^/]+/(?:records|schema)(?:/|$)")
"""Paths of this service's own, below one of REST Proxy's."""
LONGEST_PATH: Final = 2048
"""
Bytes. No resource has a longer path, and none is decoded: 16 KiB of escapes or slashes take milliseconds.

Topics have up to 249 characters, each of which may be percent-encoded.
"""
_VARY: Final = (b"Vary", b"Accept")
_SAFE: Final = (b"GET", b"HEAD", b"OPTIONS")
_NOT_READ: Final = problem_response(
    BrokerUnavailable("The broker did not answer. A request that only reads is safe to send again.")
)
_OF_READS: Final = {
    "outcome-unknown": _NOT_READ,
    "publish-timed-out": _NOT_READ,
    INTERNAL_ERROR.problem: INTERNAL_ERROR_OF_READ,
}
"""The responses to reads, by kind of problem: nothing was changed, whatever the error is."""

_decode = msgspec.json.Decoder(_Detail).decode


def not_found(path: bytes) -> PathNotFound:
    """
    Make the error for an unknown path.

    :param path: as it was sent.
    :return: an error with an explanation if REST Proxy has this path.
    """
    for pattern, why in _ABSENT:
        if pattern.match(path):
            return PathNotFound(why)
    return PathNotFound()


def _is_of_rest_proxy(
    method: bytes, path: bytes, content_types: tuple[bytes, ...], accept: bytes | None
) -> bool:
    """
    Return whether the client expects the responses of REST Proxy.

    It does if it names one of REST Proxy's media types. Clients often read the paths that REST Proxy has
    without naming one, but never as a stream, and not if they prefer plain JSON. ``/messages`` is not one of
    these paths, and its errors may say more than an error object can.

    :param path: as it was sent.
    """
    if path == b"/messages" or is_of_records(path):
        return False
    if any(is_of_rest_proxy(each) for each in content_types) or (accept and is_of_rest_proxy(accept)):
        return True
    if method not in (b"GET", b"HEAD") or (accept and _NOT_OF_REST_PROXY.search(accept)):
        return False
    return response_type(accept) != PLAIN and _OF_REST_PROXY.fullmatch(path) is not None


def is_of_records(path: bytes) -> bool:
    """
    Return whether a path is that of the records of a topic, or is below or like it.

    :param path: as it was sent.
    """
    start = path[:LONGEST_PATH]
    return _RECORDS.match(unquote_to_bytes(start) if b"%" in start else start) is not None


def in_form_for(
    response: Response,
    *,
    method: bytes,
    path: bytes,
    content_types: tuple[bytes, ...],
    accept: bytes | None,
) -> Response:
    """
    Return an error in the form that its client reads.

    That of a request that only reads never says that its outcome is unknown. The other parameters are those
    of the request.

    :param response: only problem documents are converted.
    :param path: as it was sent.
    """
    if method in _SAFE:
        response = _OF_READS.get(response.problem, response)
    if method != b"OPTIONS" and is_of_records(path) and _VARY not in response.headers:
        # An error, too, is that of the representation that was asked for.
        response = replace(response, headers=(*response.headers, _VARY))
    if _PROBLEM not in response.headers or not _is_of_rest_proxy(method, path, content_types, accept):
        return response
    return error_object_response(response, accept=accept)


def error_object_response(response: Response, *, accept: bytes | None, code: int | None = None) -> Response:
    """
    Convert a problem document to an error object.

    :param accept: as for `sampleapp.web.rest_proxy_documents.response_type`.
    :param code: the ``error_code``; by default that of the kind of problem.
    """
    if code is None:
        code = _CODES.get(response.problem, int(response.status))
    message = _decode(b"".join(response.parts)).detail
    content_type = (b"Content-Type", response_type(accept) or RESPONSE)
    headers: Headers = tuple([content_type if field == _PROBLEM else field for field in response.headers])
    return replace(response, headers=headers, body=json_line(ErrorObject(code, message)))


_log = Logger()


def response_to_failure(failure: Failure, request_id: bytes) -> Response:
    """
    Return the response to a failed handler.

    A fault of the service is logged with the id of the request.
    """
    if isinstance(failure.value, SampleAppError):
        with suppress(LookupError):
            return problem_response(failure.value)
    _log.failure(
        "A fault in the service: a request was answered with 500. (X-Request-Id: {request_id})",
        failure=failure,
        request_id=request_id.decode("ascii", "backslashreplace"),
    )
    return INTERNAL_ERROR


def rejection_in_form(response: Response, head: Head) -> Response:
    """Return a rejection in the form that its client reads."""
    fields = head.fields
    return in_form_for(
        response,
        method=head.method,
        path=head.path,
        content_types=fields.all(b"Content-Type"),
        accept=fields.joined(b"Accept"),
    )
