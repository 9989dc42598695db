"""
The readings in order, cut into blocks; a block is encoded once for each change.

A block ends after an id with a certain checksum, at the latest when it has `_LONGEST` times the usual weight:
rsync and restic cut files in the same way. A reading weighs 1, and 1 more for each 64 characters of its id,
and a heavy one is as much more likely to end a block. One that weighs as much as a usual block is a block of
its own, whose text is encoded in pieces. So a block has a limited length, and blocks depend on the ids and
their order only. All processes that have the same readings in the same order have the same blocks, whatever
was added and removed before. Adding or removing a reading changes its own block, and at most the blocks up to
the next id with such a checksum.

The entity tag is a digest of the digests of the blocks' text. It is as strong as a digest of the whole text:
equal tags mean equal blocks, and so equal bytes. A sum of the digests of single readings would need no rule
for blocks, but a digest for each reading, and an attacker can construct collisions of sums.

A `Snapshot` is the state at one moment, encoded in steps. It shares encoded text with the blocks as long as
they are unchanged. A block that changes before a snapshot has encoded it keeps its old readings for the
snapshot.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, TypeAlias
from weakref import ref
from zlib import crc32

import msgspec
from msgspec import Struct, field

from sampleapp.model import MEDIA_TYPES, Reading, Version

BLOCK_READINGS: Final = 512
"""The average weight of a block: tens of kilobytes of text, encoded in about 0.2 ms."""

_LONGEST: Final = 4
"""Without this limit, one of two thousand blocks would have more than seven times the usual weight."""
_CHARACTERS: Final = 64
"""The characters of an id that weigh as much as a reading without them."""
LONG_ID: Final = 32 * 1024
"""The characters of an id above which it is encoded in pieces, and those of a piece: in up to 0.7 ms."""
_WORK_OF_READING: Final = 32
"""Bytes of text that take as long to encode as what each reading takes besides its text."""
_DIGEST_BYTES: Final = 16
_ETAG_BYTES: Final = 12

_encode = msgspec.json.Encoder().encode
_get_sort_key = attrgetter("sort_key")


def encode_gradually(reading_id: str, value: float | None, *, before: bytes) -> Iterator[bytes]:
    """
    Encode a reading with a long id in pieces; their sum is what encoding it at once gives.

    :param value: ``None`` for an object with the id alone.
    :param before: the beginning of the first piece.
    """
    start = before + b'{"id":"'
    end = b'"}' if value is None else b'","value":%b}' % _encode(value)
    for at in range(0, len(reading_id), LONG_ID):
        is_last = at + LONG_ID >= len(reading_id)
        piece = memoryview(_encode(reading_id[at : at + LONG_ID]))[1:-1]
        yield b"".join((start, piece, end if is_last else b""))
        start = b""


class Representation(Struct, frozen=True, kw_only=True):
    """The whole collection in one version, ready to be sent."""

    media_type: str
    parts: tuple[bytes, ...]
    """
    The JSON text in UTF-8, in parts to be joined.

    Most have tens of kilobytes. Parts that have not changed are the same objects as before.
    """
    etag: str
    """A strong entity tag, with its quotes (RFC 9110, section 8.8.3)."""

    @property
    def length(self) -> int:
        """The number of bytes of all parts."""
        return sum(map(len, self.parts))

    @property
    def body(self) -> bytes:
        """The parts, joined again at each call: for small collections."""
        return b"".join(self.parts)


# gc=False: there are no cycles, and the garbage collector would visit each of a million again and again.
class Shown(Struct, gc=False, eq=False):
    """A reading that is in the collection."""

    reading: Reading
    partition: int
    """The partition of all records of the id; a negative number if they are in several."""
    timestamp_ms: int
    """The timestamp of the latest record."""
    sort_key: int
    """The sort key of the reading; unique."""


_Sequence: TypeAlias = list[Shown] | tuple[Shown, ...]


def _weigh(shown: Shown) -> int:
    return 1 + len(shown.reading.id) // _CHARACTERS


class _Part(Struct, eq=False, weakref=True):
    """The text of a block in one version: as it is now, or as it was at the moment of a snapshot."""

    version: Version
    opening: bytes
    """The bracket or comma that comes before the readings."""
    shown: _Sequence | None
    """The readings to encode, while the block has the same readings in the same order."""
    before: dict[int, Reading] | None = None
    """The old values of readings that have a new value now, by their sort keys."""
    readings: list[Reading] | None = None
    """The readings to encode, once the block has other readings."""
    texts: list[bytes] = field(default_factory=list)
    """JSON, beginning with the opening; in one piece unless an id is long."""
    pieces: Iterator[bytes] | None = None
    """The rest of the text, while it is encoded in pieces."""
    hash: hashlib.blake2b | None = None
    """The digest of the text so far."""
    digest: bytes = b""
    """That of the whole text; empty until all of it is encoded."""

    def keep_value(self, shown: Shown) -> None:
        """Keep the value of a reading that is about to change."""
        if self.shown is None:
            return
        if self.before is None:
            self.before = {}
        self.before.setdefault(shown.sort_key, shown.reading)

    def keep_readings(self) -> None:
        """Keep all readings of the block, before some are added or removed."""
        if self.shown is None:
            return
        if self.before is None:
            self.readings = [shown.reading for shown in self.shown]
        else:
            before = self.before.get
            self.readings = [before(shown.sort_key, shown.reading) for shown in self.shown]
        self.shown = self.before = None

    def encode(self) -> int:
        """
        Encode the next piece of the text, or the digest after the last one.

        :return: the work: the bytes of the text, and `_WORK_OF_READING` for each reading.
        """
        if self.digest:
            return 0
        self.keep_readings()
        if self.hash is None or self.pieces is None:
            self.hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            self.pieces = self._pieces(self.readings or [])
        text = next(self.pieces, None)
        if text is None:
            self.digest = self.hash.digest()
            self.readings = self.pieces = self.hash = None
            return 0
        self.hash.update(text)
        self.texts.append(text)
        return len(text) + _WORK_OF_READING * len(self.readings or ())

    def _pieces(self, readings: list[Reading]) -> Iterator[bytes]:
        if self.version == 1:
            text = _encode([reading.value for reading in readings])
        elif len(readings) == 1 and len(readings[0].id) > LONG_ID:
            yield from encode_gradually(readings[0].id, readings[0].value, before=self.opening)
            return
        else:
            text = _encode(readings)
        yield b"".join((self.opening, memoryview(text)[1:-1]))


class _Block(Struct, eq=False):
    shown: _Sequence
    """
    A list only where readings are appended to it, in the last block.

    The garbage collector skips tuples of objects that cannot be in cycles. But it visits each item of a list,
    which takes 30 ms for a million.
    """
    weight: int = 0
    """The sum of the weights of its readings."""
    has_end: bool = False
    """True if a block ends after the id of the last reading."""
    parts: dict[Version, _Part] = field(default_factory=dict)
    """The current text, in the versions that were asked for."""
    past: list[ref[_Part]] = field(default_factory=list)
    """Old states of the block that a snapshot has not encoded yet; the snapshot may be gone."""

    def part(self, version: Version, opening: bytes) -> _Part:
        """Return the current text of the block, encoded or not."""
        part = self.parts.get(version)
        if part is None:
            part = self.parts[version] = _Part(version, opening, self.shown)
        return part

    def change(self, shown: Shown) -> None:
        """Prepare for a new value of one of the readings."""
        if self.parts:
            self.past.extend(map(ref, self.parts.values()))
            self.parts.clear()
        if self.past:
            # Copying all readings at the first change would take a hundred times longer.
            left = []
            for each in self.past:
                part = each()
                if part is not None and not part.digest:
                    part.keep_value(shown)
                    left.append(each)
            self.past = left

    def rearrange(self) -> None:
        """Prepare for readings to be added or removed."""
        if self.parts or self.past:
            for part in (*self.parts.values(), *(each() for each in self.past)):
                if part is not None:
                    part.keep_readings()
            self.parts.clear()
            self.past.clear()


class Snapshot:
    """
    The collection as it was at one moment, in one version.

    Until it is encoded, the blocks keep old values for it.
    """

    def __init__(
        self, version: Version, parts: list[_Part], representations: dict[Version, Representation]
    ) -> None:
        """
        :param parts: the text of all blocks; some of it is not encoded yet.
        :param representations: the dictionary of this moment's state, into which the representation is put.
        """
        self.representations = representations
        self._version = version
        self._parts = parts
        self._left = [part for part in parts if not part.digest]

    def encode(self, *, at_once: int) -> bool:
        """
        Encode some more blocks, or pieces of them.

        :param at_once: the work after which to stop: about the bytes of text. One more block or piece has up
            to a megabyte, and normally tens of kilobytes.
        :return: true when everything is encoded.
        """
        left, work = self._left, 0
        while left and work < at_once:
            work += left[-1].encode()
            if left[-1].digest:
                left.pop()
        return not left

    def representation(self) -> Representation:
        """Return the whole representation; encode the rest first."""
        while not self.encode(at_once=1):
            pass
        version = self._version
        parts = [text for part in self._parts for text in part.texts]
        if len(parts) > 1:
            parts.append(b"]")
        else:
            parts = [(parts[0] if parts else b"[") + b"]"]
        digests = b"".join([part.digest for part in self._parts])
        # Both versions of the empty collection are "[]", and a tag names one representation only.
        etag = hashlib.blake2b(digests, digest_size=_ETAG_BYTES, person=b"readings-v%d" % version)
        made = self.representations[version] = Representation(
            media_type=MEDIA_TYPES[version], parts=tuple(parts), etag=f'"{etag.hexdigest()}"'
        )
        return made


class Blocks:
    """Readings in the order of their sort keys, and their text in both versions."""

    def __init__(self, *, block_readings: int = BLOCK_READINGS) -> None:
        """:param block_readings: the average weight of a block; the same in all processes."""
        self._usual = block_readings
        self._most = _LONGEST * block_readings
        self._blocks: list[_Block] = []
        # The sort key of the first reading of each block, to find blocks by.
        self._firsts: list[int] = []
        self._last_sort_key = -1
        self.is_encoded = False
        """True once any block may be encoded. Before that, `change` need not be called."""

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, shown: Shown) -> None:
        """Insert a reading by its sort key."""
        if shown.sort_key < self._last_sort_key:
            self._insert(shown)
            return
        # Nearly all readings are appended here while a long topic is read.
        self._last_sort_key = shown.sort_key
        blocks, weight = self._blocks, _weigh(shown)
        if not blocks or self._is_full(blocks[-1]) or weight >= self._usual:
            if blocks:
                blocks[-1].shown = tuple(blocks[-1].shown)
            self._put(len(blocks), _Block([]), shown.sort_key)
        block = blocks[-1]
        if block.parts or block.past:
            block.rearrange()
        if isinstance(block.shown, tuple):
            block.shown = list(block.shown)
        block.shown.append(shown)
        block.weight += weight
        block.has_end = self._is_end(shown, weight)
        if self._is_full(block):
            block.shown = tuple(block.shown)

    def change(self, shown: Shown) -> None:
        """Prepare for a new value of one of the readings."""
        self._blocks[self._find_block(shown.sort_key)].change(shown)

    def discard(self, shown: Shown) -> None:
        """Remove one of the readings."""
        number = self._find_block(shown.sort_key)
        block = self._blocks[number]
        at = bisect_left(block.shown, shown.sort_key, key=_get_sort_key)
        block.rearrange()
        shown_now = tuple(block.shown)
        block.shown = shown_now[:at] + shown_now[at + 1 :]
        block.weight -= _weigh(shown)
        if at == len(block.shown):
            block.has_end = False
        if block.shown:
            self._firsts[number] = block.shown[0].sort_key
            self._mend(number)
        else:
            self._drop(number)
            # It may have ended before a long id only.
            self._mend(max(0, number - 1))
        self._last_sort_key = self._blocks[-1].shown[-1].sort_key if self._blocks else -1

    def after(self, sort_key: int, *, most: int) -> list[Reading] | None:
        """Return the readings after a sort key, in order; ``None`` if they weigh more than ``most``."""
        found: list[Reading] = []
        weight = 0
        for block in self._blocks[self._find_block(sort_key) :]:
            begin = bisect_right(block.shown, sort_key, key=_get_sort_key)
            for shown in block.shown[begin:]:
                weight += _weigh(shown)
                if weight > most:
                    return None
                found.append(shown.reading)
        return found

    def snapshot(self, version: Version, representations: dict[Version, Representation]) -> Snapshot:
        """Return a snapshot of all blocks; see `Snapshot`."""
        self.is_encoded = True
        if self._blocks:
            self._blocks[0].part(version, b"[")
        parts = [block.parts.get(version) or block.part(version, b",") for block in self._blocks]
        return Snapshot(version, parts, representations)

    def encode(self, *, at_once: int) -> Iterator[None]:
        """
        Encode all blocks in both versions, from the first to the last.

        Readings may be added, changed and removed in the pauses. A block that has changed after it was
        encoded is left for snapshots, so that this ends.

        :param at_once: the work after which to pause; see `Snapshot.encode`.
        """
        self.is_encoded = True
        reached = -1
        work = 0
        while (number := bisect_right(self._firsts, reached)) < len(self._blocks):
            block = self._blocks[number]
            reached = block.shown[-1].sort_key
            for part in [block.part(version, b"," if number else b"[") for version in MEDIA_TYPES]:
                while not part.digest:
                    work += part.encode()
                    if work >= at_once:
                        work = 0
                        yield

    def _insert(self, shown: Shown) -> None:
        number, weight = self._find_block(shown.sort_key), _weigh(shown)
        block = self._blocks[number]
        at = bisect_right(block.shown, shown.sort_key, key=_get_sort_key)
        if at == len(block.shown) and self._is_full(block):
            # A reading that is not the last of all belongs to the next block.
            number, at = number + 1, 0
            block = self._blocks[number]
        before, after = tuple(block.shown[:at]), tuple(block.shown[at:])
        is_end = self._is_end(shown, weight)
        if weight >= self._usual:
            pieces = [(before, False), ((shown,), True), (after, block.has_end)]
        elif is_end or self._is_large(block):
            pieces = [((*before, shown), is_end), (after, block.has_end)]
        else:
            pieces = [((*before, shown, *after), block.has_end)]
        block.weight += weight
        self._split(number, [each for each in pieces if each[0]], keep_first=not after)

    def _split(self, number: int, pieces: list[tuple[tuple[Shown, ...], bool]], *, keep_first: bool) -> None:
        """
        Replace the readings of a block by those of one or several blocks.

        :param pieces: the readings of each, and whether the last of these ends a block. The block has the
            weight of all of them.
        :param keep_first: true if the first piece, and not the last, may be the readings of the block.
        """
        block = self._blocks[number]
        kept = 0 if keep_first else len(pieces) - 1
        for index, (readings, has_end) in enumerate(pieces):
            if index != kept:
                made = _Block(readings, sum(map(_weigh, readings)), has_end)
                block.weight -= made.weight
                self._put(number + index, made, readings[0].sort_key)
            elif len(readings) != len(block.shown):
                block.rearrange()
                block.shown, block.has_end = readings, has_end
                self._firsts[number + index] = readings[0].sort_key
        self._mend(number + len(pieces) - 1)

    def _mend(self, number: int) -> None:
        """Move readings between this block and the following ones until all have the right ends."""
        while number < len(self._blocks):
            block = self._blocks[number]
            if block.weight - _weigh(block.shown[-1]) >= self._most:
                self._push(number, _count(block.shown, self._most))
                number += 1
            elif self._is_full(block) or number + 1 == len(self._blocks):
                return
            else:
                following = self._blocks[number + 1]
                if self._is_large(following):
                    return
                count = _count(following.shown, self._most - block.weight)
                if count < len(following.shown):
                    self._pull(number, count)
                    number += 1
                else:
                    self._join(number)

    def _push(self, number: int, count: int) -> None:
        """Move all readings of a block but the first to the next block of the same run, or to a new one."""
        block = self._blocks[number]
        moved = tuple(block.shown[count:])
        weight = sum(map(_weigh, moved))
        block.shown = tuple(block.shown[:count])
        block.weight -= weight
        following = self._blocks[number + 1] if number + 1 < len(self._blocks) else None
        if block.has_end or following is None or self._is_large(following):
            self._put(number + 1, _Block(moved, weight, block.has_end), moved[0].sort_key)
            block.has_end = False
        else:
            following.rearrange()
            following.shown = (*moved, *following.shown)
            following.weight += weight
            self._firsts[number + 1] = moved[0].sort_key

    def _pull(self, number: int, count: int) -> None:
        """Move the first readings of the next block to the end of this one."""
        block, following = self._blocks[number : number + 2]
        block.rearrange()
        following.rearrange()
        moved = tuple(following.shown[:count])
        weight = sum(map(_weigh, moved))
        block.shown = (*block.shown, *moved)
        block.weight += weight
        following.shown = tuple(following.shown[count:])
        following.weight -= weight
        self._firsts[number + 1] = following.shown[0].sort_key

    def _join(self, number: int) -> None:
        """Join this block and the next."""
        block, following = self._blocks[number : number + 2]
        block.rearrange()
        following.rearrange()
        block.shown = (*block.shown, *following.shown)
        block.weight += following.weight
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

    def _find_block(self, sort_key: int) -> int:
        return max(0, bisect_right(self._firsts, sort_key) - 1)

    def _is_full(self, block: _Block) -> bool:
        return block.has_end or block.weight >= self._most

    def _is_large(self, block: _Block) -> bool:
        """Return whether a block has one reading only, with a long id."""
        return _weigh(block.shown[0]) >= self._usual

    def _is_end(self, shown: Shown, weight: int) -> bool:
        return weight >= self._usual or crc32(shown.reading.id.encode()) % self._usual < weight


def _count(shown: _Sequence, weight: int) -> int:
    """Return the number of first readings that have a weight together; of all if they have not."""
    for count, each in enumerate(shown, 1):
        weight -= _weigh(each)
        if weight <= 0:
            return count
    return len(shown)
