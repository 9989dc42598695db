"""Detection of a ``-wal`` file that was deleted, replaced or overwritten under a running service."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import pytest_twisted
from twisted.logger import LogLevel, formatEvent

from sampleapp.brokers.sqlite.database import WriteAheadLog
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.store import Store
from sampleapp.errors import BrokerUnavailable
from tests.support import sqlite_process
from tests.support.brokers import Recorder, eventually, record, settled, within
from tests.support.logs import logged
from tests.support.sqlite import running


def wal(path):
    return Path(f"{path}-wal")


def values(path):
    """Return the values that the next start finds, by offset."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return dict(connection.execute("SELECT offset, value FROM record").fetchall())


class Service:
    """A process that publishes when it is told to."""

    def __init__(self, path):
        self._process, self._pipe = sqlite_process.start(sqlite_process.serve, path, "t")
        self.acknowledged = {}

    def publish(self):
        self._pipe.send("publish")
        report = self._pipe.recv()
        if report["error"] is None:
            self.acknowledged[report["offset"]] = b"%d" % report["n"]
        return report

    def kill(self):
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def stop(self):
        self._pipe.send(None)
        self._process.join()
        assert self._process.exitcode == 0


@contextmanager
def service(path, count):
    running = Service(path)
    try:
        for _ in range(count):
            assert running.publish()["error"] is None
        yield running
    finally:
        running.kill()


def deleted(path, _):
    wal(path).unlink()


def replaced_by_an_older_copy(path, older):
    older.replace(wal(path))


def replaced_by_an_empty_file(path, _):
    wal(path).unlink()
    wal(path).touch()


MOVED = [deleted, replaced_by_an_older_copy, replaced_by_an_empty_file]


@pytest.mark.parametrize("tamper", MOVED)
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_after_the_wal_was_moved_no_record_is_taken_and_what_was_acknowledged_is_in_the_database(
    path, tamper, end
):
    with service(path, 50) as running:
        older = shutil.copy(wal(path), path.with_name("older"))
        for _ in range(50):
            assert running.publish()["error"] is None
        tamper(path, Path(older))
        for _ in range(3):
            rejected = running.publish()
            assert rejected["error"] == "BrokerUnavailable"
            (reason,) = rejected["reasons"]
            assert reason.startswith(f"{wal(path)} was ")
            assert f"All acknowledged records were copied to {path}. " in reason
            assert "restart the service" in reason
        getattr(running, end)()
        # No other file is needed.
        assert not wal(path).exists()
        assert values(path) == running.acknowledged


def test_a_wal_that_was_moved_while_nobody_published_is_noticed_by_a_clean_stop(path):
    with service(path, 50) as running:
        wal(path).unlink()
        running.stop()
        assert values(path) == running.acknowledged


def test_after_a_restart_records_are_taken_again(path):
    with service(path, 50) as running:
        wal(path).unlink()
        assert running.publish()["error"] == "BrokerUnavailable"
        running.stop()
    with service(path, 1) as again:
        assert again.acknowledged == {50: b"0"}


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_lost_when_the_database_is_moved_the_process_killed_and_the_database_put_back(
    path, replaced
):
    with service(path, 50) as running:
        aside = path.rename(path.with_name("aside"))
        if replaced:
            path.touch()
        assert running.publish()["error"] == "BrokerUnavailable"
        running.kill()
        aside.replace(path)
        assert values(path) == running.acknowledged


