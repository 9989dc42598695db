"""The log of the process, and the access log with a line for each request."""

from sampleapp.logs.access_log import AccessLog, require_writable
from sampleapp.logs.background_writer import BackgroundWriter
from sampleapp.logs.observer import ProcessLog, json_line, process_log, require_possible
from sampleapp.logs.settings import LEVELS, AccessLogFormat, LogFormat, LogSettings

__all__ = [
    "LEVELS",
    "AccessLog",
    "AccessLogFormat",
    "BackgroundWriter",
    "LogFormat",
    "LogSettings",
    "ProcessLog",
    "json_line",
    "process_log",
    "require_possible",
    "require_writable",
]
