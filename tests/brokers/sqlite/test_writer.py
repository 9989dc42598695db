"""Group commit, and what bounds it."""

from __future__ import annotations

import pytest
import pytest_twisted

from sampleapp.errors import (
    BrokerStopped,
    BufferFull,
    IllegalTopic,
    RecordRefused,
    RecordTooLarge,
)
from sampleapp.model import RecordMetadata
from tests.support.brokers import (
    Recorder,
    eventually,
    everything,
    outcomes,
    record,
    settled,
    within,
)
from tests.support.sqlite import new_broker, other_connection, running, stored


@pytest_twisted.ensureDeferred
async def test_publishes_that_arrive_while_a_transaction_runs_share_the_next_one(path, disk):
    async with running(path) as broker:

        async def publish_many(name):
            for n in range(20):
                await broker.publish(record("t", b"%d-%d" % (name, n)))

        tasks = [pytest_twisted.defer.ensureDeferred(publish_many(name)) for name in range(64)]
        assert await outcomes(tasks) == [None] * 64
        assert disk.responded["append"] < 64 * 20 / 10
        assert len(await everything(broker, "t")) == 64 * 20


@pytest_twisted.ensureDeferred
async def test_a_transaction_is_bounded_by_count_and_by_bytes(path, disk):
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        await settled(broker, [record("t") for _ in range(2500)])
        assert disk.responded["append"] == 5
        await settled(broker, [record("t", bytes(1_500_000)) for _ in range(6)])
        assert disk.responded["append"] == 7


@pytest_twisted.ensureDeferred
async def test_many_records_take_as_few_transactions_as_those_that_come_alone(path, disk):
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        await within(broker.publish_many([record("t") for _ in range(2500)]))
        assert disk.responded["append"] == 5
        await within(broker.publish_many([record("t", bytes(1_500_000)) for _ in range(6)]))
        assert disk.responded["append"] == 7


@pytest_twisted.ensureDeferred
async def test_nobody_waits_for_all_of_a_large_batch(path, disk):
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        large = [broker.publish_many([record("t", b"%d" % n) for n in range(3000)]) for _ in range(4)]
        alone = broker.publish(record("t", b"alone"))
        few = broker.publish_many([record("t", b"few")] * 20)
        await within(alone)
        await within(few)
        assert disk.responded["append"] == 1
        assert not any(each.called for each in large)
        for found in await outcomes(large):
            offsets = [each.offset for each in found]
            assert offsets == sorted(offsets)
        assert disk.responded["append"] == 25


@pytest_twisted.ensureDeferred
async def test_a_single_record_shares_its_transaction_with_a_small_part_of_a_large_batch(path):
    async with running(path) as broker:
        await eventually(lambda: broker.health().ready)
        large = broker.publish_many([record("t", b"%d" % n) for n in range(1500)])
        await within(broker.publish(record("t", b"alone")))
        assert broker.measures().commit_records.total == 101
        await within(large)
        assert [each.value for each in await everything(broker, "t")][100] == b"alone"


@pytest.mark.parametrize("count", [99, 100, 101, 250])
@pytest_twisted.ensureDeferred
async def test_many_records_of_a_transaction_are_read_back_as_they_were(path, count):
    async with running(path) as broker:
        records = [
            record(f"t{n % 3}", None if n % 5 == 0 else b"%d" % n, key=b"k%d" % n if n % 2 else None)
            for n in range(count)
        ]
        found = await within(broker.publish_many(records))
        assert [each.offset for each in found] == [n // 3 for n in range(count)]
        for number in range(3):
            assert [(each.key, each.value) for each in await everything(broker, f"t{number}")] == [
                (each.key, each.value) for each in records[number::3]
            ]


@pytest_twisted.ensureDeferred
async def test_many_records_that_would_not_fit_into_an_empty_buffer_are_too_large(path):
    async with running(path, buffer_bytes=2_000_000) as broker:
        # So many that their sizes are added up in several turns, and so few that one is enough.
        for count, size in ((50_000, 0), (7_000, 100), (3, 1_000_000)):
            [end] = await outcomes([broker.publish_many([record("t", bytes(size))] * count)])
            assert isinstance(end, RecordTooLarge)
        assert len(await within(broker.publish_many([record("t")] * 7000))) == 7000
        assert len(await everything(broker, "t")) == 7000


@pytest_twisted.ensureDeferred
async def test_many_records_for_which_the_buffer_has_no_room_now_are_taken_later(path, disk):
    async with running(path, buffer_bytes=200_000) as broker:
        await within(broker.publish(record("t", b"before")))
        disk.hang("append")
        taken = broker.publish_many([record("t", bytes(1000)) for _ in range(100)])
        [full] = await outcomes([broker.publish_many([record("t", bytes(1000)) for _ in range(100)])])
        assert isinstance(full, BufferFull)
        assert broker.measures().waiting.records == 100
        disk.answer()
        assert [each.offset for each in await within(taken)] == [*range(1, 101)]
        again = await within(broker.publish_many([record("t", bytes(1000)) for _ in range(100)]))
        assert [each.offset for each in again] == [*range(101, 201)]


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
async def test_many_small_headers_count_for_what_they_take_in_memory(path):
    async with running(path, buffer_bytes=10_000) as broker:
        headers = tuple((f"{n}", b"") for n in range(100))
        [end] = await settled(broker, [record("t", b"", headers=headers)])
        assert isinstance(end, RecordTooLarge)


@pytest_twisted.ensureDeferred
async def test_a_record_that_sqlite_cannot_hold_is_rejected_alone(path):
    # These pages of zeros are never touched, and so never allocated.
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
        # A record that is rejected does not bring its topic into being.
        assert connection.execute("SELECT name FROM topic").fetchall() == [("t",)]


@pytest_twisted.ensureDeferred
async def test_what_has_no_form_in_the_file_is_rejected_alone(path):
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
    many = broker.publish_many([record("t")] * 3)
    recorder = Recorder()
    broker.follow(topic="t", observer=recorder)
    assert not published.called
    assert not many.called
    assert not path.exists()
    broker.start()
    assert (await within(published)).offset == 0
    assert [each.offset for each in await within(many)] == [1, 2, 3]
    await recorder.until(4)
    await within(broker.stop(deadline_s=20))


@pytest_twisted.ensureDeferred
async def test_records_published_before_a_start_that_never_comes_fail_when_it_is_stopped(path):
    broker = new_broker(path)
    following = broker.follow(topic="t", observer=Recorder())
    published = broker.publish(record("t"))
    many = broker.publish_many([record("t")] * 3)
    await within(broker.stop(deadline_s=20))
    [end, ends] = await outcomes([published, many])
    assert [type(each) for each in (end, *ends)] == [BrokerStopped] * 4
    await within(following.stop())
    assert not path.exists()
