"""Failures of the file while the broker runs."""

# ruff: noqa: ASYNC240 -- a test may look at its few small files while the reactor waits

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import pytest_twisted
from twisted.logger import LogLevel

from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    OutcomeUnknown,
    PublishTimedOut,
)
from tests.support import sqlite_process
from tests.support.brokers import (
    Recorder,
    eventually,
    everything,
    outcomes,
    record,
    settled,
    turns,
    within,
)
from tests.support.faster_time import FasterReactor, HeldTime
from tests.support.logs import logged
from tests.support.sqlite import in_process, new_broker, other_connection, running, stored


async def unavailable(broker, error=BrokerUnavailable):
    """A publish fails, says nothing internal, and health says why."""
    [end] = await settled(broker, [record("t", b"lost")])
    assert type(end) is error
    assert "/" not in str(end)
    assert "sqlite" not in str(end).lower()
    health = broker.health()
    assert not health.ready
    assert "log.sqlite3" in health.reasons[0]
    (public_reason,) = health.public_reasons
    assert "/" not in public_reason
    assert "log.sqlite3" not in public_reason
    return health.reasons[0]


async def works_again(broker, path, *, before):
    await eventually(lambda: broker.health().ready)
    found = await within(broker.publish(record("t", b"after")))
    assert found.offset == len(before)
    assert [row[3] for row in stored(path)] == [*before, b"after"]


async def ready_again(broker, clock):
    """Let time pass, which the broker has for looking at its file again."""
    await eventually(lambda: clock.advance(0.01) or broker.health().ready)


@pytest_twisted.ensureDeferred
async def test_while_the_file_is_locked_publishes_fail_and_afterwards_it_recovers_by_itself(path):
    async with running(path, clock=FasterReactor(), patience_s=0.05) as broker:
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
async def test_a_lock_that_is_let_go_of_in_time_delays_a_publish_only(path, disk):
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        with other_connection(path) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            published = broker.publish(record("t"))
            await eventually(lambda: disk.asked["append"])
            await turns()
            assert not published.called
        assert (await within(published)).offset == 0


@pytest_twisted.ensureDeferred
async def test_a_file_that_is_locked_at_the_start_is_opened_when_it_is_free(path):
    new_broker(path).check()
    with other_connection(path) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        broker = new_broker(path, clock=FasterReactor(), patience_s=0.05)
        broker.start()
        recorder = Recorder()
        broker.follow(topic="t", observer=recorder)
        await unavailable(broker)
        assert recorder.caught_up_at == []
    await works_again(broker, path, before=[])
    await recorder.until(1)
    await within(broker.stop(deadline_s=20))


@pytest_twisted.ensureDeferred
async def test_a_commit_is_synced_before_it_is_answered(path, own_connection):
    pragmas = []

    def ask(connection):
        pragmas.extend(connection.execute("PRAGMA journal_mode").fetchall())
        pragmas.extend(connection.execute("PRAGMA synchronous").fetchall())

    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        own_connection.before_next_use(ask)
        await within(broker.publish(record("t")))
    # 2 is FULL: the write-ahead log is synced by each commit (https://www.sqlite.org/pragma.html).
    assert pragmas == [("wal",), (2,)]


@pytest_twisted.ensureDeferred
async def test_a_disk_that_does_not_answer_keeps_nobody_waiting_for_ever(path, disk):
    clock = HeldTime()
    async with running(path, clock=clock, response_timeout_s=0.5) as broker:
        await within(broker.publish(record("t", b"before")))
        disk.hang("append")
        sent = [broker.publish(record("t", b"sent"))]
        await eventually(lambda: disk.asked["append"])
        waiting = [broker.publish(record("t", b"waiting"))]
        with logged(LogLevel.error) as errors:
            clock.advance(0.5)
            assert [type(each) for each in await outcomes(sent + waiting)] == [
                PublishTimedOut,
                BrokerUnavailable,
            ]
            # Later callers are rejected at once.
            assert [type(each) for each in await settled(broker, [record("t")])] == [BrokerUnavailable]
            assert not broker.health().ready
        assert len(errors) == 1
        disk.answer()
        await ready_again(broker, clock)
        assert (await within(broker.publish(record("t", b"after")))).offset == 2
    # The record that timed out is there; the one that was rejected is not.
    assert [row[3] for row in stored(path)] == [b"before", b"sent", b"after"]


