"""A model of the identities in a file that several stores share, with faults and a clock that is set."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from sampleapp.brokers.sqlite import rows, store
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.store import Store
from sampleapp.errors import RecordTooLarge
from sampleapp.model import ReplayedRecord
from sampleapp_testing import identity
from tests.support.brokers import record
from tests.support.examples import examples
from tests.support.sqlite import OwnConnection, other_connection

WINDOW_S = 100
LARGE = b"large"

which_store = st.integers(0, 2)
orders = st.permutations(range(3))
names = st.lists(st.integers(0, 11), min_size=1, max_size=6)
messages = st.sampled_from(["disk I/O error", "database or disk is full", "database is locked"])
statements = st.sampled_from(
    [
        "SELECT id, number FROM identity",
        "SELECT number FROM identity",
        "SELECT id, fingerprint",
        "INSERT INTO identity",
        "INSERT OR IGNORE INTO indexed_identity",
        "ROLLBACK TO",
        "RELEASE",
        "COMMIT",
    ]
)


class IdentitiesMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(rows, "_MOST_RECENT", 3)
        self._patch.setattr(store, "_FORGOTTEN_AT_ONCE", 3)
        self._patch.setattr(rows, "_insert_rows", self._rejecting(rows._insert_rows))  # noqa: SLF001 -- it calls SQLite
        self._patch.setattr(store, "open_file", self._open_without_syncs(store.open_file))
        self._connections = OwnConnection(self._patch)
        self._directory = tempfile.TemporaryDirectory()
        self._path = Path(self._directory.name, "log")
        self._time_s = 1_700_000_000
        self._stores = [self._new_store() for _ in range(3)]
        self._next_offset = 0
        self._known = []
        """The identities in the order of their numbers: id, offset, and when they were stored."""
        self._stores[0].probe()

    def teardown(self):
        for each in self._stores:
            each.close()
        self._patch.undo()
        self._directory.cleanup()

    @staticmethod
    def _open_without_syncs(open_file):
        """No example loses power, and hundreds of syncs take long on a busy disk."""

        def open_it(*arguments, **options):
            connection = open_file(*arguments, **options)
            connection.execute("PRAGMA synchronous = OFF")
            return connection

        return open_it

    @staticmethod
    def _rejecting(insert_rows):
        """Reject large values, as SQLite does, after it has inserted other rows."""

        def insert(connection, some):
            insert_rows(connection, some)
            if any(LARGE in row for row in some):
                raise sqlite3.DataError("string or blob too big")

        return insert

    def _new_store(self):
        return Store(path=self._path, patience_s=0, identity_window_s=WINDOW_S, now=lambda: self._time_s)

    def _counts(self, stored_ms):
        return stored_ms > 1000 * (self._time_s - WINDOW_S)

    def _in_file(self):
        with other_connection(self._path) as connection:
            return connection.execute("SELECT id, offset, stored_ms FROM identity ORDER BY number").fetchall()

    def _expected(self, sent):
        """Return the outcomes of records, and all identities after them."""
        known, outcomes, offset = [*self._known], [], self._next_offset
        for each in sent:
            found = [
                at for id_, at, stored_ms in known if id_ == each.identity.id and self._counts(stored_ms)
            ]
            if found:
                outcomes.append(("replayed", found[-1]))
            elif each.value == LARGE:
                outcomes.append(("refused", None))
            else:
                outcomes.append(("new", offset))
                known.append((each.identity.id, offset, 1000 * self._time_s))
                offset += 1
        return outcomes, known, offset

    @staticmethod
    def _sent(names, large):
        return [
            record("t", LARGE if at == large else b"v", identity=identity("t", f"{name}"))
            for at, name in enumerate(names)
        ]

    @staticmethod
    def _found(outcome):
        if isinstance(outcome, RecordTooLarge):
            return "refused", None
        return "replayed" if isinstance(outcome, ReplayedRecord) else "new", outcome.offset

    @rule(order=orders, names=names, large=st.none() | st.integers(0, 4))
    def send_to_each(self, order, names, large):
        for at in order:
            sent = self._sent(names, large)
            expected, self._known, self._next_offset = self._expected(sent)
            assert [self._found(each) for each in self._stores[at].append(sent)] == expected
            assert self._in_file() == self._known

    @rule(
        order=orders,
        names=names,
        later=names,
        large=st.none() | st.integers(0, 4),
        fault=st.tuples(statements, messages, st.integers(0, 2), st.booleans()),
    )
    def fail(self, order, names, later, large, fault):
        *_, at = order
        statement, message, after, rolls_back = fault
        sent = self._sent(names, large)
        expected, known, next_offset = self._expected(sent)
        self._connections.fail_next(statement, message, after=after)
        if not rolls_back:
            self._connections.fail_next("ROLLBACK", message)
        try:
            assert [self._found(each) for each in self._stores[at].append(sent)] == expected
            self._known, self._next_offset = known, next_offset
        except StoreError:
            pass
        finally:
            self._connections.fail_no_more()
        assert self._in_file() == self._known
        self.send_to_each(order, later, None)

    @rule(order=orders, names=names, later=names)
    def fail_after_the_commit(self, order, names, later):
        *_, at = order
        sent = self._sent(names, None)
        _, self._known, self._next_offset = self._expected(sent)
        require_intact = store.WriteAheadLog.require_intact

        def fail(wal, connection, *, committed=False):
            if committed:
                raise OSError("made up")
            return require_intact(wal, connection)

        with self._patch.context() as patch:
            patch.setattr(store.WriteAheadLog, "require_intact", fail)
            with pytest.raises(StoreError):
                self._stores[at].append(sent)
        assert self._in_file() == self._known
        self.send_to_each(order, later, None)

    @rule(at=which_store)
    def restart(self, at):
        self._stores[at].close()
        self._stores[at] = self._new_store()

    @rule(seconds=st.sampled_from([60, 100, 1000, -60, -1000]))
    def set_clock(self, seconds):
        self._time_s += seconds

    @rule(at=which_store)
    def forget_some(self, at):
        self._stores[at].forget_some()
        now_ms, far_ahead_ms = 1000 * self._time_s, 1000 * (self._time_s + WINDOW_S)
        left = self._in_file()
        ends = {(id_, offset): stored_ms for id_, offset, stored_ms in left}
        for id_, offset, stored_ms in self._known:
            dated = {stored_ms, now_ms} if stored_ms > far_ahead_ms else {stored_ms}
            if self._counts(stored_ms) or (id_, offset) in ends:
                assert ends.pop((id_, offset)) in dated
        assert ends == {}
        assert left[-1:] == [] or left[-1][:2] == self._known[-1][:2]
        assert bool(left) == bool(self._known)
        self._known = left


TestIdentities = IdentitiesMachine.TestCase
TestIdentities.settings = examples(20, stateful_step_count=25)
