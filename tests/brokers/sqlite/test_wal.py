"""What becomes of records when somebody removes or overwrites the ``-wal`` file of a running service."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import pytest_twisted
from twisted.logger import LogLevel, formatEvent

from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.store import Store
from sampleapp.brokers.sqlite.wal import WriteAheadLog
from tests.support import sqlite_process
from tests.support.brokers import Recorder, eventually, record, within
from tests.support.logs import logged
from tests.support.sqlite import running


def wal(path):
    return Path(f"{path}-wal")


def values(path):
    """What the next start finds, by offset."""
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

    def publish_until(self, stored):
        """Publish until one is stored, or until one is refused; time is the process's own."""
        while True:
            report = self.publish()
            if (report["error"] is None) is stored:
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
@pytest.mark.parametrize("end", ["at once", "later", "clean"])
def test_nothing_is_lost_when_the_wal_is_moved_and_the_process_killed(path, tamper, end):
    with service(path, 50) as running:
        older = shutil.copy(wal(path), path.with_name("older"))
        for _ in range(50):
            assert running.publish()["error"] is None
        tamper(path, Path(older))
        refused = running.publish()
        assert refused["error"] == "BrokerUnavailable"
        assert f"{wal(path)} was " in refused["reasons"][0]
        if end != "at once":
            assert running.publish_until(stored=True)["offset"] == 100
        if end == "clean":
            running.stop()
            # After a clean stop the one file is everything.
            wal(path).unlink(missing_ok=True)
        else:
            running.kill()
        assert values(path) == running.acknowledged


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
async def test_that_a_deleted_wal_was_put_back_is_said_in_the_log_while_somebody_follows(path):
    recorder = Recorder()
    async with running(path) as broker:
        broker.follow(topic="t", observer=recorder)
        assert (await within(broker.publish(record("t")))).offset == 0
        await eventually(lambda: recorder.records)
        with logged(LogLevel.warn) as warnings, logged(LogLevel.error) as errors:
            wal(path).unlink()
            await eventually(lambda: warnings or errors)
        assert wal(path).exists()
        # A following that reads at that moment meets it first.
        (event,) = warnings or errors
        assert f"{wal(path)} was deleted while it was in use; what it held was put back" in formatEvent(event)


def zeroed(path, _):
    size = wal(path).stat().st_size
    with wal(path).open("r+b") as file:
        file.write(bytes(size))


def emptied(path, _):
    os.truncate(wal(path), 0)


def overwritten_by_an_older_copy(path, older):
    shutil.copyfile(older, wal(path))


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
            refused = running.publish()
            assert refused["error"] == "BrokerUnavailable"
            assert str(wal(path)) in refused["reasons"][0]
            assert "Restore a backup" in refused["reasons"][0]
        getattr(running, end)()
        found = values(path)
    assert found == {n: running.acknowledged[n] for n in found}
    assert len(found) >= 20


def test_two_services_on_one_file_lose_nothing_when_its_wal_is_deleted(path):
    with service(path, 20) as one, service(path, 20) as other:
        wal(path).unlink()
        for _ in range(3):
            one.publish_until(stored=True)
            other.publish_until(stored=True)
        one.kill()
        other.kill()
        found = values(path)
        assert found == {**one.acknowledged, **other.acknowledged}
        assert len(one.acknowledged) + len(other.acknowledged) == len(found)


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


def test_a_large_transaction_that_is_taken_back_is_no_fault(path, store):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
    too_large = record("t", bytes(1_000_000_001))
    store.append([*(record("t", bytes(1_000_000)) for _ in range(8)), too_large])
    append(store, 1)


def test_what_is_deleted_between_two_looks_of_one_transaction_is_noticed(path, store, monkeypatch):
    check = WriteAheadLog.require_whole

    def then_delete(*arguments):
        check(*arguments)
        monkeypatch.undo()
        wal(path).unlink()

    monkeypatch.setattr(WriteAheadLog, "require_whole", then_delete)
    with pytest.raises(StoreError) as caught:
        append(store, 1)
    assert caught.value.publish_error().possibly_published
    assert wal(path).stat().st_size > 0
    append(store, 1)
    assert len(values(path)) == 12


def test_while_the_wal_cannot_be_put_back_it_is_tried_again(path, store):
    obstacle = Path(f"{path}-wal-copy")
    obstacle.mkdir()
    wal(path).unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match="could not be put back"):
            append(store, 1)
    obstacle.rmdir()
    with pytest.raises(StoreError, match="was put back"):
        append(store, 1)
    append(store, 1)
    assert len(values(path)) == 11


def test_a_file_that_lost_what_was_stored_while_it_was_closed_is_refused(path, store):
    copy = path.with_name("copy")
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(copy)) as into:
        connection.backup(into)
    append(store, 1)
    store.close()
    path.write_bytes(copy.read_bytes())
    with pytest.raises(StoreError, match="has lost records"):
        append(store, 1)
