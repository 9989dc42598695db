"""
The table that maps errors to HTTP statuses and problem documents (RFC 9457).

No other module gives a status to an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from sampleapp import access, errors
from sampleapp.model import GoneRecords
from sampleapp.records import position_errors
from sampleapp.web import errors as request_errors
from sampleapp.web.answers import Answer, Headers, json_line

__all__ = [
    "BROKER_REFUSALS",
    "FAULT",
    "IDEMPOTENCY_REFUSALS",
    "INTERNAL_ERROR",
    "KINDS",
    "LEAST_URGENT",
    "ROWS",
    "Problem",
    "Result",
    "Row",
    "is_temporary",
    "partly_published_answer",
    "problem_answer",
    "row_of",
    "urgency_of",
]

# RFC 6750, section 3: no "error" if credentials are missing or of another scheme.
_CHALLENGE: Final[Headers] = ((b"WWW-Authenticate", b'Bearer realm="sampleapp"'),)
_CHALLENGE_INVALID_TOKEN: Final[Headers] = (
    (b"WWW-Authenticate", b'Bearer realm="sampleapp", error="invalid_token"'),
)
_CHALLENGE_INVALID_REQUEST: Final[Headers] = (
    (b"WWW-Authenticate", b'Bearer realm="sampleapp", error="invalid_request"'),
)
_RETRY_AFTER: Final[Headers] = ((b"Retry-After", b"1"),)


class Row(Struct, frozen=True):
    """The status, type, title and header fields of one kind of error."""

    status: HTTPStatus
    name: str | None
    """The last part of ``type``; ``None`` for ``about:blank`` (RFC 9457, section 4.2.1)."""
    title: str
    headers: Headers = ()
    at_once: bool = False
    """True to answer before the whole request is received; see `sampleapp.web.Answer.at_once`."""

    @property
    def kind(self) -> str:
        """The kind of problem, as a label of metrics."""
        return self.name or self.status.phrase.lower().replace(" ", "-")

    @property
    def type(self) -> str:
        """The URI that names the problem (RFC 9457, section 3.1.1)."""
        return "about:blank" if self.name is None else f"urn:sampleapp:problem:{self.name}"


class Result(Struct, kw_only=True, omit_defaults=True):
    """The outcome of one of many messages: its partition and offset, or its problem."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    status: Annotated[
        int | None, Meta(description="The status that a request with this message alone would get.")
    ] = None
    type: Annotated[str | None, Meta(description="The type of the problem.")] = None
    detail: Annotated[str | None, Meta(description="The fault of the message, and how to correct it.")] = None


class Problem(Struct, kw_only=True, omit_defaults=True):
    """A problem document (RFC 9457)."""

    type: Annotated[
        str,
        Meta(
            description="The kind of problem, for programs. `about:blank`: see the status.",
            extra_json_schema={"format": "uri-reference"},
        ),
    ]
    title: Annotated[str, Meta(description="The kind of problem, for people. Each type has one title.")]
    status: Annotated[int, Meta(description="The status of the answer.")]
    detail: Annotated[
        str, Meta(description="The fault of this request, and how to correct it. The wording may change.")
    ]
    errors: Annotated[
        tuple[errors.Fault, ...],
        Meta(description="All faults of a message; if it has more than 64 KiB, perhaps only the first."),
    ] = ()
    reasons: Annotated[
        tuple[str, ...],
        Meta(description="The reasons why the service is not ready, for callers with the right to see them."),
    ] = ()
    results: Annotated[
        tuple[Result, ...],
        Meta(description="If only some of many messages were published: the outcome of each, in order."),
    ] = ()
    gone: Annotated[
        tuple[GoneRecords, ...],
        Meta(description="The records after the position that are no longer in the topic."),
    ] = ()
    resume: Annotated[
        str, Meta(description="The position after the records that are gone.", examples=["pVqT3f8WQb6~99"])
    ] = ""


def _plain(status: HTTPStatus, *, headers: Headers = ()) -> Row:
    return Row(status, None, status.phrase, headers)


