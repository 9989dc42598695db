"""What load balancers and supervisors ask, as often as they like: ``/live`` and ``/ready``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from sampleapp.access import Right
from sampleapp.web.answers import Answer
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
    summary="Whether the process answers",
    successes=(
        Success(
            meaning="It does.",
            contents=(Content(media_type="application/json", kind=_Live, example={"live": True}),),
            fields=(CACHE_CONTROL,),
        ),
    ),
)
_READY_DESCRIPTION: Final = Description(
    tag="Operations",
    summary="Whether the service is ready",
    text="Answers at once, by what is known; it does not ask the broker.",
    successes=(
        Success(
            meaning="Messages are expected to be taken, all readings were read, and it is not stopping.",
            contents=(Content(media_type="application/json", kind=_Ready, example={"ready": True}),),
            fields=(CACHE_CONTROL,),
        ),
    ),
    refusals=(NotReady,),
)


def _fixed(value: Struct) -> Answer:
    headers = ((b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store"))
    return Answer(HTTPStatus.OK, headers, msgspec.json.encode(value))


_LIVE: Final = _fixed(_Live())
_READY: Final = _fixed(_Ready())


class Probes:
    """Answers at once, and waits for nothing: a probe must not fail because others are slow."""

    routes = Routes()

    def __init__(
        self,
        *,
        get_reasons: Callable[[], Sequence[str]],
        may_see_reasons: Callable[[Request], bool] = lambda _request: True,
    ) -> None:
        """
        :param get_reasons: why the service is not ready; none if it is.
        :param may_see_reasons: whether those are for who asks. The others get the status only.
        """
        self._get_reasons = get_reasons
        self._may_see_reasons = may_see_reasons

    @routes.route("/live", "GET", "HEAD", right=Right.NONE, description=_LIVE_DESCRIPTION)
    def live(self, request: Request) -> Answer:
        """Tell that the process answers."""
        return _LIVE

    @routes.route("/ready", "GET", "HEAD", right=Right.NONE, description=_READY_DESCRIPTION)
    def ready(self, request: Request) -> Answer:
        """Tell whether messages would be taken now, and the readings are served; otherwise ``503``."""
        reasons = self._get_reasons()
        if not reasons:
            return _READY
        return problem_answer(NotReady(reasons if self._may_see_reasons(request) else ()))
