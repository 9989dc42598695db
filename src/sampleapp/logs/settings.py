"""The operator's settings of the logs."""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct

STANDARD_OUTPUT: Final = "-"
"""Given instead of a file name."""
LEVELS: Final = ("debug", "info", "warn", "error", "critical")
"""The names of the levels, the least important first."""


class LogFormat(Enum):
    """The format of the process log."""

    TEXT = "text"
    """As twistd writes it."""
    JSON = "json"


class AccessLogFormat(Enum):
    """The format of the access log."""

    COMBINED = "combined"
    """Apache's combined format with more fields after it."""
    JSON = "json"


class LogSettings(Struct, frozen=True, kw_only=True):
    """The format and level of the process log, and the file and format of the access log."""

    format: LogFormat = LogFormat.TEXT
    level: str = "info"
    """One of `LEVELS`. Less important events are left out."""
    access_log: str = ""
    """The path of the access log; ``-`` for standard output; empty for none."""
    access_log_format: AccessLogFormat = AccessLogFormat.COMBINED
