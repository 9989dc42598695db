"""Who may come in: credentials, rights and rates, looked at before a request's body is taken."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from twisted.internet.defer import Deferred

from sampleapp.access import AccessError, Authenticator, Caller, NotGranted, Right
from sampleapp.access.rates import RateLimiter
from sampleapp.web.answers import Answer
from sampleapp.web.server import Handler, Request

__all__ = ["Gate", "refusal_of_topic", "require_topic"]

Finish: TypeAlias = Callable[[Handler], Handler]
"""Makes a handler into one that first does what could not be done before the body was there."""

_REFUSALS: Final = {
    Right.READ: "This caller may not read.",
    Right.METRICS: "This caller may not see metrics.",
    Right.PUBLISH: "This caller may not publish.",
}


class Gate:
    """Lets in the requests of callers that may make them."""

    def __init__(
        self, authenticator: Authenticator, *, seconds: Callable[[], float], max_body: int | None = None
    ) -> None:
        """
        :param seconds: tells the time, in seconds since the epoch.
        :param max_body: a longer body, in bytes, is refused anyway, and takes nothing of its caller's rate.
            It holds where the request has no limit of its own (`Request.max_body`).
        """
        self._identify = authenticator.identify
        self._seconds = seconds
        self._max_body = max_body

    def admit(self, request: Request, right: Right) -> Finish | None:
        """
        Let a request in, and note in it whose it is.

        :param right: what its caller has to have.
        :return: what the request's handler has to go through, if anything.
        :raise AccessError: it may not come in.
        """
        if right is Right.NONE:
            return None
        exchange = request.exchange
        identity = self._identify(request.fields.all(b"authorization"), exchange.peer.certificate)
        caller = identity.caller
        exchange.caller = caller.name
        limiter = identity.limiter
        finish = None if limiter is None else self._limit(request, limiter)
        if not caller.has(right):
            raise NotGranted(_REFUSALS[right])
        request.caller = caller
        return finish

    def knows(self, request: Request) -> bool:
        """Whether a request, which may come in anyway, is that of a caller."""
        try:
            self._identify(request.fields.all(b"authorization"), request.exchange.peer.certificate)
        except AccessError:
            return False
        return True

    def _limit(self, request: Request, limiter: RateLimiter) -> Finish | None:
        head = request.exchange.head
        # Inside a site of twisted.web the body is there already.
        length = len(request.body) if head is None else head.length
        if length is None:
            limiter.admit(None, now_s=self._seconds())
            return partial(partial, self._count, limiter)
        max_body = self._max_body if request.max_body is None else request.max_body
        is_refused_anyway = max_body is not None and length > max_body
        limiter.admit(0 if is_refused_anyway else length, now_s=self._seconds())
        if request.fields.all(b"content-encoding"):
            return partial(partial, self._count_decoded, limiter, length)
        return None

    def _count(self, limiter: RateLimiter, handler: Handler, request: Request) -> Answer | Deferred[Answer]:
        limiter.sent(len(request.body), now_s=self._seconds())
        return handler(request)

    def _count_decoded(
        self, limiter: RateLimiter, length: int, handler: Handler, request: Request
    ) -> Answer | Deferred[Answer]:
        """Count what was not sent, but came out of what was."""
        limiter.sent(max(0, len(request.body) - length), now_s=self._seconds())
        return handler(request)


def require_topic(request: Request, topic: str) -> None:
    """
    Look whether a request may publish to a topic.

    :raise NotGranted: it may not. That does not tell whether there is such a topic.
    """
    caller = request.caller
    refusal = None if caller is None else refusal_of_topic(caller, topic)
    if refusal is not None:
        raise refusal


def refusal_of_topic(caller: Caller, topic: str) -> NotGranted | None:
    """Look whether a caller may publish to a topic, and return why not."""
    if caller.may_publish(topic):
        return None
    return NotGranted(f"This caller may not publish to the topic {topic}.")
