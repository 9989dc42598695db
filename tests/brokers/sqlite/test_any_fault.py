"""Any exception at any seam: each caller is answered, nothing is kept, and the broker goes on."""

from __future__ import annotations

import sqlite3
import tempfile
from copy import copy
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_twisted
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from sampleapp.brokers.shared.health import HealthTracker
from sampleapp.brokers.sqlite import database, reader, store, writer
from sampleapp.errors import PublishError
from sampleapp.model import Lease, ReadRequest, ReadResult, RecordMetadata
from tests.support.brokers import Recorder, eventually, everything, outcomes, record, within
from tests.support.examples import examples
from tests.support.faster_time import FasterReactor
from tests.support.sqlite import new_broker, sqlite_error

KINDS = [
    RuntimeError("made up"),
    TypeError("made up"),
    AssertionError("made up"),
    MemoryError("made up"),
    OSError(5, "Input/output error"),
    PermissionError(13, "Permission denied"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "made up"),
    CancelledError("made up"),
    sqlite_error("disk I/O error"),
    sqlite_error("database is locked"),
    sqlite_error("database or disk is full"),
    sqlite_error("database disk image is malformed"),
    sqlite3.IntegrityError("constraint failed"),
    sqlite3.ProgrammingError("made up"),
    sqlite3.InterfaceError("made up"),
    sqlite3.Warning("made up"),
]
UNCOMMITTED = ("database is locked", "database or disk is full")
"""Of these, SQLite promises that nothing was committed."""

BEFORE, AFTER = False, True
SEAMS = {
    "thread": (database.PrivateThread, "run", BEFORE),
    "append": (store.Store, "append", BEFORE),
    "appended": (store.Store, "append", AFTER),
    "open": (store, "open_file", BEFORE),
    "opened": (database.WriteAheadLog, "__init__", BEFORE),
    "encode": (store, "insert", BEFORE),
    "inserted": (store, "insert", AFTER),
    "wal": (database.WriteAheadLog, "require_intact", BEFORE),
    "roll back": (database.WriteAheadLog, "remember", BEFORE),
    "probe": (store.Store, "probe", BEFORE),
    "weigh": (writer.PublishMany, "weigh", BEFORE),
    "take one": (writer.PublishOne, "take", BEFORE),
    "take many": (writer.PublishMany, "take", BEFORE),
    "settle one": (writer.PublishOne, "settle", BEFORE),
    "settle many": (writer.PublishMany, "settle", BEFORE),
    "settled many": (writer.PublishMany, "settle", AFTER),
    "stored": (reader.Reader, "stored", BEFORE),
    "healthy": (HealthTracker, "mark_healthy", BEFORE),
    "read": (store.Store, "read", BEFORE),
    "section": (store.Store, "section", BEFORE),
    "changes": (store.Store, "changes", BEFORE),
    "work": (store.Store, "work", BEFORE),
    "worked": (store.Store, "work", AFTER),
    "find group": (store, "find_group", BEFORE),
}
STATEMENTS = ["BEGIN IMMEDIATE", "COMMIT", "COMMITTED", "SELECT", "INSERT", "PRAGMA"]
OBSERVER = ["record_received", "caught_up"]


class Faulty(NamedTuple):
    seam: str
    kind: Exception
    passes: int
    """How often it works before."""
    times: int


class Faults:
    """Raises exceptions at one seam."""

    def __init__(self, monkeypatch):
        self.disarm()
        open_file = store.open_file
        monkeypatch.setattr(store, "open_file", lambda *a, **options: _Tapped(open_file(*a, **options), self))
        for seam, (owner, name, is_after) in SEAMS.items():
            monkeypatch.setattr(owner, name, self._tapped(seam, getattr(owner, name), is_after))

    def arm(self, faulty):
        self._armed, self._met, self.raised = faulty, 0, 0

    def disarm(self):
        self._armed = None

    def meet(self, seam):
        armed = self._armed
        if armed is None or seam != armed.seam:
            return
        self._met += 1
        if armed.passes < self._met <= armed.passes + armed.times:
            self.raised += 1
            # A new one, since tracebacks grow.
            raise copy(armed.kind)

    def _tapped(self, seam, original, is_after):
        def tapped(*arguments, **options):
            if not is_after:
                self.meet(seam)
            result = original(*arguments, **options)
            if is_after:
                self.meet(seam)
            return result

        return tapped


class _Tapped:
    """The broker's connection."""

    def __init__(self, connection, faults):
        self._connection = connection
        self._faults = faults

    def execute(self, statement, *arguments):
        for beginning in STATEMENTS:
            if statement.lstrip().startswith(beginning):
                self._faults.meet(beginning)
        result = self._connection.execute(statement, *arguments)
        if statement == "COMMIT":
            self._faults.meet("COMMITTED")
        return result

    def executemany(self, statement, *arguments):
        self._faults.meet("INSERT")
        return self._connection.executemany(statement, *arguments)

    def __getattr__(self, name):
        return getattr(self._connection, name)


@pytest.fixture
def faults(monkeypatch):
    # Some dozens of records are as a hundred thousand otherwise.
    monkeypatch.setattr(writer, "_SLICE_RECORDS", 3)
    monkeypatch.setattr(writer, "_TRANSACTION_RECORDS", 8)
    monkeypatch.setattr(writer, "_WEIGHED_AT_ONCE", 5)
    return Faults(monkeypatch)


