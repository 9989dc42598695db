"""Liveness and readiness probes: ``/live`` and ``/ready``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Final

from msgspec import Meta, Struct

from sampleapp.access import Right
from sampleapp.web.answers import Answer, json_line
from sampleapp.web.descriptions import CACHE_CONTROL, Content, Description, Success
from sampleapp.web.problems import problem_answer
from sampleapp.web.request_errors import NotReady
from sampleapp.web.routing import Routes
from sampleapp.web.server import Request

__all__ = ["Probes"]


class _Live(Struct):
    live: Annotated[bool, Meta(description="Always true.")] = True


class _Ready(Struct):
    ready: Annotated[bool, Meta(description="Always true; otherwise the answer is 503.")] = True


_LIVE_DESCRIPTION: Final = Description(
    tag="Operations",
    summary="Liveness probe",
    successes=(
        Success(
            meaning="The process answers.",
            contents=(Content(media_type="application/json", kind=_Live, example={"live": True}),),
            fields=(CACHE_CONTROL,),
        ),
    ),
)
_READY_DESCRIPTION: Final = Description(
    tag="Operations",
    summary="Readiness probe",
    text="Answers at once from the known state, without a request to the broker.",
    successes=(
        Success(
            meaning="Publishing should succeed, all readings were read, and the service is not stopping.",
            contents=(Content(media_type="application/json", kind=_Ready, example={"ready": True}),),
            fields=(CACHE_CONTROL,),
        ),
    ),
    refusals=(NotReady,),
)


def _fixed(value: Struct) -> Answer:
    headers = ((b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store"))
    return Answer(HTTPStatus.OK, headers, json_line(value))


_LIVE: Final = _fixed(_Live())
_READY: Final = _fixed(_Ready())


class Probes:
    """Answers at once, without waiting: a probe must not fail because other requests are slow."""

    routes = Routes()

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

    @routes.route("/live", "GET", "HEAD", takes_query=True, right=Right.NONE, description=_LIVE_DESCRIPTION)
    def live(self, request: Request) -> Answer:
        """Answer 200 while the process runs."""
        return _LIVE

    @routes.route("/ready", "GET", "HEAD", takes_query=True, right=Right.NONE, description=_READY_DESCRIPTION)
    def ready(self, request: Request) -> Answer:
        """Answer 200 if publishing and reading are expected to work now; otherwise 503."""
        reasons = self._get_reasons()
        if not reasons:
            return _READY
        return problem_answer(NotReady(reasons if self._may_see_reasons(request) else ()))
