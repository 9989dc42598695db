"""Bodies that come compressed are decoded in turns of the reactor, before anybody handles their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from sampleapp.shared_encoding import cooperator_on
from sampleapp.web.answers import Answer
from sampleapp.web.request_errors import BodyTooLarge
from sampleapp.web.server.content_coding import CodedBody
from sampleapp.web.server.request import Handler, Request

__all__ = ["Decoding"]

_DECODED_AT_ONCE: Final = 64 * 1024
"""So much is decoded before the reactor has another turn: small bodies at once."""
_DECODED_IN_TURN: Final = 256 * 1024
"""A millisecond of it."""


class Decoding:
    """Decodes bodies: one step of one of them in each turn of the reactor, however many there are."""

    def __init__(self, clock: IReactorTime, *, refused: Callable[[str], None] | None = None) -> None:
        """
        :param clock: has turns to give.
        :param refused: is told of each body that is over the limit, with the name of the option that is the
            limit; nobody is by default.
        """
        self._cooperator = cooperator_on(clock)
        self._refused = refused

    def handle(self, handler: Handler, body: CodedBody, request: Request) -> Answer | Deferred[Answer]:
        """
        Let a handler answer a request, once its body is decoded.

        :param body: all of which has come.
        :return: a Deferred if that takes more than one step; it fails with what else is raised.
        :raise RequestError: the body cannot be decoded, or is over the limit.
        """
        if self._decode(body, _DECODED_AT_ONCE):
            request.body = body.content()
            return handler(request)

        def handle(_: object) -> Answer | Deferred[Answer]:
            request.body = body.content()
            return handler(request)

        return self._cooperator.cooperate(self._steps(body)).whenDone().addCallback(handle)

    def _steps(self, body: CodedBody) -> Iterator[None]:
        while not self._decode(body, _DECODED_IN_TURN):
            yield

    def _decode(self, body: CodedBody, most: int) -> bool:
        try:
            return body.decode(most)
        except BodyTooLarge:
            if self._refused is not None:
                self._refused("max-body")
            raise
