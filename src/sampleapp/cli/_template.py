"""A message without its content."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

__all__ = ["Template"]


class Template(Struct, frozen=True, kw_only=True):
    """The members that the messages of one command share; see `sampleapp.client.Message`."""

    topic: str
    key: str | bytes | None = None
    headers: dict[str, str] | None = None
    timestamp: datetime | None = None
