"""The store: synchronous appending and reading, on the private thread."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeGuard, TypeVar

from sampleapp.brokers.shared.deliveries import GivenLeases, WorkSettings
from sampleapp.brokers.shared.following import Page
from sampleapp.brokers.shared.idempotency import IdempotencySettings
from sampleapp.brokers.shared.work import Operation, run_all
from sampleapp.brokers.sqlite.database import (
    LockPatience,
    WalFault,
    WriteAheadLog,
    checkpoint,
    close_without_checkpoint,
    open_file,
    require_creatable,
    transaction,
)
from sampleapp.brokers.sqlite.faults import StoreError, from_sqlite
from sampleapp.brokers.sqlite.rows import (
    INSERT,
    RecentIds,
    RowRejected,
    Section,
    TimeSearch,
    Window,
    forget_some,
    insert,
    insert_singly,
    is_any_expired,
    keep_times,
    next_offset,
    page,
    search_time,
    section,
    topics,
    topics_of,
    write_a_page,
)
from sampleapp.brokers.sqlite.work import find_group
from sampleapp.errors import StartUpError
from sampleapp.interfaces import Outcome
from sampleapp.model import ReadStart, Record, RecordMetadata, ReplayedRecord

_PROBE_BYTES = 64 * 1024
_FORGOTTEN_AT_ONCE = 200
"""Maximum identities that are deleted in one transaction, in some milliseconds."""
_LONGEST_WINDOW_MS = 2**62
"""For ever. Added to the time of day it is still an integer of SQLite, which has 64 bits."""

T = TypeVar("T")


def _is_appended(outcome: Outcome) -> TypeGuard[RecordMetadata]:
    return isinstance(outcome, RecordMetadata) and not isinstance(outcome, ReplayedRecord)


class Store:
    """
    One SQLite file. It is opened when needed, and again after an error that may come from the connection.

    All methods but `abandon` must be called on one thread while the file is open. Errors are raised as
    `StoreError`.
    """

    def __init__(
        self,
        *,
        path: Path,
        patience_s: float,
        identity_window_s: float = IdempotencySettings().window_s,
        work: WorkSettings = WorkSettings(),  # noqa: B008 -- it is immutable
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        :param path: absolute, so that a later change of directory does not change the file.
        :param patience_s: seconds for which calls wait for another program that has the file locked, until
            one has waited for it in vain.
        :param identity_window_s: seconds for which the identity of a record counts.
        :param work: for groups of workers.
        :param now: returns the time of day: seconds since the epoch.
        """
        self.path = path
        self.file_bytes = 0
        """The size of the file when a transaction last began; 0 before the first one."""
        self.wal_bytes = 0
        """The size of the write-ahead log when a transaction was last committed; 0 before the first one."""
        self._patience = LockPatience(patience_s)
        self._identity_window_ms = round(min(1000 * identity_window_s, _LONGEST_WINDOW_MS))
        self.leases: Final = GivenLeases(work, now)
        """The leases of this process."""
        self._connection: sqlite3.Connection | None = None
        self._recent_ids = RecentIds()
        self._openings = 0
        self._identity: tuple[int, int] | None = None
        self._wal: WriteAheadLog | None = None
        self._damage: str | None = None
        self._last: RecordMetadata | None = None

    def check(self) -> None:
        """
        Check that the file can be opened and written to, and close it. A missing file is not created.

        :raise StartUpError: it cannot. A lock is not an error, since it may be released.
        """
        try:
            if self.path.exists():
                self.probe()
            else:
                # The check may run as root, and the service as a user who could not write to root's file.
                require_creatable(self.path)
        except StoreError as error:
            if error.code not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                raise StartUpError(error.reason) from error
        finally:
            self.close()

    def append(self, records: Sequence[Record]) -> list[Outcome]:
        """
        Append records in one transaction, which is on the disk when this returns.

        :return: for each record its offset, or the error with which it alone was rejected.
        :raise StoreError: none of them was stored, or the outcome is unknown.
        """
        try:
            outcomes = self._transaction(
                lambda connection: insert(connection, records, self._window(), self._recent_ids)
            )
        except RowRejected:
            # One of them is too large for SQLite. Insert them singly to find out which.
            outcomes = self._transaction(
                lambda connection: insert_singly(connection, records, self._window(), self._recent_ids)
            )
        self._last = next(filter(_is_appended, reversed(outcomes)), self._last)
        return outcomes

    def work(self, operations: Sequence[Operation]) -> list[tuple[Any, int]]:
        """
        Run operations on groups of workers in one transaction, which is on the disk when this returns.

        If all of them only read, another program that has the file locked for writing does not matter.
        """

        def run(connection: sqlite3.Connection) -> list[tuple[Any, int]]:
            # Inside of the transaction, since waiting for the lock may take seconds.
            return run_all(operations, partial(find_group, connection, self.leases))

        def run_on_snapshot(connection: sqlite3.Connection) -> list[tuple[Any, int]]:
            with transaction(connection, "BEGIN"):
                return run(connection)

        if all(operation.is_read for operation in operations):
            return self._read(run_on_snapshot)
        return self._transaction(run)

    def forget_some(self) -> bool:
        """
        Delete some identities that have expired, in one transaction.

        :return: whether there may be more.
        """
        if not self._read(lambda connection: is_any_expired(connection, self._window())):
            return False
        self._transaction(lambda connection: forget_some(connection, self._window(), _FORGOTTEN_AT_ONCE))
        return True

    def read(self, topic: str, offset: int, *, max_records: int, max_bytes: int) -> Page:
        """
        Read the records of a topic from an offset on.

        :param max_bytes: of keys and values; at least one record is read, whatever its size.
        """
        return self._read(lambda connection: page(connection, topic, offset, max_records, max_bytes))

    def section(
        self, topic: str, start: ReadStart, *, max_records: int, max_bytes: int, key: bytes | None = None
    ) -> Section | None:
        """
        Read a part of a topic.

        :param start: an exact offset, or a start that is not a time.
        :param max_records: with 0, only the positions are looked up.
        :param max_bytes: of keys, values and headers; at least one record is read, whatever its size.
        :param key: of the records to read; with it, ``max_records`` counts those that are left out, too.
        :return: ``None`` if the topic does not exist.
        """
        return self._read(
            lambda connection: section(connection, topic, start, max_records, max_bytes, key=key)
        )

    def search_time(self, topic: str, topic_id: str, timestamp_ms: int, *, first: int) -> TimeSearch:
        """
        Search a part of a topic, from an offset on, for the first record that is not before a time.

        It skips the next blocks of offsets that are known to be before the time, and looks at every record of
        the block after them, which takes about 0.2 us each. The part is empty if it has skipped many.

        :param topic_id: see `Section.topic_id`.
        """
        return self._read(lambda connection: search_time(connection, topic, topic_id, timestamp_ms, first))

    def keep_times(self, topic_id: str, searched: Sequence[TimeSearch]) -> None:
        """
        Store the latest times of whole blocks, in one transaction, for later searches.

        They stay right, since records do not change and are not inserted.
        """
        self._transaction(lambda connection: keep_times(connection, topic_id, searched))

    def topics(self, *, after: str, count: int) -> list[str]:
        """
        Read the names of topics, sorted.

        :param after: the name before the first; empty for the first of all.
        :param count: the most to read.
        """
        return self._read(lambda connection: topics(connection, after, count))

    def topics_of(self, names: Sequence[str]) -> list[str]:
        """Return the names that are names of topics, in the same order."""
        return self._read(lambda connection: topics_of(connection, names))

    def changes(self) -> tuple[int, int]:
        """Return a value that changes when another program writes to the file."""

        def read_versions(connection: sqlite3.Connection) -> tuple[int, int]:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            # Versions of different connections cannot be compared.
            return self._openings, version

        return self._read(read_versions)

    def probe(self) -> None:
        """
        Check that records could be stored now, without storing any.

        :raise StoreError: they could not.
        """

        def pretend(connection: sqlite3.Connection) -> None:
            # Insert a record, which fails at a limit on the file's size, and roll it back.
            connection.execute("SAVEPOINT probe")
            connection.execute(INSERT, (-1, 0, 0, None, bytes(_PROBE_BYTES), None))
            connection.execute("ROLLBACK TO probe")
            write_a_page(connection)

        self._transaction(pretend)

    def close(self) -> StoreError | None:
        """
        Close the file, if it is open. Committed records are on the disk already, even if closing fails.

        :return: the error if the write-ahead log is not intact; otherwise ``None``.
        """
        fault = self._check_wal()
        self._release()
        return fault

    def _window(self) -> Window:
        return Window(now_ms=self.leases.now_ms(), window_ms=self._identity_window_ms)

    def _release(self, *, may_checkpoint: bool = True) -> None:
        connection, self._connection = self._connection, None
        wal, self._wal = self._wal, None
        if wal is not None:
            wal.close()
        if connection is not None:
            try:
                if may_checkpoint:
                    connection.close()
                else:
                    close_without_checkpoint(connection)
            except sqlite3.Error:
                # The last connection to close copies the write-ahead log into the file. If that fails, the
                # next one to open the file does it.
                return

    def abandon(self) -> None:
        """Stop waiting for locks. May be called from any thread."""
        self._patience.abandon()

    def _open(self) -> sqlite3.Connection:
        if self._damage is not None:
            raise StoreError(self._damage, needs_restart=True)
        if self._connection is None:
            self._require_same_file(missing_is_fine=self._identity is None)
            connection = open_file(self.path, patience=self._patience)
            self._connection = connection
            try:
                self._begin(connection)
            except BaseException:
                # Otherwise the next call would use a connection that is only half set up.
                self.close()
                raise
        return self._connection

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._wal = WriteAheadLog(self.path, connection)
        self._recent_ids.clear()
        self._openings += 1
        if self._identity is None:
            status = self.path.stat()
            self._identity = (status.st_dev, status.st_ino)
        self._require_last_record(connection)

    def _require_last_record(self, connection: sqlite3.Connection) -> None:
        """Raise unless the file still has the last acknowledged record; for a file that is opened again."""
        if self._last is not None:
            found = next_offset(connection, self._last.topic)
            if found <= self._last.offset:
                self._damage = (
                    f"{self.path} has lost records that were stored: topic {self._last.topic} ends at offset "
                    f"{found}, and had {self._last.offset}. Was {self.path}-wal removed or overwritten? "
                    "Restore a backup, or restart the service to go on with what there is."
                )
                raise StoreError(self._damage, needs_restart=True)

    def _require_same_file(self, *, missing_is_fine: bool = False) -> None:
        """
        Raise unless the path still leads to the file that was opened first.

        SQLite would continue to write into a deleted file, and everything would be lost in the end. A new
        file would begin with offset 0, which followers do not expect.
        """
        try:
            status = self.path.stat()
        except OSError as error:
            if missing_is_fine:
                return
            raise StoreError(
                f"{self.path}, or its directory, was moved or deleted while it was in use; put it back, or "
                "restart the service to begin a new file."
            ) from error
        if self._identity not in {None, (status.st_dev, status.st_ino)}:
            raise StoreError(
                f"{self.path} was replaced by another file while it was in use; "
                "put the first file back, or restart the service to use the new one."
            )
        self.file_bytes = status.st_size

    def _read(self, use: Callable[[sqlite3.Connection], T]) -> T:
        def checked(connection: sqlite3.Connection) -> T:
            if self._wal is not None:
                self._wal.require_intact(connection)
            return use(connection)

        return self._guarded(checked)

    def _guarded(self, use: Callable[[sqlite3.Connection], T]) -> T:
        """Use the connection, and translate errors."""
        try:
            connection = self._open()
            return self._patience.retry(lambda: use(connection))
        except WalFault as fault:
            raise self._stop_using(fault) from fault
        except StoreError:
            self.close()
            raise
        except (sqlite3.Error, MemoryError, OSError) as error:
            raise self._translated(error, committing=False) from error

    def _transaction(self, use: Callable[[sqlite3.Connection], T]) -> T:
        """Call a function in one transaction, which is committed as a whole or not at all."""
        self._guarded(lambda connection: connection.execute("BEGIN IMMEDIATE"))
        self._patience.renew()
        connection, wal = self._connection, self._wal
        if connection is None or wal is None:
            raise RuntimeError("a transaction was begun in a file that is not open")
        committing = committed = False
        try:
            self._require_same_file()
            wal.require_intact(connection)
            result = use(connection)
            committing = True
            connection.execute("COMMIT")
            committed = True
            self.wal_bytes = wal.require_intact(connection, committed=True)
        except WalFault as fault:
            self._roll_back(connection)
            reported = self._stop_using(fault)
            raise (reported.after_commit() if committed else reported) from fault
        except StoreError:
            self._roll_back(connection)
            self.close()
            raise
        except (sqlite3.Error, MemoryError, OSError) as error:
            self._roll_back(connection)
            translated = self._translated(error, committing=committing)
            raise (translated.after_commit() if committed else translated) from error
        except BaseException:
            self._roll_back(connection)
            raise
        return result

    def _check_wal(self) -> StoreError | None:
        """Return ``None`` if the write-ahead log is intact; otherwise the error of `_stop_using`."""
        if self._connection is not None and self._wal is not None:
            try:
                self._wal.require_intact(self._connection)
            except WalFault as fault:
                return self._stop_using(fault)
            except OSError:
                # The path cannot be read now. The error that led here, or the next one, is reported.
                return None
        return None

    def _stop_using(self, fault: WalFault) -> StoreError:
        """
        Close the file for good, since its write-ahead log is not as SQLite left it.

        Records that the open log certainly still holds are copied into the database first. While that fails,
        the file stays open, and the next call tries again.

        :return: the error to report.
        """
        connection, wal = self._connection, self._wal
        if connection is None or wal is None:
            raise RuntimeError("the write-ahead log of a file that is not open was checked")
        try:
            self._require_same_file()
        except StoreError as error:
            # The log was moved together with its database. Both are opened again when they are back.
            self._release(may_checkpoint=fault.is_readable)
            return error
        what = f"{wal.path} {fault} while it was in use"
        if not fault.is_readable:
            rest = (
                "and the newest records may be lost. No more records are stored. Restore a backup, or "
                "restart the service to go on with the records that are left."
            )
        else:
            try:
                reason = None if checkpoint(connection) else "another program is reading it"
            except sqlite3.Error as error:
                reason = str(error)
            if reason is not None:
                return StoreError(
                    f"{what}, and its records cannot be copied to {self.path} yet: {reason}. Do not stop "
                    "the service, which keeps trying; make room on the disk, or end the other "
                    "program."
                )
            rest = (
                f"and no more records are stored. All acknowledged records were copied to {self.path}. Find "
                "out what removed the file, and restart the service."
            )
        self._damage = f"{what}, {rest}"
        self._release(may_checkpoint=fault.is_readable)
        return StoreError(self._damage, needs_restart=True)

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        self._recent_ids.clear()
        try:
            # After some errors, SQLite rolls back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if self._wal is not None:
                self._wal.remember()
        except sqlite3.Error:
            self.close()

    def _translated(self, error: Exception, *, committing: bool) -> StoreError:
        translated = from_sqlite(error, path=str(self.path), committing=committing)
        if translated.reopen:
            fault = self._check_wal()
            if fault is not None:
                return fault.after_commit() if committing else fault
            self._release()
        return translated
