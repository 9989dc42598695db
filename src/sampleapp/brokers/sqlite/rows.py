"""Records and their identities as rows. The caller begins and ends the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import Final, cast

import msgspec
from msgspec import Struct

from sampleapp.brokers.shared.following import NO_SUCH_PARTITION, Page
from sampleapp.brokers.shared.idempotency import replayed
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.errors import IllegalTopic, PublishError, RecordRefused, RecordTooLarge, UnknownPartition
from sampleapp.interfaces import Outcome
from sampleapp.model import (
    HEADER_BYTES,
    ConsumerRecord,
    FromEnd,
    FromOffset,
    ReadStart,
    Record,
    RecordIdentity,
    RecordMetadata,
    ReplayedRecord,
)

_IDS_AT_ONCE: Final = 128
_MOST_RECENT: Final = 8000
"""Identities that are not in the index. Beyond, the oldest of them are added to it."""
_INDEXED_AT_ONCE: Final = 250
"""
Identities that are added to the index in one transaction.

The larger the index, the fewer of them share a page that is written: with millions, 8,000 would take 0.2 s.
"""
_INDEXED: Final = (
    "SELECT id, fingerprint, offset FROM indexed_identity JOIN identity USING (id, number)"
    " WHERE stored_ms > ? AND id IN ({}) ORDER BY number"
)
_RECENT: Final = (
    "SELECT id, fingerprint, offset FROM identity WHERE stored_ms > ? AND number IN ({}) ORDER BY number"
)
_INSERT: Final = "INSERT INTO identity (number, id, fingerprint, topic_id, offset, stored_ms) VALUES "
_ROW: Final = "(?, ?, ?, ?, ?, ?)"
_LAST_INDEXED: Final = (
    "SELECT number FROM identity AS one"
    " WHERE EXISTS (SELECT 1 FROM indexed_identity WHERE id = one.id AND number = one.number)"
    " ORDER BY number DESC LIMIT 1"
)
_AFTER: Final = "SELECT id, number FROM identity WHERE number > ? ORDER BY number LIMIT ?"
_ALL: Final = -1
# Another process may have inserted some of them.
_ADD_TO_INDEX: Final = (
    "INSERT OR IGNORE INTO indexed_identity"
    " SELECT id, number FROM identity WHERE number > ? AND number <= ? ORDER BY id"
)
# By default, SQLite would look at every number.
_EXPIRED: Final = (
    "SELECT id, number FROM identity INDEXED BY identity_stored_ms"
    " WHERE stored_ms <= ? AND number < (SELECT max(number) FROM identity) LIMIT ?"
)
_FAR_AHEAD: Final = "SELECT id, number FROM identity WHERE stored_ms > ? LIMIT ?"
_DELETE_INDEXED: Final = "DELETE FROM indexed_identity WHERE id = ? AND number = ?"
_DELETE: Final = "DELETE FROM identity WHERE id = ? AND number = ?"
_DATE_AGAIN: Final = (
    "UPDATE identity SET stored_ms = ?"
    " WHERE number IN (SELECT number FROM identity WHERE stored_ms > ? LIMIT ?)"
)


class Window(Struct, frozen=True):
    """
    The time for which identities count, at one moment.

    It is the time of day, since identities outlive the process. If the clock of the machine is set back, they
    count for longer, which does no harm; if it is set forward, they expire early.
    """

    now_ms: int
    window_ms: int

    @property
    def expired_ms(self) -> int:
        """An identity that was stored at this time, or before, has expired."""
        return self.now_ms - self.window_ms

    @property
    def far_ahead_ms(self) -> int:
        """An identity that was stored after this time was stored while the clock was wrong."""
        return self.now_ms + self.window_ms


class RecentIds:
    """
    The numbers of identities that are not in the index, by id and in their order; for one connection.

    Some may be in the index as well, or deleted: other processes use the same file.
    """

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self._first: int | None = None
        self._last = 0

    def clear(self) -> None:
        """Forget all, after a rollback. The next `update` reads them from the file."""
        self.numbers.clear()
        self._first = None

    def update(self, connection: sqlite3.Connection) -> None:
        """Add those that other processes have inserted; at first, all that are not in the index."""
        if self._first is not None:
            found = connection.execute(_AFTER, (self._last, _MOST_RECENT + 1)).fetchall()
            if len(found) <= _MOST_RECENT and len(self.numbers) + len(found) <= 2 * _MOST_RECENT:
                self._append(found)
                return
            # Other processes have inserted so many that they have added nearly all to the index.
            self.clear()
        last_indexed = connection.execute(_LAST_INDEXED).fetchone()
        self._first = self._last = 0 if last_indexed is None else last_indexed[0]
        self._append(connection.execute(_AFTER, (self._last, _ALL)))

    def _append(self, found: Iterable[tuple[bytes, int]]) -> None:
        for id_, number in found:
            self._last = number - 1
            self.add(id_)

    def add(self, id_: bytes) -> int:
        """Return the number of a new identity."""
        self._last += 1
        # An id that is used again after it has expired comes last.
        self.numbers.pop(id_, None)
        self.numbers[id_] = self._last
        return self._last

    def add_to_index(self, connection: sqlite3.Connection) -> None:
        """Add the oldest to the index, if there are many."""
        if self._first is None or (excess := len(self.numbers) - _MOST_RECENT) < 0:
            return
        # After a start, there may be more of an excess than one transaction adds.
        # The numbers before the oldest may have no identities: all may have expired.
        first = max(self._first, next(iter(self.numbers.values())) - 1)
        until = min(self._last, first + max(_INDEXED_AT_ONCE, min(excess, 3 * _INDEXED_AT_ONCE)))
        connection.execute(_ADD_TO_INDEX, (self._first, until))
        for id_, _ in [*takewhile(lambda each: each[1] <= until, self.numbers.items())]:
            del self.numbers[id_]
        self._first = until


class Identities:
    """The known identities, in one transaction: in the file, and of the records of the transaction."""

    def __init__(
        self, connection: sqlite3.Connection, records: Sequence[Record], window: Window, recent: RecentIds
    ) -> None:
        """
        Look up the identities of records.

        :param records: all that are appended in the transaction.
        """
        self._connection = connection
        self._window = window
        self._recent = recent
        self._known: dict[bytes, tuple[bytes, int]] = {}
        self._new: list[tuple[bytes, bytes, int, int]] = []
        recent.update(connection)
        ids = {each.identity.id for each in records if each.identity is not None}
        self._look_up(_INDEXED, ids)
        # An id may be there twice after it has expired. The later one counts.
        self._look_up(_RECENT, [recent.numbers[each] for each in ids if each in recent.numbers])

    def _look_up(self, select: str, values: Iterable[bytes | int]) -> None:
        rest = iter(values)
        while some := [*islice(rest, _IDS_AT_ONCE)]:
            # A statement for each power of two, so that SQLite parses few. Repeated ids do no harm.
            count = 1 << (len(some) - 1).bit_length()
            some += some[-1:] * (count - len(some))
            found = self._connection.execute(
                select.format(", ".join("?" * count)), (self._window.expired_ms, *some)
            )
            for id_, fingerprint, offset in found:
                self._known[id_] = fingerprint, offset

    def find(self, record: Record, identity: RecordIdentity) -> ReplayedRecord | None:
        """
        Return the outcome of a record that was published before; ``None`` if its id is new.

        :raise IdempotencyKeyReused: another record was published with its id.
        """
        known = self._known.get(identity.id)
        if known is None:
            return None
        fingerprint, offset = known
        return replayed(record, fingerprint=fingerprint, partition=0, offset=offset)

    def add(self, identity: RecordIdentity, *, topic_id: int, offset: int) -> None:
        """Add the identity of a record of this transaction."""
        self._known[identity.id] = identity.fingerprint, offset
        self._new.append((identity.id, identity.fingerprint, topic_id, offset))

    def insert(self) -> None:
        """Insert those that were added. If there are none, the commit syncs the file all the same."""
        if self._new:
            rows = [(self._recent.add(new[0]), *new, self._window.now_ms) for new in self._new]
            while rows:
                # In one statement, as for `record`; its size is a power of two, see above.
                count = min(_IDS_AT_ONCE, 1 << (len(rows).bit_length() - 1))
                some, rows = rows[:count], rows[count:]
                self._connection.execute(_INSERT + ", ".join([_ROW] * count), [*chain.from_iterable(some)])
            self._recent.add_to_index(self._connection)
        else:
            # The first record may come from a process that was killed between the write and the sync of its
            # commit. The response says that the record is on the disk.
            write_a_page(self._connection)


def write_a_page(connection: sqlite3.Connection) -> None:
    """Write a page without changing it, so that the commit has something to sync."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {int(version)}")