_CHALLENGE_SIGNATURE: Final[Headers] = ((b"WWW-Authenticate", b'Signature realm="sampleapp"'),)

_S = HTTPStatus
ROWS: Final[dict[type[errors.SampleAppError], Row]] = {
    request_errors.MalformedRequest: _plain(_S.BAD_REQUEST),
    request_errors.PathNotFound: _plain(_S.NOT_FOUND),
    request_errors.MethodNotAllowed: _plain(_S.METHOD_NOT_ALLOWED),
    request_errors.PreconditionFailed: _plain(_S.PRECONDITION_FAILED),
    request_errors.BodyTooLarge: Row(_S.REQUEST_ENTITY_TOO_LARGE, "body-too-large", "Body too large"),
    request_errors.BodyMemoryFull: Row(
        _S.SERVICE_UNAVAILABLE, "body-memory-full", "Too many bodies at once", _RETRY_AFTER, at_once=True
    ),
    request_errors.BodyMemoryOfCallerFull: Row(
        _S.TOO_MANY_REQUESTS,
        "body-memory-of-caller-full",
        "Too many bodies of one caller at once",
        _RETRY_AFTER,
        at_once=True,
    ),
    request_errors.BodyNeedsTooMuchMemory: Row(
        _S.REQUEST_ENTITY_TOO_LARGE, "body-too-large", "Body too large", at_once=True
    ),
    request_errors.UnsupportedContentType: _plain(_S.UNSUPPORTED_MEDIA_TYPE),
    request_errors.SeveralContentTypes: _plain(_S.UNSUPPORTED_MEDIA_TYPE),
    request_errors.UnsupportedEventFormat: _plain(_S.UNSUPPORTED_MEDIA_TYPE),
    request_errors.UnsupportedEmbeddedFormat: _plain(_S.UNSUPPORTED_MEDIA_TYPE),
    request_errors.NotAcceptable: _plain(_S.NOT_ACCEPTABLE),
    request_errors.UnsupportedContentCoding: _plain(_S.UNSUPPORTED_MEDIA_TYPE),
    request_errors.UndecodableBody: Row(_S.BAD_REQUEST, "undecodable-body", "Body cannot be decoded"),
    request_errors.MisdirectedRequest: Row(
        _S.MISDIRECTED_REQUEST, "misdirected-request", "Misdirected request", at_once=True
    ),
    request_errors.ExpectationNotMet: Row(
        _S.EXPECTATION_FAILED, None, _S.EXPECTATION_FAILED.phrase, at_once=True
    ),
    request_errors.LengthRequired: Row(_S.LENGTH_REQUIRED, "length-required", "Length required"),
    request_errors.HeaderTooLarge: _plain(_S.REQUEST_HEADER_FIELDS_TOO_LARGE),
    request_errors.RequestTooSlow: _plain(_S.REQUEST_TIMEOUT),
    request_errors.TooManyConnections: Row(
        _S.SERVICE_UNAVAILABLE, "too-many-connections", "Too many connections", _RETRY_AFTER
    ),
    request_errors.TooManyRequests: Row(
        _S.SERVICE_UNAVAILABLE, "too-many-requests-waiting", "Too many requests are waiting", _RETRY_AFTER
    ),
    request_errors.TooManyStreams: Row(
        _S.SERVICE_UNAVAILABLE, "too-many-streams", "Too many streams", ((b"Retry-After", b"30"),)
    ),
    request_errors.TooManyTopics: Row(
        _S.SERVICE_UNAVAILABLE, "too-many-topics", "Too many topics", ((b"Retry-After", b"30"),)
    ),
    request_errors.NotReady: Row(_S.SERVICE_UNAVAILABLE, "not-ready", "Service is not ready", _RETRY_AFTER),
    access.NoCredentials: Row(_S.UNAUTHORIZED, "no-credentials", "No credentials", _CHALLENGE, at_once=True),
    access.InvalidCredentials: Row(
        _S.UNAUTHORIZED, "invalid-credentials", "Invalid credentials", _CHALLENGE_INVALID_TOKEN, at_once=True
    ),
    access.InvalidSignature: Row(
        _S.UNAUTHORIZED, "invalid-signature", "Invalid signature", _CHALLENGE_SIGNATURE, at_once=True
    ),
    access.AmbiguousCredentials: Row(
        _S.UNAUTHORIZED,
        "ambiguous-credentials",
        "Ambiguous credentials",
        _CHALLENGE_INVALID_REQUEST,
        at_once=True,
    ),
    access.IssuerKeysNotKnown: Row(
        _S.SERVICE_UNAVAILABLE, "issuer-keys-not-known", "Issuer's keys not known", at_once=True
    ),
    access.NotGranted: Row(_S.FORBIDDEN, "not-granted", "Not granted"),
    request_errors.CrossSiteRequest: Row(_S.FORBIDDEN, "cross-site", "Cross-site request"),
    access.RateExceeded: Row(_S.TOO_MANY_REQUESTS, "rate-exceeded", "Rate exceeded", at_once=True),
    access.TooManyStreamsOfCaller: Row(
        _S.TOO_MANY_REQUESTS, "too-many-streams-of-caller", "Too many streams of one caller"
    ),
    errors.MalformedIdempotencyKey: Row(
        _S.BAD_REQUEST, "malformed-idempotency-key", "Idempotency-Key is not valid"
    ),
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
    errors.IdempotencyKeyReused: Row(
        _S.UNPROCESSABLE_ENTITY, "idempotency-key-reused", "Idempotency-Key was used for another record"
    ),
    errors.IdempotencyNotEnabled: Row(
        _S.UNPROCESSABLE_ENTITY, "idempotency-not-enabled", "Idempotency-Key is not enabled"
    ),
    errors.IdempotencyNotSupported: Row(
        _S.NOT_IMPLEMENTED, "idempotency-not-supported", "Idempotency-Key is not supported"
    ),
    errors.TooManyIdempotencyKeys: Row(
        _S.TOO_MANY_REQUESTS, "too-many-idempotency-keys", "Too many idempotency keys"
    ),
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
    position_errors.PositionExpired: Row(_S.GONE, "position-expired", "Records are gone"),
    position_errors.TopicReplaced: Row(_S.GONE, "topic-replaced", "Topic was replaced"),
    position_errors.PositionUnknown: Row(_S.GONE, "position-unknown", "Position beyond the end"),
    errors.PartlyPublished: Row(_S.GATEWAY_TIMEOUT, "partly-published", "Partly published"),
    errors.PartlyRefused: Row(_S.UNPROCESSABLE_ENTITY, "partly-published", "Partly published"),
    errors.PublishTimedOut: Row(_S.GATEWAY_TIMEOUT, "publish-timed-out", "Broker did not answer in time"),
}

