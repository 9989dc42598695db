"""Which partition a key belongs to, exactly as in Java's producer, so that both agree about every key."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

__all__ = ["murmur2", "partition_for_key"]

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF
# A layout for each number of whole words; keys that are longer are rare, and get one when they come.
_WORDS = [Struct(f"<{words}I") for words in range(65)]
_REMEMBERED_KEY_BYTES: Final = 64
"""So the hashes that are remembered take less than three megabytes."""


def murmur2(data: bytes) -> int:
    """
    The 32-bit MurmurHash2 of Kafka: ``Utils.murmur2`` in its clients, with the seed that is fixed there.

    aiokafka has one that goes byte by byte, and takes about twice as long; it is the oracle of the tests.

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


def _positive_hash(key: bytes) -> int:
    return murmur2(key) & _POSITIVE


# Keys come again, and a hash in Python takes as long as all the rest of accepting a record.
_remembered_hash = lru_cache(maxsize=16_384)(_positive_hash)


def partition_for_key(key: bytes, count: int) -> int:
    """
    The partition that Java's producer would choose for a key: its hash without the sign, modulo the count.

    :param count: how many partitions the topic has, those without a leader included: otherwise a key
        would move whenever a broker is away.
    :raise ValueError: if there are none.
    """
    if count < 1:
        raise ValueError("A topic without partitions has none for a key.")
    hashed = _remembered_hash(key) if len(key) <= _REMEMBERED_KEY_BYTES else _positive_hash(key)
    return hashed % count
