"""What a client may cost."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Limits"]


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of a server's connections."""

    max_body: int = 1024 * 1024
    """The greatest length of a request's body, in bytes."""
    header_timeout_s: float = 10.0
    """How long a header may take from its first byte on, in seconds."""
    body_rate: int = 1024
    """How many bytes a second a body has to come with, on average."""
    body_grace_s: float = 10.0
    """From when on that holds: seconds since the end of the header."""
    idle_timeout_s: float = 75.0
    """How long a connection may have no request, in seconds."""
    send_timeout_s: float = 30.0
    """How long the client's system may acknowledge nothing of an answer, in seconds."""
    max_connections: int = 10_000
    """How many connections may be open at once."""
    max_waiting: int = 10_000
    """How many requests may wait for what answers them."""
