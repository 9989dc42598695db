"""Decoding of the fields of a response, never beyond its end."""

from __future__ import annotations

from struct import Struct
from typing import Any
from uuid import UUID

__all__ = ["Decoder", "FlexibleDecoder", "ProtocolError"]

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