_REFUSALS_OF_IDENTITIES: Final = (
    errors.IdempotencyKeyReused,
    errors.IdempotencyNotEnabled,
    errors.IdempotencyNotSupported,
    errors.TooManyIdempotencyKeys,
)
BROKER_REFUSALS: Final = tuple(
    kind for kind in ROWS if issubclass(kind, errors.PublishError) and kind not in _REFUSALS_OF_IDENTITIES
)
"""The errors with which a broker refuses a record without an identity."""
IDEMPOTENCY_REFUSALS: Final = (errors.MalformedIdempotencyKey, *_REFUSALS_OF_IDENTITIES)
"""The further errors of requests with ``Idempotency-Key``."""


def row_of(kind: type[errors.SampleAppError]) -> Row:
    """
    Return the row of a class of errors: its own, or that of a base class.

    :raise LookupError: the class has no row, since it is not an error for callers.
    """
    row = next((ROWS[each] for each in kind.__mro__ if each in ROWS), None)
    if row is None:
        raise LookupError(f"{kind.__name__} has no row")
    return row


def is_temporary(error: errors.SampleAppError) -> bool:
    """Return whether the same request may succeed later: its status is 429 or 503."""
    return row_of(type(error)).status in (_S.TOO_MANY_REQUESTS, _S.SERVICE_UNAVAILABLE)


