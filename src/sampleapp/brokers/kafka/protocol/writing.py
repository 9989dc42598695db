"""Writing the fields of a request, by the names of https://kafka.apache.org/protocol#protocol_types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TypeVar

__all__ = ["INT32", "NULL_STRING", "by_topic", "string"]

INT32 = Struct(">i")
NULL_STRING = b"\xff\xff"

_LENGTH = Struct(">h")
_LONGEST = 0x7FFF

T = TypeVar("T")


def string(text: str) -> bytes:
    """
    STRING.

    :raise ValueError: if its UTF-8 form has more than 32,767 bytes, or it has none.
    """
    encoded = text.encode()
    if len(encoded) > _LONGEST:
        raise ValueError(
            f"A string of {len(encoded)} bytes does not fit in Kafka's protocol: at most {_LONGEST}."
        )
    return _LENGTH.pack(len(encoded)) + encoded


def by_topic(topics: Sequence[tuple[str, Sequence[T]]], partition: Callable[[T], bytes]) -> list[bytes]:
    """
    The ARRAY of topics, each with an ARRAY of partitions, that most requests end with, in parts to join.

    :param partition: writes one partition.
    """
    parts = [INT32.pack(len(topics))]
    for topic, partitions in topics:
        parts += (string(topic), INT32.pack(len(partitions)))
        parts += map(partition, partitions)
    return parts
