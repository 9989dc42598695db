"""Identities in the file: when they count, what they cost, and that they are stored with their records."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_twisted
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from sampleapp.brokers import IdempotencySettings
from sampleapp.brokers.sqlite import broker as sqlite_broker
from sampleapp.brokers.sqlite import rows, store, writer
from sampleapp.brokers.sqlite.store import Store
from sampleapp.errors import BrokerUnavailable, OutcomeUnknown, PublishError, RecordTooLarge
from sampleapp.model import RecordMetadata, ReplayedRecord
from sampleapp_testing import identity
from tests.support.brokers import eventually, everything, outcomes, record, settled, within
from tests.support.examples import examples
from tests.support.faster_time import FasterReactor
from tests.support.sqlite import other_connection, running, stored

HOUR_S = 3600


class TimeOfDay:
    def __init__(self):
        self.time_s = 1_700_000_000.0

    def __call__(self):
        return self.time_s


@pytest.fixture
def time_of_day():
    return TimeOfDay()


@pytest.fixture
def new_store(path, time_of_day):
    """Opens the file, by default with a window of an hour."""
    stores = []

    def new_store(window_s=HOUR_S):
        stores.append(Store(path=path, patience_s=5, identity_window_s=window_s, now=time_of_day))
        return stores[-1]

    yield new_store
    for each in stores:
        each.close()


def identified(name, value=b"v"):
    return record("t", value, identity=identity("t", name))


def sends(store, *names):
    """Append records with these ids in one transaction; return whether each was published before."""
    outcomes = store.append([identified(name) for name in names])
    assert all(isinstance(each, RecordMetadata) for each in outcomes)
    return [isinstance(each, ReplayedRecord) for each in outcomes]


def count_of(path, table="identity"):
    """How many the file has."""
    with other_connection(path) as connection:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")
    return count


def test_an_id_counts_for_a_time_from_its_first_record_which_a_repeat_does_not_prolong(
    new_store, time_of_day, path
):
    store = new_store()
    assert sends(store, "a") == [False]
    time_of_day.time_s += HOUR_S / 2
    assert sends(store, "a", "b") == [True, False]
    time_of_day.time_s += HOUR_S / 2 - 1
    assert sends(store, "b", "a") == [True, True]
    time_of_day.time_s += 1
    # It has expired, although it is still there; from now on, it is the id of the second one.
    assert count_of(path) == 2
    assert sends(store, "a", "a", "b") == [False, True, True]
    time_of_day.time_s += HOUR_S - 1
    assert sends(new_store(), "a", "b") == [True, False]
    assert len(stored(path)) == 4


@pytest.mark.parametrize("window_s", [1e15, 1e17, 1.7e308])
def test_a_window_that_is_longer_than_any_time_is_for_ever(new_store, time_of_day, path, window_s):
    store = new_store(window_s)
    assert sends(store, "a") == [False]
    time_of_day.time_s += 1e9
    assert not store.forget_some()
    assert sends(store, "a", "b") == [True, False]
    assert count_of(path) == 2


@pytest.mark.parametrize("set_back_s", [1, HOUR_S, 24 * HOUR_S])
def test_a_clock_that_is_set_back_lets_no_id_expire(new_store, time_of_day, path, set_back_s):
    store = new_store()
    assert sends(store, "a") == [False]
    time_of_day.time_s -= set_back_s
    assert sends(store, "a", "b") == [True, False]
    store.forget_some()
    time_of_day.time_s += HOUR_S - 1
    assert sends(store, "a", "b") == [True, True]
    assert len(stored(path)) == 2


@pytest.mark.parametrize("wrong_s", [-HOUR_S, -1])
def test_a_clock_that_is_behind_for_a_moment_lets_no_id_expire_early(new_store, time_of_day, wrong_s):
    store = new_store()
    assert sends(store, "a", "newest") == [False, False]
    time_of_day.time_s += wrong_s
    assert not store.forget_some()
    time_of_day.time_s += HOUR_S - 1 - wrong_s
    assert not store.forget_some()
    assert sends(store, "a") == [True]


def test_ids_that_were_stored_while_the_clock_was_years_ahead_expire(new_store, time_of_day, path):
    store = new_store()
    names = [f"{n}" for n in range(450)]
    time_of_day.time_s += 10 * 365 * 24 * HOUR_S
    sends(store, *names)
    time_of_day.time_s -= 10 * 365 * 24 * HOUR_S
    while store.forget_some():
        pass
    assert count_of(path) == 450
    time_of_day.time_s += HOUR_S - 1
    assert all(sends(store, *names))
    time_of_day.time_s += 1
    while store.forget_some():
        pass
    assert count_of(path) == 1
    assert not any(sends(store, *names))


def test_expired_ids_are_deleted_in_small_transactions(new_store, time_of_day, path):
    store = new_store()
    for start in range(0, 450, 50):
        sends(store, *map(str, range(start, start + 50)))
    assert not store.forget_some()
    time_of_day.time_s += HOUR_S
    sends(store, "last")
    left = []
    while store.forget_some():
        left.append(count_of(path))
    assert left == [251, 51, 1]
    assert sends(store, "last") == [True]
    assert len(stored(path)) == 451


@pytest.fixture(params=[1, 4, 7, 100])
def few_recent(request, monkeypatch):
    """More identities than this are in the index."""
    monkeypatch.setattr(rows, "_MOST_RECENT", request.param)
    return request.param


def test_ids_are_known_in_every_process_whether_or_not_they_are_in_the_index(new_store, path, few_recent):
    stores = [new_store(), new_store()]
    for n in range(30):
        names = [f"{n}a", f"{n}b", f"{n}c"]
        assert not any(sends(stores[n % 3 % 2], *names))
        assert all(sends(stores[n % 2], *names))
        if n % 7 == 6:
            stores[n % 2] = new_store()
    everything = [f"{n}{letter}" for n in range(30) for letter in "abc"]
    for each in (*stores, new_store()):
        assert all(sends(each, *everything))
    assert len(stored(path)) == count_of(path) == 90
    assert 90 - few_recent < count_of(path, "indexed_identity") <= 90 or few_recent > 90


def test_a_transaction_adds_few_ids_to_the_index_however_many_there_are(new_store, path):
    store = new_store()
    counts = [0]
    for start in range(0, 10_000, 500):
        assert not any(sends(store, *map(str, range(start, start + 500))))
        counts.append(count_of(path, "indexed_identity"))
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 750
    # None falls behind.
    assert counts[-1] >= 1_500
    assert all(sends(new_store(), *map(str, range(0, 10_000, 7))))


def test_a_process_that_publishes_little_does_not_read_all_that_others_have_published(
    new_store, monkeypatch, path
):
    monkeypatch.setattr(rows, "_MOST_RECENT", 10)
    busy, idle = new_store(), new_store()
    kept = rows.RecentIds()
    monkeypatch.setattr(idle, "_recent_ids", kept)
    assert sends(idle, "0") == [False]
    for start in (1, 200):
        for n in range(start, start + 100, 3):
            sends(busy, *map(str, range(n, n + 3)))
            # One that only sends again, and never inserts, remembers no more either.
            assert start == 1 or sends(idle, str(n)) == [True]
            assert len(kept.numbers) <= 20
        assert sends(idle, f"{start}", f"{start + 99}", f"new{start}") == [True, True, False]
        assert len(kept.numbers) <= 20
    assert sends(busy, "0", "new1", "new200") == [True, True, True]
    assert len(stored(path)) == count_of(path)


def test_expired_ids_are_deleted_from_the_index_and_can_be_used_in_every_process(
    new_store, time_of_day, path, few_recent
):
    one, other = new_store(), new_store()
    for _ in range(3):
        for n in range(10):
            assert not any(sends((one, other)[n % 2], f"{n}a", f"{n}b"))
        time_of_day.time_s += HOUR_S
        assert one.forget_some()
        assert not other.forget_some()
        assert count_of(path) == 1
        assert count_of(path, "indexed_identity") <= 1


def test_an_id_that_was_used_again_after_it_expired_stays_known(new_store, time_of_day, path, few_recent):
    one, other = new_store(), new_store()
    assert not any(sends(one, *"abcdef"))
    time_of_day.time_s += HOUR_S
    assert not any(sends(one, *"abc"))
    assert other.forget_some()
    for each in (one, other, new_store()):
        assert all(sends(each, *"abc"))
    assert not any(sends(other, *"def"))
    assert len(stored(path)) == 12


def test_after_a_rollback_the_ids_of_other_processes_are_known(new_store, path, monkeypatch, few_recent):
    one, other = new_store(), new_store()
    insert = store.insert

    def insert_and_fail(*args):
        insert(*args)
        raise RuntimeError("made up")

    sends(one, "a")
    with monkeypatch.context() as patch:
        patch.setattr(store, "insert", insert_and_fail)
        with pytest.raises(RuntimeError, match="made up"):
            sends(one, "b", "c")
    assert not any(sends(other, "d", "c"))
    assert sends(one, "d") == [True]
    assert sends(one, "a", "b", "c") == [True, False, True]
    assert len(stored(path)) == count_of(path) == 4


def test_looking_for_expired_ids_takes_as_long_whatever_their_number(new_store, path):
    sends(new_store(), "a")
    window = rows.Window(now_ms=1_700_000_000_000, window_ms=HOUR_S)
    with other_connection(path) as connection:
        statements = []
        connection.set_trace_callback(statements.append)
        assert not rows.is_any_expired(connection, window)
        plans = [connection.execute(f"EXPLAIN QUERY PLAN {each}").fetchall() for each in statements[:]]
    assert plans
    assert all("identity_stored_ms" in plan[0][-1] for plan in plans)


def test_nothing_is_written_while_no_id_has_expired(new_store, path):
    store = new_store()
    sends(store, "a")
    with other_connection(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert not store.forget_some()


@pytest_twisted.ensureDeferred
async def test_a_broker_deletes_expired_ids_by_itself(path, time_of_day, monkeypatch):
    monkeypatch.setattr(sqlite_broker, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(store, "_FORGOTTEN_AT_ONCE", 20)
    window = IdempotencySettings(window_s=HOUR_S)
    async with running(path, idempotency=window, now=time_of_day) as broker:
        await within(broker.publish_many([identified(f"{n}") for n in range(100)]))
        time_of_day.time_s += HOUR_S
        await within(broker.publish(identified("last")))
        await eventually(lambda: count_of(path) == 1)
        again = await within(broker.publish(identified("last")))
    assert isinstance(again, ReplayedRecord)
    assert len(stored(path)) == 101


@pytest_twisted.ensureDeferred
async def test_expired_ids_are_deleted_after_all_kinds_of_failures(
    path, time_of_day, monkeypatch, own_connection, no_failure_is_lost
):
    monkeypatch.setattr(sqlite_broker, "_INTERVAL_S", 0.01)
    forget_some = Store.forget_some
    failures = [MemoryError("made up")]

    def failing(self):
        if failures:
            raise failures.pop()
        return forget_some(self)

    monkeypatch.setattr(Store, "forget_some", failing)
    async with running(path, now=time_of_day) as broker:
        await within(broker.publish_many([identified("a"), identified("b")]))
        own_connection.fail_next("DELETE FROM identity", "database or disk is full")
        time_of_day.time_s += 24 * HOUR_S
        await eventually(lambda: count_of(path) == 1)
    assert not failures
    assert [failure.type for failure in no_failure_is_lost] == [MemoryError]
    no_failure_is_lost.clear()


@pytest.mark.parametrize("identified_ones", [0, 1])
@pytest_twisted.ensureDeferred
async def test_records_without_an_identity_run_no_statement_for_identities(
    path, own_connection, identified_ones
):
    statements = []
    async with running(path) as broker:
        await within(broker.publish(record("t")))
        own_connection.before_next_use(lambda each: each.set_trace_callback(statements.append))
        sent = [record("t") for _ in range(250)] + [identified("a")] * identified_ones
        await within(broker.publish_many(sent))
    assert any("INSERT INTO record" in each for each in statements)
    assert any("identity" in each for each in statements) == bool(identified_ones)


@pytest.mark.parametrize(
    ("message", "error"),
    [("database or disk is full", BrokerUnavailable), ("disk I/O error", OutcomeUnknown)],
)
@pytest_twisted.ensureDeferred
async def test_an_id_is_rolled_back_with_its_record(path, own_connection, message, error):
    async with running(path, clock=FasterReactor()) as broker:
        await within(broker.publish(identified("before")))
        own_connection.fail_next_commit(message)
        assert [type(each) for each in await settled(broker, [identified("a")])] == [error]
        assert count_of(path) == len(stored(path)) == 1
        await eventually(lambda: broker.health().ready)
        first, again = await settled(broker, [identified("a"), identified("a")])
    assert not isinstance(first, ReplayedRecord)
    assert isinstance(again, ReplayedRecord)
    assert (first.offset, again.offset) == (1, 1)
    assert count_of(path) == len(stored(path)) == 2


@pytest_twisted.ensureDeferred
async def test_an_id_that_cannot_be_inserted_takes_its_record_with_it(path):
    async with running(path, clock=FasterReactor()) as broker:
        await within(broker.publish(record("t")))
        with other_connection(path) as connection:
            connection.execute(
                "CREATE TRIGGER reject BEFORE INSERT ON identity BEGIN SELECT RAISE(ABORT, 'not now'); END"
            )
        found = await settled(broker, [record("t"), identified("a")])
        assert all(isinstance(each, BrokerUnavailable) for each in found)
        assert len(stored(path)) == 1
        with other_connection(path) as connection:
            connection.execute("DROP TRIGGER reject")
        await eventually(lambda: broker.health().ready)
        found = await within(broker.publish(identified("a")))
    assert (type(found), found.offset) == (RecordMetadata, 1)


@pytest_twisted.ensureDeferred
async def test_a_record_that_is_too_large_does_not_use_its_id(path):
    # These pages of zeros are never touched, and so never allocated.
    too_large = identified("large", bytes(1_000_000_001))
    async with running(path, buffer_bytes=3_000_000_000) as broker:
        await within(broker.publish(record("t")))
        sent = [identified("a"), too_large, identified("large"), identified("a")]
        first, rejected, second, again = await within(broker.publish_many(sent))
    assert isinstance(rejected, RecordTooLarge)
    assert [type(each) for each in (first, second, again)] == [RecordMetadata, RecordMetadata, ReplayedRecord]
    assert [each.offset for each in (first, second, again)] == [1, 2, 1]


@pytest_twisted.ensureDeferred
async def test_a_repeat_is_answered_after_a_sync_as_a_first_record_is(path):
    # A process may have been killed between the write and the sync of the first commit.
    async with running(path, clock=FasterReactor()) as broker:
        await within(broker.publish(identified("a")))
        await eventually(lambda: broker.health().ready)
        before = broker.measures().wal_bytes
        again = await within(broker.publish(identified("a")))
        # Only a commit that has written is synced.
        assert broker.measures().wal_bytes > before
    assert isinstance(again, ReplayedRecord)


@pytest_twisted.ensureDeferred
async def test_a_replayed_place_is_no_reason_to_take_the_file_for_damaged(path, own_connection):
    async with running(path, clock=FasterReactor()) as broker:
        await within(broker.publish_many([identified("a"), identified("b")]))
        with other_connection(path) as connection:
            # An operator begins a topic from its start.
            connection.execute("DELETE FROM record")
            connection.execute("UPDATE topic SET next_offset = 0")
        await within(broker.publish(record("t")))
        again = await within(broker.publish(identified("b")))
        own_connection.fail_next_commit("disk I/O error")
        await settled(broker, [record("t")])
        # The file is opened again.
        await eventually(lambda: broker.health().ready)
        await within(broker.publish(record("t")))
    assert isinstance(again, ReplayedRecord)
    assert again.offset == 1


@pytest.fixture
def small_steps(monkeypatch):
    """Some dozens of records are as a hundred thousand otherwise."""
    monkeypatch.setattr(writer, "_SLICE_RECORDS", 3)
    monkeypatch.setattr(writer, "_TRANSACTION_RECORDS", 8)
    monkeypatch.setattr(rows, "_MOST_RECENT", 6)


calls = st.lists(st.lists(st.integers(0, 15) | st.none(), min_size=1, max_size=12), min_size=1, max_size=8)
"""The ids of the records of each call; ``None`` for a record without one."""

failing = st.dictionaries(
    st.integers(0, 6), st.sampled_from(["disk I/O error", "database is locked"]), max_size=3
)
"""Which commits fail, by how many come before them."""


@examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=calls, failing=failing)
@pytest_twisted.ensureDeferred
async def test_each_id_is_published_once_where_each_answer_says(small_steps, own_connection, calls, failing):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "log")
        plain = itertools.count()
        sent = [
            [record("t", b"-%d" % next(plain)) if n is None else identified(f"{n}", b"%d" % n) for n in each]
            for each in calls
        ]
        async with running(path, clock=FasterReactor()) as broker:
            await outcomes([broker.publish(record("other"))])
            for after, message in failing.items():
                own_connection.fail_next_commit(message, after=after)
            ends = await outcomes(
                [broker.publish_many(each) if each[1:] else broker.publish(each[0]) for each in sent]
            )
            own_connection.fail_no_more()
            again = [await within(broker.publish_many(each)) for each in map(_with_identity, sent)]
            read = await everything(broker, "t")
    at = {each.offset: each.value for each in read}
    for records, end in zip([*sent, *map(_with_identity, sent)], [*ends, *again], strict=True):
        of_each = end if isinstance(end, list) else [end] * len(records)
        for each, outcome in zip(records, of_each, strict=True):
            assert isinstance(outcome, RecordMetadata | PublishError)
            if isinstance(outcome, RecordMetadata):
                assert at[outcome.offset] == each.value
    values = [each.value for each in read if not each.value.startswith(b"-")]
    assert sorted(values) == sorted({b"%d" % n for each in calls for n in each if n is not None})


def _with_identity(records):
    return [each for each in records if each.identity is not None]


def test_a_stop_while_expired_ids_are_deleted_is_the_end_of_it():
    clock, running = Clock(), Deferred()
    store, thread = SimpleNamespace(forget_some=None), SimpleNamespace(run=lambda _: running)
    deletion = sqlite_broker.Expiry(store=store, thread=thread, clock=clock)
    deletion.start()
    clock.advance(60)
    deletion.stop()
    running.callback(None)
    assert clock.getDelayedCalls() == []


def test_ids_that_come_after_all_others_have_expired_are_added_to_the_index_as_well(
    new_store, time_of_day, monkeypatch
):
    monkeypatch.setattr(rows, "_MOST_RECENT", 100)
    monkeypatch.setattr(rows, "_INDEXED_AT_ONCE", 10)
    store = new_store()
    for start in range(0, 1000, 50):
        sends(store, *map(str, range(start, start + 50)))
    time_of_day.time_s += 2 * HOUR_S
    while store.forget_some():
        pass
    store = new_store()
    kept = rows.RecentIds()
    monkeypatch.setattr(store, "_recent_ids", kept)
    for start in range(1000, 2000, 10):
        sends(store, *map(str, range(start, start + 10)))
    assert len(kept.numbers) <= 200
