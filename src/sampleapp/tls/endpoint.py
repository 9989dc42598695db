"""
The endpoint ``https:``, which knows clients by their certificates, and takes renewed ones while it listens.

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

from sampleapp.tls.arguments import HTTPSArguments
from sampleapp.tls.callbacks import require_callbacks
from sampleapp.tls.context import server_context
from sampleapp.tls.credentials import Credentials, is_for_all_to_read
from sampleapp.tls.transport import TLSFactory

__all__ = ["HTTPSEndpoint"]

_LOG_INTERVAL_S: Final = 60.0
_LONGEST_NAME: Final = 200


@implementer(IStreamServerEndpoint, IOpenSSLContextFactory)
class HTTPSEndpoint:
    """
    Listens with TLS.

    It serves any protocol, but what is inside is nearly always HTTP, and ``tls`` is Twisted's.
    """

    _log = Logger()

    def __init__(self, reactor: Any, arguments: HTTPSArguments) -> None:
        """
        Read the files.

        :param reactor: listens, and tells the time.
        :raise StartUpError: they cannot be used.
        """
        self._reactor = reactor
        self._arguments = arguments
        self._protocols: Sequence[bytes] = ()
        self._refused = 0
        self._logged_s = -_LOG_INTERVAL_S
        self.on_refused: Callable[[], None] = _do_nothing
        """Is called for each client whose certificate was not taken, or was missing where one is required."""
        require_callbacks()
        self._credentials, self._context = self._read()
        if is_for_all_to_read(arguments.private_key):
            self._log.warn(
                "The file {path}, given with privateKey=, holds a secret, and every user of this machine may "
                "read it: take that right away (chmod o= {path}).",
                path=arguments.private_key,
            )

    @classmethod
    def from_arguments(cls, reactor: Any, *by_place: str, **by_name: str) -> HTTPSEndpoint:
        """
        Make it of what stands in a description (`twisted.internet.endpoints.serverFromString`).

        :raise StartUpError: the arguments, or the files, are not right.
        """
        return cls(reactor, HTTPSArguments.parse(by_place, by_name))

    @property
    def arguments(self) -> HTTPSArguments:
        """Where it listens, with which files."""
        return self._arguments

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that it needs."""
        return self._arguments.paths

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:  # noqa: N803 -- Twisted's
        """
        Take the port.

        :return: fires with the port, or fails with `twisted.internet.error.CannotListenError`.
        """
        if IProtocolNegotiationFactory.providedBy(protocolFactory):
            self._protocols = tuple(protocolFactory.acceptableProtocols())
            self._context = self._make_context(self._credentials)
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
        """Return what the next connection is made with."""
        return self._context

    def reload(self) -> None:
        """
        Read the files again, for the connections that come from now on.

        :raise StartUpError: they cannot be used; nothing has changed then.
        """
        self._credentials, self._context = self._read()

    def complaints(self, now: dt.datetime) -> list[str]:
        """
        Tell which certificates have to be renewed, in sentences.

        :param now: the time, with an offset.
        """
        return list(self._credentials.ends_soon(now))

    def _read(self) -> tuple[Credentials, SSL.Context]:
        arguments = self._arguments
        credentials = Credentials.read(
            private_key=arguments.private_key,
            certificate=arguments.certificate,
            extra_chain=arguments.extra_chain,
            client_ca=arguments.client_ca,
        )
        return credentials, self._make_context(credentials)

    def _make_context(self, credentials: Credentials) -> SSL.Context:
        return server_context(
            credentials,
            minimum=self._arguments.minimum,
            requires_client=self._arguments.requires_client,
            protocols=self._protocols,
            on_refused=self._client_refused,
        )

    def _client_refused(
        self, connection: SSL.Connection, reason: str, certificate: crypto.X509 | None
    ) -> None:
        """Count it; a client that tries again and again does not fill the log."""
        self.on_refused()
        self._refused += 1
        now_s = self._reactor.seconds()
        if now_s - self._logged_s < _LOG_INTERVAL_S:
            return
        self._logged_s = now_s
        self._log.warn(
            "Refused {count} TLS connection(s) for the certificate of the client; the last one, from {peer}: "
            "{reason}.{name}",
            count=self._refused,
            peer=_host(connection),
            reason=reason,
            name="" if certificate is None else f" It is for {_name(certificate)}.",
        )
        self._refused = 0


def _do_nothing() -> None:
    """Take no note of it."""


def _host(connection: SSL.Connection) -> str:
    # Twisted keeps the transport there.
    transport: Any = connection.get_app_data()
    address = transport.getPeer()
    return str(getattr(address, "host", address))


def _name(certificate: crypto.X509) -> str:
    """Return whom a certificate is for, as it says; nobody has vouched for that, nor for its characters."""
    try:
        name = certificate.to_cryptography().subject.rfc4514_string()
    except ValueError:
        return "somebody whose name cannot be read"
    return ascii(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")
