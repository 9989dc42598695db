"""
Every error of HTTP: its status, and the type, title and header fields of its problem document (RFC 9457).

No other module gives a status to an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from itertools import chain
from random import randint
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from sampleapp import errors
from sampleapp.access import errors as access_errors
from sampleapp.errors import SampleAppError, shown
from sampleapp.model import GoneRecords
from sampleapp.records import positions
from sampleapp.web.responses import Headers, Response, json_line

_S = HTTPStatus
_RETRY_AFTER: Final[Headers] = ((b"Retry-After", b"1"),)
_MOST_SECONDS: Final = 5
_LONGEST_FIELD = 100
"""The maximum length of a header field that an error quotes, in bytes."""
_MOST_SHOWN: Final = 3
"""The most values of one header field that an error quotes."""


class Row(Struct, frozen=True):
    """The status, type, title and header fields of one kind of error."""

    status: HTTPStatus
    name: str | None
    """The last part of ``type``; ``None`` for ``about:blank`` (RFC 9457, section 4.2.1)."""
    title: str
    headers: Headers = ()
    at_once: bool = False
    """True to answer before the whole request is received; see `sampleapp.web.Response.at_once`."""

    @property
    def kind(self) -> str:
        """The kind of problem, as a label of metrics."""
        return self.name or self.status.phrase.lower().replace(" ", "-")

    @property
    def type(self) -> str:
        """The URI that names the problem (RFC 9457, section 3.1.1)."""
        return "about:blank" if self.name is None else f"urn:sampleapp:problem:{self.name}"


def _plain(status: HTTPStatus, *, headers: Headers = (), at_once: bool = False) -> Row:
    return Row(status, None, status.phrase, headers, at_once)


def _shown(field: bytes) -> str:
    # RFC 9110, section 5.5: bytes that are not ASCII have no defined meaning.
    return shown(field.decode("ascii", errors="replace"), _LONGEST_FIELD) or "empty"


def _shown_types(content_types: Sequence[bytes]) -> str:
    """Return the values of ``Content-Type`` for a sentence, the first few of them."""
    shown_types = [_shown(each) for each in content_types[:_MOST_SHOWN]]
    more = len(content_types) - len(shown_types)
    return (", and ".join(shown_types) + (f", and {more} more" if more else "")) or "none"


def _spread_retry_after() -> Headers:
    """Return random seconds: large bodies that all come again at once would all be rejected again."""
    return ((b"Retry-After", b"%d" % randint(1, _MOST_SECONDS)),)  # noqa: S311 -- not a secret


class RequestError(SampleAppError):
    """A request is not valid in HTTP, or for this service."""

    row: ClassVar[Row]
    headers: Headers = ()
    """Further header fields, of this error alone."""


class MalformedRequest(RequestError):
    """The request does not match the grammar of HTTP (RFC 9112)."""

    row = _plain(_S.BAD_REQUEST)


class HeaderTooLarge(RequestError):
    """The request line or the header fields are larger than the limit."""

    row = _plain(_S.REQUEST_HEADER_FIELDS_TOO_LARGE)


class LengthRequired(RequestError):
    """A ``POST`` does not say where its body ends, if it has one (RFC 9110, section 15.5.12)."""

    row = Row(_S.LENGTH_REQUIRED, "length-required", "Length required")

    def __init__(self) -> None:
        super().__init__(
            "The request has neither Content-Length nor Transfer-Encoding: chunked, so a body would be lost. "
            "Send the length of the body; for an empty one, Content-Length: 0."
        )


class PathNotFound(RequestError):
    """No resource has this path."""

    row = _plain(_S.NOT_FOUND)

    def __init__(self, reason: str = "No resource has this path.") -> None:
        """:param reason: a sentence."""
        super().__init__(f"{reason} /openapi.json lists all paths.")


class MethodNotAllowed(RequestError):
    """The path does not have this method (RFC 9110, section 15.5.6)."""

    row = _plain(_S.METHOD_NOT_ALLOWED)

    def __init__(self, allowed: Iterable[str]) -> None:
        """:param allowed: the methods of the path."""
        methods = ", ".join(sorted(allowed, key=lambda method: (method == "OPTIONS", method)))
        super().__init__(f"This path does not have this method. Its methods are {methods}.")
        self.headers = ((b"Allow", methods.encode("ascii")),)


class NotReady(RequestError):
    """Publishing is expected to fail, the readings are not complete yet, or the service is stopping."""

    row = Row(_S.SERVICE_UNAVAILABLE, "not-ready", "Service is not ready", _RETRY_AFTER)

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        """:param reasons: a sentence each; none if the client may not see them."""
        self.reasons = tuple(reasons)
        super().__init__(" ".join(self.reasons) or "The service is not ready.")


class PreconditionFailed(RequestError):
    """A condition of the request is not met (RFC 9110, section 15.5.13)."""

    row = _plain(_S.PRECONDITION_FAILED)

    def __init__(
        self,
        reason: str = "If-Match has neither the current entity tag nor *. Omit it, or send the ETag of an "
        "answer to a request with the same Accept.",
    ) -> None:
        """:param reason: a sentence."""
        super().__init__(reason)


class BodyTooLarge(RequestError):
    """The body is larger than the limit (``--max-body``, ``--max-batch-body``)."""

    row = Row(_S.REQUEST_ENTITY_TOO_LARGE, "body-too-large", "Body too large")

    def __init__(self, max_body: int | None, *, is_decoded: bool = False) -> None:
        """
        :param max_body: the limit, in bytes; ``None`` if the length exceeds any limit.
        :param is_decoded: whether only the decoded body is over the limit.
        """
        super().__init__(
            "The Content-Length of the body does not fit into 64 bits."
            if max_body is None
            else f"The {'decoded ' if is_decoded else ''}body is larger than {max_body} bytes, the limit of "
            "this service."
        )


class BodyMemoryFull(RequestError):
    """The memory for bodies is full (``--max-body-memory``)."""

    row = Row(_S.SERVICE_UNAVAILABLE, "body-memory-full", "Too many bodies at once", at_once=True)

    def __init__(self, max_body_memory: int) -> None:
        """:param max_body_memory: the limit for all of them, in bytes."""
        super().__init__(
            f"The bodies of other requests leave too little of the {max_body_memory} bytes of memory for "
            "bodies. Nothing was done. Send the request again."
        )
        self.headers = _spread_retry_after()


class BodyMemoryOfCallerFull(RequestError):
    """The part of one caller of the memory for bodies is full (``--max-body-memory``)."""

    row = Row(
        _S.TOO_MANY_REQUESTS,
        "body-memory-of-caller-full",
        "Too many bodies of one caller at once",
        at_once=True,
    )

    def __init__(self, most: int) -> None:
        """:param most: the limit for all requests of a caller together, in bytes."""
        super().__init__(
            f"Your other requests leave too little of the {most} bytes of memory that one caller may have. "
            "Nothing was done. Send the request again when one of them is answered."
        )
        self.headers = _spread_retry_after()


class BodyNeedsTooMuchMemory(RequestError):
    """The body, its records or the response need more memory than one request may have."""

    row = Row(_S.REQUEST_ENTITY_TOO_LARGE, "body-too-large", "Body too large", at_once=True)

    def __init__(self, needed: int, most: int) -> None:
        """
        :param needed: up to now, in bytes.
        :param most: the limit, in bytes.
        """
        super().__init__(
            f"The request needs at least {needed} bytes of memory. One request may have {most}. Nothing was "
            "done. Send, or ask for, fewer records in one request."
        )


class CrossSiteRequest(RequestError):
    """A page of another site made the request, and its origin is not allowed (``--allow-origin``)."""

    row = Row(_S.FORBIDDEN, "cross-site", "Cross-site request")

    def __init__(self, name: str, value: bytes) -> None:
        """
        :param name: of the header field that shows it.
        :param value: of the field.
        """
        super().__init__(
            f"A page of another site made this request ({name}: {_shown(value)}). Nothing was published. "
            "Pages may publish if Origin has the host and the port of Host, or if the service was started "
            "with --allow-origin and this origin."
        )


class MisdirectedRequest(RequestError):
    """``Host`` is not a known name of this service (``--allow-host``)."""

    row = Row(_S.MISDIRECTED_REQUEST, "misdirected-request", "Misdirected request", at_once=True)

    def __init__(self, host: bytes) -> None:
        """:param host: from the field, or from the target."""
        super().__init__(
            f"The host {_shown(host)} is not a known name of this service. Since callers need no "
            "credentials, only localhost, loopback addresses and the hosts of --allow-host are served: "
            "another site could point its name here. If it is a name of the service, start the service with "
            "--allow-host NAME."
        )


class RequestTooSlow(RequestError):
    """The head or the body was not received in time (RFC 9110, section 15.5.9)."""

    row = _plain(_S.REQUEST_TIMEOUT)


class TooManyConnections(RequestError):
    """The maximum number of connections is open."""

    row = Row(_S.SERVICE_UNAVAILABLE, "too-many-connections", "Too many connections", _RETRY_AFTER)

    def __init__(self, max_connections: int) -> None:
        """:param max_connections: the limit."""
        super().__init__(f"All {max_connections} connections of this service are in use. Try again later.")


class TooManyRequests(RequestError):
    """The maximum number of requests is waiting for the broker."""

    row = Row(
        _S.SERVICE_UNAVAILABLE, "too-many-requests-waiting", "Too many requests are waiting", _RETRY_AFTER
    )

    def __init__(self, max_waiting: int) -> None:
        """:param max_waiting: the limit."""
        super().__init__(
            f"{max_waiting} requests are waiting for the broker, the maximum. Nothing was published."
        )


class TooManyStreams(RequestError):
    """The maximum number of streams, or of waiting pages, is open (``--max-streams``)."""

    row = Row(_S.SERVICE_UNAVAILABLE, "too-many-streams", "Too many streams", ((b"Retry-After", b"30"),))

    def __init__(self, limit: int, *, what: str) -> None:
        """:param what: ``streams`` or ``waiting pages``."""
        super().__init__(
            f"{limit} {what} are open, the maximum of this service. Send the request again later, or to "
            "another instance."
            if limit
            else f"This service permits no {what}: their maximum is 0."
        )


class TooManyTopics(RequestError):
    """Streams and waiting pages read the maximum number of topics (``--max-followed-topics``)."""

    row = Row(_S.SERVICE_UNAVAILABLE, "too-many-topics", "Too many topics", ((b"Retry-After", b"30"),))

    def __init__(self, limit: int) -> None:
        """:param limit: the number of topics."""
        super().__init__(
            f"Streams and waiting pages read {limit} other topics, the maximum of this service. Read pages "
            "without wait, or send the request again later."
        )


class UnknownGroup(RequestError):
    """No worker has pulled messages of the topic in this group yet."""

    row = Row(_S.NOT_FOUND, "unknown-group", "Unknown group")

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(f"No worker has pulled messages of the topic {topic} in the group {group} yet.")


class NotJSON(RequestError):
    """``Content-Type`` of a request of a worker is not JSON."""

    row = _plain(_S.UNSUPPORTED_MEDIA_TYPE, headers=((b"Accept", b"application/json"),))

    def __init__(self) -> None:
        super().__init__("The request must have one Content-Type, application/json. Nothing was done.")


class UnsupportedContentType(RequestError):
    """``Content-Type`` is not JSON or lines of JSON."""

    row = _plain(
        _S.UNSUPPORTED_MEDIA_TYPE,
        headers=((b"Accept", b"application/json, application/x-ndjson, application/jsonl"),),
    )

    def __init__(self, content_types: Sequence[bytes]) -> None:
        """:param content_types: the values of the fields that the request has."""
        super().__init__(
            "The Content-Type must be application/json for one message, or application/x-ndjson for one "
            f"message on each line. The Content-Type of this request: {_shown_types(content_types)}."
        )


class SeveralContentTypes(RequestError):
    """The request has more than one ``Content-Type`` (RFC 9110, section 8.3)."""

    row = _plain(_S.UNSUPPORTED_MEDIA_TYPE)

    def __init__(self, content_types: Sequence[bytes]) -> None:
        """:param content_types: the values of the fields that the request has."""
        super().__init__(
            f"The request has several Content-Types that differ: {_shown_types(content_types)}. Send one of "
            "them, or none."
        )


class UnsupportedEventFormat(RequestError):
    """``Content-Type`` is a format of CloudEvents other than JSON."""

    row = _plain(
        _S.UNSUPPORTED_MEDIA_TYPE,
        headers=((b"Accept", b"application/cloudevents+json, application/cloudevents-batch+json"),),
    )

    def __init__(self) -> None:
        super().__init__(
            "Of the formats of CloudEvents, only JSON is supported: application/cloudevents+json, or "
            "application/cloudevents-batch+json for a batch. Data of any type can be sent in binary mode."
        )


class UnsupportedEmbeddedFormat(RequestError):
    """``Content-Type`` is none of the supported formats of REST Proxy's API v2: ``json`` and ``binary``."""

    row = _plain(
        _S.UNSUPPORTED_MEDIA_TYPE,
        headers=((b"Accept", b"application/vnd.kafka.json.v2+json, application/vnd.kafka.binary.v2+json"),),
    )

    def __init__(self, content_types: Sequence[bytes]) -> None:
        """:param content_types: the values of the fields that the request has."""
        super().__init__(
            "Of REST Proxy's media types, the service supports application/vnd.kafka.json.v2+json and "
            "application/vnd.kafka.binary.v2+json. The Content-Type of this request: "
            f"{_shown_types(content_types)}. Schemas (Avro, JSON Schema, Protobuf) and other versions are "
            "not supported."
        )