@pytest_twisted.ensureDeferred
async def test_of_many_records_on_a_disk_that_does_not_answer_those_are_in_doubt_that_were_begun(path, disk):
    clock = HeldTime()
    async with running(path, clock=clock, response_timeout_s=0.5) as broker:
        await within(broker.publish(record("t", b"before")))
        disk.hang("append")
        many = broker.publish_many([record("t", b"%d" % n) for n in range(600)])
        await eventually(lambda: disk.asked["append"])
        with logged(LogLevel.error):
            clock.advance(0.5)
            ends = await within(many)
            assert [type(each) for each in ends] == [PublishTimedOut] * 500 + [BrokerUnavailable] * 100
            (end,) = await outcomes([broker.publish_many([record("t", b"refused")])])
            assert isinstance(end, BrokerUnavailable)
            listing = broker.list_topics()
            clock.advance(0.5)
            (end,) = await outcomes([listing])
            assert isinstance(end, BrokerUnavailable)
            assert "0.5 seconds" in str(end)
        disk.answer()
        await ready_again(broker, clock)
    assert [row[3] for row in stored(path)] == [b"before", *(b"%d" % n for n in range(500))]


@pytest.mark.parametrize(
    ("message", "error"), [("disk I/O error", OutcomeUnknown), ("database is locked", BrokerUnavailable)]
)
@pytest_twisted.ensureDeferred
async def test_what_is_behind_a_transaction_that_failed_is_not_tried(path, own_connection, message, error):
    async with running(path, clock=FasterReactor()) as broker:
        await within(broker.publish(record("t", b"before")))
        own_connection.fail_next_commit(message, after=1)
        ends = await within(broker.publish_many([record("t", b"%d" % n) for n in range(1200)]))
        await eventually(lambda: broker.health().ready)
        assert (broker.measures().waiting.records, broker.measures().waiting.bytes) == (0, 0)
        (last,) = await within(broker.publish_many([record("t", b"after")]))
    assert [each.offset for each in ends[:500]] == [*range(1, 501)]
    assert [type(each) for each in ends[500:]] == [error] * 500 + [BrokerUnavailable] * 200
    assert "not published" in str(ends[-1])
    assert last.offset == 501
    assert [row[3] for row in stored(path)] == [b"before", *(b"%d" % n for n in range(500)), b"after"]


@pytest_twisted.ensureDeferred
async def test_topics_of_a_file_that_cannot_be_read_are_not_listed(path, own_connection):
    broker = new_broker(path)
    (early,) = await outcomes([broker.list_topics()])
    assert isinstance(early, BrokerUnavailable)
    async with running(path, clock=FasterReactor()) as broker:
        await within(broker.publish(record("t")))
        own_connection.fail_next("SELECT name FROM topic", "database disk image is malformed")
        (end,) = await outcomes([broker.list_topics()])
        assert isinstance(end, BrokerUnavailable)
        assert "damaged" in str(end)
        assert await within(broker.list_topics()) == ["t"]


@pytest.mark.parametrize("operation", ["append", "read"])
@pytest_twisted.ensureDeferred
async def test_a_disk_that_does_not_answer_keeps_nobody_from_stopping(path, disk, monkeypatch, operation):
    monkeypatch.setattr("sampleapp.brokers.sqlite.broker._LAST_WAIT_S", 0.5)
    broker = new_broker(path, clock=FasterReactor())
    broker.start()
    await within(broker.publish(record("t", b"before")))
    disk.hang(operation)
    broker.follow(topic="t", observer=Recorder())
    await eventually(lambda: operation == "append" or disk.asked["read"])
    sent = [broker.publish(record("t", b"sent"))]
    await eventually(lambda: disk.asked[operation])
    with logged(LogLevel.error) as errors:
        await within(broker.stop(deadline_s=0))
    assert [type(each) for each in await outcomes(sent)] == [OutcomeUnknown]
    assert ["abandoning its thread" in event["log_format"] for event in errors] == [True]
    disk.answer()
    await eventually(lambda: not [t for t in threading.enumerate() if "sampleapp.sqlite" in t.name])


