"""
The requests that begin a connection.

`ApiVersionsRequest` also names the client (KIP-35, KIP-511); `SaslHandshakeRequest` agrees on a mechanism
(KIP-43; with version 1, KIP-152), and each `SaslAuthenticateRequest` is one step of it (KIP-152).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct
from typing import ClassVar, Final

import msgspec

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol.codec import INT32, Api, Decoder, ProtocolError, Request, string

_SOFTWARE_SINCE: Final = 3
_THROTTLE_SINCE: Final = 1
_RANGE = Struct(">hhh")
_UNKNOWN: Final = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class ApiVersions(msgspec.Struct, frozen=True):
    """The APIs that a broker supports."""

    error: int
    ranges: dict[int, tuple[int, int]]
    """
    The lowest and the highest version by API key.

    With the error UNSUPPORTED_VERSION at most those of ApiVersions; before Kafka 2.4 none.
    """


class ApiVersionsRequest(Request[ApiVersions], frozen=True, kw_only=True):
    """Ask for the APIs, and their versions, that a broker supports."""

    # The header of the response has no tagged fields in any version, since the client does not know yet which
    # version it is (KIP-511).
    api: ClassVar[Api] = Api(
        key=18,
        name="ApiVersions",
        lowest=0,
        highest=3,
        flexible=_SOFTWARE_SINCE,
        has_plain_response_header=True,
    )

    software_name: str
    """The name of the client for the broker's metrics: letters, digits, dots and hyphens (KIP-511)."""
    software_version: str
    """See `software_version`."""

    def _parts(self, version: int) -> Iterable[bytes]:
        if version < _SOFTWARE_SINCE:
            return ()
        fields = self._fields(version)
        return (fields.string(self.software_name), fields.string(self.software_version), fields.tags)

    def decode(self, version: int, body: bytes | memoryview) -> ApiVersions:
        """
        See `Request.decode`.

        A broker that does not know the version answers with an error in the format of version 0 (KIP-511).
        Other formats are accepted, too: librdkafka's mock cluster has its own.
        """
        self._check(version)
        if version == self.api.lowest or bytes(body[: len(_UNKNOWN)]) != _UNKNOWN:
            return super().decode(version, body)
        try:
            return super().decode(self.api.lowest, body)
        except ProtocolError:
            return ApiVersions(ErrorCode.UNSUPPORTED_VERSION, {})

    def _read(self, version: int, reader: Decoder) -> ApiVersions:
        error = reader.int16()
        ranges: dict[int, tuple[int, int]] = {}
        for _ in range(reader.count(_RANGE.size)):
            key, lowest, highest = reader.fields(_RANGE)
            ranges[key] = lowest, highest
            reader.tags()
        if version >= _THROTTLE_SINCE:
            reader.int32()
        reader.tags()
        return ApiVersions(error, ranges)


def software_version(version: str) -> str:
    """
    Convert a version to the format of KIP-511; a broker answers others with INVALID_REQUEST.

    :param version: a version in any format, such as ``1.0+local``.
    """
    return re.sub(r"[^A-Za-z0-9.-]", "-", version).strip(".-") or "unknown"


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
