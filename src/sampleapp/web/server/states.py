"""The states of a connection, and the table of the transitions between them."""

from __future__ import annotations

from typing import Final


class ConnectionState:
    """A state of a connection. Only the transitions of the table below are allowed."""

    __slots__ = ("may_become", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.may_become: frozenset[ConnectionState] = frozenset()

    def __repr__(self) -> str:
        return self.name


HANDSHAKE: Final = ConnectionState("handshake")
"""The TLS handshake is not complete."""
IDLE: Final = ConnectionState("idle")
"""No byte of a request has come."""
HEADER: Final = ConnectionState("header")
"""A part of a header has come."""
BODY: Final = ConnectionState("body")
"""The header has come, and the end of the body, or of a request that may have one, is awaited."""
WAITING: Final = ConnectionState("waiting")
"""The request is whole, and a handler works on its response."""
RESPONDING: Final = ConnectionState("answering")
"""A response was begun. The client must read some of it before the rest can be sent."""
STREAMING: Final = ConnectionState("streaming")
"""A response is sent part by part, as its source writes it. No further request is read."""
LINGERING: Final = ConnectionState("lingering")
"""
The client was rejected in the middle of its request. Further bytes of it are dropped, so that the client can
read the response.
"""
CLOSING: Final = ConnectionState("closing")
"""Nothing more is read; the connection ends when the client has received everything that was sent."""
CLOSED: Final = ConnectionState("closed")
"""The connection is lost or closed."""

READING: Final = (IDLE, HEADER, BODY)

# From each state to those that may follow. A request that comes as a whole skips the states of its parts, and
# one that is answered at once does not wait.
TRANSITIONS: Final[dict[ConnectionState, tuple[ConnectionState, ...]]] = {
    HANDSHAKE: (IDLE, CLOSING, CLOSED),
    IDLE: (HANDSHAKE, HEADER, BODY, WAITING, RESPONDING, STREAMING, IDLE, LINGERING, CLOSING, CLOSED),
    HEADER: (BODY, WAITING, RESPONDING, STREAMING, IDLE, LINGERING, CLOSING, CLOSED),
    BODY: (WAITING, RESPONDING, STREAMING, IDLE, LINGERING, CLOSING, CLOSED),
    WAITING: (RESPONDING, STREAMING, IDLE, CLOSING, CLOSED),
    RESPONDING: (IDLE, CLOSING, CLOSED),
    STREAMING: (RESPONDING, IDLE, CLOSING, CLOSED),
    LINGERING: (CLOSED,),
    CLOSING: (CLOSED,),
    CLOSED: (),
}
for _state, _next in TRANSITIONS.items():
    _state.may_become = frozenset(_next)


class IllegalTransition(AssertionError):
    """A fault of the connection's own code: it was to enter a state that cannot follow."""
