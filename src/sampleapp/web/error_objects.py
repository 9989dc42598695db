"""
Refusals in the form that clients of REST Proxy read: ``{"error_code": 40401, "message": "…"}``.

Whatever refuses a request makes a problem document. Here it gets the other form, if the client is one of
those, wherever it was refused: before its body was read, by who is let in, or by a handler. The codes are
those of REST Proxy (``io.confluent.kafkarest.Errors`` and ``io.confluent.rest.exceptions``' mappers). Where
it has none, the status stands for itself, as there.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sampleapp.rest_proxy import ANSWER, answer_type, is_of_rest_proxy
from sampleapp.web.answers import Answer, Headers
from sampleapp.web.request_errors import PathNotFound

__all__ = ["ErrorObject", "error_object_answer", "in_form_for", "not_found"]

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
"""By the kind of a problem, see `sampleapp.web.Answer.problem`."""


class ErrorObject(Struct):
    """Why a request was refused, for clients of REST Proxy."""

    error_code: int
    message: str


class _Detail(Struct):
    detail: str


# What clients of REST Proxy may look for.
_ABSENT: Final = (
    (
        re.compile(rb"/consumers(?:/|$)"),
        "The service has no consumers, of API v2 or v3: read topics with a client of Kafka",
    ),
    (re.compile(rb"/v3(?:/|$)"), "The service has nothing of REST Proxy's API v3, only of v2"),
    (re.compile(rb"/brokers(?:/|$)"), "The service does not list the brokers of the cluster"),
    (
        re.compile(rb"/topics/[^/]+/partitions/[0-9]+/offsets$"),
        "The service does not tell which offsets a partition has",
    ),
)

_decode = msgspec.json.Decoder(_Detail).decode


def not_found(path: bytes) -> PathNotFound:
    """
    Make the error for a path at which nothing is.

    :param path: as it was sent.
    :return: one that says so if it is one of REST Proxy's.
    """
    for pattern, why in _ABSENT:
        if pattern.match(path):
            return PathNotFound(why)
    return PathNotFound()


def _is_of_rest_proxy(
    method: bytes, path: bytes, content_types: tuple[bytes, ...], accept: bytes | None
) -> bool:
    """
    Whether who sends a request expects answers as REST Proxy gives them.

    That is who names one of its media types. What only REST Proxy has is often asked for without them. It has
    no ``/messages``, where a refusal may say more than its form can.

    :param path: as it was sent.
    """
    if path == b"/messages":
        return False
    if any(is_of_rest_proxy(each) for each in content_types) or (accept and is_of_rest_proxy(accept)):
        return True
    if method not in (b"GET", b"HEAD") or (accept and _PROBLEM[1] in accept.lower()):
        return False
    return path == b"/topics" or path.startswith(b"/topics/")


def in_form_for(
    answer: Answer,
    *,
    method: bytes,
    path: bytes,
    content_types: tuple[bytes, ...],
    accept: bytes | None,
) -> Answer:
    """
    Give a refusal the form that its client reads.

    :param answer: what is to be sent; only problem documents change.
    :param path: as it was sent, and so the others: what the request has.
    """
    if _PROBLEM not in answer.headers or not _is_of_rest_proxy(method, path, content_types, accept):
        return answer
    return error_object_answer(answer, accept=accept)


def error_object_answer(answer: Answer, *, accept: bytes | None, code: int | None = None) -> Answer:
    """
    Make an error object of a problem document.

    :param accept: as for `sampleapp.rest_proxy.answer_type`.
    :param code: which error it is; that of the kind of problem by default.
    """
    if code is None:
        code = _CODES.get(answer.problem, int(answer.status))
    message = _decode(b"".join(answer.pieces)).detail
    content_type = (b"Content-Type", answer_type(accept) or ANSWER)
    headers: Headers = tuple([content_type if field == _PROBLEM else field for field in answer.headers])
    return replace(answer, headers=headers, body=msgspec.json.encode(ErrorObject(code, message)))
