"""SaslHandshake: agrees on a mechanism (KIP-43; with version 1, KIP-152, SaslAuthenticate follows)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.decoder import Decoder
from sampleapp.brokers.kafka.protocol.request import Api, Request
from sampleapp.brokers.kafka.protocol.writing import string

__all__ = ["SaslHandshakeRequest", "SaslMechanisms"]

_SMALLEST_STRING = 2


class SaslMechanisms(msgspec.Struct, frozen=True, gc=False):
    """The mechanisms that a broker offers."""

    error: int
    mechanisms: tuple[str, ...]


class SaslHandshakeRequest(Request[SaslMechanisms], frozen=True, kw_only=True):
    """Ask to authenticate with a mechanism."""

    api: ClassVar[Api] = Api(key=17, name="SaslHandshake", lowest=1, highest=1)

    mechanism: str
    """The name in IANA's registry, in capitals: ``PLAIN``, ``SCRAM-SHA-512``."""

    def _parts(self, version: int) -> Iterable[bytes]:  # noqa: ARG002 - there is only one
        return (string(self.mechanism),)

    def _read(self, version: int, reader: Decoder) -> SaslMechanisms:  # noqa: ARG002 - there is only one
        error = reader.int16()
        return SaslMechanisms(error, tuple(reader.string() for _ in range(reader.count(_SMALLEST_STRING))))
