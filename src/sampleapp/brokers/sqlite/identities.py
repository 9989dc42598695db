"""
The identities of records, which are stored in the transactions of their records.

The caller begins and ends the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from sampleapp.brokers.shared.idempotency import replayed
from sampleapp.model import Record, RecordIdentity, ReplayedRecord

__all__ = ["Identities", "Window", "forget_some", "is_any_expired", "write_a_page"]

_IDS_AT_ONCE: Final = 128
_SELECT: Final = "SELECT id, fingerprint, offset FROM identity WHERE stored_ms > ? AND id IN "
# One with the same id has expired, and may still be there.
_INSERT: Final = (
    "INSERT OR REPLACE INTO identity (id, fingerprint, topic_id, offset, stored_ms) VALUES (?, ?, ?, ?, ?)"
)
_EXPIRED: Final = "SELECT rowid FROM identity WHERE stored_ms <= ? LIMIT ?"
_FAR_AHEAD: Final = "SELECT rowid FROM identity WHERE stored_ms > ? LIMIT ?"
_DELETE: Final = (
    "DELETE FROM identity WHERE rowid IN (SELECT rowid FROM identity WHERE stored_ms <= ? LIMIT ?)"
)
_DATE_AGAIN: Final = (
    "UPDATE identity SET stored_ms = ?"
    " WHERE rowid IN (SELECT rowid FROM identity WHERE stored_ms > ? LIMIT ?)"
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


class Identities:
    """The known identities, in one transaction: in the file, and of the records of the transaction."""

    def __init__(self, connection: sqlite3.Connection, records: Sequence[Record], window: Window) -> None:
        """
        Look up the identities of records.

        :param records: all that are appended in the transaction.
        """
        self._connection = connection
        self._window = window
        self._known: dict[bytes, tuple[bytes, int]] = {}
        self._new: list[tuple[bytes, bytes, int, int, int]] = []
        ids = iter({each.identity.id for each in records if each.identity is not None})
        while some := [*islice(ids, _IDS_AT_ONCE)]:
            # A statement for each power of two, so that SQLite parses few. Repeated ids do no harm.
            count = 1 << (len(some) - 1).bit_length()
            some += some[-1:] * (count - len(some))
            select = f"{_SELECT} ({', '.join('?' * count)})"
            for id_, fingerprint, offset in connection.execute(select, (window.expired_ms, *some)):
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
        self._new.append((identity.id, identity.fingerprint, topic_id, offset, self._window.now_ms))

    def insert(self) -> None:
        """Insert those that were added. If there are none, the commit syncs the file all the same."""
        if self._new:
            self._connection.executemany(_INSERT, self._new)
        else:
            # The first record may come from a process that was killed between the write and the sync of its
            # commit. The answer says that the record is on the disk.
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
    Delete identities that have expired.

    Those that are far ahead of the clock, which was wrong and has been set back, expire a window from now.

    :param most: the maximum to delete, and to date again.
    """
    connection.execute(_DELETE, (window.expired_ms, most))
    connection.execute(_DATE_AGAIN, (window.now_ms, window.far_ahead_ms, most))
