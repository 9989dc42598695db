"""Cooperative decoding of compressed bodies: one slice in each turn of the reactor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from sampleapp.concurrency.slices import cooperator_on
from sampleapp.web.errors import BodyTooLarge
from sampleapp.web.responses import Response
from sampleapp.web.server.content_coding import CodedBody
from sampleapp.web.server.request import Charge, Handler, Request

_DECODED_AT_ONCE: Final = 64 * 1024
"""Bytes that are decoded immediately, so that small bodies do not wait for a turn of the reactor."""
_SLICE: Final = 256 * 1024
"""Bytes that are decoded in one turn of the reactor: about a millisecond of work."""


class Decoding:
    """Decodes bodies: one slice of one body in each turn of the reactor, even if there are many bodies."""

    def __init__(self, clock: IReactorTime, *, count_rejection: Callable[[str], None] | None = None) -> None:
        """
        :param clock: the reactor.
        :param count_rejection: called for each body over the limit, with the name of the option that is the
            limit.
        """
        self._cooperator = cooperator_on(clock)
        self._count_rejection = count_rejection

    def handle(self, handler: Handler, body: CodedBody, request: Request) -> Response | Deferred[Response]:
        """
        Decode the body of a request, and let a handler answer.

        :param body: the whole compressed body.
        :return: a Deferred if decoding takes more than one slice; it fails with the errors that are raised
            otherwise.
        :raise RequestError: the body cannot be decoded, or is over the limit.
        :raise SampleAppError: as `Request.verify_body`.
        """

        def handle(_: object) -> Response | Deferred[Response]:
            request.body = body.content()
            if request.reservation is not None:
                # The decoder, and its reservation of memory, are no longer needed.
                request.reservation.resize(len(request.body))
            return handler(request)

        verify, request.verify_body = request.verify_body, None
        if verify is not None:
            verify(request, body.encoded())
        if self._decode(body, _DECODED_AT_ONCE, request.charge):
            return handle(None)
        return self._cooperator.cooperate(self._steps(body, request.charge)).whenDone().addCallback(handle)

    def _steps(self, body: CodedBody, charge: Charge | None) -> Iterator[None]:
        while not self._decode(body, _SLICE, charge):
            yield

    def _decode(self, body: CodedBody, most: int, charge: Charge | None) -> bool:
        try:
            return body.decode(most)
        except BodyTooLarge:
            if self._count_rejection is not None:
                self._count_rejection("max-body")
            raise
        finally:
            if charge is not None:
                charge.charge_up_to(body.made)
