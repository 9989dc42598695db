"""
Hooks: senders that sign their requests, from the callers file.

::

    [hooks.github]
    topic = "github"
    scheme = "github"
    secret_files = ["github.secret", "github-old.secret"]
    idempotency_header = "X-GitHub-Delivery"
    requests_per_second = 50

    [hooks.meters]
    topic = "readings"
    scheme = "hmac"
    header = "X-Signature"
    encoding = "hex"
    prefix = "sha256="
    secret_files = ["meters.secret"]
    key_header = "X-Meter"
"""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from typing import Final

from msgspec import Struct

from sampleapp.access.caller import HOOK, Caller, TopicPatterns, is_legal_name
from sampleapp.access.callers_file_tables import HookTable, Mistake, Path, convert
from sampleapp.access.signatures import (
    BODY,
    ENCODINGS,
    FIXED_SCHEMES,
    HMAC,
    SCHEMES,
    TIMESTAMP,
    HMACScheme,
    Scheme,
)
from sampleapp.model import TOPIC_RULE, is_legal_topic

DEFAULT_TOLERANCE_S: Final = 300.0
"""The greatest difference between the time of a request and that of the service, in seconds."""
MOST_SECRETS: Final = 10
"""Maximum secrets of a hook: each is tried with each request."""
_MOST_TOLERANCE_S: Final = 86_400.0

# RFC 9110, section 5.6.2.
_FIELD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
# A comma is between signatures.
_PREFIX: Final = re.compile(r"[!-+\--~]{1,100}")
_SIGNED: Final = re.compile(r"[\n -~]{1,200}")
# As senders show them, or as they are often made: 128 bits or more in hexadecimal, or in base64 with padding.
_SECRET: Final = re.compile(r"whsec_.*|[0-9A-Fa-f]{32,}|[A-Za-z0-9+/_-]{22,}={1,2}", re.DOTALL)
_NOT_FOR_SIGNATURES: Final = frozenset(
    {"authorization", "cookie", "host", "connection", "content-length", "transfer-encoding", "content-type"}
)
_NEVER_KEYS: Final = _NOT_FOR_SIGNATURES | {
    *("accept", "accept-encoding", "date", "user-agent", "x-github-event", "x-github-hook-id"),
    *("x-slack-request-timestamp", "webhook-timestamp", "svix-timestamp"),
}
"""Fields that are the same for each delivery, or change with each attempt."""
_CREDENTIALS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})


class Hook(Struct, frozen=True, kw_only=True):
    """A sender that signs its requests. Its secrets are not here."""

    name: str
    caller: Caller
    """The sender as a caller, who may publish to its topic only. No other caller has its name."""
    topic: str
    scheme: Scheme
    secret_files: tuple[str, ...]
    """Paths, relative to the directory of the callers file."""
    key_header: str | None
    """The header field whose value is the record's key."""
    idempotency_header: str | None
    """The header field that has the idempotency key, instead of ``Idempotency-Key``."""
    tolerance_s: float
    """The greatest difference between the time of a request and that of the service, in seconds."""


def read_hook(name: str, value: object) -> Hook:
    """
    Read one hook.

    :param value: its table.
    :raise Mistake: there is one in it.
    """
    path: Path = ("hooks", name)
    # Clients resolve these two in a path.
    if not is_legal_name(name) or name in {".", ".."}:
        raise Mistake(path, "is not a name for a hook: that is 1 to 100 characters of A-Z a-z 0-9 . _ - @")
    table = convert(value, HookTable, path)
    if not is_legal_topic(table.topic):
        raise Mistake((*path, "topic"), f"must be the name of a topic: {TOPIC_RULE}")
    scheme = _scheme(table, path)
    for member in ("key_header", "idempotency_header"):
        _check_field(getattr(table, member), scheme, (*path, member))
    return Hook(
        name=name,
        # No other caller has this name, so none shares its idempotency keys.
        caller=Caller(
            name=f"{HOOK}:{name}",
            publish=TopicPatterns([table.topic]),
            requests=table.requests(path),
            bytes=table.bytes(path),
        ),
        topic=table.topic,
        scheme=scheme,
        secret_files=_secret_files(table, path),
        key_header=table.key_header,
        idempotency_header=table.idempotency_header,
        tolerance_s=_tolerance_s(table, scheme, path),
    )


def _scheme(table: HookTable, path: Path) -> Scheme:
    if table.scheme == HMAC:
        return _hmac_scheme(table, path)
    scheme = FIXED_SCHEMES.get(table.scheme)
    if scheme is None:
        close = get_close_matches(table.scheme, SCHEMES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(SCHEMES)}"
        raise Mistake((*path, "scheme"), f"is not known; {hint}")
    for member in ("header", "encoding", "prefix", "signed", "timestamp_header"):
        if getattr(table, member) is not None:
            raise Mistake((*path, member), f"is for the scheme hmac only, and this one is {table.scheme}")
    return scheme