@pytest_twisted.ensureDeferred
async def test_the_deadline_of_stop_ends_the_waiting_for_a_lock(path, disk):
    broker = new_broker(path, patience_s=1000)
    broker.start()
    await within(broker.publish(record("t", b"before")))
    with other_connection(path) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        published = [broker.publish(record("t", b"%d" % n)) for n in range(1500)]
        await eventually(lambda: disk.asked["append"] == 2)
        with logged(LogLevel.error) as errors:
            assert await within(broker.stop(deadline_s=0.01)) is None
        # Nor was the thread abandoned while it waited.
        assert errors == []
        ends = await outcomes(published)
    assert [type(each) for each in ends] == [BrokerUnavailable] * 500 + [BrokerStopped] * 1000
    assert [row[3] for row in stored(path)] == [b"before"]


@pytest_twisted.ensureDeferred
async def test_at_the_deadline_of_stop_those_of_many_records_that_had_to_wait_were_not_published(path, disk):
    broker = new_broker(path, patience_s=1000)
    broker.start()
    await within(broker.publish(record("t", b"before")))
    with other_connection(path) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        many = broker.publish_many([record("t", b"%d" % n) for n in range(1500)])
        await eventually(lambda: disk.asked["append"] == 2)
        # So many that adding up their sizes has not ended when the broker is stopped.
        late = broker.publish_many([record("t", b"late")] * 20_000)
        assert await within(broker.stop(deadline_s=0.01)) is None
        ends, rejected = await outcomes([many, late])
    assert [type(each) for each in ends] == [BrokerUnavailable] * 500 + [BrokerStopped] * 1000
    assert isinstance(rejected, BrokerStopped)
    assert [row[3] for row in stored(path)] == [b"before"]


@pytest_twisted.ensureDeferred
async def test_a_full_disk_fails_publishes_and_room_made_later_is_used(path, disk, own_connection):
    async with running(path, clock=FasterReactor()) as broker:
        await within(broker.publish(record("t", b"before")))
        with other_connection(path) as connection:
            [(pages,)] = connection.execute("PRAGMA page_count").fetchall()
        own_connection.before_next_use(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchall())
        with logged(LogLevel.error) as errors:
            ends = await settled(broker, [record("t", bytes(8000)) for _ in range(3)])
            assert [type(each) for each in ends] == [BrokerUnavailable] * 3
            assert len({id(each) for each in ends}) == 3
            assert not broker.health().ready
            assert "full" in broker.health().reasons[0]
            # While the disk is full, a probe fails as well.
            disk.asked.clear()
            await eventually(lambda: disk.asked["probe"] == 2)
            assert not broker.health().ready
            assert len(errors) == 1
        own_connection.before_next_use(lambda c: c.execute("PRAGMA max_page_count = 1000000").fetchall())
        await works_again(broker, path, before=[b"before"])


@pytest_twisted.ensureDeferred
async def test_at_a_real_limit_on_its_size_nothing_is_acknowledged_that_is_not_stored(path):
    report = await in_process(sqlite_process.limited, path, 400_000)
    found = {key.decode(): offset for _, offset, key, _ in stored(path)}
    assert report["refused"]
    assert not report["unknown"]
    assert report["retriable"]
    assert not report["ready_at_the_limit"]
    assert str(path) in report["reasons"][0]
    assert len(report["stored"]) > 5
    assert {name: found.get(name) for name in report["stored"]} == report["stored"]
    # Then all were sent again. What was rejected has its place only since.
    assert all(found[name] > found["after"] for name in report["refused"])
    assert report["again"] == found
    assert len(found) == len(stored(path))
    assert sorted(found.values()) == list(range(len(found)))


