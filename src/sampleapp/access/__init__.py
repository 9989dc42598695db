"""Access control: the callers file, credentials, rights and rates. Independent of HTTP."""

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
    TooManyStreamsOfCaller,
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
    "TooManyStreamsOfCaller",
    "load_callers",
    "parse_callers",
]
