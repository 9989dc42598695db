"""Which partition a key belongs to, exactly as in Java's producer, so that both agree about every key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct, unpack
from typing import Final

__all__ = ["hash_keys", "murmur2", "partition_for_key"]

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF
# A layout for each number of whole words; keys that are longer are rare, and get one when they come.
_WORDS = [Struct(f"<{words}I") for words in range(65)]
_REMEMBERED: Final = 16_384
_REMEMBERED_KEY_BYTES: Final = 64
"""So the hashes that are remembered take less than three megabytes."""
_WORTH_LANES: Final = 6
"""So many keys of one length are hashed together in less time than one by one."""
_LANE: Final = b"\1\0\0\0\0\0\0\0"


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


# Keys come again, and a hash in Python takes as long as all the rest of accepting a record.
_remembered: Final[dict[bytes | None, int]] = {}


def _remember(hashes: dict[bytes | None, int]) -> None:
    if len(_remembered) + len(hashes) > _REMEMBERED:
        # To find out which of them are the oldest would take longer than to hash those that come again.
        _remembered.clear()
    _remembered.update(hashes)


def hash_keys(keys: Sequence[bytes | None]) -> list[int | None]:
    """
    Hash many keys; those of one length together, which takes a tenth of the time.

    :return: their hashes without the sign, as `partition_for_key` uses them; ``None`` for no key.
    """
    hashes = list(map(_remembered.get, keys))
    if None not in hashes:
        return hashes
    new = [key for key, known in zip(keys, hashes, strict=True) if known is None and key is not None]
    by_length: dict[int, dict[bytes, None]] = {}
    for key in new:
        by_length.setdefault(len(key), {})[key] = None
    found: dict[bytes | None, int] = {}
    hashed: dict[bytes | None, int]
    for length, some in by_length.items():
        if len(some) >= _WORTH_LANES:
            hashed = dict(zip(some, _hash_in_lanes(some, len(some), length), strict=True))
        else:
            hashed = {key: murmur2(key) & _POSITIVE for key in some}
        found.update(hashed)
        if length <= _REMEMBERED_KEY_BYTES and len(hashed) <= _REMEMBERED:
            _remember(hashed)
    return [
        found[key] if known is None and key is not None else known
        for key, known in zip(keys, hashes, strict=True)
    ]


def _hash_in_lanes(keys: Iterable[bytes], count: int, length: int) -> Sequence[int]:
    """
    Hash keys of one length, without the sign: `murmur2`, step by step, of all of them at once.

    Each has a lane of 64 bits in one large int. What a lane holds has 32 bits, and a product with the 31 bits
    of the multiplier has no more than 63, so nothing reaches the next lane; what a shift brings from there
    is masked. Python's own loop over digits, in C, is then the loop over the keys.
    """
    data = b"".join(keys)
    ones = int.from_bytes(_LANE * count, "little")
    mask = ones * _MASK
    lanes = bytearray(8 * count)
    hashed = ones * (_SEED ^ length)
    whole = length & ~3
    for at in range(0, whole, 4):
        for byte in range(4):
            lanes[byte::8] = data[at + byte :: length]
        mixed = int.from_bytes(lanes, "little") * _M & mask
        hashed = (hashed * _M ^ ((mixed ^ mixed >> 24) & mask) * _M) & mask
    if length > whole:
        lanes = bytearray(8 * count)
        for byte in range(length - whole):
            lanes[byte::8] = data[whole + byte :: length]
        hashed = (hashed ^ int.from_bytes(lanes, "little")) * _M & mask
    hashed = ((hashed ^ hashed >> 13) & mask) * _M & mask
    hashed = (hashed ^ hashed >> 15) & ones * _POSITIVE
    return unpack(f"<{count}Q", hashed.to_bytes(8 * count, "little"))


def partition_for_key(key: bytes, count: int) -> int:
    """
    The partition that Java's producer would choose for a key: its hash without the sign, modulo the count.

    :param count: how many partitions the topic has, those without a leader included: otherwise a key
        would move whenever a broker is away.
    :raise ValueError: if there are none.
    """
    if count < 1:
        raise ValueError("A topic without partitions has none for a key.")
    hashed = _remembered.get(key)
    if hashed is None:
        hashed = murmur2(key) & _POSITIVE
        if len(key) <= _REMEMBERED_KEY_BYTES:
            _remember({key: hashed})
    return hashed % count
