"""
Twisted's own TCP transport on a socket that is simulated: the test is the network, and the client.

What happens between the socket and the protocol is Twisted's own code, so nothing here has to imitate it.
"""

from __future__ import annotations

import errno
import struct
from collections import deque
from collections.abc import Iterable
from socket import SO_LINGER

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IConsumer, IPushProducer, IReactorFDSet, ITCPTransport
from twisted.internet.tcp import Server
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.web.server.writer import ClientEnd

CLIENT = ("127.0.0.1", 40000)
SERVER = ("127.0.0.1", 8080)

# No exchange of the tests takes more turns of the reactor without a byte that moves.
_MOST_IDLE_TURNS = 200


class Spinning(AssertionError):
    """The reactor would turn for ever, and nothing would come of it."""


class SimulatedSocket:
    """The server's end of a TCP connection, as the operating system has it."""

    def __init__(self, *, takes: Iterable[int] = (), room: float = float("inf")):
        """
        :param takes: how many bytes each call of `send` takes, at most; after the last, as many as there is
            room for.
        :param room: how many bytes wait for the client to read them, at most.
        """
        self._takes = iter(takes)
        self.room = room
        self.segments = deque()
        self.unread = bytearray()
        self.sent = 0
        self.is_finished_by_client = False
        self.is_reset_by_client = False
        self.is_shut_down = False
        self.is_closed = False
        self.is_reset = False
        self.moved = 0
        self.on_send = None
        """Called with each piece that is sent, if it is set."""

    def setblocking(self, blocking):
        assert not blocking

    def fileno(self):
        raise OSError(errno.EBADF, "there is no such descriptor")

    def getsockname(self):
        return SERVER

    def getpeername(self):
        return CLIENT

    def setsockopt(self, level, option, value):
        # Closing resets the connection from now on (Twisted's `abortConnection`).
        self.is_reset = self.is_reset or option == SO_LINGER

    def getsockopt(self, level, option, length=0):
        if length:
            # What the client has read counts as acknowledged: a number in the tcp_info of Linux.
            return bytes(120) + struct.pack("Q", self.sent - len(self.unread))
        return 0

    @property
    def is_readable(self):
        return bool(self.segments) or self.is_finished_by_client or self.is_reset_by_client

    @property
    def is_writable(self):
        return len(self.unread) < self.room or self.is_reset_by_client

    def recv(self, size):
        assert not self.is_closed
        if self.is_reset_by_client:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        if not self.segments:
            if self.is_finished_by_client:
                return b""
            raise BlockingIOError(errno.EWOULDBLOCK, "nothing there")
        segment = self.segments.popleft()
        if len(segment) > size:
            self.segments.appendleft(segment[size:])
        self.moved += 1
        return segment[:size]

    def send(self, data):
        assert not self.is_closed, "something was sent on a closed socket"
        assert not self.is_shut_down, "something was sent after the end"
        if self.on_send is not None:
            self.on_send(data)
        if self.is_reset_by_client:
            raise BrokenPipeError(errno.EPIPE, "reset")
        if not data:
            return 0
        count = int(min(len(data), next(self._takes, len(data)), self.room - len(self.unread)))
        if count <= 0:
            raise BlockingIOError(errno.EWOULDBLOCK, "no room")
        self.unread += data[:count]
        self.sent += count
        self.moved += 1
        return count

    def shutdown(self, how):
        if self.is_reset_by_client:
            raise OSError(errno.ENOTCONN, "reset")
        self.is_shut_down = True

    def close(self):
        self.is_closed = True


@implementer(IReactorFDSet)
class SimulatedReactor:
    """What Twisted's transports ask of a reactor, for sockets that are simulated."""

    _log = Logger()

    def __init__(self, clock):
        self._clock = clock
        self.readers = set()
        self.writers = set()
        self.callLater = clock.callLater

    def addReader(self, reader):
        self.readers.add(reader)

    def removeReader(self, reader):
        self.readers.discard(reader)

    def addWriter(self, writer):
        self.writers.add(writer)

    def removeWriter(self, writer):
        self.writers.discard(writer)

    def turn(self, transport) -> bool:
        """
        Make the calls that are due, and tell one transport what its socket is ready for.

        :return: whether there was anything to do.
        """
        now = self._clock.seconds()
        acted = any(call.getTime() <= now for call in self._clock.getDelayedCalls())
        self._clock.advance(0)
        if transport.disconnected:
            return acted
        socket = transport.socket
        # As of the poll: what is to be written by who reads now is written in the next turn, after reading.
        may_write = transport in self.writers and socket.is_writable
        if transport in self.readers and socket.is_readable:
            acted = True
            self._do(transport, transport.doRead, is_read=True)
        elif socket.is_reset_by_client:
            # The system reports it whether one asks for it or not (EPOLLHUP).
            acted = True
            self._disconnect(transport, ConnectionLost(), is_read=False)
        if may_write and not transport.disconnected and transport in self.writers:
            acted = True
            self._do(transport, transport.doWrite, is_read=False)
        return acted

    def _do(self, transport, call, *, is_read):
        # A failure is logged, and ends the connection.
        try:
            reason = call()
        except Exception as error:  # noqa: BLE001 -- as the reactor does
            self._log.failure("A protocol failed.")
            reason = error
        if reason is not None:
            self._disconnect(transport, reason, is_read=is_read)

    def _disconnect(self, transport, reason, *, is_read):
        self.removeReader(transport)
        if is_read and isinstance(reason, ConnectionDone):
            transport.readConnectionLost(Failure(reason))
        else:
            self.removeWriter(transport)
            transport.connectionLost(Failure(reason))