def is_any_expired(connection: sqlite3.Connection, window: Window) -> bool:
    """Return whether `forget_some` would find anything to do."""
    looked_up = (_EXPIRED, window.expired_ms), (_FAR_AHEAD, window.far_ahead_ms)
    return any(connection.execute(select, (at_ms, 1)).fetchall() for select, at_ms in looked_up)


def forget_some(connection: sqlite3.Connection, window: Window, most: int) -> None:
    """
    Delete identities that have expired, except the newest of all.

    Those that are far ahead of the clock, which was wrong and has been set back, expire a window from now.

    :param most: the maximum to delete, and to date again.
    """
    expired = sorted(connection.execute(_EXPIRED, (window.expired_ms, most)))
    connection.executemany(_DELETE_INDEXED, expired)
    connection.executemany(_DELETE, expired)
    connection.execute(_DATE_AGAIN, (window.now_ms, window.far_ahead_ms, most))


INSERT = "INSERT INTO record (topic_id, offset, timestamp_ms, key, value, headers) VALUES (?, ?, ?, ?, ?, ?)"
_ROWS_AT_ONCE: Final = 100
_FEW_RECORDS: Final = 32
# Many rows in one statement: Python's global lock is released once, instead of at each row, and it takes a
# fifth less time. All versions of SQLite allow 999 parameters.
_INSERT_AT_ONCE = INSERT + ", (?, ?, ?, ?, ?, ?)" * (_ROWS_AT_ONCE - 1)
# A value that an operator has inserted by hand may be text. CAST converts it to bytes.
_SELECT_ANY = (
    "SELECT offset, timestamp_ms, CAST(key AS BLOB), CAST(value AS BLOB), headers FROM record"
    " WHERE topic_id = ? AND offset >= ? AND offset < ?"
)
_SELECT = _SELECT_ANY + " ORDER BY offset LIMIT ?"
# SQLite knows the length of a key without reading it, and never reads the values of other keys.
_SELECT_KEY = (
    _SELECT_ANY + " AND (length(key) = ? OR typeof(key) = 'text') AND CAST(key AS BLOB) = ? ORDER BY offset"
)
# Many records as one row: Python's global lock is released once, instead of at each record. An inner SELECT
# would be a fifth slower. For large values, SQLite knows the length without reading them.
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
_SIZE = (
    "SELECT ifnull(length(key), 0) + ifnull(length(value), 0) FROM record WHERE topic_id = ? AND offset = ?"
)
# Headers are JSON, so they have no zero byte, at which old versions of SQLite would cut joined values.
_SELECT_HEADERS_AT_ONCE = (
    "SELECT group_concat(offset), group_concat(length(CAST(headers AS BLOB))),"
    " CAST(group_concat(headers, '') AS BLOB), max(length(headers))"
    " FROM record WHERE topic_id = :topic_id AND offset >= :first AND offset < :end AND headers IS NOT NULL"
)
_SEARCH_TIME = (
    "SELECT min(CASE WHEN timestamp_ms >= ? THEN offset END), max(timestamp_ms)"
    " FROM record WHERE topic_id = ? AND offset >= ? AND offset < ?"
)
BLOCK_OFFSETS: Final = 2500
"""The offsets of one step of a search for a time."""
# The first search for a time that looks at a whole block creates the table, so other files stay as they are.
# Versions of sampleapp that do not know it ignore it. Not the id of the topic, which another topic may get
# after this one was deleted by hand.
_CREATE_TIMES = (
    "CREATE TABLE IF NOT EXISTS latest_time (topic_uid TEXT NOT NULL, first_offset INTEGER NOT NULL,"
    " timestamp_ms INTEGER, PRIMARY KEY (topic_uid, first_offset)) WITHOUT ROWID"
)
_INSERT_TIME = "INSERT OR REPLACE INTO latest_time (topic_uid, first_offset, timestamp_ms) VALUES (?, ?, ?)"
_TIMES_EXIST = "SELECT 1 FROM sqlite_master WHERE name = 'latest_time'"
_SELECT_TIMES = (
    "SELECT first_offset, timestamp_ms FROM latest_time WHERE topic_uid = ? AND first_offset >= ?"
    " ORDER BY first_offset LIMIT ?"
)
_MOST_SKIPPED = 5000
"""The most blocks that one step of a search skips, in about 1 ms."""
_INT64 = 2**63

