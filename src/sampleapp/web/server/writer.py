"""
A writer of responses: at once while the socket takes them, or else part by part as the client reads.

The progress of a client in reading, and the end of its connection, are asked from the system.
"""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple

from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.internet.tcp import Server as TCPTransport
from zope.interface import implementer

from sampleapp.web.responses import Response, SharedBody

# Linux has no other name for it (tcp(7), unix(7)).
_SIOCOUTQ: Final = termios.TIOCOUTQ

# Of struct tcp_info (linux/tcp.h): where tcpi_bytes_acked is, 8 bytes.
_BYTES_ACKED: Final = 120
_LENGTH_OF_INFO: Final = _BYTES_ACKED + 8

_MAX_UNSENT: Final = 128 * 1024

# Not every system has it (poll(2)).
_CLOSED_ITS_SIDE: Final = getattr(select, "POLLRDHUP", 0)


def unacknowledged(transport: Any) -> int | None:
    """
    Return how many bytes that were sent the client's system has not acknowledged (Linux: SIOCOUTQ).

    The operating system takes several megabytes for a connection at once, so the number of bytes that were
    written does not show the client's progress.

    :return: in bytes; ``None`` if the operating system does not report it.
    """
    if not sys.platform.startswith("linux"):
        return None
    # With TLS, the socket of the transport below.
    connection: socket.socket | None = getattr(transport, "socket", None)
    if connection is None:
        return None
    try:
        return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), _SIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return None


def acknowledged(transport: Any) -> int | None:
    """
    Return how many bytes the client's system has acknowledged on this connection (Linux: TCP_INFO).

    `unacknowledged` does not show progress: it can stay the same while the client reads and more is sent.

    :return: in bytes; ``None`` if the operating system does not report it, as for Unix sockets.
    """
    connection: socket.socket | None = getattr(transport, "socket", None)
    if connection is None or not sys.platform.startswith("linux"):
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH_OF_INFO)
    except OSError:
        return None
    if len(info) < _LENGTH_OF_INFO:
        return None
    return int(struct.unpack_from("Q", info, _BYTES_ACKED)[0])


def limit_unsent(transport: Any) -> None:
    """
    Make the operating system take at most 128 KiB more for a client than it can send at the moment.

    Without this limit, it takes megabytes for each client that reads slowly. Bytes in flight do not count, so
    the limit does not slow down a quick client far away.
    """
    connection: socket.socket | None = getattr(transport, "socket", None)
    if connection is not None:
        # Not every system has it (tcp(7)).
        with suppress(AttributeError, OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT)


class ClientEnd(Enum):
    """The end of a connection on the client's side."""

    CLOSED_ITS_SIDE = "closed its side"
    """The client sends nothing more. It may still read, or be gone."""
    DISCONNECTED = "disconnected"
    """The client has reset the connection, or both sides of it are closed."""


def client_end(transport: Any) -> ClientEnd | None:
    """
    Return the end of a connection that its client has made, whether or not all that it sent was read.

    :return: ``None`` if the client has not ended it, or the operating system does not report it.
    """
    connection: socket.socket | None = getattr(transport, "socket", None)
    if connection is None:
        return None
    try:
        poll = select.poll()
        poll.register(connection, _CLOSED_ITS_SIDE)
        events = poll.poll(0)
    except (OSError, ValueError):
        # A closed socket has no descriptor.
        return None
    if not events:
        return None
    # Both are reported whether or not they are asked for.
    is_gone = events[0][1] & (select.POLLHUP | select.POLLERR)
    return ClientEnd.DISCONNECTED if is_gone else ClientEnd.CLOSED_ITS_SIDE


