"""Records as rows: inserting them and reading them back, inside a transaction that is another's duty."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec
from msgspec import Struct

from sampleapp.brokers.shared.single_partition import NO_SUCH_PARTITION
from sampleapp.brokers.sqlite.faults import Code, StoreError
from sampleapp.errors import IllegalTopic, PublishError, RecordRefused, RecordTooLarge, UnknownPartition
from sampleapp.interfaces import Outcome
from sampleapp.model import ConsumerRecord, FromEnd, FromOffset, Record, RecordMetadata, Start

__all__ = [
    "INSERT",
    "Page",
    "RowRefused",
    "first_offset",
    "insert",
    "insert_singly",
    "next_offset",
    "page",
    "require_topic_name",
    "topics",
]

INSERT = "INSERT INTO record (topic_id, offset, timestamp_ms, key, value, headers) VALUES (?, ?, ?, ?, ?, ?)"
_ROWS_AT_ONCE: Final = 100
# Many rows in one statement: SQLite steps once, and the other threads of Python run meanwhile, instead of
# taking turns with it at each row. It takes a fifth less, too. SQLite has always taken 999 parameters.
_INSERT_AT_ONCE = INSERT + ", (?, ?, ?, ?, ?, ?)" * (_ROWS_AT_ONCE - 1)
# A value that an operator has put in by hand may be text: CAST makes bytes of it.
_SELECT = (
    "SELECT offset, timestamp_ms, CAST(key AS BLOB), CAST(value AS BLOB), headers FROM record"
    " WHERE topic_id = ? AND offset >= ? AND offset < ? ORDER BY offset LIMIT ?"
)
# Many records as one row: SQLite steps once, and the other threads of Python run meanwhile, instead of
# taking turns with it at each record. An inner SELECT would be a fifth slower. Of what is large, SQLite
# knows the length without reading it.
_SELECT_AT_ONCE = (
    "SELECT group_concat(offset), group_concat(timestamp_ms),"
    " group_concat(ifnull(CASE WHEN length(key) <= :small_bytes THEN length(CAST(key AS BLOB))"
    " ELSE length(key) END, -1)),"
    " group_concat(ifnull(CASE WHEN length(value) <= :small_bytes THEN length(CAST(value AS BLOB))"
    " ELSE length(value) END, -1)),"
    " CAST(group_concat(CASE WHEN length(key) <= :small_bytes THEN CAST(key AS BLOB) END, '') AS BLOB),"
    " CAST(group_concat(CASE WHEN length(value) <= :small_bytes THEN CAST(value AS BLOB) END, '') AS BLOB),"
    " count(headers)"
    " FROM record WHERE topic_id = :topic_id AND offset >= :first AND offset < :end"
)
_FIRST_SINCE = "SELECT min(offset) FROM record WHERE topic_id = ? AND timestamp_ms >= ?"
_INT64 = 2**63

_encode_headers = msgspec.json.Encoder().encode
_decode_numbers = msgspec.json.Decoder(list[int]).decode
_decode_headers = msgspec.json.Decoder(tuple[tuple[str, bytes], ...]).decode

_Row = tuple[int, int, int, bytes | None, bytes | None, bytes | None]


class PackedRecords(Struct, frozen=True):
    """
    Small records without headers, as SQLite joins them.

    Each is made when it is asked for: by the thread that uses it, and let go of soon. Objects that one
    thread makes and another one frees go from the cache of one core to that of the other and back.
    """

    topic: str
    offsets: list[int]
    timestamps_ms: list[int]
    of_keys: list[int]
    """How many bytes each key has; -1 for none."""
    of_values: list[int]
    """How many bytes each value has; -1 for none."""
    keys: bytes
    values: bytes

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        topic, keys, values = self.topic, self.keys, self.values
        key_at = value_at = 0
        for offset, timestamp_ms, key_bytes, value_bytes in zip(
            self.offsets, self.timestamps_ms, self.of_keys, self.of_values, strict=True
        ):
            key = value = None
            if key_bytes >= 0:
                key = keys[key_at : key_at + key_bytes]
                key_at += key_bytes
            if value_bytes >= 0:
                value = values[value_at : value_at + value_bytes]
                value_at += value_bytes
            yield ConsumerRecord(
                topic=topic, partition=0, offset=offset, timestamp_ms=timestamp_ms, key=key, value=value
            )


class Page(Struct, frozen=True):
    """Some records of a topic, in order."""

    records: list[ConsumerRecord] | PackedRecords
    next_offset: int
    """Where to read on."""
    end: int
    """The offset that the topic's next record will get, as of this reading."""
    exists: bool = True
    """Whether there is such a topic."""


