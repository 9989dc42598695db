"""Reading the body of an answer, up to a limit."""

# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names

from __future__ import annotations

from io import BytesIO

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IResponse

__all__ = ["BodyTooLong", "read_body"]


class BodyTooLong(Exception):
    """A body is longer than the limit. It is dropped, and its connection closed."""


def read_body(response: IResponse, *, max_bytes: int) -> Deferred[bytes]:
    """
    Read the body of an answer.

    :param max_bytes: the maximum length after decoding.
    :return: fires with the body. A body without an announced length may be cut off; the caller must check.
        Fails with `BodyTooLong`, or with the error that ended the connection. Cancelling it closes the
        connection, which neither treq's collector nor `twisted.web.client.readBody` does.
    """
    body = _Body(max_bytes)
    response.deliverBody(body)
    return body.done


class _Body(Protocol):
    """Collects a body."""

    def __init__(self, max_bytes: int) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._max_bytes = max_bytes
        # Not a list: chunks may have one byte each.
        self._content = BytesIO()
        self._size = 0

    def dataReceived(self, data: bytes) -> None:
        """Add a piece."""
        self._size += len(data)
        if self._size <= self._max_bytes:
            self._content.write(data)
        elif not self.done.called:
            self._content = BytesIO()
            self.done.errback(BodyTooLong())
            self._abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Finish: the body, not necessarily the connection, has ended."""
        if self.done.called:
            return
        # PotentialDataLoss ends a body without an announced length.
        if isinstance(reason.value, (ResponseDone, PotentialDataLoss)):
            self.done.callback(self._content.getvalue())
        else:
            self.done.errback(reason)

    def _abort(self) -> None:
        # Not abortConnection, which the transport of a body does not have.
        if self.transport is not None:
            self.transport.loseConnection()
