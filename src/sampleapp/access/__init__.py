"""Access control: the callers file, credentials, rights and rates. Independent of HTTP."""

from sampleapp.access.authentication import Authenticator, Identity, TokenVerifier
from sampleapp.access.caller import Caller, Right
from sampleapp.access.callers_file import Callers, CallersFileError, load_callers, parse_callers
from sampleapp.access.errors import (
    AccessError,
    AmbiguousCredentials,
    InvalidCredentials,
    InvalidSignature,
    IssuerKeysNotKnown,
    NoCredentials,
    NotGranted,
    RateExceeded,
    TooManyStreamsOfCaller,
)
from sampleapp.access.hook_verification import HookVerifier, SignedRequest
from sampleapp.access.hooks import Hook
from sampleapp.access.signatures import Slack, names_of_field

__all__ = [
    "AccessError",
    "AmbiguousCredentials",
    "Authenticator",
    "Caller",
    "Callers",
    "CallersFileError",
    "Hook",
    "HookVerifier",
    "Identity",
    "InvalidCredentials",
    "InvalidSignature",
    "IssuerKeysNotKnown",
    "NoCredentials",
    "NotGranted",
    "RateExceeded",
    "Right",
    "SignedRequest",
    "Slack",
    "TokenVerifier",
    "TooManyStreamsOfCaller",
    "load_callers",
    "names_of_field",
    "parse_callers",
]
