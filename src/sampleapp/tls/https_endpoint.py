"""
The endpoint ``https:``, which verifies certificates of clients, and reloads its own while it listens.

Twisted's own ``ssl:`` and ``tls:`` cannot ask clients for certificates.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, Final

from OpenSSL import SSL, crypto
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import (
    IListeningPort,
    IOpenSSLContextFactory,
    IProtocolFactory,
    IProtocolNegotiationFactory,
    IStreamServerEndpoint,
)
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.tls.certificates import READABLE_KEY, Certificates, is_for_all_to_read, require_unwritable
from sampleapp.tls.https_arguments import HTTPSArguments
from sampleapp.tls.openssl_callbacks import require_callbacks
from sampleapp.tls.server_context import server_context
from sampleapp.tls.transport import TLSFactory

__all__ = ["HTTPSEndpoint"]

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
        self._rejected = 0
        self._logged_s = -_LOG_INTERVAL_S
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
        """Count a rejected client; log at most one line a minute."""
        self.on_rejected()
        self._rejected += 1
        now_s = self._reactor.seconds()
        if now_s - self._logged_s < _LOG_INTERVAL_S:
            return
        self._logged_s = now_s
        self._log.warn(
            "Rejected the client certificates of {count} TLS connection(s). The last one, from {peer}: "
            "{reason}.{name}",
            count=self._rejected,
            peer=_host(connection),
            reason=reason,
            name="" if certificate is None else f" It names its holder {_name(certificate)}.",
        )
        self._rejected = 0


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
