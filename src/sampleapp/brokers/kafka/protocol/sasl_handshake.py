"""SaslHandshake: agree on a mechanism (KIP-43; version 1, of KIP-152, frames what follows)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.reading import Reader
from sampleapp.brokers.kafka.protocol.request import Api, Request
from sampleapp.brokers.kafka.protocol.writing import string

__all__ = ["SaslHandshakeRequest", "SaslMechanisms"]

_SMALLEST_STRING = 2


class SaslMechanisms(msgspec.Struct, frozen=True, gc=False):
    """What a broker offers."""

    error: int
    mechanisms: tuple[str, ...]


class SaslHandshakeRequest(Request[SaslMechanisms], frozen=True, kw_only=True):
    """May I authenticate with this mechanism?"""

    api: ClassVar[Api] = Api(key=17, name="SaslHandshake", lowest=1, highest=1)

    mechanism: str
    """A name of IANA's, in capitals: ``PLAIN``, ``SCRAM-SHA-512``."""

    def _parts(self, version: int) -> Iterable[bytes]:  # noqa: ARG002 - there is but one
        return (string(self.mechanism),)

    def _read(self, version: int, reader: Reader) -> SaslMechanisms:  # noqa: ARG002 - there is but one
        error = reader.int16()
        return SaslMechanisms(error, tuple(reader.string() for _ in range(reader.count(_SMALLEST_STRING))))
