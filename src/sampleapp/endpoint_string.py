"""
Descriptions of server endpoints, taken apart: ``tcp:8080:interface=127.0.0.1``.

The language is that of `twisted.internet.endpoints.serverFromString`, which keeps what it has read for
itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final

from msgspec import Struct

__all__ = ["HTTPS_PLACES", "EndpointString", "escaped_interface", "is_loopback"]

HTTPS_PLACES: Final = ("port", "privateKey", "certKey")
_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "tcp": ("port", "interface", "backlog"),
    "tcp6": ("port", "backlog", "interface"),
    "ssl": ("port", "privateKey", "certKey", "sslmethod", "interface", "backlog"),
    "tls": ("path", "port", "backlog", "interface"),
    "unix": ("address",),
    "https": HTTPS_PLACES,
}
"""The names of arguments that are given without one, by the kind of the endpoint."""

_EVERY_ADDRESS: Final[Mapping[str, str]] = {
    "tcp": "0.0.0.0",  # noqa: S104 -- what Twisted listens on without interface=
    "ssl": "0.0.0.0",  # noqa: S104 -- as above
    "https": "0.0.0.0",  # noqa: S104 -- as above
    "tcp6": "::",
    "tls": "::",
}
"""The interface of an endpoint that names none."""


class EndpointString(Struct, frozen=True):
    """One endpoint, as it is described."""

    kind: str
    """What stands before the first colon, in lower case."""
    by_place: tuple[str, ...]
    """The arguments without a name."""
    by_name: dict[str, str]

    @classmethod
    def parse(cls, description: str) -> EndpointString:
        r"""
        Take a description apart.

        A colon ends an argument, the first equals sign ends its name, and a backslash takes the meaning from
        the character after it: ``tcp6:8080:interface=\:\:1``.
        """
        texts = [""]
        names: list[str | None] = [None]
        is_escaped = False
        for character in description:
            if is_escaped:
                texts[-1] += character
                is_escaped = False
            elif character == "\\":
                is_escaped = True
            elif character == ":":
                texts.append("")
                names.append(None)
            elif character == "=" and names[-1] is None:
                names[-1], texts[-1] = texts[-1], ""
            else:
                texts[-1] += character
        arguments = list(zip(names, texts, strict=True))[1:]
        return cls(
            kind=texts[0].lower(),
            by_place=tuple(text for name, text in arguments if name is None),
            by_name={name: text for name, text in arguments if name is not None},
        )

    def argument(self, name: str) -> str | None:
        """Return an argument of an endpoint of Twisted or of ours, however it is given; ``None`` if not."""
        given = dict(zip(_PLACES.get(self.kind, ()), self.by_place, strict=False))
        return self.by_name.get(name, given.get(name))


def escaped_interface(description: str) -> str | None:
    r"""
    Find an IPv6 address whose colons are not escaped, as in ``tcp6:8080:interface=::1``.

    :return: what was probably meant, ``tcp6:8080:interface=\:\:1``; ``None`` if there is no such address.
    """
    before, name, after = description.partition("interface=")
    pieces = after.split(":")
    # A zone may be nearly anything, but no further argument.
    most = next((number for number, piece in enumerate(pieces) if "=" in piece), len(pieces))
    for count in range(most, 2, -1):
        address = ":".join(pieces[:count]).removeprefix("[").removesuffix("]")
        try:
            IPv6Address(address)
        except ValueError:
            continue
        escaped = address.replace(":", r"\:")
        return ":".join([f"{before}{name}{escaped}", *pieces[count:]])
    return None


def is_loopback(description: str) -> bool:
    """
    Whether an endpoint can be reached from this machine only.

    That is so for a Unix socket, and for an interface on loopback. Where it cannot be told, as for
    ``systemd:``, it is not taken for so.
    """
    endpoint = EndpointString.parse(description)
    if endpoint.kind == "unix":
        return True
    if endpoint.kind == "haproxy":
        return is_loopback(description.partition(":")[2])
    if endpoint.kind not in _EVERY_ADDRESS:
        return False
    interface = endpoint.argument("interface") or _EVERY_ADDRESS[endpoint.kind]
    if interface == "localhost":
        # RFC 6761, section 6.3: it always is.
        return True
    try:
        address = ip_address(interface.partition("%")[0])
    except ValueError:
        return False
    # RFC 4291, section 2.5.5.2.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
