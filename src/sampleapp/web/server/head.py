"""
A parser of request heads: the request line and the header fields.

Pure functions. Clients send the same head again and again, with another body each time, so the latest heads
are remembered with their values, and are not parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from sampleapp.web.errors import (
    BodyTooLarge,
    HeaderTooLarge,
    MalformedRequest,
    RequestError,
)
from sampleapp.web.server.content_coding import content_codings
from sampleapp.web.server.content_types import merge_content_types
from sampleapp.web.server.fields import BLANKS, FieldParser, Fields

MAX_HEAD: Final = 16 * 1024
"""The greatest length of a head, in bytes."""
END_OF_HEAD: Final = b"\r\n\r\n"

# Three megabytes at most, with their values, for both kinds of heads that are remembered.
_MAX_REMEMBERED: Final = 512
_LONGEST_REMEMBERED: Final = 1024

# RFC 9112, section 3: single spaces, and a target without an octet that could end it in another parser.
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.([01])\r\n")
_SCHEME = re.compile(rb"https?://", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TLS_HANDSHAKE: Final = b"\x16\x03"
_LENGTH = re.compile(rb"^(Content-Length:[ \t]*)[0-9]+", re.IGNORECASE | re.MULTILINE)
_GREATEST_LENGTH: Final = 2**63 - 1
# A value without a control character, which the parser would reject.
_KEY = re.compile(rb"\nIdempotency-Key:([ -~]*)(?=\r\n)", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
# The blanks around a value are cut later: with a pattern, that takes time with the cube of their number.
_REQUEST_ID_LINE = re.compile(rb"\r\nX-Request-Id:([^\r\n]*)(?=\r\n)", re.IGNORECASE)

# A name that DNS could hold, an IPv4 address, or an IPv6 address in brackets; then an optional port. The
# grammar of RFC 3986 (section 3.2.2) allows more, none of which names a host that can be reached.
_HOST = re.compile(
    rb"(?:\[([0-9A-Fa-f:.]{2,45})\]|(?:[A-Za-z0-9_-]{1,63}\.)*(?:[A-Za-z0-9_-]{1,63})?)(?::[0-9]*)?"
)


class Head(Struct, frozen=True, kw_only=True, gc=False):
    """The head of a request."""

    method: bytes
    path: bytes
    """The path of the target, as it was sent: percent-encoded. ``*`` for the server as a whole."""
    query: bytes
    """The query of the target, without the question mark, as it was sent."""
    is_1_1: bool
    """True for HTTP/1.1, false for HTTP/1.0."""
    fields: Fields
    """``Host`` is the host of the target, if the target is a whole URL (RFC 9112, section 3.2.2)."""
    host: bytes | None
    """The host that the request is for, with an optional port; ``None`` if an HTTP/1.0 request names none."""
    length: int | None
    """The length of the body, in bytes; ``None`` when it comes in chunks."""
    expects_continue: bool
    """True if the client waits for "100 Continue" before it sends the body (RFC 9110, section 10.1.1)."""
    expects_unknown: bool
    """True if the client has another expectation, which this service cannot meet."""
    keeps_alive: bool
    """True if the connection may stay open after the response (RFC 9112, section 9.3)."""
    request_id: bytes | None
    """The client's id of the request (``X-Request-Id``), if it is valid; see `request_id_of`."""
    codings: tuple[bytes, ...]
    """The content codings of the body, in lower case (RFC 9110, section 8.4); empty if it has none."""


def parse_head(data: bytes) -> Head:
    """
    Parse a head.

    :param data: the whole head, with the empty line at its end.
    :raise RequestError: it does not follow the grammar of HTTP, or needs a feature that this service lacks.
    """
    return _remembered(data) if len(data) <= _LONGEST_REMEMBERED else _parse_head(data)


def _parse_head(data: bytes) -> Head:
    key = _KEY.search(data)
    if key is None:
        return _parse_whole_head(data)
    # Requests with a new key each are otherwise alike.
    start, end = key.span(1)
    head = _remembered_without_key(data[:start] + data[end:])
    if head.fields.all(b"idempotency-key") != (b"",):
        # There is another one.
        return _parse_whole_head(data)
    return replace(head, fields=head.fields.with_value(b"idempotency-key", key[1].strip(BLANKS)))