def _hmac_scheme(table: HookTable, path: Path) -> HMACScheme:
    if table.header is None:
        raise Mistake(path, 'has no header, which has the signature; add one, such as header = "X-Signature"')
    if not _FIELD.fullmatch(table.header) or table.header.lower() in _NOT_FOR_SIGNATURES:
        raise Mistake((*path, "header"), "must be the name of the header with the signature, and of it only")
    encoding = ENCODINGS[0] if table.encoding is None else table.encoding
    if encoding not in ENCODINGS:
        raise Mistake((*path, "encoding"), f"must be {' or '.join(ENCODINGS)}")
    prefix = "" if table.prefix is None else table.prefix
    if prefix and not _PREFIX.fullmatch(prefix):
        raise Mistake(
            (*path, "prefix"), 'must be 1 to 100 visible ASCII characters without a comma, such as "sha256="'
        )
    field = table.header.lower()
    signed, timestamp_field = _signed_time(table, field, path)
    return HMACScheme(field, encoding, prefix.encode("ascii"), signed, timestamp_field)


def _signed_time(table: HookTable, field: str, path: Path) -> tuple[str, str | None]:
    """
    Return the form of the signed text, and the field with the time.

    :param field: with the signature.
    """
    signed, header = table.signed, table.timestamp_header
    if signed is None and header is None:
        return BODY, None
    if header is None:
        raise Mistake(
            (*path, "signed"),
            'needs timestamp_header, too: the header with the time, such as timestamp_header = "X-Timestamp"',
        )
    if not _FIELD.fullmatch(header) or header.lower() in _NOT_FOR_SIGNATURES or header.lower() == field:
        raise Mistake(
            (*path, "timestamp_header"), "must be the name of the header with the time, and of it only"
        )
    if signed is None:
        raise Mistake(
            (*path, "timestamp_header"),
            f'needs signed, too: the form of the signed text, such as signed = "{TIMESTAMP}:{BODY}"',
        )
    counts = {part: signed.count(part) for part in (TIMESTAMP, BODY, "{", "}")}
    if [*counts.values()] != [1, 1, 2, 2] or not _SIGNED.fullmatch(signed):
        raise Mistake(
            (*path, "signed"),
            f"must have {TIMESTAMP} and {BODY} once each, and no other braces, in up to 200 ASCII "
            f'characters, such as "{TIMESTAMP}:{BODY}"',
        )
    return signed, header.lower()


def _check_field(name: str | None, scheme: Scheme, path: Path) -> None:
    if name is None:
        return
    if not _FIELD.fullmatch(name):
        raise Mistake(path, "must be the name of a header")
    if name.lower() in _CREDENTIALS or name.lower() in scheme.signature_fields:
        raise Mistake(path, "may not be a header with credentials, or with the signature")
    is_time = isinstance(scheme, HMACScheme) and scheme.timestamp_field == name.lower()
    if path[-1] == "idempotency_header" and (is_time or name.lower() in _NEVER_KEYS):
        raise Mistake(
            path,
            f"must be the header with the id of a delivery; {name} is the same for different deliveries, or "
            "changes with each attempt",
        )


def _secret_files(table: HookTable, path: Path) -> tuple[str, ...]:
    files, path = table.secret_files, (*path, "secret_files")
    if not 1 <= len(files) <= MOST_SECRETS:
        raise Mistake(path, f"must have 1 to {MOST_SECRETS} paths of files, with one secret each")
    for index, file in enumerate(files):
        if not file or "\0" in file:
            raise Mistake((*path, index), "must be the path of a file")
        if _SECRET.fullmatch(file):
            raise Mistake(
                (*path, index),
                "seems to be a secret itself; write it to a file, and the path here",
            )
    return tuple(files)


def _tolerance_s(table: HookTable, scheme: Scheme, path: Path) -> float:
    tolerance_s: float | None = table.tolerance
    if tolerance_s is None:
        return DEFAULT_TOLERANCE_S
    path = (*path, "tolerance")
    if not scheme.has_time:
        raise Mistake(path, f"has no effect, since requests of the scheme {table.scheme} have no signed time")
    if math.isnan(tolerance_s) or not 0 < tolerance_s <= _MOST_TOLERANCE_S:
        raise Mistake(path, f"must be a number of seconds above zero, and at most {_MOST_TOLERANCE_S:g}")
    return tolerance_s
