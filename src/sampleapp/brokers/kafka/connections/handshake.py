"""
What is done on a fresh connection before anybody else may use it.

The gate stands at the connection as its protocol. It asks which versions the broker speaks, lets itself
be authenticated if that was asked for, and then hands the connection over to the protocol that it is for.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IAddress, IHandshakeListener, IProtocol
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.brokers.kafka.protocol import ProtocolError, Request, request_frame

__all__ = ["MAX_ANSWER_BYTES", "ConnectionClosed", "Gate", "GateFactory", "NotKafka"]

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""What an answer may take. The longest, to ApiVersions, has some hundred bytes."""

_LENGTH: Final = 4
_CORRELATION_ID: Final = 4
_SHOWN: Final = 64

R = TypeVar("R")


class ConnectionClosed(Exception):
    """The connection was closed while an answer was awaited."""

    def __init__(self, reason: BaseException | None, received: bytes) -> None:
        """
        :param reason: what Twisted, or OpenSSL, says of it.
        :param received: the first bytes of what came instead of an answer.
        """
        super().__init__(reason)
        self.reason = reason
        self.received = received


class NotKafka(Exception):
    """What was received is not an answer in Kafka's protocol."""

    def __init__(self, received: bytes) -> None:
        """:param received: the first bytes of it."""
        super().__init__("not an answer in Kafka's protocol")
        self.received = received


@implementer(IHandshakeListener)
class Gate(Protocol):
    """
    The protocol of a connection until it is handed over, and afterwards only a way through.

    A TLS transport cannot be told of another protocol without knowing its insides, and passing on one call
    for each piece of data costs next to nothing; so the gate stays.
    """

    transport: Any  # Its type is None as well, before there is one, and knows nothing of TCP.

    def __init__(self, client_id: bytes) -> None:
        """:param client_id: what the brokers call this service."""
        self._client_id = client_id
        self._buffer = bytearray()
        self._inner: IProtocol | None = None
        self._correlation_id = 0
        self._answer: Deferred[bytes] | None = None
        self._secured = False
        self._securing: Deferred[None] | None = None
        self._over: Failure | None = None

    # --- what the handshake does ---------------------------------------------------------------------------

    def secured(self) -> Deferred[None]:
        """
        Wait for TLS to be done with its own handshake.

        :return: fires with ``None``, or fails with `ConnectionClosed`. May be cancelled.
        """
        if self._secured:
            return succeed(None)
        if self._over is not None:
            return fail(self._over)
        self._securing = Deferred(self._forget)
        return self._securing

    async def ask(self, request: Request[R], *, version: int) -> R:
        """
        Send one request, and wait for its answer; one at a time.

        :raise ConnectionClosed: there will be no answer.
        :raise NotKafka: there was one, but it cannot be Kafka's.
        """
        self._correlation_id += 1
        frame = request_frame(
            request, version=version, correlation_id=self._correlation_id, client_id=self._client_id
        )
        answer = await self._exchange(frame)
        try:
            return request.decode(version, answer)
        except ProtocolError as error:
            raise NotKafka(answer[:_SHOWN]) from error

    def hand_over(self, inner: IProtocol) -> None:
        """Leave the connection, and all that comes from now on, to another protocol."""
        self._inner = inner
        inner.makeConnection(self.transport)

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abortConnection()

    # --- what the transport tells --------------------------------------------------------------------------

    def connectionMade(self) -> None:  # noqa: D102, N802 -- Twisted's
        # A request and its answer are small and wait for one another; and a peer that is gone without a
        # word (a virtual machine, a cable) would otherwise be noticed by nobody while nothing is asked.
        self.transport.setTcpNoDelay(True)
        self.transport.setTcpKeepAlive(True)

    def handshakeCompleted(self) -> None:  # noqa: D102, N802 -- Twisted's
        self._secured = True
        waiter, self._securing = self._securing, None
        if waiter is not None:
            waiter.callback(None)

    def dataReceived(self, data: bytes) -> None:  # noqa: D102, N802 -- Twisted's
        if self._inner is not None:
            self._inner.dataReceived(data)
            return
        if self._over is not None:
            return
        self._buffer += data
        self._look()
        self._pass_on_the_rest()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: D102, N802 -- Twisted's
        if self._inner is not None:
            self._inner.connectionLost(reason)
        else:
            self._end(ConnectionClosed(reason.value, bytes(self._buffer[:_SHOWN])))

    # --- within --------------------------------------------------------------------------------------------

    def _exchange(self, frame: bytes) -> Deferred[bytes]:
        if self._over is not None:
            return fail(self._over)
        self._answer = Deferred(self._forget)
        self.transport.write(len(frame).to_bytes(_LENGTH, "big") + frame)
        return self._answer

    def _pass_on_the_rest(self) -> None:
        """
        What came right behind the last answer is for the protocol that the connection was handed to.

        By now whoever asked for the connection has it, as is the order of things on any connection.
        """
        if self._inner is not None and self._buffer:
            rest, self._buffer = bytes(self._buffer), bytearray()
            self._inner.dataReceived(rest)

    def _forget(self, _: Deferred[R]) -> None:
        self._answer = self._securing = None

    def _look(self) -> None:
        """Take the answer out of the buffer when all of it is there."""
        if len(self._buffer) < _LENGTH:
            return
        length = int.from_bytes(self._buffer[:_LENGTH], "big")
        # Also what is no length at all, such as "HTTP", is one that is far too great.
        if not _CORRELATION_ID <= length <= MAX_ANSWER_BYTES:
            self._end(NotKafka(bytes(self._buffer[:_SHOWN])))
            return
        end = _LENGTH + length
        if len(self._buffer) < end:
            return
        frame = bytes(self._buffer[_LENGTH:end])
        waiter, self._answer = self._answer, None
        if waiter is None or int.from_bytes(frame[:_CORRELATION_ID], "big") != self._correlation_id:
            self._end(NotKafka(bytes(self._buffer[:_SHOWN])), waiter)
            return
        del self._buffer[:end]
        waiter.callback(frame[_CORRELATION_ID:])

    def _end(self, error: Exception, waiter: Deferred[bytes] | None = None) -> None:
        if self._over is not None:
            return
        self._over = Failure(error)
        waiters = (waiter, self._answer, self._securing)
        self._answer = self._securing = None
        for each in waiters:
            if each is not None:
                each.errback(self._over)


class GateFactory(Factory):
    """Makes a gate for each attempt, without a line in the log."""

    noisy = False

    def __init__(self, client_id: bytes) -> None:
        """:param client_id: what the brokers call this service."""
        self._client_id = client_id

    def buildProtocol(self, addr: IAddress | None) -> Gate:  # noqa: ARG002, D102, N802 -- Twisted's
        return Gate(self._client_id)
