"""
Conversion of a request's trace into headers of its record (W3C Trace Context, level 2).

The values are passed on unchanged: the service adds no span of its own, so a consumer continues the caller's
trace.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["trace_headers"]

# Section 3.2.2: the version "ff" and ids of zeros are invalid. Everything is in lower case.
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_FIRST_VERSION: Final = b"00"

# Section 3.3.1: empty members are allowed, and do not count.
_MEMBER: Final = re.compile(
    rb"(?P<key>[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    rb"=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
)
_MOST_MEMBERS: Final = 32
_BLANKS: Final = b" \t"


def trace_headers(
    traceparents: tuple[bytes, ...], tracestates: tuple[bytes, ...]
) -> tuple[tuple[str, bytes], ...]:
    """
    Return the trace headers for the record of a request.

    :param traceparents: the values of all fields ``traceparent``; one, if the request has a trace.
    :param tracestates: the values of all fields ``tracestate``; several are parts of one list.
    :return: ``traceparent``, perhaps with ``tracestate``; nothing without a valid ``traceparent``. An invalid
        ``tracestate`` is left out (section 3.3.1).
    """
    if len(traceparents) != 1 or not _is_traceparent(traceparents[0]):
        return ()
    tracestate = b",".join(tracestates)
    if not _is_tracestate(tracestate):
        return (("traceparent", traceparents[0]),)
    return (("traceparent", traceparents[0]), ("tracestate", tracestate))


def _is_traceparent(value: bytes) -> bool:
    match = _TRACEPARENT.match(value)
    if match is None:
        return False
    rest = value[match.end() :]
    # A later version than the first may have more fields.
    return not rest or (rest.startswith(b"-") and not value.startswith(_FIRST_VERSION))


def _is_tracestate(value: bytes) -> bool:
    """Check for a list of one to 32 members without a repeated key."""
    members = [member for part in value.split(b",") if (member := part.strip(_BLANKS))]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match["key"] for match in matches if match is not None}
    return len(keys) == len(members) and 1 <= len(members) <= _MOST_MEMBERS