_encode_headers = msgspec.json.Encoder().encode
_decode_numbers = msgspec.json.Decoder(list[int]).decode
_decode_headers = msgspec.json.Decoder(tuple[tuple[str, bytes | None], ...]).decode

_Row = tuple[int, int, int, bytes | None, bytes | None, bytes | None]


_Headers = tuple[tuple[str, bytes | None], ...]


class PackedRecords(Struct, frozen=True):
    """
    Small records, in the joined form that SQLite returns.

    Each record is created when the iterator reaches it, on the thread that uses it. Objects that are created
    on one thread and freed on another move between the caches of two cores.
    """

    topic: str
    offsets: list[int]
    timestamps_ms: list[int]
    of_keys: list[int]
    """The bytes of each key; -1 for none."""
    of_values: list[int]
    """The bytes of each value; -1 for none."""
    keys: bytes
    values: bytes
    headers: dict[int, _Headers]
    """The headers of each offset that has some."""
    size: int
    """The bytes of the keys, values and headers."""

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        topic, keys, values, headers = self.topic, self.keys, self.values, self.headers
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
                topic=topic,
                partition=0,
                offset=offset,
                timestamp_ms=timestamp_ms,
                key=key,
                value=value,
                headers=headers.get(offset, ()) if headers else (),
            )


