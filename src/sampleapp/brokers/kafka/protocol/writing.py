"""Encoding of the fields of a request, named as on https://kafka.apache.org/protocol#protocol_types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, TypeVar

__all__ = [
    "FLEXIBLE",
    "INT32",
    "NULL_STRING",
    "PLAIN",
    "Fields",
    "by_topic",
    "string",
    "uvarint",
    "with_epochs",
]

INT32 = Struct(">i")
NULL_STRING = b"\xff\xff"

_LENGTH = Struct(">h")
_LONGEST = 0x7FFF
_CONTINUED = 0x80

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
