"""The endpoints that afkak connects to: TCP or TLS, then the handshake, then afkak's own protocol."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, TypeVar, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint, wrapClientTLS
from twisted.internet.error import ConnectError, DNSLookupError, NoProtocol
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp import __version__
from sampleapp.brokers.kafka.connections import diagnostics
from sampleapp.brokers.kafka.connections.diagnostics import ConnectionFailed, FailureReason, Peer
from sampleapp.brokers.kafka.connections.handshake import (
    ConnectionClosed,
    HandshakeFactory,
    HandshakeProtocol,
    NotKafka,
    authenticate,
    closed_while_authenticating,
    silent_while_authenticating,
)
from sampleapp.brokers.kafka.connections.security import CurrentSecurity, Security
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import ApiVersionsRequest, negotiate, software_version

_ATTEMPT_DELAY_S: Final = 0.1
"""
Delay between attempts to reach the addresses of one name: the recommended minimum (RFC 8305, section 5).

Twisted also waits this long after the last attempt before it reports that all were rejected.
"""

_LOWEST: Final = ApiVersionsRequest.api.lowest

T = TypeVar("T")


def make_endpoint_factory(
    *,
    security: CurrentSecurity,
    client_id: str,
    timeout_s: float,
) -> Callable[[Any, str, int], IStreamClientEndpoint]:
    """
    Make the ``endpoint_factory`` of afkak's client.

    A connection of these endpoints is ready for use: encrypted if configured, checked to be a broker with the
    required versions, and authenticated. The protocol on it has, before it is connected, the attributes
    ``api_versions`` (lowest and highest version by API key) and ``session_lifetime_ms`` (after which the
    broker closes the connection, KIP-368; 0 for never).

    :param security: asked for each connection. When a broker refuses its certificate or credentials, and they
        have changed since, the connection is tried once more with the new ones.
    :param timeout_s: seconds for everything, from the lookup of the name on.
    """
    version_requests = _VersionRequests()

    def make(reactor: Any, host: str, port: int) -> IStreamClientEndpoint:
        return _KafkaEndpoint(
            version_requests=version_requests,
            reactor=reactor,
            security=security,
            peer=security.peer(host, port),
            client_id=client_id.encode(),
            timeout_s=timeout_s,
        )

    return make


@implementer(IStreamClientEndpoint)
class _KafkaEndpoint:
    def __init__(
        self,
        *,
        version_requests: _VersionRequests,
        reactor: Any,
        security: CurrentSecurity,
        peer: Peer,
        client_id: bytes,
        timeout_s: float,
    ) -> None:
        self._version_requests = version_requests
        self._reactor = reactor
        self._clock = cast(IReactorTime, reactor)
        self._peer = peer
        self._security = security
        self._handshakes = HandshakeFactory(client_id)
        self._timeout_s = timeout_s
        self._tcp = HostnameEndpoint(
            reactor, peer.host, peer.port, timeout=timeout_s, attemptDelay=_ATTEMPT_DELAY_S
        )

    def __repr__(self) -> str:
        return f"<Kafka endpoint {self._peer.at}>"

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:  # noqa: N803 -- Twisted's
        """
        Connect, and make the connection ready for use.

        :return: fires with the protocol that the factory built, or fails with `ConnectionFailed`.
            Cancelling it closes the connection at once.
        """
        stages = _Stages(self._peer)
        return Deferred.fromCoroutine(self._connect(protocolFactory, stages)).addTimeout(
            self._timeout_s, self._clock, stages.raise_timeout
        )

    async def _connect(self, factory: IProtocolFactory, stages: _Stages) -> IProtocol:
        security = self._security.for_new_connection()
        try:
            return await self._attempt(security, stages).run(factory)
        except ConnectionFailed as error:
            if not error.reason.is_rejection or not self._security.has_changed_since(security):
                raise
        # At once: a lasting failure would fail the requests that wait for the connection.
        return await self._attempt(self._security.for_new_connection(), stages).run(factory)

    def _attempt(self, security: Security, stages: _Stages) -> _Attempt:
        tls = security.tls_for(self._peer.host)
        return _Attempt(
            peer=self._peer,
            security=security,
            endpoint=self._tcp if tls is None else wrapClientTLS(tls, self._tcp, clock=self._reactor),
            handshakes=self._handshakes,
            version_requests=self._version_requests,
            stages=stages,
        )


class _VersionRequests:
    """The ApiVersions request, and the version of it to send to each address first."""

    def __init__(self) -> None:
        self.request: Final = ApiVersionsRequest(
            software_name="sampleapp", software_version=software_version(__version__)
        )
        self._closed_at: set[tuple[str, int]] = set()

    def first_version(self, peer: Peer) -> int:
        """
        Return the version of the request to send first.

        It is the lowest for an address that closed its last connection on this request: some servers close
        it on a version that they do not know. If it closes this connection, too, there is another reason.
        """
        closed = (peer.host, peer.port) in self._closed_at
        self._closed_at.discard((peer.host, peer.port))
        return _LOWEST if closed else self.request.api.highest

    def note_closed(self, peer: Peer, sent: int) -> None:
        """Note that the connection was closed on the request in this version."""
        if sent != _LOWEST:
            self._closed_at.add((peer.host, peer.port))


class _Stage(Enum):
    CONNECTING = auto()
    SECURING = auto()
    ASKING = auto()
    AUTHENTICATING = auto()


class _Stages:
    """The stage that an attempt to connect has reached, for the message after a timeout."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.now = _Stage.CONNECTING

    def raise_timeout(self, result: IProtocol | Failure, _: float) -> IProtocol:
        """Raise the failure of the stage that took too long; for `Deferred.addTimeout`."""
        if not isinstance(result, Failure):
            return result
        silent = {
            _Stage.CONNECTING: diagnostics.slow_to_connect,
            _Stage.SECURING: diagnostics.silent_while_securing,
            _Stage.ASKING: diagnostics.silent,
            _Stage.AUTHENTICATING: silent_while_authenticating,
        }
        raise ConnectionFailed(silent[self.now](self._peer))