class Section(Struct, frozen=True):
    """A part of a topic, from a position on."""

    topic_id: str
    """The id that no other topic has, also after this one is deleted and created again."""
    position: int
    """The position; for an exact one, as it was asked for."""
    earliest: int
    """The offset of the topic's first record; the end if there is none."""
    page: Page
    """The records; none if the position is not between `earliest` and the end."""


class TimeSearch(Struct, frozen=True):
    """The result of a search for a time in a part of a topic."""

    at: int | None
    """The offset of the first record that is not before the time; ``None`` if there is none in the part."""
    first: int
    """The first offset of the part. The records that the search has skipped before it are before the time."""
    until: int
    """The offset after the part."""
    latest_ms: int | None
    """The latest time of a record in the part; ``None`` if it has no records."""
    end: int
    """The offset of the topic's next record."""


class _TopicEnd(Struct):
    """The offset of a topic's next record, in one transaction."""

    topic_id: int
    next_offset: int


class RowRejected(Exception):
    """SQLite rejected one of several rows."""


def insert(
    connection: sqlite3.Connection, records: Sequence[Record], window: Window, recent: RecentIds
) -> list[Outcome]:
    """
    Insert all records at once, except invalid ones, which are rejected first.

    :param window: for records with an identity, as is ``recent``.
    """
    # Read the offsets from the file each time: another process may have appended since.
    topic_ends: dict[str, _TopicEnd] = {}
    rows: list[_Row] = []
    outcomes: list[Outcome] = []
    identities: Identities | None = None
    for record in records:
        try:
            headers = _headers_and_check(record)
            identity = record.identity
            if identity is not None:
                if identities is None:
                    identities = Identities(connection, records, window, recent)
                again = identities.find(record, identity)
                if again is not None:
                    outcomes.append(again)
                    continue
            topic_end = topic_ends.get(record.topic)
            if topic_end is None:
                topic_end = topic_ends[record.topic] = _load_topic_end(connection, record.topic)
        except PublishError as rejection:
            outcomes.append(rejection)
            continue
        offset = topic_end.next_offset
        topic_end.next_offset = offset + 1
        rows.append((topic_end.topic_id, offset, record.timestamp_ms, record.key, record.value, headers))
        outcomes.append(RecordMetadata(topic=record.topic, partition=0, offset=offset))
        if identity is not None and identities is not None:
            identities.add(identity, topic_id=topic_end.topic_id, offset=offset)
    try:
        _insert_rows(connection, rows)
    except sqlite3.DataError as error:
        raise RowRejected from error
    _keep(connection, topic_ends)
    if identities is not None:
        identities.insert()
    return outcomes