# If messages of one request have several kinds of faults, the first of these statuses is that of the answer.
_MOST_URGENT: Final = (_S.BAD_REQUEST, _S.UNPROCESSABLE_ENTITY, _S.FORBIDDEN, _S.NOT_FOUND)
LEAST_URGENT: Final = len(_MOST_URGENT)
"""The urgency of errors that are not faults of a message."""


def urgency_of(kind: type[errors.SampleAppError]) -> int:
    """
    Return the rank of a class of errors: in a request with several, the least rank decides on the status.

    :raise LookupError: the class has no row.
    """
    status = row_of(kind).status
    return _MOST_URGENT.index(status) if status in _MOST_URGENT else LEAST_URGENT


def problem_answer(
    error: errors.SampleAppError, *, detail: str | None = None, faults: Sequence[errors.Fault] | None = None
) -> Answer:
    """
    Return the problem document of an error, as an answer.

    :param detail: instead of the message of the error.
    :param faults: instead of the faults of the error.
    :raise LookupError: the error has no row, since it is not one for callers.
    """
    row = row_of(type(error))
    errors.forget_frames(error)
    own_headers = error.headers if isinstance(error, request_errors.RequestError) else ()
    if (
        isinstance(error, access.AccessError | errors.TooManyIdempotencyKeys)
        and error.retry_after_s is not None
    ):
        # Whole seconds, rounded up (RFC 9110, section 10.2.3).
        own_headers = ((b"Retry-After", b"%d" % max(1, math.ceil(error.retry_after_s))),)
    if faults is None:
        faults = error.faults if isinstance(error, errors.InvalidMessage) else ()
    return _answer(
        row,
        detail=str(error) if detail is None else detail,
        headers=own_headers,
        faults=tuple(faults),
        reasons=error.reasons if isinstance(error, request_errors.NotReady) else (),
        gone=error.gone if isinstance(error, position_errors.PositionExpired) else (),
        resume=error.resume if isinstance(error, position_errors.PositionExpired) else "",
    )


def partly_published_answer(error: errors.PartlyPublished, results: Iterable[bytes]) -> Answer:
    """
    Return the answer for a batch of which only some messages must be sent again.

    :param results: pieces of JSON, each with one or more `Result`, as in an array but without its brackets.
    """
    answer = problem_answer(error)
    (document,) = answer.pieces
    *separated, _ = chain.from_iterable((piece, b",") for piece in results)
    return replace(answer, body=(document.removesuffix(b"}\n") + b',"results":[', *separated, b"]}\n"))


def _answer(
    row: Row,
    *,
    detail: str,
    headers: Headers = (),
    faults: tuple[errors.Fault, ...] = (),
    reasons: tuple[str, ...] = (),
    gone: tuple[GoneRecords, ...] = (),
    resume: str = "",
) -> Answer:
    document = Problem(
        type=row.type,
        title=row.title,
        status=row.status,
        detail=detail,
        errors=faults,
        reasons=reasons,
        gone=gone,
        resume=resume,
    )
    return Answer(
        row.status,
        (
            (b"Content-Type", b"application/problem+json"),
            # Without it, caches may store some errors (RFC 9111, section 4.2.2).
            (b"Cache-Control", b"no-store"),
            *row.headers,
            *headers,
        ),
        json_line(document),
        problem=row.kind,
        at_once=row.at_once,
    )


FAULT: Final = _plain(_S.INTERNAL_SERVER_ERROR)
"""The row of errors that are not for callers: faults in the service itself."""

INTERNAL_ERROR: Final = _answer(
    FAULT,
    detail="A fault in the service; its log has the details. The outcome of the request is unknown.",
)
"""The answer to a fault in the service, which discloses nothing internal."""

KINDS: Final = frozenset({*(row.kind for row in ROWS.values()), INTERNAL_ERROR.problem})
"""All kinds of problems (`Answer.problem`)."""
