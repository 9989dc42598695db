"""What the service writes for operators: its own log, and a line for each request."""

from sampleapp.logs.json_lines import json_line
from sampleapp.logs.observer import log_observer
from sampleapp.logs.settings import LEVELS, LogFormat, LogSettings

__all__ = ["LEVELS", "LogFormat", "LogSettings", "json_line", "log_observer"]
