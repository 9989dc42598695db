"""
Parsed descriptions of server endpoints: ``tcp:8080:interface=127.0.0.1``.

The syntax is that of `twisted.internet.endpoints.serverFromString`, which does not return the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final

from msgspec import Struct

from sampleapp.files import shown_path
from sampleapp.tls.https_arguments import HTTPS_PLACES

_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "tcp": ("port", "interface", "backlog"),
    "tcp6": ("port", "backlog", "interface"),
    "ssl": ("port", "privateKey", "certKey", "sslmethod", "interface", "backlog"),
    "tls": ("path", "port", "backlog", "interface"),
    "unix": ("address", "mode", "backlog", "lockfile"),
    "https": HTTPS_PLACES,
}
"""The names of arguments that may be given without a name, in their order, by the kind of the endpoint."""

_NAME: Final = re.compile(r"[A-Za-z]{1,20}")
_WORDS: Final = re.compile(
    r".{0,3}|[a-z]{1,8}|[0-9]{1,10}|[0-9A-Fa-f.:]*[.:][0-9A-Fa-f.:]*(?:%[\w-]{1,15})?|localhost|INET6?|UNIX|TLSv1\.[0-9]"
)
"""Values that are not secrets: numbers, addresses, and short words such as ``required``."""

_EVERY_ADDRESS: Final[Mapping[str, str]] = {
    "tcp": "0.0.0.0",  # noqa: S104 -- what Twisted listens on without interface=
    "ssl": "0.0.0.0",  # noqa: S104 -- as above
    "https": "0.0.0.0",  # noqa: S104 -- as above
    "tcp6": "::",
    "tls": "::",
}
"""The default interface, by the kind of the endpoint."""


class EndpointString(Struct, frozen=True):
    """The parsed description of one endpoint."""

    kind: str
    """The text before the first colon, in lower case: ``tcp``, ``https``."""
    by_place: tuple[str, ...]
    """The arguments without a name."""
    by_name: dict[str, str]

    @classmethod
    def parse(cls, description: str) -> EndpointString:
        r"""
        Parse a description.

        A colon ends an argument, the first equals sign ends its name, and a backslash escapes the character
        after it: ``tcp6:8080:interface=\:\:1``.
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
        """Return an argument given with or without its name; ``None`` if it is not given."""
        given = dict(zip(_PLACES.get(self.kind, ()), self.by_place, strict=False))
        return self.by_name.get(name, given.get(name))


def escaped_interface(description: str) -> str | None:
    r"""
    Find an IPv6 address whose colons are not escaped, as in ``tcp6:8080:interface=::1``.

    :return: the escaped description, ``tcp6:8080:interface=\:\:1``; ``None`` if there is no such address.
    """
    before, name, after = description.partition("interface=")
    chunks = after.split(":")
    # A zone may be nearly any text, but not another argument.
    most = next((number for number, chunk in enumerate(chunks) if "=" in chunk), len(chunks))
    for count in range(most, 2, -1):
        address = ":".join(chunks[:count]).removeprefix("[").removesuffix("]")
        try:
            IPv6Address(address)
        except ValueError:
            continue
        escaped = address.replace(":", r"\:")
        return ":".join([f"{before}{name}{escaped}", *chunks[count:]])
    return None


def shown_endpoint(description: str) -> str:
    """Return a description for messages, with an ellipsis instead of each value that may be a secret."""
    endpoint = EndpointString.parse(description)
    if not _possible_secrets(endpoint):
        return description
    by_name = [
        f"{name if _NAME.fullmatch(name) else _shown(name)}={_shown(value)}"
        for name, value in endpoint.by_name.items()
    ]
    return ":".join([endpoint.kind, *map(_shown, endpoint.by_place), *by_name])


def without_secrets(sentence: str, description: str) -> str:
    """Leave out, from a sentence about an endpoint, the values that may be secrets."""
    for value in _possible_secrets(EndpointString.parse(description)):
        sentence = sentence.replace(value, _shown(value))
    return sentence


def _possible_secrets(endpoint: EndpointString) -> list[str]:
    texts = (*endpoint.by_place, *endpoint.by_name.values())
    values = {each for text in texts for each in text.split(":") if _shown(each) != each}
    names = {name for name in endpoint.by_name if not _NAME.fullmatch(name)}
    return sorted(values | names, key=len, reverse=True)


def _shown(value: str) -> str:
    return value if _WORDS.fullmatch(value) else shown_path(value)


def with_socket_mode(description: str, mode: str) -> str:
    """
    Add the mode of a Unix socket to the description of one that has none.

    :param mode: in octal digits.
    :return: the same description if it has a mode, or is of another kind.
    """
    endpoint = EndpointString.parse(description)
    if endpoint.kind == "haproxy":
        endpoint = EndpointString.parse(description.partition(":")[2])
    is_without = endpoint.kind == "unix" and endpoint.argument("mode") is None
    return f"{description}:mode={mode}" if is_without else description


def is_loopback(description: str) -> bool:
    """
    Return whether an endpoint can be reached from this machine only.

    True for a Unix socket, and for a loopback interface. False if the description does not tell, as with
    ``systemd:``.
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
        # RFC 6761, section 6.3: always loopback.
        return True
    try:
        address = ip_address(interface.partition("%")[0])
    except ValueError:
        return False
    # RFC 4291, section 2.5.5.2.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
