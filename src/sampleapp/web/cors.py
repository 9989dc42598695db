"""
Requests from pages of other sites: allowed by cross-origin resource sharing (CORS), or rejected.

Pages of allowed sites may use the service from a browser: https://fetch.spec.whatwg.org/#http-cors-protocol.

A browser sends some requests of other sites without a preflight (cross-site request forgery): a form can send
a body as plain text to any host that the browser reaches, also in its user's own network. Browsers mark such
requests by fetch metadata (https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header) and by ``Origin``
(https://fetch.spec.whatwg.org/#origin-header). Other clients need not send either field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus
from ipaddress import AddressValueError, IPv6Address
from typing import Final

from msgspec.structs import replace

from sampleapp.web.errors import CrossSiteRequest
from sampleapp.web.responses import Headers, Response
from sampleapp.web.server import SAFE, Dispatch, Fields, Handler, Request
from sampleapp.web.server.head import Head

_HARMLESS: Final = frozenset({*SAFE, b"OPTIONS"})
"""Methods that publish nothing."""

# Any other value is rejected, also one that browsers may send in the future.
_OWN: Final = (b"same-origin", b"none")

_HEADER_ORIGIN: Final = re.compile(rb"(https?)://([^/:@\[\]]+|\[[0-9a-f:.]+\])(?::([0-9]+))?", re.IGNORECASE)
_HOST: Final = re.compile(rb"([^/:@\[\]]+|\[[0-9a-f:.]+\])(?::([0-9]*))?", re.IGNORECASE)
_HEADER_PORTS: Final = {b"http": 80, b"https": 443}


class CrossSiteRule:
    """The rule that pages of other sites publish nothing, unless their origin is allowed."""

    def __init__(self, allowed_origins: Iterable[str] = ()) -> None:
        """:param allowed_origins: each as `sampleapp.web.cors.check_origin` takes it."""
        self._allowed = frozenset(origin.encode("ascii") for origin in allowed_origins)

    def check(self, request: Request) -> None:
        """
        Check the origin of a request.

        :raise CrossSiteRequest: it could publish, and it is from a page of a site that is not allowed.
        """
        if request.method in _HARMLESS:
            return
        fields = request.fields
        sites, origins = fields.all(b"sec-fetch-site"), fields.all(b"origin")
        if sites or origins:
            self._check(fields, sites, origins)

    def _check(self, fields: Fields, sites: tuple[bytes, ...], origins: tuple[bytes, ...]) -> None:
        if len(origins) == 1 and origins[0] in self._allowed:
            # The origin is allowed, although Sec-Fetch-Site says cross-site.
            return
        hosts = fields.all(b"host")
        if origins and not (len(origins) == len(hosts) == 1 and _is_same(origins[0], hosts[0])):
            raise CrossSiteRequest("Origin", b", ".join(origins))
        if any(site not in _OWN for site in sites):
            raise CrossSiteRequest("Sec-Fetch-Site", b", ".join(sites))


@lru_cache(maxsize=64)
def _is_same(origin: bytes, host: bytes) -> bool:
    """
    Return whether an origin has the host and the port of a ``Host`` field.

    A missing port, on either side, is the default port of the origin's scheme: the service does not know
    whether a proxy in front of it uses TLS.
    """
    of_origin, of_host = _HEADER_ORIGIN.fullmatch(origin), _HOST.fullmatch(host)
    if of_origin is None or of_host is None:
        # Such as "null", the origin of sandboxed pages.
        return False
    default = _HEADER_PORTS[of_origin[1].lower()]
    return of_origin[2].lower() == of_host[1].lower() and _port(of_origin[3], default) == _port(
        of_host[2], default
    )


def _port(digits: bytes | None, default: int) -> bytes:
    # Compared as text, since int() rejects thousands of digits.
    return (digits or b"").lstrip(b"0") or b"%d" % default


# Each character of a name can be matched in one way only, so that a long name is rejected in linear time.
_LABEL: Final = r"[a-z0-9_][a-z0-9_-]*"
_ORIGIN: Final = re.compile(
    rf"(?P<scheme>https?)://(?P<host>{_LABEL}(?:\.{_LABEL})*(?<!-)\.?|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)
# Of pages that come with an app or an extension. Their hosts may be anything, and keep their case (URL
# Standard of WHATWG, section 3.5, opaque hosts); WebViews of Android send "file://", without one.
_APP_ORIGIN: Final = re.compile(
    r"(?!(?:https?|wss?):)[a-z][a-z0-9+.-]*://(?:[A-Za-z0-9._~!$&'()+,;=%-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?|file://"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_HIGHEST_PORT: Final = 65535
_EXAMPLE: Final = "https://example.org"

_ALLOWED_HEADERS: Final = (
    b"Accept, Authorization, Content-Encoding, Content-Type, Idempotency-Key, If-Match, If-None-Match, "
    b"Last-Event-ID, traceparent, tracestate, X-Request-Id"
)
_EXPOSED_HEADERS: Final = (
    b"Allow, ETag, Idempotent-Replayed, Link, Position, Retry-After, Up-To-Date, "
    b"WWW-Authenticate, X-Request-Id"
)
_MOST_ASKED_HEADERS: Final = 64
_FIELD_NAME: Final = re.compile(rb"[!#-'*+.^_`|~0-9A-Za-z-]{1,256}")
"""RFC 9110, section 5.1."""
_MAX_AGE_S: Final = 7200
"""The lifetime of a preflight answer in a browser's cache; Chromium's maximum."""
_VARY: Final = b"Vary"
_BY_ORIGIN: Final = (_VARY, b"Origin")


class NotAnOrigin(ValueError):
    """Browsers never send this text as an origin; the message says what would be right."""


def check_origin(text: str) -> str:
    """
    Check that a text is an origin as browsers and apps send it (RFC 6454, section 6.2).

    :return: the same text.
    :raise NotAnOrigin: it is not an origin, or is not in the form that browsers send.
    """
    if "*" in text:
        raise NotAnOrigin(
            "does not accept *, since pages that you do not know could use the service; name each origin, "
            f"such as {_EXAMPLE}"
        )
    if _APP_ORIGIN.fullmatch(text):
        return text
    match = _ORIGIN.fullmatch(text)
    if match is None:
        # Not repeated: there may be a password in it.
        raise NotAnOrigin(f"takes an origin, such as {_EXAMPLE}{_hint(text)}")
    scheme, host, port = match["scheme"], match["host"], match["port"]
    if port == _DEFAULT_PORTS[scheme]:
        raise NotAnOrigin(f"takes {scheme}://{host} instead of {text!r}: browsers omit the default port")
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


def _hint(text: str) -> str:
    if text == "null":
        return "; null is the origin of sandboxed pages of every site"
    scheme, _, rest = text.partition("://")
    for lower in (f"{scheme.lower()}://{rest}", text.lower()):
        if lower != text and _is_origin(lower):
            return f"; browsers send it in lower case: {lower}"
    origin = f"{scheme}://{rest.partition('/')[0]}"
    if "/" in rest and _is_origin(origin.lower()):
        return f"; an origin has no path and no slash at its end: {origin}"
    if not text.isascii():
        return "; browsers send a name with non-ASCII letters in its ASCII form, which begins with xn--"
    if "://" not in text:
        return "; an origin begins with a scheme, such as https://"
    return ""


def _is_origin(text: str) -> bool:
    return (_ORIGIN.fullmatch(text) or _APP_ORIGIN.fullmatch(text)) is not None


class Cors:
    """
    The allowed origins, and the header fields of responses to their pages.

    A request from another origin is answered without these fields, and its browser withholds the response
    from the page. No response allows credentials that the browser itself adds (cookies, client certificates):
    a page sends its token, if it needs one, in ``Authorization``.
    """

    def __init__(self, origins: Iterable[str], *, methods: Iterable[str]) -> None:
        """
        :param origins: each as `check_origin` takes it.
        :param methods: of all paths of the service.
        """
        self._origins = {origin.encode("ascii") for origin in origins}
        allowed_methods = ", ".join(sorted(methods)).encode("ascii")
        self._preflight: Headers = (
            (b"Access-Control-Allow-Methods", allowed_methods),
            (b"Access-Control-Max-Age", b"%d" % _MAX_AGE_S),
        )
        # The service has few different sets of headers.
        self._with_cors = lru_cache(maxsize=256)(self._headers)

    def allows(self, origins: Sequence[bytes]) -> bool:
        """
        Return whether a page of this origin may use the service.

        :param origins: the values of the ``Origin`` fields of a request; with several, it may not.
        """
        return len(origins) == 1 and origins[0] in self._origins

    def preflight(
        self, origins: Sequence[bytes], asked: bytes | None, *, asked_headers: bytes = b""
    ) -> Response | None:
        """
        Answer a preflight: the OPTIONS request of a browser before it sends the request of a page.

        The response is the same for every path, so that paths are not disclosed.

        :param asked: the value of ``Access-Control-Request-Method``.
        :param asked_headers: the value of ``Access-Control-Request-Headers``. All of up to 64 are allowed:
            what a header does is checked in the request itself.
        :return: ``None`` if the request is not a preflight, or the origin is not allowed.
        """
        if asked is None or not self.allows(origins):
            return None
        names = [name.strip() for name in asked_headers.split(b",", _MOST_ASKED_HEADERS)]
        if len(names) > _MOST_ASKED_HEADERS or not all(map(_FIELD_NAME.fullmatch, names)):
            names = []
        allowed = b", ".join((_ALLOWED_HEADERS, *names))
        return Response(HTTPStatus.NO_CONTENT, (*self._preflight, (b"Access-Control-Allow-Headers", allowed)))

    def answering_preflights(self, dispatch: Dispatch) -> Dispatch:
        """
        Wrap a dispatch, and answer preflights instead of it.

        Browsers send no credentials with a preflight, so it must be answered before access control.
        """

        def answer_preflight_or_dispatch(request: Request) -> Response | Handler:
            if request.method == b"OPTIONS":
                fields = request.fields
                asked = fields.joined(b"Access-Control-Request-Method")
                asked_headers = fields.joined(b"Access-Control-Request-Headers") or b""
                preflight = self.preflight(fields.all(b"Origin"), asked, asked_headers=asked_headers)
                if preflight is not None:
                    return preflight
            return dispatch(request)

        return answer_preflight_or_dispatch

    def extend(self, response: Response, head: Head | None) -> Response:
        """
        Add the fields that tell the browser whether the page may see a response.

        :param head: of the request; ``None`` if it is malformed.
        """
        origins = () if head is None else head.fields.all(b"Origin")
        origin = origins[0] if self.allows(origins) else None
        # Clients choose names in the response to a preflight, so it must not take places in the cache.
        with_cors = self._headers if _is_preflight(response.headers) else self._with_cors
        return replace(response, headers=with_cors(response.headers, origin))

    def _headers(self, headers: Headers, origin: bytes | None) -> Headers:
        # Also for requests without Origin: a cache must not serve their responses to pages.
        extended = _with_vary(headers)
        if origin is None:
            return extended
        return (
            *extended,
            (b"Access-Control-Allow-Origin", origin),
            # Pages cannot read the fields of a preflight answer.
            *(() if _is_preflight(headers) else ((b"Access-Control-Expose-Headers", _EXPOSED_HEADERS),)),
        )


def _is_preflight(headers: Headers) -> bool:
    return bool(headers) and headers[0][0] == b"Access-Control-Allow-Methods"


def _with_vary(headers: Headers) -> Headers:
    if not any(name == _VARY for name, _ in headers):
        return (*headers, _BY_ORIGIN)
    return tuple((name, b"%b, Origin" % value) if name == _VARY else (name, value) for name, value in headers)
