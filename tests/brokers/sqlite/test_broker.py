"""The SQLite broker: what it keeps, how it shares transactions, and what it does when the file is bad."""

# ruff: noqa: ASYNC240 -- a test may look at its few small files while the reactor waits

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import sys
import tempfile
import threading
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest
import pytest_twisted
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.internet import reactor
from twisted.internet.threads import deferToThread
from twisted.internet.utils import getProcessOutputAndValue
from twisted.logger import LogLevel, globalLogPublisher

from sampleapp.brokers.sqlite import SQLiteBroker
from sampleapp.brokers.sqlite.faults import Code, from_sqlite, primary_code
from sampleapp.brokers.sqlite.log import Log
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    BufferFull,
    IllegalTopic,
    OutcomeUnknown,
    PublishTimedOut,
    RecordRefused,
    RecordTooLarge,
    StartUpError,
)
from sampleapp.model import RecordMetadata
from sampleapp.testing.broker_contract import HEADERS, KEYS, VALUES
from tests.support.brokers import (
    Recorder,
    content,
    eventually,
    everything,
    outcomes,
    record,
    settled,
    turns,
    within,
)

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.sqlite3"


def new_broker(path, **options):
    return SQLiteBroker(path=path, clock=reactor, threads=reactor, **options)


def make_log(path):
    """Make the file as a broker does that finds an empty one."""
    path.touch()
    new_broker(path).check()


@asynccontextmanager
async def running(path, **options):
    broker = new_broker(path, **options)
    broker.start()
    try:
        yield broker
    finally:
        await within(broker.stop(deadline_s=20))


@contextmanager
def other_connection(path):
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        yield connection


async def on_its_thread(broker, work):
    """Do something with the broker's own connection, where that may be used."""
    return await within(broker._thread.run(lambda: work(broker._file._connection)))


async def process(*arguments):
    out, err, status = await getProcessOutputAndValue(
        sys.executable,
        ["-m", "tests.support.sqlite_process", *map(str, arguments)],
        env=os.environ,
        path=str(PROJECT),
    )
    assert status == 0, err.decode()
    return json.loads(out)


def stored(path):
    """What the file holds, as another program sees it."""
    with other_connection(path) as connection:
        return connection.execute(
            "SELECT name, offset, key, value FROM record JOIN topic ON topic.id = topic_id ORDER BY 1, 2"
        ).fetchall()


@contextmanager
def logged(level):
    events = []

    def observe(event):
        if event["log_level"] is level and "sampleapp" in event.get("log_namespace", ""):
            events.append(event)

    globalLogPublisher.addObserver(observe)
    try:
        yield events
    finally:
        globalLogPublisher.removeObserver(observe)


# --- keeping -------------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_reopening_keeps_every_record_and_goes_on_with_the_next_offset(path):
    sent = [
        record("t", b"1", key=None, headers=(("a", b"\0\xff"), ("a", b""))),
        record("t", None, key=b""),
        record("t", b"", key=b"\0", timestamp_ms=-5),
    ]
    async with running(path) as broker:
        assert [m.offset for m in await settled(broker, sent)] == [0, 1, 2]
    async with running(path) as broker:
        assert (await within(broker.publish(record("t", b"4")))).offset == 3
        assert [content(r) for r in await everything(broker, "t")] == [
            *map(content, sent),
            content(record("t", b"4")),
        ]
    assert not Path(f"{path}-wal").exists()


