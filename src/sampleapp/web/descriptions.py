"""
Descriptions of routes, from which `sampleapp.web.openapi.document` makes the OpenAPI document.

They have no statuses of refusals: `sampleapp.web.errors` has one for each kind of error.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

from msgspec import Struct

from sampleapp.errors import SampleAppError
from sampleapp.model import TOPIC_PATTERN, TOPIC_RULE

__all__ = [
    "ALLOW",
    "CACHE_CONTROL",
    "ETAG",
    "FIELDS_OF_REFUSALS",
    "HSTS",
    "IDEMPOTENCY_KEY",
    "IDEMPOTENT_REPLAYED",
    "IF_MATCH",
    "IF_NONE_MATCH",
    "NO_BUFFERING",
    "NO_SNIFFING",
    "REQUEST_ID",
    "TOPIC",
    "TRACEPARENT",
    "TRACESTATE",
    "VARY",
    "Content",
    "Description",
    "Field",
    "Parameter",
    "Success",
]


class Content(Struct, frozen=True, kw_only=True):
    """One form of a body."""

    media_type: str
    kind: Any
    """The type that msgspec encodes or decodes as JSON, or a JSON Schema for other formats."""
    summary: str = ""
    example: Any = None
    """A value; ``None`` for no example."""
    rules: Mapping[str, Any] = {}
    """More keywords for the JSON Schema of ``kind``, if that is a struct: rules that types cannot express."""


class Field(Struct, frozen=True, kw_only=True):
    """A header field of an answer."""

    name: str
    meaning: str
    example: str | int


class Parameter(Struct, frozen=True, kw_only=True):
    """A parameter of a request: in its path, its query or a header field."""

    name: str
    place: Literal["path", "query", "header"]
    meaning: str
    kind: Any = str
    """The type of its value, for msgspec."""
    is_required: bool = False
    """Parameters in the path are always required."""


class Success(Struct, frozen=True, kw_only=True):
    """An answer that is not an error."""

    meaning: str
    status: HTTPStatus = HTTPStatus.OK
    contents: tuple[Content, ...] = ()
    """The possible forms of the body."""
    fields: tuple[Field, ...] = ()
    """The fields that each such answer has, besides those of every answer of the service."""
    optional_fields: tuple[Field, ...] = ()
    """The fields that some such answers have."""


class Description(Struct, frozen=True, kw_only=True):
    """An operation: its parameters, request bodies and answers."""

    tag: str
    """The group of operations in the OpenAPI document."""
    summary: str
    text: str = ""
    """A longer description, in CommonMark."""
    parameters: tuple[Parameter, ...] = ()
    """Including the variables of the path."""
    bodies: tuple[Content, ...] = ()
    """The possible forms of the request body; none if the body is ignored."""
    needs_body: bool = True
    """True if a request without a body is refused."""
    successes: tuple[Success, ...]
    refusals: tuple[type[SampleAppError], ...] = ()
    """
    The errors of the handler and of its checks of the head.

    Without the errors that every request can get, and those of access control.
    """
    fields_of_refusals: tuple[Field, ...] = ()
    """The fields that errors of this operation may have, besides those of all errors."""
    error_objects: tuple[type, ...] = ()
    """
    The forms of errors for clients of REST Proxy, as types for msgspec.

    Empty if the operation is not a part of REST Proxy's API.
    """


ETAG: Final = Field(
    name="ETag",
    meaning="The strong entity tag of this representation, for `If-None-Match` and `If-Match`.",
    example='"6b86b273ff34fce1"',
)
CACHE_CONTROL: Final = Field(name="Cache-Control", meaning="Directives for caches.", example="no-cache")
VARY: Final = Field(
    name="Vary", meaning="The request header fields that the answer depends on.", example="Accept"
)
NO_BUFFERING: Final = Field(
    name="X-Accel-Buffering", meaning="Tells nginx to pass on each event at once.", example="no"
)
ALLOW: Final = Field(name="Allow", meaning="The methods of the path.", example="GET, HEAD, OPTIONS")

REQUEST_ID: Final = Field(
    name="X-Request-Id",
    meaning="The id of the request in the logs: your own, or a new one.",
    example="6b86b273ff34fce1-42",
)

NO_SNIFFING: Final = Field(
    name="X-Content-Type-Options",
    meaning="Tells browsers not to guess another type than `Content-Type`.",
    example="nosniff",
)
HSTS: Final = Field(
    name="Strict-Transport-Security",
    meaning="On TLS endpoints: the seconds for which browsers use this host only with TLS (RFC 6797).",
    example="max-age=31536000",
)

FIELDS_OF_REFUSALS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in (
        Field(name="Cache-Control", meaning="Caches must not store the answer.", example="no-store"),
        ALLOW,
        Field(
            name="WWW-Authenticate",
            meaning="The way to authenticate (RFC 6750, section 3).",
            example='Bearer realm="sampleapp"',
        ),
        Field(name="Retry-After", meaning="Seconds to wait before the next attempt.", example=1),
        Field(
            name="Accept",
            meaning="The media types that a body may have on this path (RFC 9110, section 12.5.1).",
            example="application/json",
        ),
        Field(
            name="Accept-Encoding",
            meaning="The content codings that a body may have (RFC 7694).",
            example="gzip, zstd",
        ),
    )
}
"""Every header field of an error, by its name; without those of every answer."""

IF_NONE_MATCH: Final = Parameter(
    name="If-None-Match",
    place="header",
    meaning="Entity tags of your copies, or `*`: if one of them is current, the answer is 304.",
)
IF_MATCH: Final = Parameter(
    name="If-Match",
    place="header",
    meaning="The entity tags that you accept, or `*`: if none of them is current, the answer is 412.",
)
IDEMPOTENCY_KEY: Final = Parameter(
    name="Idempotency-Key",
    place="header",
    meaning=(
        "Publishes the record unless a request with the same key has: then the answer has the first "
        "record's partition and offset. One key of 1 to 255 visible ASCII characters, or an RFC 9651 "
        "string. It belongs to the caller and the topic."
    ),
    kind={
        "type": "string",
        "pattern": r'^([!#-~][!-~]{0,254}|"([ !#-\[\]-~]|\\["\\]){1,255}")$',
    },
)
IDEMPOTENT_REPLAYED: Final = Field(
    name="Idempotent-Replayed",
    meaning="`true` if nothing new was published: an earlier request with this Idempotency-Key has done it.",
    example="true",
)
TOPIC: Final = Parameter(
    name="topic",
    place="path",
    meaning=f"The topic: {TOPIC_RULE}.",
    kind={"type": "string", "pattern": rf"^(?!\.{{1,2}}$){TOPIC_PATTERN}$", "maxLength": 249},
)
TRACEPARENT: Final = Parameter(
    name="traceparent",
    place="header",
    meaning="The trace of the request (W3C Trace Context). If valid, it becomes a header of the record.",
)
TRACESTATE: Final = Parameter(
    name="tracestate",
    place="header",
    meaning="More about the trace in `traceparent`. If both are valid, it becomes a header of the record.",
)