class EnvelopeOfAnotherType(RequestError):
    """The body has records as REST Proxy takes them, but ``Content-Type`` is not a type of its API v2."""

    row = _plain(_S.UNSUPPORTED_MEDIA_TYPE, headers=UnsupportedEmbeddedFormat.row.headers)

    def __init__(self, content_types: Sequence[bytes]) -> None:
        """:param content_types: the values of the fields that the request has."""
        super().__init__(
            'The body is a JSON object with "records", as REST Proxy takes it. To publish its records, send '
            "it as application/vnd.kafka.json.v2+json or application/vnd.kafka.binary.v2+json. To publish "
            "the body as one record, as it is, add envelope=value to the query. The Content-Type of this "
            f"request: {_shown_types(content_types)}. Nothing was published."
        )


class NotAcceptable(RequestError):
    """``Accept`` allows none of the media types of the response (RFC 9110, section 15.5.7)."""

    row = _plain(_S.NOT_ACCEPTABLE)

    def __init__(self) -> None:
        super().__init__(
            "The answer can be application/vnd.kafka.v2+json, application/vnd.kafka+json or "
            "application/json. Accept allows none of them. Nothing was published."
        )


class UnsupportedContentCoding(RequestError):
    """The ``Content-Encoding`` of the body is not supported (RFC 9110, section 15.5.16)."""

    # RFC 7694, section 3.
    row = _plain(_S.UNSUPPORTED_MEDIA_TYPE, headers=((b"Accept-Encoding", b"gzip, zstd"),))

    def __init__(self, codings: Sequence[bytes]) -> None:
        """:param codings: of the body, in the order in which they were applied."""
        actual = _shown(codings[0]) if len(codings) == 1 else f"{len(codings)} of them"
        super().__init__(
            "The Content-Encoding of a body must be gzip or zstd, or absent. The Content-Encoding of this "
            f"request: {actual}."
        )


