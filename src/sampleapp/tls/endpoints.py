"""
The endpoint ``https:``, checks for Twisted's ``ssl:``, and warnings about certificates that expire.

``https:`` verifies certificates of clients, and reloads its own while it listens. Twisted's own ``ssl:`` and
``tls:`` cannot ask clients for certificates.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from OpenSSL import SSL, crypto
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import (
    IDelayedCall,
    IListeningPort,
    IOpenSSLContextFactory,
    IProtocolFactory,
    IProtocolNegotiationFactory,
    IReactorTime,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.errors import forget_frames
from sampleapp.tls.certificates import READABLE_KEY, Certificates, is_for_all_to_read, require_unwritable
from sampleapp.tls.https_arguments import HTTPSArguments
from sampleapp.tls.server_context import require_callbacks, server_context

_LOG_INTERVAL_S: Final = 60.0
_LONGEST_NAME: Final = 200


@implementer(IStreamServerEndpoint, IOpenSSLContextFactory)
class HTTPSEndpoint:
    """
    Listens with TLS.

    It serves any protocol, but that is nearly always HTTP, and the name ``tls`` is taken by Twisted.
    """

    _log = Logger()

    def __init__(self, reactor: Any, arguments: HTTPSArguments) -> None:
        """
        Read the files.

        :param reactor: listens, and has the clock.
        :raise StartUpError: a file cannot be used.
        """
        self._reactor = reactor
        self._arguments = arguments
        self._protocols: Sequence[bytes] = ()
        self._rejected: Counter[str] = Counter()
        """The rejected clients by reason, since the last line about each."""
        self._logged_s: dict[str, float] = {}
        self.on_rejected: Callable[[], None] = _do_nothing
        """Called for each client whose certificate is rejected, or missing but required."""
        require_callbacks()
        self._certificates, self._context = self._read()
        if is_for_all_to_read(arguments.private_key):
            self._log.warn(READABLE_KEY, path=arguments.private_key)

    @classmethod
    def from_arguments(cls, reactor: Any, *by_place: str, **by_name: str) -> HTTPSEndpoint:
        """
        Make an endpoint from the arguments of `twisted.internet.endpoints.serverFromString`.

        :raise StartUpError: an argument or a file is invalid.
        """
        return cls(reactor, HTTPSArguments.parse(by_place, by_name))

    @property
    def arguments(self) -> HTTPSArguments:
        """The parsed arguments."""
        return self._arguments

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of its files."""
        return self._arguments.paths

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:  # noqa: N803 -- Twisted's
        """
        Take the port.

        :return: fires with the port, or fails with `twisted.internet.error.CannotListenError`.
        """
        if IProtocolNegotiationFactory.providedBy(protocolFactory):
            self._protocols = tuple(protocolFactory.acceptableProtocols())
            self._context = self._make_context(self._certificates)
        arguments = self._arguments
        listening: Deferred[IListeningPort] = maybeDeferred(
            self._reactor.listenTCP,
            arguments.port,
            TLSFactory(self, protocolFactory, clock=self._reactor),
            backlog=arguments.backlog,
            interface=arguments.interface,
        )
        return listening

    def getContext(self) -> SSL.Context:  # noqa: N802 -- Twisted's name
        """Return the context for the next connection."""
        return self._context

    def reload(self) -> None:
        """
        Read the files again, for new connections.

        :raise StartUpError: a file cannot be used; then nothing has changed.
        """
        self._certificates, self._context = self._read()

    def expiry_warnings(self, now: dt.datetime) -> list[str]:
        """
        Return a sentence for each certificate that must be renewed.

        :param now: the time, with an offset.
        """
        return list(self._certificates.expiry_warnings(now))

    def _read(self) -> tuple[Certificates, SSL.Context]:
        arguments = self._arguments
        require_unwritable(arguments.paths)
        certificates = Certificates.read(
            private_key=arguments.private_key,
            certificate=arguments.certificate,
            extra_chain=arguments.extra_chain,
            client_ca=arguments.client_ca,
        )
        return certificates, self._make_context(certificates)

    def _make_context(self, certificates: Certificates) -> SSL.Context:
        return server_context(
            certificates,
            minimum=self._arguments.minimum,
            requires_client=self._arguments.requires_client,
            protocols=self._protocols,
            on_rejected=self._client_rejected,
        )

    def _client_rejected(
        self, connection: SSL.Connection, reason: str, certificate: crypto.X509 | None
    ) -> None:
        """Count a rejected client; log at most one line a minute for each reason."""
        self.on_rejected()
        self._rejected[reason] += 1
        now_s = self._reactor.seconds()
        if now_s - self._logged_s.get(reason, -_LOG_INTERVAL_S) < _LOG_INTERVAL_S:
            return
        self._logged_s[reason] = now_s
        self._log.warn(
            "Rejected the client certificates of {count} TLS connection(s). The last one, from {peer}: "
            "{reason}.{name}",
            count=self._rejected.pop(reason),
            peer=_host(connection),
            reason=reason,
            name="" if certificate is None else f" It names its holder {_name(certificate)}.",
        )


