"""The connection to one broker: afkak's, but each request is sent at most once, in the negotiated version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

from afkak.brokerclient import _KafkaBrokerClient
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client.call import SERVICE_FAULT, Call, RequestFailed
from sampleapp.brokers.kafka.cluster_client.framing import FrameProtocol
from sampleapp.brokers.kafka.cluster_client.interfaces import ConnectionListener
from sampleapp.brokers.kafka.connections.failure_reason import ConnectionFailed, FailureReason, address
from sampleapp.brokers.kafka.protocol import ProtocolError, Request
from sampleapp.concurrency.waiters import Waiters

__all__ = ["BrokerConnection"]

R = TypeVar("R")

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


def _lost(proto: FrameProtocol, reason: Failure) -> str:
    if proto.has_responded:
        return f"closed the connection, or it was lost ({reason.getErrorMessage().rstrip('.')})"
    # Kafka does this without an error when a client skips the SASL that the listener requires.
    return (
        "closed the connection on the first request: if its listener requires SASL, give sasl= and the "
        "credentials; if not, see the log of the broker"
    )