class UndecodableBody(RequestError):
    """The body is not valid in its ``Content-Encoding``: gzip (RFC 1952) or zstd (RFC 8878)."""

    row = Row(_S.BAD_REQUEST, "undecodable-body", "Body cannot be decoded")

    def __init__(self, coding: str, reason: str) -> None:
        """
        :param coding: the ``Content-Encoding``.
        :param reason: the fault, possibly in the words of the library that decodes.
        """
        hint = " The maximum window is 8 MiB (RFC 9659)." if coding == "zstd" else ""
        super().__init__(
            f"The body is not valid {coding}, its Content-Encoding: {reason.rstrip('.')}.{hint} Send the "
            "whole compressed body, or send it uncompressed, without Content-Encoding."
        )


class ExpectationNotMet(RequestError):
    """``Expect`` is not 100-continue (RFC 9110, section 10.1.1)."""

    row = _plain(_S.EXPECTATION_FAILED, at_once=True)

    def __init__(self) -> None:
        super().__init__("The only value of Expect that this service supports is 100-continue.")


# RFC 6750, section 3: no "error" if credentials are missing or of another scheme.
_CHALLENGE: Final[Headers] = ((b"WWW-Authenticate", b'Bearer realm="sampleapp"'),)
_CHALLENGE_INVALID_TOKEN: Final[Headers] = (
    (b"WWW-Authenticate", b'Bearer realm="sampleapp", error="invalid_token"'),
)
_CHALLENGE_INVALID_REQUEST: Final[Headers] = (
    (b"WWW-Authenticate", b'Bearer realm="sampleapp", error="invalid_request"'),
)
_CHALLENGE_SIGNATURE: Final[Headers] = ((b"WWW-Authenticate", b'Signature realm="sampleapp"'),)

