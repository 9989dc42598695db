"""
The head of a request: its request line and header fields, from bytes to values or to what is wrong with them.

Pure functions. Clients send the same head again and again, with another body each time, so the latest heads
are remembered, and what they mean is not worked out anew.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from msgspec import Struct

from sampleapp.web.request_errors import (
    BodyTooLarge,
    ExpectationNotMet,
    HeaderTooLarge,
    MalformedRequest,
    RequestError,
)
from sampleapp.web.server.content_coding import content_codings
from sampleapp.web.server.fields import BLANKS, FieldParser, Fields

__all__ = [
    "END_OF_HEAD",
    "MAX_HEAD",
    "Head",
    "PartialHead",
    "check_host",
    "parse_head",
    "refusal_of_long_head",
    "request_id_in",
    "request_id_of",
]

MAX_HEAD: Final = 16 * 1024
"""The greatest length of a head, in bytes."""
END_OF_HEAD: Final = b"\r\n\r\n"

# Two megabytes at most, with what they mean.
_MOST_REMEMBERED: Final = 512
_LONGEST_REMEMBERED: Final = 1024

# RFC 9112, section 3: single spaces, and a target without an octet that could end it in another parser.
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.([01])\r\n")
_SCHEME = re.compile(rb"https?://", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TLS_HANDSHAKE: Final = b"\x16\x03"
_LENGTH = re.compile(rb"^(Content-Length:[ \t]*)[0-9]+", re.IGNORECASE | re.MULTILINE)
_GREATEST_LENGTH: Final = 2**63 - 1
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_REQUEST_ID_LINE = re.compile(rb"\r\nX-Request-Id:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)

# A name that DNS could hold, an IPv4 address, or an IPv6 address in brackets; then perhaps a port. The
# grammar of RFC 3986 (section 3.2.2) allows more, none of which names a host that can be reached.
_HOST = re.compile(
    rb"(?:\[([0-9A-Fa-f:.]{2,45})\]|(?:[A-Za-z0-9_-]{1,63}\.)*(?:[A-Za-z0-9_-]{1,63})?)(?::[0-9]*)?"
)


class Head(Struct, frozen=True, kw_only=True, gc=False):
    """What a request says before its body."""

    method: bytes
    path: bytes
    """Of the target, as it was sent: percent-encoded. ``*`` for the server as a whole."""
    query: bytes
    """Of the target, without the question mark, as it was sent."""
    is_1_1: bool
    """Whether it is of HTTP/1.1, rather than 1.0."""
    fields: Fields
    length: int | None
    """Of the body, in bytes; ``None`` when it comes in chunks."""
    expects_continue: bool
    """Whether the client waits to be told that its body is wanted (RFC 9110, section 10.1.1)."""
    keeps_alive: bool
    """Whether the connection may stay open after the answer (RFC 9112, section 9.3)."""
    request_id: bytes | None
    """By which the client knows the request (``X-Request-Id``), if that can be repeated."""
    codings: tuple[bytes, ...]
    """What was done to the body, in lower case (RFC 9110, section 8.4); nothing if it is as it was."""


def parse_head(data: bytes) -> Head:
    """
    Read a head.

    :param data: all of it, with the empty line at its end.
    :raise RequestError: it does not follow the grammar of HTTP, or asks for what this service does not do.
    """
    return _remembered(data) if len(data) <= _LONGEST_REMEMBERED else _parse_head(data)


def _parse_head(data: bytes) -> Head:
    line = _REQUEST_LINE.match(data)
    if line is None:
        raise _not_a_request_line(data)
    parser = FieldParser()
    try:
        parser.feed(data[line.end() :])
    except BodyTooLarge:
        # The parser has stopped there, and who makes the request may stand after it, which is judged before.
        # The greatest length that there is will be refused as well as this one.
        parser = FieldParser()
        parser.feed(_LENGTH.sub(rb"\g<1>%d" % _GREATEST_LENGTH, data[line.end() :]))
    method, target, minor = line.groups()
    path, query = _split(target)
    return _interpret(method, path, query, is_1_1=minor == b"1", fields=parser.fields())


# What is refused is not remembered.
_remembered = lru_cache(maxsize=_MOST_REMEMBERED)(_parse_head)


class PartialHead:
    """A head that comes in pieces, looked at as it comes: nobody waits for the rest of what is no HTTP."""

    def __init__(self) -> None:
        self._fields: FieldParser | None = None
        self._looked_at = 0
        self._is_judged = True
        self._seen = 0

    def check(self, data: bytes) -> None:
        """
        Look at what is new.

        :param data: the head from its first byte, as far as it has come.
        :raise RequestError: whatever follows, `parse_head` would refuse it in the same way.
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
            self._seen = self._looked_at = line.end()
        if not self._is_judged:
            return
        new, self._looked_at = data[self._looked_at :], len(data)
        if new.strip(BLANKS):
            # White space at the end may go on in what comes next.
            end = len(data.rstrip(BLANKS))
            try:
                self._fields.feed(data[self._seen : end])
            except BodyTooLarge:
                # What is refused for that is first asked who it is, once it is whole.
                self._is_judged = False
            self._seen = end