class LogMachine(RuleBasedStateMachine):
    """Whatever the order of publishing, stopping, reopening and following: the log equals plain lists."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name, "log")
        self.model = {"a": [], "b": []}
        self.recorders = {}
        self.begin()

    def begin(self):
        self.broker = new_broker(self.path)
        self.broker.start()
        self.recorders = {}

    @rule(
        contents=st.lists(st.tuples(st.sampled_from("ab"), KEYS, VALUES, HEADERS), max_size=6),
        stop_at_once=st.booleans(),
    )
    def publish(self, contents, stop_at_once):
        records = [record(t, v, key=k, headers=h) for t, k, v, h in contents]
        published = [self.broker.publish(each) for each in records]
        if stop_at_once:
            self.reopen()
        for sent, found in zip(records, pytest_twisted.blockon(self.ends(published)), strict=True):
            assert found == RecordMetadata(topic=sent.topic, partition=0, offset=len(self.model[sent.topic]))
            self.model[sent.topic].append(content(sent))

    @rule()
    def reopen(self):
        pytest_twisted.blockon(within(self.broker.stop(deadline_s=20)))
        refused = self.broker.publish(record("a"))
        assert isinstance(pytest_twisted.blockon(self.ends([refused]))[0], BrokerStopped)
        self.begin()

    @rule(topic=st.sampled_from("ab"))
    def follow(self, topic):
        recorder = self.recorders.setdefault(topic, Recorder())
        if not recorder.records and not recorder.caught_up_at:
            self.broker.follow(topic=topic, observer=recorder)

    @invariant()
    def followers_have_seen_everything_in_order(self):
        for topic, recorder in self.recorders.items():
            expected = self.model[topic]
            pytest_twisted.blockon(self.wait_for(recorder, len(expected)))
            assert [content(each) for each in recorder.records] == expected
            assert [each.offset for each in recorder.records] == list(range(len(expected)))
            assert len(recorder.caught_up_at) == 1

    def teardown(self):
        pytest_twisted.blockon(within(self.broker.stop(deadline_s=20)))
        for topic, expected in self.model.items():
            found = [row for row in stored(self.path) if row[0] == topic]
            assert found == [(topic, n, each[2], each[3]) for n, each in enumerate(expected)]
        self.directory.cleanup()

    @staticmethod
    def ends(deferreds):
        return pytest_twisted.defer.ensureDeferred(outcomes(deferreds))

    @staticmethod
    def wait_for(recorder, count):
        return pytest_twisted.defer.ensureDeferred(recorder.until(count))


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=25, stateful_step_count=15)


@pytest_twisted.ensureDeferred
async def test_following_a_topic_does_not_create_it(path):
    async with running(path) as broker:
        assert await everything(broker, "missing") == []
    with other_connection(path) as connection:
        assert connection.execute("SELECT name FROM topic").fetchall() == []


@pytest_twisted.ensureDeferred
async def test_records_that_an_operator_deleted_are_passed_over_and_their_offsets_not_used_again(path):
    async with running(path) as broker:
        await settled(broker, [record("t", b"%d" % n) for n in range(10)])
        with other_connection(path) as connection:
            connection.execute("DELETE FROM record WHERE offset IN (0, 4, 9)")
        assert [r.offset for r in await everything(broker, "t")] == [1, 2, 3, 5, 6, 7, 8]
        assert (await within(broker.publish(record("t")))).offset == 10


@pytest_twisted.ensureDeferred
async def test_text_that_an_operator_put_in_by_hand_is_read_as_bytes(path):
    async with running(path) as broker:
        await within(broker.publish(record("t")))
        with other_connection(path) as connection:
            connection.execute("INSERT INTO record VALUES (1, 1, 0, 'key', 'välue', NULL)")
            connection.execute("UPDATE topic SET next_offset = 2")
        last = (await everything(broker, "t"))[-1]
    assert (last.key, last.value) == (b"key", "välue".encode())


@pytest_twisted.ensureDeferred
async def test_pages_are_bounded_by_bytes_and_a_record_larger_than_a_page_is_still_read(path):
    values = [bytes([n]) * 700_000 for n in range(5)] + [bytes(3_000_000), b"last"]
    async with running(path) as broker:
        await settled(broker, [record("t", value) for value in values])
        assert [r.value for r in await everything(broker, "t")] == values
        page = await within(
            broker._thread.run(broker._file.read, "t", 0, max_records=250, max_bytes=1_000_000)
        )
    assert len(page.records) == 2
    assert (page.next_offset, page.end) == (2, 7)


# --- group commit and bounds ---------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_publishes_that_arrive_while_a_transaction_runs_share_the_next_one(path):
    async with running(path) as broker:

        async def publish_many(name):
            for n in range(20):
                await broker.publish(record("t", b"%d-%d" % (name, n)))

        tasks = [pytest_twisted.defer.ensureDeferred(publish_many(name)) for name in range(64)]
        assert await outcomes(tasks) == [None] * 64
        assert broker._file.commits < 64 * 20 / 10
        assert len(await everything(broker, "t")) == 64 * 20


@pytest_twisted.ensureDeferred
async def test_a_transaction_is_bounded_by_count_and_by_bytes(path):
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        await settled(broker, [record("t") for _ in range(2500)])
        assert broker._file.commits == 3
        await settled(broker, [record("t", bytes(1_500_000)) for _ in range(6)])
        assert broker._file.commits == 5


@pytest_twisted.ensureDeferred
async def test_beyond_the_buffer_a_publish_fails_at_once_and_later_ones_are_taken_again(path):
    async with running(path, buffer_bytes=10_000) as broker:
        published = [broker.publish(record("t", bytes(1000))) for _ in range(20)]
        ends = await outcomes(published)
        full = [each for each in ends if isinstance(each, BufferFull)]
        taken = [each.offset for each in ends if isinstance(each, RecordMetadata)]
        assert len(full) + len(taken) == 20
        assert taken == list(range(len(taken)))
        assert 1 <= len(taken) <= 10
        assert (await within(broker.publish(record("t", bytes(1000))))).offset == len(taken)
        assert len(await everything(broker, "t")) == len(taken) + 1


@pytest_twisted.ensureDeferred
async def test_records_without_a_key_or_value_or_with_headers_only_fill_the_buffer_as_well(path):
    broker = new_broker(path, buffer_bytes=10_000)
    empty = [broker.publish(record("t", None)) for _ in range(1000)]
    assert any(each.called for each in empty)
    large = broker.publish(record("t", None, headers=(("h", bytes(20_000)),)))
    await within(broker.stop(deadline_s=0))
    ends = await outcomes([*empty, large])
    assert {type(each) for each in ends[:-1]} == {BufferFull, BrokerStopped}
    assert isinstance(ends[-1], RecordTooLarge)


@pytest_twisted.ensureDeferred
async def test_a_record_that_would_not_fit_into_an_empty_buffer_is_too_large(path):
    async with running(path, buffer_bytes=10_000) as broker:
        [end] = await settled(broker, [record("t", bytes(10_001))])
        assert isinstance(end, RecordTooLarge)


@pytest_twisted.ensureDeferred
async def test_a_record_that_sqlite_cannot_hold_is_refused_alone(path):
    # Never touched, the pages of so many zeros are never allocated.
    too_large = bytes(1_000_000_001)
    async with running(path, buffer_bytes=3_000_000_000) as broker:
        await within(broker.publish(record("t", b"0")))
        ends = await settled(
            broker,
            [record("t", b"1"), record("new", too_large), record("t", too_large), record("t", b"2")],
        )
        assert [type(e) for e in ends] == [RecordMetadata, RecordTooLarge, RecordTooLarge, RecordMetadata]
        assert [r.value for r in await everything(broker, "t")] == [b"0", b"1", b"2"]
        assert broker.health().ready
    assert [row[:2] for row in stored(path)] == [("t", 0), ("t", 1), ("t", 2)]
    with other_connection(path) as connection:
        # A record that is refused does not bring its topic into being.
        assert connection.execute("SELECT name FROM topic").fetchall() == [("t",)]


@pytest_twisted.ensureDeferred
async def test_what_has_no_form_in_the_file_is_refused_alone(path):
    async with running(path) as broker:
        ends = await settled(
            broker,
            [
                record("t", b"1"),
                record("\ud800", b"illegal topic"),
                record("t", b"illegal header", headers=(("\ud800", b""),)),
                record("t", b"illegal time", timestamp_ms=2**63),
                record("t", b"2", timestamp_ms=2**63 - 1),
            ],
        )
        assert [type(e) for e in ends] == [
            RecordMetadata,
            IllegalTopic,
            RecordRefused,
            RecordRefused,
            RecordMetadata,
        ]
        assert [r.value for r in await everything(broker, "t")] == [b"1", b"2"]
        assert await everything(broker, "\ud800") == []


@pytest_twisted.ensureDeferred
async def test_records_published_before_the_start_wait_for_it(path):
    broker = new_broker(path)
    published = broker.publish(record("t"))
    recorder = Recorder()
    broker.follow(topic="t", observer=recorder)
    assert not published.called
    assert not path.exists()
    broker.start()
    assert (await within(published)).offset == 0
    await recorder.until(1)
    await within(broker.stop(deadline_s=20))


@pytest_twisted.ensureDeferred
async def test_records_published_before_a_start_that_never_comes_fail_when_it_is_stopped(path):
    broker = new_broker(path)
    following = broker.follow(topic="t", observer=Recorder())
    published = broker.publish(record("t"))
    await within(broker.stop(deadline_s=20))
    [end] = await outcomes([published])
    assert isinstance(end, BrokerStopped)
    await within(following.stop())
    assert not path.exists()


# --- several processes ---------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_two_processes_publish_to_one_file_without_a_gap_or_a_repeat(path):
    # Neither has created the file: both may try at the same moment.
    other = process("publish", path, "t", "other", 300)
    tasks = [pytest_twisted.defer.ensureDeferred(other)]
    recorder = Recorder()
    mine = {}
    async with running(path) as broker:
        broker.follow(topic="t", observer=recorder)
        for n in itertools.count():
            names = [f"mine-{n}-{m}" for m in range(5)]
            found = await settled(broker, [record("t", name.encode()) for name in names])
            mine.update({name: m.offset for name, m in zip(names, found, strict=True)})
            if tasks[0].called:
                break
        theirs = (await outcomes(tasks))[0]
        assert len(theirs) == 300
        everybodys = {**theirs, **mine}
        await recorder.until(len(everybodys))
    assert sorted(everybodys.values()) == list(range(len(everybodys)))
    assert {row[3].decode(): row[1] for row in stored(path)} == everybodys
    assert [r.offset for r in recorder.records] == list(range(len(everybodys)))
    assert {r.value.decode(): r.offset for r in recorder.records} == everybodys


@pytest_twisted.ensureDeferred
async def test_a_follower_sees_what_another_process_publishes(path):
    recorder = Recorder()
    async with running(path) as broker:
        broker.follow(topic="t", observer=recorder)
        await recorder.until(0)
        await process("publish", path, "t", "other", 20)
        await recorder.until(20)
    assert recorder.values() == [b"other-%d" % n for n in range(20)]


def probe_and_close(log):
    try:
        log.probe()
    finally:
        log.close()


@pytest_twisted.ensureDeferred
async def test_many_that_create_the_file_at_the_same_moment_all_end_well(tmp_path):
    for attempt in range(5):
        path = tmp_path / str(attempt)
        logs = [Log(path=path, patience_s=20) for _ in range(8)]
        assert await outcomes([deferToThread(probe_and_close, log) for log in logs]) == [None] * 8
        with other_connection(path) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (1,)


# --- what is wrong at the start ------------------------------------------------------------------------


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
        message = await process("check", Path(directory, "log"))
        Path(directory).chmod(0o755)
    assert str(Path(directory, "log")) in message
    assert "cannot be created" in message


def test_check_leaves_a_log_that_is_marked_as_ours_and_holds_nothing_open(path):
    make_log(path)
    with other_connection(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (0x53417070,)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        # Possible only while nobody else has the file open.
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
    make_log(path)
    with other_connection(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    assert "was written by a newer version" in refused_at_start(path)
    with other_connection(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)


def test_a_file_whose_tables_are_missing_is_refused(path):
    make_log(path)
    with other_connection(path) as connection:
        connection.execute("DROP TABLE record")
    assert "no such table: record" in refused_at_start(path)


@pytest.mark.parametrize("writable", ["nothing", "directory"])
@pytest_twisted.ensureDeferred
async def test_a_file_that_may_not_be_written_to_is_refused(writable):
    # Not tmp_path: nobody but its owner may look into that.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "log")
        make_log(path)
        path.chmod(0o444)
        Path(directory).chmod(0o777 if writable == "directory" else 0o555)
        message = await process("check", path)
        Path(directory).chmod(0o755)
    assert str(path) in message
    assert "write" in message


def test_a_locked_file_is_no_reason_not_to_start(path):
    make_log(path)
    with other_connection(path) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        new_broker(path).check()


# --- what goes wrong while it runs ---------------------------------------------------------------------


async def unavailable(broker, error=BrokerUnavailable):
    """A publish fails, says nothing internal, and health says why."""
    [end] = await settled(broker, [record("t", b"lost")])
    assert type(end) is error
    assert "/" not in str(end)
    assert "sqlite" not in str(end).lower()
    health = broker.health()
    assert not health.ready
    assert str(broker._file.path) in health.reasons[0]
    return health.reasons[0]


async def works_again(broker, path, *, before):
    await eventually(lambda: broker.health().ready)
    found = await within(broker.publish(record("t", b"after")))
    assert found.offset == len(before)
    assert [row[3] for row in stored(path)] == [*before, b"after"]


@pytest_twisted.ensureDeferred
async def test_while_the_file_is_locked_publishes_fail_and_afterwards_it_recovers_by_itself(path):
    async with running(path, patience_s=0.05) as broker:
        await within(broker.publish(record("t", b"before")))
        with logged(LogLevel.error) as errors, logged(LogLevel.info) as infos:
            with other_connection(path) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                for _ in range(3):
                    assert "locked" in await unavailable(broker)
                assert [r.value for r in await everything(broker, "t")] == [b"before"]
            await eventually(lambda: broker.health().ready)
            assert len(errors) == 1
            assert len(infos) == 1
        await works_again(broker, path, before=[b"before"])


@pytest_twisted.ensureDeferred
async def test_a_lock_that_is_let_go_of_in_time_delays_a_publish_only(path):
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        with other_connection(path) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            published = broker.publish(record("t"))
            await eventually(lambda: broker._writer._batch)
            await turns()
            assert not published.called
        assert (await within(published)).offset == 0


@pytest_twisted.ensureDeferred
async def test_a_file_that_is_locked_at_the_start_is_opened_when_it_is_free(path):
    new_broker(path).check()
    with other_connection(path) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        broker = new_broker(path, patience_s=0.05)
        broker.start()
        recorder = Recorder()
        broker.follow(topic="t", observer=recorder)
        await unavailable(broker)
        assert recorder.caught_up_at == []
    await works_again(broker, path, before=[])
    await recorder.until(1)
    await within(broker.stop(deadline_s=20))


@pytest_twisted.ensureDeferred
async def test_a_commit_is_synced_before_it_is_answered(path):
    async with running(path) as broker:
        await within(broker.publish(record("t")))
        pragmas = await on_its_thread(
            broker,
            lambda c: [c.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous")],
        )
    # 2 is FULL: the write-ahead log is synced by each commit (https://www.sqlite.org/pragma.html).
    assert pragmas == [("wal",), (2,)]


class Disk:
    """A disk that does not answer, until it does."""

    def __init__(self, broker, monkeypatch, operation="append"):
        self.is_asked = threading.Event()
        self.answers = threading.Event()
        operate = getattr(broker._file, operation)

        def hang(*arguments, **options):
            self.is_asked.set()
            assert self.answers.wait(30)
            return operate(*arguments, **options)

        monkeypatch.setattr(broker._file, operation, hang)


@pytest_twisted.ensureDeferred
async def test_a_disk_that_does_not_answer_keeps_nobody_waiting_for_ever(path, monkeypatch):
    async with running(path, answer_timeout_s=0.1) as broker:
        await within(broker.publish(record("t", b"before")))
        disk = Disk(broker, monkeypatch)
        sent = [broker.publish(record("t", b"sent"))]
        await eventually(disk.is_asked.is_set)
        waiting = [broker.publish(record("t", b"waiting"))]
        with logged(LogLevel.error) as errors:
            assert [type(each) for each in await outcomes(sent + waiting)] == [
                PublishTimedOut,
                BrokerUnavailable,
            ]
            # Nobody has to wait to be told the same.
            assert [type(each) for each in await settled(broker, [record("t")])] == [BrokerUnavailable]
            assert not broker.health().ready
        assert len(errors) == 1
        disk.answers.set()
        await eventually(lambda: broker.health().ready)
        assert (await within(broker.publish(record("t", b"after")))).offset == 2
    # What timed out may be there, and is; what was said not to be there is not.
    assert [row[3] for row in stored(path)] == [b"before", b"sent", b"after"]


@pytest.mark.parametrize("operation", ["append", "read"])
@pytest_twisted.ensureDeferred
async def test_a_disk_that_does_not_answer_keeps_nobody_from_stopping(path, monkeypatch, operation):
    monkeypatch.setattr("sampleapp.brokers.sqlite.broker._LAST_WAIT_S", 0.5)
    broker = new_broker(path)
    broker.start()
    await within(broker.publish(record("t", b"before")))
    disk = Disk(broker, monkeypatch, operation)
    broker.follow(topic="t", observer=Recorder())
    sent = [broker.publish(record("t", b"sent"))]
    await eventually(disk.is_asked.is_set)
    with logged(LogLevel.error) as errors:
        await within(broker.stop(deadline_s=0))
    assert [type(each) for each in await outcomes(sent)] == [OutcomeUnknown]
    assert ["left behind" in event["log_format"] for event in errors] == [True]
    disk.answers.set()
    await eventually(lambda: broker._thread._pool is None)


@pytest_twisted.ensureDeferred
async def test_the_deadline_of_stop_ends_the_waiting_for_a_lock(path):
    broker = new_broker(path, patience_s=1000)
    broker.start()
    await within(broker.publish(record("t", b"before")))
    with other_connection(path) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        published = [broker.publish(record("t", b"%d" % n)) for n in range(1500)]
        await eventually(lambda: broker._writer._batch)
        with logged(LogLevel.error) as errors:
            assert await within(broker.stop(deadline_s=0.01)) is None
        # Nor was the thread left behind, waiting.
        assert errors == []
        ends = await outcomes(published)
    assert [type(each) for each in ends] == [BrokerUnavailable] * 1000 + [BrokerStopped] * 500
    assert [row[3] for row in stored(path)] == [b"before"]


@pytest_twisted.ensureDeferred
async def test_a_full_disk_fails_publishes_and_room_made_later_is_used(path):
    async with running(path) as broker:
        await within(broker.publish(record("t", b"before")))
        [(pages,)] = await on_its_thread(broker, lambda c: c.execute("PRAGMA page_count").fetchall())
        await on_its_thread(broker, lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchall())
        with logged(LogLevel.error) as errors:
            ends = await settled(broker, [record("t", bytes(8000)) for _ in range(3)])
            assert [type(each) for each in ends] == [BrokerUnavailable] * 3
            assert len({id(each) for each in ends}) == 3
            assert not broker.health().ready
            assert "full" in broker.health().reasons[0]
            assert len(errors) == 1
        # As long as there is no room, looking again does not say that there is.
        with pytest.raises(Exception, match="full"):
            await within(broker._thread.run(broker._file.probe))
        await on_its_thread(broker, lambda c: c.execute("PRAGMA max_page_count = 1000000").fetchall())
        await works_again(broker, path, before=[b"before"])


@pytest_twisted.ensureDeferred
async def test_at_a_real_limit_on_its_size_nothing_is_acknowledged_that_is_not_stored(path):
    report = await process("limited", path, 400_000)
    found = {key.decode(): offset for _, offset, key, _ in stored(path)}
    assert report["refused"] or report["unknown"]
    assert report["retriable"]
    assert not report["ready_at_the_limit"]
    assert str(path) in report["reasons"][0]
    assert len(report["stored"]) > 5
    assert {name: found.get(name) for name in report["stored"]} == report["stored"]
    assert set(report["refused"]).isdisjoint(found)
    assert sorted(found.values()) == list(range(len(found)))


@pytest_twisted.ensureDeferred
async def test_a_file_that_turns_read_only_fails_publishes_and_is_opened_again(path):
    async with running(path) as broker:
        await within(broker.publish(record("t", b"before")))
        await on_its_thread(broker, lambda c: c.execute("PRAGMA query_only = ON"))
        assert "may not be written to" in await unavailable(broker)
        await works_again(broker, path, before=[b"before"])


class FailingCommit:
    """A connection whose next commit fails, as no file can be made to do it."""

    def __init__(self, connection, message):
        self._connection = connection
        self._messages = [message]

    def execute(self, statement, *arguments):
        if statement == "COMMIT" and self._messages:
            raise sqlite3.OperationalError(self._messages.pop())
        return self._connection.execute(statement, *arguments)

    def __getattr__(self, name):
        return getattr(self._connection, name)


@pytest.mark.parametrize(
    ("message", "error", "reason"),
    [
        ("disk I/O error", OutcomeUnknown, "I/O error"),
        ("database is locked", BrokerUnavailable, "locked"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_commit_that_fails_is_rolled_back_and_says_whether_that_is_certain(
    path, message, error, reason
):
    async with running(path) as broker:
        await within(broker.publish(record("t", b"before")))

        def break_it(connection):
            broker._file._connection = FailingCommit(connection, message)

        await on_its_thread(broker, break_it)
        assert reason in await unavailable(broker, error)
        with other_connection(path) as connection:
            # Possible only while the broker's transaction is not left open.
            connection.execute("BEGIN IMMEDIATE")
        await works_again(broker, path, before=[b"before"])


@pytest_twisted.ensureDeferred
async def test_a_file_that_is_damaged_while_it_runs_is_reported_once_and_read_again_when_repaired(path):
    values = [b"%d" % n * 2000 for n in range(300)]
    async with running(path) as broker:
        await settled(broker, [record("t", value) for value in values])
    size = path.stat().st_size
    original = path.read_bytes()
    recorder = Recorder()
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        with path.open("r+b") as file:
            file.seek(size // 3 // 4096 * 4096)
            file.write(b"\xff" * (size // 3))
        with logged(LogLevel.error) as errors:
            following = broker.follow(topic="t", observer=recorder)
            await eventually(lambda: not broker.health().ready)
            assert "is damaged" in broker.health().reasons[0]
            assert following.obstacle() == "The stored records are damaged and cannot be read."
            assert recorder.caught_up_at == []
            # The back-off makes it try some more times.
            await eventually(lambda: broker._followings._all[0]._timer is None)
            await eventually(lambda: broker._followings._all[0]._timer is not None)
            assert len(errors) == 1
        with path.open("r+b") as file:
            file.write(original)
        await recorder.until(300)
        await eventually(lambda: broker.health().ready)
        assert following.obstacle() is None
        assert recorder.values() == values


@pytest_twisted.ensureDeferred
async def test_a_file_that_is_overwritten_while_it_runs_fails_publishes(path):
    async with running(path) as broker:
        await settled(broker, [record("t", bytes(2000)) for _ in range(300)])
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)
        await on_its_thread(broker, lambda c: c.execute("PRAGMA shrink_memory"))
        ends = await settled(broker, [record("t", b"lost")])
        assert isinstance(ends[0], BrokerUnavailable)
        assert not broker.health().ready


@pytest.mark.parametrize("replaced", [False, True])
@pytest_twisted.ensureDeferred
async def test_a_file_that_is_moved_away_while_it_runs_takes_no_records_until_it_is_back(path, replaced):
    async with running(path) as broker:
        await within(broker.publish(record("t", b"before")))
        aside = path.with_name("aside")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
        if replaced:
            path.touch()
        assert ("was replaced" if replaced else "was moved or deleted") in await unavailable(broker)
        path.unlink(missing_ok=True)
        for suffix in ("-wal", "-shm", ""):
            if Path(f"{aside}{suffix}").exists():
                Path(f"{aside}{suffix}").rename(f"{path}{suffix}")
        await works_again(broker, path, before=[b"before"])


# --- the small parts -----------------------------------------------------------------------------------


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


def test_sqlite_words_its_errors_as_the_messages_that_are_known(path):
    make_log(path)
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
