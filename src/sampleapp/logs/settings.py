"""What an operator may decide about the logs."""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

__all__ = ["LEVELS", "LogFormat", "LogSettings"]

LEVELS: Final = ("debug", "info", "warn", "error", "critical")
"""The names of the levels, the least important one first."""


class LogFormat(Enum):
    """How an event of the log is written."""

    TEXT = "text"
    """As twistd writes it."""
    JSON = "json"


class LogSettings(Struct, frozen=True, kw_only=True):
    """What the log of the service is to be."""

    format: LogFormat = LogFormat.TEXT
    level: str = "info"
    """One of `LEVELS`. Less important events are left out."""
