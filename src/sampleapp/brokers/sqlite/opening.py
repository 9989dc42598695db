"""
Opening of the store's file: create it if it is missing, and reject files of other programs.

Runs on the private thread, and once before the reactor runs.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import TypeVar

from sampleapp.brokers.sqlite.faults import Code, StoreError, primary_code

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "open_file", "require_creatable", "retry_while_locked"]

APPLICATION_ID = 0x53417070
SCHEMA_VERSION = 1

_TRY_AGAIN_S = 0.002
_MODE = 0o600
"""The mode of a new file: records may be confidential."""

T = TypeVar("T")


def retry_while_locked(do: Callable[[], T], *, patience_s: float, abandoned: Event) -> T:
    """
    Call a function, and retry while another program has the file locked.

    SQLite's own busy timeout is not used: it backs off to 100 ms, so it rarely gets the lock from a program
    that commits without pause; it does not apply while the journal mode is changed; and it cannot be
    interrupted.

    :param patience_s: seconds after which the lock is an error.
    :param abandoned: ends the waiting when it is set.
    :raise sqlite3.OperationalError: the file is still locked; or any other error, at once.
    """
    # Not the reactor's clock: this thread really waits for a lock of another process.
    give_up_at_s = time.monotonic() + patience_s
    while True:
        try:
            return do()
        except sqlite3.OperationalError as error:  # noqa: PERF203 -- this loop retries
            if primary_code(error) not in {Code.BUSY, Code.LOCKED} or time.monotonic() >= give_up_at_s:
                raise
            if abandoned.wait(_TRY_AGAIN_S):
                raise


def open_file(path: Path, *, patience_s: float, abandoned: Event) -> sqlite3.Connection:
    """
    Open the store, and create it when the file is missing or empty.

    :param patience_s: seconds to wait for another program that has it locked.
    :param abandoned: ends the waiting when it is set.
    :raise StoreError: the file cannot be used as the store; the message says why and what to do.
    :raise sqlite3.Error: any error of SQLite.
    """
    _require_possible(path)
    _create_private(path)
    # Without implicit transactions (isolation_level). `retry_while_locked` waits for locks (timeout).
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        retry_while_locked(lambda: _prepare(connection, path), patience_s=patience_s, abandoned=abandoned)
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
    with _transaction(connection, "BEGIN"):
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
    if is_empty:
        with _transaction(connection, "BEGIN IMMEDIATE"):
            # Look again under the write lock: another process may have created the tables.
            if _is_empty(connection, path):
                for statement in _schema():
                    connection.execute(statement)
    connection.execute("SELECT id, name, next_offset, uid FROM topic LIMIT 0")
    connection.execute("SELECT topic_id, offset, timestamp_ms, key, value, headers FROM record LIMIT 0")
    connection.execute("SELECT number, id, fingerprint, topic_id, offset, stored_ms FROM identity LIMIT 0")
    connection.execute("SELECT id, number FROM indexed_identity LIMIT 0")


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
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


def _schema() -> Iterator[str]:
    """Yield the statements that make the tables. `executescript` would commit before the first one."""
    script = files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
