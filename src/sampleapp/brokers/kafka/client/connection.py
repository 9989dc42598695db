"""The connection to one broker: afkak's, but a request is sent once at most, in the version agreed upon."""

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

from sampleapp.brokers.kafka.client.call import Call, RequestFailed
from sampleapp.brokers.kafka.client.framing import FrameProtocol
from sampleapp.brokers.kafka.client.interfaces import ConnectionListener
from sampleapp.brokers.kafka.connections.failure_reason import ConnectionFailed, FailureReason, address
from sampleapp.brokers.kafka.protocol import ProtocolError, Request
from sampleapp.brokers.shared.waiters import Waiters

__all__ = ["Connection"]

R = TypeVar("R")

_SHARE_OF_LIFETIME: Final = 0.8
"""
When to renew a connection whose authentication is valid for a limited time (KIP-368): the broker drops
it on the first request that comes later, which then may or may not have been handled, for all we know.
"""
_MAX_CORRELATION_ID: Final = 2**31 - 1
_CORRELATION_ID_BYTES: Final = 4


class Connection(_KafkaBrokerClient):  # type: ignore[misc] # afkak has no types
    """
    The connection to one broker, made when it is first needed.

    afkak sends requests again after a connection was lost. Here they fail instead, with
    `RequestFailed`: only their makers know whether a deadline, or an order, forbids another attempt.
    """

    protocol = FrameProtocol
    connector: Any
    proto: Any
    requests: dict[int, Call[Any]]
    """What is in flight, or waits for the connection, by correlation id."""
    _dDown: Any  # noqa: N815 -- afkak's name
    _log = Logger()

    def __init__(self, *args: Any, listener: ConnectionListener, sent: Counter[tuple[str, int]]) -> None:
        """
        :param args: what afkak's class takes.
        :param listener: is told what happens to the connection.
        :param sent: where requests are counted, by the names of their APIs and the broker's node id.
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
        # One for all requests: nearly every request is answered, and so nearly every timer of its own would
        # have been for nothing.
        self._timer: IDelayedCall | None = None
        self._timer_s = inf

    def ask(self, request: Request[R], *, timeout_s: float) -> Deferred[R]:
        """See `sampleapp.brokers.kafka.client.interfaces.ClusterClient.request`."""
        if self._is_closed:
            return fail(RequestFailed(self._closed(), sent=False))
        correlation_id = self._correlation_id = self._correlation_id % _MAX_CORRELATION_ID + 1
        deadline_s = self._reactor.seconds() + timeout_s
        answer: Deferred[R] = Deferred(partial(self._give_up, correlation_id))
        call = self.requests[correlation_id] = Call(request, deadline_s, answer)
        if deadline_s < self._timer_s:
            self._look_at(deadline_s)
        if self.connected():
            self._send(correlation_id, call)
        elif self.proto is None and self.connector is None:
            self._connect()
        return answer

    def when_connected(self) -> Deferred[None]:
        """
        Connect, if that is not done yet.

        :return: fires with ``None``, or fails with `RequestFailed` if this attempt does.
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
        """Whether a request would be sent at once, on a connection that is not about to be renewed."""
        return self.proto is not None and not self._is_expiring

    def abort(self) -> None:
        """
        Drop the connection at once; what else is in flight on it fails.

        afkak's way waits for what a dead peer does not read.
        """
        if self.proto is not None:
            self._drop_connection()
            self._fail_all(self._reason("had its connection dropped, since an answer did not come"))

    disconnect = abort

    def protocol_lost(self, proto: FrameProtocol, reason: Failure) -> None:
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
        # First, since what fails now may ask again at once.
        self._is_closed = True
        self._is_expiring = False
        self._fail_all(self._closed())
        proto = self.proto
        for timer in (self._expiry, self._timer):
            if timer is not None and timer.active():
                timer.cancel()
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
            # What one of them comes to may have others given up.
            if correlation_id in self.requests and not call.sent:
                self._send(correlation_id, call)
        self._connecting.succeed(None)

    def answered(self) -> None:
        """The broker is of use: the next attempt to connect need not wait."""
        self._failures = 0
        self._listener.answered(self.host, self.port)

    def renew_if_idle(self) -> None:
        """
        Replace a connection that is about to expire, once everything on it has been answered.

        What was asked meanwhile waits for the new one: there would always be something to wait for otherwise.
        """
        if self._is_expiring and not any(call.sent for call in self.requests.values()):
            self._drop_connection()
            if self._connecting or self.requests:
                self._connect()

    def _expire(self) -> None:
        self._is_expiring = True
        self.renew_if_idle()

    def _forget_protocol(self) -> None:
        if not self.proto.has_answered and not self._is_expiring:
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

    def _send(self, correlation_id: int, call: Call[Any]) -> None:
        proto = self.proto
        try:
            frame = call.encode(correlation_id, proto.api_versions, self._client_id)
        except Exception:  # noqa: BLE001 -- whatever it was, its maker is told
            del self.requests[correlation_id]
            call.answer.errback()
            return
        call.sent = True
        self._sent[call.request.api.name, self.node_id] += 1
        proto.send(frame)

    def handleResponse(self, response: bytes) -> None:  # noqa: N802 -- afkak's name
        """
        Give an answer to the request that it is for; if that was given up, nobody waits for it any more.

        :param response: a frame, without its length.
        """
        correlation_id = int.from_bytes(response[:_CORRELATION_ID_BYTES], "big")
        call = self.requests.pop(correlation_id, None)
        if call is None:
            return
        try:
            answer = call.decode(response)
        except Exception as error:  # noqa: BLE001 -- whatever it was, its maker is told
            if isinstance(error, ProtocolError):
                # What else is on this connection cannot be trusted either.
                self.abort()
            else:
                self._log.failure("An answer of {broker} could not be read", broker=self)
            reason = call.not_understood(address(self.host, self.port))
            call.answer.errback(RequestFailed(reason, sent=True))
            return
        call.answer.callback(answer)

    def _give_up(self, correlation_id: int, _: Deferred[Any]) -> None:
        """Its maker has cancelled a request."""
        if self.requests.pop(correlation_id, None) is not None:
            self.renew_if_idle()

    def _look_at(self, deadline_s: float) -> None:
        """See at this time whether there is a request that was not answered."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = deadline_s
        self._timer = self._reactor.callLater(max(0.0, deadline_s - self._reactor.seconds()), self._look)

    def _look(self) -> None:
        self._timer, self._timer_s = None, inf
        now_s = self._reactor.seconds()
        late = {key: call for key, call in self.requests.items() if call.deadline_s <= now_s}
        if late:
            for correlation_id in late:
                del self.requests[correlation_id]
            # Answers to later requests could only come after these.
            self.abort()
            broker = address(self.host, self.port)
            self._fail(late, lambda call: RequestFailed(call.unanswered(broker), sent=call.sent))
        if self.requests:
            self._look_at(min(call.deadline_s for call in self.requests.values()))

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
            # The maker of one may give up another when it is told.
            if not call.answer.called:
                call.answer.errback(make_error(call))

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


def _lost(proto: FrameProtocol, reason: Failure) -> str:
    if proto.has_answered:
        return f"closed the connection, or it was lost ({reason.getErrorMessage().rstrip('.')})"
    # So does Kafka, without a word, when somebody skips what its listener requires.
    return (
        "closed the connection on the first request: if its listener requires SASL, give sasl= and the "
        "credentials; if not, the log of the broker says why"
    )
