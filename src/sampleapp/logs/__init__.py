"""What the service writes for operators: its own log, and a line for each request."""

from sampleapp.logs.access_log import AccessLog, require_writable
from sampleapp.logs.json_lines import json_line
from sampleapp.logs.observer import log_observer, require_possible
from sampleapp.logs.settings import LEVELS, AccessLogFormat, LogFormat, LogSettings

__all__ = [
    "LEVELS",
    "AccessLog",
    "AccessLogFormat",
    "LogFormat",
    "LogSettings",
    "json_line",
    "log_observer",
    "require_possible",
    "require_writable",
]
