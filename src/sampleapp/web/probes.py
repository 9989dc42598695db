"""Liveness and readiness probes: ``/live`` and ``/ready``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from sampleapp.web.errors import NotReady, problem_response
from sampleapp.web.responses import Response, json_line
from sampleapp.web.server import Request


class Live(Struct):
    """The response of ``/live``."""

    live: Annotated[bool, Meta(description="Always true.")] = True


class Ready(Struct):
    """The response of ``/ready`` while the service is ready."""

    ready: Annotated[bool, Meta(description="Always true; otherwise the answer is 503.")] = True
    warnings: Annotated[
        Sequence[str] | UnsetType,
        Meta(
            description="Problems that need an operator, although the service is ready. Absent if there are "
            "none, and for callers without the right to see them."
        ),
    ] = UNSET


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
        get_warnings: Callable[[], Sequence[str]] = tuple,
        may_see_reasons: Callable[[Request], bool] = lambda _request: True,
    ) -> None:
        """
        :param get_reasons: returns the reasons why the service is not ready; none if it is ready.
        :param get_warnings: returns problems that do not make it unready.
        :param may_see_reasons: returns whether a request may see reasons and warnings. Other requests get the
            status only.
        """
        self._get_reasons = get_reasons
        self._get_warnings = get_warnings
        self._may_see_reasons = may_see_reasons

    @property
    def live(self) -> Response:
        """200 while the process runs."""
        return _LIVE

    def ready(self, request: Request) -> Response:
        """Answer 200 if publishing and reading are expected to work now; otherwise 503."""
        reasons = self._get_reasons()
        if not reasons:
            warnings = self._get_warnings()
            if warnings and self._may_see_reasons(request):
                return _fixed(Ready(warnings=warnings))
            return _READY
        return problem_response(NotReady(reasons if self._may_see_reasons(request) else ()))
