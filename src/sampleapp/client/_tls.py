"""TLS as a client of the web has it, but not for as long as the other side likes."""

# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IReactorTime
from twisted.python.failure import Failure
from twisted.web.client import BrowserLikePolicyForHTTPS
from twisted.web.iweb import IPolicyForHTTPS
from zope.interface import implementer

__all__ = ["HandshakeTimedOut", "TLSPolicy"]


class HandshakeTimedOut(Exception):
    """The TLS handshake was not over in time, so nothing of the request was sent."""


@implementer(IPolicyForHTTPS)
class TLSPolicy:
    """
    The certificates that this machine trusts, and a deadline for the handshake.

    A server that does not speak TLS may wait for the end of a line that a handshake does not have.
    """

    def __init__(self, *, reactor: IReactorTime, timeout_s: float) -> None:
        """:param timeout_s: seconds, from the connection to the end of the handshake."""
        self._policy = BrowserLikePolicyForHTTPS()
        self._reactor = reactor
        self._timeout_s = timeout_s

    def creatorForNetloc(self, hostname: bytes, port: int) -> _Creator:
        """See `IPolicyForHTTPS.creatorForNetloc`."""
        creator = self._policy.creatorForNetloc(hostname, port)
        return _Creator(creator, reactor=self._reactor, timeout_s=self._timeout_s)


@implementer(IOpenSSLClientConnectionCreator)
class _Creator:
    def __init__(self, creator: Any, *, reactor: IReactorTime, timeout_s: float) -> None:
        self._creator = creator
        self._reactor = reactor
        self._timeout_s = timeout_s

    def clientConnectionForTLS(self, tlsProtocol: Any) -> Any:  # noqa: N803 -- Twisted's name
        connection = self._creator.clientConnectionForTLS(tlsProtocol)

        def look() -> None:
            # The other side's Finished is what ends a handshake (RFC 8446, section 4.4.4).
            if tlsProtocol.connected and connection.get_peer_finished() is None:
                tlsProtocol.failVerification(Failure(HandshakeTimedOut()))

        self._reactor.callLater(self._timeout_s, look)
        return connection