LARGEST_PART: Final = 64 * 1024
"""The most bytes of a body that are handed to a transport at once."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Starts(NamedTuple):
    """The start of a response, up to its body; head, date and request id are filled in."""

    usual: bytes
    last: bytes
    """For the last response of a connection."""


# RFC 6797, section 6.1: a year. Other hosts of the same domain may have no TLS, so not includeSubDomains.
_HSTS: Final = b"Strict-Transport-Security: max-age=31536000\r\n"


@cache
def _starts(idle_timeout_s: float, *, has_hsts: bool) -> _Starts:
    fields = b"%%bDate: %%b\r\nX-Request-Id: %%b\r\n%b" % (_HSTS if has_hsts else b"")
    # In whole seconds, less one for a request that the client has sent already. Connection names Keep-Alive,
    # so that proxies do not pass it on (RFC 9110, section 7.6.1).
    promised_s = int(idle_timeout_s) - 1
    kept = b"Connection: keep-alive\r\nKeep-Alive: timeout=%d\r\n" % promised_s if promised_s > 0 else b""
    return _Starts(b"%b%b\r\n" % (fields, kept), fields + b"Connection: close\r\n\r\n")


@implementer(IPushProducer)
class ResponseWriter:
    """Writes the responses of one connection to its transport."""

    __slots__ = (
        "_body",
        "_has_unsent",
        "_is_full",
        "_on_written",
        "_parts",
        "_parts_handed",
        "_starts",
        "_transport",
        "is_plain",
        "socket_send",
    )

    def __init__(
        self, transport: Any, *, idle_timeout_s: float, has_hsts: bool, on_written: Callable[[], None]
    ) -> None:
        """
        :param transport: of the connection, which is open.
        :param idle_timeout_s: seconds for which the connection stays open without a request.
        :param has_hsts: true to tell browsers to use only TLS from now on (RFC 6797).
        :param on_written: called when the last byte of a response was handed over after `write_rest`
            returned.
        """
        self._transport = transport
        self._starts = _starts(idle_timeout_s, has_hsts=has_hsts)
        self._on_written = on_written
        self._parts: Iterator[bytes] | None = None
        self._body: bytes | tuple[bytes, ...] = b""
        self._parts_handed = 0
        self._is_full = False
        # Set while the transport may have bytes to write that a response sent at once would overtake.
        self._has_unsent = False
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            limit_unsent(transport)
        self.is_plain = is_plain_socket(transport)
        """True if the transport is a socket without TLS."""
        if self.is_plain:
            # The transport's `writeSomeData` would cost three more calls for each response.
            self.socket_send: Callable[[bytes], int] | None = transport.getHandle().send
        else:
            self.socket_send = None
            transport.registerProducer(self, streaming=True)

    def write(
        self, response: Response, request_id: bytes, date: bytes, *, is_head: bool, is_last: bool
    ) -> bool:
        """
        Write a response, or as much of it as the transport takes now.

        :param date: for the field ``Date``.
        :param is_head: the request is one for the head alone (``HEAD``).
        :param is_last: the connection ends after this response.
        :return: whether all of it was handed over; if not, `write_rest` must be called.
        """
        usual, last = self._starts
        data = (last if is_last else usual) % (response.head, date, request_id)
        body = response.body
        if not is_head:
            if type(body) is not bytes or len(body) >= LARGEST_PART:
                self._body = body
                return self._write_parts(_parts(data, response.parts))
            data += body
        if not self.is_plain:
            self._transport.write(data)
            if self._is_full:
                self._parts = iter(())
            return not self._is_full
        # Sending costs less than registering with the reactor, and unregistering again.
        sent = self._send_now(data)
        if sent == len(data):
            return True
        self._parts = iter((data[sent:],))
        return False

    @property
    def direct_send(self) -> Callable[[bytes], int] | None:
        """Send bytes on the socket at once; ``None`` with TLS, or while earlier bytes are unsent."""
        return None if self._has_unsent else self.socket_send

    @property
    def writes_replaced(self) -> bool:
        """True while it writes a body that is there only for clients that read it slowly."""
        return self._parts is not None and isinstance(self._body, SharedBody) and self._body.is_replaced

    @property
    def is_full(self) -> bool:
        """True while a transport that is not a plain socket has asked for a pause."""
        return self._is_full

    def start_stream(
        self, response: Response, request_id: bytes, date: bytes, *, is_chunked: bool, is_last: bool
    ) -> bytes:
        """
        Return the head of a response that is sent part by part; parameters as for `write`.

        :param is_chunked: each part is a chunk (RFC 9112, section 7.1).
        """
        usual, last = self._starts
        head = response.head + b"Transfer-Encoding: chunked\r\n" if is_chunked else response.head
        return (last if is_last else usual) % (head, date, request_id)

    def write_unless_full(self, data: bytes) -> bool:
        """Write to a transport that is not a plain socket; return false if it takes nothing at the moment."""
        if self.is_plain or self._is_full:
            return False
        self._transport.write(data)
        return True

    def write_as_read(self, parts: Iterator[bytes]) -> None:
        """Write parts as the client reads; `on_written` is called if that is not done when this returns."""
        self._parts = parts
        if self.is_plain:
            self._transport.registerProducer(self, streaming=False)
        elif not self._is_full:
            self._hand_over()

    def write_rest(self) -> bool:
        """
        Write the rest of a response as the client reads.

        :return: whether all of it was handed over now; if not, `on_written` is called later.
        """
        if self.is_plain:
            # The transport asks for the first part at once, and for the next one when everything is written.
            self._transport.registerProducer(self, streaming=False)
            return False
        return not self._is_full and self._hand_over()

    def write_continue(self) -> None:
        """Tell the client to send its body."""
        self._transport.write(_CONTINUE)
        self._has_unsent = True

    def write_rejection(self, response: Response, request_id: bytes, date: bytes, *, is_head: bool) -> None:
        """Write a response after which nothing more is written; parameters as for `write`."""
        self.release()
        start = self._starts.last % (response.head, date, request_id)
        self._transport.write(start if is_head else start + b"".join(response.parts))

    def release(self) -> None:
        """Unregister as the transport's producer: otherwise the transport waits for more before it closes."""
        if not self.is_plain:
            self._transport.unregisterProducer()

    def end(self) -> None:
        """Drop the rest of the response, and the connection, which refers to this writer: it is lost."""
        self._parts = None
        self._body = b""
        self._on_written = _do_nothing

    def is_unread(self, threshold: int = 0) -> bool:
        """Return whether more bytes than the threshold are known to be unacknowledged by the client."""
        unread = unacknowledged(self._transport)
        return unread is not None and unread > threshold

    def progress(self) -> object:
        """Return a value that changes when the client reads more."""
        read = acknowledged(self._transport)
        return (self._parts_handed, unacknowledged(self._transport)) if read is None else read

    def bytes_read(self, taken: int) -> int:
        """
        Return a number that grows when the client reads, however much is written.

        :param taken: the number of bytes that the operating system has taken.
        """
        read = acknowledged(self._transport)
        return taken - (unacknowledged(self._transport) or 0) if read is None else read

    def pauseProducing(self) -> None:
        """Hand over nothing more: the client has not read enough."""
        self._is_full = True

    def resumeProducing(self) -> None:
        """Hand over more of the response."""
        self._is_full = False
        if self._parts is not None and self._hand_over():
            self._on_written()

    def stopProducing(self) -> None:
        """Do nothing: `HTTPConnection.connectionLost` follows."""

    def _send_now(self, data: bytes) -> int:
        if self._has_unsent:
            return 0
        try:
            return self.socket_send(data)  # type: ignore[misc] # only asked of a plain socket
        except OSError:
            # The socket's buffer is full. Any other error is left to the reactor, which will meet it as well.
            return 0

    def _write_parts(self, parts: Iterator[bytes]) -> bool:
        if self.is_plain:
            for part in parts:
                sent = self._send_now(part)
                if sent != len(part):
                    parts = chain((part[sent:],), parts)
                    break
            else:
                self._body = b""
                return True
        self._parts = parts
        return False

    def _hand_over(self) -> bool:
        """
        Give the transport as many parts as it has room for; only one if it asks for each.

        :return: whether that was the end of the response.
        """
        for part in self._parts or ():
            self._parts_handed += 1
            self._transport.write(part)
            if self.is_plain or self._is_full:
                return False
        self._parts = None
        self._body = b""
        self._parts_handed = 0
        self._has_unsent = False
        if self.is_plain:
            self._transport.unregisterProducer()
        return True


def _do_nothing() -> None:
    pass


def is_plain_socket(transport: Any) -> bool:
    """Return whether a transport is only a socket, as of TCP and Unix endpoints, without TLS."""
    return isinstance(transport, TCPTransport) and not transport.TLS


def _parts(start: bytes, body: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a response into parts, none of them much larger than `LARGEST_PART`."""
    for large in body:
        for position in range(0, len(large), LARGEST_PART):
            yield start + large[position : position + LARGEST_PART]
            start = b""
    if start:
        yield start
