"""The connection to one broker: afkak's, but a request is sent once at most, in the version agreed upon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeAlias

from afkak._protocol import KafkaProtocol
from afkak.brokerclient import _KafkaBrokerClient
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import connectionDone
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.client.interfaces import ConnectionListener
from sampleapp.brokers.kafka.connections.failure_reason import ConnectionFailed, FailureReason, address
from sampleapp.brokers.shared.waiters import Waiters

_SHARE_OF_LIFETIME: Final = 0.8
"""
When to renew a connection whose authentication is valid for a limited time (KIP-368): the broker drops
it on the first request that comes later, which then may or may not have been handled, for all we know.
"""

__all__ = ["ApiRanges", "Connection", "Frame", "RequestFailed", "reason_of"]

ApiRanges: TypeAlias = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each request that a broker takes, by the request's API key."""

_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""The greatest answer that is read: well above what a Fetch asks for, below what a stray length may say."""


class RequestFailed(Exception):
    """A request has no answer, and will have none."""

    def __init__(self, reason: FailureReason, *, sent: bool) -> None:
        """
        :param reason: why.
        :param sent: whether any of its bytes may have reached the broker.
        """
        super().__init__(reason.sentence)
        self.reason = reason
        self.sent = sent


def reason_of(failure: Failure) -> FailureReason:
    """
    Why a request has failed.

    :raise TypeError: the failure is about something else, which is a fault of ours.
    """
    if isinstance(failure.value, RequestFailed):
        return failure.value.reason
    raise TypeError(f"not a failed request: {failure.value!r}") from failure.value


class Frame(Protocol):
    """A request that becomes bytes only when the connection, and so its versions, are known."""

    def encode(self, correlation_id: int, ranges: ApiRanges) -> bytes:
        """
        :param ranges: the versions of each request that the broker takes.
        :return: the frame, without its length.
        """


class _Protocol(KafkaProtocol):  # type: ignore[misc] # afkak has no types
    MAX_LENGTH = _MAX_FRAME_BYTES
    api_versions: ApiRanges
    factory: Any
    session_lifetime_ms: int
    has_answered = False
    """Whether anything came after the handshake."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._awaited = 0

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 -- Twisted's name
        """Gather the pieces of a frame: Twisted copies all that is there of it with each one that comes."""
        if self._awaited:
            self._pieces.append(data)
            self._awaited -= len(data)
            if self._awaited > 0:
                return
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._awaited = 0
        super().dataReceived(data)
        begun = self._unprocessed
        if len(begun) >= self.prefixLength:
            length = int.from_bytes(begun[: self.prefixLength], "big")
            if length <= self.MAX_LENGTH:
                self._awaited = self.prefixLength + length - len(begun)

    def stringReceived(self, string: bytes) -> None:  # noqa: N802 -- Twisted's name
        # Nothing of a connection that was given up counts, even if it is here already.
        if self.factory.proto is self:
            self.has_answered = True
            self.factory.answered()
            super().stringReceived(string)
            self.factory.renew_if_idle()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 -- Twisted's name
        connection, self.factory = self.factory, None
        connection.protocol_lost(self, reason)