def _parse_whole_head(data: bytes) -> Head:
    line = _REQUEST_LINE.match(data)
    if line is None:
        raise _not_a_request_line(data)
    parser = FieldParser()
    try:
        parser.feed(data[line.end() :])
    except BodyTooLarge:
        # The parser has stopped at this field. The credentials may follow, and a wrong one is rejected first
        # (401 before 413). So the length is replaced by the greatest one, which is rejected as well.
        parser = FieldParser()
        parser.feed(_LENGTH.sub(rb"\g<1>%d" % _GREATEST_LENGTH, data[line.end() :]))
    method, target, minor = line.groups()
    authority, path, query = _split(target)
    fields, is_1_1 = parser.fields(), minor == b"1"
    check_host(fields, is_required=is_1_1)
    if authority is not None:
        fields.replace(b"host", authority)
    return _interpret(method, path, query, is_1_1=is_1_1, fields=fields)


# Rejected heads are not remembered: `lru_cache` keeps no exceptions.
_remembered = lru_cache(maxsize=_MAX_REMEMBERED)(_parse_head)
_remembered_without_key = lru_cache(maxsize=_MAX_REMEMBERED)(_parse_whole_head)


class PartialHead:
    """A check of a head that comes in parts, so that data which is not HTTP is rejected early."""

    def __init__(self) -> None:
        self._fields: FieldParser | None = None
        self._checked = 0
        self._length_is_too_large = False
        self._fed = 0

    def check(self, data: bytes) -> None:
        """
        Check the new part of the head.

        :param data: the head from its first byte, as far as it has come.
        :raise RequestError: the head is wrong; `parse_head` would reject it as well, whatever follows.
        """
        if self._fields is None:
            if b"\n" not in data:
                # The first octet alone may be that of TLS.
                if len(data) > 1 and _CONTROL.search(data):
                    raise _not_a_request_line(data)
                return
            line = _REQUEST_LINE.match(data)
            if line is None:
                raise _not_a_request_line(data)
            self._fields = FieldParser()
            self._fed = self._checked = line.end()
        if self._length_is_too_large:
            return
        new, self._checked = data[self._checked :], len(data)
        if new.strip(BLANKS):
            # White space at the end may continue in the next part.
            end = len(data.rstrip(BLANKS))
            try:
                self._fields.feed(data[self._fed : end])
            except BodyTooLarge:
                # Rejected when the head is whole, since the credentials are checked first.
                self._length_is_too_large = True
            self._fed = end


def request_id_of(fields: Fields) -> bytes | None:
    """
    Return the client's id of a request.

    :return: 1 to 128 octets from ``!`` to ``~``; ``None`` if there is no such id, or more than one.
    """
    ids = fields.all(b"x-request-id")
    return ids[0] if len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0]) else None


def request_id_in(data: bytes) -> bytes | None:
    """
    Find the client's id in a head that has come in part, or was rejected.

    :param data: the head from its first byte.
    """
    head = data[: data.find(END_OF_HEAD) + len(END_OF_HEAD)] if END_OF_HEAD in data else data
    ids = [value.strip(BLANKS) for value in _REQUEST_ID_LINE.findall(head, 0, MAX_HEAD)]
    return ids[0] if len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0]) else None


def rejection_of_long_head(data: bytes) -> RequestError:
    """
    Make the error for a head that does not end within `MAX_HEAD` bytes.

    :param data: at least `MAX_HEAD` bytes of it.
    :return: the error in its beginning, if there is one, so that the response does not depend on the parts
        in which the head came; otherwise `HeaderTooLarge`.
    """
    try:
        PartialHead().check(data[:MAX_HEAD])
    except RequestError as error:
        return error
    return HeaderTooLarge(f"The header is longer than {MAX_HEAD} bytes, which is the limit.")


def _not_a_request_line(data: bytes) -> MalformedRequest:
    if data.startswith(_TLS_HANDSHAKE):
        return MalformedRequest(
            "This port speaks HTTP without TLS: use a URL that begins with http://, not https://."
        )
    return MalformedRequest(
        "The request does not begin with a request line of HTTP/1.1, such as: GET / HTTP/1.1."
    )