@implementer(ITCPTransport, IConsumer, IPushProducer)
class OtherTransport:
    """
    A transport that is not Twisted's own class for TCP, though it does the same.

    What is done at once where the transport is known has to work where it is not.
    """

    def __init__(self, transport):
        self._transport = transport

    def __getattr__(self, name):
        return getattr(self._transport, name)


def unread_by_client(transport) -> int | None:
    """Stands for `unacknowledged`: a simulated socket has no descriptor to ask the system about."""
    socket = getattr(transport, "socket", None)
    return None if socket is None else len(socket.unread)


def end_of_client(transport) -> ClientEnd | None:
    """Stands for `client_end`, in the same way."""
    socket = getattr(transport, "socket", None)
    if socket is None or not (socket.is_finished_by_client or socket.is_reset_by_client):
        return None
    return ClientEnd.DISCONNECTED if socket.is_reset_by_client else ClientEnd.CLOSED_ITS_SIDE


class Link:
    """A connection between a client, which is the test, and a protocol."""

    def __init__(self, factory, clock, *, is_known=True, takes=(), room=float("inf")):
        """
        :param factory: makes the protocol.
        :param is_known: whether the protocol can see that its transport is a plain socket.
        :param takes: as for `SimulatedSocket`.
        :param room: as for `SimulatedSocket`.
        """
        self.clock = clock
        self.reactor = SimulatedReactor(clock)
        self.socket = SimulatedSocket(takes=takes, room=room)
        self.received = bytearray()
        self.protocol = factory.buildProtocol(IPv4Address("TCP", *CLIENT))
        self.transport = Server(self.socket, self.protocol, CLIENT, None, 0, self.reactor)
        self.protocol.makeConnection(self.transport if is_known else OtherTransport(self.transport))

    def send(self, *segments: bytes) -> None:
        """Send what the server gets in pieces of just this size, if it reads."""
        self.socket.segments.extend(segment for segment in segments if segment)
        self.turn()

    def finish(self) -> None:
        """Close the client's side of the connection, and go on reading."""
        self.socket.is_finished_by_client = True
        self.turn()

    def reset(self) -> None:
        """Go away."""
        self.socket.is_reset_by_client = True
        self.socket.segments.clear()
        self.turn()

    def read(self, count: int | None = None) -> bytes:
        """Read what has come, or so many bytes of it, and let the server make use of the room."""
        data = bytes(self.socket.unread[:count])
        del self.socket.unread[:count]
        self.received += data
        self.turn()
        return data

    def read_all(self) -> bytes:
        """Read until nothing more comes."""
        self.turn()
        while self.read():
            pass
        return bytes(self.received)

    def advance(self, seconds: float, *, step_s: float = 0.5) -> None:
        """Let time pass, in steps in which the reactor turns."""
        while seconds > 0:
            self.clock.advance(min(step_s, seconds))
            seconds -= step_s
            self.turn()

    def turn(self) -> None:
        """
        Let the reactor turn until there is nothing to do.

        :raise Spinning: that never comes.
        """
        idle = 0
        while True:
            moved = self.socket.moved
            if not self.reactor.turn(self.transport):
                return
            idle = idle + 1 if moved == self.socket.moved else 0
            if idle > _MOST_IDLE_TURNS:
                raise Spinning("the reactor turns, and not a byte moves")

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        return bool(self.transport.disconnected)

    @property
    def is_over(self) -> bool:
        """Whether the client has read everything, and the end."""
        return not self.socket.unread and (self.socket.is_shut_down or self.socket.is_closed)
