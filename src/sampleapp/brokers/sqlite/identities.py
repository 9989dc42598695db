"""
The identities of records, which are stored in the transactions of their records.

The caller begins and ends the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain, islice, takewhile
from typing import Final

from msgspec import Struct

from sampleapp.brokers.shared.idempotency import replayed
from sampleapp.model import Record, RecordIdentity, ReplayedRecord

__all__ = ["Identities", "RecentIds", "Window", "forget_some", "is_any_expired", "write_a_page"]

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
