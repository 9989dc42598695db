"""Access control: credentials, rights and rates are checked before the body of a request is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NewType

from msgspec import Struct

from sampleapp.access import AccessError, Authenticator, Caller, Identity, NotGranted, Right
from sampleapp.access.rates import BodyCharge, RateLimiter
from sampleapp.web.server import Request

_REJECTIONS: Final = {
    Right.READ: "This caller may not read the readings.",
    Right.METRICS: "This caller may not read metrics.",
    Right.PUBLISH: "This caller may not publish.",
    Right.CONSUME: "This caller may not read the records of any topic.",
    Right.WORK: "This caller may not work in any group.",
}


class AccessControl:
    """Authenticates the callers of requests, limits their rates and checks their rights."""

    def __init__(
        self, authenticator: Authenticator, *, seconds: Callable[[], float], max_body: int | None = None
    ) -> None:
        """
        :param seconds: a monotonic clock, in seconds, which measures rates.
        :param max_body: the limit for bodies, in bytes, of requests without a limit of their own
            (`Request.max_body`). A longer body is rejected anyway, so only the bytes that arrive are charged.
        """
        self._authenticator = authenticator
        self._identify = authenticator.identify
        self._seconds = seconds
        self._max_body = max_body

    def authorize(self, request: Request, right: Right) -> None:
        """
        Check a request and set its caller.

        :param right: the right that the caller needs.
        :raise AccessError: the request is rejected.
        """
        if right is Right.NONE:
            return
        exchange = request.exchange
        identity = self._identify(request.fields.all(b"authorization"), exchange.peer.certificate)
        caller = identity.caller
        exchange.caller = caller.name
        limiter = identity.limiter
        if limiter is not None:
            self._limit(request, limiter)
        if not caller.has(right):
            raise NotGranted(_REJECTIONS[right])
        request.caller = caller

    def grant(self, request: Request, may: Callable[[Caller], bool]) -> Grant:
        """
        Return the right under which a long response is sent, to be checked while it is sent.

        :param may: returns whether a caller has the right.
        :raise AccessError: the caller of the request has lost it since `authorize`.
        """
        return Grant(self._authenticator, request, may)

    def knows(self, request: Request) -> bool:
        """Return whether a request, which needs no credentials, has valid ones."""
        try:
            self._identify(request.fields.all(b"authorization"), request.exchange.peer.certificate)
        except AccessError:
            return False
        return True

    def _limit(self, request: Request, limiter: RateLimiter) -> None:
        head = request.exchange.head
        # In a site of twisted.web, the body was received before.
        length = len(request.body) if head is None else head.length
        max_body = self._max_body if request.max_body is None else request.max_body
        if head is not None and length is not None and max_body is not None and length > max_body:
            length = 0
        limiter.admit(length, now_s=self._seconds())
        request.charge = BodyCharge(limiter, paid=length, seconds=self._seconds)


class Grant:
    """
    The right of a caller to a response that lasts: a stream, or a page that waits.

    It ends when the credentials expire, or when another version of the callers file, or of an issuer's keys,
    no longer grants it.
    """

    __slots__ = ("_authenticator", "_authorization", "_generation", "_identity", "_may", "_peer")

    def __init__(self, authenticator: Authenticator, request: Request, may: Callable[[Caller], bool]) -> None:
        """:raise AccessError: the caller of the request does not have the right."""
        self._authenticator = authenticator
        self._authorization = request.fields.all(b"authorization")
        self._peer = request.exchange.peer
        self._may = may
        self._identity = self._identified()
        self._generation = authenticator.generation

    @property
    def caller(self) -> Caller:
        """The caller, as it was when its right was last checked in full."""
        return self._identity.caller

    @property
    def is_current(self) -> bool:
        """True if nothing has changed since the last full check; costs next to nothing."""
        return self._authenticator.is_current(self._identity, self._generation)

    def check(self) -> None:
        """
        Check the credentials and the right in full. It may verify a signature.

        :raise AccessError: the right has ended, or the credentials now belong to another caller.
        """
        identity, generation = self._identified(), self._authenticator.generation
        if identity.caller.name != self.caller.name:
            raise NotGranted("The credentials belong to another caller now. Send the request again.")
        self._identity, self._generation = identity, generation

    def _identified(self) -> Identity:
        identity = self._authenticator.identify(self._authorization, self._peer.certificate)
        if not self._may(identity.caller):
            raise NotGranted("This caller does not have the right to this any more.")
        return identity


class TopicUse(Struct, frozen=True):
    """A use of a topic that callers may be granted."""

    verb: str
    """For the rejection."""
    is_granted: Callable[[Caller, str], bool]
    part: str = ""
    """The variable of the path with a part of the topic, if only ``TOPIC/PART`` is granted."""


def _may_see(caller: Caller, topic: str) -> bool:
    return topic in caller.topics


TO_PUBLISH: Final = TopicUse("publish to", Caller.may_publish)
TO_CONSUME: Final = TopicUse("read the records of", Caller.may_consume)
TO_WORK: Final = TopicUse("work in this group of", Caller.may_work, part="group")
TO_SEE: Final = TopicUse("see", _may_see)
"""For callers that may publish to the topic, read its records or work in one of its groups."""

AuthorizedTopic = NewType("AuthorizedTopic", str)
"""A topic that the caller of a request may use. `authorize_topic` makes it."""


def authorize_topic(request: Request, topic: str, use: TopicUse, part: str = "") -> AuthorizedTopic:
    """
    Check that the caller of a request may use a topic, or a part of it.

    :raise NotGranted: it may not. The response does not reveal whether the topic exists.
    """
    caller: Caller | None = request.caller
    if caller is not None and not use.is_granted(caller, f"{topic}/{part}" if part else topic):
        raise rejection_of_topic(topic, use)
    return AuthorizedTopic(topic)


def rejection_of_topic(topic: str, use: TopicUse) -> NotGranted:
    """Make the error for a topic that a caller may not use."""
    return NotGranted(f"This caller may not {use.verb} the topic {topic}.")
