"""Translation of SQLite's errors."""

from __future__ import annotations

import sqlite3

import pytest

from sampleapp.brokers.sqlite.faults import Code, from_sqlite, primary_code
from sampleapp.errors import (
    BrokerUnavailable,
    OutcomeUnknown,
)
from tests.support.sqlite import make_file, other_connection

MESSAGES = {
    "database is locked": Code.BUSY,
    "database table is locked: record": Code.LOCKED,
    "attempt to write a readonly database": Code.READONLY,
    "disk I/O error": Code.IOERR,
    "database disk image is malformed": Code.CORRUPT,
    "database or disk is full": Code.FULL,
    "unable to open database file": Code.CANTOPEN,
    "file is not a database": Code.NOTADB,
    "interrupted": Code.INTERRUPT,
    "something new": None,
}


@pytest.mark.parametrize(("message", "code"), MESSAGES.items())
def test_without_a_code_an_error_is_known_by_its_message(message, code):
    assert primary_code(sqlite3.OperationalError(message)) == code


def test_an_extended_code_counts_as_its_primary_one():
    error = sqlite3.OperationalError("whatever")
    error.sqlite_errorcode = 10 | (4 << 8)
    assert primary_code(error) is Code.IOERR
    error.sqlite_errorcode = 250
    assert primary_code(error) is None


@pytest.mark.parametrize("message", MESSAGES)
def test_only_a_commit_that_cannot_have_been_written_is_known_not_to_be_stored(message):
    error = sqlite3.OperationalError(message)
    before = from_sqlite(error, path="/p", committing=False).publish_error()
    assert isinstance(before, BrokerUnavailable)
    at_commit = from_sqlite(error, path="/p", committing=True).publish_error()
    surely_not = MESSAGES[message] in {Code.BUSY, Code.LOCKED, Code.READONLY, Code.FULL}
    assert isinstance(at_commit, BrokerUnavailable if surely_not else OutcomeUnknown)


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


def test_sqlite_words_its_errors_as_the_messages_that_are_known(path):
    make_file(path)
    with other_connection(path) as holder, other_connection(path) as waiter:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            waiter.execute("BEGIN IMMEDIATE")
        assert primary_code(sqlite3.OperationalError(str(caught.value))) is Code.BUSY
        waiter.execute("PRAGMA query_only = ON")
        holder.execute("ROLLBACK")
        with pytest.raises(sqlite3.OperationalError) as caught:
            waiter.execute("DELETE FROM record")
        assert primary_code(sqlite3.OperationalError(str(caught.value))) is Code.READONLY
