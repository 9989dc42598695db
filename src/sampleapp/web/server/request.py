"""A request, as handlers get it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct
from twisted.internet.defer import Deferred

from sampleapp.web.responses import Response
from sampleapp.web.server.body_memory import MemoryReservation
from sampleapp.web.server.exchange import Exchange
from sampleapp.web.server.fields import Fields

__all__ = ["SAFE", "Charge", "Dispatch", "Handler", "Request"]

SAFE: Final = (b"GET", b"HEAD")
"""Methods that only read, and so wait for nothing (RFC 9110, section 9.2.1)."""


class Charge(Protocol):
    """Charges the bytes of one body to the rate of its caller."""

    def add(self, length: int) -> None:
        """Charge bytes that have arrived now, unless they were charged in advance."""

    def charge_up_to(self, length: int) -> None:
        """Charge a body up to a length, in bytes: its present size, encoded or decoded."""

    def require_room(self) -> None:
        """
        Check that more of the body may be read.

        :raise SampleAppError: the caller is over its rate.
        """

    def end(self) -> None:
        """Refund the bytes that were charged and have not arrived."""


class Request(Struct, gc=False):
    """One HTTP request."""

    method: bytes
    path: bytes
    """As it was sent: percent-encoded, without the query. ``*`` for the server as a whole."""
    query: bytes
    """As it was sent, without the question mark."""
    fields: Fields
    exchange: Exchange
    body: bytes = b""
    """Empty until the handler is called."""
    caller: Any = None
    """
    The authenticated caller, as the dispatch has found it; the server does not use it.

    ``None`` if no credentials are needed, so that everything is allowed.
    """
    max_body: int | None = None
    """The greatest length of the body, in bytes, set by the dispatch; ``None`` for the server's own limit."""
    is_body_wanted: bool = True
    """False if the body has no meaning, as with GET (RFC 9110, section 9.3.1): then it is not kept."""
    ends_with_client: bool = False
    """
    True if the work of the handler is useless once the client has gone: then its Deferred is cancelled.

    Set by the dispatch, for requests that only read. They do not count among those that wait for the broker.
    """
    client_has_finished: bool = False
    """True once the client has closed its side: it may have gone, or may still want the response."""
    end_wait: Callable[[], None] | None = None
    """
    Set by a handler while it waits for something that may take long, and could answer at once.

    Called when the client closes its side of the connection.
    """
    checked: Any = None
    """The result of the route's `check_head`, for its handler."""
    verify_body: Callable[[Request, bytes], None] | None = None
    """
    Verifies the body as it was sent, before it is decoded; set by the dispatch.

    It raises a `SampleAppError` for a body that is rejected. If the body does not come compressed, the
    handler calls it.
    """
    charge: Charge | None = None
    """Charges the bytes of the body; ``None`` if its caller has no rate."""
    reservation: MemoryReservation | None = None
    """
    The memory for the body. A handler that makes much more of the body reserves memory for that, too.

    It is released with the response. ``None`` if it is not counted.
    """


Handler: TypeAlias = Callable[[Request], "Response | Deferred[Response]"]
"""Answers a request whose body is whole. An error that it raises, or fails with, becomes a response."""

Dispatch: TypeAlias = Callable[[Request], "Response | Handler"]
"""
Chooses a handler for a request by its head, or answers the request without its body.

An error that it raises becomes a response.
"""
