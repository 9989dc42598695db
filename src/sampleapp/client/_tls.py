"""TLS as a client of the web has it, but not for as long as the other side likes."""

# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names

from __future__ import annotations

from typing import Any

from OpenSSL.SSL import WantReadError
from twisted.internet.interfaces import IDelayedCall, IOpenSSLClientConnectionCreator, IReactorTime
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
        timer = self._reactor.callLater(
            self._timeout_s, lambda: tlsProtocol.failVerification(Failure(HandshakeTimedOut()))
        )
        return _Connection(connection, timer)


class _Connection:
    """
    An `OpenSSL.SSL.Connection` whose timer ends with its handshake.

    Twisted tells only protocols that ask for it (`IHandshakeListener`) of the end of a handshake, and those
    of its HTTP client do not ask.
    """

    def __init__(self, connection: Any, timer: IDelayedCall) -> None:
        """:param timer: gives the handshake up."""
        self._connection = connection
        self._timer = timer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def do_handshake(self) -> None:
        """Go on with the handshake; it is over unless it needs more from the other side."""
        try:
            self._connection.do_handshake()
        except WantReadError:
            raise
        except Exception:
            self._end_timer()
            raise
        self._end_timer()

    def bio_shutdown(self) -> None:
        """Take in that the connection was lost."""
        self._end_timer()
        self._connection.bio_shutdown()

    def _end_timer(self) -> None:
        if self._timer.active():
            self._timer.cancel()
