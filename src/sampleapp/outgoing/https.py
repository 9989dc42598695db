"""HTTPS as a client: an agent that verifies servers and limits the handshake, and bodies up to a limit."""

# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names

from __future__ import annotations

from io import BytesIO
from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IOpenSSLClientConnectionCreator, IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IPolicyForHTTPS, IResponse
from zope.interface import implementer

from sampleapp.outgoing.bounded import BoundedPool
from sampleapp.outgoing.verified_tls import VerifiedConnections, client_context


class BodyTooLong(Exception):
    """A body is longer than the limit. It is dropped, and its connection closed."""


def read_body(response: IResponse, *, max_bytes: int, until_closed: bool = True) -> Deferred[bytes]:
    """
    Read the body of a response.

    :param max_bytes: the maximum length after decoding.
    :param until_closed: True to accept a body that only the end of the connection ends (RFC 9112, section
        6.3). It may be cut off; the caller must check.
    :return: fires with the body. Fails with `BodyTooLong`, or with the error that ended the connection:
        `twisted.web.http.PotentialDataLoss` without ``until_closed``. Cancelling it closes the connection,
        which neither treq's collector nor `twisted.web.client.readBody` does.
    """
    body = _Body(max_bytes, (ResponseDone, PotentialDataLoss) if until_closed else (ResponseDone,))
    response.deliverBody(body)
    return body.done


class _Body(Protocol):
    """Collects a body."""

    def __init__(self, max_bytes: int, ends: tuple[type[Exception], ...]) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._max_bytes = max_bytes
        self._ends = ends
        # Not a list: chunks may have one byte each.
        self._content = BytesIO()
        self._size = 0

    def dataReceived(self, data: bytes) -> None:
        """Add a chunk."""
        self._size += len(data)
        if self._size <= self._max_bytes:
            self._content.write(data)
        elif not self.done.called:
            self._content = BytesIO()
            self.done.errback(BodyTooLong())
            self._abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Finish: the body, not necessarily the connection, has ended."""
        if self.done.called:
            return
        if isinstance(reason.value, self._ends):
            self.done.callback(self._content.getvalue())
        else:
            self.done.errback(reason)

    def _abort(self) -> None:
        # Not abortConnection, which the transport of a body does not have.
        if self.transport is not None:
            self.transport.loseConnection()


def make_agent(
    reactor: Any,
    *,
    connect_timeout_s: float,
    pool: BoundedPool | None = None,
    context: SSL.Context | None = None,
) -> Agent:
    """
    Make an agent for HTTP and HTTPS that follows no redirects, uses no proxy, verifies each server, and
    limits its responses; see `sampleapp.outgoing.bounded`.

    :param reactor: for connections and the time.
    :param connect_timeout_s: seconds for a connection, and again for its TLS handshake.
    :param pool: keeps connections for later requests; ``None`` for none.
    :param context: from `client_context`, with a client certificate; ``None`` for none.
    """
    return Agent(
        reactor,
        contextFactory=TLSPolicy(reactor=reactor, timeout_s=connect_timeout_s, context=context),
        connectTimeout=connect_timeout_s,
        pool=BoundedPool(reactor, persistent=False) if pool is None else pool,
    )


class HandshakeTimedOut(Exception):
    """The TLS handshake did not end in time, so nothing of the request was sent."""


@implementer(IPolicyForHTTPS)
class TLSPolicy:
    """
    Verified connections, with a deadline for the handshake.

    Without a context, the trusted authorities are those of this machine when the first connection is made. A
    server without TLS may wait for the end of a line for ever, so the handshake has a deadline.
    """

    def __init__(
        self, *, reactor: IReactorTime, timeout_s: float, context: SSL.Context | None = None
    ) -> None:
        """
        :param timeout_s: seconds, from the connection to the end of the handshake.
        :param context: see `make_agent`.
        """
        self._context = context
        self._reactor = reactor
        self._timeout_s = timeout_s

    def creatorForNetloc(self, hostname: bytes, port: int) -> _Creator:  # noqa: ARG002 -- a certificate has no port
        """See `IPolicyForHTTPS.creatorForNetloc`."""
        if self._context is None:
            self._context = client_context()
        creator = VerifiedConnections(self._context, hostname.decode("ascii"))
        return _Creator(creator, reactor=self._reactor, timeout_s=self._timeout_s)


@implementer(IOpenSSLClientConnectionCreator)
class _Creator:
    def __init__(self, creator: VerifiedConnections, *, reactor: IReactorTime, timeout_s: float) -> None:
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

    Twisted reports the end of a handshake only to protocols with `IHandshakeListener`, which those of its
    HTTP client do not have.
    """

    def __init__(self, connection: Any, timer: IDelayedCall) -> None:
        """:param timer: aborts the handshake."""
        self._connection = connection
        self._timer = timer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def do_handshake(self) -> None:
        """Continue the handshake; it has ended unless it needs more data from the server."""
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            raise
        except Exception:
            self._end_timer()
            raise
        self._end_timer()

    def bio_shutdown(self) -> None:
        """Handle the end of the connection."""
        self._end_timer()
        self._connection.bio_shutdown()

    def _end_timer(self) -> None:
        if self._timer.active():
            self._timer.cancel()
