"""What an operator may decide about the logs."""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

__all__ = ["LEVELS", "STANDARD_OUTPUT", "AccessLogFormat", "LogFormat", "LogSettings"]

STANDARD_OUTPUT: Final = "-"
"""In place of the name of a file."""
LEVELS: Final = ("debug", "info", "warn", "error", "critical")
"""The names of the levels, the least important one first."""


class LogFormat(Enum):
    """How an event of the log is written."""

    TEXT = "text"
    """As twistd writes it."""
    JSON = "json"


class AccessLogFormat(Enum):
    """How a line for a request is written."""

    COMBINED = "combined"
    """As Apache does, with more fields after it."""
    JSON = "json"


class LogSettings(Struct, frozen=True, kw_only=True):
    """What is to be logged, and where."""

    format: LogFormat = LogFormat.TEXT
    level: str = "info"
    """One of `LEVELS`. Less important events are left out."""
    access_log: str = ""
    """The file for a line for each request; ``-`` for standard output; empty for none."""
    access_log_format: AccessLogFormat = AccessLogFormat.COMBINED
