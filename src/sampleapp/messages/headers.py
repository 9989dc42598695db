"""
Header fields and parameters of a request that become headers of its record, its trace among them.

The values of a trace (W3C Trace Context, level 2) are passed on unchanged: the service adds no span of its
own, so a consumer continues the caller's trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

from sampleapp.messages.parsing import RecordHeaders
from sampleapp.model import CALLER_HEADER, FINGERPRINT_HEADER

CONTENT_TYPE: Final = "content-type"

# RFC 9110, section 5.1: the name of a field is a token. "*" could be in one as well, but never is.
_NAME: Final = re.compile(r"(?P<name>[!#-'+.^_`|~0-9A-Za-z-]{1,256})(?P<is_prefix>\*)?|\*")
_EXAMPLES: Final = "such as X-GitHub-Event, or the beginning of names, such as X-GitHub-*"

_CREDENTIALS: Final = frozenset({"authorization", "cookie"})
_PROXY: Final = "proxy-"
# RFC 9110, section 7.6.1; with the fields that describe only how the body was sent.
_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
        *("content-length", "content-encoding", "expect", "http2-settings"),
    }
)
_TRACE: Final = frozenset({"traceparent", "tracestate"})
_SIGNATURES: Final = frozenset(
    {
        *("x-hub-signature", "x-hub-signature-256", "stripe-signature"),
        *("x-slack-signature", "webhook-signature", "svix-signature"),
    }
)
_NEVER: Final = _CREDENTIALS | _HOP_BY_HOP | _TRACE | _SIGNATURES | {CALLER_HEADER, FINGERPRINT_HEADER}


# RFC 3986, section 2.3: unreserved, so that the name is written in one way only.
_PARAMETER: Final = re.compile(r"[A-Za-z0-9._~-]{1,256}")
# Reserved for the service itself where records are published.
_OWN_PARAMETERS: Final = frozenset({"key", "envelope"})
_CLOUD_EVENTS: Final = "ce_"
# KIP-1191.
_DEAD_LETTERS: Final = "__dlq"


class NotRecordable(ValueError):
    """
    A field or parameter cannot become a header of records.

    The message is the end of a sentence about the name.
    """


class RequestFields(Protocol):
    """The header fields of a request."""

    def all(self, name: bytes, /) -> tuple[bytes, ...]:
        """Return the values of all fields of this name, in their order."""

    def names(self) -> Iterable[bytes]:
        """Return the names of all fields, in lower case."""


def check_recorded_name(text: str) -> str:
    """
    Check the name of a field, or the beginning of names with ``*`` after it.

    :return: in lower case.
    :raise NotRecordable: it is neither, or its value is a secret, or has a meaning for one connection only.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        # Not repeated: it may be a whole header, with a secret.
        raise NotRecordable(f"takes the name of a header, {_EXAMPLES}")
    lower = text.lower()
    if lower.endswith("*"):
        if lower.startswith(_PROXY):
            raise NotRecordable(f"cannot take {text}: headers for proxies never become headers of a record")
        return lower
    if lower in _CREDENTIALS or lower.startswith(_PROXY):
        raise NotRecordable(f"cannot take {text}: it may have credentials, which no record gets")
    if lower in _SIGNATURES:
        raise NotRecordable(f"cannot take {text}: no record gets the signature of a hook")
    if lower in _TRACE:
        raise NotRecordable(f"cannot take {text}: a valid one is a header of each record without this option")
    if lower in _NEVER:
        raise NotRecordable(
            f"cannot take {text}: the service itself uses it, and it says nothing about the record"
        )
    return lower


def check_recorded_parameter(text: str) -> str:
    """
    Check the name of a parameter in a query.

    :return: as it is: names of parameters have a case.
    :raise NotRecordable: a header cannot have the name, or has it for another reason.
    """
    lower = text.lower()
    if not _PARAMETER.fullmatch(text):
        # Not repeated: it may be a whole query, with a secret.
        raise NotRecordable(
            "takes the name of a parameter, such as event, which becomes the name of a header: 1 to 256 "
            "characters out of A-Z, a-z, 0-9, '-', '.', '_' and '~'"
        )
    if lower in _OWN_PARAMETERS:
        raise NotRecordable(f"cannot take {text}: the parameter {lower} is reserved for the service itself")
    if lower == CONTENT_TYPE:
        raise NotRecordable(f"cannot take {text}: this header of a record describes the body")
    if lower.startswith(_CLOUD_EVENTS):
        raise NotRecordable(f"cannot take {text}: headers of a record that begin with ce_ describe an event")
    if lower.startswith(_DEAD_LETTERS):
        raise NotRecordable(f"cannot take {text}: headers that begin with __dlq are those of a dead letter")
    check_recorded_name(text)
    return text


class RecordedFields:
    """
    The choice of header fields, and of parameters, that become headers of a record.

    A field that the request names in ``Connection`` is left out, since it is for one connection only (RFC
    9110, section 7.6.1).
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        *,
        has_content_type: bool = True,
        parameters: Iterable[str] = (),
    ) -> None:
        """
        :param names: of fields, each as `check_recorded_name` returns it.
        :param has_content_type: True to include ``Content-Type``.
        :param parameters: of the query, each as `check_recorded_parameter` returns it.
        """
        self.parameters: Final = {name.encode("ascii"): name.lower() for name in parameters}
        """The names of headers by the parameters that become these headers."""
        names = dict.fromkeys((CONTENT_TYPE, *names) if has_content_type else names)
        self.names: Final = frozenset(name for name in names if not name.endswith("*"))
        """The full names, in lower case."""
        self._prefixes = tuple(name[:-1].encode("ascii") for name in names if name.endswith("*"))
        self._exact = frozenset(name.encode("ascii") for name in self.names)
        self._is_only_content_type = self.names == {CONTENT_TYPE} and not self._prefixes
        self._has_content_type = has_content_type

    def of(self, fields: RequestFields, *, without: frozenset[bytes] = frozenset()) -> RecordHeaders:
        """
        Return the headers of a record, in the order of the fields, with their names in lower case.

        :param without: more names that are left out, in lower case.
        """
        if self._is_only_content_type and b"content-type" not in without:
            # Nearly all services: the cost for each record is that of one look-up.
            return tuple([(CONTENT_TYPE, value) for value in fields.all(b"content-type")])
        if not (self._exact or self._prefixes):
            return ()
        without |= _named_in(fields.all(b"connection"))
        return tuple(
            [
                (name.decode("ascii"), value)
                for name in fields.names()
                if self.has(name) and name not in without
                for value in fields.all(name)
            ]
        )

    def has(self, name: bytes) -> bool:
        """Return whether fields with a name, in lower case, become headers."""
        if name in self._exact:
            return True
        if not self._prefixes or not name.startswith(self._prefixes):
            return False
        return not (
            name in _NEVER_BYTES
            or name.startswith(_PROXY_BYTES)
            or (name == b"content-type" and not self._has_content_type)
        )


_NEVER_BYTES: Final = frozenset(name.encode("ascii") for name in _NEVER)
_PROXY_BYTES: Final = _PROXY.encode("ascii")


def _named_in(connection: Iterable[bytes]) -> frozenset[bytes]:
    """Return the names in ``Connection``; ``Content-Type`` is for the recipient, whatever is said there."""
    return frozenset(name.strip(b" \t").lower() for value in connection for name in value.split(b",")) - {
        b"content-type"
    }


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
