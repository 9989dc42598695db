"""
The SQLite file: opening and verifying it, its write-ahead log, and the thread for all of its calls.

SQLite does not check whether the write-ahead log (the ``-wal`` file) was deleted, replaced or overwritten
while in use. It would go on to commit to a deleted file, and everything since the last checkpoint would be
lost after a crash. A checkpoint would copy the content of an overwritten file into the database. The format
is described at https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from threading import Event, Thread
from typing import Any, ParamSpec, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from sampleapp.brokers.sqlite.faults import StoreError, primary_code

APPLICATION_ID = 0x53417070
SCHEMA_VERSION = 1

_TRY_AGAIN_S = 0.002
_SHORT_WAIT_S = 0.1
_SHORT_WAITS_S = 1.0
"""While a lock lasts, one call in each second waits: the other program may release it for moments only."""
_WAL_BYTES = 16 * 1024 * 1024
"""Well above the usual size: SQLite copies the log at 4 MiB, and a transaction adds up to about 5 MiB."""
_MODE = 0o600
"""The mode of a new file: records may be confidential."""

T = TypeVar("T")


class LockPatience:
    """
    Waits while another program has the file locked, for all calls of one store.

    The first call that meets a lock waits for it. While it lasts, later calls hardly wait: all of them, reads
    too, share one thread.

    SQLite's own busy timeout is not used: it backs off to 100 ms, so it rarely gets the lock from a program
    that commits without pause; it does not apply while the journal mode is changed; and it cannot be
    interrupted.
    """

    def __init__(self, patience_s: float) -> None:
        """:param patience_s: seconds after which the lock is an error."""
        self._patience_s = patience_s
        self._abandoned = Event()
        self._is_over = False
        self._next_wait_s = 0.0

    def retry(self, do: Callable[[], T]) -> T:
        """
        Call a function, and retry while the file is locked.

        :raise sqlite3.OperationalError: the file is still locked; or any other error, at once.
        """
        give_up_at_s: float | None = None
        while True:
            try:
                return do()
            except sqlite3.OperationalError as error:
                if primary_code(error) not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                    raise
                # Not the reactor's clock: this thread really waits for a lock of another process.
                now_s = time.monotonic()
                if give_up_at_s is None:
                    give_up_at_s = now_s + self._take_patience_s(now_s)
                if now_s >= give_up_at_s:
                    if not self._is_over:
                        self._is_over = True
                        self._next_wait_s = now_s + _SHORT_WAITS_S
                    raise
                if self._abandoned.wait(_TRY_AGAIN_S):
                    raise

    def renew(self) -> None:
        """Wait again for the next lock, now that the file could be locked for writing."""
        self._is_over = False

    def abandon(self) -> None:
        """Stop waiting. May be called from any thread."""
        self._abandoned.set()

    def _take_patience_s(self, now_s: float) -> float:
        if not self._is_over:
            return self._patience_s
        if now_s < self._next_wait_s:
            return 0.0
        self._next_wait_s = now_s + _SHORT_WAITS_S
        return min(_SHORT_WAIT_S, self._patience_s)


def open_file(path: Path, *, patience: LockPatience) -> sqlite3.Connection:
    """
    Open the store, and create it when the file is missing or empty.

    :param patience: waits for another program that has it locked.
    :raise StoreError: the file cannot be used as the store; the message says why and what to do.
    :raise sqlite3.Error: any error of SQLite.
    """
    _require_possible(path)
    _create_private(path)
    # Without implicit transactions (isolation_level). `LockPatience` waits for locks (timeout).
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        patience.retry(lambda: _prepare(connection, path))
    except BaseException:
        connection.close()
        raise
    return connection


def _create_private(path: Path) -> None:
    """
    Create a missing file, for its owner only. SQLite gives its mode to the ``-wal`` and ``-shm`` files.

    An existing file keeps its mode. Errors are left to SQLite, which meets them again.
    """
    with suppress(OSError):
        # Only a new file: closing a file that a connection has open would end its locks (POSIX).
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))


def require_creatable(path: Path) -> None:
    """
    Check that a missing file could be created, without creating it.

    :raise StoreError: it could not; the message says why and what to do.
    """
    _require_possible(path)
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise StoreError(
            f"{path} cannot be created: {error.strerror}; allow this user to write to {path.parent}, or give "
            "another path."
        ) from error


def _require_possible(path: Path) -> None:
    """Check for problems that SQLite would all report as "unable to open database file"."""
    directory = path.parent
    if path.is_dir():
        raise StoreError(f"{path} is a directory; give the path of a file in it.")
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise StoreError(f"{path} cannot be opened: {directory} {what}; create it, or give another path.")
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a regular file; give the path of one.")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    # One transaction, or another process could create the tables between two of the statements.
    with transaction(connection, "BEGIN"):
        is_empty = _is_empty(connection, path)
    (journal_mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if journal_mode != "wal":
        raise StoreError(
            f"{path} is on a file system that cannot share memory between processes, which SQLite's "
            "write-ahead log needs; give a path on a local disk."
        )
    # A commit is synced to the disk before it is answered. On macOS, fsync alone does not do that.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    # A log that has grown while another program read an old state is cut when it begins again.
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    if is_empty:
        with transaction(connection, "BEGIN IMMEDIATE"):
            # Look again under the write lock: another process may have created the tables.
            if _is_empty(connection, path):
                for statement in statements("schema.sql"):
                    connection.execute(statement)
    connection.execute("SELECT id, name, next_offset, uid FROM topic LIMIT 0")
    connection.execute("SELECT topic_id, offset, timestamp_ms, key, value, headers FROM record LIMIT 0")
    connection.execute("SELECT number, id, fingerprint, topic_id, offset, stored_ms FROM identity LIMIT 0")
    connection.execute("SELECT id, number FROM indexed_identity LIMIT 0")


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Commit at the end of the block, or roll back after an exception; ``begin`` is the first statement."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _is_empty(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file has no tables yet; raise if they are another version's or program's."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id == APPLICATION_ID:
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{path} was written by another version of sampleapp (its schema is {version}, this version "
                f"knows only {SCHEMA_VERSION}); use that version, or give the path of another file."
            )
        return False
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id or version or tables:
        raise StoreError(f"{path} is a SQLite database of another program; give the path of another file.")
    return True


def statements(name: str) -> Iterator[str]:
    """Yield the statements of a file here that creates tables. `executescript` would commit before them."""
    script = files(__package__).joinpath(name).read_text(encoding="utf-8")
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


_HEADER_BYTES = 32
_MAGIC = {0x377F0682, 0x377F0683}
_UINT32 = struct.Struct(">I")


class WalFault(Exception):
    """The write-ahead log is not as SQLite left it. The message says what happened to it."""

    def __init__(self, what: str, *, is_readable: bool) -> None:
        """:param is_readable: whether the open file certainly still holds all that was committed to it."""
        super().__init__(what)
        self.is_readable = is_readable


class WriteAheadLog:
    """
    The ``-wal`` file of one connection.

    Opening and closing this file here is harmless: SQLite's own locks, which end when their process closes
    the file (POSIX), are on the database and on the ``-shm`` file, never on this one.
    """

    def __init__(self, database: Path, connection: sqlite3.Connection) -> None:
        """:param connection: has the database open, and has read from it."""
        self.path = Path(f"{database}-wal")
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self._version = _data_version(connection)
        self.remember()

    def close(self) -> None:
        """Close the descriptor. SQLite has its own."""
        os.close(self._descriptor)

    def remember(self) -> None:
        """
        Store the present header and size for the next check.

        For use after a rollback: a large transaction is written early, and can have restarted the log.
        """
        self._header, self._bytes = self._read()

    def require_intact(self, connection: sqlite3.Connection, *, committed: bool = False) -> int:
        """
        Check that the path leads to the open file, and that the file still holds all that was committed.

        Other processes may append, restart the log with other salts, or truncate it in a checkpoint. All of
        these show in the connection's ``data_version``, and the last two only happen after everything has
        reached the database. No process deletes the file while this connection is open.

        :param connection: the one that has the file open; it has no uncommitted changes.
        :param committed: whether it has committed since the last check, and so may have restarted the log.
        :return: the size of the file, in bytes.
        :raise WalFault: another file, or none, is at the path; or the file was overwritten or cut short.
        """
        version = _data_version(connection)
        header, size = self._read()
        # Without the write lock, another process may restart the log between these statements.
        others_wrote = version != self._version or (
            header != self._header and _data_version(connection) != version
        )
        if header == self._header:
            intact = size >= self._bytes
        elif header:
            intact = (committed or others_wrote) and _is_header(header)
        else:
            intact = others_wrote
        moved = self._moved()
        if moved is not None:
            # Another process may have committed to the file that is at the path now.
            raise WalFault(moved, is_readable=intact and not others_wrote)
        if not intact:
            raise WalFault("was overwritten or cut short", is_readable=False)
        self._header, self._bytes, self._version = header, size, version
        return size

    def _read(self) -> tuple[bytes, int]:
        header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        while True:
            size = os.fstat(self._descriptor).st_size
            # Another process may truncate the file in a checkpoint at any time. Return the size that belongs
            # to the header, or this would look like a file that was cut short.
            before, header = header, os.pread(self._descriptor, _HEADER_BYTES, 0)
            if header == before:
                return header, size

    def _moved(self) -> str | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return "was deleted"
        is_same = (status.st_dev, status.st_ino) == self._identity
        return None if is_same else "was replaced by another file"


def checkpoint(connection: sqlite3.Connection) -> bool:
    """
    Copy the write-ahead log that is open into the database, and sync both.

    :return: whether all of it is in the database now. It is not while another program reads an old state.
    :raise sqlite3.Error: the database cannot be written to.
    """
    busy, frames, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return not busy and frames == copied


def close_without_checkpoint(connection: sqlite3.Connection) -> None:
    """
    Close a connection whose ``-wal`` file must not be copied into the database.

    The last connection to close would copy it.
    """
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE)
        connection.close()
    else:
        # Python 3.11 has no such option. Leave the connection open, also when the interpreter ends: the
        # system closes the descriptors, without SQLite.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _data_version(connection: sqlite3.Connection) -> int | None:
    """Return a number that changes when other processes commit, or ``None`` if it cannot be read now."""
    try:
        (version,) = connection.execute("PRAGMA data_version").fetchone()
    except sqlite3.Error:
        return None
    return int(version)


def _is_header(header: bytes) -> bool:
    return len(header) == _HEADER_BYTES and _UINT32.unpack_from(header)[0] in _MAGIC


P = ParamSpec("P")


class _DaemonThread(Thread):
    """
    A thread that does not keep the process alive.

    Otherwise, a broker that was never stopped, or whose disk hangs, would keep the interpreter from ending.
    Nothing is lost, since acknowledged records are on the disk.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, daemon=True)


class _OneThread(ThreadPool):
    threadFactory = _DaemonThread  # noqa: N815 -- Twisted's name


class PrivateThread:
    """A thread that runs calls one after the other, in order."""

    def __init__(self, *, threads: IReactorFromThreads) -> None:
        """:param threads: brings the results back to the reactor's thread."""
        self._threads = threads
        self._pool: _OneThread | None = None

    def start(self) -> None:
        """Start the thread. Not in the constructor, since a process loses its threads when it forks."""
        self._pool = _OneThread(1, 1, name="sampleapp.sqlite")
        self._pool.start()

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """
        Call a function on the thread.

        :return: fires with the result, or fails with the exception, on the reactor's thread. Cancelling it
            only ends the waiting: a call that has begun cannot be stopped.
        """
        if self._pool is None:
            raise RuntimeError("the thread is not running")
        return deferToThreadPool(self._threads, self._pool, work, *args, **kwargs)

    def stop(self) -> None:
        """End the thread. Blocks until it has ended, so no call may be running on it."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
