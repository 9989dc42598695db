"""What all requests have in common: their number, their versions, their frame."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec

from sampleapp.brokers.kafka.protocol.reading import FlexibleReader, ProtocolError, Reader
from sampleapp.brokers.kafka.protocol.writing import FLEXIBLE, PLAIN, Fields

__all__ = ["Api", "Request", "negotiate", "request_frame"]

_HEADER = struct.Struct(">hhih")

R_co = TypeVar("R_co", covariant=True)


class Api(msgspec.Struct, frozen=True):
    """One kind of request, and the versions of it that are spoken here."""

    key: int
    """Its number: https://kafka.apache.org/protocol#protocol_api_keys."""
    name: str
    lowest: int
    highest: int
    flexible: int | None = None
    """The first version that is flexible (KIP-482), if one of these is."""
    has_plain_answer_header: bool = False
    """Whether the header of an answer stays as it was before the flexible versions: ApiVersions' does."""

    def is_flexible(self, version: int) -> bool:
        """Whether this version is flexible."""
        return self.flexible is not None and version >= self.flexible


class Request(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """
    Something to ask a broker, and how to read its answer, an ``R_co``.

    Both depend on the version that is spoken, which is the connection's matter: the same request may go
    out in one version, and after a roll of the cluster in another.
    """

    api: ClassVar[Api]

    def encode(self, version: int) -> bytes:
        """
        The body, which follows the header.

        :raise ValueError: if the version is not one of ``api``, or a field does not fit in its type.
        """
        return b"".join(self._parts_of(version))

    def decode(self, version: int, body: bytes | memoryview) -> R_co:
        """
        Read an answer from what follows its correlation id.

        :param version: that the request was encoded with.
        :param body: the rest of the header, which only the flexible versions have, and the body.
        :raise ProtocolError: if it is cut short, goes on after its end, or cannot be right.
        :raise ValueError: if the version is not one of ``api``.
        """
        self._check(version)
        is_flexible = self.api.is_flexible(version)
        reader = FlexibleReader(body) if is_flexible else Reader(body)
        try:
            if is_flexible and not self.api.has_plain_answer_header:
                reader.tags()
            answer = self._read(version, reader)
            reader.finish()
        except struct.error as error:
            raise ProtocolError(f"The answer to {self.api.name} v{version} is cut short.") from error
        except UnicodeDecodeError as error:
            raise ProtocolError(
                f"The answer to {self.api.name} v{version} has text that is not UTF-8."
            ) from error
        except ProtocolError as error:
            raise ProtocolError(
                f"The answer to {self.api.name} v{version} cannot be right: {error}"
            ) from error
        return answer

    def version_for(self, ranges: Mapping[int, tuple[int, int]]) -> int | None:
        """
        Choose the version to send it in: see `negotiate`.

        :param ranges: what the broker answered to ApiVersions: lowest and highest version by API key.
        """
        return negotiate(self.api, ranges)

    def obstacle(self, version: int) -> str | None:  # noqa: ARG002 -- for those that have one
        """Return why the request cannot be made in a version of ``api``: a sentence; ``None`` if it can."""
        return None

    def _fields(self, version: int) -> Fields:
        return FLEXIBLE if self.api.is_flexible(version) else PLAIN

    def _parts_of(self, version: int) -> Iterable[bytes]:
        self._check(version)
        return self._parts(version)

    def _check(self, version: int) -> None:
        if not self.api.lowest <= version <= self.api.highest:
            raise ValueError(f"{self.api.name} v{version} is not spoken here.")

    def _parts(self, version: int) -> Iterable[bytes]:
        """The body in parts to join: batches of records are large, and are copied only once."""
        raise NotImplementedError

    def _read(self, version: int, reader: Reader) -> R_co:
        raise NotImplementedError


def request_frame(request: Request[object], *, version: int, correlation_id: int, client_id: bytes) -> bytes:
    """
    A request with its header, without the four bytes of length that a connection puts before it.

    The header is of version 1, or of version 2 for a flexible version, in which tagged fields follow the
    client id; that itself never became a compact string.

    :param correlation_id: a signed number of 32 bits, which the answer repeats.
    :raise ValueError: as `Request.encode`.
    """
    header = _HEADER.pack(request.api.key, version, correlation_id, len(client_id))
    tags = FLEXIBLE.tags if request.api.is_flexible(version) else b""
    return b"".join((header, client_id, tags, *request._parts_of(version)))  # noqa: SLF001 - so that bodies are copied once


def negotiate(request_api: Api, ranges: Mapping[int, tuple[int, int]]) -> int | None:
    """
    Choose the version to speak with a broker: the highest that both have, ``None`` if there is none.

    What a broker calls its lowest version proves little: since KAFKA-18659 Kafka 4 names Produce v0,
    which it refuses, for the sake of clients that look at nothing else.

    :param ranges: what the broker answered to ApiVersions: lowest and highest version by API key.
    """
    if request_api.key not in ranges:
        return None
    lowest, highest = ranges[request_api.key]
    version = min(highest, request_api.highest)
    return version if version >= max(lowest, request_api.lowest) else None
