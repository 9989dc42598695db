"""
The collection of readings, and its two representations.

The collection is what remains of a topic when, for each key, only the latest value counts.
"""

from __future__ import annotations

import hashlib
import math
import re
from operator import attrgetter

import msgspec
from msgspec import Struct

from sampleapp.model import ConsumerRecord, Reading
from sampleapp.negotiation import MEDIA_TYPES, Version

__all__ = ["NotAReading", "Readings", "Representation"]

# A number as people and programs write it. Python's float() takes more: "nan", "1_000", other digits.
_NUMBER = re.compile(rb"[ \t\r\n]*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[ \t\r\n]*")

_SEVERAL = -1
"""In place of a partition: the id is in several."""
_GONE = -2
"""In place of a place: the reading is not shown any more."""
_MOST_REMOVED = 20_000
"""About six megabytes."""


class NotAReading(ValueError):
    """A record of the topic says nothing about a reading; the message says why."""


class Representation(Struct, frozen=True, kw_only=True):
    """The whole collection in one version, ready to be sent."""

    media_type: str
    body: bytes
    """JSON text in UTF-8."""
    etag: str
    """A strong entity tag, with its quotes (RFC 9110, section 8.8.3)."""


class _Part(Struct, frozen=True, gc=False):
    """What one partition says of an id."""

    partition: int
    timestamp_ms: int
    """Of the latest record."""
    place: int
    """Of the first record since this partition last removed the reading; see `_place`."""
    value: float | None
    """``None``: removed."""


class _Shown(Struct, gc=False):
    """A reading that is in the collection."""

    reading: Reading
    partition: int
    """Where all records of the id are, or `_SEVERAL`."""
    timestamp_ms: int
    place: int


class _InOrder:
    """Shown readings in the order of their places. Most come in order; the rest is sorted when needed."""

    def __init__(self) -> None:
        self._all: list[_Shown] = []
        self._last_place = -1
        self._sorted = True
        self._gone = 0

    def add(self, shown: _Shown) -> None:
        if shown.place > self._last_place:
            self._last_place = shown.place
        else:
            self._sorted = False
        self._all.append(shown)

    def discard(self, shown: _Shown) -> None:
        shown.place = _GONE
        self._gone += 1
        # Ids may come and go for a long time before somebody asks for the rest.
        if 2 * self._gone > len(self._all):
            self._drop_gone()

    def all(self) -> list[_Shown]:
        """In order. The list is not the caller's."""
        if self._gone:
            self._drop_gone()
        if not self._sorted:
            self._all.sort(key=attrgetter("place"))
            self._sorted = True
        return self._all

    def _drop_gone(self) -> None:
        self._all = [shown for shown in self._all if shown.place != _GONE]
        self._gone = 0


