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

A `Snapshot` is what is there at one moment, encoded in steps. It shares what is encoded already, and what it
encodes, with the blocks, as long as they are the same. A block that changes before a snapshot has come to it
leaves its readings of that moment behind.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, TypeAlias
from zlib import crc32

import msgspec
from msgspec import Struct, field

from sampleapp.model import Reading
from sampleapp.negotiation import MEDIA_TYPES, Version

__all__ = ["BLOCK_READINGS", "Blocks", "Representation", "Shown", "Snapshot"]

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


_Sequence: TypeAlias = list[Shown] | tuple[Shown, ...]


class _Piece(Struct, gc=False, eq=False):
    """A block in one version, as it is, or as it was at the moment of a snapshot."""

    version: Version
    opening: bytes
    """The bracket or comma that comes before the readings."""
    shown: _Sequence | None
    """What is to be encoded, while the block has the same readings in the same order."""
    before: dict[int, Reading] | None = None
    """By their places, those of them that have another value now."""
    readings: list[Reading] | None = None
    """What is to be encoded, once the block has not the same readings any more."""
    text: bytes = b""
    """JSON, beginning with the opening. Nothing before it is encoded."""
    digest: bytes = b""

    def note(self, shown: Shown) -> None:
        """Keep what one of the readings was, before it has another value."""
        if self.before is None:
            self.before = {}
        self.before.setdefault(shown.place, shown.reading)

    def keep(self) -> None:
        """Keep all of the readings, before the block has others."""
        if self.shown is None:
            return
        if self.before is None:
            self.readings = [shown.reading for shown in self.shown]
        else:
            before = self.before.get
            self.readings = [before(shown.place, shown.reading) for shown in self.shown]
        self.shown = self.before = None

    def encode(self) -> int:
        """Make the text, if there is none; returns how many readings that took."""
        if self.text:
            return 0
        self.keep()
        readings = self.readings or []
        text = _encode([reading.value for reading in readings] if self.version == 1 else readings)
        self.text = b"".join((self.opening, memoryview(text)[1:-1]))
        self.digest = hashlib.blake2b(self.text, digest_size=_DIGEST_BYTES).digest()
        self.readings = None
        return len(readings)


class _Block(Struct, eq=False):
    shown: _Sequence
    """
    A list only where readings are appended to it, in the last block.

    The collector of cycles leaves out tuples of what has none, and looks at each item of a list, which takes
    30 ms for a million.
    """
    has_end: bool = False
    """Whether the id of the last reading is one after which a block ends."""
    pieces: dict[Version, _Piece] = field(default_factory=dict)
    """What it is now, in the versions that were asked for."""
    past: list[_Piece] = field(default_factory=list)
    """What it was, where a snapshot has not encoded that yet."""

    def piece(self, version: Version, opening: bytes) -> _Piece:
        """Return what the block is now, encoded or not."""
        piece = self.pieces.get(version)
        if piece is None:
            piece = self.pieces[version] = _Piece(version, opening, self.shown)
        return piece

    def change(self, shown: Shown) -> None:
        """Be told that one of the readings is about to have another value."""
        if self.pieces:
            self.past.extend(self.pieces.values())
            self.pieces.clear()
        if self.past:
            # To copy all of them at the first change would take a hundred times longer.
            self.past = [piece for piece in self.past if not piece.text]
            for piece in self.past:
                piece.note(shown)

    def rearrange(self) -> None:
        """Be told that readings are about to come, or go."""
        if self.pieces or self.past:
            for piece in (*self.pieces.values(), *self.past):
                piece.keep()
            self.pieces.clear()
            self.past.clear()