def request_id_of(fields: Fields) -> bytes | None:
    """
    By which id the client knows the request.

    :return: 1 to 128 octets from ``!`` to ``~``; ``None`` if there is no such id, or more than one.
    """
    ids = fields.all(b"x-request-id")
    return ids[0] if len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0]) else None


def request_id_in(data: bytes) -> bytes | None:
    """
    Look for that id in what has come of a head, or in one that was refused.

    :param data: from its first byte.
    """
    head = data[: data.find(END_OF_HEAD) + len(END_OF_HEAD)] if END_OF_HEAD in data else data
    ids = _REQUEST_ID_LINE.findall(head, 0, MAX_HEAD)
    return ids[0] if len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0]) else None


def refusal_of_long_head(data: bytes) -> RequestError:
    """
    Say what is wrong with a head that does not end within `MAX_HEAD` bytes.

    :param data: at least so many bytes of it.
    :return: what is wrong with its beginning, so that it does not matter in which pieces it came; or else
        that it is too long.
    """
    try:
        PartialHead().check(data[:MAX_HEAD])
    except RequestError as error:
        return error
    return HeaderTooLarge(f"The header is over {MAX_HEAD} bytes.")


def _not_a_request_line(data: bytes) -> MalformedRequest:
    if data.startswith(_TLS_HANDSHAKE):
        return MalformedRequest(
            "This port speaks HTTP without TLS: the URL begins with http://, not https://."
        )
    return MalformedRequest(
        "The request does not begin with a request line of HTTP/1.1, such as: GET / HTTP/1.1."
    )


def _split(target: bytes) -> tuple[bytes, bytes]:
    """
    Find path and query (RFC 9112, section 3.2).

    A whole URL is accepted as every server has to, and what it says of the host is ignored as ``Host`` is.
    """
    if not target.startswith(b"/"):
        if target == b"*":
            return target, b""
        scheme = _SCHEME.match(target)
        if scheme is None:
            raise MalformedRequest('The target of a request is a path, which begins with "/".')
        rest = target[scheme.end() :]
        start = next((n for n, octet in enumerate(rest) if octet in b"/?"), len(rest))
        target = rest[start:] if rest[start : start + 1] == b"/" else b"/" + rest[start:]
    path, _, query = target.partition(b"?")
    return path, query


def _interpret(method: bytes, path: bytes, query: bytes, *, is_1_1: bool, fields: Fields) -> Head:
    check_host(fields, is_required=is_1_1)
    length = _length(fields, is_1_1=is_1_1)
    expectations = fields.all(b"expect")
    if expectations and [expectation.lower() for expectation in expectations] != [b"100-continue"]:
        raise ExpectationNotMet
    options = fields.joined(b"connection")
    return Head(
        method=method,
        path=path,
        query=query,
        is_1_1=is_1_1,
        fields=fields,
        length=length,
        # RFC 9110, section 10.1.1: HTTP/1.0 does not know it.
        expects_continue=bool(expectations) and is_1_1,
        keeps_alive=is_1_1 and (options is None or not _has_close(options)),
        request_id=request_id_of(fields),
        codings=content_codings(fields),
    )


def _length(fields: Fields, *, is_1_1: bool) -> int | None:
    """How long the body is (RFC 9112, section 6.3). What could be read in two ways has been refused."""
    codings = fields.all(b"transfer-encoding")
    if codings:
        if not is_1_1:
            # RFC 9112, section 6.1: such a request is faulty, and a way to smuggle another past a proxy.
            raise MalformedRequest("HTTP/1.0 has no Transfer-Encoding; send a Content-Length.")
        if [coding.lower() for coding in codings] != [b"chunked"]:
            raise MalformedRequest("The only Transfer-Encoding that this service reads is chunked.")
        return None
    lengths = fields.all(b"content-length")
    # int() does not read thousands of digits, of which all but the last few can only be zeros here.
    return int(lengths[0].lstrip(b"0") or b"0") if lengths else 0


def _has_close(options: bytes) -> bool:
    return b"close" in [option.strip(b" \t") for option in options.lower().split(b",")]


def check_host(fields: Fields, *, is_required: bool) -> None:
    """
    Look at what the request says of its host (RFC 9112, section 3.2).

    :param is_required: HTTP/1.0 did not have the field yet.
    :raise MalformedRequest: there is none, or more than one, or it names nothing that can be reached.
    """
    hosts = fields.all(b"host")
    if len(hosts) != 1:
        if hosts or is_required:
            raise MalformedRequest(f"A request has one Host header field; this one has {len(hosts)}.")
    elif not _is_host(hosts[0]):
        raise MalformedRequest("The Host header field does not hold the name or the address of a host.")


@lru_cache(maxsize=64)
def _is_host(host: bytes) -> bool:
    match = _HOST.fullmatch(host)
    if match is None or match[1] is None:
        return match is not None
    try:
        IPv6Address(match[1].decode("ascii"))
    except ValueError:
        return False
    return True
