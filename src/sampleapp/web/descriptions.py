"""
Descriptions of routes, from which `sampleapp.web.openapi.document` makes the OpenAPI document.

They have no statuses of rejections: `sampleapp.web.errors` has one for each kind of error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Literal

from msgspec import Struct

from sampleapp.errors import SampleAppError


class Content(Struct, frozen=True):
    """One form of a body."""

    media_type: str
    kind: Any
    """The type that msgspec encodes or decodes as JSON, or a JSON Schema for other formats."""
    summary: str = ""
    example: Any = None
    """A value; ``None`` for no example."""
    rules: Mapping[str, Any] = {}
    """More keywords for the JSON Schema of ``kind``, if that is a struct: rules that types cannot express."""


class Field(Struct, frozen=True):
    """A header field of a response."""

    name: str
    meaning: str
    example: str | int


class Parameter(Struct, frozen=True):
    """A parameter of a request: in its path, its query or a header field."""

    location: Literal["path", "query", "header"]
    name: str
    meaning: str
    kind: Any = str
    """The type of its value, for msgspec."""
    is_required: bool = False
    """Parameters in the path are always required."""


class Success(Struct, frozen=True):
    """A response that is not an error."""

    meaning: str
    status: HTTPStatus = HTTPStatus.OK
    contents: tuple[Content, ...] = ()
    """The possible forms of the body."""
    fields: tuple[Field, ...] = ()
    """The fields that each such response has, besides those of every response of the service."""
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
    takes_recorded_parameters: bool = False
    """True if the operation also has the parameters of `Features.recorded_parameters`."""
    needs_body: bool = True
    """True if a request without a body is rejected."""
    successes: tuple[Success, ...]
    rejections: tuple[type[SampleAppError], ...] = ()
    """
    The errors of the handler and of its checks of the head.

    Without the errors that every request can get, and those of access control.
    """
    fields_of_rejections: tuple[Field, ...] = ()
    """The fields that errors of this operation may have, besides those of all errors."""
    error_objects: tuple[type, ...] = ()
    """
    The forms of errors for clients of REST Proxy, as types for msgspec.

    Empty if the operation is not a part of REST Proxy's API.
    """


class Features(Struct, frozen=True, kw_only=True):
    """The features of an interface that the options of the service decide on."""

    is_guarded: bool = False
    """True if callers need credentials."""
    takes_certificates: bool = False
    """True if a client certificate is one."""
    is_for_other_sites: bool = False
    """True if pages of other sites may use it from a browser."""
    has_hsts: bool = False
    """True if answers on TLS endpoints have ``Strict-Transport-Security``."""
    has_host_rule: bool = False
    """True if requests for unknown hosts are rejected."""
    recorded_parameters: tuple[str, ...] = ()
    """The parameters of queries that become headers of records."""


in_path = partial(Parameter, "path")
in_query = partial(Parameter, "query")
in_header = partial(Parameter, "header")

ETAG: Final = Field(
    "ETag",
    "The strong entity tag of this representation, for `If-None-Match` and `If-Match`.",
    '"6b86b273ff34fce1"',
)
CACHE_CONTROL: Final = Field("Cache-Control", "Directives for caches.", "no-cache")
NOT_STORED: Final = Field("Cache-Control", "Directives for caches.", "no-store")
VARY: Final = Field("Vary", "The request header fields that the response depends on.", "Accept")
IF_NONE_MATCH: Final = in_header(
    "If-None-Match", "Entity tags of your copies, or `*`: if one of them is current, the response is 304."
)


def with_entity_tag(meaning: str, contents: tuple[Content, ...], *fields: Field) -> tuple[Success, Success]:
    """
    Describe the responses of a resource with an entity tag: its representation, and 304 without it.

    :param meaning: of the response with the representation.
    :param fields: of both answers, besides ``ETag`` and ``Cache-Control``.
    """
    of_both = (ETAG, CACHE_CONTROL, *fields)
    is_current = "`If-None-Match` has the current entity tag: your copy is up to date."
    return (
        Success(meaning, contents=contents, fields=of_both),
        Success(is_current, status=HTTPStatus.NOT_MODIFIED, fields=of_both),
    )
