"""Liveness and readiness probes: ``/live`` and ``/ready``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Final

from msgspec import Meta, Struct

from sampleapp.web.errors import NotReady, problem_response
from sampleapp.web.responses import Response, json_line
from sampleapp.web.server import Request

__all__ = ["Live", "Probes", "Ready"]


class Live(Struct):
    """The response of ``/live``."""

    live: Annotated[bool, Meta(description="Always true.")] = True


class Ready(Struct):
    """The response of ``/ready`` while the service is ready."""

    ready: Annotated[bool, Meta(description="Always true; otherwise the answer is 503.")] = True


def _fixed(value: Struct) -> Response:
    headers = ((b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store"))
    return Response(HTTPStatus.OK, headers, json_line(value))


_LIVE: Final = _fixed(Live())
_READY: Final = _fixed(Ready())


class Probes:
    """Answers at once, without waiting: a probe must not fail because other requests are slow."""

    def __init__(
        self,
        *,
        get_reasons: Callable[[], Sequence[str]],
        may_see_reasons: Callable[[Request], bool] = lambda _request: True,
    ) -> None:
        """
        :param get_reasons: returns the reasons why the service is not ready; none if it is ready.
        :param may_see_reasons: returns whether a request may see the reasons. Other requests get the status
            only.
        """
        self._get_reasons = get_reasons
        self._may_see_reasons = may_see_reasons

    @property
    def live(self) -> Response:
        """200 while the process runs."""
        return _LIVE

    def ready(self, request: Request) -> Response:
        """Answer 200 if publishing and reading are expected to work now; otherwise 503."""
        reasons = self._get_reasons()
        if not reasons:
            return _READY
        return problem_response(NotReady(reasons if self._may_see_reasons(request) else ()))
