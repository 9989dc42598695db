"""How far a client has read, and how much the system keeps of what it has not."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import Any, Final

__all__ = ["acknowledged", "limit_unsent", "unacknowledged"]

# Linux has no other name for it (tcp(7), unix(7)).
_SIOCOUTQ: Final = termios.TIOCOUTQ

# Of struct tcp_info (linux/tcp.h): where tcpi_bytes_acked is, 8 bytes.
_BYTES_ACKED: Final = 120
_LENGTH_OF_INFO: Final = _BYTES_ACKED + 8

_MOST_UNSENT: Final = 128 * 1024


def unacknowledged(transport: Any) -> int | None:
    """
    How much of what was sent the client's system has not acknowledged (Linux: SIOCOUTQ).

    The system takes several megabytes for a connection at once, so what is written says little of the client.

    :param transport: of a connection.
    :return: in bytes; ``None`` where the system does not tell.
    """
    if not sys.platform.startswith("linux"):
        return None
    # With TLS, that of the transport below.
    connection: socket.socket | None = getattr(transport, "socket", None)
    if connection is None:
        return None
    try:
        return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), _SIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return None


def acknowledged(transport: Any) -> int | None:
    """
    How much the client's system has acknowledged, since the connection was made (Linux: TCP_INFO).

    How much it has not (`unacknowledged`) can be the same again and again, with more sent all the time.

    :param transport: of a connection.
    :return: in bytes; ``None`` where the system does not tell, as for Unix sockets.
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
    Have the system take only a little more for a client than the client can take at the moment.

    Without this, it takes megabytes for each that reads slowly. What is under way already does not count, so
    a quick client on a long way is not slowed down.

    :param transport: of a connection.
    """
    connection: socket.socket | None = getattr(transport, "socket", None)
    if connection is not None:
        # Not every system has it (tcp(7)).
        with suppress(AttributeError, OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT)
