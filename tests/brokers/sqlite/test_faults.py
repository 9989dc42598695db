"""Translation of SQLite's errors."""

from __future__ import annotations

import sqlite3

import pytest

from sampleapp.brokers.sqlite.faults import from_sqlite, primary_code
from sampleapp.errors import (
    BrokerUnavailable,
    OutcomeUnknown,
)
from tests.support.sqlite import make_file, other_connection, sqlite_error


def test_an_extended_code_counts_as_its_primary_one():
    error = sqlite3.OperationalError("whatever")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert primary_code(error) == sqlite3.SQLITE_IOERR


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), sqlite3.SQLITE_NOMEM),
        (PermissionError(13, "Permission denied"), sqlite3.SQLITE_CANTOPEN),
        (sqlite3.ProgrammingError("not one of SQLite's"), None),
    ],
)
def test_an_error_without_a_code_is_known_by_its_type(error, code):
    assert primary_code(error) == code


def test_only_a_commit_that_fails_may_have_been_written():
    error = sqlite_error("disk I/O error")
    before = from_sqlite(error, path="/p", committing=False).publish_error()
    at_commit = from_sqlite(error, path="/p", committing=True).publish_error()
    assert type(before) is BrokerUnavailable
    assert type(at_commit) is OutcomeUnknown


@pytest.mark.parametrize(
    ("extended", "is_certain"),
    [
        *((sqlite_code, True) for sqlite_code in (13, 5, 517, 6, 8, 1032, 778)),
        # Read, short read, fsync, fsync of the directory, truncate, unlock, memory, and the shared memory.
        *((10 | n << 8, False) for n in (1, 2, 4, 5, 6, 8, 12, 19, 20, 21)),
        *((sqlite_code, False) for sqlite_code in (1, 7, 9, 11, 14, 18, 26, 250)),
    ],
)
def test_a_commit_is_certainly_not_stored_if_it_failed_before_its_last_frame_was_written(
    extended, is_certain
):
    error = sqlite3.OperationalError("whatever")
    error.sqlite_errorcode = extended
    at_commit = from_sqlite(error, path="/p", committing=True).publish_error()
    assert type(at_commit) is (BrokerUnavailable if is_certain else OutcomeUnknown)


def test_errors_at_a_real_file_have_their_codes(path):
    make_file(path)
    with other_connection(path) as holder, other_connection(path) as waiter:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            waiter.execute("BEGIN IMMEDIATE")
        assert primary_code(caught.value) == sqlite3.SQLITE_BUSY
        waiter.execute("PRAGMA query_only = ON")
        holder.execute("ROLLBACK")
        with pytest.raises(sqlite3.OperationalError) as caught:
            waiter.execute("DELETE FROM record")
        assert primary_code(caught.value) == sqlite3.SQLITE_READONLY
