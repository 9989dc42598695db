"""
The connection to one broker: afkak's, but each request is sent at most once, in the negotiated version.

Answers are assembled as data arrives, and requests are written at once.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final, Generic, TypeAlias, TypeVar

from afkak.brokerclient import _KafkaBrokerClient
from msgspec import Struct
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall, IPullProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.internet.tcp import Connection as TCPConnection
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.brokers.kafka.cluster_client.interfaces import ConnectionListener
from sampleapp.brokers.kafka.connections.diagnostics import ConnectionFailed, FailureReason, address
from sampleapp.brokers.kafka.protocol import ProtocolError, Request, request_frame
from sampleapp.concurrency.waiting import Waiters

ApiRanges: TypeAlias = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each API that a broker supports, by API key."""

_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""The longest answer that is accepted: well above the size that a Fetch asks for."""
_LENGTH: Final = struct.Struct(">i")
_LENGTH_BYTES: Final = _LENGTH.size
_LARGE_FRAME: Final = 2 * 1024 * 1024
"""Bytes of a frame above which it is not written in the turn of the reactor in which it was encoded."""


@implementer(IPullProducer)
class FrameProtocol(Protocol):
    """
    Frames, each preceded by its length.

    Its factory is a `sampleapp.brokers.kafka.cluster_client.broker_connection.BrokerConnection`.
    """

    api_versions: ApiRanges
    factory: Any
    session_lifetime_ms: int
    transport: Any
    has_responded = False
    """True if a response has come since the handshake."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._awaited = 0
        self._send_some: Callable[[bytes], int] | None = None
        self._unwritten: list[bytes] = []
        self._is_full = False

    def connectionMade(self) -> None:  # noqa: N802 -- Twisted's name
        """See `IProtocol.connectionMade`."""
        if isinstance(self.transport, TCPConnection) and not self.transport.TLS:
            self._send_some = self.transport.getHandle().send

    def send(self, frame: bytes) -> None:
        """
        Write a request.

        :param frame: without its length.
        """
        if len(frame) > _LARGE_FRAME and not self._is_full and self._send_some is not None:
            # Encoding it took milliseconds already. Twisted writes it in the next turns, in parts.
            self._write_later(_LENGTH.pack(len(frame)), frame)
            return
        data = _LENGTH.pack(len(frame)) + frame
        if self._send_some is None:
            self.transport.write(data)
        elif self._is_full:
            self._unwritten.append(data)
        else:
            # Twisted would write in the next turn of the reactor, with two more system calls.
            try:
                sent = self._send_some(data)
            except OSError:
                # The socket is full; if the connection is lost, the reactor will notice on writing.
                sent = 0
            if sent != len(data):
                self._write_later(data[sent:])

    def _write_later(self, *data: bytes) -> None:
        self._is_full = True
        self._unwritten += data
        self.transport.registerProducer(self, streaming=False)

    def resumeProducing(self) -> None:  # noqa: N802 -- Twisted's name
        """See `IPullProducer.resumeProducing`: the transport has written everything."""
        if self._unwritten:
            data, self._unwritten = self._unwritten, []
            self.transport.writeSequence(data)
        else:
            self._is_full = False
            self.transport.unregisterProducer()

    def stopProducing(self) -> None:  # noqa: N802 -- Twisted's name
        """See `IProducer.stopProducing`."""
        self._unwritten.clear()

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 -- Twisted's name
        """Handle the complete frames, and keep the rest without copying it for each chunk."""
        if self._awaited:
            self._chunks.append(data)
            self._awaited -= len(data)
            if self._awaited > 0:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._awaited = 0
        at, end = 0, len(data)
        while end - at >= _LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data, at)
            if not 0 <= length <= _MAX_FRAME_BYTES:
                self.transport.abortConnection()
                return
            frame_end = at + _LENGTH_BYTES + length
            if frame_end > end:
                self._awaited = frame_end - end
                break
            self._frame_received(data[at + _LENGTH_BYTES : frame_end])
            at = frame_end
        if at < end:
            self._chunks.append(data[at:])
            self._awaited = self._awaited or _LENGTH_BYTES - (end - at)

    def _frame_received(self, frame: bytes) -> None:
        # Answers on an abandoned connection do not count, even if they have arrived.
        connection = self.factory
        if connection.proto is self:
            self.has_responded = True
            connection.responded()
            connection.handleResponse(frame)
            connection.renew_if_idle()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 -- Twisted's name
        """See `IProtocol.connectionLost`."""
        connection, self.factory = self.factory, None
        connection.protocol_lost(self, reason)


