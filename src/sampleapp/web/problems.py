"""
The one table from what went wrong to what the caller sees (RFC 9457).

Nowhere else do errors have HTTP status numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from sampleapp import access, errors
from sampleapp.web import request_errors
from sampleapp.web.answers import Answer, Headers

__all__ = [
    "FAULT",
    "INTERNAL_ERROR",
    "KINDS",
    "LEAST_URGENT",
    "ROWS",
    "Problem",
    "Result",
    "Row",
    "partly_published_answer",
    "problem_answer",
    "row_of",
    "urgency_of",
]

# RFC 6750, section 3: no error where there are no credentials, or ones of another scheme.
_ASK: Final[Headers] = ((b"WWW-Authenticate", b'Bearer realm="sampleapp"'),)
_ASK_ANOTHER: Final[Headers] = ((b"WWW-Authenticate", b'Bearer realm="sampleapp", error="invalid_token"'),)
_ASK_ONE: Final[Headers] = ((b"WWW-Authenticate", b'Bearer realm="sampleapp", error="invalid_request"'),)
_RETRY_AFTER: Final[Headers] = ((b"Retry-After", b"1"),)


class Row(Struct, frozen=True):
    """What all answers to one kind of error have in common."""

    status: HTTPStatus
    name: str | None
    """The last part of ``type``; ``None`` where the status says it all (RFC 9457, section 4.2.1)."""
    title: str
    headers: Headers = ()
    at_once: bool = False
    """Whether nobody waits for the rest of such a request."""

    @property
    def kind(self) -> str:
        """The problem in one word, for those who count."""
        return self.name or self.status.phrase.lower().replace(" ", "-")

    @property
    def type(self) -> str:
        """The URI that names the problem (RFC 9457, section 3.1.1)."""
        return "about:blank" if self.name is None else f"urn:sampleapp:problem:{self.name}"


class Result(Struct, kw_only=True, omit_defaults=True):
    """What became of one of many messages: where its record is, or its problem."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    status: Annotated[
        int | None, Meta(description="The status that the message alone would have been answered with.")
    ] = None
    type: Annotated[str | None, Meta(description="The type of its problem.")] = None
    detail: Annotated[str | None, Meta(description="What was wrong with it, and what would be right.")] = None


class Problem(Struct, kw_only=True, omit_defaults=True):
    """What went wrong, as RFC 9457 has it."""

    type: Annotated[
        str,
        Meta(
            description="What went wrong, for programs: `about:blank` where the status says it all.",
            extra_json_schema={"format": "uri-reference"},
        ),
    ]
    title: Annotated[str, Meta(description="The same for people; always the same for one type.")]
    status: Annotated[int, Meta(description="The status of the answer.")]
    detail: Annotated[
        str, Meta(description="What was wrong this time, and what would be right. The wording may change.")
    ]
    errors: Annotated[
        tuple[errors.Fault, ...],
        Meta(description="All that is wrong with a message, where it was read and is not one."),
    ] = ()
    reasons: Annotated[
        tuple[str, ...],
        Meta(description="Why the service is not ready, for those who may know; a sentence for each reason."),
    ] = ()
    results: Annotated[
        tuple[Result, ...],
        Meta(
            description="Where some of many messages were published: what became of each of them, in order."
        ),
    ] = ()


def _plain(status: HTTPStatus, *, headers: Headers = ()) -> Row:
    return Row(status, None, status.phrase, headers)


