"""
Encoding and decoding of the types of the protocol, and the base of all requests: API key, versions, frame.

The types are named as on https://kafka.apache.org/protocol#protocol_types. A response is never read beyond
its end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, ClassVar, Final, Generic, TypeVar
from uuid import UUID

import msgspec

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_UUID_BYTES = 16
_CONTINUED = 0x80
_MAX_VARINT_BYTES = 5


class ProtocolError(Exception):
    """
    A response violates Kafka's protocol: it is cut short, too long, or has invalid fields.

    The connection must be closed: the server does not speak Kafka's protocol, or the stream is out of step.
    """


class Decoder:
    """
    A position in the body of a response, in a version before the flexible ones (KIP-482).

    Types are named as on https://kafka.apache.org/protocol#protocol_types.

    A number beyond the end raises `struct.error`, and text that is not UTF-8 raises `UnicodeDecodeError`:
    `Request.decode` converts them to `ProtocolError`, once for each response instead of each field.
    """

    __slots__ = ("at", "body", "end")

    def __init__(self, body: bytes | memoryview) -> None:
        self.body = body
        self.at = 0
        self.end = len(body)

    def fields(self, layout: Struct) -> tuple[Any, ...]:
        """Decode several numbers at once."""
        values = layout.unpack_from(self.body, self.at)
        self.at += layout.size
        return values

    def int8(self) -> int:
        """INT8."""
        return self._number(_INT8)

    def int16(self) -> int:
        """INT16, such as an error code."""
        return self._number(_INT16)

    def int32(self) -> int:
        """INT32."""
        return self._number(_INT32)

    def int64(self) -> int:
        """INT64."""
        return self._number(_INT64)

    def uuid(self) -> UUID | None:
        """UUID; all zeros mean ``None``."""
        value = bytes(self._take(_UUID_BYTES))
        return UUID(bytes=value) if any(value) else None

    def string(self) -> str:
        """STRING."""
        text = self.nullable_string()
        if text is None:
            raise ProtocolError("A string is null, which is not allowed here.")
        return text

    def nullable_string(self) -> str | None:
        """NULLABLE_STRING."""
        length = self._number(_INT16)
        return None if length == -1 else str(self._take(length), "utf-8")

    def data(self) -> bytes:
        """BYTES."""
        value = self.nullable_data()
        if value is None:
            raise ProtocolError("Bytes are null, which is not allowed here.")
        return value

    def nullable_data(self) -> bytes | None:
        """NULLABLE_BYTES, or RECORDS. A copy, so that it does not keep the whole frame alive."""
        length = self._length()
        return None if length == -1 else bytes(self._take(length))

    def count(self, smallest: int) -> int:
        """
        The number of elements of an ARRAY.

        :param smallest: the smallest size of an element in bytes. A count that cannot fit in the rest of the
            response is rejected before memory is used for it.
        """
        return self._checked(self._number(_INT32), smallest)

    def nullable_count(self, smallest: int) -> int:
        """Like `count`, for an ARRAY that may be null, which counts as empty."""
        count = self._length()
        return 0 if count == -1 else self._checked(count, smallest)

    def int32s(self) -> tuple[int, ...]:
        """ARRAY of INT32."""
        return self.fields(Struct(f">{self.count(4)}i"))

    def tags(self) -> dict[int, bytes]:
        """Tagged fields at the end of a structure, by tag; only flexible versions have them."""
        return {}

    def finish(self) -> None:
        """
        Check that the response ends here.

        :raise ProtocolError: it does not, so it is of another version than requested.
        """
        if self.at != self.end:
            raise ProtocolError(f"{self.end - self.at} bytes are left over.")

    def _length(self) -> int:
        """The length of bytes or an array; -1 for null."""
        return self.int32()

    def _number(self, layout: Struct) -> int:
        value: int
        (value,) = layout.unpack_from(self.body, self.at)
        self.at += layout.size
        return value

    def _checked(self, count: int, smallest: int) -> int:
        if count < 0 or count * smallest > self.end - self.at:
            raise ProtocolError(f"There cannot be {count} elements in the {self.end - self.at} bytes left.")
        return count

    def _take(self, length: int) -> bytes | memoryview:
        start = self.at
        if length < 0 or length > self.end - start:
            raise ProtocolError(f"There are no {length} bytes in the {self.end - start} left.")
        self.at = start + length
        return self.body[start : self.at]


class FlexibleDecoder(Decoder):
    """
    A position in the body of a response in a flexible version (KIP-482).

    Lengths are varints, strings and arrays are compact, and tagged fields end each structure. All tagged
    fields are skipped, as the protocol prescribes for unknown ones.
    """

    __slots__ = ()

    def tags(self) -> dict[int, bytes]:
        """Tagged fields at the end of a structure, by tag."""
        if self.at < self.end and self.body[self.at] == 0:
            # There are none, as nearly always.
            self.at += 1
            return {}
        return {self._uvarint(): bytes(self._take(self._uvarint())) for _ in range(self._uvarint())}

    def finish(self) -> None:
        """
        See `Decoder.finish`.

        Empty tagged fields may occur twice at the end, as librdkafka's mock cluster writes them.
        """
        if self.end - self.at == 1 and self.body[self.at] == 0:
            return
        super().finish()

    def nullable_string(self) -> str | None:
        """COMPACT_NULLABLE_STRING."""
        length = self._uvarint() - 1
        return None if length == -1 else str(self._take(length), "utf-8")

    def count(self, smallest: int) -> int:
        """See `Decoder.count`; of a COMPACT_ARRAY."""
        return self._checked(self._uvarint() - 1, smallest)

    def _length(self) -> int:
        return self._uvarint() - 1

    def _uvarint(self) -> int:
        """UNSIGNED_VARINT: seven bits in each byte, the lowest first."""
        number = 0
        for place in range(_MAX_VARINT_BYTES):
            if self.at >= self.end:
                raise ProtocolError("A number is cut short.")
            byte = self.body[self.at]
            self.at += 1
            number |= (byte & 0x7F) << 7 * place
            if byte < _CONTINUED:
                return number
        raise ProtocolError(f"A number takes more than {_MAX_VARINT_BYTES} bytes.")


INT32 = Struct(">i")
NULL_STRING = b"\xff\xff"

_LENGTH = Struct(">h")
_LONGEST = 0x7FFF

T = TypeVar("T")


# Cached, since the names of topics recur.
@lru_cache(maxsize=256)
def string(text: str) -> bytes:
    """
    STRING.

    :raise ValueError: its UTF-8 form has more than 32,767 bytes, or it has none.
    """
    encoded = _encoded(text)
    return _LENGTH.pack(len(encoded)) + encoded


def uvarint(number: int) -> bytes:
    """
    UNSIGNED_VARINT: seven bits in each byte, the lowest first.

    :param number: not negative.
    """
    written = bytearray()
    while number >= _CONTINUED:
        written.append(number & 0x7F | _CONTINUED)
        number >>= 7
    written.append(number)
    return bytes(written)


class Fields:
    """Encoding of fields with a length in versions before the flexible ones."""

    tags = b""
    """The tagged fields at the end of each structure: none in these versions."""

    def string(self, text: str) -> bytes:
        """
        STRING, or COMPACT_STRING.

        :raise ValueError: see `string`.
        """
        return string(text)

    def count(self, elements: int | None) -> bytes:
        """Encode the number of elements of an ARRAY, or of a COMPACT_ARRAY; ``None`` for null."""
        return INT32.pack(-1 if elements is None else elements)


class _FlexibleFields(Fields):
    """Encoding in flexible versions (KIP-482): lengths are varints, increased by 1 so that 0 is null."""

    tags = b"\0"

    def string(self, text: str) -> bytes:
        encoded = _encoded(text)
        return uvarint(len(encoded) + 1) + encoded

    def count(self, elements: int | None) -> bytes:
        return uvarint(0 if elements is None else elements + 1)


PLAIN: Final = Fields()
FLEXIBLE: Final[Fields] = _FlexibleFields()


def by_topic(
    topics: Sequence[tuple[str, Sequence[T]]],
    partition: Callable[[T], bytes],
    *,
    fields: Fields = PLAIN,
    topic: Callable[[str], bytes] | None = None,
) -> list[bytes]:
    """
    Encode the ARRAY of topics, each with an ARRAY of partitions, at the end of most requests.

    :param partition: encodes one partition, including its tagged fields.
    :param fields: the encoding of the version.
    :param topic: encodes the topic, for a version without its name.
    :return: parts to join.
    """
    topic = topic or fields.string
    parts = [fields.count(len(topics))]
    for name, partitions in topics:
        parts += (topic(name), fields.count(len(partitions)))
        parts += map(partition, partitions)
        parts.append(fields.tags)
    return parts


def with_epochs(
    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]], epochs: Mapping[tuple[str, int], int]
) -> Sequence[tuple[str, Sequence[tuple[int, int, int]]]]:
    """Add the epoch of its leader to each partition of topics; -1 if it is not known."""
    return [
        (name, [(number, value, epochs.get((name, number), -1)) for number, value in partitions])
        for name, partitions in topics
    ]


def _encoded(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > _LONGEST:
        raise ValueError(
            f"A string of {len(encoded)} bytes does not fit in Kafka's protocol: at most {_LONGEST}."
        )
    return encoded


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
