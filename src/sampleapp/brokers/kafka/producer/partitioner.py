"""Which partition a key belongs to, exactly as in Java's producer, so that both agree about every key."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

__all__ = ["murmur2", "partition_for_key"]

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF
# A layout for each number of whole words; keys that are longer are rare, and get one when they come.
_WORDS = [Struct(f"<{words}I") for words in range(65)]


def murmur2(data: bytes) -> int:
    """
    The 32-bit MurmurHash2 of Kafka: ``Utils.murmur2`` in its clients, with the seed that is fixed there.

    :return: the hash as an unsigned number; Java's is the same as a signed one.
    """
    length = len(data)
    words = length >> 2
    hashed = _SEED ^ length
    layout = _WORDS[words] if words < len(_WORDS) else Struct(f"<{words}I")
    for word in layout.unpack_from(data):
        mixed = word * _M & _MASK
        hashed = (hashed * _M ^ (mixed ^ mixed >> 24) * _M) & _MASK
    rest = length & 3
    if rest:
        hashed = (hashed ^ int.from_bytes(data[-rest:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_for_key(key: bytes, partitions: Sequence[int] | int) -> int:
    """
    The partition that Java's producer would choose for a key: its hash without the sign, modulo the count.

    :param partitions: all partitions of the topic in ascending order, or how many there are. All means
        those without a leader, too: otherwise a key would move whenever a broker is away.
    :raise ValueError: if there are none.
    """
    count = partitions if isinstance(partitions, int) else len(partitions)
    if count < 1:
        raise ValueError("A topic without partitions has none for a key.")
    index = (murmur2(key) & _POSITIVE) % count
    return index if isinstance(partitions, int) else partitions[index]