ROWS: Final[dict[type[SampleAppError], Row]] = {
    **{kind: kind.row for kind in RequestError.__subclasses__()},
    access_errors.NoCredentials: Row(
        _S.UNAUTHORIZED, "no-credentials", "No credentials", _CHALLENGE, at_once=True
    ),
    access_errors.InvalidCredentials: Row(
        _S.UNAUTHORIZED, "invalid-credentials", "Invalid credentials", _CHALLENGE_INVALID_TOKEN, at_once=True
    ),
    access_errors.InvalidSignature: Row(
        _S.UNAUTHORIZED, "invalid-signature", "Invalid signature", _CHALLENGE_SIGNATURE, at_once=True
    ),
    access_errors.AmbiguousCredentials: Row(
        _S.UNAUTHORIZED,
        "ambiguous-credentials",
        "Ambiguous credentials",
        _CHALLENGE_INVALID_REQUEST,
        at_once=True,
    ),
    access_errors.IssuerKeysNotKnown: Row(
        _S.SERVICE_UNAVAILABLE, "issuer-keys-not-known", "Issuer's keys not known", at_once=True
    ),
    access_errors.NotGranted: Row(_S.FORBIDDEN, "not-granted", "Not granted"),
    access_errors.RateExceeded: Row(_S.TOO_MANY_REQUESTS, "rate-exceeded", "Rate exceeded", at_once=True),
    access_errors.TooManyStreamsOfCaller: Row(
        _S.TOO_MANY_REQUESTS, "too-many-streams-of-caller", "Too many streams of one caller"
    ),
    errors.MalformedIdempotencyKey: Row(
        _S.BAD_REQUEST, "malformed-idempotency-key", "Idempotency-Key is not valid"
    ),
    errors.MalformedMessage: Row(_S.BAD_REQUEST, "malformed-message", "Body is not JSON"),
    errors.InvalidMessage: Row(_S.UNPROCESSABLE_ENTITY, "invalid-message", "Body is not a message"),
    errors.SchemaMismatch: Row(
        _S.UNPROCESSABLE_ENTITY, "schema-mismatch", "Content does not match the schema"
    ),
    errors.SchemaTooExpensive: Row(
        _S.UNPROCESSABLE_ENTITY, "schema-too-expensive", "Check of the content takes too long"
    ),
    errors.SchemaChecksUnavailable: Row(
        _S.SERVICE_UNAVAILABLE, "schema-checks-unavailable", "Contents cannot be checked now", _RETRY_AFTER
    ),
    errors.SchemaChecksFull: Row(
        _S.SERVICE_UNAVAILABLE, "schema-checks-full", "Too many contents wait to be checked", _RETRY_AFTER
    ),
    errors.SchemaChecksOfCallerFull: Row(
        _S.TOO_MANY_REQUESTS,
        "schema-checks-of-caller-full",
        "Too many contents of one caller wait to be checked",
        _RETRY_AFTER,
    ),
    errors.InvalidWorkRequest: Row(
        _S.UNPROCESSABLE_ENTITY, "invalid-work-request", "Invalid request of a worker"
    ),
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
    positions.PositionExpired: Row(_S.GONE, "position-expired", "Records are gone"),
    positions.TopicReplaced: Row(_S.GONE, "topic-replaced", "Topic was replaced"),
    positions.PositionUnknown: Row(_S.GONE, "position-unknown", "Position not in the log"),
    errors.PartlyPublished: Row(_S.GATEWAY_TIMEOUT, "partly-published", "Partly published"),
    errors.PartlyRejected: Row(_S.UNPROCESSABLE_ENTITY, "partly-published", "Partly published"),
    errors.PublishTimedOut: Row(_S.GATEWAY_TIMEOUT, "publish-timed-out", "Broker did not answer in time"),
    errors.LeaseLost: Row(_S.CONFLICT, "lease-lost", "Lease has ended"),
    errors.TooManyLeases: Row(_S.SERVICE_UNAVAILABLE, "too-many-leases", "Too many leases", _RETRY_AFTER),
    errors.WorkNotSupported: Row(_S.NOT_IMPLEMENTED, "work-not-supported", "Groups are not supported"),
}

