"""The Klein applications for operators: probes, documentation and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from sampleapp.access import Right
from sampleapp.web.openapi import operations
from sampleapp.web.openapi.pages import PAGE, READINGS_PAGE, Documentation
from sampleapp.web.probes import Probes
from sampleapp.web.responses import Response
from sampleapp.web.routing import AccessPolicy, App
from sampleapp.web.server import Request

WriteMetrics: TypeAlias = Callable[[bytes | None], Awaitable[Response]]
"""Returns the response with all metrics, in the format that the value of ``Accept`` prefers."""


class AdminApp:
    """Probes and documentation."""

    app = App()

    def __init__(
        self, probes: Probes, documentation: Documentation, *, access: AccessPolicy | None = None
    ) -> None:
        """:param access: the policy; by default, clients need no credentials."""
        self.access = AccessPolicy() if access is None else access
        self.probes = probes
        self.documentation = documentation

    @app.route("/live", methods=["GET"], takes_query=True, right=Right.NONE, description=operations.LIVE)
    def live(self, _request: Request) -> Response:
        """Answer 200 while the process runs."""
        return self.probes.live

    @app.route("/ready", methods=["GET"], takes_query=True, right=Right.NONE, description=operations.READY)
    def ready(self, request: Request) -> Response:
        """Answer 200 if publishing and reading are expected to work now; otherwise 503."""
        return self.probes.ready(request)

    @app.route(
        "/openapi.json", methods=["GET"], takes_query=True, right=Right.NONE, description=operations.OPENAPI
    )
    async def openapi(self, request: Request) -> Response:
        """Serve the OpenAPI document."""
        return await self.documentation.openapi(request)

    @app.route("/docs", methods=["GET"], takes_query=True, right=Right.NONE, description=operations.DOCS)
    async def page(self, request: Request) -> Response:
        """Serve the page with the interface."""
        return await self.documentation.file(request, PAGE)

    @app.route(
        "/docs/readings",
        methods=["GET"],
        takes_query=True,
        right=Right.NONE,
        description=operations.SHOWN_READINGS,
    )
    async def readings_page(self, request: Request) -> Response:
        """Serve the page that shows the readings."""
        return await self.documentation.file(request, READINGS_PAGE)

    @app.route(
        "/docs/<file>", methods=["GET"], takes_query=True, right=Right.NONE, description=operations.FILE
    )
    async def file(self, request: Request, *, file: str) -> Response:
        """Serve a file of the pages."""
        return await self.documentation.file(request, file)


class MetricsApp:
    """The metrics, which are served to clients only if operators have no endpoint of their own."""

    app = App()

    def __init__(self, write_metrics: WriteMetrics) -> None:
        self.access = AccessPolicy()
        self._write_metrics = write_metrics

    @app.route(
        "/metrics", methods=["GET"], takes_query=True, right=Right.METRICS, description=operations.METRICS
    )
    async def metrics(self, request: Request) -> Response:
        """Serve all metrics in the text format of Prometheus, or in OpenMetrics if ``Accept`` prefers it."""
        return await self._write_metrics(request.fields.joined(b"Accept"))
