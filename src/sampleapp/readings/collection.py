"""The collection of readings: a fold over the records of a topic, in a defined order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import copysign, isfinite
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from sampleapp.model import ConsumerRecord, Reading, Version
from sampleapp.readings.blocks import BLOCK_READINGS, Blocks, Representation, Shown, Snapshot

# The characters of a number, and white space. Python's float() accepts more: "nan", "1_000", "\v1". With only
# these characters, it accepts exactly the numbers that the documentation of the interface allows.
_IN_NUMBERS: Final = b"0123456789+-.eE \t\r\n"
_IN_LISTS: Final = _IN_NUMBERS + b","
_NO_NUMBER: Final = "the record's value is not the text of a number"


_decode_list = msgspec.json.Decoder(list[float]).decode


class NotAReading(ValueError):
    """A record of the topic has no reading; the message says why."""


def parse_id(key: bytes | None) -> str:
    """
    Parse the id of a reading from a record's key.

    :raise NotAReading: the key is missing, or not UTF-8.
    """
    if key is None:
        raise NotAReading("the record has no key")
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise NotAReading("the record's key is not UTF-8") from None


def parse_number(value: bytes) -> float:
    """
    Parse a finite number from a record's value.

    :raise NotAReading: the value is not the text of a finite number.
    """
    if value.translate(None, _IN_NUMBERS):
        raise NotAReading(_NO_NUMBER)
    try:
        number = float(value)
    except ValueError:
        raise NotAReading(_NO_NUMBER) from None
    if not isfinite(number):
        raise NotAReading("the record's value is too large for a finite number")
    return number


def parse_numbers(values: Sequence[bytes]) -> list[float] | None:
    """
    Parse many numbers at once, each as `parse_number` does.

    :return: ``None`` if they must be parsed one by one: a value is not a number, or not in JSON's form.
    """
    joined = b",".join(values)
    if joined.translate(None, _IN_LISTS):
        return None
    try:
        numbers = _decode_list(b"[%b]" % joined)
    except msgspec.MsgspecError:
        return None
    # A value with a comma would be several numbers.
    if len(numbers) != len(values):
        return None
    if 0.0 in numbers:
        # The JSON decoder takes "-0" for the integer 0.
        return [number or float(value) for number, value in zip(numbers, values, strict=True)]
    return numbers


_SEVERAL: Final = -1
"""Stands for a partition where an id is in several."""
_MOST_REMOVED: Final = 20_000
"""The most removed ids that are remembered: about six megabytes."""
_MOST_AFTER_NEW: Final = 500
"""The most weight of the readings after a new one that `OnChange` gets: tens of kilobytes of events."""
_TABLES: Final = 61
"""
The number of tables: enlarging a single one with a million entries takes 30 ms in one step.

