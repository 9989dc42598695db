"""How far a client has read."""

from __future__ import annotations

import fcntl
import struct
import sys
import termios
from typing import Any, Final

__all__ = ["unacknowledged"]

# Linux has no other name for it (tcp(7), unix(7)).
_SIOCOUTQ: Final = termios.TIOCOUTQ


def unacknowledged(transport: Any) -> int | None:
    """
    How much of what was sent the client's system has not acknowledged (Linux: SIOCOUTQ).

    The system takes several megabytes for a connection at once, so what is written says little of the client.

    :param transport: of a connection.
    :return: in bytes; ``None`` where the system does not tell.
    """
    if not sys.platform.startswith("linux"):
        return None
    # With TLS, the transport below.
    plain = transport if hasattr(transport, "socket") else getattr(transport, "transport", None)
    socket = getattr(plain, "socket", None)
    if socket is None:
        return None
    try:
        return int(struct.unpack("i", fcntl.ioctl(socket.fileno(), _SIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return None
