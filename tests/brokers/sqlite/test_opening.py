"""Problems of the file at the start."""

# ruff: noqa: ASYNC240 -- a test may look at its few small files while the reactor waits

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from functools import partial
from pathlib import Path

import pytest
import pytest_twisted

from sampleapp.brokers.sqlite import database
from sampleapp.brokers.sqlite.database import SCHEMA_VERSION
from sampleapp.errors import (
    StartUpError,
)
from tests.support import sqlite_process
from tests.support.brokers import record, within
from tests.support.sqlite import (
    in_process,
    make_file,
    new_broker,
    other_connection,
    running,
    sqlite_error,
    stored,
)


def rejected_at_start(path):
    with pytest.raises(StartUpError) as caught:
        new_broker(path).check()
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_check_makes_no_file_since_who_checks_may_be_somebody_else_than_who_writes(path):
    new_broker(path).check()
    assert list(path.parent.iterdir()) == []


@pytest_twisted.ensureDeferred
async def test_a_file_that_could_not_be_made_is_rejected():
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o555)
        message = await in_process(sqlite_process.check, Path(directory, "log"))
        Path(directory).chmod(0o755)
    assert str(Path(directory, "log")) in message
    assert "cannot be created" in message


def test_check_leaves_a_log_that_is_marked_as_ours_and_holds_nothing_open(path):
    make_file(path)
    with other_connection(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (0x53417070,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        # Possible only while no other connection has the file open.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
    new_broker(path).check()


def test_an_empty_file_becomes_a_log(path):
    path.touch()
    new_broker(path).check()
    assert stored(path) == []


def test_a_directory_is_rejected(tmp_path):
    assert "is a directory" in rejected_at_start(tmp_path)


def test_a_missing_directory_is_rejected_and_not_created(tmp_path):
    assert "does not exist" in rejected_at_start(tmp_path / "missing" / "log")
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    assert "is not a directory" in rejected_at_start(tmp_path / "file" / "log")


def test_a_path_that_is_no_regular_file_is_rejected():
    assert "not a regular file" in rejected_at_start(Path("/dev/null"))


@pytest.mark.parametrize("garbage", [b"garbage", b"garbage" * 5000], ids=["short", "long"])
def test_a_file_that_is_no_database_is_rejected_and_left_alone(path, garbage):
    path.write_bytes(garbage)
    assert "is not a SQLite database" in rejected_at_start(path)
    assert path.read_bytes() == garbage


@pytest.mark.parametrize("mark", ["CREATE TABLE theirs (a)", "PRAGMA application_id = 7"])
def test_the_database_of_another_program_is_rejected_and_left_alone(path, mark):
    with other_connection(path) as connection:
        connection.execute(mark)
    before = path.read_bytes()
    assert "another program" in rejected_at_start(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [-1, 0, SCHEMA_VERSION + 1, 999])
def test_a_file_of_another_version_is_rejected_and_left_alone(path, version):
    make_file(path)
    with other_connection(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    assert rejected_at_start(path) == (
        f"{path} was written by another version of sampleapp (its schema is {version}, this version knows "
        f"only {SCHEMA_VERSION}); use that version, or give the path of another file."
    )
    assert path.read_bytes() == before


def test_a_file_whose_tables_are_missing_is_rejected(path):
    make_file(path)
    with other_connection(path) as connection:
        connection.execute("DROP TABLE record")
    assert "no such table: record" in rejected_at_start(path)


@pytest.mark.parametrize("writable", ["nothing", "directory"])
@pytest_twisted.ensureDeferred
async def test_a_file_that_may_not_be_written_to_is_rejected(writable):
    # Not tmp_path, which only its owner may read.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "log")
        make_file(path)
        path.chmod(0o444)
        Path(directory).chmod(0o777 if writable == "directory" else 0o555)
        message = await in_process(sqlite_process.check, path)
        Path(directory).chmod(0o755)
    assert str(path) in message
    assert "write" in message


def test_a_locked_file_is_no_reason_not_to_start(path):
    make_file(path)
    with other_connection(path) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        new_broker(path).check()


def modes(directory):
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in directory.iterdir()}


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest_twisted.ensureDeferred
async def test_new_files_can_be_read_by_their_owner_only(tmp_path, usual_umask):
    async with running(tmp_path / "log") as broker:
        await within(broker.publish(record("t")))
        assert modes(tmp_path) == dict.fromkeys(["log", "log-wal", "log-shm"], 0o600)


@pytest_twisted.ensureDeferred
async def test_a_file_that_is_there_keeps_its_mode_and_gives_it_to_the_others(tmp_path, usual_umask):
    path = tmp_path / "log"
    path.touch()
    path.chmod(0o640)
    async with running(path) as broker:
        await within(broker.publish(record("t")))
        assert modes(tmp_path) == dict.fromkeys(["log", "log-wal", "log-shm"], 0o640)


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA application_id =",
        "PRAGMA user_version =",
        "CREATE TABLE topic",
        "CREATE TABLE record",
        "CREATE TABLE identity",
        "CREATE INDEX",
        "CREATE TABLE indexed_identity",
        "COMMIT",
    ],
)
def test_the_tables_are_made_as_a_whole_or_not_at_all(path, statement, monkeypatch):
    class Failing(sqlite3.Connection):
        has_begun = False

        def execute(self, sql, *arguments):
            self.has_begun |= sql == "BEGIN IMMEDIATE"
            if self.has_begun and statement in sql:
                raise sqlite_error("disk I/O error")
            return super().execute(sql, *arguments)

    path.touch()
    with monkeypatch.context() as patched:
        patched.setattr(database.sqlite3, "connect", partial(sqlite3.connect, factory=Failing))
        assert "I/O error" in rejected_at_start(path)
    with other_connection(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (0,)
        assert connection.execute("SELECT * FROM sqlite_master").fetchall() == []
    new_broker(path).check()
    assert stored(path) == []


def test_a_file_whose_table_of_identities_is_missing_is_rejected(path):
    make_file(path)
    with other_connection(path) as connection:
        connection.execute("DROP TABLE identity")
    assert "no such table: identity" in rejected_at_start(path)
