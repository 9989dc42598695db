"""A request, as handlers get it; its client, and the record of it for metrics and the access log."""

from __future__ import annotations

import os
from collections.abc import Callable
from ipaddress import IPv6Address as IPv6AddressValue
from ipaddress import ip_address
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

from cryptography.x509 import Certificate
from msgspec import Struct
from OpenSSL import SSL
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress, ISSLTransport

from sampleapp.interfaces import IVerifiesClients
from sampleapp.web.responses import Response
from sampleapp.web.server.body import MemoryReservation
from sampleapp.web.server.fields import Fields
from sampleapp.web.server.head import Head

_RANDOM_BYTES: Final = 8


def new_request_ids() -> Callable[[], bytes]:
    """
    Make a function that returns a new id at each call: 64 random bits, which stay the same, and a number.

    The random bits distinguish processes, and runs of one process. An id is not a secret: a client
    that has seen one can guess the next.
    """
    start = os.urandom(_RANDOM_BYTES).hex().encode("ascii") + b"-"
    numbers = count(1)
    return lambda: start + b"%d" % next(numbers)


def is_on_loopback(address: Any) -> bool:
    """
    Return whether only this machine can use an address: loopback, or a Unix socket.

    :param address: of an endpoint or of a client: an `IAddress` of Twisted, or ``None``.
    """
    if not isinstance(address, IPv4Address | IPv6Address):
        return isinstance(address, UNIXAddress)
    ip = ip_address(address.host.partition("%")[0])
    # An endpoint for IPv6 may take IPv4 as well (RFC 4291, section 2.5.5.2).
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6AddressValue) else None
    return (mapped or ip).is_loopback


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


SAFE: Final = (b"GET", b"HEAD")
"""Methods that only read, and so wait for nothing (RFC 9110, section 9.2.1)."""


class Charge(Protocol):
    """Charges the bytes of one body to the rate of its caller."""

    def add(self, length: int) -> None:
        """Charge bytes that have arrived now, unless they were charged in advance."""

    def charge_up_to(self, length: int) -> None:
        """Charge a body up to a length, in bytes: its present size, encoded or decoded."""

    def require_room(self) -> None:
        """
        Check that more of the body may be read.

        :raise SampleAppError: the caller is over its rate.
        """

    def end(self) -> None:
        """Refund the bytes that were charged and have not arrived."""


class Request(Struct, gc=False):
    """One HTTP request."""

    method: bytes
    path: bytes
    """As it was sent: percent-encoded, without the query. ``*`` for the server as a whole."""
    query: bytes
    """As it was sent, without the question mark."""
    fields: Fields
    exchange: Exchange
    body: bytes = b""
    """Empty until the handler is called."""
    caller: Any = None
    """
    The authenticated caller, as the dispatch has found it; the server does not use it.

    ``None`` if no credentials are needed, so that everything is allowed.
    """
    max_body: int | None = None
    """The greatest length of the body, in bytes, set by the dispatch; ``None`` for the server's own limit."""
    is_body_wanted: bool = True
    """False if the body has no meaning, as with GET (RFC 9110, section 9.3.1): then it is not kept."""
    needs_length: bool = True
    """False if a ``POST`` that does not declare a body has none; set by the dispatch."""
    ends_with_client: bool = False
    """
    True if the work of the handler is useless once the client has gone: then its Deferred is cancelled.

    Set by the dispatch, for requests that only read. They do not count among those that wait for the broker.
    """
    client_has_finished: bool = False
    """True once the client has closed its side: it may have gone, or may still want the response."""
    end_wait: Callable[[], None] | None = None
    """
    Set by a handler while it waits for something that may take long, and could answer at once.

    Called when the client closes its side of the connection.
    """
    checked: Any = None
    """The result of the route's `check_head`, for its handler."""
    verify_body: Callable[[Request, bytes], None] | None = None
    """
    Verifies the body as it was sent, before it is decoded; set by the dispatch.

    It raises a `SampleAppError` for a body that is rejected. If the body does not come compressed, the
    handler calls it.
    """
    charge: Charge | None = None
    """Charges the bytes of the body; ``None`` if its caller has no rate."""
    reservation: MemoryReservation | None = None
    """
    The memory for the body. A handler that makes much more of the body reserves memory for that, too.

    It is released with the response. ``None`` if it is not counted.
    """


Handler: TypeAlias = Callable[[Request], "Response | Deferred[Response]"]
"""Answers a request whose body is whole. An error that it raises, or fails with, becomes a response."""

Dispatch: TypeAlias = Callable[[Request], "Response | Handler"]
"""
Chooses a handler for a request by its head, or answers the request without its body.

An error that it raises becomes a response.
"""
