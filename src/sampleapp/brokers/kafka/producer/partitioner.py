"""The partition of a key, computed exactly as in Java's producer, so that both agree on every key."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from struct import Struct, unpack
from typing import Final

from sampleapp.model import RecordIdentity

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF
# A layout for each number of whole words. Longer keys are rare: their layouts are made when needed.
_WORDS = [Struct(f"<{words}I") for words in range(65)]
_REMEMBERED: Final = 16_384
_REMEMBERED_KEY_BYTES: Final = 64
"""With this limit, the remembered hashes take less than three megabytes."""
_WORTH_LANES: Final = 6
"""From this number of keys of one length on, hashing them together is faster than one by one."""
_LANE: Final = b"\1\0\0\0\0\0\0\0"

HASHED_AT_ONCE: Final = 16 * 1024
"""The bytes of keys that are hashed in one step: about a millisecond. A longer key takes several steps."""


def murmur2(data: bytes) -> int:
    """
    Return the 32-bit MurmurHash2 of Kafka: ``Utils.murmur2`` in its clients, with their fixed seed.

    aiokafka's works byte by byte, and takes about twice as long; it is the oracle of the tests.

    :return: the hash as an unsigned number; Java's is the same bits as a signed number.
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


def hash_in_steps(key: bytes) -> Generator[None, None, int]:
    """
    Hash a long key, `HASHED_AT_ONCE` bytes in each step.

    :return: the hash without the sign, as `partition_for_key` uses it.
    """
    # As in murmur2(), which is for the keys of nearly all records: two calls would be a tenth of its time.
    length = len(key)
    whole = length & ~3
    hashed = _SEED ^ length
    for start in range(0, whole, HASHED_AT_ONCE):
        piece = key[start : min(start + HASHED_AT_ONCE, whole)]
        for word in unpack(f"<{len(piece) >> 2}I", piece):
            mixed = word * _M & _MASK
            hashed = (hashed * _M ^ (mixed ^ mixed >> 24) * _M) & _MASK
        yield
    if length > whole:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return (hashed ^ hashed >> 15) & _POSITIVE


def divided(keys: Sequence[bytes | None]) -> Iterator[list[bytes | None]]:
    """Divide keys, in order, into lists that are each hashed in one step; a longer key has its own list."""
    some: list[bytes | None] = []
    room = HASHED_AT_ONCE
    for key in keys:
        length = 0 if key is None else len(key)
        if length > room and some:
            yield some
            some, room = [], HASHED_AT_ONCE
        some.append(key)
        room -= length
    if some:
        yield some


# Keys repeat, and hashing one in Python takes as long as the rest of accepting a record.
_remembered: Final[dict[bytes | None, int]] = {}


def _remember(hashes: dict[bytes | None, int]) -> None:
    if len(_remembered) + len(hashes) > _REMEMBERED:
        # Finding the oldest would take longer than hashing the keys that repeat.
        _remembered.clear()
    _remembered.update(hashes)


def remembered_hashes(keys: Sequence[bytes | None]) -> list[int | None] | None:
    """Return the hashes of keys if all are remembered; otherwise, or if a record has no key, ``None``."""
    hashes = list(map(_remembered.get, keys))
    return None if None in hashes else hashes


def hash_keys(keys: Sequence[bytes | None]) -> list[int | None]:
    """
    Hash keys of `HASHED_AT_ONCE` bytes in all; those of one length together.

    For 250 new keys of 16 bytes this takes 0.5 µs for each; one by one takes 1.7 µs. `benchmarks/batches.py`
    measures it in batches with different keys.

    :return: the hashes without the sign, as `partition_for_key` uses them; ``None`` for no key.
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
    Hash keys of one length, without the sign: each step of `murmur2` for all keys at once.

    Each key has a lane of 64 bits in one large int. A lane holds 32 bits, and its product with the 31-bit
    multiplier has at most 63, so nothing overflows into the next lane; bits that a right shift brings from
    the next lane are masked. So Python's loop over the digits of an int, in C, is the loop over the keys.
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
    Return the partition that Java's producer chooses for a key: its hash without the sign, modulo the count.

    :param count: the number of the topic's partitions, including those without a leader: otherwise a key
        would move whenever a broker is down.
    :raise ValueError: if the count is below 1.
    """
    if count < 1:
        raise ValueError("A topic without partitions has none for a key.")
    hashed = _remembered.get(key)
    if hashed is None:
        hashed = murmur2(key) & _POSITIVE
        if len(key) <= _REMEMBERED_KEY_BYTES:
            _remember({key: hashed})
    return hashed % count


def number_of(identity: RecordIdentity) -> int:
    """
    Return the number of a record without a key: its partition is this modulo the number of partitions.

    So the partition is the same when the record is sent again.
    """
    return int.from_bytes(identity.id, "big")
