"""Who may call, and what: the file of callers, credentials, rights and rates. Nothing here knows of HTTP."""

from sampleapp.access.caller import Caller
from sampleapp.access.callers_file import Callers, CallersFileError, load_callers, parse_callers
from sampleapp.access.rights import Right

__all__ = ["Caller", "Callers", "CallersFileError", "Right", "load_callers", "parse_callers"]
