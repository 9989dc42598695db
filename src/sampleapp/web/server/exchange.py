"""The client of a connection, and a record of one request and its response for metrics and the access log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from cryptography.x509 import Certificate
from msgspec import Struct
from OpenSSL import SSL
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress, ISSLTransport

from sampleapp.interfaces import IVerifiesClients
from sampleapp.web.responses import Response
from sampleapp.web.server.head import Head

__all__ = ["Exchange", "ExtendResponse", "FormRejection", "OnResponse", "Peer"]


class Peer:
    """The other end of a connection."""

    __slots__ = ("_certificate", "_host", "_transport")

    def __init__(self, transport: Any) -> None:
        """:param transport: of the connection; ``None`` if it has none."""
        self._transport = transport
        self._host: str | None = None
        # In a tuple once it is known, since the client may have none.
        self._certificate: tuple[Certificate | None] | None = None

    @property
    def address(self) -> IAddress | None:
        """The address of the client."""
        address: IAddress | None = None if self._transport is None else self._transport.getPeer()
        return address

    @property
    def host(self) -> str:
        """The client's address without its port, for logs; empty for a Unix socket."""
        if self._host is None:
            address: Any = self.address
            self._host = address.host if isinstance(address, IPv4Address | IPv6Address) else ""
        return self._host

    def certificate(self) -> Certificate | None:
        """
        Return the client's certificate, which was verified when the connection was opened.

        It may have expired since.

        :return: ``None`` if the endpoint has no ``clientCA=``, or the client has shown no certificate.
        """
        if self._certificate is None:
            self._certificate = (_certificate_of(self._transport),)
        return self._certificate[0]


def _certificate_of(transport: Any) -> Certificate | None:
    transport_with_tls: Any = transport if ISSLTransport.providedBy(transport) else None
    connection = None if transport_with_tls is None else transport_with_tls.getHandle()
    # With any other context it is unknown whether the certificate was verified.
    if isinstance(connection, SSL.Connection) and IVerifiesClients.providedBy(
        connection.get_context().get_app_data()
    ):
        return connection.get_peer_certificate(as_cryptography=True)
    return None


class Exchange(Struct, gc=False):
    """One request and its response."""

    peer: Peer
    request_id: bytes
    """The id of the request (``X-Request-Id``): the client's own id, or a new one."""
    started_s: float
    """The end of the head, or its rejection: seconds of the server's clock, not the time of day."""
    head: Head | None = None
    """``None`` if it was not understood."""
    route: str = ""
    """The path of the route, as in OpenAPI (``/topics/{topic}``); empty if no route was found."""
    caller: str = ""
    """The name of the caller; empty if no credentials are needed, or the caller is not known."""


FormRejection: TypeAlias = Callable[[Response, Head], Response]
"""Converts a response with a problem into the form that its client reads. It must not raise."""

ExtendResponse: TypeAlias = Callable[[Response, Head | None], Response]
"""
Adds header fields to a response before it is sent. It must not raise.

The head is ``None`` if it was not understood.
"""

OnResponse: TypeAlias = Callable[[Exchange, Response], None]
"""Called once for each response, before it is sent. It must not raise; its time is part of every request."""