@pytest_twisted.ensureDeferred
async def test_a_deleted_wal_is_one_line_in_the_log_while_a_topic_is_followed(path):
    recorder = Recorder()
    async with running(path) as broker:
        following = broker.follow(topic="t", observer=recorder)
        assert (await within(broker.publish(record("t")))).offset == 0
        await eventually(lambda: recorder.records)
        with logged(LogLevel.warn) as warnings, logged(LogLevel.error) as errors:
            wal(path).unlink()
            await eventually(lambda: not broker.health().ready)
            # Also before anybody publishes.
            assert broker.health().public_reasons == (
                "Records cannot be stored until the service is restarted.",
            )
            (end,) = await settled(broker, [record("t")])
        assert isinstance(end, BrokerUnavailable)
        assert str(end) == (
            "The broker cannot store records until the service is restarted; this one was not stored."
        )
        assert warnings == []
        (event,) = errors
        line = formatEvent(event)
        assert f"{wal(path)} was deleted while it was in use, and no more records are stored" in line
        assert "still trying" not in line
        assert (
            following.unavailable_reason()
            == "The stored records cannot be read until the service is restarted."
        )
        assert following.is_lasting()
        assert broker.health().public_reasons == ("Records cannot be stored until the service is restarted.",)


def zeroed(path, _):
    size = wal(path).stat().st_size
    with wal(path).open("r+b") as file:
        file.write(bytes(size))


def emptied(path, _):
    os.truncate(wal(path), 0)


def overwritten_by_an_older_copy(path, older):
    shutil.copyfile(older, wal(path))


@pytest_twisted.ensureDeferred
async def test_a_wal_that_was_emptied_just_before_a_clean_stop_is_one_line_in_the_log(path):
    with logged(LogLevel.error) as errors:
        async with running(path) as broker:
            assert (await within(broker.publish(record("t")))).offset == 0
            emptied(path, None)
    (event,) = errors
    assert f"{wal(path)} was overwritten or cut short" in formatEvent(event)


@pytest.mark.parametrize("tamper", [zeroed, emptied, overwritten_by_an_older_copy])
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_when_the_wal_is_overwritten_nothing_more_is_answered_and_the_database_is_not_damaged(
    path, tamper, end
):
    with service(path, 20) as running:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint")
        for _ in range(20):
            running.publish()
        older = shutil.copy(wal(path), path.with_name("older"))
        for _ in range(20):
            running.publish()
        tamper(path, Path(older))
        for _ in range(3):
            rejected = running.publish()
            assert rejected["error"] == "BrokerUnavailable"
            assert str(wal(path)) in rejected["reasons"][0]
            assert "Restore a backup, or restart the service" in rejected["reasons"][0]
        getattr(running, end)()
        found = values(path)
    assert found == {n: running.acknowledged[n] for n in found}
    assert len(found) >= 20


def test_two_services_on_one_file_both_stop_when_its_wal_is_deleted(path):
    with service(path, 20) as one, service(path, 20) as other:
        wal(path).unlink()
        # This one cannot know to which file the other has written since.
        assert "may be lost" in one.publish()["reasons"][0]
        assert "All acknowledged records were copied" in other.publish()["reasons"][0]
        one.kill()
        other.kill()
        assert values(path) == {**one.acknowledged, **other.acknowledged}
        assert len(values(path)) == 40


def append(store, count):
    return store.append([record("t", b"%d" % n) for n in range(count)])


@pytest.fixture
def store(path):
    store = Store(path=path, patience_s=0)
    append(store, 10)
    yield store
    store.close()


def test_what_an_operators_checkpoint_does_to_the_wal_is_no_fault(path, store):
    for mode in ("PASSIVE", "FULL", "RESTART", "TRUNCATE", "TRUNCATE"):
        for writes in (False, True):
            with closing(sqlite3.connect(path)) as connection:
                if writes:
                    connection.execute("DELETE FROM record WHERE offset = 0")
                    connection.commit()
                connection.execute(f"PRAGMA wal_checkpoint({mode})")
            append(store, 1)
            append(store, 1)
    store.read("t", 0, max_records=1, max_bytes=1)


@pytest.mark.parametrize("name", ["fstat", "pread"])
def test_a_checkpoint_while_the_wal_is_being_checked_is_no_fault(path, store, monkeypatch, name):
    real = getattr(os, name)

    def with_checkpoint(*arguments):
        monkeypatch.undo()
        result = real(*arguments)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return result

    monkeypatch.setattr(os, name, with_checkpoint)
    store.read("t", 0, max_records=1, max_bytes=1)
    append(store, 1)


