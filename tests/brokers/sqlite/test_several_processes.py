"""Several processes on one file."""

from __future__ import annotations

import itertools

import pytest_twisted
from twisted.internet.threads import deferToThread

from sampleapp.brokers.sqlite.database import SCHEMA_VERSION
from sampleapp.brokers.sqlite.store import Store
from sampleapp.errors import LeaseLost
from sampleapp.model import ALL, Verdicts
from tests.support import sqlite_process
from tests.support.brokers import (
    Recorder,
    outcomes,
    record,
    settled,
    within,
)
from tests.support.sqlite import in_process, other_connection, running, stored


@pytest_twisted.ensureDeferred
async def test_two_processes_publish_to_one_file_without_a_gap_or_a_repeat(path):
    # Neither has created the file: both may try at the same moment.
    other = in_process(sqlite_process.publish, path, "t", "other", 300)
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
async def test_a_record_that_is_sent_to_two_processes_is_published_once(path):
    publishing = [in_process(sqlite_process.publish_identified, path, 300) for _ in range(2)]
    (one, replayed_one), (other, replayed_other) = await outcomes(
        [pytest_twisted.defer.ensureDeferred(each) for each in publishing]
    )
    assert one == other == {row[3].decode(): row[1] for row in stored(path)}
    assert len(stored(path)) == 300
    assert replayed_one.isdisjoint(replayed_other)
    assert len(replayed_one | replayed_other) == 300


@pytest_twisted.ensureDeferred
async def test_a_follower_sees_what_another_process_publishes(path):
    recorder = Recorder()
    async with running(path) as broker:
        broker.follow(topic="t", observer=recorder)
        await recorder.until(0)
        await in_process(sqlite_process.publish, path, "t", "other", 20)
        await recorder.until(20)
    assert recorder.values() == [b"other-%d" % n for n in range(20)]


@pytest_twisted.ensureDeferred
async def test_processes_share_the_messages_of_a_topic(path):
    async with running(path) as broker:
        await within(broker.publish_many([record("t") for _ in range(200)]))
        assert await within(broker.work.pull("t", "g", most=1, wait_s=0)) is not None
        lease = await within(broker.work.pull("t", "g", most=1, wait_s=0))
        await within(broker.work.acknowledge("t", "g", lease.token, Verdicts(accept=ALL)))
    with other_connection(path) as connection:
        connection.execute("UPDATE work_delivery SET ends_ms = 0")
    working = [
        pytest_twisted.defer.ensureDeferred(in_process(sqlite_process.work, path, count)) for count in (2, 3)
    ]
    one, other = await outcomes(working)
    assert sorted([*one, *other, lease.messages[0].record.offset]) == list(range(200))


@pytest_twisted.ensureDeferred
async def test_leases_outlive_a_process_that_is_killed(path):
    process, pipe = sqlite_process.start(sqlite_process.hold, path)
    done, held, released = await deferToThread(pipe.recv)
    process.kill()
    await deferToThread(process.join)
    pipe.close()
    async with running(path) as broker:
        again = await within(broker.work.pull("t", "g", most=6, wait_s=0))
        assert [(each.record.offset, each.attempts) for each in again.messages] == [(4, 2), (5, 2)]
        lost = await outcomes(
            [broker.work.acknowledge("t", "g", each, Verdicts()) for each in (done, released)]
        )
        assert [type(each) for each in lost] == [LeaseLost] * 2
        assert (await within(broker.work.acknowledge("t", "g", held, Verdicts(accept=ALL)))).accepted == 2
        assert await within(broker.work.backlog("t", "g")) == 2


def probe_and_close(store):
    try:
        store.probe()
    finally:
        store.close()


@pytest_twisted.ensureDeferred
async def test_many_that_create_the_file_at_the_same_moment_all_end_well(tmp_path):
    for attempt in range(5):
        path = tmp_path / str(attempt)
        stores = [Store(path=path, patience_s=60) for _ in range(8)]
        assert await outcomes([deferToThread(probe_and_close, store) for store in stores]) == [None] * 8
        with other_connection(path) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
