"""The measures of the SQLite broker, compared with its file."""

from __future__ import annotations

import pytest_twisted

from sampleapp.errors import PublishError
from tests.support.brokers import eventually, outcomes, record, settled, within
from tests.support.sqlite import new_broker, other_connection, running


@pytest_twisted.ensureDeferred
async def test_every_record_is_in_one_commit(path, disk):
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        for _ in range(3):
            await within(broker.publish(record("t")))
        await settled(broker, [record("t") for _ in range(1500)])
        counted = broker.measures()
    assert counted.commit_records.total == 1503
    assert sum(counted.commit_records.counts) == sum(counted.commit_s.counts) == disk.responded["append"] == 6
    assert counted.commit_s.total > 0
    assert counted.failed_commits == 0


@pytest_twisted.ensureDeferred
async def test_the_sizes_are_those_of_the_files(path):
    broker = new_broker(path)
    assert (broker.measures().file_bytes, broker.measures().wal_bytes) == (0, 0)
    async with running(path) as broker:
        await settled(broker, [record("t", bytes(100_000)) for _ in range(5)])
        await within(broker.publish(record("t")))
        counted = broker.measures()
        assert counted.file_bytes == path.stat().st_size > 0
        assert counted.wal_bytes == path.with_name(f"{path.name}-wal").stat().st_size > 500_000


@pytest_twisted.ensureDeferred
async def test_what_could_not_be_stored_is_a_failed_commit(path):
    async with running(path, patience_s=0.01) as broker:
        await within(broker.publish(record("t")))
        with other_connection(path) as other:
            other.execute("BEGIN IMMEDIATE")
            (end,) = await outcomes([broker.publish(record("t"))])
            assert isinstance(end, PublishError)
            other.execute("ROLLBACK")
        counted = broker.measures()
    assert counted.failed_commits == 1
    assert counted.commit_records.total == 1
    assert (counted.waiting.records, counted.waiting.bytes) == (0, 0)
