"""Reading the fields of an answer, never beyond its end and never more than is there."""

from __future__ import annotations

from struct import Struct
from typing import Any
from uuid import UUID

__all__ = ["FlexibleReader", "ProtocolError", "Reader"]

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_UUID_BYTES = 16
_CONTINUED = 0x80
_MAX_VARINT_BYTES = 5


class ProtocolError(Exception):
    """
    An answer is not what Kafka's protocol allows: cut short, too long, or with impossible fields.

    Whoever sent it either does not speak Kafka, or is out of step: the connection is of no more use.
    """


class Reader:
    """
    A position in the body of an answer, in a version before the flexible ones (KIP-482).

    Types are named as on https://kafka.apache.org/protocol#protocol_types.

    A number that would reach beyond the end raises `struct.error`, and text that is not UTF-8
    `UnicodeDecodeError`: `Request.decode` makes a `ProtocolError` of them, once for each answer and not
    once for each field.

    An answer to Produce is read with each batch, so what that takes calls nothing that it can do without.
    """

    __slots__ = ("at", "body", "end")

    def __init__(self, body: bytes | memoryview) -> None:
        self.body = body
        self.at = 0
        self.end = len(body)

    def fields(self, layout: Struct) -> tuple[Any, ...]:
        """Several numbers at once."""
        values = layout.unpack_from(self.body, self.at)
        self.at += layout.size
        return values

    def int8(self) -> int:
        """A signed number of 8 bits."""
        value: int = self.fields(_INT8)[0]
        return value

    def int16(self) -> int:
        """A signed number of 16 bits; error codes are such."""
        value: int
        (value,) = _INT16.unpack_from(self.body, self.at)
        self.at += 2
        return value

    def int32(self) -> int:
        """A signed number of 32 bits."""
        value: int
        (value,) = _INT32.unpack_from(self.body, self.at)
        self.at += 4
        return value

    def int64(self) -> int:
        """A signed number of 64 bits."""
        value: int
        (value,) = _INT64.unpack_from(self.body, self.at)
        self.at += 8
        return value

    def uuid(self) -> UUID | None:
        """UUID; what Kafka writes instead of none is all zeros."""
        value = bytes(self._take(_UUID_BYTES))
        return UUID(bytes=value) if any(value) else None

    def string(self) -> str:
        """STRING."""
        text = self.nullable_string()
        if text is None:
            raise ProtocolError("A string is null that may not be.")
        return text

    def nullable_string(self) -> str | None:
        """NULLABLE_STRING."""
        (length,) = _INT16.unpack_from(self.body, self.at)
        self.at += 2
        return None if length == -1 else str(self._take(length), "utf-8")

    def data(self) -> bytes:
        """BYTES."""
        value = self.nullable_data()
        if value is None:
            raise ProtocolError("Bytes are null that may not be.")
        return value

    def nullable_data(self) -> bytes | None:
        """NULLABLE_BYTES, or RECORDS. A copy, so that it does not keep the whole frame alive."""
        length = self._length()
        return None if length == -1 else bytes(self._take(length))

    def count(self, smallest: int) -> int:
        """
        The number of elements of an ARRAY.

        :param smallest: how many bytes an element takes at least. A count that cannot fit in what is left
            is refused before anything is made for it.
        """
        (count,) = _INT32.unpack_from(self.body, self.at)
        self.at += 4
        if count < 0 or count * smallest > self.end - self.at:
            raise self._too_many(count)
        return int(count)

    def nullable_count(self, smallest: int) -> int:
        """As `count`, for an ARRAY that may be null, which is taken for empty."""
        count = self._length()
        if count == -1:
            return 0
        if count < 0 or count * smallest > self.end - self.at:
            raise self._too_many(count)
        return count

    def int32s(self) -> tuple[int, ...]:
        """ARRAY of INT32."""
        return self.fields(Struct(f">{self.count(4)}i"))

    def tags(self) -> None:
        """The tagged fields that end a structure; only the flexible versions have any."""

    def finish(self) -> None:
        """
        The answer has to end here.

        :raise ProtocolError: if it does not: then it is of another version than was asked for.
        """
        if self.at != self.end:
            raise ProtocolError(f"{self.end - self.at} bytes are left over.")

    def _length(self) -> int:
        """Of bytes or an array; -1 for null."""
        return self.int32()

    def _too_many(self, count: int) -> ProtocolError:
        return ProtocolError(f"There cannot be {count} elements in the {self.end - self.at} bytes left.")

    def _take(self, length: int) -> bytes | memoryview:
        start = self.at
        if length < 0 or length > self.end - start:
            raise ProtocolError(f"There are no {length} bytes in the {self.end - start} left.")
        self.at = start + length
        return self.body[start : self.at]


class FlexibleReader(Reader):
    """
    The same in a flexible version (KIP-482).

    Lengths are varints, strings and arrays compact, and tagged fields end each structure. None of those is
    known here, and so all are passed over, as the protocol wants it of whoever does not know them.
    """

    __slots__ = ()

    def tags(self) -> None:
        """The tagged fields that end a structure."""
        for _ in range(self._uvarint()):
            self._uvarint()
            self._take(self._uvarint())

    def finish(self) -> None:
        """
        See `Reader.finish`.

        Empty tagged fields may stand twice at the end, as librdkafka's mock cluster writes them.
        """
        if self.end - self.at == 1 and self.body[self.at] == 0:
            return
        super().finish()

    def nullable_string(self) -> str | None:
        """COMPACT_NULLABLE_STRING."""
        length = self._uvarint() - 1
        return None if length == -1 else str(self._take(length), "utf-8")

    def count(self, smallest: int) -> int:
        """See `Reader.count`; of a COMPACT_ARRAY."""
        count = self._uvarint() - 1
        if count < 0 or count * smallest > self.end - self.at:
            raise self._too_many(count)
        return count

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
