"""The frames of one connection: answers are assembled as data arrives, requests are written at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final, TypeAlias

from twisted.internet.interfaces import IPullProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.tcp import Connection as TCPConnection
from twisted.python.failure import Failure
from zope.interface import implementer

__all__ = ["ApiRanges", "FrameProtocol"]

ApiRanges: TypeAlias = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each API that a broker supports, by API key."""

_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
"""The longest answer that is accepted: well above the size that a Fetch asks for."""
_LENGTH: Final = Struct(">i")
_LENGTH_BYTES: Final = _LENGTH.size


@implementer(IPullProducer)
class FrameProtocol(Protocol):
    """
    Frames, each preceded by its length.

    Its factory is a `sampleapp.brokers.kafka.cluster_client.broker_connection.BrokerConnection`.
    """

    api_versions: ApiRanges
    factory: Any
    session_lifetime_ms: int
    transport: Any
    has_responded = False
    """True if a response has come since the handshake."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._awaited = 0
        self._send_some: Callable[[bytes], int] | None = None
        self._unwritten: list[bytes] = []
        self._is_full = False

    def connectionMade(self) -> None:  # noqa: N802 -- Twisted's name
        """See `IProtocol.connectionMade`."""
        if isinstance(self.transport, TCPConnection) and not self.transport.TLS:
            self._send_some = self.transport.getHandle().send

    def send(self, frame: bytes) -> None:
        """
        Write a request.

        :param frame: without its length.
        """
        data = _LENGTH.pack(len(frame)) + frame
        if self._send_some is None:
            self.transport.write(data)
        elif self._is_full:
            self._unwritten.append(data)
        else:
            # Twisted would write in the next turn of the reactor, with two more system calls.
            try:
                sent = self._send_some(data)
            except OSError:
                # The socket is full; if the connection is lost, the reactor will notice on writing.
                sent = 0
            if sent != len(data):
                self._write_later(data[sent:])

    def _write_later(self, data: bytes) -> None:
        self._is_full = True
        self._unwritten.append(data)
        self.transport.registerProducer(self, streaming=False)

    def resumeProducing(self) -> None:  # noqa: N802 -- Twisted's name
        """See `IPullProducer.resumeProducing`: the transport has written everything."""
        if self._unwritten:
            data = b"".join(self._unwritten)
            self._unwritten.clear()
            self.transport.write(data)
        else:
            self._is_full = False
            self.transport.unregisterProducer()

    def stopProducing(self) -> None:  # noqa: N802 -- Twisted's name
        """See `IProducer.stopProducing`."""
        self._unwritten.clear()

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 -- Twisted's name
        """Handle the complete frames, and keep the rest without copying it for each chunk."""
        if self._awaited:
            self._chunks.append(data)
            self._awaited -= len(data)
            if self._awaited > 0:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._awaited = 0
        at, end = 0, len(data)
        while end - at >= _LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data, at)
            if not 0 <= length <= _MAX_FRAME_BYTES:
                self.transport.abortConnection()
                return
            frame_end = at + _LENGTH_BYTES + length
            if frame_end > end:
                self._awaited = frame_end - end
                break
            self._frame_received(data[at + _LENGTH_BYTES : frame_end])
            at = frame_end
        if at < end:
            self._chunks.append(data[at:])
            self._awaited = self._awaited or _LENGTH_BYTES - (end - at)

    def _frame_received(self, frame: bytes) -> None:
        # Answers on an abandoned connection do not count, even if they have arrived.
        connection = self.factory
        if connection.proto is self:
            self.has_responded = True
            connection.responded()
            connection.handleResponse(frame)
            connection.renew_if_idle()

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 -- Twisted's name
        """See `IProtocol.connectionLost`."""
        connection, self.factory = self.factory, None
        connection.protocol_lost(self, reason)