_S = HTTPStatus
ROWS: Final[dict[type[errors.SampleAppError], Row]] = {
    request_errors.MalformedRequest: _plain(_S.BAD_REQUEST),
    request_errors.PathNotFound: _plain(_S.NOT_FOUND),
    request_errors.MethodNotAllowed: _plain(_S.METHOD_NOT_ALLOWED),
    request_errors.PreconditionFailed: _plain(_S.PRECONDITION_FAILED),
    request_errors.BodyTooLarge: Row(_S.REQUEST_ENTITY_TOO_LARGE, "body-too-large", "Body too large"),
    request_errors.UnsupportedContentType: _plain(_S.UNSUPPORTED_MEDIA_TYPE),
    request_errors.SeveralContentTypes: _plain(_S.UNSUPPORTED_MEDIA_TYPE),
    request_errors.UnsupportedEmbeddedFormat: _plain(_S.UNSUPPORTED_MEDIA_TYPE),
    request_errors.NotAcceptable: _plain(_S.NOT_ACCEPTABLE),
    request_errors.UnsupportedContentCoding: _plain(_S.UNSUPPORTED_MEDIA_TYPE),
    request_errors.UndecodableBody: Row(_S.BAD_REQUEST, "undecodable-body", "Body cannot be decoded"),
    request_errors.ExpectationNotMet: _plain(_S.EXPECTATION_FAILED),
    request_errors.HeaderTooLarge: _plain(_S.REQUEST_HEADER_FIELDS_TOO_LARGE),
    request_errors.RequestTooSlow: _plain(_S.REQUEST_TIMEOUT),
    request_errors.TooManyConnections: Row(
        _S.SERVICE_UNAVAILABLE, "too-many-connections", "Too many connections", _RETRY_AFTER
    ),
    request_errors.TooManyRequests: Row(
        _S.SERVICE_UNAVAILABLE, "too-many-requests-waiting", "Too many requests are waiting", _RETRY_AFTER
    ),
    request_errors.NotReady: Row(_S.SERVICE_UNAVAILABLE, "not-ready", "Service is not ready", _RETRY_AFTER),
    access.NoCredentials: Row(_S.UNAUTHORIZED, "no-credentials", "No credentials", _ASK, at_once=True),
    access.InvalidCredentials: Row(
        _S.UNAUTHORIZED, "invalid-credentials", "Invalid credentials", _ASK_ANOTHER, at_once=True
    ),
    access.AmbiguousCredentials: Row(
        _S.UNAUTHORIZED, "ambiguous-credentials", "Ambiguous credentials", _ASK_ONE, at_once=True
    ),
    access.IssuerKeysNotKnown: Row(
        _S.SERVICE_UNAVAILABLE, "issuer-keys-not-known", "Issuer's keys not known", at_once=True
    ),
    access.NotGranted: Row(_S.FORBIDDEN, "not-granted", "Not granted"),
    request_errors.CrossSiteRequest: Row(_S.FORBIDDEN, "cross-site", "Request of another site"),
    access.RateExceeded: Row(_S.TOO_MANY_REQUESTS, "rate-exceeded", "Rate exceeded", at_once=True),
    errors.MalformedMessage: Row(_S.BAD_REQUEST, "malformed-message", "Body is not JSON"),
    errors.InvalidMessage: Row(_S.UNPROCESSABLE_ENTITY, "invalid-message", "Body is not a message"),
    errors.InvalidParameters: Row(_S.UNPROCESSABLE_ENTITY, "invalid-parameters", "Invalid parameters"),
    errors.ReadingsNotReady: Row(
        _S.SERVICE_UNAVAILABLE, "readings-not-ready", "Readings not ready", _RETRY_AFTER
    ),
    errors.RecordRefused: Row(_S.UNPROCESSABLE_ENTITY, "record-refused", "Record refused"),
    errors.IllegalTopic: Row(_S.UNPROCESSABLE_ENTITY, "illegal-topic", "Illegal topic"),
    errors.RecordTooLarge: Row(_S.REQUEST_ENTITY_TOO_LARGE, "record-too-large", "Record too large"),
    errors.TopicNotAuthorized: Row(_S.FORBIDDEN, "topic-not-authorized", "Topic not authorized"),
    errors.UnknownTopic: Row(_S.NOT_FOUND, "unknown-topic", "Unknown topic"),
    errors.UnknownPartition: Row(_S.NOT_FOUND, "unknown-partition", "Unknown partition"),
    errors.BufferFull: Row(
        _S.SERVICE_UNAVAILABLE, "buffer-full", "Too much is waiting for the broker", _RETRY_AFTER
    ),
    errors.BrokerUnavailable: Row(
        _S.SERVICE_UNAVAILABLE, "broker-unavailable", "Broker unavailable", _RETRY_AFTER
    ),
    errors.BrokerStopped: Row(_S.SERVICE_UNAVAILABLE, "stopping", "Service is stopping", _RETRY_AFTER),
    errors.BrokerIncompatible: Row(
        _S.SERVICE_UNAVAILABLE, "broker-incompatible", "Broker incompatible", _RETRY_AFTER
    ),
    errors.OutcomeUnknown: Row(_S.GATEWAY_TIMEOUT, "outcome-unknown", "Outcome unknown"),
    errors.PartlyPublished: Row(_S.GATEWAY_TIMEOUT, "partly-published", "Partly published"),
    errors.PartlyRefused: Row(_S.UNPROCESSABLE_ENTITY, "partly-published", "Partly published"),
    errors.PublishTimedOut: Row(_S.GATEWAY_TIMEOUT, "publish-timed-out", "Broker did not answer in time"),
}


