"""Problems of the file at the start."""

# ruff: noqa: ASYNC240 -- a test may look at its few small files while the reactor waits

from __future__ import annotations

import os
import re
import sqlite3
import stat
import tempfile
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest
import pytest_twisted

from sampleapp.brokers.sqlite import opening
from sampleapp.brokers.sqlite.opening import SCHEMA_VERSION
from sampleapp.errors import (
    StartUpError,
)
from sampleapp.model import ReadRequest, ReplayedRecord
from sampleapp.testing import identity
from tests.support import sqlite_process
from tests.support.brokers import outcomes, record, within
from tests.support.sqlite import in_process, make_file, new_broker, other_connection, running, stored


def refused_at_start(path):
    with pytest.raises(StartUpError) as caught:
        new_broker(path).check()
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_check_makes_no_file_since_who_checks_may_be_somebody_else_than_who_writes(path):
    new_broker(path).check()
    assert list(path.parent.iterdir()) == []


@pytest_twisted.ensureDeferred
async def test_a_file_that_could_not_be_made_is_refused():
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


def test_a_directory_is_refused(tmp_path):
    assert "is a directory" in refused_at_start(tmp_path)


def test_a_missing_directory_is_refused_and_not_created(tmp_path):
    assert "does not exist" in refused_at_start(tmp_path / "missing" / "log")
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    assert "is not a directory" in refused_at_start(tmp_path / "file" / "log")


def test_a_path_that_is_no_regular_file_is_refused():
    assert "not a regular file" in refused_at_start(Path("/dev/null"))


@pytest.mark.parametrize("garbage", [b"garbage", b"garbage" * 5000], ids=["short", "long"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(path, garbage):
    path.write_bytes(garbage)
    assert "is not a SQLite database" in refused_at_start(path)
    assert path.read_bytes() == garbage


@pytest.mark.parametrize("mark", ["CREATE TABLE theirs (a)", "PRAGMA application_id = 7"])
def test_the_database_of_another_program_is_refused_and_left_alone(path, mark):
    with other_connection(path) as connection:
        connection.execute(mark)
    before = path.read_bytes()
    assert "another program" in refused_at_start(path)
    assert path.read_bytes() == before


def test_a_file_of_a_newer_version_is_refused_and_left_alone(path):
    make_file(path)
    with other_connection(path) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    assert "was written by a newer version" in refused_at_start(path)
    with other_connection(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)


def test_a_file_whose_tables_are_missing_is_refused(path):
    make_file(path)
    with other_connection(path) as connection:
        connection.execute("DROP TABLE record")
    assert "no such table: record" in refused_at_start(path)


@pytest.mark.parametrize("writable", ["nothing", "directory"])
@pytest_twisted.ensureDeferred
async def test_a_file_that_may_not_be_written_to_is_refused(writable):
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


def make_old_file(path, version):
    with other_connection(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for each in range(1, version + 1):
            schema = files("sampleapp.brokers.sqlite").joinpath("schema", f"v{each}.sql")
            connection.executescript(schema.read_text())
        connection.executemany("INSERT INTO topic (name, next_offset) VALUES (?, ?)", [("t", 2), ("u", 0)])
        connection.executemany("INSERT INTO record VALUES (1, ?, 0, NULL, ?, NULL)", [(0, b"0"), (1, b"1")])


old_versions = pytest.mark.parametrize("old_version", range(1, SCHEMA_VERSION))


def version_and_topics(path):
    with other_connection(path) as connection:
        ((version,),) = connection.execute("PRAGMA user_version")
        return version, connection.execute("SELECT * FROM topic ORDER BY id").fetchall()


@old_versions
def test_an_old_file_is_brought_up_to_date_and_keeps_its_records(path, old_version):
    make_old_file(path, old_version)
    _, before = version_and_topics(path)
    new_broker(path).check()
    version, topics = version_and_topics(path)
    assert version == SCHEMA_VERSION
    if old_version > 1:
        # Readers know a topic by its id.
        assert topics == before
    assert [each[:3] for each in topics] == [(1, "t", 2), (2, "u", 0)]
    ids = [each[3] for each in topics]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)
    assert stored(path) == [("t", 0, None, b"0"), ("t", 1, None, b"1")]
    new_broker(path).check()
    assert version_and_topics(path) == (version, topics)


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA user_version = 2",
        "ALTER",
        "UPDATE topic",
        "CREATE TRIGGER",
        "PRAGMA user_version = 3",
        "CREATE TABLE identity",
        "CREATE INDEX",
        "COMMIT",
    ],
)
def test_a_file_is_brought_up_to_date_as_a_whole_or_not_at_all(path, statement, monkeypatch):
    make_old_file(path, 1)
    before = version_and_topics(path)

    class Failing(sqlite3.Connection):
        has_begun = False

        def execute(self, sql, *arguments):
            self.has_begun |= sql == "BEGIN IMMEDIATE"
            if self.has_begun and statement in sql:
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(opening.sqlite3, "connect", partial(sqlite3.connect, factory=Failing))
        assert "I/O error" in refused_at_start(path)
    assert version_and_topics(path) == before
    new_broker(path).check()
    assert version_and_topics(path)[0] == SCHEMA_VERSION


@old_versions
@pytest_twisted.ensureDeferred
async def test_many_that_bring_a_file_up_to_date_at_the_same_moment_all_end_well(path, old_version):
    make_old_file(path, old_version)
    brokers = [new_broker(path, patience_s=20) for _ in range(4)]
    for each in brokers:
        each.start()
    request = ReadRequest(topic="t", limit=5, max_bytes=99)
    found = await outcomes([each.read(request) for each in brokers])
    assert len({each.topic_id for each in found}) == 1
    assert {each.positions[0] for each in found} == {2}
    await outcomes([each.stop(deadline_s=20) for each in brokers])


@old_versions
@pytest_twisted.ensureDeferred
async def test_an_old_file_takes_records_that_are_sent_again_and_continues_its_offsets(path, old_version):
    make_old_file(path, old_version)
    sent = record("t", b"2", identity=identity("t"))
    async with running(path) as broker:
        first, again = await outcomes([broker.publish(sent), broker.publish(sent)])
    assert (first.offset, again.offset) == (2, 2)
    assert isinstance(again, ReplayedRecord)
    assert stored(path) == [("t", 0, None, b"0"), ("t", 1, None, b"1"), ("t", 2, None, b"2")]


def test_a_file_whose_table_of_identities_is_missing_is_refused(path):
    make_file(path)
    with other_connection(path) as connection:
        connection.execute("DROP TABLE identity")
    assert "no such table: identity" in refused_at_start(path)
