"""
HTTPS as a client: an agent that verifies servers and limits the handshake, and answers up to a limit.

Twisted's HTTP client has no limits of this kind. A server chooses the length of its head, the number of
interim (1xx) answers in front of it, and the chunks in which a body comes.
"""
# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from functools import partial
from io import BytesIO
from operator import attrgetter
from typing import Any, Final

from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IDelayedCall,
    IOpenSSLClientConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IPolicyForHTTPS, IResponse
from zope.interface import implementer

from sampleapp.outgoing.verified_tls import VerifiedConnections, client_context

# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names


MAX_HEAD: Final = 16 * 1024
"""Bytes of a response before its body, interim answers included."""
MAX_INTERIM: Final = 10
"""Interim answers before a response. Twisted logs each of them."""
_SLICE: Final = 4 * 1024
"""Bytes that are parsed in one turn of the reactor: about 3 ms, if each chunk has one byte."""
_CLOSE_S: Final = 5.0
"""Seconds for a server to close its side of a TLS connection."""
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")


class HeadTooLong(Exception):
    """The head of a response is over a limit. Its connection is closed."""

    def __init__(self) -> None:
        super().__init__(f"a head of more than {MAX_HEAD} bytes, or more than {MAX_INTERIM} interim answers")


class BoundedPool(HTTPConnectionPool):
    """A pool whose connections limit the responses of servers."""

    def __init__(self, reactor: Any, *, persistent: bool = True) -> None:
        """:param persistent: True to keep connections for later requests."""
        HTTPConnectionPool.__init__(self, reactor, persistent)
        self._clock = reactor

    def getConnection(self, key: Hashable, endpoint: IStreamClientEndpoint) -> Deferred[Any]:
        """See `HTTPConnectionPool.getConnection`."""
        return super().getConnection(key, _BoundedEndpoint(endpoint, clock=self._clock))

    def _putConnection(self, key: Hashable, connection: Any) -> None:
        """Keep a connection for another request, unless bytes are left that would seem to be its response."""
        if connection.transport.has_unread:
            connection.transport.loseConnection()
        else:
            super()._putConnection(key, connection)  # type: ignore[no-untyped-call]  # Twisted's


@implementer(IStreamClientEndpoint)
class _BoundedEndpoint:
    """An endpoint whose connections limit the responses of the server."""

    def __init__(self, endpoint: IStreamClientEndpoint, *, clock: IReactorTime) -> None:
        """
        :param endpoint: makes the connections.
        :param clock: the reactor.
        """
        self._endpoint = endpoint
        self._clock = clock

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:  # noqa: N803 -- Twisted's name
        """Connect a protocol of Twisted's HTTP client; see `IStreamClientEndpoint.connect`."""
        factory: WrappingFactory[Any] = WrappingFactory(protocolFactory)
        factory.noisy = False
        factory.protocol = partial(_Connection, clock=self._clock)
        connecting: Deferred[Any] = self._endpoint.connect(factory)
        return connecting.addCallback(attrgetter("wrappedProtocol"))


class _Connection(ProtocolWrapper):
    """
    Passes on received bytes, one slice in each turn of the reactor.

    The protocol pauses its transport at the end of a head, and resumes it when it wants the body, or when the
    response is over. So a head is expected from each request until then.
    """

    transport: Any

    def __init__(self, factory: WrappingFactory[Any], wrapped: IProtocol, *, clock: IReactorTime) -> None:
        """:param clock: the reactor."""
        super().__init__(factory, wrapped)
        self._clock = clock
        self._data = b""
        self._is_wanted = True
        self._is_transport_paused = False
        self._next_slice: IDelayedCall | None = None
        self._closing: IDelayedCall | None = None
        self._lost: Failure | None = None
        self._fault: Failure | None = None
        self._expect_head()

    @property
    def has_unread(self) -> bool:
        """True if bytes have come that are not passed on yet."""
        return bool(self._data)

    def _expect_head(self) -> None:
        self._is_head = True
        self._head_bytes = self._heads = 0
        self._end = b""

    def write(self, data: bytes) -> None:
        """Write a request, or a part of one."""
        self._expect_head()
        self.transport.write(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Write a request, or a part of one."""
        self._expect_head()
        self.transport.writeSequence(data)

    def dataReceived(self, data: bytes) -> None:
        """Pass on the first slice, and the others later."""
        if self._closing is None:
            self._data += data
            if self._next_slice is None and self._is_wanted:
                self._pass_on()

    def _pass_on(self) -> None:
        self._next_slice = None
        data = self._data[:_SLICE]
        if self._is_head:
            data = self._of_head(data)
            if self._head_bytes > MAX_HEAD or self._heads > 1 + MAX_INTERIM:
                self._fault = Failure(HeadTooLong())
                self.abortConnection()
                if self._lost is not None:
                    # The transport has ended before, and does not say so again.
                    self._end_protocol(self._fault)
                return
        self._data = self._data[len(data) :]
        self.wrappedProtocol.dataReceived(data)
        self._continue()

    def _of_head(self, data: bytes) -> bytes:
        """Return the data up to the end of a head: it may be followed by the body, or by another head."""
        found = _END_OF_HEAD.search(self._end + data)
        if found is not None:
            data = data[: found.end() - len(self._end)]
            self._heads += 1
        self._end = b"" if found else (self._end + data)[-2:]
        self._head_bytes += len(data)
        return data

    def _continue(self) -> None:
        if not self._is_wanted or self._data:
            self._pause_transport()
            if self._is_wanted and self._next_slice is None:
                self._next_slice = self._clock.callLater(0, self._pass_on)
        elif self._lost is not None:
            self._end_protocol(self._lost)
        elif self._is_transport_paused:
            self._is_transport_paused = False
            self.transport.resumeProducing()

    def _pause_transport(self) -> None:
        if not self._is_transport_paused and self._lost is None:
            self._is_transport_paused = True
            self.transport.pauseProducing()

    def pauseProducing(self) -> None:
        """Pass on nothing for now."""
        self._is_head = self._is_wanted = False
        self._drop_timer()
        self._pause_transport()

    def resumeProducing(self) -> None:
        """Pass on received bytes again."""
        self._is_head, self._is_wanted = False, True
        self._continue()

    def loseConnection(self) -> None:
        """Close the connection, and drop received bytes."""
        self._drop()
        if self._closing is None and self._lost is None:
            self._closing = self._clock.callLater(_CLOSE_S, self.abortConnection)
        self.disconnecting = 1
        self.transport.loseConnection()

    def abortConnection(self) -> None:
        """Close the connection at once, and drop received bytes."""
        self._drop()
        self.transport.abortConnection()

    def _drop(self) -> None:
        self._data = b""
        self._drop_timer()

    def _drop_timer(self) -> None:
        if self._next_slice is not None:
            self._next_slice.cancel()
            self._next_slice = None

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End, once all that has come is passed on."""
        if self._closing is not None and self._closing.active():
            self._closing.cancel()
        self._lost = reason if self._fault is None else self._fault
        if not self._data:
            self._end_protocol(self._lost)

    def _end_protocol(self, reason: Failure) -> None:
        super().connectionLost(reason)  # type: ignore[no-untyped-call]  # Twisted's


# ruff: noqa: N802 -- methods that Twisted calls have Twisted's names


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
    limits its responses.

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
        return _TimedConnection(connection, timer)


class _TimedConnection:
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
