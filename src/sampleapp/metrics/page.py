"""``GET /metrics``: all metrics, in the formats of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry, GCCollector, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest as text
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from sampleapp.web import Response
from sampleapp.web.negotiation import is_preferred

TEXT: Final = b"text/plain; version=0.0.4; charset=utf-8"
"""https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format"""
OPENMETRICS: Final = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
"""https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md"""

_OPENMETRICS_TYPE: Final = b"application/openmetrics-text"
_TEXT_RANGES: Final = (b"text/plain", b"text/*", b"*/*")

_SLICE_S: Final = 0.001
"""The page yields to the reactor after this time. A metric with 100 values takes about as long again."""


class _Format(Struct, frozen=True):
    content_type: bytes
    write: Callable[..., bytes]
    end: bytes = b""


_TEXT_FORMAT: Final = _Format(TEXT, text)
_OPENMETRICS_FORMAT: Final = _Format(OPENMETRICS, openmetrics, b"# EOF\n")


class MetricsPage:
    """The page that a Prometheus server scrapes."""

    def __init__(self, *, clock: IReactorTime) -> None:
        """:param clock: schedules the next slice of a page that takes long to write."""
        self._clock = clock
        # Not prometheus_client's global registry, which other code in the process may use.
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def show(self, collector: Collector) -> None:
        """Add the metrics of a collector to those of the process."""
        self._registry.register(collector)

    async def respond(self, accept: bytes | None) -> Response:
        """
        Write all metrics, in several turns of the reactor if they are many.

        In the text format of Prometheus, or in OpenMetrics if ``Accept`` prefers it.

        :param accept: the value of ``Accept``; ``None`` if the request has none.
        """
        is_openmetrics = is_preferred(_OPENMETRICS_TYPE, to=_TEXT_RANGES, accept=accept)
        form = _OPENMETRICS_FORMAT if is_openmetrics else _TEXT_FORMAT
        began_s = self._clock.seconds()
        # All values are of one moment. Writing them takes several times as long.
        families = list(self._registry.collect())
        written = []
        for family in families:
            if self._clock.seconds() - began_s >= _SLICE_S:
                await deferLater(self._clock, 0)
                began_s = self._clock.seconds()
            written.append(form.write(_Only(family)).removesuffix(form.end))
        return Response(
            HTTPStatus.OK,
            ((b"Content-Type", form.content_type), (b"Cache-Control", b"no-store"), (b"Vary", b"Accept")),
            b"".join((*written, form.end)),
        )


class _Only(Collector):
    """A collector of one metric, which the writers accept as a registry."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family
