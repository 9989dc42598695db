"""The URL of the service."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

__all__ = ["parse_base_url"]

# Legal in a path (RFC 3986, section 3.3), and the percent sign, since the path may be encoded already.
PATH_CHARACTERS = "/%:@!$&'()*+,;=~"
_NOT_A_URL = "that is not a URL such as http://127.0.0.1:8080/"
HOST = re.compile(r"[A-Za-z0-9._:-]+")


def parse_base_url(text: str) -> str:
    """
    Parse the URL of a service, as a person writes it.

    :param text: such as ``http://127.0.0.1:8080``; a path, for a service behind a proxy, is kept.
    :return: the URL in ASCII, with a slash at the end, so that names can be appended.
    :raise ValueError: the URL is invalid; the message says what would be valid.
    """
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").encode("idna").decode("ascii")
        port = "" if parts.port is None else f":{parts.port}"
        path = quote(parts.path, safe=PATH_CHARACTERS)
    # UnicodeError, of a host or a path, is a ValueError as well.
    except ValueError:
        # Without the library's message, which may repeat a password.
        raise ValueError(_NOT_A_URL) from None
    if parts.scheme not in {"http", "https"} or not HOST.fullmatch(host):
        raise ValueError(_NOT_A_URL)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("that URL must end with its path: no user, query or fragment")
    if ":" in host:
        host = f"[{host}]"
    return f"{parts.scheme}://{host}{port}{path.rstrip('/')}/"
