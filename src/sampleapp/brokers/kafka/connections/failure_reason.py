"""The reason why a broker cannot be used, as a sentence that says what to check."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["ConnectionFailed", "FailureReason", "Peer", "address"]


class FailureReason(Struct, frozen=True):
    """One reason why a broker cannot be used."""

    sentence: str
    """For the operator: names the host and the port, and what to check. Never holds a credential."""
    public: str
    """For any caller: has no address and no name of a file."""
    lasting: bool
    """True if retrying cannot help until an operator changes something."""
    incompatible: bool = False
    """True if the broker is too old, or too new, for this service."""
    is_rejection: bool = False
    """True if one side rejected the other's credentials or certificate: reloading the files may help."""


class ConnectionFailed(Exception):
    """A connection to a broker could not be made ready for use."""

    def __init__(self, reason: FailureReason) -> None:
        """:param reason: the reason."""
        super().__init__(reason.sentence)
        self.reason = reason


class Peer(Struct, frozen=True, kw_only=True):
    """The peer of a connection and its security settings, for sentences about it."""

    host: str
    port: int
    tls: bool = False
    own_ca: bool = False
    """True if ca= gives the trusted authorities."""
    client_certificate: bool = False
    mechanism: str | None = None
    """The mechanism of SASL; ``None`` without SASL."""

    @property
    def at(self) -> str:
        """The address as people write it."""
        return address(self.host, self.port)


def address(host: str, port: int) -> str:
    """
    Return an address as people write it, with an IPv6 address in brackets (RFC 3986, section 3.2.2).

    A host that is not printable is escaped: a broker may advertise one.
    """
    shown = host if host.isprintable() else ascii(host)
    return f"[{shown}]:{port}" if ":" in host else f"{shown}:{port}"
