"""
Reject requests from pages of other sites (cross-site request forgery).

A browser sends some of these without a preflight: a form can send a body as plain text to any host that the
browser reaches, also in its user's own network. Browsers mark such requests by fetch metadata
(https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header) and by ``Origin``
(https://fetch.spec.whatwg.org/#origin-header). Other clients need not send either field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from sampleapp.web.errors import CrossSiteRequest
from sampleapp.web.server import SAFE, Fields, Request

__all__ = ["CrossSiteRule"]

_HARMLESS: Final = frozenset({*SAFE, b"OPTIONS"})
"""Methods that publish nothing."""

# Any other value is rejected, also one that browsers may send in the future.
_OWN: Final = (b"same-origin", b"none")

_ORIGIN: Final = re.compile(rb"(https?)://([^/:@\[\]]+|\[[0-9a-f:.]+\])(?::([0-9]+))?", re.IGNORECASE)
_HOST: Final = re.compile(rb"([^/:@\[\]]+|\[[0-9a-f:.]+\])(?::([0-9]*))?", re.IGNORECASE)
_DEFAULT_PORTS: Final = {b"http": 80, b"https": 443}


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
    of_origin, of_host = _ORIGIN.fullmatch(origin), _HOST.fullmatch(host)
    if of_origin is None or of_host is None:
        # Such as "null", the origin of sandboxed pages.
        return False
    default = _DEFAULT_PORTS[of_origin[1].lower()]
    return of_origin[2].lower() == of_host[1].lower() and _port(of_origin[3], default) == _port(
        of_host[2], default
    )


def _port(digits: bytes | None, default: int) -> bytes:
    # Compared as text, since int() rejects thousands of digits.
    return (digits or b"").lstrip(b"0") or b"%d" % default
