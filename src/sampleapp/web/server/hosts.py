"""
The hosts that a request may name where no credentials are needed: a defence against DNS rebinding.

A site can let its own name point to a loopback address. For the browser, the service is then a part of that
site, so the site's pages may read all responses; but each request still has the site's name in ``Host``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from sampleapp.web.server.head import is_host

_EXAMPLE: Final = "gate.example.org"
_WITH_PORT: Final = re.compile(r"([^:]+|\[.*\]):[0-9]*")


class NotAHost(ValueError):
    """A text is not the name or the address of a host; the message says what to write instead."""


def check_host_name(text: str) -> str:
    """
    Parse the name or the address of a host, as ``--allow-host`` takes it.

    :param text: an IPv6 address may be in brackets.
    :return: the form in which hosts are compared: in lower case, without a dot at the end, without brackets.
    :raise NotAHost: the text is neither, or has a port.
    """
    if text == "*":
        raise NotAHost(
            "does not take *, since any site could let its name point here; name each host, such as "
            f"{_EXAMPLE}, or require credentials with --callers"
        )
    # Only the name of a host is repeated, since the rest may be a password.
    if "/" in text:
        host = text.partition("://")[2].partition("/")[0]
        example = host if _is_name(host) else _EXAMPLE
        raise NotAHost(f"takes a host without a scheme or a path, such as {example}")
    bare = text.removeprefix("[").removesuffix("]") if text[:1] + text[-1:] == "[]" else text
    try:
        return str(ip_address(bare))
    except ValueError:
        pass
    with_port = _WITH_PORT.fullmatch(text)
    if with_port is not None and is_host(with_port[1].encode("ascii", "replace")):
        raise NotAHost(f"takes a host without a port, {with_port[1]}: it holds for every port")
    if not text.isascii():
        raise NotAHost("takes the ASCII form of a name, which begins with xn--")
    name = text.lower().removesuffix(".")
    if not _is_name(name):
        raise NotAHost(f"takes the name or the address of a host, such as {_EXAMPLE}")
    return name


def _is_name(text: str) -> bool:
    return bool(text) and text.isascii() and ":" not in text and is_host(text.encode("ascii"))


class HostRule:
    """Allows loopback addresses, names that always resolve to them, and hosts that the operator names."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """:param allowed: each as `check_host_name` returns it."""
        self._allowed = frozenset(allowed)
        self.allows = lru_cache(maxsize=64)(self._allows)
        """Return whether a request may name this ``Host``, which must follow the grammar (`check_host`)."""

    def _allows(self, host: bytes) -> bool:
        text = host.decode("ascii").lower()
        name = text[1 : text.index("]")] if text.startswith("[") else text.partition(":")[0]
        name = name.removesuffix(".")
        # RFC 6761, section 6.3: resolvers answer for these without asking DNS.
        if name == "localhost" or name.endswith(".localhost") or name in self._allowed:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        # RFC 4291, section 2.5.5.2.
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback or str(address) in self._allowed