class Connection(_KafkaBrokerClient):  # type: ignore[misc] # afkak has no types
    """
    The connection to one broker, made when it is first needed.

    afkak sends requests again after a connection was lost. Here they fail instead, with
    `RequestFailed`: only their makers know whether a deadline, or an order, forbids another attempt.
    """

    protocol = _Protocol
    connector: Any
    proto: Any
    _dDown: Any  # noqa: N815 -- afkak's name

    def __init__(self, *args: Any, listener: ConnectionListener) -> None:
        """
        :param args: what afkak's class takes.
        :param listener: is told what happens to the connection.
        """
        super().__init__(*args)
        self._listener = listener
        self._failures = 0
        self._connecting: Waiters[None] = Waiters()
        self._expiry: IDelayedCall | None = None
        self._is_expiring = False

    def when_connected(self) -> Deferred[None]:
        """
        Connect, if that is not done yet.

        :return: fires with ``None``, or fails with `RequestFailed` if this attempt does.
        """
        if self.connected():
            return succeed(None)
        if self._dDown is not None:
            return fail(RequestFailed(self._closed(), sent=False))
        connected = self._connecting.wait()
        if self.connector is None and self.proto is None:
            self._connect()
        return connected

    def connected(self) -> bool:
        """Whether a request would be sent at once, on a connection that is not about to be renewed."""
        return self.proto is not None and not self._is_expiring

    def abort(self) -> None:
        """
        Drop the connection at once; what else is in flight on it fails.

        afkak's way waits for what a dead peer does not read.
        """
        proto = self.proto
        if proto is not None:
            self._forget_protocol()
            proto.transport.abortConnection()
            self._fail_all(self._reason("had its connection dropped, since an answer did not come"))

    disconnect = abort

    def protocol_lost(self, proto: _Protocol, reason: Failure) -> None:
        """A connection has ended, perhaps one that was given up before."""
        if proto is self.proto:
            # First, since what fails now may ask again at once, which takes another connection.
            self._forget_protocol()
            self._fail_all(self._reason(_lost(proto, reason)))
        self._listener.lost(self.host, self.port)
        if self._dDown is not None and not self._dDown.called:
            self._dDown.callback(None)

    def has_left(self) -> None:
        """The broker is not in the cluster any more: what is in flight fails, for that reason."""
        self._fail_all(self._reason("is not among the brokers of the cluster any more"))

    def close(self) -> Deferred[None]:
        """
        Close for ever; what is in flight fails with `RequestFailed`.

        :return: fires when the connection is gone.
        """
        self._fail_all(self._closed())
        proto = self.proto
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()
        closed: Deferred[None] = super().close()
        if proto is not None:
            # Nobody waits for an answer any more, and TLS would wait for a dead peer.
            proto.transport.abortConnection()
        return closed

    def _connect(self) -> None:
        """
        Make one attempt, after a pause that grows with the attempts that failed.

        afkak goes on until it succeeds, and its requests wait. Here they are told.
        """
        delay_s = self._retryPolicy(self._failures) if self._failures else 0
        attempt: Deferred[Any]
        if delay_s:
            attempt = deferLater(self._reactor, delay_s, self._attempt)
        else:
            attempt = maybeDeferred(self._attempt)
        # The callbacks may run at once, and clear it again.
        self.connector = attempt
        attempt.addCallbacks(self._connection_made, self._connection_failed)

    def _attempt(self) -> Deferred[Any]:
        endpoint = self._endpointFactory(self._reactor, self.host, self.port)
        connecting: Deferred[Any] = endpoint.connect(self)
        return connecting

    def _connection_made(self, proto: _Protocol) -> None:
        self.connector = None
        if self._dDown is not None:
            proto.transport.abortConnection()
            return
        self.proto = proto
        if proto.session_lifetime_ms:
            self._expiry = self._reactor.callLater(
                _SHARE_OF_LIFETIME * proto.session_lifetime_ms / 1000, self._expire
            )
        self._listener.connected(self.host, self.port)
        self._sendQueued()
        self._connecting.succeed(None)

    def answered(self) -> None:
        """The broker is of use: the next attempt to connect need not wait."""
        self._failures = 0
        self._listener.answered(self.host, self.port)

    def renew_if_idle(self) -> None:
        """Drop a connection that is about to expire, once everything on it has been answered."""
        # Those that were cancelled are waited for by nobody.
        if self._is_expiring and all(state.cancelled is not None for state in self.requests.values()):
            self.requests.clear()
            proto = self.proto
            self._forget_protocol()
            proto.transport.abortConnection()
            if self._connecting:
                self._connect()

    def _expire(self) -> None:
        self._is_expiring = True
        self.renew_if_idle()

    def _forget_protocol(self) -> None:
        if not self.proto.has_answered:
            # Somebody who accepts every connection, and then drops it, is not to be asked all the time.
            self._failures += 1
        self.proto = None
        self._is_expiring = False
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()

    def _connection_failed(self, failure: Failure) -> Failure | None:
        self.connector = None
        if self._dDown is not None:
            # afkak's `close` has put an errback of its own behind this.
            return failure
        self._failures += 1
        if isinstance(failure.value, ConnectionFailed):
            reason = failure.value.reason
        else:
            reason = self._reason(f"cannot be reached ({failure.getErrorMessage()})")
        self._listener.failed(self.host, self.port, reason)
        self._fail_all(reason)
        return None

    def _sendRequest(self, state: Any) -> None:  # noqa: N802 -- afkak's name
        frame: Frame = state.request
        try:
            state.request = frame.encode(state.correlationId, self.proto.api_versions)
        except Exception:  # noqa: BLE001 -- whatever it was, its maker is told
            self.requests.pop(state.correlationId)
            state.d.errback(Failure())
            return
        super()._sendRequest(state)

    def _fail_all(self, reason: FailureReason) -> None:
        states = list(self.requests.values())
        self.requests.clear()
        connecting, self._connecting = self._connecting, Waiters()
        for state in states:
            if state.cancelled is None:
                state.d.errback(RequestFailed(reason, sent=state.sent is not None))
        connecting.fail(lambda: RequestFailed(reason, sent=False))

    def _reason(self, what: str) -> FailureReason:
        return FailureReason(
            sentence=f"{address(self.host, self.port)} {what}.",
            public="The connection to the broker was lost.",
            lasting=False,
        )

    def _closed(self) -> FailureReason:
        return FailureReason(
            sentence=f"The connection to {address(self.host, self.port)} was closed by the service.",
            public="The connection to the broker was closed.",
            lasting=False,
        )


def _lost(proto: _Protocol, reason: Failure) -> str:
    if proto.has_answered:
        return f"closed the connection, or it was lost ({reason.getErrorMessage().rstrip('.')})"
    # So does Kafka, without a word, when somebody skips what its listener requires.
    return (
        "closed the connection on the first request: if its listener requires SASL, give sasl= and the "
        "credentials; if not, the log of the broker says why"
    )
