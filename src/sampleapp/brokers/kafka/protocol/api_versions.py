"""ApiVersions (KIP-35): the first request on a connection, which also names the client (KIP-511)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct
from typing import ClassVar, Final

import msgspec

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol.decoder import Decoder, ProtocolError
from sampleapp.brokers.kafka.protocol.request import Api, Request

__all__ = ["ApiVersions", "ApiVersionsRequest", "software_version"]

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
