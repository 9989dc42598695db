"""The body of an answer of a server that may send more than anybody wants to hold."""

# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IResponse

__all__ = ["BodyTooLong", "read_body"]


class BodyTooLong(Exception):
    """A body has more bytes than are wanted. What came of it is dropped, and its connection closed."""


def read_body(response: IResponse, *, max_bytes: int) -> Deferred[bytes]:
    """
    Take the body of an answer.

    :param max_bytes: how long it may be, once it is decoded.
    :return: fires with the body. One of no announced length may be cut off, which its user has to see. Fails
        with `BodyTooLong`, or with what has ended the connection. Cancelling it closes the connection, as
        neither treq's collector nor `twisted.web.client.readBody` would.
    """
    body = _Body(max_bytes)
    response.deliverBody(body)
    return body.done


class _Body(Protocol):
    """Collects a body."""

    def __init__(self, max_bytes: int) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._size = 0

    def dataReceived(self, data: bytes) -> None:
        """Take one more piece."""
        self._size += len(data)
        if self._size <= self._max_bytes:
            self._chunks.append(data)
        elif not self.done.called:
            self._chunks.clear()
            self.done.errback(BodyTooLong())
            self._abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Finish: the body, not necessarily the connection, has ended."""
        if self.done.called:
            return
        # PotentialDataLoss is how a body without a length ends.
        if isinstance(reason.value, (ResponseDone, PotentialDataLoss)):
            self.done.callback(b"".join(self._chunks))
        else:
            self.done.errback(reason)

    def _abort(self) -> None:
        # Not abortConnection: the transport that Twisted gives to a body has none.
        if self.transport is not None:
            self.transport.loseConnection()
