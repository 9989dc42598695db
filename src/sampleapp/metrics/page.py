"""``GET /metrics``: what was counted, as Prometheus reads it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import generate_latest as text
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector

from sampleapp.access import Right
from sampleapp.negotiation import is_preferred
from sampleapp.web import Answer, Request, Routes
from sampleapp.web.descriptions import CACHE_CONTROL, VARY, Content, Description, Success

__all__ = ["OPENMETRICS", "TEXT", "MetricsPage"]

TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"
"""https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format"""
OPENMETRICS: Final = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
"""https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md"""

_OPENMETRICS_TYPE: Final = b"application/openmetrics-text"
_TEXT_RANGES: Final = (b"text/plain", b"text/*", b"*/*")

_METRICS: Final = Description(
    tag="Operations",
    summary="What was counted since the start, for Prometheus",
    text="In OpenMetrics if `Accept` names it, otherwise in the text format of Prometheus.",
    successes=(
        Success(
            meaning="All metrics, as they are now.",
            contents=(
                Content(media_type="text/plain", kind={"type": "string"}),
                Content(media_type="application/openmetrics-text", kind={"type": "string"}),
            ),
            fields=(CACHE_CONTROL, VARY),
        ),
    ),
)


class MetricsPage:
    """The route that a Prometheus server scrapes."""

    routes = Routes()

    def __init__(self) -> None:
        # Never the one that prometheus_client shares with whatever else is in the process.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def show(self, collector: Collector) -> None:
        """Show what a collector has, beside what is known of the process."""
        self._registry.register(collector)

    @routes.route("/metrics", "GET", "HEAD", right=Right.METRICS, description=_METRICS)
    def metrics(self, request: Request) -> Answer:
        """Answer in the text format of Prometheus, or in that of OpenMetrics if that is asked for."""
        accept = request.fields.joined(b"Accept")
        if is_preferred(_OPENMETRICS_TYPE, to=_TEXT_RANGES, accept=accept):
            content_type = OPENMETRICS
            body: bytes = openmetrics(self._registry)  # type: ignore[no-untyped-call] # it has no annotations
        else:
            content_type, body = TEXT, text(self._registry)
        return Answer(
            HTTPStatus.OK,
            ((b"Content-Type", content_type), (b"Cache-Control", b"no-store"), (b"Vary", b"Accept")),
            body,
        )
