"""
Which sites' pages may use the service from a browser: cross-origin resource sharing, by the Fetch standard.

https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus
from ipaddress import AddressValueError, IPv6Address
from typing import Final

from msgspec.structs import replace

from sampleapp.web.answers import Answer, Headers

__all__ = ["Cors", "NotAnOrigin", "check_origin"]

_ORIGIN: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9_](?:[a-z0-9_-]*\.?[a-z0-9_])*\.?|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_HIGHEST_PORT: Final = 65535
_EXAMPLE: Final = "https://example.org"

_ALLOWED_HEADERS: Final = (
    b"Accept, Authorization, Content-Encoding, Content-Type, If-Match, If-None-Match, traceparent, "
    b"tracestate, X-Request-Id"
)
_EXPOSED_HEADERS: Final = b"Allow, ETag, Retry-After, WWW-Authenticate, X-Request-Id"
_MAX_AGE_S: Final = 7200
"""How long a browser may keep the answer to a preflight; Chromium keeps none longer."""
_VARY: Final = b"Vary"
_BY_ORIGIN: Final = (_VARY, b"Origin")


class NotAnOrigin(ValueError):
    """A text that no browser sends as the origin of a page; says what would be right."""


def check_origin(text: str) -> str:
    """
    Take the origin of a site, as browsers send it (RFC 6454, section 6.2).

    :return: the same text.
    :raise NotAnOrigin: it is none, or would never be sent like that.
    """
    if text == "*":
        raise NotAnOrigin(
            "takes no *, with which every page that a user opens could use the service; name each origin, "
            f"such as {_EXAMPLE}"
        )
    match = _ORIGIN.fullmatch(text)
    if match is None:
        raise NotAnOrigin(f"takes an origin, {_EXAMPLE} for example, not {text!r}{_what_is_wrong(text)}")
    scheme, host, port = match["scheme"], match["host"], match["port"]
    if port == _DEFAULT_PORTS[scheme]:
        raise NotAnOrigin(f"takes {scheme}://{host} instead of {text!r}: browsers leave that port out")
    if port is not None and int(port) > _HIGHEST_PORT:
        raise NotAnOrigin(f"takes an origin with a port up to {_HIGHEST_PORT}, not {text!r}")
    if host.startswith("["):
        try:
            shortest = f"[{IPv6Address(host[1:-1]).compressed}]"
        except AddressValueError:
            raise NotAnOrigin(f"takes an IPv6 address in brackets, which {host} is not") from None
        if host != shortest:
            raise NotAnOrigin(f"takes an address in its shortest form, {shortest}, not {host}")
    return text


def _what_is_wrong(text: str) -> str:
    lower = text.lower()
    if lower != text and _ORIGIN.fullmatch(lower):
        return f"; browsers send it in lower case: {lower}"
    if _ORIGIN.match(lower) and "/" in lower.removeprefix("https://").removeprefix("http://"):
        scheme, _, rest = text.partition("://")
        return f"; it has no path, nor a slash at its end: {scheme}://{rest.partition('/')[0]}"
    if not text.isascii():
        return "; browsers send a name with other letters in its ASCII form, which begins with xn--"
    if "://" not in text:
        return "; it begins with https:// or http://"
    return ""


class Cors:
    """
    The origins that are allowed, and what their pages are told.

    An origin that is not allowed is answered as without all this, and its browser keeps the answer from the
    page. No answer allows credentials that a browser has by itself (cookies, client certificates): a page
    gives a token, if one is needed, in ``Authorization``.
    """

    def __init__(self, origins: Iterable[str], *, methods: Iterable[str]) -> None:
        """
        :param origins: each as `check_origin` takes it.
        :param methods: that the service knows, on any path.
        """
        self._origins = {origin.encode("ascii") for origin in origins}
        allowed_methods = ", ".join(sorted(methods)).encode("ascii")
        self._preflight: Headers = (
            (b"Access-Control-Allow-Methods", allowed_methods),
            (b"Access-Control-Allow-Headers", _ALLOWED_HEADERS),
            (b"Access-Control-Max-Age", b"%d" % _MAX_AGE_S),
        )
        # An answer's headers are few, and most of them the same many times.
        self._with_cors = lru_cache(maxsize=256)(self._headers)

    def allows(self, origins: Sequence[bytes]) -> bool:
        """
        Whether a page of that origin may use the service.

        :param origins: the values of the fields ``Origin`` of a request, of which there must be one.
        """
        return len(origins) == 1 and origins[0] in self._origins

    def preflight(self, origins: Sequence[bytes], asked: bytes | None) -> Answer | None:
        """
        Answer a browser that asks with OPTIONS, before it sends the request of a page, whether it may.

        The answer is the same for every path, so that it tells nobody which there are.

        :param asked: the value of ``Access-Control-Request-Method``.
        :return: ``None`` if it is no such question, or the origin is not allowed.
        """
        if asked is None or not self.allows(origins):
            return None
        return Answer(HTTPStatus.NO_CONTENT, self._preflight)

    def extend(self, answer: Answer, origins: Sequence[bytes]) -> Answer:
        """
        Tell the browser whether the page may see an answer.

        :param origins: as for `allows`; none if the request was not understood.
        """
        origin = origins[0] if self.allows(origins) else None
        return replace(answer, headers=self._with_cors(answer.headers, origin))

    def _headers(self, headers: Headers, origin: bytes | None) -> Headers:
        # Also without the field Origin: a cache must not give that answer to a page.
        extended = _with_vary(headers)
        if origin is None:
            return extended
        return (
            *extended,
            (b"Access-Control-Allow-Origin", origin),
            # What a preflight exposes is nothing that a page could ask for.
            *(() if headers == self._preflight else ((b"Access-Control-Expose-Headers", _EXPOSED_HEADERS),)),
        )


def _with_vary(headers: Headers) -> Headers:
    if not any(name == _VARY for name, _ in headers):
        return (*headers, _BY_ORIGIN)
    return tuple((name, b"%b, Origin" % value) if name == _VARY else (name, value) for name, value in headers)
