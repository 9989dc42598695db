"""``GET /metrics``: what was counted, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, GCCollector, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest as text
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

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


_TURN_S: Final = 0.001
"""After so long others have their turn. A metric with a hundred values takes about as long again."""


class _Format(Struct, frozen=True):
    content_type: bytes
    write: Callable[..., bytes]
    end: bytes = b""


_TEXT_FORMAT: Final = _Format(TEXT, text)
_OPENMETRICS_FORMAT: Final = _Format(OPENMETRICS, openmetrics, b"# EOF\n")


class MetricsPage:
    """The route that a Prometheus server scrapes."""

    routes = Routes()

    def __init__(self, *, clock: IReactorTime) -> None:
        """:param clock: gives others their turn while much is written."""
        self._clock = clock
        # Never the one that prometheus_client shares with whatever else is in the process.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def show(self, collector: Collector) -> None:
        """Show what a collector has, beside what is known of the process."""
        self._registry.register(collector)

    @routes.route("/metrics", "GET", "HEAD", right=Right.METRICS, description=_METRICS)
    def metrics(self, request: Request) -> Deferred[Answer]:
        """Answer in the text format of Prometheus, or in that of OpenMetrics if that is asked for."""
        return self.answer(request.fields.joined(b"Accept"))

    def answer(self, accept: bytes | None) -> Deferred[Answer]:
        """
        Write everything down, in several turns of the reactor if it is much.

        :param accept: the value of that header; ``None`` when there is none.
        """
        is_openmetrics = is_preferred(_OPENMETRICS_TYPE, to=_TEXT_RANGES, accept=accept)
        return Deferred.fromCoroutine(self._answer(_OPENMETRICS_FORMAT if is_openmetrics else _TEXT_FORMAT))

    async def _answer(self, form: _Format) -> Answer:
        began_s = self._clock.seconds()
        # All of one moment. To write them down takes several times as long.
        families = list(self._registry.collect())
        written = []
        for family in families:
            if self._clock.seconds() - began_s >= _TURN_S:
                await deferLater(self._clock, 0)
                began_s = self._clock.seconds()
            written.append(form.write(_Only(family)).removesuffix(form.end))
        return Answer(
            HTTPStatus.OK,
            ((b"Content-Type", form.content_type), (b"Cache-Control", b"no-store"), (b"Vary", b"Accept")),
            b"".join((*written, form.end)),
        )


class _Only(Collector):
    """One metric, in the place of a registry."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family