_REJECTIONS_OF_IDENTITIES: Final = (
    errors.IdempotencyKeyReused,
    errors.IdempotencyNotEnabled,
    errors.IdempotencyNotSupported,
    errors.TooManyIdempotencyKeys,
)
BROKER_REJECTIONS: Final = tuple(
    kind for kind in ROWS if issubclass(kind, errors.PublishError) and kind not in _REJECTIONS_OF_IDENTITIES
)
"""The errors with which a broker rejects a record without an identity."""
IDEMPOTENCY_REJECTIONS: Final = (errors.MalformedIdempotencyKey, *_REJECTIONS_OF_IDENTITIES)
"""The further errors of requests with ``Idempotency-Key``."""


def row_of(kind: type[SampleAppError]) -> Row:
    """
    Return the row of a class of errors: its own, or that of a base class.

    :raise LookupError: the class has no row, since it is not an error for callers.
    """
    row = next((ROWS[each] for each in kind.__mro__ if each in ROWS), None)
    if row is None:
        raise LookupError(f"{kind.__name__} has no row")
    return row


def is_temporary(error: SampleAppError) -> bool:
    """Return whether the same request may succeed later: its status is 429 or 503."""
    return row_of(type(error)).status in (_S.TOO_MANY_REQUESTS, _S.SERVICE_UNAVAILABLE)


