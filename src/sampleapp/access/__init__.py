"""Who may call, and what: the file of callers, credentials, rights and rates. Nothing here knows of HTTP."""

from sampleapp.access.authentication import Authenticator, Identity, TokenVerifier
from sampleapp.access.caller import Caller
from sampleapp.access.callers_file import Callers, CallersFileError, load_callers, parse_callers
from sampleapp.access.errors import (
    AccessError,
    AmbiguousCredentials,
    InvalidCredentials,
    IssuerKeysNotKnown,
    NoCredentials,
    NotGranted,
    RateExceeded,
)
from sampleapp.access.rights import Right

__all__ = [
    "AccessError",
    "AmbiguousCredentials",
    "Authenticator",
    "Caller",
    "Callers",
    "CallersFileError",
    "Identity",
    "InvalidCredentials",
    "IssuerKeysNotKnown",
    "NoCredentials",
    "NotGranted",
    "RateExceeded",
    "Right",
    "TokenVerifier",
    "load_callers",
    "parse_callers",
]