def _insert_rows(connection: sqlite3.Connection, rows: Sequence[_Row]) -> None:
    rest = len(rows) % _ROWS_AT_ONCE
    for start in range(0, len(rows) - rest, _ROWS_AT_ONCE):
        connection.execute(_INSERT_AT_ONCE, [*chain.from_iterable(rows[start : start + _ROWS_AT_ONCE])])
    connection.executemany(INSERT, rows[len(rows) - rest :])


def insert_singly(
    connection: sqlite3.Connection, records: Sequence[Record], window: Window, recent: RecentIds
) -> list[Outcome]:
    """Insert like `insert`, but row by row, without the rows that SQLite rejects."""
    outcomes: list[Outcome] = []
    for record in records:
        # A rejected record must not create a topic, or use an offset.
        connection.execute("SAVEPOINT one")
        try:
            outcomes += insert(connection, [record], window, recent)
        except RowRejected:
            connection.execute("ROLLBACK TO one")
            outcomes.append(RecordTooLarge("The record is larger than the broker can store."))
        connection.execute("RELEASE one")
    return outcomes


def _headers_and_check(record: Record) -> bytes | None:
    if not -_INT64 <= record.timestamp_ms < _INT64:
        raise RecordRefused("The record's timestamp is out of range: it must fit in 64 bits.")
    if record.partition:
        raise UnknownPartition(NO_SUCH_PARTITION)
    if not record.headers:
        return None
    try:
        return _encode_headers(record.headers)
    except UnicodeEncodeError:
        raise RecordRefused("The name of a header cannot be encoded in UTF-8.") from None


def require_topic_name(topic: str) -> None:
    """
    Check that a topic can have this name.

    :raise IllegalTopic: it cannot.
    """
    try:
        topic.encode()
    except UnicodeEncodeError:
        raise IllegalTopic("The name of the topic cannot be encoded in UTF-8.") from None


def find_topic(connection: sqlite3.Connection, name: str) -> tuple[int, int] | None:
    """Return the id and the next offset of a topic; ``None`` if it does not exist."""
    try:
        found: tuple[int, int] | None = connection.execute(
            "SELECT id, next_offset FROM topic WHERE name = ?", (name,)
        ).fetchone()
    except UnicodeEncodeError:
        # No topic can have this name; see `require_topic_name`.
        return None
    return found


def _load_topic_end(connection: sqlite3.Connection, topic: str) -> _TopicEnd:
    require_topic_name(topic)
    found = find_topic(connection, topic)
    if found is not None:
        return _TopicEnd(*found)
    cursor = connection.execute("INSERT INTO topic (name) VALUES (?)", (topic,))
    return _TopicEnd(cast(int, cursor.lastrowid), 0)


def _keep(connection: sqlite3.Connection, topic_ends: dict[str, _TopicEnd]) -> None:
    connection.executemany(
        "UPDATE topic SET next_offset = ? WHERE id = ?",
        [(topic_end.next_offset, topic_end.topic_id) for topic_end in topic_ends.values()],
    )


def next_offset(connection: sqlite3.Connection, topic: str) -> int:
    """Return the offset of the next record of a topic."""
    found = find_topic(connection, topic)
    return 0 if found is None else found[1]


def topics(connection: sqlite3.Connection, after: str, count: int) -> list[str]:
    """Read the names of topics; see `Store.topics`."""
    found = connection.execute("SELECT name FROM topic WHERE name > ? ORDER BY name LIMIT ?", (after, count))
    return [name for (name,) in found]