class Readings:
    """
    The latest value of each id, in the order of the first record of each.

    That order is the one of the records' timestamps, then partitions, then offsets. An id that was removed
    and comes back is seen for the first time again.

    The collection depends on the records of each partition in their order, and not on how the partitions
    were interleaved. All records of an id are normally in one partition, and the last of them is the latest,
    whatever its timestamp: as in a compacted topic. When an id is in several partitions, because their
    number or the partitioner was changed, the latest is the one with the greatest timestamp (then
    partition) among the last records of each. If that one removes the reading, it is removed; otherwise the
    first record is the earliest that any partition has which has not removed the reading itself.

    For that, removed ids have to be remembered: an older record of the same id may follow from another
    partition. The latest 20,000 are; what another partition has of an id that was removed before those
    counts as new.
    """

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}
        self._in_order = _InOrder()
        # The parts of the ids that are shown and in several partitions, and of those that are removed.
        self._scattered: dict[str, tuple[_Part, ...]] = {}
        self._removed: dict[str, tuple[_Part, ...]] = {}
        self._representations: dict[Version, Representation] = {}

    def __len__(self) -> int:
        return len(self._shown)

    def apply(self, record: ConsumerRecord) -> None:
        """
        Take one record into account.

        Its key is the id of the reading, in UTF-8. Its value is the text of a finite number in ASCII,
        perhaps with white space around it, or ``None`` to remove the reading.

        :raise NotAReading: the record is to be skipped; nothing was changed.
        """
        reading_id = _parse_id(record.key)
        number = None if record.value is None else _parse_number(record.value)
        shown = self._shown.get(reading_id)
        if number is None:
            self._merge(reading_id, None, record)
        elif shown is not None and shown.partition == record.partition:
            self._update(shown, number, record.timestamp_ms)
        elif shown is None and reading_id not in self._removed:
            self._show(reading_id, number, record.partition, record.timestamp_ms, _place(record))
        else:
            self._merge(reading_id, number, record)

    def _update(self, shown: _Shown, number: float, timestamp_ms: int) -> None:
        shown.timestamp_ms = timestamp_ms
        if not _same(shown.reading.value, number):
            shown.reading = Reading(shown.reading.id, number)
            self._representations.clear()

    def _show(self, reading_id: str, number: float, partition: int, timestamp_ms: int, place: int) -> None:
        shown = _Shown(Reading(reading_id, number), partition, timestamp_ms, place)
        self._shown[reading_id] = shown
        self._in_order.add(shown)
        self._representations.clear()

    def _hide(self, reading_id: str) -> None:
        shown = self._shown.pop(reading_id, None)
        if shown is not None:
            self._in_order.discard(shown)
            self._representations.clear()

    def _merge(self, reading_id: str, number: float | None, record: ConsumerRecord) -> None:
        """Apply a record whose partition does not decide alone, or which removes the reading."""
        before = {part.partition: part for part in self._parts(reading_id)}
        mine = before.get(record.partition)
        place = _place(record) if mine is None or mine.value is None else mine.place
        before[record.partition] = _Part(record.partition, record.timestamp_ms, place, number)
        parts = tuple(before.values())
        self._scattered.pop(reading_id, None)
        self._removed.pop(reading_id, None)
        latest = max(parts, key=_recency)
        if latest.value is None:
            self._hide(reading_id)
            self._remember_removed(reading_id, parts)
            return
        partition = latest.partition
        if len(parts) > 1:
            partition = _SEVERAL
            place = min(part.place for part in parts if part.value is not None)
            self._scattered[reading_id] = parts
        shown = self._shown.get(reading_id)
        if shown is not None and shown.place == place:
            shown.partition = partition
            self._update(shown, latest.value, latest.timestamp_ms)
        else:
            self._hide(reading_id)
            self._show(reading_id, latest.value, partition, latest.timestamp_ms, place)

    def _parts(self, reading_id: str) -> tuple[_Part, ...]:
        parts = self._scattered.get(reading_id) or self._removed.get(reading_id)
        if parts is not None:
            return parts
        shown = self._shown.get(reading_id)
        if shown is None:
            return ()
        return (_Part(shown.partition, shown.timestamp_ms, shown.place, shown.reading.value),)

    def _remember_removed(self, reading_id: str, parts: tuple[_Part, ...]) -> None:
        self._removed[reading_id] = parts
        if len(self._removed) > _MOST_REMOVED:
            del self._removed[next(iter(self._removed))]

    def representation(self, version: Version) -> Representation:
        """Return the collection as it is now in one version; encoded once for each state."""
        made = self._representations.get(version)
        if made is None:
            made = self._representations[version] = self._represent(version)
        return made

    def _represent(self, version: Version) -> Representation:
        readings = [shown.reading for shown in self._in_order.all()]
        body = msgspec.json.encode([reading.value for reading in readings] if version == 1 else readings)
        # Both versions of the empty collection are "[]", and a tag names one representation only.
        digest = hashlib.blake2b(body, digest_size=12, person=b"readings-v%d" % version)
        return Representation(
            media_type=MEDIA_TYPES[version],
            body=body,
            etag=f'"{digest.hexdigest()}"',
        )


def _place(record: ConsumerRecord) -> int:
    # One integer for (timestamp, partition, offset), which are 64, 31 and 63 bits: a tuple of three would
    # take a third more memory for each reading, and longer to sort.
    return (record.timestamp_ms + 2**63 << 94) | (record.partition << 63) | record.offset


def _recency(part: _Part) -> tuple[int, int]:
    return part.timestamp_ms, part.partition


def _parse_id(key: bytes | None) -> str:
    if key is None:
        raise NotAReading("the record has no key")
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise NotAReading("the record's key is not UTF-8") from None


def _parse_number(value: bytes) -> float:
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise NotAReading("the record's value is not the text of a number")
    number = float(match[1])
    if not math.isfinite(number):
        raise NotAReading("the record's value is too large for a finite number")
    return number


def _same(before: float, after: float) -> bool:
    # 0.0 and -0.0 are equal, and not the same reading.
    return before == after and math.copysign(1.0, before) == math.copysign(1.0, after)
