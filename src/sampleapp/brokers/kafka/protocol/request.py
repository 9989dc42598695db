"""The base of all requests: API key, versions, frame."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec

from sampleapp.brokers.kafka.protocol.decoder import Decoder, FlexibleDecoder, ProtocolError
from sampleapp.brokers.kafka.protocol.writing import FLEXIBLE, PLAIN, Fields

__all__ = ["Api", "Request", "negotiate", "request_frame"]

_HEADER = struct.Struct(">hhih")

R_co = TypeVar("R_co", covariant=True)


class Api(msgspec.Struct, frozen=True):
    """One API, and the versions of it that this service supports."""

    key: int
    """The API key: https://kafka.apache.org/protocol#protocol_api_keys."""
    name: str
    lowest: int
    highest: int
    flexible: int | None = None
    """The first flexible version (KIP-482); ``None`` if none of these is flexible."""
    has_plain_response_header: bool = False
    """True if the header of responses has no tagged fields in flexible versions, as that of ApiVersions."""

    def is_flexible(self, version: int) -> bool:
        """Return whether a version is flexible."""
        return self.flexible is not None and version >= self.flexible


class Request(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """
    A request to a broker, and the decoding of its response, an ``R_co``.

    Both depend on the version, which the connection chooses: after an upgrade of the cluster, the same
    request may be sent in another version.
    """

    api: ClassVar[Api]

    def encode(self, version: int) -> bytes:
        """
        Encode the body, which follows the header.

        :raise ValueError: the version is not one of ``api``, or a field does not fit in its type.
        """
        return b"".join(self._parts_of(version))

    def decode(self, version: int, body: bytes | memoryview) -> R_co:
        """
        Decode a response from the bytes after its correlation id.

        :param version: the version in which the request was encoded.
        :param body: the rest of the header, which only flexible versions have, and the body.
        :raise ProtocolError: it is cut short, too long, or invalid.
        :raise ValueError: the version is not one of ``api``.
        """
        self._check(version)
        is_flexible = self.api.is_flexible(version)
        reader = FlexibleDecoder(body) if is_flexible else Decoder(body)
        try:
            if is_flexible and not self.api.has_plain_response_header:
                reader.tags()
            response = self._read(version, reader)
            reader.finish()
        except struct.error as error:
            raise ProtocolError(f"The answer to {self.api.name} v{version} is cut short.") from error
        except UnicodeDecodeError as error:
            raise ProtocolError(
                f"The answer to {self.api.name} v{version} has text that is not UTF-8."
            ) from error
        except ProtocolError as error:
            raise ProtocolError(f"The answer to {self.api.name} v{version} is invalid: {error}") from error
        return response

    def version_for(self, ranges: Mapping[int, tuple[int, int]]) -> int | None:
        """
        Choose the version in which to send the request: see `negotiate`.

        :param ranges: the broker's response to ApiVersions: the lowest and the highest version by API key.
        """
        return negotiate(self.api, ranges)

    def unsupported_reason(self, version: int) -> str | None:  # noqa: ARG002 -- for subclasses
        """Return a sentence if the request cannot be sent in a version of ``api``; otherwise ``None``."""
        return None

    def _fields(self, version: int) -> Fields:
        return FLEXIBLE if self.api.is_flexible(version) else PLAIN

    def _parts_of(self, version: int) -> Iterable[bytes]:
        self._check(version)
        return self._parts(version)

    def _check(self, version: int) -> None:
        if not self.api.lowest <= version <= self.api.highest:
            raise ValueError(f"{self.api.name} v{version} is not supported.")

    def _parts(self, version: int) -> Iterable[bytes]:
        """Return the parts of the body: batches of records are large, and joining copies them once."""
        raise NotImplementedError

    def _read(self, version: int, reader: Decoder) -> R_co:
        raise NotImplementedError


def request_frame(request: Request[object], *, version: int, correlation_id: int, client_id: bytes) -> bytes:
    """
    Encode a request with its header, without the four bytes of length that a connection puts before it.

    The header is of version 1, or of version 2 for a flexible version. In version 2 tagged fields follow the
    client id, which is still not a compact string.

    :param correlation_id: a signed number of 32 bits, which the response repeats.
    :raise ValueError: see `Request.encode`.
    """
    header = _HEADER.pack(request.api.key, version, correlation_id, len(client_id))
    tags = FLEXIBLE.tags if request.api.is_flexible(version) else b""
    return b"".join((header, client_id, tags, *request._parts_of(version)))  # noqa: SLF001 - so that bodies are copied once


def negotiate(request_api: Api, ranges: Mapping[int, tuple[int, int]]) -> int | None:
    """
    Choose the highest version that both this service and the broker support; ``None`` if there is none.

    The lowest version that a broker lists is not reliable: since KAFKA-18659 Kafka 4 lists Produce v0, which
    it rejects, for the sake of clients that check only this.

    :param ranges: the broker's response to ApiVersions: the lowest and the highest version by API key.
    """
    if request_api.key not in ranges:
        return None
    lowest, highest = ranges[request_api.key]
    version = min(highest, request_api.highest)
    return version if version >= max(lowest, request_api.lowest) else None
