"""Another program that has the file locked for writing, and the calls that wait for it together."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest

from sampleapp.brokers.shared.deliveries import Deliveries
from sampleapp.brokers.shared.work import Operation
from sampleapp.brokers.sqlite import database
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.rows import TimeSearch
from sampleapp.brokers.sqlite.store import Store
from sampleapp_testing import identity
from tests.support.brokers import record
from tests.support.sqlite import other_connection, sqlite_error

TRY_AGAIN_S = 0.002
PATIENCE_S, SHORT_S = 0.3, 0.1
PATIENT, SHORT = round(PATIENCE_S / TRY_AGAIN_S), round(SHORT_S / TRY_AGAIN_S)

WRITES = {
    "publish": lambda store: store.append([record("t")]),
    "pull": lambda store: store.work([Operation(("t", "g"), lambda each: each.pull(1), is_pull=True)]),
    "probe": Store.probe,
    "deletion of identities": Store.forget_some,
    "times of blocks": lambda store: store.keep_times("id", [TimeSearch(None, 0, 4096, 5, 9000)]),
}
READS = {
    "page": lambda store: store.read("t", 0, max_records=9, max_bytes=999),
    "topics": lambda store: store.topics(after="", count=9),
    "changes": Store.changes,
    "backlog": lambda store: store.work([Operation(("t", "g"), Deliveries.backlog, is_read=True)]),
}


class Tries:
    """Counts the tries to lock the file, each of which takes as long as the pause between two."""

    def __init__(self, monkeypatch):
        self.count = 0
        self._passed_s = itertools.count()
        monkeypatch.setattr(
            database, "time", SimpleNamespace(monotonic=lambda: TRY_AGAIN_S * next(self._passed_s))
        )

    def rest(self):
        """Let a second pass."""
        for _ in range(round(1 / TRY_AGAIN_S)):
            next(self._passed_s)

    def of(self, call, store):
        """Return how often a call has tried, in vain, to lock the file."""
        self.count = 0
        with pytest.raises(StoreError, match="locked"):
            call(store)
        return self.count


@pytest.fixture
def tries(monkeypatch):
    counted = Tries(monkeypatch)
    connect = sqlite3.connect

    class Counted(sqlite3.Connection):
        def execute(self, statement, *arguments):
            counted.count += statement == "BEGIN IMMEDIATE"
            return super().execute(statement, *arguments)

    monkeypatch.setattr(database.sqlite3, "connect", lambda *a, **o: connect(*a, **o, factory=Counted))
    return counted


@pytest.fixture
def store(path, tries):
    # Each identity has expired at the next look. The newest one is kept.
    now = itertools.count(step=1000)
    with closing(Store(path=path, patience_s=PATIENCE_S, identity_window_s=1, now=lambda: next(now))) as it:
        for name in ("a", "b"):
            it.append([record("t", identity=identity("t", name))])
        yield it


@pytest.mark.parametrize("first", WRITES)
def test_only_one_call_waits_long_for_a_lock_whichever_comes_first(path, store, tries, first):
    with other_connection(path) as other:
        other.execute("BEGIN IMMEDIATE")
        assert PATIENT <= tries.of(WRITES[first], store) <= PATIENT + 1
        assert [tries.of(write, store) for write in WRITES.values()] == [1] * len(WRITES)
        # One in each second waits a little, and others fail at once.
        for _ in range(3):
            tries.rest()
            counts = [tries.of(write, store) for write in WRITES.values()]
            assert SHORT <= counts[0] < PATIENT
            assert counts[1:] == [1] * (len(WRITES) - 1)
            for read in READS.values():
                read(store)
        other.execute("ROLLBACK")
        WRITES["publish"](store)
        # That was the end of the lock. The next one is waited for again.
        other.execute("BEGIN IMMEDIATE")
        assert tries.of(WRITES[first], store) >= PATIENT


def test_every_call_fails_at_once_while_a_file_that_cannot_be_opened_is_locked(store, tries, monkeypatch):
    store.close()

    def prepare(*_):
        tries.count += 1
        raise sqlite_error("database is locked")

    monkeypatch.setattr(database, "_prepare", prepare)
    assert PATIENT <= tries.of(READS["page"], store) <= PATIENT + 1
    assert {tries.of(each, store) for each in (*READS.values(), *WRITES.values())} == {1}