def _do_nothing() -> None:
    """Ignore the event."""


def _host(connection: SSL.Connection) -> str:
    # Twisted stores the transport there.
    transport: Any = connection.get_app_data()
    address = transport.getPeer()
    return str(getattr(address, "host", address))


def _name(certificate: crypto.X509) -> str:
    """Return the name in a certificate that was not verified: escaped and shortened."""
    try:
        name = certificate.to_cryptography().subject.rfc4514_string()
    except ValueError:
        return "(unreadable)"
    return ascii(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")


_log: Final = Logger()


def check_ssl_endpoint(argument: Callable[[str], str | None]) -> None:
    """
    Check the files of an ``ssl:`` endpoint, and log that they are not reloaded.

    Twisted's messages about them do not name the file, and it asks a terminal for the password of an
    encrypted key.

    :param argument: the value of an argument of the endpoint by its name, if it is given.
    :raise StartUpError: a file cannot be used.
    """
    private_key = argument("privateKey") or "server.pem"
    certificate = argument("certKey") or private_key
    chain = argument("extraCertChain")
    require_unwritable([private_key, certificate, *([chain] if chain else ())])
    Certificates.read(private_key=private_key, certificate=certificate, extra_chain=chain)
    if is_for_all_to_read(private_key):
        _log.warn(READABLE_KEY, path=private_key)
    _log.info(
        "The endpoint ssl:{port} does not reload its certificate: restart the service when it is renewed, or "
        "use https: instead of ssl:, which reloads it.",
        port=argument("port"),
    )


_LINGER_S: Final = 2.0


class _HalfClosing:
    """A transport that only closes its writing side."""

    def __init__(self, transport: Any) -> None:
        self.write = transport.write
        self.loseConnection = transport.loseWriteConnection


class _TLSTransport(BufferingTLSTransport):
    """
    Keeps a connection for a moment after its handshake has failed.

    With TLS 1.3 a client sends its request together with its certificate. If the socket were closed at once,
    the system would answer that data with a reset, which can overtake the alert (RFC 8446, section 6.2): the
    client would not learn that its certificate was rejected.
    """

    factory: TLSFactory
    _lingering: IDelayedCall | None = None
    _is_gone = False

    def _tlsShutdownFinished(self, reason: Failure | None) -> None:  # noqa: N802 -- Twisted's name
        if reason is not None:
            reason.tb = None
            forget_frames(reason.value)
        if reason is None or self._handshakeDone or self._is_gone:
            super()._tlsShutdownFinished(reason)
            return
        transport: Any = self.transport
        half_closing: Any = _HalfClosing(transport)
        self.transport = half_closing
        try:
            super()._tlsShutdownFinished(reason)
        finally:
            self.transport = transport
        self._lingering = self.factory.clock.callLater(_LINGER_S, transport.abortConnection)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 -- Twisted's name
        """Handle data, or drop it after a failed handshake."""
        if self._lingering is None:
            super().dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 -- Twisted's name
        """Handle the end of the connection."""
        self._is_gone = True
        lingering = self._lingering
        if lingering is not None and lingering.active():
            lingering.cancel()
        # It refers to this transport. Later, there would be no TLS connection to be shut down.
        self.unregisterProducer()
        super().connectionLost(reason)


class TLSFactory(TLSMemoryBIOFactory):
    """Wraps the protocols of a factory in TLS."""

    protocol = _TLSTransport

    def __init__(self, context_factory: Any, factory: IProtocolFactory, *, clock: IReactorTime) -> None:
        """
        :param context_factory: a `twisted.internet.interfaces.IOpenSSLContextFactory`.
        :param factory: makes the wrapped protocols.
        """
        super().__init__(context_factory, isClient=False, wrappedFactory=factory, clock=clock)
        self.clock = clock


_INTERVAL_S: Final = 24 * 60 * 60.0


class ExpiryWatch:
    """Logs warnings about certificates, at once and each day."""

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        warnings: Callable[[dt.datetime], Iterable[str]],
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        :param clock: schedules the next check.
        :param warnings: returns the sentences to log at a time (with an offset).
        :param now: the time of day, in seconds since the epoch.
        """
        self._clock = clock
        self._now = now
        self._warnings = warnings
        self._next: IDelayedCall | None = None

    def check(self) -> None:
        """Log the current warnings, and again each day until `stop`."""
        self.stop()
        self._next = self._clock.callLater(_INTERVAL_S, self.check)
        for sentence in self._warnings(dt.datetime.fromtimestamp(self._now(), dt.UTC)):
            self._log.warn("{sentence}", sentence=sentence)

    def stop(self) -> None:
        """Stop checking."""
        waiting, self._next = self._next, None
        if waiting is not None and waiting.active():
            waiting.cancel()
