"""A TLS transport that lets a client read the alert of a failed handshake."""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.interfaces import IDelayedCall, IProtocolFactory, IReactorTime
from twisted.internet.protocol import connectionDone
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory
from twisted.python.failure import Failure

from sampleapp.errors import forget_frames

__all__ = ["TLSFactory"]

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
