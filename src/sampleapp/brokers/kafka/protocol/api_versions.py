"""ApiVersions (KIP-35): the first question on a connection, in the one version that every broker answers."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.reading import Reader
from sampleapp.brokers.kafka.protocol.request import Api, Request

__all__ = ["ApiVersions", "ApiVersionsRequest"]

_RANGE = Struct(">hhh")


class ApiVersions(msgspec.Struct, frozen=True):
    """What a broker speaks."""

    error: int
    ranges: dict[int, tuple[int, int]]
    """The lowest and the highest version by API key."""


class ApiVersionsRequest(Request[ApiVersions], frozen=True, kw_only=True):
    """Which requests, and which versions of them, does this broker take?"""

    api: ClassVar[Api] = Api(key=18, name="ApiVersions", lowest=0, highest=0)

    def _parts(self, version: int) -> Iterable[bytes]:  # noqa: ARG002 - the body is empty
        return ()

    def _read(self, version: int, reader: Reader) -> ApiVersions:  # noqa: ARG002 - there is but one
        error = reader.int16()
        ranges: dict[int, tuple[int, int]] = {}
        for _ in range(reader.count(_RANGE.size)):
            key, lowest, highest = reader.fields(_RANGE)
            ranges[key] = lowest, highest
        return ApiVersions(error, ranges)