def topics_of(connection: sqlite3.Connection, names: Sequence[str]) -> list[str]:
    """Return the names that are names of topics; see `Store.topics_of`."""
    return [name for name in names if find_topic(connection, name) is not None]


def page(connection: sqlite3.Connection, topic: str, offset: int, max_records: int, max_bytes: int) -> Page:
    """Read a topic from an offset on; see `Store.read`."""
    found = find_topic(connection, topic)
    if found is None:
        return Page([], offset, offset, 0, exists=False)
    topic_id, end = found
    if end - offset >= max_records:
        small_bytes = max_bytes // max_records
        where = {
            "small_bytes": small_bytes,
            "topic_id": topic_id,
            "first": offset,
            "end": offset + max_records,
        }
        many = None
        # Records of a topic are often of one size, so the first one shows which way is faster.
        if all(size <= small_bytes for (size,) in connection.execute(_SIZE, (topic_id, offset))):
            many = _read_at_once(connection, topic, where, max_bytes)
        if many is not None:
            # Its records are only iterated.
            return Page(many, offset, many.offsets[-1] + 1, end, size=many.size)  # type: ignore[arg-type]
    records, size = _read_singly(connection, topic, _SELECT, (topic_id, offset, end, max_records), max_bytes)
    if len(records) == max_records or size >= max_bytes:
        return Page(records, offset, records[-1].offset + 1, end, size=size)
    # Skip offsets that an operator has deleted by hand.
    return Page(records, offset, max(offset, end), end, size=size)


def section(
    connection: sqlite3.Connection,
    topic: str,
    start: ReadStart,
    max_records: int,
    max_bytes: int,
    *,
    key: bytes | None = None,
) -> Section | None:
    """Read a topic from its start or an exact position on; see `Store.section`."""
    found = find_topic(connection, topic)
    if found is None:
        return None
    topic_id, end = found
    uid = uid_of(connection, topic_id)
    ((first,),) = connection.execute("SELECT min(offset) FROM record WHERE topic_id = ?", (topic_id,))
    earliest = end if first is None else first
    if isinstance(start, int):
        position = start
    elif isinstance(start, FromOffset):
        position = min(max(start.offset, earliest), end)
    elif isinstance(start, FromEnd):
        position = max(earliest, end - start.count)
    else:
        raise TypeError("a time is searched for gradually, with `search_time`")
    if max_records and earliest <= position < end and key is not None:
        until = min(position + max_records, end)
        where = (topic_id, position, until, len(key), key)
        records, size = _read_singly(connection, topic, _SELECT_KEY, where, max_bytes)
        if size >= max_bytes:
            until = records[-1].offset + 1
        found_page = Page(records, position, until, end, size=size)
    elif max_records and earliest <= position < end:
        left = end - position
        # Up to the end at once. Only a few records are read faster one by one.
        count = min(max_records, left) if left >= _FEW_RECORDS else max_records
        found_page = page(connection, topic, position, count, max_bytes)
    else:
        found_page = Page([], position, position, end)
    return Section(uid, position, earliest, found_page)


def record_at(
    connection: sqlite3.Connection, topic: str, topic_id: int, offset: int
) -> ConsumerRecord | None:
    """Return the record of a topic at an offset; ``None`` if there is none."""
    records, _ = _read_singly(connection, topic, _SELECT, (topic_id, offset, offset + 1, 1), 1)
    return records[0] if records else None


def uid_of(connection: sqlite3.Connection, topic_id: int) -> str:
    """Return the id that no other topic has; see `Section.topic_id`."""
    ((uid,),) = connection.execute("SELECT uid FROM topic WHERE id = ?", (topic_id,))
    return cast(str, uid)


