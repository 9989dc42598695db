"""Reads of the SQLite broker that no other broker has: deleted records, made files, steps on the thread."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock

from sampleapp.brokers.sqlite import reader, rows
from sampleapp.brokers.sqlite.store import Store
from sampleapp.errors import BrokerStopped, BrokerUnavailable, UnknownTopic
from sampleapp.model import EARLIEST, FromEnd, FromOffset, FromTime, GoneRecords, ReadRequest, RecordMetadata
from tests.support.brokers import eventually, outcomes, record, settled, turns, within
from tests.support.record_pages import PageService
from tests.support.sqlite import new_broker, other_connection, running


def read(broker, start=EARLIEST, *, topic="t", limit=100, max_bytes=1_000_000, caller="", key=None):
    return broker.read(
        ReadRequest(topic=topic, others=start, limit=limit, max_bytes=max_bytes, caller=caller, key=key)
    )


def offsets(result):
    return [each.offset for each in result.records]


async def answered(service, target):
    asked = service.ask(target, settle_s=0)

    def is_answered():
        service.clock.advance(0.001)
        return asked.is_answered

    await eventually(is_answered)
    return asked.page


def delete(path, condition):
    with other_connection(path) as connection:
        connection.execute(f"DELETE FROM record WHERE {condition}")


@pytest_twisted.ensureDeferred
async def test_deleted_records_are_gone_for_an_exact_position_and_only_for_that(path):
    async with running(path) as broker:
        await settled(broker, [record("t", b"%d" % n, timestamp_ms=n) for n in range(10)])
        delete(path, "offset IN (0, 1, 2, 5, 9)")
        gone = await within(read(broker, 2))
        assert gone.gone == [GoneRecords(partition=0, asked=2, earliest=3)]
        assert (offsets(gone), gone.positions, gone.ends, gone.is_up_to_date) == ([], {0: 2}, {0: 10}, False)
        for start in (3, EARLIEST, FromOffset(1), FromEnd(99), FromTime(0)):
            found = await within(read(broker, start))
            assert (offsets(found), found.positions, found.gone) == ([3, 4, 6, 7, 8], {0: 10}, ())
        assert offsets(await within(read(broker, 5))) == [6, 7, 8]
        assert (await within(read(broker, EARLIEST, limit=0))).positions == {0: 3}
        delete(path, "offset < 100")
        assert (await within(read(broker, 9))).gone == [GoneRecords(partition=0, asked=9, earliest=10)]
        empty = await within(read(broker))
        assert (empty.positions, empty.is_up_to_date) == ({0: 10}, True)


@pytest_twisted.ensureDeferred
async def test_many_reads_of_one_caller_delay_one_of_another_by_a_few(path):
    async with running(path) as broker:
        await settled(broker, [record("t", b"%d" % n) for n in range(10)])
        ended = []
        many = [read(broker, caller="one").addCallback(lambda _: ended.append("one")) for _ in range(100)]
        assert offsets(await within(read(broker, caller="two"))) == list(range(10))
        assert len(ended) <= 5
        for each in many:
            await within(each)


@pytest_twisted.ensureDeferred
async def test_the_rest_that_is_deleted_during_a_read_is_left_to_the_next(path, monkeypatch):
    monkeypatch.setattr(reader, "_STEP_RECORDS", 2)
    section, found = Store.section, []

    def deleting(store, *arguments, **options):
        if len(found) == 1:
            delete(path, "offset < 8")
        found.append(section(store, *arguments, **options))
        return found[-1]

    monkeypatch.setattr(Store, "section", deleting)
    async with running(path) as broker:
        await settled(broker, [record("t", b"%d" % n) for n in range(10)])
        first = await within(read(broker))
        assert (offsets(first), first.positions) == ([0, 1], {0: 2})
        assert (await within(read(broker, 2))).gone == [GoneRecords(partition=0, asked=2, earliest=8)]


@pytest_twisted.ensureDeferred
async def test_a_topic_keeps_its_id_and_another_file_or_a_topic_made_again_has_another(path, tmp_path):
    ids = []
    for file in (path, path, tmp_path / "other"):
        async with running(file) as broker:
            await settled(broker, [record("t"), record("u")])
            ids += [(await within(read(broker, topic=topic))).topic_id for topic in ("t", "u")]
    assert ids[:2] == ids[2:4]
    assert len(set(ids)) == 4
    with other_connection(path) as connection:
        connection.execute("DELETE FROM topic WHERE name = 'u'")
        # As an operator does it.
        connection.execute("INSERT INTO topic (name) VALUES ('u')")
    async with running(path) as broker:
        again = (await within(read(broker, topic="u"))).topic_id
    assert again not in ids
    assert len(again) == 16


@pytest.mark.parametrize("topic", ["missing", "\ud800"])
@pytest_twisted.ensureDeferred
async def test_a_topic_that_is_not_there_is_not_made(path, topic):
    async with running(path) as broker:
        (failed,) = await outcomes([read(broker, topic=topic)])
        assert isinstance(failed, UnknownTopic)
        assert await within(broker.list_topics()) == []


@pytest_twisted.ensureDeferred
async def test_the_size_of_headers_counts(path):
    async with running(path) as broker:
        await settled(broker, [record("t", headers=(("h", bytes(1000)),)) for _ in range(9)])
        assert 2 <= len((await within(read(broker, max_bytes=3000))).records) <= 3


@pytest.mark.parametrize("damage", ["'no JSON'", "'[]'", "x'00'"])
@pytest_twisted.ensureDeferred
async def test_damaged_headers_are_reported_where_they_are(path, damage):
    async with running(path) as broker:
        sent = [record("t", b"%d" % n, headers=(("h", b"%d" % n),)) for n in range(100)]
        await within(broker.publish_many(sent))
        found = await within(read(broker))
        assert [each.headers for each in found.records] == [each.headers for each in sent]
        with other_connection(path) as connection:
            connection.execute(f"UPDATE record SET headers = {damage} WHERE offset = 50")
        if damage != "'[]'":
            (failed,) = await outcomes([read(broker)])
            assert isinstance(failed, BrokerUnavailable)
            assert str(path) not in str(failed)
        assert offsets(await within(read(broker, 51))) == list(range(51, 100))
        assert offsets(await within(read(broker, limit=50))) == list(range(50))


@pytest.mark.parametrize("step", [1, 3, 2000])
@pytest_twisted.ensureDeferred
async def test_only_records_with_the_key_leave_the_store_and_the_others_are_counted(path, monkeypatch, step):
    monkeypatch.setattr(reader, "_STEP_KEYS", step)
    keys = [None, b"", b"k", b"kk", b"\xff", b"\xc3\xa9", b"k\x00", b"k", None, b"k"]
    async with running(path) as broker:
        await settled(broker, [record("t", b"x" * n, key=key) for n, key in enumerate(keys)])
        with other_connection(path) as connection:
            # As an operator may have inserted it.
            connection.execute("UPDATE record SET key = 'é' WHERE offset = 8")
        keys[8] = b"\xc3\xa9"
        delete(path, "offset IN (0, 4)")
        for key in {*keys, b"absent"} - {None}:
            for max_bytes in (1, 1_000_000):
                position, found, left_out = 1, [], 0
                while position < len(keys):
                    result = await within(read(broker, position, max_bytes=max_bytes, key=key))
                    assert result.positions[0] > position
                    assert len(result.records) + result.left_out == result.positions[0] - position <= step
                    assert {each.key for each in result.records} <= {key}
                    position, found = result.positions[0], found + offsets(result)
                    left_out += result.left_out
                expected = [n for n, each in enumerate(keys) if each == key and n not in (0, 4)]
                assert (found, left_out) == (expected, 9 - len(expected))
                assert result.is_up_to_date
        assert offsets(await within(read(broker, EARLIEST, limit=2, key=b"k"))) == [2][: step - 1]
        assert offsets(await within(read(broker, FromEnd(1), key=b"k"))) == [9]


@pytest_twisted.ensureDeferred
async def test_a_page_of_a_key_looks_at_a_hundred_thousand_records_in_the_store(path):
    async with running(path) as broker:
        await settled(broker, [record("t", key=b"other")])
        with other_connection(path) as connection:
            connection.execute(
                "WITH RECURSIVE more (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more WHERE n < 100005)"
                " INSERT INTO record (topic_id, offset, timestamp_ms, key)"
                " SELECT topic_id, n, timestamp_ms, CASE WHEN n = 100005 THEN CAST('k' AS BLOB) ELSE key END"
                " FROM record, more"
            )
            connection.execute("UPDATE topic SET next_offset = 100006")
        service = PageService(broker=broker)
        page = await answered(service, "?key=k")
        assert (page.status, page.position.partition("~")[2], page.is_up_to_date) == (204, "100000", False)
        page = await answered(service, page.next)
        assert (page.places, page.is_up_to_date) == ([(0, 100_005)], True)


@pytest_twisted.ensureDeferred
async def test_a_page_of_a_key_that_has_its_records_looks_at_no_more(path):
    async with running(path) as broker:
        await settled(broker, [record("t", key=b"k"), *[record("t", key=b"other")] * 20])
        reads, read_now = [], broker.read
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "_STEP_KEYS", 5)
            patch.setattr(broker, "read", lambda request: reads.append(request) or read_now(request))
            page = await answered(PageService(broker=broker), "?key=k&limit=1")
        assert (page.places, len(reads)) == ([(0, 0)], 1)


@pytest_twisted.ensureDeferred
async def test_a_time_is_searched_for_in_steps_and_only_once_in_each(path, monkeypatch, disk):
    monkeypatch.setattr(rows, "BLOCK_OFFSETS", 3)
    monkeypatch.setattr(reader, "BLOCK_OFFSETS", 3)
    monkeypatch.setattr(reader, "_BLOCKS_AT_ONCE", 2)
    times = [5, 1, 2, 3, 9, 4, 4, 8, 7, 10]
    async with running(path) as broker:
        await settled(broker, [record("t", timestamp_ms=time) for time in times])
        for asked in range(12):
            first = next((n for n, time in enumerate(times) if time >= asked), 10)
            assert (await within(read(broker, FromTime(asked), limit=0))).positions == {0: first}
    for most_skipped, steps in ((5000, 2), (3, 3), (1, 5)):
        monkeypatch.setattr(rows, "_MOST_SKIPPED", most_skipped)
        # Another process, or the same one after a start.
        async with running(path) as broker:
            disk.asked.clear()
            for asked, first in ((-(10**30), 0), (10**30, 10)):
                assert (await within(read(broker, FromTime(asked), limit=0))).positions == {0: first}
            # Only the first and the last block.
            assert (disk.asked["search_time"], disk.asked["keep_times"]) == (steps, 0)
    async with running(path) as broker:
        await settled(broker, [record("t", timestamp_ms=11), record("t", timestamp_ms=12)])
        for deleted in (0, 1, 4, 9, 11, 12):
            delete(path, f"offset < {deleted}")
            for asked, first in ((0, deleted), (11, max(10, deleted)), (12, max(11, deleted)), (13, 12)):
                assert (await within(read(broker, FromTime(asked), limit=0))).positions == {0: first}


@pytest_twisted.ensureDeferred
async def test_a_time_is_found_in_a_file_that_cannot_be_written_to(path, monkeypatch, disk):
    monkeypatch.setattr(rows, "BLOCK_OFFSETS", 3)
    monkeypatch.setattr(reader, "BLOCK_OFFSETS", 3)
    async with running(path) as broker:
        await settled(broker, [record("t", timestamp_ms=time) for time in range(10)])
        with other_connection(path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            assert (await within(read(broker, FromTime(7), limit=0))).positions == {0: 7}
        assert disk.asked["keep_times"] == 1
        assert (await within(read(broker, FromTime(7), limit=0))).positions == {0: 7}
        assert isinstance(await within(broker.publish(record("t"))), RecordMetadata)


@pytest_twisted.ensureDeferred
async def test_publishes_do_not_wait_for_reads_to_end(path, monkeypatch):
    monkeypatch.setattr(reader, "_STEP_RECORDS", 2)
    async with running(path) as broker:
        await within(broker.publish_many([record("t", b"%d" % n) for n in range(60)]))
        ended = []
        reads = [read(broker).addCallback(lambda found: ended.append("read") or found) for _ in range(10)]
        for _ in range(5):
            await within(broker.publish(record("t")).addCallback(lambda _: ended.append("published")))
        found = await outcomes(reads)
        assert ended[:5] == ["published"] * 5
        for each in found:
            assert offsets(each) == list(range(each.positions[0]))
            assert each.ends == each.positions


@pytest_twisted.ensureDeferred
async def test_only_a_few_reads_hold_a_part_of_their_records_while_they_wait_for_the_rest(path, monkeypatch):
    monkeypatch.setattr(reader, "_STEP_RECORDS", 2)
    section, ended, most = Store.section, set(), []
    begun = set()

    def counted(store, topic, *arguments, **limits):
        begun.add(topic)
        most.append(len(begun - ended))
        return section(store, topic, *arguments, **limits)

    monkeypatch.setattr(Store, "section", counted)
    topics = [f"t{number}" for number in range(20)]
    async with running(path) as broker:
        await within(broker.publish_many([record(topic) for topic in topics for _ in range(9)]))
        reads = [read(broker, topic=topic) for topic in topics]
        for topic, each in zip(topics, reads, strict=True):
            each.addCallback(lambda found, topic=topic: ended.add(topic) or found)
        # One that gives up lets the next begin.
        reads[0].cancel()
        reads[19].cancel()
        found = await outcomes(reads)
    assert [offsets(each) for each in found[1:19]] == [list(range(9))] * 18
    assert max(most) <= 5


@pytest_twisted.ensureDeferred
async def test_only_the_waiting_is_cancelled_and_the_next_step_waits_for_the_one_before(path, monkeypatch):
    async with running(path) as broker:
        await settled(broker, [record("t") for _ in range(3)])
        cancelled, other = read(broker), read(broker)
        queued = read(broker)
        cancelled.cancel()
        queued.cancel()
        ends = await outcomes([cancelled, other, queued])
        assert [type(each) for each in ends[::2]] == [CancelledError] * 2
        assert offsets(ends[1]) == [0, 1, 2]


@pytest_twisted.ensureDeferred
async def test_a_disk_that_hangs_is_reported_and_the_broker_can_be_stopped(path, disk):
    clock = Clock()
    broker = new_broker(path, clock=clock)
    (early,) = await outcomes([read(broker)])
    assert isinstance(early, BrokerUnavailable)
    broker.start()
    disk.hang("section")
    reads = [read(broker), read(broker)]
    await eventually(lambda: disk.asked["section"])
    clock.advance(15)
    late, also_late = await outcomes(reads)
    assert {type(late), type(also_late)} == {BrokerUnavailable}
    assert "not responded" in str(late)
    waiting = read(broker)
    stopping = broker.stop(deadline_s=20)
    assert [type(each) for each in await outcomes([waiting, read(broker)])] == [BrokerStopped] * 2
    disk.answer()
    await eventually(lambda: clock.advance(0.1) or stopping.called)
    await within(stopping)
    assert disk.asked["section"] == 1


@pytest_twisted.ensureDeferred
async def test_a_failure_that_nobody_expects_is_logged_and_told_as_an_error_of_reading(
    path, monkeypatch, no_failure_is_lost
):
    def cancelled(*_, **__):
        raise CancelledError

    async with running(path) as broker:
        await within(broker.publish(record("t")))
        with monkeypatch.context() as patched:
            patched.setattr(Store, "section", lambda *_, **__: 1 / 0)
            (failed,) = await outcomes([read(broker)])
        assert isinstance(failed, BrokerUnavailable)
        with monkeypatch.context() as patched:
            patched.setattr(Store, "section", cancelled)
            (failed,) = await outcomes([read(broker)])
        assert isinstance(failed, BrokerUnavailable)
        with monkeypatch.context() as patched:
            patched.setattr("sampleapp.brokers.sqlite.database.PrivateThread.run", lambda *_: 1 / 0)
            (failed,) = await outcomes([read(broker)])
        assert isinstance(failed, BrokerUnavailable)
        await turns()
        assert offsets(await within(read(broker))) == [0]
        assert isinstance(await within(broker.publish(record("t"))), RecordMetadata)
    kinds = [ZeroDivisionError, CancelledError, ZeroDivisionError]
    assert [failure.type for failure in no_failure_is_lost] == kinds
    no_failure_is_lost.clear()