def test_a_large_transaction_that_is_taken_back_is_no_fault(path, store):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
    too_large = record("t", bytes(1_000_000_001))
    store.append([*(record("t", bytes(1_000_000)) for _ in range(8)), too_large])
    append(store, 1)


def test_another_connection_that_opens_and_closes_the_file_is_no_fault(path, store):
    for _ in range(3):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("SELECT count(*) FROM record").fetchone()
        append(store, 1)
        store.read("t", 0, max_records=1, max_bytes=1)
    store.close()
    # The last connection deletes the file when it closes.
    assert not wal(path).exists()
    append(store, 1)


def test_a_path_that_cannot_be_read_is_an_error_of_the_store_and_no_loss(path, store, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(WriteAheadLog, "require_intact", denied)
        with pytest.raises(StoreError, match="cannot be opened"):
            append(store, 1)
    append(store, 1)
    assert len(values(path)) == 11


def test_after_another_program_has_written_the_records_of_a_deleted_wal_are_copied_as_well(path, store):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM record WHERE offset = 0")
        connection.commit()
    store.changes()
    wal(path).unlink()
    with pytest.raises(StoreError, match="All acknowledged records were copied"):
        append(store, 1)
    assert sorted(values(path)) == list(range(1, 10))


def zeroed_header(path, _):
    with wal(path).open("r+b") as file:
        file.write(bytes(32))


@pytest.mark.parametrize("tamper", [deleted, zeroed_header])
def test_a_wal_that_is_deleted_during_a_transaction_makes_its_outcome_unknown(
    path, store, monkeypatch, tamper
):
    check = WriteAheadLog.require_intact

    def then_tamper(*arguments, **options):
        check(*arguments, **options)
        monkeypatch.undo()
        tamper(path, None)

    monkeypatch.setattr(WriteAheadLog, "require_intact", then_tamper)
    with pytest.raises(StoreError) as caught:
        append(store, 1)
    assert caught.value.publish_error().possibly_published
    with pytest.raises(StoreError, match="restart the service"):
        append(store, 1)
    if tamper is deleted:
        # Without its header, SQLite may see nothing of the file.
        assert len(values(path)) == 11


def test_while_records_cannot_be_copied_to_the_database_it_is_tried_again(path, store):
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM record").fetchone()
        append(store, 1)
        wal(path).unlink()
        for _ in range(2):
            with pytest.raises(StoreError, match=r"cannot be copied to .* Do not stop the service"):
                append(store, 1)
        reader.execute("ROLLBACK")
        with pytest.raises(StoreError, match="All acknowledged records were copied"):
            append(store, 1)
    assert len(values(path)) == 11


def test_a_file_that_lost_what_was_stored_while_it_was_closed_is_rejected(path, store):
    copy = path.with_name("copy")
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(copy)) as into:
        connection.backup(into)
    append(store, 1)
    store.close()
    path.write_bytes(copy.read_bytes())
    with pytest.raises(StoreError, match="has lost records"):
        append(store, 1)


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM record").fetchone()
print("reads", flush=True)
sys.stdin.read()
"""


def test_a_wal_that_has_grown_for_a_long_reader_is_cut_when_that_has_ended(path):
    large = [record("t", bytes(1024 * 1024)) for _ in range(4)]
    with closing(Store(path=path, patience_s=5)) as store:
        store.append([record("t")])
        with subprocess.Popen(
            [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as reader:
            assert reader.stdout.readline() == b"reads\n"
            for _ in range(6):
                store.append(large)
            assert store.wal_bytes == wal(path).stat().st_size > 24 * 1024 * 1024
            reader.stdin.close()
        # The first message copies the log into the file, and the next one begins it again.
        for _ in range(2):
            store.append([record("t")])
        assert store.wal_bytes == wal(path).stat().st_size <= 16 * 1024 * 1024