class _Place(Struct):
    """Where a topic's next record goes, inside one transaction."""

    topic_id: int
    next_offset: int


class RowRefused(Exception):
    """SQLite did not take one of many rows."""


# Python 3.10 raises InterfaceError or OverflowError for a value that later versions call DataError.
_TOO_LARGE = (sqlite3.DataError, sqlite3.InterfaceError, OverflowError)


def insert(connection: sqlite3.Connection, records: Sequence[Record]) -> list[Outcome]:
    """Insert all records at once; those that could never be are refused beforehand."""
    # Offsets come from the file every time, never from memory: another process may have appended since.
    places: dict[str, _Place] = {}
    rows: list[_Row] = []
    outcomes: list[Outcome] = []
    for record in records:
        try:
            headers = _headers_and_check(record)
            place = places.get(record.topic)
            if place is None:
                place = places[record.topic] = _place(connection, record.topic)
        except PublishError as refusal:
            outcomes.append(refusal)
            continue
        offset = place.next_offset
        place.next_offset = offset + 1
        rows.append((place.topic_id, offset, record.timestamp_ms, record.key, record.value, headers))
        outcomes.append(RecordMetadata(topic=record.topic, partition=0, offset=offset))
    try:
        _insert_rows(connection, rows)
    except _TOO_LARGE as error:
        raise RowRefused from error
    _keep(connection, places)
    return outcomes


def _insert_rows(connection: sqlite3.Connection, rows: Sequence[_Row]) -> None:
    rest = len(rows) % _ROWS_AT_ONCE
    for start in range(0, len(rows) - rest, _ROWS_AT_ONCE):
        connection.execute(_INSERT_AT_ONCE, [*chain.from_iterable(rows[start : start + _ROWS_AT_ONCE])])
    connection.executemany(INSERT, rows[len(rows) - rest :])


def insert_singly(connection: sqlite3.Connection, records: Sequence[Record]) -> list[Outcome]:
    """As `insert`, but row by row, leaving out what SQLite does not take."""
    outcomes: list[Outcome] = []
    for record in records:
        # A topic must not come into being, nor an offset be used, by a record that is refused.
        connection.execute("SAVEPOINT one")
        try:
            outcomes += insert(connection, [record])
        except RowRefused:
            connection.execute("ROLLBACK TO one")
            outcomes.append(RecordTooLarge("The record is larger than the broker can store."))
        connection.execute("RELEASE one")
    return outcomes


def _headers_and_check(record: Record) -> bytes | None:
    if not -_INT64 <= record.timestamp_ms < _INT64:
        raise RecordRefused("The record's timestamp is out of range: it has to fit in 64 bits.")
    if record.partition:
        raise UnknownPartition(NO_SUCH_PARTITION)
    if not record.headers:
        return None
    try:
        return _encode_headers(record.headers)
    except UnicodeEncodeError:
        raise RecordRefused("The name of a header has no UTF-8 form.") from None


def require_topic_name(topic: str) -> None:
    """
    Look whether the file can have a topic of this name.

    :raise IllegalTopic: it cannot.
    """
    try:
        topic.encode()
    except UnicodeEncodeError:
        raise IllegalTopic("The name of the topic has no UTF-8 form.") from None


def _place(connection: sqlite3.Connection, topic: str) -> _Place:
    require_topic_name(topic)
    found = connection.execute("SELECT id, next_offset FROM topic WHERE name = ?", (topic,)).fetchone()
    if found is None:
        cursor = connection.execute("INSERT INTO topic (name) VALUES (?)", (topic,))
        found = (cursor.lastrowid, 0)
    return _Place(*found)


def _keep(connection: sqlite3.Connection, places: dict[str, _Place]) -> None:
    connection.executemany(
        "UPDATE topic SET next_offset = ? WHERE id = ?",
        [(place.next_offset, place.topic_id) for place in places.values()],
    )


