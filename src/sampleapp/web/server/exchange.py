"""Who asks, and what is known of one request and its answer to those who count and log them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from cryptography.x509 import Certificate
from msgspec import Struct
from OpenSSL import SSL
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress, ISSLTransport

from sampleapp.interfaces import IVerifiesClients
from sampleapp.web.answers import Answer
from sampleapp.web.server.head import Head

__all__ = ["Exchange", "FormRefusal", "OnAnswer", "Peer"]


class Peer:
    """The other end of a connection."""

    __slots__ = ("_certificate", "_host", "_transport")

    def __init__(self, transport: Any) -> None:
        """:param transport: of the connection; ``None`` if there is none to ask."""
        self._transport = transport
        self._host: str | None = None
        # In a tuple once it is known, since it may be none.
        self._certificate: tuple[Certificate | None] | None = None

    @property
    def address(self) -> IAddress | None:
        """Where the client is."""
        address: IAddress | None = None if self._transport is None else self._transport.getPeer()
        return address

    @property
    def host(self) -> str:
        """The address of the client without its port, for people; empty for a Unix socket."""
        if self._host is None:
            address: Any = self.address
            self._host = address.host if isinstance(address, IPv4Address | IPv6Address) else ""
        return self._host

    def certificate(self) -> Certificate | None:
        """
        Return the client's certificate, which was verified when the connection was opened.

        It may have ended since.

        :return: ``None`` if the endpoint is none with ``clientCA=``, or the client has shown none.
        """
        if self._certificate is None:
            self._certificate = (_certificate_of(self._transport),)
        return self._certificate[0]


def _certificate_of(transport: Any) -> Certificate | None:
    transport_with_tls: Any = transport if ISSLTransport.providedBy(transport) else None
    connection = None if transport_with_tls is None else transport_with_tls.getHandle()
    # Elsewhere, nobody knows whether a certificate was verified.
    if isinstance(connection, SSL.Connection) and IVerifiesClients.providedBy(
        connection.get_context().get_app_data()
    ):
        return connection.get_peer_certificate(as_cryptography=True)
    return None


class Exchange(Struct, gc=False):
    """One request and its answer."""

    peer: Peer
    request_id: bytes
    """By which the request is known (``X-Request-Id``): the client's own id, or a new one."""
    started_s: float
    """When the head was whole, or was refused: seconds since the epoch."""
    head: Head | None = None
    """``None`` if it was not understood."""
    route: str = ""
    """The path of the route that was found, as it was declared; empty if there is none."""
    caller: str = ""
    """The name of the caller; empty if nobody was asked for it, or it is not known."""


FormRefusal: TypeAlias = Callable[[Answer, Head], Answer]
"""Gives an answer that tells of a problem the form in which its client reads problems. It must not raise."""

OnAnswer: TypeAlias = Callable[[Exchange, Answer], None]
"""Is told of each answer, once, when it is decided. It must not raise, and costs each request its time."""