def _split(target: bytes) -> tuple[bytes | None, bytes, bytes]:
    """
    Split a target into authority, path and query (RFC 9112, section 3.2).

    :return: the authority is ``None`` unless the target is a whole URL, which every server must accept. An
        authority replaces ``Host`` (section 3.2.2).
    :raise MalformedRequest: it is neither a path nor the URL of a host.
    """
    authority = None
    if not target.startswith(b"/"):
        if target == b"*":
            return None, target, b""
        scheme = _SCHEME.match(target)
        if scheme is None:
            raise MalformedRequest(
                'The target of a request must be a path, which begins with "/", or a URL of http or https.'
            )
        rest = target[scheme.end() :]
        start = next((n for n, octet in enumerate(rest) if octet in b"/?"), len(rest))
        authority = rest[:start]
        # RFC 9110, section 4.2.1: such a URL without a host is not valid.
        if authority[:1] in (b"", b":") or not is_host(authority):
            raise MalformedRequest(
                "The target of the request is a URL without the name or address of a host."
            )
        target = rest[start:] if rest[start : start + 1] == b"/" else b"/" + rest[start:]
    path, _, query = target.partition(b"?")
    return authority, path, query


def _interpret(method: bytes, path: bytes, query: bytes, *, is_1_1: bool, fields: Fields) -> Head:
    length = _length(fields, is_1_1=is_1_1)
    merge_content_types(fields)
    expectations = fields.all(b"expect")
    is_unknown = bool(expectations) and _members(expectations) != {b"100-continue"}
    options = fields.joined(b"connection")
    return Head(
        method=method,
        path=path,
        query=query,
        is_1_1=is_1_1,
        fields=fields,
        host=next(iter(fields.all(b"host")), None),
        length=length,
        # RFC 9110, section 10.1.1: HTTP/1.0 does not have this expectation.
        expects_continue=bool(expectations) and is_1_1 and not is_unknown,
        expects_unknown=is_unknown,
        keeps_alive=is_1_1 and (options is None or not _has_close(options)),
        request_id=request_id_of(fields),
        codings=content_codings(fields),
    )


def _length(fields: Fields, *, is_1_1: bool) -> int | None:
    """
    Return the length of the body (RFC 9112, section 6.3).

    The parser has rejected all that is ambiguous.
    """
    codings = fields.all(b"transfer-encoding")
    if codings:
        if not is_1_1:
            # RFC 9112, section 6.1: such a request is faulty, and can smuggle another one past a proxy.
            raise MalformedRequest("HTTP/1.0 has no Transfer-Encoding; send a Content-Length.")
        if [coding.lower() for coding in codings] != [b"chunked"]:
            raise MalformedRequest("This service supports no Transfer-Encoding other than chunked.")
        return None
    lengths = fields.all(b"content-length")
    # int() rejects thousands of digits. All but the last few can only be zeros here.
    return int(lengths[0].lstrip(b"0") or b"0") if lengths else 0


def _has_close(options: bytes) -> bool:
    return b"close" in _members([options])


def _members(values: Iterable[bytes]) -> set[bytes]:
    """Return the members of a list, in lower case; empty ones do not count (RFC 9110, section 5.6.1)."""
    members = {member.strip(BLANKS) for value in values for member in value.lower().split(b",")}
    return members - {b""}


def check_host(fields: Fields, *, is_required: bool) -> None:
    """
    Check the field ``Host`` (RFC 9112, section 3.2).

    :param is_required: false for HTTP/1.0, which did not have the field yet.
    :raise MalformedRequest: the field is missing, repeated, or not the name or address of a host.
    """
    hosts = fields.all(b"host")
    if len(hosts) != 1:
        if hosts or is_required:
            raise MalformedRequest(
                f"A request must have exactly one Host header field; this one has {len(hosts)}."
            )
    elif not is_host(hosts[0]):
        raise MalformedRequest("The Host header field is not the name or address of a host.")


@lru_cache(maxsize=64)
def is_host(host: bytes) -> bool:
    """Return whether ``Host`` may have this value: empty, or a name or address with an optional port."""
    match = _HOST.fullmatch(host)
    if match is None or match[1] is None:
        return match is not None
    try:
        IPv6Address(match[1].decode("ascii"))
    except ValueError:
        return False
    return True