faulty = st.builds(
    Faulty,
    seam=st.sampled_from([*SEAMS, *STATEMENTS, *OBSERVER]),
    kind=st.sampled_from(KINDS),
    passes=st.integers(0, 3),
    times=st.sampled_from([1, 2, 5]),
).filter(lambda each: not (each.seam in {"COMMITTED", "appended"} and str(each.kind) in UNCOMMITTED))
calls = st.lists(
    st.tuples(st.integers(1, 20) | st.none(), st.sampled_from(["waits", "raises", "cancels"])),
    min_size=1,
    max_size=8,
)
"""How many records each call has, ``None`` for a single one by itself; and what its caller does."""


def emptied(answer, given):
    """Empty the list of an answered caller; after cancelling, the broker still needs the records."""
    if not (isinstance(answer, Failure) and answer.check(CancelledError)):
        given.clear()
    return answer


class Callers:
    """Publish all at the same time; some cancel, and some have a callback that raises."""

    def __init__(self, broker, calls):
        self._results = []
        self._sent = []
        for number, (count, caller) in enumerate(calls):
            records = [record("t", b"%02d-%02d" % (number, n)) for n in range(1 if count is None else count)]
            given = list(records)
            result = broker.publish(given[0]) if count is None else broker.publish_many(given)
            # The records are the caller's again with the answer.
            result.addBoth(emptied, given)
            if caller == "raises":
                result.addCallback(lambda _: 1 / 0)
            elif caller == "cancels":
                result.cancel()
            self._results.append(result)
            self._sent.append((records, caller))

    async def all_answered(self):
        self._ends = await outcomes(self._results)

    def assert_true(self, at):
        """Check that the answers agree with the file: the offset of each value."""
        for (records, caller), end in zip(self._sent, self._ends, strict=True):
            if caller != "waits":
                assert isinstance(end, CancelledError | ZeroDivisionError | PublishError)
                continue
            of_each = end if isinstance(end, list) else [end] * len(records)
            for each, outcome in zip(records, of_each, strict=True):
                if isinstance(outcome, RecordMetadata):
                    assert at[each.value] == outcome.offset
                else:
                    assert isinstance(outcome, PublishError), outcome
                    assert outcome.possibly_published or each.value not in at


async def stored_in(path):
    reader = new_broker(path)
    reader.start()
    stored = await everything(reader, "t")
    await within(reader.stop(deadline_s=20))
    assert [each.offset for each in stored] == list(range(len(stored)))
    return [each.value for each in stored]


def nothing_waits(broker):
    waiting = broker.measures().waiting
    return (waiting.records, waiting.bytes) == (0, 0)


# One that fails is printed as it is: to make it smaller takes longer than a test may.
@pytest.mark.slow
@examples(
    100, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(faulty=faulty, calls=calls, is_stopped_with_it=st.booleans())
@pytest_twisted.ensureDeferred
async def test_any_exception_is_survived(faults, no_failure_is_lost, faulty, calls, is_stopped_with_it):
    no_failure_is_lost.clear()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "log")
        observer = Recorder(
            on_record=lambda _: faults.meet("record_received"), on_caught_up=lambda: faults.meet("caught_up")
        )
        broker = new_broker(path, clock=FasterReactor(), patience_s=0.5)
        following = broker.follow(topic="t", observer=observer)
        faults.arm(faulty)
        broker.start()
        callers = Callers(broker, calls)
        stopping = broker.stop(deadline_s=20) if is_stopped_with_it else None
        reads = [broker.read(ReadRequest(topic="t", limit=9, max_bytes=99)) for _ in range(2)]
        pulls = [broker.work.pull("t", "g", most=3, wait_s=0.1) for _ in range(2)]
        await callers.all_answered()
        assert all(isinstance(each, ReadResult | PublishError) for each in await outcomes(reads))
        assert all(isinstance(each, Lease | PublishError | None) for each in await outcomes(pulls))
        if stopping is None:
            faults.disarm()
            # Soon, publishing works again, and stored records are read.
            await eventually(lambda: broker.health().ready and nothing_waits(broker))
            await within(broker.publish(record("t", b"last")))
            await eventually(lambda: b"last" in observer.values() and observer.caught_up_at)
            assert following.unavailable_reason() is None
            assert await within(broker.work.pull("t", "other", most=1, wait_s=0)) is not None
            stopping = broker.stop(deadline_s=20)
        await within(stopping)
        faults.disarm()
        assert nothing_waits(broker)
        stored = await stored_in(path)
    assert len(set(stored)) == len(stored)
    if not is_stopped_with_it:
        assert observer.values() == stored
        assert len(observer.caught_up_at) == 1
    callers.assert_true({value: offset for offset, value in enumerate(stored)})
    # Each traceback is there once.
    assert len(no_failure_is_lost) <= faults.raised
    assert all(failure.type is type(faulty.kind) for failure in no_failure_is_lost)
    no_failure_is_lost.clear()


@pytest_twisted.ensureDeferred
async def test_the_rest_of_a_batch_is_dropped_when_its_caller_is_answered_after_an_exception(
    tmp_path, monkeypatch, no_failure_is_lost
):
    broker = new_broker(tmp_path / "records.sqlite3")
    broker.start()
    settle = writer.PublishMany.settle

    def failing(publish, first, outcomes):
        monkeypatch.setattr(writer.PublishMany, "settle", settle)
        raise MemoryError

    monkeypatch.setattr(writer.PublishMany, "settle", failing)
    given = [record("t", b"%d" % number) for number in range(5000)]
    (end,) = await outcomes([broker.publish_many(given).addBoth(emptied, given)])
    assert isinstance(end, PublishError)
    assert end.possibly_published
    assert isinstance(await within(broker.publish(record("t", b"later"))), RecordMetadata)
    assert nothing_waits(broker)
    await within(broker.stop(deadline_s=20))
    assert [failure.type for failure in no_failure_is_lost] == [MemoryError]
    no_failure_is_lost.clear()
