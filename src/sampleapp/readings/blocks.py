"""
The readings that are shown, in order, cut into blocks that are encoded once for each change.

Where a block ends depends on nothing but the ids and their order: after an id with a certain checksum, and
after `_LONGEST` times the usual number at the latest, counted from the last end. So do rsync and restic cut
files. Every process that has the same readings in the same order has the same blocks, whatever came and went
before. A reading that comes or goes changes its own block, and at most those up to the next id with such a
checksum.

The entity tag is a digest of the digests of the blocks' text. It is as strong as one of the whole text: equal
tags mean equal blocks, and so equal bytes. A sum of the digests of single readings would need no rule for
blocks, but a digest for each reading, and sums can be made to collide.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct, field

from sampleapp.model import Reading
from sampleapp.negotiation import MEDIA_TYPES, Version

__all__ = ["BLOCK_READINGS", "Blocks", "Representation", "Shown"]

BLOCK_READINGS: Final = 512
"""In a block, on average: tens of kilobytes of text, encoded in about 0.2 ms."""

_LONGEST: Final = 4
"""Without a limit, one block of two thousand would have more than seven times the usual number."""
_DIGEST_BYTES: Final = 16
_ETAG_BYTES: Final = 12

_encode = msgspec.json.Encoder().encode
_get_place = attrgetter("place")


class Representation(Struct, frozen=True, kw_only=True):
    """The whole collection in one version, ready to be sent."""

    media_type: str
    pieces: tuple[bytes, ...]
    """
    JSON text in UTF-8: what it is when they are joined.

    Most have tens of kilobytes. Those that no change concerns are the same objects as before.
    """
    etag: str
    """A strong entity tag, with its quotes (RFC 9110, section 8.8.3)."""

    @property
    def length(self) -> int:
        """How many bytes there are in all pieces."""
        return sum(map(len, self.pieces))

    @property
    def body(self) -> bytes:
        """The pieces, joined anew: for where there are few."""
        return b"".join(self.pieces)


# Without the collector of cycles, which would look at each of a million again and again: there are no cycles.
class Shown(Struct, gc=False, eq=False):
    """A reading that is in the collection."""

    reading: Reading
    partition: int
    """Where all records of the id are, or a negative number if they are in several partitions."""
    timestamp_ms: int
    """Of the latest record."""
    place: int
    """Says where it stands among the others; no two have the same one."""


class _Encoded(Struct, frozen=True, gc=False):
    text: bytes
    """JSON, beginning with the bracket or comma that comes before the readings."""
    digest: bytes


class _Block(Struct, eq=False):
    shown: list[Shown] | tuple[Shown, ...]
    """
    A list only where readings are appended to it, in the last block.

    The collector of cycles leaves out tuples of what has none, and looks at each item of a list, which takes
    30 ms for a million.
    """
    has_end: bool = False
    """Whether the id of the last reading is one after which a block ends."""
    encoded: dict[Version, _Encoded] = field(default_factory=dict)


class Blocks:
    """Readings in the order of their places, and their text in both versions."""

    def __init__(self, *, block_readings: int = BLOCK_READINGS) -> None:
        """:param block_readings: how many are in a block, on average. Processes have to agree on it."""
        self._usual = block_readings
        self._most = _LONGEST * block_readings
        self._blocks: list[_Block] = []
        # The place of the first reading of each block, to find it by.
        self._firsts: list[int] = []
        self._last_place = -1
        self.is_encoded = False
        """Whether any block may be. Before that, a change of a value need not be noted."""

    def add(self, shown: Shown) -> None:
        """Put a reading where its place says."""
        if shown.place < self._last_place:
            self._insert(shown)
            return
        # Nearly all come here, while a long topic is read.
        self._last_place = shown.place
        blocks = self._blocks
        if not blocks or blocks[-1].has_end or len(blocks[-1].shown) >= self._most:
            self._put(len(blocks), _Block([]), shown.place)
        block = blocks[-1]
        block.encoded.clear()
        if isinstance(block.shown, tuple):
            block.shown = list(block.shown)
        block.shown.append(shown)
        block.has_end = self._is_end(shown)
        if self._is_whole(block):
            block.shown = tuple(block.shown)

    def changed(self, shown: Shown) -> None:
        """Note that the value of one of the readings is another."""
        self._blocks[self._find_block(shown.place)].encoded.clear()

    def discard(self, shown: Shown) -> None:
        """Take out one of the readings."""
        number = self._find_block(shown.place)
        block = self._blocks[number]
        at = bisect_left(block.shown, shown.place, key=_get_place)
        block.encoded.clear()
        block.shown = (*block.shown[:at], *block.shown[at + 1 :])
        if at == len(block.shown):
            block.has_end = False
        if block.shown:
            self._firsts[number] = block.shown[0].place
            self._mend(number)
        else:
            self._drop(number)
        self._last_place = self._blocks[-1].shown[-1].place if self._blocks else -1

    def represent(self, version: Version) -> Representation:
        """Make a representation of what is there now, encoding the blocks that have changed."""
        pieces: list[bytes] = []
        digests: list[bytes] = []
        self.is_encoded = True
        opening = b"["
        for block in self._blocks:
            encoded = block.encoded.get(version)
            if encoded is None:
                encoded = block.encoded[version] = _encode_block(block, version, opening)
            pieces.append(encoded.text)
            digests.append(encoded.digest)
            opening = b","
        if len(pieces) > 1:
            pieces.append(b"]")
        else:
            pieces = [(pieces[0] if pieces else b"[") + b"]"]
        # Both versions of the empty collection are "[]", and a tag names one representation only.
        etag = hashlib.blake2b(b"".join(digests), digest_size=_ETAG_BYTES, person=b"readings-v%d" % version)
        return Representation(
            media_type=MEDIA_TYPES[version], pieces=tuple(pieces), etag=f'"{etag.hexdigest()}"'
        )

    def encode(self, *, at_once: int) -> Iterator[None]:
        """
        Encode in both versions, from the first block to the last, what is not encoded.

        Readings may come, change and go in the pauses. What that changes in the blocks before the place that
        has been reached is left for `represent`, so that this ends.

        :param at_once: pause after so many readings, or as many more as fill a block.
        """
        self.is_encoded = True
        reached = -1
        count = 0
        while (number := bisect_right(self._firsts, reached)) < len(self._blocks):
            block = self._blocks[number]
            for version in MEDIA_TYPES:
                if version not in block.encoded:
                    block.encoded[version] = _encode_block(block, version, b"," if number else b"[")
            reached = block.shown[-1].place
            count += len(block.shown)
            if count >= at_once:
                count = 0
                yield

    def _insert(self, shown: Shown) -> None:
        number = self._find_block(shown.place)
        block = self._blocks[number]
        at = bisect_right(block.shown, shown.place, key=_get_place)
        if at == len(block.shown):
            # It is not the last of all, so this block is whole, and the next one begins with it.
            number, at = number + 1, 0
            block = self._blocks[number]
        if self._is_end(shown):
            before = (*block.shown[:at], shown)
            if at:
                block.shown = tuple(block.shown[at:])
                block.encoded.clear()
                self._firsts[number] = block.shown[0].place
            self._put(number, _Block(before, has_end=True), before[0].place)
            self._mend(number + 1)
        else:
            block.encoded.clear()
            block.shown = (*block.shown[:at], shown, *block.shown[at:])
            self._firsts[number] = block.shown[0].place
            self._mend(number)

    def _mend(self, number: int) -> None:
        """Move readings between this block and those behind it until all end where they have to."""
        while number < len(self._blocks):
            block = self._blocks[number]
            missing = self._most - len(block.shown)
            if missing < 0:
                self._push(number, -missing)
                number += 1
            elif self._is_whole(block) or number + 1 == len(self._blocks):
                return
            elif missing < len(self._blocks[number + 1].shown):
                self._pull(number, missing)
                number += 1
            else:
                self._join(number)

    def _push(self, number: int, count: int) -> None:
        """Move the last readings of a block to the next one of the same run, or to a new one."""
        block = self._blocks[number]
        moved = tuple(block.shown[-count:])
        block.shown = tuple(block.shown[:-count])
        if block.has_end or number + 1 == len(self._blocks):
            self._put(number + 1, _Block(moved, has_end=block.has_end), moved[0].place)
            block.has_end = False
        else:
            following = self._blocks[number + 1]
            following.encoded.clear()
            following.shown = (*moved, *following.shown)
            self._firsts[number + 1] = moved[0].place

    def _pull(self, number: int, count: int) -> None:
        """Move the first readings of the next block to the end of this one."""
        block, following = self._blocks[number : number + 2]
        block.encoded.clear()
        following.encoded.clear()
        block.shown = (*block.shown, *following.shown[:count])
        following.shown = tuple(following.shown[count:])
        self._firsts[number + 1] = following.shown[0].place

    def _join(self, number: int) -> None:
        """Make one block of this one and the next."""
        block, following = self._blocks[number : number + 2]
        block.encoded.clear()
        block.shown = (*block.shown, *following.shown)
        block.has_end = following.has_end
        self._drop(number + 1)

    def _put(self, number: int, block: _Block, first: int) -> None:
        if number == 0 and self._blocks:
            # Its text begins with a comma from now on.
            self._blocks[0].encoded.clear()
        self._blocks.insert(number, block)
        self._firsts.insert(number, first)

    def _drop(self, number: int) -> None:
        del self._blocks[number]
        del self._firsts[number]
        if number == 0 and self._blocks:
            self._blocks[0].encoded.clear()

    def _find_block(self, place: int) -> int:
        return max(0, bisect_right(self._firsts, place) - 1)

    def _is_whole(self, block: _Block) -> bool:
        return block.has_end or len(block.shown) >= self._most

    def _is_end(self, shown: Shown) -> bool:
        return crc32(shown.reading.id.encode()) % self._usual == 0


def _encode_block(block: _Block, version: Version, opening: bytes) -> _Encoded:
    readings = [shown.reading for shown in block.shown]
    text = _encode([reading.value for reading in readings] if version == 1 else readings)
    text = b"".join((opening, memoryview(text)[1:-1]))
    return _Encoded(text, hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest())
