"""
What a route says of itself: values that are declared beside its handler.

`sampleapp.web.openapi` makes the description of the interface out of them. Statuses of refusals are not said
here: each kind of error has its own in `sampleapp.web.problems`.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

from msgspec import Struct

from sampleapp.errors import SampleAppError
from sampleapp.messages import TOPIC_RULE
from sampleapp.model import TOPIC_PATTERN

__all__ = [
    "ALLOW",
    "CACHE_CONTROL",
    "ETAG",
    "FIELDS_OF_REFUSALS",
    "IF_MATCH",
    "IF_NONE_MATCH",
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
    """The type that msgspec writes or reads as JSON, or a JSON Schema for what is no JSON."""
    summary: str = ""
    example: Any = None
    """One value of it; ``None`` for no example."""


class Field(Struct, frozen=True, kw_only=True):
    """A header field of an answer."""

    name: str
    meaning: str
    example: str | int


class Parameter(Struct, frozen=True, kw_only=True):
    """What a request may say beside its body."""

    name: str
    place: Literal["path", "query", "header"]
    meaning: str
    kind: Any = str
    """The type of its value, as msgspec knows it."""
    is_required: bool = False
    """A variable of the path always is."""


class Success(Struct, frozen=True, kw_only=True):
    """An answer that is no refusal."""

    meaning: str
    status: HTTPStatus = HTTPStatus.OK
    contents: tuple[Content, ...] = ()
    """The forms that it may have."""
    fields: tuple[Field, ...] = ()
    """Without those that every answer has."""
    optional_fields: tuple[Field, ...] = ()
    """Those that not every such answer has."""


class Description(Struct, frozen=True, kw_only=True):
    """What a route takes, and how it answers."""

    tag: str
    """The part of the interface that it belongs to."""
    summary: str
    text: str = ""
    """More, in CommonMark."""
    parameters: tuple[Parameter, ...] = ()
    """Those of the path included."""
    bodies: tuple[Content, ...] = ()
    """The forms that the body of a request may have; none if it is not looked at."""
    needs_body: bool = True
    """Whether a request without a body is wrong, if there are forms for it."""
    successes: tuple[Success, ...]
    refusals: tuple[type[SampleAppError], ...] = ()
    """
    What the handler, and who admits to it, raises or fails with.

    Without what every request can meet, and what access control refuses.
    """
    error_objects: tuple[type, ...] = ()
    """
    The forms of refusals for clients of REST Proxy, as types that msgspec knows.

    None if nothing here is for them.
    """


ETAG: Final = Field(
    name="ETag",
    meaning="The strong entity tag of this representation, for `If-None-Match` and `If-Match`.",
    example='"6b86b273ff34fce1"',
)
CACHE_CONTROL: Final = Field(
    name="Cache-Control", meaning="What a cache may do with the answer.", example="no-cache"
)
VARY: Final = Field(
    name="Vary", meaning="The fields of the request that choose the answer.", example="Accept"
)
ALLOW: Final = Field(name="Allow", meaning="The methods that the path takes.", example="GET, HEAD, OPTIONS")

REQUEST_ID: Final = Field(
    name="X-Request-Id",
    meaning="By which the request is known in the logs: your own id, or a new one.",
    example="6b86b273ff34fce1-42",
)

FIELDS_OF_REFUSALS: Final[Mapping[str, Field]] = {
    field.name: field
    for field in (
        Field(name="Cache-Control", meaning="Nothing may keep it.", example="no-store"),
        ALLOW,
        Field(
            name="WWW-Authenticate",
            meaning="How to say who calls (RFC 6750, section 3).",
            example='Bearer realm="sampleapp"',
        ),
        Field(name="Retry-After", meaning="After how many seconds it is worth trying again.", example=1),
        Field(
            name="Accept",
            meaning="The media types that a body may have here (RFC 9110, section 12.5.1).",
            example="application/json",
        ),
        Field(
            name="Accept-Encoding",
            meaning="The codings that a body may have here (RFC 7694).",
            example="gzip, zstd",
        ),
    )
}
"""Every field that a refusal may have, by its name; without those of every answer."""

IF_NONE_MATCH: Final = Parameter(
    name="If-None-Match",
    place="header",
    meaning="Entity tags that you have already, or `*`: if one is the current one, the answer is 304.",
)
IF_MATCH: Final = Parameter(
    name="If-Match",
    place="header",
    meaning="The entity tags that you will have, or `*`: if none is the current one, the answer is 412.",
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
    meaning="The trace of the request (W3C Trace Context): a header of the record, if it is valid.",
)
TRACESTATE: Final = Parameter(
    name="tracestate",
    place="header",
    meaning="More of that trace: a header of the record as well, if both are valid.",
)
