"""SaslAuthenticate: one step of a mechanism (KIP-152)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.decoder import Decoder
from sampleapp.brokers.kafka.protocol.request import Api, Request
from sampleapp.brokers.kafka.protocol.writing import INT32

__all__ = ["SaslAuthenticateRequest", "SaslAuthenticated"]

_LIFETIME_SINCE = 1


class SaslAuthenticated(msgspec.Struct, frozen=True, gc=False):
    """The broker's response to one step."""

    error: int
    message: str | None
    """The broker's message about the error."""
    token: bytes
    """The server's message for the mechanism."""
    session_lifetime_ms: int = 0
    """The time after which the broker closes the connection (KIP-368); 0 for never, and before v1."""

    def __repr__(self) -> str:
        # The other fields may repeat what the client sent.
        return f"SaslAuthenticated(error={self.error}, session_lifetime_ms={self.session_lifetime_ms})"


class SaslAuthenticateRequest(Request[SaslAuthenticated], frozen=True, kw_only=True):
    """The next message of the mechanism. It may hold the password, so no representation shows it."""

    api: ClassVar[Api] = Api(key=36, name="SaslAuthenticate", lowest=0, highest=1)

    token: bytes

    def __repr__(self) -> str:
        return "SaslAuthenticateRequest(token=...)"

    def _parts(self, version: int) -> Iterable[bytes]:  # noqa: ARG002 - the same in both
        return (INT32.pack(len(self.token)), self.token)

    def _read(self, version: int, reader: Decoder) -> SaslAuthenticated:
        error, message, token = reader.int16(), reader.nullable_string(), reader.data()
        lifetime_ms = reader.int64() if version >= _LIFETIME_SINCE else 0
        return SaslAuthenticated(error, message, token, lifetime_ms)