A prime, since a table uses the lowest bits of a hash first. With a power of two, these bits would choose the
table, and all its entries would have the same ones.
"""


class _Part(Struct, frozen=True, gc=False):
    """The state of an id in one partition."""

    partition: int
    timestamp_ms: int
    """The timestamp of the latest record."""
    sort_key: int
    """The sort key: the first record since this partition last removed the reading; see `_sort_key`."""
    value: float | None
    """``None``: removed."""


class OnChange(Protocol):
    """The function that `Readings` calls after each change."""

    def __call__(
        self,
        readings: Sequence[Reading] | None = (),
        /,
        *,
        removed: Sequence[str] = (),
        are_new: bool = False,
    ) -> None:
        """
        Learn of one change: removing some readings, and then setting others, leads to the new collection.

        :param readings: those to set; ``None`` if they are many.
        :param removed: the ids of those to remove.
        :param are_new: append ``readings`` in their order, instead of giving them new values. They are one
            that is new, and those that stand after it: it is not the last one if its first record is older.
        """


class Readings:
    """
    The latest value of each id, in the order of the first record of each.

    That order is the one of the records' timestamps, then partitions, then offsets. An id that was removed
    and comes back has its first record then.

    The collection depends on the records of each partition in their order, and not on how the partitions
    were interleaved. All records of an id are normally in one partition, and the last of them is the latest,
    whatever its timestamp: as in a compacted topic. When an id is in several partitions, because their
    number or the partitioner was changed, the latest is the one with the greatest timestamp (then
    partition) among the last records of each. If that one removes the reading, it is removed; otherwise the
    first record is the earliest of all partitions that have not removed the reading themselves.

    An older record of a removed id may follow from another partition. So the latest 20,000 removed ids are
    remembered; a record of an id that was removed earlier counts as new.
    """

    def __init__(self, *, block_readings: int = BLOCK_READINGS) -> None:
        """:param block_readings: the average weight of readings that are encoded together: see `Blocks`."""
        self._tables: tuple[dict[str, Shown], ...] = tuple({} for _ in range(_TABLES))
        self._blocks = Blocks(block_readings=block_readings)
        # The parts of ids that are in several partitions, and of removed ids.
        self._scattered: dict[str, tuple[_Part, ...]] = {}
        self._removed: dict[str, tuple[_Part, ...]] = {}
        # Replaced at each change. A snapshot puts its representation into the dictionary of its own state.
        self._representations: dict[Version, Representation] = {}
        self.on_change: OnChange | None = None

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    @property
    def blocks(self) -> int:
        """The number of blocks that are encoded each by itself: a snapshot takes 0.1 us for each."""
        return len(self._blocks)

    def apply(self, record: ConsumerRecord) -> None:
        """
        Apply one record to the collection.

        Its key is the id of the reading, in UTF-8. Its value is the text of a finite number in ASCII,
        perhaps with white space around it, or ``None`` to remove the reading.

        :raise NotAReading: the record must be skipped; nothing was changed.
        """
        self._apply(
            parse_id(record.key), None if record.value is None else parse_number(record.value), record
        )

    def apply_all(self, records: Sequence[ConsumerRecord]) -> list[tuple[ConsumerRecord, NotAReading]]:
        """
        Apply many records, as `apply` does it one by one, in less time.

        :return: the records that were skipped, with the reason.
        """
        values = [record.value for record in records]
        numbers = parse_numbers([b"0" if value is None else value for value in values])
        if numbers is None:
            return self._apply_singly(records)
        skipped = []
        tables = self._tables
        for record, value, number in zip(records, values, numbers, strict=True):
            try:
                reading_id = parse_id(record.key)
            except NotAReading as reason:
                skipped.append((record, reason))
                continue
            shown = tables[hash(reading_id) % _TABLES].get(reading_id)
            # Nearly all records are of this kind while a long topic is read.
            if shown is not None and shown.partition == record.partition and value is not None:
                self._update(shown, number, record.timestamp_ms)
            else:
                self._apply(reading_id, None if value is None else number, record)
        return skipped

    def _apply_singly(self, records: Sequence[ConsumerRecord]) -> list[tuple[ConsumerRecord, NotAReading]]:
        skipped = []
        for record in records:
            try:
                self.apply(record)
            except NotAReading as reason:
                skipped.append((record, reason))
        return skipped

    def _apply(self, reading_id: str, number: float | None, record: ConsumerRecord) -> None:
        shown = self._tables[hash(reading_id) % _TABLES].get(reading_id)
        if number is None:
            self._merge(reading_id, None, record)
        elif shown is not None and shown.partition == record.partition:
            self._update(shown, number, record.timestamp_ms)
        elif shown is None and reading_id not in self._removed:
            self._show(reading_id, number, record.partition, record.timestamp_ms, _sort_key(record))
        else:
            self._merge(reading_id, number, record)

    def _update(self, shown: Shown, number: float, timestamp_ms: int) -> None:
        shown.timestamp_ms = timestamp_ms
        reading = shown.reading
        # 0.0 and -0.0 are equal, and not the same reading.
        if reading.value != number or (
            number == 0.0 and copysign(1.0, reading.value) != copysign(1.0, number)
        ):
            if self._blocks.is_encoded:
                self._blocks.change(shown)
                self._representations = {}
            shown.reading = Reading(reading.id, number)
            if self.on_change is not None:
                self.on_change((shown.reading,))

    def _show(
        self,
        reading_id: str,
        number: float,
        partition: int,
        timestamp_ms: int,
        sort_key: int,
        *,
        removed: tuple[str, ...] = (),
    ) -> None:
        shown = Shown(Reading(reading_id, number), partition, timestamp_ms, sort_key)
        self._table(reading_id)[reading_id] = shown
        self._blocks.add(shown)
        self._representations = {}
        if self.on_change is not None:
            after = self._blocks.after(sort_key, most=_MOST_AFTER_NEW)
            if after is None:
                self.on_change(None)
            else:
                moved = [reading.id for reading in after]
                self.on_change((shown.reading, *after), removed=(*removed, *moved), are_new=True)

    def _hide(self, reading_id: str) -> tuple[str, ...]:
        """:return: the id, if it was there; `on_change` is not called."""
        shown = self._table(reading_id).pop(reading_id, None)
        if shown is None:
            return ()
        self._blocks.discard(shown)
        self._representations = {}
        return (reading_id,)

    def _merge(self, reading_id: str, number: float | None, record: ConsumerRecord) -> None:
        """Apply a record that removes the reading, or whose id is or was in another partition."""
        before = {part.partition: part for part in self._parts(reading_id)}
        mine = before.get(record.partition)
        sort_key = _sort_key(record) if mine is None or mine.value is None else mine.sort_key
        before[record.partition] = _Part(record.partition, record.timestamp_ms, sort_key, number)
        parts = tuple(before.values())
        self._scattered.pop(reading_id, None)
        self._removed.pop(reading_id, None)
        latest = max(parts, key=_recency)
        if latest.value is None:
            if (removed := self._hide(reading_id)) and self.on_change is not None:
                self.on_change(removed=removed)
            self._remember_removed(reading_id, parts)
            return
        partition = latest.partition
        if len(parts) > 1:
            partition = _SEVERAL
            sort_key = min(part.sort_key for part in parts if part.value is not None)
            self._scattered[reading_id] = parts
        shown = self._table(reading_id).get(reading_id)
        if shown is not None and shown.sort_key == sort_key:
            shown.partition = partition
            self._update(shown, latest.value, latest.timestamp_ms)
        else:
            removed = self._hide(reading_id)
            self._show(reading_id, latest.value, partition, latest.timestamp_ms, sort_key, removed=removed)

    def _parts(self, reading_id: str) -> tuple[_Part, ...]:
        parts = self._scattered.get(reading_id) or self._removed.get(reading_id)
        if parts is not None:
            return parts
        shown = self._table(reading_id).get(reading_id)
        if shown is None:
            return ()
        return (_Part(shown.partition, shown.timestamp_ms, shown.sort_key, shown.reading.value),)

    def _remember_removed(self, reading_id: str, parts: tuple[_Part, ...]) -> None:
        self._removed[reading_id] = parts
        if len(self._removed) > _MOST_REMOVED:
            del self._removed[next(iter(self._removed))]

    def _table(self, reading_id: str) -> dict[str, Shown]:
        """Return the table in which a reading with this id is, if there is one."""
        return self._tables[hash(reading_id) % _TABLES]

    def representation(self, version: Version) -> Representation:
        """
        Return the current collection in one version.

        Only blocks that have changed since the last time are encoded.
        """
        return self.encoded_representation(version) or self.snapshot(version).representation()

    def encoded_representation(self, version: Version) -> Representation | None:
        """Return the current collection in one version if it is encoded already, otherwise ``None``."""
        return self._representations.get(version)

    def snapshot(self, version: Version) -> Snapshot:
        """Return a snapshot of the collection in one version, to be encoded in steps; see `Snapshot`."""
        return self._blocks.snapshot(version, self._representations)

    def is_current(self, snapshot: Snapshot) -> bool:
        """Return true if nothing has changed since a snapshot was taken."""
        return snapshot.representations is self._representations

    def encode(self, *, at_once: int) -> Iterator[None]:
        """Encode everything in advance, in short steps; see `Blocks.encode`."""
        return self._blocks.encode(at_once=at_once)


def _sort_key(record: ConsumerRecord) -> int:
    # (timestamp, partition, offset) as one integer of 64, 31 and 63 bits: a tuple would take a third more
    # memory for each reading, and longer to sort.
    return (record.timestamp_ms + 2**63 << 94) | (record.partition << 63) | record.offset


def _recency(part: _Part) -> tuple[int, int]:
    return part.timestamp_ms, part.partition
