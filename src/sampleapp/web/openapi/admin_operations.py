"""Descriptions of the operations for operators, for ``/openapi.json``."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from sampleapp.web.descriptions import (
    CACHE_CONTROL,
    IF_NONE_MATCH,
    VARY,
    Content,
    Description,
    Field,
    Success,
    in_path,
    with_entity_tag,
)
from sampleapp.web.errors import NotReady, PathNotFound
from sampleapp.web.openapi.pages import GUARDS
from sampleapp.web.probes import Live, Ready

_TEXT: Final = {"type": "string"}

LIVE: Final = Description(
    tag="Operations",
    summary="Liveness probe",
    successes=(
        Success(
            "The process answers.",
            contents=(Content("application/json", Live, example={"live": True}),),
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
            "Publishing should succeed, all readings were read, and the service is not stopping.",
            contents=(Content("application/json", Ready, example={"ready": True}),),
            fields=(CACHE_CONTROL,),
        ),
    ),
    rejections=(NotReady,),
)

METRICS: Final = Description(
    tag="Operations",
    summary="Metrics for Prometheus",
    text="Counters begin at 0 when the service starts. In OpenMetrics if `Accept` names it, otherwise "
    "in the text format of Prometheus.",
    successes=(
        Success(
            "All metrics, with their current values.",
            contents=(Content("text/plain", _TEXT), Content("application/openmetrics-text", _TEXT)),
            fields=(CACHE_CONTROL, VARY),
        ),
    ),
)

_GUARD_FIELDS: Final = tuple(
    Field(name.decode("ascii"), "Protects the page from other sites.", value.decode("ascii"))
    for name, value in GUARDS
)

OPENAPI: Final = Description(
    tag="Documentation",
    summary="This OpenAPI document",
    parameters=(IF_NONE_MATCH,),
    successes=with_entity_tag(
        "An OpenAPI document, version 3.1.",
        (
            Content(
                "application/json",
                {
                    "type": "object",
                    "required": ["openapi", "info", "paths"],
                    "properties": {"openapi": {"type": "string", "pattern": "^3\\.1\\."}},
                },
            ),
        ),
    ),
)

DOCS: Final = Description(
    tag="Documentation",
    summary="The documentation as a page",
    text="A page for a browser, with a form to send a message. All of its files are from this service.",
    parameters=(IF_NONE_MATCH,),
    successes=with_entity_tag("The page.", (Content("text/html", _TEXT),), *_GUARD_FIELDS),
)

READINGS: Final = replace(
    DOCS,
    summary="The readings as a page",
    text="A page for a browser that shows the readings as they change, each with a line of its last values. "
    "It uses `GET /changes`.",
)

FILE: Final = Description(
    tag="Documentation",
    summary="The files of the page",
    parameters=(in_path("file", "A file name in the page. It changes with the content."), IF_NONE_MATCH),
    successes=with_entity_tag(
        "The file. Its content never changes under this name.",
        tuple(Content(each, _TEXT) for each in ("text/javascript", "text/css", "image/svg+xml")),
        *_GUARD_FIELDS,
    ),
    rejections=(PathNotFound,),
)
