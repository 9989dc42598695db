"""What the service writes for operators: its own log, and a line for each request."""

from sampleapp.logs.access_log import STANDARD_OUTPUT, AccessLog, require_writable
from sampleapp.logs.json_lines import json_line
from sampleapp.logs.observer import log_observer
from sampleapp.logs.settings import LEVELS, AccessLogFormat, LogFormat, LogSettings

__all__ = [
    "LEVELS",
    "STANDARD_OUTPUT",
    "AccessLog",
    "AccessLogFormat",
    "LogFormat",
    "LogSettings",
    "json_line",
    "log_observer",
    "require_writable",
]