def row_of(kind: type[errors.SampleAppError]) -> Row:
    """
    Find the row of a kind of error: its own, or that of what it is a kind of.

    :raise LookupError: there is none, so the error is not one for callers.
    """
    row = next((ROWS[each] for each in kind.__mro__ if each in ROWS), None)
    if row is None:
        raise LookupError(f"{kind.__name__} has no row")
    return row


# If many messages are wrong in several ways, the first of these that there is decides on the status.
_MOST_URGENT: Final = (_S.BAD_REQUEST, _S.UNPROCESSABLE_ENTITY, _S.FORBIDDEN, _S.NOT_FOUND)
LEAST_URGENT: Final = len(_MOST_URGENT)
"""Of what is wrong with no message."""


def urgency_of(kind: type[errors.SampleAppError]) -> int:
    """
    Tell which of several kinds of errors decides where they meet in one request: that of the least number.

    :raise LookupError: it has no row.
    """
    status = row_of(kind).status
    return _MOST_URGENT.index(status) if status in _MOST_URGENT else LEAST_URGENT


def problem_answer(
    error: errors.SampleAppError, *, detail: str | None = None, faults: Sequence[errors.Fault] | None = None
) -> Answer:
    """
    The answer that an error deserves.

    :param detail: what to say instead of what the error says of itself.
    :param faults: all that is wrong, instead of what the error names.
    :raise LookupError: it has no row, so it is not one for callers.
    """
    row = row_of(type(error))
    own_headers = error.headers if isinstance(error, request_errors.RequestError) else ()
    if isinstance(error, access.AccessError) and error.retry_after_s is not None:
        # Whole seconds, and none that is too early (RFC 9110, section 10.2.3).
        own_headers = ((b"Retry-After", b"%d" % max(1, math.ceil(error.retry_after_s))),)
    if faults is None:
        faults = error.faults if isinstance(error, errors.InvalidMessage) else ()
    return _answer(
        row,
        detail=str(error) if detail is None else detail,
        headers=own_headers,
        faults=tuple(faults),
        reasons=error.reasons if isinstance(error, request_errors.NotReady) else (),
    )


def partly_published_answer(error: errors.PartlyPublished, results: Iterable[bytes]) -> Answer:
    """
    The answer after which only a part of many messages has to be sent again.

    :param results: one or more `Result` each, as the members of JSON arrays: without the brackets.
    """
    answer = problem_answer(error)
    (document,) = answer.pieces
    *separated, _ = chain.from_iterable((piece, b",") for piece in results)
    return replace(answer, body=(document[:-1] + b',"results":[', *separated, b"]}"))


def _answer(
    row: Row,
    *,
    detail: str,
    headers: Headers = (),
    faults: tuple[errors.Fault, ...] = (),
    reasons: tuple[str, ...] = (),
) -> Answer:
    document = Problem(
        type=row.type,
        title=row.title,
        status=row.status,
        detail=detail,
        errors=faults,
        reasons=reasons,
    )
    return Answer(
        row.status,
        (
            (b"Content-Type", b"application/problem+json"),
            # Without this a cache may keep some of the refusals (RFC 9111, section 4.2.2).
            (b"Cache-Control", b"no-store"),
            *row.headers,
            *headers,
        ),
        msgspec.json.encode(document),
        problem=row.kind,
        at_once=row.at_once,
    )


FAULT: Final = _plain(_S.INTERNAL_SERVER_ERROR)
"""The row of what is no error for callers: there is a fault in the service itself."""

INTERNAL_ERROR: Final = _answer(
    FAULT,
    detail="The service has a fault, which is in its log. What became of the request is not known.",
)
"""The answer then: it tells nothing of the inside."""

KINDS: Final = frozenset({*(row.kind for row in ROWS.values()), INTERNAL_ERROR.problem})
"""Every kind of problem there is (`Answer.problem`)."""
