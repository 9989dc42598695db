"""Why a broker cannot be used, as a sentence that says what to check."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["ConnectionFailed", "FailureReason", "Peer", "address"]


class FailureReason(Struct, frozen=True):
    """One thing that keeps a broker from being used."""

    sentence: str
    """For the operator: names the host and the port, and what to check. Never holds a credential."""
    public: str
    """For any caller: no address, no name of a file."""
    lasting: bool
    """Whether trying the same again cannot help: somebody has to change something first."""
    incompatible: bool = False
    """Whether the broker is too old, or too new, for this service."""
    is_refusal: bool = False
    """Whether one side did not accept what the other has to show: other credentials, another certificate, or
    another authority may make the difference."""


class ConnectionFailed(Exception):
    """A connection to a broker could not be made ready for use."""

    def __init__(self, reason: FailureReason) -> None:
        """:param reason: why not."""
        super().__init__(reason.sentence)
        self.reason = reason


class Peer(Struct, frozen=True, kw_only=True):
    """The peer of a connection, and how it is connected to: what a sentence about it needs."""

    host: str
    port: int
    tls: bool = False
    own_ca: bool = False
    """Whether the trusted authorities were given as a file."""
    client_certificate: bool = False
    mechanism: str | None = None
    """Of SASL."""

    @property
    def at(self) -> str:
        """The address, as people write it."""
        return address(self.host, self.port)


def address(host: str, port: int) -> str:
    """
    An address as people write it, with an IPv6 address in brackets (RFC 3986, section 3.2.2).

    A host that is not printable, as a broker may advertise it, is escaped.
    """
    shown = host if host.isprintable() else ascii(host)
    return f"[{shown}]:{port}" if ":" in host else f"{shown}:{port}"
