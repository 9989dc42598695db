"""The store itself: appending and reading, synchronously, on the private thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from threading import Event
from typing import TypeVar

from sampleapp.brokers.sqlite.faults import Code, StoreError, from_sqlite
from sampleapp.brokers.sqlite.opening import open_file, patiently, require_creatable
from sampleapp.brokers.sqlite.rows import (
    INSERT,
    Page,
    RowRefused,
    first_offset,
    insert,
    insert_singly,
    next_offset,
    page,
    topics,
)
from sampleapp.brokers.sqlite.wal import WalDamaged, WalMoved, WriteAheadLog, close_without_checkpoint
from sampleapp.errors import StartUpError
from sampleapp.interfaces import Outcome
from sampleapp.model import Record, RecordMetadata, Start

__all__ = ["Store"]

_CHECK_PATIENCE_S = 1.0
_PROBE_PATIENCE_S = 0.5
_PROBE_BYTES = 64 * 1024
_UNREADABLE = {Code.IOERR, Code.CORRUPT, Code.NOTADB}

T = TypeVar("T")


class Store:
    """
    One SQLite file. Opens itself when needed, and again after an error that may come from the connection.

    Everything but `abandon` runs on one thread, always the same while the file is open. What goes wrong
    is raised as `StoreError`.
    """

    def __init__(self, *, path: Path, patience_s: float) -> None:
        """
        :param path: absolute, so that a later change of directory does not change the file.
        :param patience_s: seconds to wait for another program that has the file locked.
        """
        self.path = path
        self.file_bytes = 0
        """The size of the file when a transaction last began; 0 before the first one."""
        self.wal_bytes = 0
        """The size of the write-ahead log when a transaction was last committed; 0 before the first one."""
        self._patience_s = patience_s
        self._connection: sqlite3.Connection | None = None
        self._openings = 0
        self._identity: tuple[int, int] | None = None
        self._wal: WriteAheadLog | None = None
        self._damage: str | None = None
        self._left_open = False
        self._last: RecordMetadata | None = None
        self._abandoned = Event()

    def check(self) -> None:
        """
        Open the file, see whether it can be written to, and close it again; a missing one is not made.

        :raise StartUpError: it cannot. A lock is no reason: whoever holds it may let go of it.
        """
        try:
            if self.path.exists():
                self.probe(patience_s=_CHECK_PATIENCE_S)
            else:
                # The check may run as root, and the service as a user who could not write to root's file.
                require_creatable(self.path)
        except StoreError as error:
            if error.code not in {Code.BUSY, Code.LOCKED}:
                raise StartUpError(error.reason) from error
        finally:
            self.close()

    def append(self, records: Sequence[Record], patience_s: float | None = None) -> list[Outcome]:
        """
        Append records in one transaction, which is on the disk when this returns.

        :param patience_s: seconds to wait for a lock, if not as many as usual.
        :return: for each record where it is, or why it alone was refused.
        :raise StoreError: none of them was stored, or that is not known.
        """
        try:
            outcomes = self._transaction(
                lambda connection: insert(connection, records), patience_s=patience_s
            )
        except RowRefused:
            # One of them is more than SQLite takes. Which one is found by asking for each.
            outcomes = self._transaction(
                lambda connection: insert_singly(connection, records), patience_s=patience_s
            )
        self._last = next((o for o in reversed(outcomes) if isinstance(o, RecordMetadata)), self._last)
        return outcomes

    def read(self, topic: str, offset: int, *, max_records: int, max_bytes: int) -> Page:
        """
        Read the records of a topic from an offset on.

        :param max_bytes: of keys and values; at least one record is read, however large it is.
        """
        return self._guarded(
            lambda connection: page(connection, topic, offset, max_records, max_bytes), self._patience_s
        )

    def first_offset(self, topic: str, start: Start) -> int:
        """Find the offset at which reading a topic begins; 0 for one that does not exist."""
        return self._guarded(lambda connection: first_offset(connection, topic, start), self._patience_s)

    def topics(self, names: Collection[str] | None) -> list[str]:
        """
        Look which topics there are.

        :param names: the only ones to look for; all without it.
        """
        found = self._guarded(topics, self._patience_s)
        return found if names is None else [name for name in found if name in names]

    def changes(self) -> tuple[int, int]:
        """Something that differs from before if another program has written to the file since."""

        def look(connection: sqlite3.Connection) -> tuple[int, int]:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            # Versions of different connections cannot be compared.
            return self._openings, version

        return self._guarded(look, 0)

    def probe(self, *, patience_s: float = _PROBE_PATIENCE_S) -> None:
        """
        Find out whether records could be stored now, without storing any.

        :raise StoreError: they could not.
        """

        def pretend(connection: sqlite3.Connection) -> None:
            # What a record needs, so that a limit on the file's size shows; then taken back.
            connection.execute("SAVEPOINT probe")
            connection.execute(INSERT, (-1, 0, 0, None, bytes(_PROBE_BYTES), None))
            connection.execute("ROLLBACK TO probe")
            # Writes a page without changing it, so that the commit has something to bring to the disk.
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA user_version = {int(version)}")

        self._transaction(pretend, patience_s=patience_s)

    def close(self) -> None:
        """Close the file, if it is open. What was committed is safe already, whatever happens here."""
        if self._wal is not None:
            try:
                self._wal.require_fit_for_checkpoint()
            except (WalMoved, WalDamaged) as error:
                self._saved(error)
        self._let_go(_checkpoint_and_close if self._left_open else _close)

    def _leave(self) -> None:
        self._left_open = True
        self._let_go(close_without_checkpoint)

    def _let_go(self, close: Callable[[sqlite3.Connection], None]) -> None:
        connection, self._connection = self._connection, None
        wal, self._wal = self._wal, None
        if wal is not None:
            wal.close()
        if connection is not None:
            try:
                close(connection)
            except sqlite3.Error:
                # The last one out moves the write-ahead log into the file. If that fails, the next to
                # open the file will do it.
                return

    def abandon(self) -> None:
        """Wait for no lock any more. May be called from any thread."""
        self._abandoned.set()

    def _open(self, patience_s: float) -> sqlite3.Connection:
        if self._damage is not None:
            raise StoreError(self._damage, code=Code.CORRUPT)
        if self._connection is None:
            self._require_same_file(missing_is_fine=self._identity is None)
            connection = open_file(self.path, patience_s=patience_s, abandoned=self._abandoned)
            self._connection = connection
            self._wal = WriteAheadLog(self.path)
            self._openings += 1
            if self._identity is None:
                status = self.path.stat()
                self._identity = (status.st_dev, status.st_ino)
            self._require_last_record(connection)
        return self._connection

    def _require_last_record(self, connection: sqlite3.Connection) -> None:
        """Raise unless the file goes as far as what was answered before it was closed."""
        if self._last is not None:
            found = next_offset(connection, self._last.topic)
            if found <= self._last.offset:
                self._damage = (
                    f"{self.path} has lost records that were stored: topic {self._last.topic} ends at offset "
                    f"{found}, and had {self._last.offset}. Was {self.path}-wal removed or overwritten? "
                    "Restore a backup, or restart the service to go on with what there is."
                )
                raise StoreError(self._damage, code=Code.CORRUPT)

    def _require_same_file(self, *, missing_is_fine: bool = False) -> None:
        """
        Raise unless the path still leads to the file that was opened first.

        SQLite would go on to write into a file that was deleted, and everything would be lost in the
        end. A new file instead would begin with offset 0, behind the backs of those who follow.
        """
        try:
            status = self.path.stat()
        except OSError as error:
            if missing_is_fine:
                return
            raise StoreError(
                f"{self.path} was moved or deleted, or its directory was, while it was in use; "
                "put it back, or restart the service to begin a new one."
            ) from error
        if self._identity not in {None, (status.st_dev, status.st_ino)}:
            raise StoreError(
                f"{self.path} was replaced by another file while it was in use; "
                "put the first one back, or restart the service to use the new one."
            )
        self.file_bytes = status.st_size

    def _guarded(self, use: Callable[[sqlite3.Connection], T], patience_s: float) -> T:
        """Use the connection, and translate what goes wrong."""
        try:
            connection = self._open(patience_s)
            if self._wal is not None:
                self._wal.require_in_place()
            return patiently(lambda: use(connection), patience_s=patience_s, abandoned=self._abandoned)
        except WalMoved as error:
            raise self._saved(error) from error
        except StoreError:
            self.close()
            raise
        except (sqlite3.Error, MemoryError, OSError) as error:
            raise self._translated(error, committing=False) from error

    def _transaction(
        self,
        use: Callable[[sqlite3.Connection], T],
        *,
        patience_s: float | None = None,
    ) -> T:
        """Write inside one transaction: all of it or nothing."""
        if patience_s is None:
            patience_s = self._patience_s
        self._guarded(lambda connection: connection.execute("BEGIN IMMEDIATE"), patience_s)
        connection, wal = self._connection, self._wal
        if connection is None or wal is None:
            raise RuntimeError("a transaction has begun in a file that is not open")
        committing = committed = False
        try:
            self._require_same_file()
            wal.require_whole(connection)
            result = use(connection)
            committing = True
            connection.execute("COMMIT")
            committed = True
            self.wal_bytes = wal.require_committed(connection)
        except (WalMoved, WalDamaged) as error:
            self._roll_back(connection)
            reported = self._saved(error)
            raise (reported.after_commit() if committed else reported) from error
        except StoreError:
            self._roll_back(connection)
            self.close()
            raise
        except (sqlite3.Error, MemoryError, OSError) as error:
            self._roll_back(connection)
            raise self._translated(error, committing=committing) from error
        except BaseException:
            self._roll_back(connection)
            raise
        return result

    def _saved(self, error: WalMoved | WalDamaged) -> StoreError:
        """
        Save what can be saved of a write-ahead log that is not as it was.

        :return: what to report.
        """
        if isinstance(error, WalMoved):
            return self._put_back(error)
        self._damage = error.reason
        self._leave()
        return error

    def _put_back(self, moved: WalMoved) -> StoreError:
        """Give a write-ahead log its name again, and have the file opened anew."""
        connection, wal = self._connection, self._wal
        if connection is None or wal is None:
            return moved
        try:
            # Beside another database it would be the wrong one.
            self._require_same_file()
            if not wal.is_continued_at_its_path(connection):
                patiently(
                    lambda: connection.execute("BEGIN IMMEDIATE"),
                    patience_s=_PROBE_PATIENCE_S,
                    abandoned=self._abandoned,
                )
                try:
                    wal.put_back()
                finally:
                    connection.execute("ROLLBACK")
        except StoreError as error:
            self._let_go(_close)
            return error
        except (sqlite3.Error, OSError) as error:
            return StoreError(
                f"{wal.path} was removed or replaced while it was in use, and what it held could not be put "
                f"back ({error}). Do not end the service: it goes on trying."
            )
        self._leave()
        return moved

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            # After some errors SQLite has rolled back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if self._wal is not None:
                self._wal.rolled_back()
        except sqlite3.Error:
            self.close()

    def _translated(self, error: Exception, *, committing: bool) -> StoreError:
        translated = from_sqlite(error, path=str(self.path), committing=committing)
        if translated.reopen:
            if self._wal is not None and translated.code in _UNREADABLE:
                try:
                    self._wal.require_fit_for_checkpoint(after_error=True)
                except (WalMoved, WalDamaged) as cause:
                    reported = self._saved(cause)
                    return reported.after_commit() if committing else reported
            self.close()
        return translated


def _close(connection: sqlite3.Connection) -> None:
    connection.close()


def _checkpoint_and_close(connection: sqlite3.Connection) -> None:
    """As the last connection does by itself; one that had to be left open keeps this one from being it."""
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