def first_offset(connection: sqlite3.Connection, topic: str, start: Start) -> int:
    """Find where reading a topic begins; see `Store.first_offset`."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        return 0
    found: tuple[int, int] | None = connection.execute(
        "SELECT id, next_offset FROM topic WHERE name = ?", (topic,)
    ).fetchone()
    if found is None:
        return 0
    topic_id, end = found
    if isinstance(start, FromOffset):
        return min(start.offset, end)
    if isinstance(start, FromEnd):
        return max(0, end - start.count)
    row: tuple[int | None] = connection.execute(_FIRST_SINCE, (topic_id, start.timestamp_ms)).fetchone()
    return end if row[0] is None else row[0]


def next_offset(connection: sqlite3.Connection, topic: str) -> int:
    """Return the offset that the next record of a topic gets."""
    found = connection.execute("SELECT next_offset FROM topic WHERE name = ?", (topic,)).fetchone()
    return 0 if found is None else int(found[0])


def topics(connection: sqlite3.Connection) -> list[str]:
    """Return the names of all topics that there are, sorted."""
    return [name for (name,) in connection.execute("SELECT name FROM topic ORDER BY name")]


def page(connection: sqlite3.Connection, topic: str, offset: int, max_records: int, max_bytes: int) -> Page:
    """Read a topic from an offset on; see `Store.read`."""
    try:
        topic.encode()
    except UnicodeEncodeError:
        # No such topic can be: it is empty, for ever.
        return Page([], offset, offset, exists=False)
    found = connection.execute("SELECT id, next_offset FROM topic WHERE name = ?", (topic,)).fetchone()
    if found is None:
        return Page([], offset, 0, exists=False)
    topic_id, end = found
    if end - offset >= max_records:
        where = {
            "small_bytes": max_bytes // max_records,
            "topic_id": topic_id,
            "first": offset,
            "end": offset + max_records,
        }
        many = _read_at_once(connection, topic, where, max_bytes)
        if many is not None:
            return Page(many, many.offsets[-1] + 1, end)
    records, is_full = _read_singly(connection, topic, (topic_id, offset, end, max_records), max_bytes)
    if is_full:
        return Page(records, records[-1].offset + 1, end)
    # Offsets that an operator has deleted by hand are skipped.
    return Page(records, max(offset, end), end)


def _read_singly(
    connection: sqlite3.Connection, topic: str, where: tuple[int, int, int, int], max_bytes: int
) -> tuple[list[ConsumerRecord], bool]:
    """:return: the records, and whether they reach one of the limits."""
    cursor = connection.execute(_SELECT, where)
    records: list[ConsumerRecord] = []
    size = 0
    try:
        for at, timestamp_ms, key, value, headers in cursor:
            records.append(
                ConsumerRecord(
                    topic=topic,
                    partition=0,
                    offset=at,
                    timestamp_ms=timestamp_ms,
                    key=key,
                    value=value,
                    headers=() if headers is None else _decode_headers(headers),
                )
            )
            size += len(key or b"") + len(value or b"")
            if size >= max_bytes:
                break
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"The headers of record {at} of topic {topic!r} are not as they were written.", code=Code.CORRUPT
        ) from error
    finally:
        # A cursor that is not read to its end holds a snapshot, and the write-ahead log would grow.
        cursor.close()
    *_, max_records = where
    return records, len(records) == max_records or size >= max_bytes


def _read_at_once(
    connection: sqlite3.Connection, topic: str, where: dict[str, int], max_bytes: int
) -> PackedRecords | None:
    """
    Read many small records faster than one by one.

    :return: ``None`` where that is not possible: one is large, has headers, or is not as this program
        writes it.
    """
    *columns, keys, values, with_headers = connection.execute(_SELECT_AT_ONCE, where).fetchone()
    if with_headers:
        return None
    try:
        offsets, timestamps, of_keys, of_values = [_decode_numbers(f"[{column}]") for column in columns]
    except msgspec.MsgspecError:
        return None
    # In which order they are joined is not promised, and old versions end what they join at a zero byte.
    if offsets != sorted(offsets) or not (_is_whole(keys, of_keys) and _is_whole(values, of_values)):
        return None
    if len(keys or b"") + len(values or b"") > max_bytes:
        return None
    return PackedRecords(topic, offsets, timestamps, of_keys, of_values, keys or b"", values or b"")


def _is_whole(joined: bytes | None, lengths: list[int]) -> bool:
    return len(joined or b"") == sum(lengths) + lengths.count(-1)