class Snapshot:
    """
    What was there at one moment, in one version, whatever has changed since then.

    Until it is encoded, the blocks go on to note for it what changes.
    """

    def __init__(
        self, version: Version, pieces: list[_Piece], representations: dict[Version, Representation]
    ) -> None:
        """
        :param pieces: some of which are to be encoded.
        :param representations: of the same moment, where others look for what was made.
        """
        self.representations = representations
        self._version = version
        self._pieces = pieces
        self._left = [piece for piece in pieces if not piece.text]

    def encode(self, *, at_once: int) -> bool:
        """
        Encode so many readings, or as many more as fill a block.

        :return: whether nothing is left to be encoded.
        """
        count = 0
        while self._left and count < at_once:
            count += self._left.pop().encode()
        return not self._left

    def representation(self) -> Representation:
        """Return the whole, encoding what is left."""
        while self._left:
            self._left.pop().encode()
        version = self._version
        pieces = [piece.text for piece in self._pieces]
        if len(pieces) > 1:
            pieces.append(b"]")
        else:
            pieces = [(pieces[0] if pieces else b"[") + b"]"]
        digests = b"".join([piece.digest for piece in self._pieces])
        # Both versions of the empty collection are "[]", and a tag names one representation only.
        etag = hashlib.blake2b(digests, digest_size=_ETAG_BYTES, person=b"readings-v%d" % version)
        made = self.representations[version] = Representation(
            media_type=MEDIA_TYPES[version], pieces=tuple(pieces), etag=f'"{etag.hexdigest()}"'
        )
        return made


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
        """Whether any block may be. Before that, a change of a value need not be told."""

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
        if block.pieces or block.past:
            block.rearrange()
        if isinstance(block.shown, tuple):
            block.shown = list(block.shown)
        block.shown.append(shown)
        block.has_end = self._is_end(shown)
        if self._is_whole(block):
            block.shown = tuple(block.shown)

    def change(self, shown: Shown) -> None:
        """Be told that one of the readings is about to have another value."""
        self._blocks[self._find_block(shown.place)].change(shown)

    def discard(self, shown: Shown) -> None:
        """Take out one of the readings."""
        number = self._find_block(shown.place)
        block = self._blocks[number]
        at = bisect_left(block.shown, shown.place, key=_get_place)
        block.rearrange()
        shown_now = tuple(block.shown)
        block.shown = shown_now[:at] + shown_now[at + 1 :]
        if at == len(block.shown):
            block.has_end = False
        if block.shown:
            self._firsts[number] = block.shown[0].place
            self._mend(number)
        else:
            self._drop(number)
        self._last_place = self._blocks[-1].shown[-1].place if self._blocks else -1

    def snapshot(self, version: Version, representations: dict[Version, Representation]) -> Snapshot:
        """Take what is there now, to be encoded as far as it is not; see `Snapshot`."""
        self.is_encoded = True
        if self._blocks:
            self._blocks[0].piece(version, b"[")
        pieces = [block.pieces.get(version) or block.piece(version, b",") for block in self._blocks]
        return Snapshot(version, pieces, representations)

    def encode(self, *, at_once: int) -> Iterator[None]:
        """
        Encode in both versions, from the first block to the last, what is not encoded.

        Readings may come, change and go in the pauses. What that changes in the blocks before the place that
        has been reached is left for snapshots, so that this ends.

        :param at_once: pause after so many readings, or as many more as fill a block.
        """
        self.is_encoded = True
        reached = -1
        count = 0
        while (number := bisect_right(self._firsts, reached)) < len(self._blocks):
            block = self._blocks[number]
            for version in MEDIA_TYPES:
                block.piece(version, b"," if number else b"[").encode()
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
                block.rearrange()
                self._firsts[number] = block.shown[0].place
            self._put(number, _Block(before, has_end=True), before[0].place)
            self._mend(number + 1)
        else:
            block.rearrange()
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
            following.rearrange()
            following.shown = (*moved, *following.shown)
            self._firsts[number + 1] = moved[0].place

    def _pull(self, number: int, count: int) -> None:
        """Move the first readings of the next block to the end of this one."""
        block, following = self._blocks[number : number + 2]
        block.rearrange()
        following.rearrange()
        block.shown = (*block.shown, *following.shown[:count])
        following.shown = tuple(following.shown[count:])
        self._firsts[number + 1] = following.shown[0].place

    def _join(self, number: int) -> None:
        """Make one block of this one and the next."""
        block, following = self._blocks[number : number + 2]
        block.rearrange()
        following.rearrange()
        block.shown = (*block.shown, *following.shown)
        block.has_end = following.has_end
        self._drop(number + 1)

    def _put(self, number: int, block: _Block, first: int) -> None:
        if number == 0 and self._blocks:
            # Its text begins with a comma from now on.
            self._blocks[0].rearrange()
        self._blocks.insert(number, block)
        self._firsts.insert(number, first)

    def _drop(self, number: int) -> None:
        del self._blocks[number]
        del self._firsts[number]
        if number == 0 and self._blocks:
            self._blocks[0].rearrange()

    def _find_block(self, place: int) -> int:
        return max(0, bisect_right(self._firsts, place) - 1)

    def _is_whole(self, block: _Block) -> bool:
        return block.has_end or len(block.shown) >= self._most

    def _is_end(self, shown: Shown) -> bool:
        return crc32(shown.reading.id.encode()) % self._usual == 0
