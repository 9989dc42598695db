"""A request as handlers see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct
from twisted.internet.defer import Deferred

from sampleapp.access import Caller
from sampleapp.web.answers import Answer
from sampleapp.web.server.exchange import Exchange
from sampleapp.web.server.fields import Fields

__all__ = ["Dispatch", "Handler", "Request"]


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
    caller: Caller | None = None
    """Who makes it; ``None`` if nobody was asked for it, so that everything is allowed."""
    max_body: int | None = None
    """How long the body may be, in bytes, if that is not up to the server; set by what decides on it."""
    admitted: Any = None
    """What was made of the head when the request was admitted, for its handler."""


Handler: TypeAlias = Callable[[Request], "Answer | Deferred[Answer]"]
"""Answers a request, now that its body is there. What it raises, or fails with, becomes an answer."""

Dispatch: TypeAlias = Callable[[Request], "Answer | Handler"]
"""
Decides on a request by its head.

An `Answer` says that nobody wants the body. What it raises becomes an answer, too.
"""