def search_time(
    connection: sqlite3.Connection, topic: str, topic_id: str, timestamp_ms: int, first: int
) -> TimeSearch:
    """Search the next part of a topic for a time; see `Store.search_time`."""
    found = find_topic(connection, topic)
    if found is None:
        return TimeSearch(None, first, first + BLOCK_OFFSETS, None, 0)
    number, end = found
    if connection.execute(_TIMES_EXIST).fetchone():
        asked = first
        for block, latest_ms in connection.execute(_SELECT_TIMES, (topic_id, first, _MOST_SKIPPED)):
            if block != first or (latest_ms is not None and latest_ms >= timestamp_ms):
                break
            first += BLOCK_OFFSETS
        if first == asked + _MOST_SKIPPED * BLOCK_OFFSETS:
            return TimeSearch(None, first, first, None, end)
    until = first - first % BLOCK_OFFSETS + BLOCK_OFFSETS
    ((at, latest_ms),) = connection.execute(
        _SEARCH_TIME, (min(max(timestamp_ms, -_INT64), _INT64 - 1), number, first, until)
    )
    return TimeSearch(at, first, until, latest_ms, end)


def keep_times(connection: sqlite3.Connection, topic_id: str, searched: Iterable[TimeSearch]) -> None:
    """Store the latest times of blocks; see `Store.keep_times`."""
    connection.execute(_CREATE_TIMES)
    connection.executemany(_INSERT_TIME, [(topic_id, block.first, block.latest_ms) for block in searched])


def _read_singly(
    connection: sqlite3.Connection, topic: str, select: str, where: tuple[int | bytes, ...], max_bytes: int
) -> tuple[list[ConsumerRecord], int]:
    """:return: the records, and their bytes."""
    cursor = connection.execute(select, where)
    records: list[ConsumerRecord] = []
    size = 0
    try:
        for at, timestamp_ms, key, value, headers in cursor:
            record = ConsumerRecord(
                topic=topic,
                partition=0,
                offset=at,
                timestamp_ms=timestamp_ms,
                key=key,
                value=value,
                headers=() if headers is None else _decode_headers(headers),
            )
            records.append(record)
            size += record.size
            if size >= max_bytes:
                break
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"The headers of record {at} of topic {topic!r} are damaged; restore the file from a backup.",
            code=sqlite3.SQLITE_CORRUPT,
        ) from error
    finally:
        # An open cursor would hold a snapshot, and the write-ahead log would grow.
        cursor.close()
    return records, size


def _read_at_once(
    connection: sqlite3.Connection, topic: str, where: dict[str, int], max_bytes: int
) -> PackedRecords | None:
    """
    Read many small records faster than one by one.

    :return: ``None`` if this is not possible: a record is large, or was not written by this program.
    """
    *columns, keys, values, with_headers = connection.execute(_SELECT_AT_ONCE, where).fetchone()
    try:
        offsets, timestamps, of_keys, of_values = [_decode_numbers(f"[{column}]") for column in columns]
    except msgspec.MsgspecError:
        return None
    # The order of joined values is not guaranteed, and old versions cut them at a zero byte.
    if offsets != sorted(offsets) or not (_is_whole(keys, of_keys) and _is_whole(values, of_values)):
        return None
    headers: dict[int, _Headers] = {}
    size = len(keys or b"") + len(values or b"")
    if with_headers:
        found = _read_headers_at_once(connection, where)
        if found is None:
            return None
        headers, of_headers = found
        size += of_headers
    if size > max_bytes:
        return None
    return PackedRecords(
        topic, offsets, timestamps, of_keys, of_values, keys or b"", values or b"", headers, size
    )


def _read_headers_at_once(
    connection: sqlite3.Connection, where: dict[str, int]
) -> tuple[dict[int, _Headers], int] | None:
    """:return: the headers of each offset that has some, and their bytes; ``None`` if not possible."""
    *columns, joined, longest = connection.execute(_SELECT_HEADERS_AT_ONCE, where).fetchone()
    headers: dict[int, _Headers] = {}
    at = 0
    try:
        offsets, lengths = [_decode_numbers(f"[{column}]") for column in columns]
        if longest > where["small_bytes"] or offsets != sorted(offsets) or sum(lengths) != len(joined):
            return None
        for offset, length in zip(offsets, lengths, strict=True):
            headers[offset] = _decode_headers(joined[at : at + length])
            at += length
    except msgspec.MsgspecError:
        return None
    return headers, at + HEADER_BYTES * sum(map(len, headers.values()))


def _is_whole(joined: bytes | None, lengths: list[int]) -> bool:
    return len(joined or b"") == sum(lengths) + lengths.count(-1)