class _Attempt:
    """One attempt to connect."""

    def __init__(
        self,
        *,
        peer: Peer,
        security: Security,
        endpoint: IStreamClientEndpoint,
        handshakes: HandshakeFactory,
        version_requests: _VersionRequests,
        stages: _Stages,
    ) -> None:
        self._peer = peer
        self._security = security
        self._endpoint = endpoint
        self._handshakes = handshakes
        self._version_requests = version_requests
        self._stages = stages

    async def run(self, factory: IProtocolFactory) -> IProtocol:
        """
        Connect, do the handshake, and hand the connection over to afkak's protocol.

        :raise ConnectionFailed: a step failed.
        """
        connection = await self._connected()
        handed_over = False
        try:
            ranges, lifetime_ms = await self._handshake(connection)
            protocol = self._built(factory, connection)
            protocol.api_versions = ranges
            protocol.session_lifetime_ms = lifetime_ms
            connection.hand_over(protocol)
            handed_over = True
            return cast(IProtocol, protocol)
        finally:
            if not handed_over:
                connection.abort()

    async def _connected(self) -> HandshakeProtocol:
        self._stages.now = _Stage.CONNECTING
        try:
            return cast(HandshakeProtocol, await _cancellable(self._endpoint.connect(self._handshakes)))
        except (ConnectError, DNSLookupError, ValueError) as error:
            raise ConnectionFailed(diagnostics.not_connected(self._peer, error)) from error

    async def _handshake(self, connection: HandshakeProtocol) -> tuple[dict[int, tuple[int, int]], int]:
        try:
            if self._peer.tls:
                self._stages.now = _Stage.SECURING
                await connection.secured()
            self._stages.now = _Stage.ASKING
            ranges = await self._versions(connection)
            if self._peer.mechanism is None:
                return ranges, 0
            self._stages.now = _Stage.AUTHENTICATING
            return ranges, await authenticate(
                connection,
                peer=self._peer,
                mechanism=self._peer.mechanism,
                steps=self._security.sasl_steps(),
                ranges=ranges,
            )
        except NotKafka as error:
            raise ConnectionFailed(diagnostics.not_kafka(self._peer, error.received)) from error
        except ConnectionClosed as error:
            raise ConnectionFailed(self._closed(error)) from error

    async def _versions(self, connection: HandshakeProtocol) -> dict[int, tuple[int, int]]:
        request = self._version_requests.request
        sent = self._version_requests.first_version(self._peer)
        try:
            response = await connection.ask(request, version=sent)
        except ConnectionClosed:
            self._version_requests.note_closed(self._peer, sent)
            raise
        if response.error == ErrorCode.UNSUPPORTED_VERSION and sent != _LOWEST:
            known = negotiate(request.api, response.ranges)
            response = await connection.ask(request, version=_LOWEST if known is None else known)
        if response.error:
            raise ConnectionFailed(diagnostics.rejected_versions(self._peer, response.error))
        reason = diagnostics.not_usable(self._peer, response.ranges)
        if reason is not None:
            raise ConnectionFailed(reason)
        return response.ranges

    def _closed(self, closed: ConnectionClosed) -> FailureReason:
        reason = diagnostics.tls_failed(self._peer, closed.reason)
        if reason is not None:
            return reason
        if self._stages.now is _Stage.SECURING:
            return diagnostics.closed_while_securing(self._peer)
        if self._stages.now is _Stage.AUTHENTICATING:
            return closed_while_authenticating(self._peer)
        return diagnostics.closed(self._peer, closed.received)

    def _built(self, factory: IProtocolFactory, connection: HandshakeProtocol) -> Any:
        protocol = factory.buildProtocol(connection.transport.getPeer())
        if protocol is None:
            raise NoProtocol
        return protocol


def _cancellable(connecting: Deferred[T]) -> Deferred[T]:
    """
    Wrap a Deferred so that it fails with `CancelledError`, and nothing else, when it is cancelled.

    A cancelled `HostnameEndpoint` fails with `DNSLookupError` or another error, depending on its progress.
    """

    def cancel(waiting: Deferred[T]) -> None:
        waiting.errback(CancelledError())
        connecting.cancel()

    waiting: Deferred[T] = Deferred(cancel)

    def pass_on(result: T | Failure) -> None:
        if not waiting.called:
            waiting.callback(result)

    connecting.addBoth(pass_on)
    return waiting
