"""Descriptions of the operations for operators, for ``/openapi.json``."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from msgspec.structs import replace

from sampleapp.web.descriptions import (
    CACHE_CONTROL,
    ETAG,
    IF_NONE_MATCH,
    VARY,
    Content,
    Description,
    Field,
    Parameter,
    Success,
)
from sampleapp.web.errors import NotReady, PathNotFound
from sampleapp.web.openapi.pages import GUARDS
from sampleapp.web.probes import Live, Ready

__all__ = ["DOCS", "FILE", "LIVE", "METRICS", "OPENAPI", "READINGS", "READY"]

_NOT_CHANGED: Final = "`If-None-Match` has the current entity tag: your copy is up to date."

LIVE: Final = Description(
    tag="Operations",
    summary="Liveness probe",
    successes=(
        Success(
            meaning="The process answers.",
            contents=(Content(media_type="application/json", kind=Live, example={"live": True}),),
            fields=(CACHE_CONTROL,),
        ),
    ),
)
READY: Final = Description(
    tag="Operations",
    summary="Readiness probe",
    text="Answers at once from the known state, without a request to the broker.",
    successes=(
        Success(
            meaning="Publishing should succeed, all readings were read, and the service is not stopping.",
            contents=(Content(media_type="application/json", kind=Ready, example={"ready": True}),),
            fields=(CACHE_CONTROL,),
        ),
    ),
    refusals=(NotReady,),
)


METRICS: Final = Description(
    tag="Operations",
    summary="Metrics for Prometheus",
    text="Counters begin at 0 when the service starts. In OpenMetrics if `Accept` names it, otherwise "
    "in the text format of Prometheus.",
    successes=(
        Success(
            meaning="All metrics, with their current values.",
            contents=(
                Content(media_type="text/plain", kind={"type": "string"}),
                Content(media_type="application/openmetrics-text", kind={"type": "string"}),
            ),
            fields=(CACHE_CONTROL, VARY),
        ),
    ),
)

_GUARD_FIELDS: Final = tuple(
    Field(
        name=name.decode("ascii"),
        meaning="Protects the page from other sites.",
        example=value.decode("ascii"),
    )
    for name, value in GUARDS
)

OPENAPI: Final = Description(
    tag="Documentation",
    summary="This OpenAPI document",
    parameters=(IF_NONE_MATCH,),
    successes=(
        Success(
            meaning="An OpenAPI document, version 3.1.",
            contents=(
                Content(
                    media_type="application/json",
                    kind={
                        "type": "object",
                        "required": ["openapi", "info", "paths"],
                        "properties": {"openapi": {"type": "string", "pattern": "^3\\.1\\."}},
                    },
                ),
            ),
            fields=(ETAG, CACHE_CONTROL),
        ),
        Success(meaning=_NOT_CHANGED, status=HTTPStatus.NOT_MODIFIED, fields=(ETAG, CACHE_CONTROL)),
    ),
)

DOCS: Final = Description(
    tag="Documentation",
    summary="The documentation as a page",
    text="A page for a browser, with a form to send a message. All of its files are from this service.",
    parameters=(IF_NONE_MATCH,),
    successes=(
        Success(
            meaning="The page.",
            contents=(Content(media_type="text/html", kind={"type": "string"}),),
            fields=(ETAG, CACHE_CONTROL, *_GUARD_FIELDS),
        ),
        Success(
            meaning=_NOT_CHANGED,
            status=HTTPStatus.NOT_MODIFIED,
            fields=(ETAG, CACHE_CONTROL, *_GUARD_FIELDS),
        ),
    ),
)

READINGS: Final = replace(
    DOCS,
    summary="The readings as a page",
    text=(
        "A page for a browser that shows the readings as they change, each with a line of its last values. "
        "It uses `GET /changes`."
    ),
)

FILE: Final = Description(
    tag="Documentation",
    summary="The files of the page",
    parameters=(
        Parameter(name="file", place="path", meaning="A file name in the page. It changes with the content."),
        IF_NONE_MATCH,
    ),
    successes=(
        Success(
            meaning="The file. Its content never changes under this name.",
            contents=(
                Content(media_type="text/javascript", kind={"type": "string"}),
                Content(media_type="text/css", kind={"type": "string"}),
                Content(media_type="image/svg+xml", kind={"type": "string"}),
            ),
            fields=(ETAG, CACHE_CONTROL, *_GUARD_FIELDS),
        ),
        Success(
            meaning=_NOT_CHANGED,
            status=HTTPStatus.NOT_MODIFIED,
            fields=(ETAG, CACHE_CONTROL, *_GUARD_FIELDS),
        ),
    ),
    refusals=(PathNotFound,),
)