# If messages of one request have several kinds of faults, the first of these statuses is that of the
# response.
_MOST_URGENT: Final = (_S.BAD_REQUEST, _S.UNPROCESSABLE_ENTITY, _S.FORBIDDEN, _S.NOT_FOUND)
LEAST_URGENT: Final = len(_MOST_URGENT)
"""The urgency of errors that are not faults of a message."""


def urgency_of(kind: type[SampleAppError]) -> int:
    """
    Return the rank of a class of errors: in a request with several, the least rank decides on the status.

    :raise LookupError: the class has no row.
    """
    status = row_of(kind).status
    return _MOST_URGENT.index(status) if status in _MOST_URGENT else LEAST_URGENT


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
    done: Annotated[
        tuple[str, ...],
        Meta(description="If the lease has ended: the ids of messages whose results stand all the same."),
    ] = ()


def problem_response(
    error: SampleAppError, *, detail: str | None = None, faults: Sequence[errors.Fault] | None = None
) -> Response:
    """
    Return the problem document of an error, as a response.

    :param detail: instead of the message of the error.
    :param faults: instead of the faults of the error.
    :raise LookupError: the error has no row, since it is not one for callers.
    """
    row = row_of(type(error))
    errors.forget_frames(error)
    own_headers = error.headers if isinstance(error, RequestError) else ()
    if (
        isinstance(error, access_errors.AccessError | errors.TooManyIdempotencyKeys)
        and error.retry_after_s is not None
    ):
        # Whole seconds, rounded up (RFC 9110, section 10.2.3).
        own_headers = ((b"Retry-After", b"%d" % max(1, math.ceil(error.retry_after_s))),)
    if faults is None:
        faults = error.faults if isinstance(error, errors.InvalidMessage) else ()
    return _response(
        row,
        detail=str(error) if detail is None else detail,
        headers=own_headers,
        faults=tuple(faults),
        reasons=error.reasons if isinstance(error, NotReady) else (),
        gone=error.gone if isinstance(error, positions.PositionExpired) else (),
        resume=error.resume if isinstance(error, positions.PositionExpired) else "",
        done=tuple([f"{partition}-{offset}" for partition, offset in sorted(error.done)])
        if isinstance(error, errors.LeaseLost)
        else (),
    )


def partly_published_response(error: errors.PartlyPublished, results: Iterable[bytes]) -> Response:
    """
    Return the response for a batch of which only some messages must be sent again.

    :param results: parts of JSON, each with one or more `Result`, as in an array but without its brackets.
    """
    response = problem_response(error)
    (document,) = response.parts
    *separated, _ = chain.from_iterable((part, b",") for part in results)
    return replace(response, body=(document.removesuffix(b"}\n") + b',"results":[', *separated, b"]}\n"))


def _response(
    row: Row,
    *,
    detail: str,
    headers: Headers = (),
    faults: tuple[errors.Fault, ...] = (),
    reasons: tuple[str, ...] = (),
    gone: tuple[GoneRecords, ...] = (),
    resume: str = "",
    done: tuple[str, ...] = (),
) -> Response:
    document = Problem(
        type=row.type,
        title=row.title,
        status=row.status,
        detail=detail,
        errors=faults,
        reasons=reasons,
        gone=gone,
        resume=resume,
        done=done,
    )
    return Response(
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

INTERNAL_ERROR: Final = _response(
    FAULT,
    detail="A fault in the service; its log has the details. The outcome of the request is unknown.",
)
"""The response to a fault in the service, which discloses nothing internal."""
INTERNAL_ERROR_OF_READ: Final = _response(
    FAULT, detail="A fault in the service; its log has the details. Nothing was changed."
)
"""The same, to a request that only reads."""

KINDS: Final = frozenset({*(row.kind for row in ROWS.values()), INTERNAL_ERROR.problem})
"""All kinds of problems (`Response.problem`)."""
