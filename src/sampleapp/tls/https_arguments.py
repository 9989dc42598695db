"""The arguments of an ``https:`` endpoint as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Final

from msgspec import Struct

from sampleapp.errors import InvalidOption

HTTPS_PLACES: Final = ("port", "privateKey", "certKey")
"""The names of arguments that may be given without a name, in this order."""
MINIMUM_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_CLIENT_CERTIFICATE: Final = ("optional", "required")
_NAMES: Final = (
    *HTTPS_PLACES,
    "extraCertChain",
    "clientCA",
    "clientCertificate",
    "minimum",
    "interface",
    "backlog",
)
_EXAMPLE: Final = "https:8443:privateKey=key.pem:certKey=certificate.pem"
_HIGHEST_PORT: Final = 65535


class HTTPSArguments(Struct, frozen=True, kw_only=True):
    """The address to listen on, the files, and the settings of an ``https:`` endpoint."""

    port: int
    """0 for any free port."""
    private_key: str
    """The path of a PEM file."""
    certificate: str
    """The path of a PEM file: the server's certificate first, then any intermediate authorities."""
    extra_chain: str | None = None
    """The path of a PEM file with more intermediate authorities."""
    client_ca: str | None = None
    """
    The path of a PEM file with the authorities that sign certificates of clients.

    Without it, clients are not asked for certificates.
    """
    requires_client: bool = False
    """True to reject a client without a certificate."""
    minimum: str = MINIMUM_VERSIONS[0]
    """One of `MINIMUM_VERSIONS`."""
    interface: str = ""
    """An IP address; empty for all of IPv4."""
    backlog: int = 50
    """The maximum number of connections that wait to be accepted."""

    @classmethod
    def parse(cls, by_place: Sequence[str], by_name: Mapping[str, str]) -> HTTPSArguments:
        """
        Parse the arguments of an endpoint's description.

        :param by_place: arguments without a name, in the order of `HTTPS_PLACES`.
        :param by_name: the other arguments.
        :raise InvalidOption: an argument is missing, unknown or invalid.
        """
        given = _given(by_place, by_name)
        if "port" not in given or "privateKey" not in given:
            missing = "port" if "port" not in given else "private key"
            raise InvalidOption(f"an https: endpoint needs a {missing}. Give one such as {_EXAMPLE}.")
        client_ca = given.get("clientCA")
        if "clientCertificate" in given and client_ca is None:
            raise InvalidOption(
                "clientCertificate= needs clientCA=, a PEM file with the authorities that sign the "
                "certificates of clients."
            )
        return cls(
            port=_number(given, "port", at_least=0, at_most=_HIGHEST_PORT),
            private_key=given["privateKey"],
            certificate=given.get("certKey", given["privateKey"]),
            extra_chain=given.get("extraCertChain"),
            client_ca=client_ca,
            requires_client=_one_of(given, "clientCertificate", _CLIENT_CERTIFICATE) == "required",
            minimum=_one_of(given, "minimum", MINIMUM_VERSIONS),
            interface=_interface(given.get("interface", "")),
            backlog=_number(given, "backlog", at_least=1, at_most=2**31 - 1) if "backlog" in given else 50,
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all files."""
        paths = (self.private_key, self.certificate, self.extra_chain, self.client_ca)
        return tuple(dict.fromkeys(path for path in paths if path is not None))


def _given(by_place: Sequence[str], by_name: Mapping[str, str]) -> dict[str, str]:
    unknown = next((name for name in by_name if name not in _NAMES), None)
    if unknown is not None:
        similar = get_close_matches(unknown.lower(), {name.lower(): name for name in _NAMES}, n=1)
        meant = [name for name in _NAMES if name.lower() in similar]
        hint = f"Did you mean {meant[0]}=?" if meant else f"It takes {', '.join(_NAMES)}."
        raise InvalidOption(f"{unknown}= is not an argument of an https: endpoint. {hint}")
    given = dict(zip(HTTPS_PLACES, by_place, strict=False))
    if len(by_place) > len(HTTPS_PLACES) or given.keys() & by_name.keys():
        raise InvalidOption(
            f"the argument '{by_place[-1]}' has no name. A colon inside a value is written \\:, as in "
            "interface=\\:\\:1."
        )
    empty = next((name for name, value in {**given, **by_name}.items() if not value), None)
    if empty is not None and empty != "interface":
        raise InvalidOption(f"{empty}= has no value. Give one, or leave it out.")
    return {**given, **by_name}


def _number(given: Mapping[str, str], name: str, *, at_least: int, at_most: int) -> int:
    text = given[name]
    # int() also accepts "1_0" and the digits of other scripts.
    if not (text.isascii() and text.isdigit() and at_least <= int(text) <= at_most):
        raise InvalidOption(f"{name}={text} is not a number from {at_least} to {at_most}.")
    return int(text)


def _one_of(given: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """Return the given value, or the first allowed one."""
    value = given.get(name, allowed[0])
    if value not in allowed:
        raise InvalidOption(f"{name}={value} is not a valid value. Give {' or '.join(allowed)}.")
    return value


def _interface(text: str) -> str:
    if text:
        try:
            ip_address(text)
        except ValueError as error:
            raise InvalidOption(
                f"interface={text} is not an IP address. Give one such as 127.0.0.1 or \\:\\:1, or leave it "
                "out to listen on every IPv4 address."
            ) from error
    return text