R = TypeVar("R")

_log: Final = Logger()

SERVICE_FAULT: Final = FailureReason(
    sentence="The service has a bug; the log has the traceback.",
    public="The service has a fault.",
    lasting=False,
)
"""The reason after an unexpected exception."""

METADATA_UNUSABLE: Final = FailureReason(
    sentence="The broker's metadata of the cluster could not be processed; the log has the traceback.",
    public="The broker's metadata of the cluster could not be processed.",
    lasting=False,
)

CLIENT_CLOSED: Final = FailureReason(
    sentence="The Kafka client is closed.", public="The connection to the broker was closed.", lasting=False
)


def unknown_broker(node_id: int) -> FailureReason:
    """Return the reason for a request to a broker that is not in the cluster."""
    return FailureReason(
        sentence=f"Broker {node_id} is not in the cluster.",
        public="The broker is not in the cluster now.",
        lasting=False,
    )


class RequestFailed(Exception):
    """A request has failed without a response."""

    def __init__(self, reason: FailureReason, *, sent: bool) -> None:
        """
        :param reason: the reason.
        :param sent: true if any of its bytes may have reached the broker.
        """
        super().__init__(reason.sentence)
        self.reason = reason
        self.sent = sent


def request_failed(failure: Failure) -> RequestFailed:
    """
    Return a `RequestFailed` for any failure.

    Any other exception is a bug in the service. It is logged, and the broker may have the request.
    """
    if isinstance(failure.value, RequestFailed):
        return failure.value
    _log.failure("A bug in the service: a request to a broker failed unexpectedly", failure=failure)
    return RequestFailed(SERVICE_FAULT, sent=True)


class Call(Struct, Generic[R]):
    """One request to one broker."""

    request: Request[R]
    deadline_s: float
    """When the response must have come, in seconds of the reactor's clock."""
    response: Deferred[R]
    """The connection fires it."""
    version: int = 0
    """The version in which it was sent."""
    sent: bool = False
    """True if any of its bytes may have reached the broker."""

    def encode(self, correlation_id: int, ranges: ApiRanges, client_id: bytes) -> bytes:
        """
        Choose the version, and encode the frame without its length.

        :param ranges: the versions of each API that the broker supports.
        :param client_id: the name of this client in the broker's logs and quotas, in UTF-8.
        :raise RequestFailed: the broker and this service have no version of the API in common, or none that
            can carry this request.
        """
        request = self.request
        version = request.version_for(ranges)
        if version is None:
            raise RequestFailed(self._not_offered(), sent=False)
        unsupported_reason = request.unsupported_reason(version)
        if unsupported_reason is not None:
            raise RequestFailed(_too_old(unsupported_reason), sent=False)
        self.version = version
        return request_frame(request, version=version, correlation_id=correlation_id, client_id=client_id)

    def decode(self, frame: bytes) -> R:
        """
        Decode the response.

        :param frame: as received, with the correlation id, by which this request was found.
        :raise sampleapp.brokers.kafka.protocol.ProtocolError: it is not a response to this request.
        """
        return self.request.decode(self.version, memoryview(frame)[_CORRELATION_ID_BYTES:])

    def unanswered(self, broker: str) -> FailureReason:
        """
        Return the reason when no response came in time.

        :param broker: its address.
        """
        return FailureReason(
            sentence=f"{broker} did not answer {self.request.api.name} in time.",
            public="The broker did not answer in time.",
            lasting=False,
        )

    def not_understood(self, broker: str) -> FailureReason:
        """
        Return the reason when the response cannot be decoded.

        :param broker: its address.
        """
        return FailureReason(
            sentence=f"{broker} answered {self.request.api.name} with bytes that are not Kafka's protocol.",
            public="The broker's answer could not be decoded.",
            lasting=False,
        )

    def _not_offered(self) -> FailureReason:
        api = self.request.api
        return FailureReason(
            sentence=f"The broker does not support {api.name} in a version {api.lowest} to {api.highest}.",
            public="The broker and this service have no version of Kafka's protocol in common.",
            lasting=True,
            incompatible=True,
        )


