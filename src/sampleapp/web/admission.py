"""
Whether a request may come in at all, judged by its header fields alone.

Pure functions of bytes: the channel asks them before it takes the body.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address

from twisted.web.http_headers import Headers

from sampleapp.web.request_errors import (
    BodyTooLarge,
    ExpectationNotMet,
    MalformedRequest,
    UnsupportedContentCoding,
)

__all__ = ["admit", "is_json"]

# A name that DNS could hold, an IPv4 address, or an IPv6 address in brackets; then perhaps a port. The
# grammar of RFC 3986 (section 3.2.2) allows more, none of which names a host that can be reached.
_HOST = re.compile(
    rb"(?:\[([0-9A-Fa-f:.]{2,45})\]|(?:[A-Za-z0-9_-]{1,63}\.)*(?:[A-Za-z0-9_-]{1,63})?)(?::[0-9]*)?"
)

_CONTENT_TYPE = re.compile(rb"[ \t]*application/json[ \t]*(?:;.*)?", re.IGNORECASE | re.DOTALL)


def admit(*, headers: Headers, version: bytes, length: int | None, max_body: int) -> None:
    """
    Let a request pass, or say why not.

    :param version: the protocol version of the request line.
    :param length: the declared length of the body in bytes; ``None`` when it comes in chunks.
    :param max_body: the greatest length of a body, in bytes.
    :raise RequestError: it may not pass.
    """
    hosts = headers.getRawHeaders(b"Host", [])
    if len(hosts) != 1:
        # RFC 9112, section 3.2; HTTP/1.0 did not have the field yet.
        if hosts or version == b"HTTP/1.1":
            raise MalformedRequest(f"A request has one Host header field; this one has {len(hosts)}.")
    elif not _is_valid_host(hosts[0]):
        raise MalformedRequest("The Host header field does not hold the name or the address of a host.")
    if length is None and version != b"HTTP/1.1":
        # RFC 9112, section 6.1: such a request is faulty, and a way to smuggle another past a proxy.
        raise MalformedRequest("HTTP/1.0 has no Transfer-Encoding; send a Content-Length.")
    if any(coding.lower() != b"chunked" for coding in headers.getRawHeaders(b"Transfer-Encoding", [])):
        # Twisted passes over "identity", which RFC 9112 has no more (section 7).
        raise MalformedRequest("The only Transfer-Encoding that this service reads is chunked.")
    if length is not None and length > max_body:
        raise BodyTooLarge(max_body)
    codings = headers.getRawHeaders(b"Content-Encoding", [])
    if any(coding.lower() not in (b"", b"identity") for coding in codings):
        raise UnsupportedContentCoding
    expectations = [expectation.lower() for expectation in headers.getRawHeaders(b"Expect", [])]
    if expectations not in ([], [b"100-continue"]):
        raise ExpectationNotMet


@lru_cache(maxsize=256)
def _is_valid_host(host: bytes) -> bool:
    """
    Whether a ``Host`` header field holds what one could have connected to (RFC 9110, section 7.2).

    Klein meets a name that IDNA cannot encode with a traceback, so no such name may get that far.
    """
    match = _HOST.fullmatch(host)
    if match is None or match[1] is None:
        return match is not None
    try:
        IPv6Address(match[1].decode("ascii"))
    except ValueError:
        return False
    return True


@lru_cache(maxsize=256)
def is_json(content_type: bytes) -> bool:
    """
    Whether a ``Content-Type`` says ``application/json``, whatever its parameters.

    The media type defines none, ``charset`` included (RFC 8259, section 11): JSON is in UTF-8.
    """
    return _CONTENT_TYPE.fullmatch(content_type) is not None
