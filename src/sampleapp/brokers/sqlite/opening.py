"""
Opening the store's file: making it when there is none, and refusing what is not ours.

Runs on the private thread, and once before the reactor runs.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import TypeVar

from sampleapp.brokers.sqlite.faults import Code, StoreError, primary_code

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "open_file", "patiently", "require_creatable"]

APPLICATION_ID = 0x53417070
SCHEMA_VERSION = 1

_TRY_AGAIN_S = 0.002

T = TypeVar("T")


def patiently(do: Callable[[], T], *, patience_s: float, abandoned: Event) -> T:
    """
    Do something with the file, again and again for as long as another program has it locked.

    SQLite's own busy timeout is not used: it backs off to 100 ms, so that it seldom wins against a
    program that commits without pause, it is not asked at all while the journal mode is changed, and
    nothing can interrupt it.

    :param patience_s: seconds after which the lock is accepted as an error.
    :param abandoned: when it is set, nothing is waited for any more.
    :raise sqlite3.OperationalError: the file is still locked; or whatever else went wrong, at once.
    """
    # Not the reactor's clock: this is real waiting, on a thread, for a lock that knows no other time.
    give_up_at_s = time.monotonic() + patience_s
    while True:
        try:
            return do()
        except sqlite3.OperationalError as error:  # noqa: PERF203 -- trying again is the point
            if primary_code(error) not in {Code.BUSY, Code.LOCKED} or time.monotonic() >= give_up_at_s:
                raise
            if abandoned.wait(_TRY_AGAIN_S):
                raise


def open_file(path: Path, *, patience_s: float, abandoned: Event) -> sqlite3.Connection:
    """
    Open the store, and create it when the file is missing or empty.

    :param patience_s: seconds to wait for another program that has it locked.
    :param abandoned: when it is set, nothing is waited for any more.
    :raise StoreError: the file cannot be the store; the message says why and what to do.
    :raise sqlite3.Error: what SQLite could not do.
    """
    _look_at(path)
    # Transactions are begun by hand (isolation_level), and waited for in `patiently` (timeout).
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        patiently(lambda: _prepare(connection, path), patience_s=patience_s, abandoned=abandoned)
    except BaseException:
        connection.close()
        raise
    return connection


def require_creatable(path: Path) -> None:
    """
    See whether a file that is missing could be made, without making it.

    :raise StoreError: it could not; the message says why and what to do.
    """
    _look_at(path)
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise StoreError(
            f"{path} cannot be created: {error.strerror}; this user has to be allowed to write to "
            f"{path.parent}, or give another path."
        ) from error


def _look_at(path: Path) -> None:
    """SQLite says "unable to open database file" to all of these, which helps nobody."""
    directory = path.parent
    if path.is_dir():
        raise StoreError(f"{path} is a directory; give the path of a file in it.")
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise StoreError(f"{path} cannot be opened: {directory} {what}; create it, or give another path.")
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a regular file; give the path of one.")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    # One transaction, or another process could create the tables between two of the questions.
    with _transaction(connection, "BEGIN"):
        fresh = _is_empty(connection, path)
    (journal_mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if journal_mode != "wal":
        raise StoreError(
            f"{path} is on a file system that cannot share memory between processes, which SQLite's "
            "write-ahead log needs; give a path on a local disk."
        )
    # A commit is on the disk before it is answered; and on macOS fsync alone does not see to that.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    if fresh:
        with _transaction(connection, "BEGIN IMMEDIATE"):
            # Another process may have been faster: only now can it not be any more.
            if _is_empty(connection, path):
                for statement in _statements():
                    connection.execute(statement)
    connection.execute("SELECT id, name, next_offset FROM topic LIMIT 0")
    connection.execute("SELECT topic_id, offset, timestamp_ms, key, value, headers FROM record LIMIT 0")


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
    """Whether there is nothing in the file; when there is, it has to be ours."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{path} was written by a newer version of sampleapp (its schema is {version}, this version "
                f"knows {SCHEMA_VERSION}); use that version, or another file."
            )
        return False
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id or version or tables:
        raise StoreError(f"{path} is a SQLite database of another program; give the path of another file.")
    return True


def _statements() -> Iterator[str]:
    """The schema's statements one by one: `executescript` would commit before the first."""
    script = files(__package__).joinpath("schema", f"v{SCHEMA_VERSION}.sql").read_text(encoding="utf-8")
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