@pytest_twisted.ensureDeferred
async def test_a_file_that_turns_read_only_fails_publishes_and_is_opened_again(path, own_connection):
    async with running(path, clock=FasterReactor()) as broker:
        await within(broker.publish(record("t", b"before")))
        own_connection.before_next_use(lambda c: c.execute("PRAGMA query_only = ON"))
        assert "cannot be written to" in await unavailable(broker)
        await works_again(broker, path, before=[b"before"])


@pytest.mark.parametrize(
    ("message", "error", "reason"),
    [
        ("disk I/O error", OutcomeUnknown, "I/O error"),
        ("database is locked", BrokerUnavailable, "locked"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_commit_that_fails_is_rolled_back_and_says_whether_that_is_certain(
    path, own_connection, message, error, reason
):
    async with running(path, clock=FasterReactor()) as broker:
        await within(broker.publish(record("t", b"before")))
        own_connection.fail_next_commit(message)
        assert reason in await unavailable(broker, error)
        with other_connection(path) as connection:
            # Possible only while the broker's transaction is not left open.
            connection.execute("BEGIN IMMEDIATE")
        await works_again(broker, path, before=[b"before"])


@pytest_twisted.ensureDeferred
async def test_a_transaction_that_cannot_be_begun_certainly_stores_nothing(path, own_connection):
    async with running(path) as broker:
        await within(broker.publish(record("t", b"first")))
        own_connection.fail_next("BEGIN", "disk I/O error")
        (end,) = await settled(broker, [record("t", b"failed")])
        assert isinstance(end, BrokerUnavailable)
        await within(broker.publish(record("t", b"second")))
    assert [value for *_, value in stored(path)] == [b"first", b"second"]


@pytest_twisted.ensureDeferred
async def test_a_file_that_is_damaged_while_it_runs_is_reported_once_and_read_again_when_repaired(path, disk):
    values = [b"%d" % n * 2000 for n in range(300)]
    async with running(path) as broker:
        await settled(broker, [record("t", value) for value in values])
    size = path.stat().st_size
    original = path.read_bytes()
    recorder = Recorder()
    async with running(path, clock=FasterReactor()) as broker:
        await eventually(lambda: broker.health().ready)
        with path.open("r+b") as file:
            file.seek(size // 3 // 4096 * 4096)
            file.write(b"\xff" * (size // 3))
        with logged(LogLevel.warn) as warnings:
            following = broker.follow(topic="t", observer=recorder)
            await eventually(lambda: broker.health().reasons)
            assert "is damaged" in broker.health().reasons[0]
            assert following.unavailable_reason() == "The stored records are damaged and cannot be read."
            assert recorder.caught_up_at == []
            # The back-off makes it try some more times.
            disk.asked.clear()
            await eventually(lambda: disk.asked["read"] == 2)
            assert len(warnings) == 1
        with path.open("r+b") as file:
            file.write(original)
        await recorder.until(300)
        await eventually(lambda: not broker.health().reasons)
        assert following.unavailable_reason() is None
        assert recorder.values() == values


@pytest_twisted.ensureDeferred
async def test_a_file_that_is_overwritten_while_it_runs_fails_publishes(path, own_connection):
    async with running(path) as broker:
        await settled(broker, [record("t", bytes(2000)) for _ in range(300)])
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)
        own_connection.before_next_use(lambda c: c.execute("PRAGMA shrink_memory"))
        ends = await settled(broker, [record("t", b"lost")])
        assert isinstance(ends[0], BrokerUnavailable)
        assert not broker.health().ready


@pytest.mark.parametrize("replaced", [False, True])
@pytest_twisted.ensureDeferred
async def test_a_file_that_is_moved_away_while_it_runs_takes_no_records_until_it_is_back(path, replaced):
    async with running(path, clock=FasterReactor()) as broker:
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
