"""Reading the body of a response, up to a limit."""

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


def read_body(response: IResponse, *, max_bytes: int, until_closed: bool = True) -> Deferred[bytes]:
    """
    Read the body of a response.

    :param max_bytes: the maximum length after decoding.
    :param until_closed: True to accept a body that only the end of the connection ends (RFC 9112, section
        6.3). It may be cut off; the caller must check.
    :return: fires with the body. Fails with `BodyTooLong`, or with the error that ended the connection:
        `twisted.web.http.PotentialDataLoss` without ``until_closed``. Cancelling it closes the connection,
        which neither treq's collector nor `twisted.web.client.readBody` does.
    """
    body = _Body(max_bytes, (ResponseDone, PotentialDataLoss) if until_closed else (ResponseDone,))
    response.deliverBody(body)
    return body.done


class _Body(Protocol):
    """Collects a body."""

    def __init__(self, max_bytes: int, ends: tuple[type[Exception], ...]) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._max_bytes = max_bytes
        self._ends = ends
        # Not a list: chunks may have one byte each.
        self._content = BytesIO()
        self._size = 0

    def dataReceived(self, data: bytes) -> None:
        """Add a chunk."""
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
        if isinstance(reason.value, self._ends):
            self.done.callback(self._content.getvalue())
        else:
            self.done.errback(reason)

    def _abort(self) -> None:
        # Not abortConnection, which the transport of a body does not have.
        if self.transport is not None:
            self.transport.loseConnection()