def _too_old(unsupported_reason: str) -> FailureReason:
    return FailureReason(
        sentence=unsupported_reason, public=unsupported_reason, lasting=True, incompatible=True
    )


_SHARE_OF_LIFETIME: Final = 0.8
"""
Fraction of the lifetime after which a connection with limited authentication (KIP-368) is renewed. The broker
drops it on the first request after that time, and the service could not tell whether it handled that request.
"""
_MAX_CORRELATION_ID: Final = 2**31 - 1
_CORRELATION_ID_BYTES: Final = 4


class BrokerConnection(_KafkaBrokerClient):  # type: ignore[misc] # afkak has no types
    """
    The connection to one broker, made when it is first needed.

    afkak sends requests again after a connection was lost. Here they fail with `RequestFailed`: only the
    callers know whether a deadline or an order forbids another attempt.
    """

    protocol = FrameProtocol
    connector: Any
    proto: Any
    requests: dict[int, Call[Any]]
    """The requests that are in flight or wait for the connection, by correlation id."""
    _dDown: Any  # noqa: N815 -- afkak's name
    _log = Logger()

    def __init__(self, *args: Any, listener: ConnectionListener, sent: Counter[tuple[str, int]]) -> None:
        """
        :param args: the arguments of afkak's class.
        :param listener: gets the events of the connection.
        :param sent: counts the requests by the name of the API and the broker's node id.
        """
        super().__init__(*args)
        self.requests = {}
        self._client_id = self.clientId.encode()
        self._correlation_id = 0
        self._listener = listener
        self._sent = sent
        self._failures = 0
        self._connecting: Waiters[None] = Waiters()
        self._expiry: IDelayedCall | None = None
        self._is_expiring = False
        self._is_closed = False
        # One timer for all requests: nearly all are answered, so a timer for each would be wasted.
        self._timer: IDelayedCall | None = None
        self._timer_s = inf

    def ask(self, request: Request[R], *, timeout_s: float) -> Deferred[R]:
        """See `sampleapp.brokers.kafka.cluster_client.interfaces.ClusterClient.request`."""
        if self._is_closed:
            return fail(RequestFailed(self._closed(), sent=False))
        correlation_id = self._correlation_id = self._correlation_id % _MAX_CORRELATION_ID + 1
        deadline_s = self._reactor.seconds() + timeout_s
        answer: Deferred[R] = Deferred(partial(self._cancel, correlation_id))
        call = self.requests[correlation_id] = Call(request, deadline_s, answer)
        if deadline_s < self._timer_s:
            self._check_deadlines_at(deadline_s)
        if self.proto is not None and not self._is_expiring:
            self._send(correlation_id, call)
        elif self.proto is None and self.connector is None:
            self._connect()
        return answer

    def when_connected(self) -> Deferred[None]:
        """
        Connect, unless connected.

        :return: fires with ``None``, or fails with `RequestFailed` if this attempt fails.
        """
        if self.connected():
            return succeed(None)
        if self._is_closed:
            return fail(RequestFailed(self._closed(), sent=False))
        connected = self._connecting.wait()
        if self.connector is None and self.proto is None:
            self._connect()
        return connected

    def connected(self) -> bool:
        """Return whether a request would be sent at once, on a connection that is not about to be renewed."""
        return self.proto is not None and not self._is_expiring

    def abort(self) -> None:
        """
        Drop the connection at once; the requests in flight fail.

        afkak's own way would wait for a dead peer to read.
        """
        if self.proto is not None:
            self._drop_connection()
            self._fail_all(
                self._reason(
                    "was disconnected by this service: an answer did not come in time, or was not valid"
                )
            )

    disconnect = abort

    def protocol_lost(self, proto: FrameProtocol, reason: Failure) -> None:
        """Handle the end of a connection, perhaps of one that was already abandoned."""
        if proto is self.proto:
            # First, since the callers of failing requests may send again at once, on a new connection.
            self._forget_protocol()
            self._fail_all(self._reason(_lost(proto, reason)))
        if not self._is_closed:
            self._listener.lost(self.host, self.port)
        if self._dDown is not None and not self._dDown.called:
            self._dDown.callback(None)

    def fail_removed(self) -> None:
        """Fail the requests in flight: the broker has left the cluster."""
        self._fail_all(self._reason("has left the cluster"))

    def close(self) -> Deferred[None]:
        """
        Close for ever; requests in flight fail with `RequestFailed`.

        :return: fires when the connection is gone.
        """
        # First, since the callers of failing requests may send again at once.
        self._is_closed = True
        self._is_expiring = False
        self._fail_all(self._closed())
        proto = self.proto
        for timer in (self._expiry, self._timer):
            if timer is not None and timer.active():
                timer.cancel()
        closed: Deferred[None] = super().close()
        if proto is not None:
            # No response is expected any more, and TLS would wait for a dead peer.
            proto.transport.abortConnection()
        return closed

    def _connect(self) -> None:
        """
        Make one attempt, after a pause that grows with the number of failed attempts.

        afkak retries until it succeeds, and its requests wait. Here they fail with the attempt.
        """
        delay_s = self._retryPolicy(self._failures) if self._failures else 0
        attempt: Deferred[Any]
        if delay_s:
            attempt = deferLater(self._reactor, delay_s, self._attempt)
        else:
            attempt = maybeDeferred(self._attempt)
        # Before the callbacks, which may run at once and clear it.
        self.connector = attempt
        attempt.addCallbacks(self._connection_made, self._connection_failed)

    def _attempt(self) -> Deferred[Any]:
        endpoint = self._endpointFactory(self._reactor, self.host, self.port)
        connecting: Deferred[Any] = endpoint.connect(self)
        return connecting

    def _connection_made(self, proto: FrameProtocol) -> None:
        self.connector = None
        if self._dDown is not None:
            proto.transport.abortConnection()
            return
        self.proto = proto
        if proto.session_lifetime_ms > 0:
            self._expiry = self._reactor.callLater(
                _SHARE_OF_LIFETIME * proto.session_lifetime_ms / 1000, self._expire
            )
        self._listener.connected(self.host, self.port)
        for correlation_id, call in list(self.requests.items()):
            # The failure of one may have others cancelled.
            if correlation_id in self.requests and not call.sent:
                self._send(correlation_id, call)
        self._connecting.succeed(None)

    def responded(self) -> None:
        """Note a response: the next attempt to connect need not wait."""
        self._failures = 0
        self._listener.responded(self.host, self.port)

    def renew_if_idle(self) -> None:
        """
        Replace a connection that is about to expire, once all requests on it have been answered.

        New requests wait for the next connection; otherwise a busy connection would never be idle.
        """
        if self._is_expiring and not any(call.sent for call in self.requests.values()):
            self._drop_connection()
            if self._connecting or self.requests:
                self._connect()

    def _expire(self) -> None:
        self._is_expiring = True
        self.renew_if_idle()

    def _forget_protocol(self) -> None:
        if not self.proto.has_responded and not self._is_expiring:
            # Back off from a server that accepts every connection and then drops it.
            self._failures += 1
        self.proto = None
        self._is_expiring = False
        if self._expiry is not None and self._expiry.active():
            self._expiry.cancel()

    def _connection_failed(self, failure: Failure) -> Failure | None:
        self.connector = None
        if self._dDown is not None:
            # afkak's `close` has added its own errback after this one.
            return failure
        self._failures += 1
        if isinstance(failure.value, ConnectionFailed):
            reason = failure.value.reason
        else:
            reason = self._reason(f"cannot be reached ({failure.getErrorMessage()})")
        self._listener.failed(self.host, self.port, reason)
        self._fail_all(reason)
        return None

    def _send(self, correlation_id: int, call: Call[Any]) -> None:
        proto = self.proto
        try:
            frame = call.encode(correlation_id, proto.api_versions, self._client_id)
            call.sent = True
            proto.send(frame)
        except Exception as error:  # noqa: BLE001 -- the caller gets it, whatever it is
            del self.requests[correlation_id]
            if call.sent:
                # A part of it may be written, and the next request must not follow that.
                self.abort()
            if not isinstance(error, RequestFailed):
                self._log.failure(
                    "A bug in the service: a request to {broker} could not be sent", broker=self
                )
                error = RequestFailed(SERVICE_FAULT, sent=call.sent)
            call.response.errback(error)
            return
        self._sent[call.request.api.name, self.node_id] += 1

    def handleResponse(self, response: bytes) -> None:  # noqa: N802 -- afkak's name
        """
        Give a response to its request; the response to a cancelled request is dropped.

        :param response: a frame without its length.
        """
        correlation_id = int.from_bytes(response[:_CORRELATION_ID_BYTES], "big")
        call = self.requests.pop(correlation_id, None)
        if call is None:
            return
        try:
            answer = call.decode(response)
        except Exception as error:  # noqa: BLE001 -- the caller gets it, whatever it is
            if isinstance(error, ProtocolError):
                # The rest of this connection cannot be trusted either.
                self.abort()
            else:
                self._log.failure(
                    "A bug in the service: an answer of {broker} could not be decoded", broker=self
                )
            reason = call.not_understood(address(self.host, self.port))
            call.response.errback(RequestFailed(reason, sent=True))
            return
        call.response.callback(answer)

    def _cancel(self, correlation_id: int, _: Deferred[Any]) -> None:
        """Forget a request that its caller has cancelled."""
        if self.requests.pop(correlation_id, None) is not None:
            self.renew_if_idle()

    def _check_deadlines_at(self, deadline_s: float) -> None:
        """Check at this time for requests that are too late."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = deadline_s
        self._timer = self._reactor.callLater(
            max(0.0, deadline_s - self._reactor.seconds()), self._check_deadlines
        )

    def _check_deadlines(self) -> None:
        self._timer, self._timer_s = None, inf
        now_s = self._reactor.seconds()
        late = {key: call for key, call in self.requests.items() if call.deadline_s <= now_s}
        if late:
            for correlation_id in late:
                del self.requests[correlation_id]
            # Answers to later requests could only follow these.
            self.abort()
            broker = address(self.host, self.port)
            self._fail(late, lambda call: RequestFailed(call.unanswered(broker), sent=call.sent))
        if self.requests:
            self._check_deadlines_at(min(call.deadline_s for call in self.requests.values()))

    def _drop_connection(self) -> None:
        proto = self.proto
        self._forget_protocol()
        proto.transport.abortConnection()

    def _fail_all(self, reason: FailureReason) -> None:
        requests, self.requests = self.requests, {}
        connecting, self._connecting = self._connecting, Waiters()
        self._fail(requests, lambda call: RequestFailed(reason, sent=call.sent))
        connecting.fail(lambda: RequestFailed(reason, sent=False))

    def _fail(self, calls: Mapping[int, Call[Any]], make_error: Callable[[Call[Any]], RequestFailed]) -> None:
        for call in calls.values():
            # The caller of one may have cancelled another when it failed.
            if not call.response.called:
                call.response.errback(make_error(call))

    def _reason(self, what: str) -> FailureReason:
        return FailureReason(
            sentence=f"{address(self.host, self.port)} {what}.",
            public="The connection to the broker was lost.",
            lasting=False,
        )

    def _closed(self) -> FailureReason:
        return FailureReason(
            sentence=f"The service closed its connection to {address(self.host, self.port)}.",
            public="The connection to the broker was closed.",
            lasting=False,
        )


class SeparateConnection(BrokerConnection):
    """
    Implements `sampleapp.brokers.kafka.cluster_client.interfaces.Connection`.

    A share session ends with its connection (KIP-932), so only the owner replaces it.
    """

    is_expiring = False

    def _expire(self) -> None:
        self.is_expiring = True


def _lost(proto: FrameProtocol, reason: Failure) -> str:
    if proto.has_responded:
        return f"closed the connection, or it was lost ({reason.getErrorMessage().rstrip('.')})"
    # Kafka does this without an error when a client skips the SASL that the listener requires.
    return (
        "closed the connection on the first request: if its listener requires SASL, give sasl= and the "
        "credentials; if not, see the log of the broker"
    )
