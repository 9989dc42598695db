"""The progress of a client in reading a response, and the end of its connection, as the system knows them."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import sys
import termios
from contextlib import suppress
from enum import Enum
from typing import Any, Final

__all__ = ["ClientEnd", "acknowledged", "client_end", "limit_unsent", "unacknowledged"]

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
