"""Groups of workers in a SQLite file: what the contract does not promise of all brokers."""

from __future__ import annotations

import pytest
import pytest_twisted
from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.logger import LogLevel

from sampleapp.brokers.shared.deliveries import WorkSettings
from sampleapp.brokers.sqlite import work
from sampleapp.errors import BrokerUnavailable, LeaseLost, OutcomeUnknown
from sampleapp.model import ALL, Acknowledged, Verdicts
from tests.support.brokers import eventually, outcomes, record, turns, within
from tests.support.logs import logged, logged_lines
from tests.support.sqlite import new_broker, other_connection, running

TABLES = {"topic", "record", "identity", "indexed_identity"}
ACCEPT = Verdicts(accept=ALL)


def tables(path):
    with other_connection(path) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def pull(broker, *, most=1, wait_s=0, group="g"):
    return within(broker.work.pull("t", group, most=most, wait_s=wait_s))


def offsets(lease):
    return [each.record.offset for each in lease.messages]


async def publish(broker, count=1):
    await within(broker.publish_many([record("t", b"%d" % n) for n in range(count)]))


@pytest_twisted.ensureDeferred
async def test_a_file_has_no_tables_of_workers_before_the_first_pull(path):
    async with running(path) as broker:
        await publish(broker)
        assert await within(broker.work.backlog("t", "g")) is None
        lost = await outcomes(
            [broker.work.acknowledge("t", "g", b"x", ACCEPT), broker.work.extend("t", "g", b"x")]
        )
        assert [type(each) for each in lost] == [LeaseLost] * 2
        assert tables(path) == TABLES
        await pull(broker)
        assert tables(path) == TABLES | {"work_group", "work_delivery"}


@pytest_twisted.ensureDeferred
async def test_a_pull_without_messages_writes_nothing(path):
    async with running(path) as broker:
        await publish(broker)
        await pull(broker)
        written = path.with_name("log.sqlite3-wal").read_bytes()
        assert [await pull(broker) for _ in range(3)] == [None] * 3
        assert await within(broker.work.backlog("t", "g")) == 1
        assert path.with_name("log.sqlite3-wal").read_bytes() == written


@pytest_twisted.ensureDeferred
async def test_a_topic_has_a_limited_number_of_groups(path, monkeypatch):
    monkeypatch.setattr(work, "MOST_GROUPS", 2)
    async with running(path) as broker, running(path, work=WorkSettings(lease_s=60)) as other:
        await publish(broker)
        for each in (broker, other, broker):
            for group in ("a", "b"):
                await pull(each, group=group)
        found = await outcomes([pull(each, group="c", wait_s=1) for each in (broker, other)])
        assert [type(each) for each in found] == [BrokerUnavailable] * 2
        assert await within(broker.work.backlog("t", "c")) is None
        await within(broker.publish(record("another")))
        assert await within(broker.work.pull("another", "c", most=1, wait_s=0)) is not None


@pytest_twisted.ensureDeferred
async def test_any_broker_on_the_file_takes_a_lease_of_another(path):
    async with running(path) as one, running(path) as other:
        await publish(one, 2)
        lease = await pull(one)
        assert offsets(await pull(other)) == [1]
        extended = await within(other.work.extend("t", "g", lease.token))
        assert (await within(other.work.acknowledge("t", "g", extended.token, ACCEPT))).accepted == 1
        (lost,) = await outcomes([one.work.acknowledge("t", "g", extended.token, ACCEPT)])
        assert isinstance(lost, LeaseLost)


@pytest_twisted.ensureDeferred
async def test_a_pull_waits_for_records_and_releases_of_another_broker_on_the_file(path):
    async with running(path) as one, running(path) as other:
        await publish(one)
        lease = await pull(one)
        waiting = pull(other, wait_s=30)
        await turns()
        assert not waiting.called
        await within(one.work.acknowledge("t", "g", lease.token, Verdicts()))
        assert offsets(await waiting) == [0]
        waiting = pull(other, wait_s=30)
        await turns()
        assert not waiting.called
        await publish(one)
        assert offsets(await waiting) == [1]


@pytest_twisted.ensureDeferred
async def test_a_topic_that_is_made_again_has_other_groups_even_if_its_rows_have_the_same_ids(path):
    async with running(path) as broker:
        await publish(broker, 3)
        lease = await pull(broker, most=2)
    with other_connection(path) as connection:
        before = connection.execute("SELECT id FROM topic").fetchall()
        connection.execute("DELETE FROM record")
        connection.execute("DELETE FROM topic")
    async with running(path) as broker:
        await publish(broker, 2)
        with other_connection(path) as connection:
            assert connection.execute("SELECT id FROM topic").fetchall() == before
        assert await within(broker.work.backlog("t", "g")) is None
        again = await pull(broker, most=3)
        assert [(each.record.offset, each.attempts) for each in again.messages] == [(0, 1), (1, 1)]
        (lost,) = await outcomes([broker.work.acknowledge("t", "g", lease.token, ACCEPT)])
        assert isinstance(lost, LeaseLost)


@pytest_twisted.ensureDeferred
async def test_deleted_records_are_not_given_again_and_do_not_count(path):
    async with running(path) as broker:
        await publish(broker, 10)
        released, held = await pull(broker, most=2), await pull(broker, most=2)
        await within(broker.work.acknowledge("t", "g", released.token, Verdicts()))
        with other_connection(path) as connection:
            connection.execute("DELETE FROM record WHERE offset IN (0, 2, 4, 5, 7)")
        with logged(LogLevel.warn) as warnings:
            assert await within(broker.work.backlog("t", "g")) == 1 + 1 + 4
            assert offsets(await pull(broker, most=3)) == [1, 6, 8]
            assert await within(broker.work.backlog("t", "g")) == 1 + 3 + 1
            assert (await within(broker.work.acknowledge("t", "g", held.token, ACCEPT))).accepted == 2
        assert warnings == []
        assert offsets(await pull(broker, most=3)) == [9]
        assert broker.work.given_up == 0


@pytest_twisted.ensureDeferred
async def test_messages_that_are_given_up_are_counted_and_logged(path):
    async with running(path, work=WorkSettings(attempts=1)) as broker:
        await publish(broker, 3)
        lease = await pull(broker, most=3)
        with logged_lines() as lines:
            done = await within(broker.work.acknowledge("t", "g", lease.token, Verdicts(accept={(0, 0)})))
        assert done == Acknowledged(accepted=1, released=2, rejected=0)
        assert broker.work.given_up == 2
        (line,) = lines
        assert line.startswith("2 messages of topic t are given up: no attempt of group g was accepted.")
        with logged_lines() as lines:
            await publish(broker, 1)
            lease = await pull(broker)
            await within(broker.work.acknowledge("t", "g", lease.token, Verdicts()))
        assert broker.work.given_up == 3
        assert lines == []


@pytest_twisted.ensureDeferred
async def test_large_messages_are_given_a_few_at_a_time(path):
    async with running(path) as broker:
        await within(broker.publish_many([record("t", bytes(400_000)) for _ in range(7)]))
        leases = [await pull(broker, most=500) for _ in range(4)]
        assert [offsets(each) for each in leases[:3]] == [[0, 1, 2], [3, 4, 5], [6]]
        assert leases[3] is None
        for each in leases[:3]:
            await within(broker.work.acknowledge("t", "g", each.token, Verdicts()))
        assert [offsets(await pull(broker, most=500)) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest_twisted.ensureDeferred
async def test_a_clock_that_is_set_back_delays_messages_by_one_lease_at_most(path):
    now_s = [1_700_000_000.0]
    async with running(path, now=lambda: now_s[0]) as broker:
        await publish(broker)
        first = await pull(broker)
        now_s[0] -= 3600
        assert await pull(broker) is None
        now_s[0] += 29
        assert await pull(broker) is None
        now_s[0] += 1
        assert offsets(await pull(broker)) == [0]
        (lost,) = await outcomes([broker.work.acknowledge("t", "g", first.token, ACCEPT)])
        assert isinstance(lost, LeaseLost)


@pytest_twisted.ensureDeferred
async def test_a_broker_with_short_leases_does_not_shorten_those_of_another(path):
    now_s = [1_700_000_000.0]
    options = {"now": lambda: now_s[0]}
    async with (
        running(path, work=WorkSettings(lease_s=300), **options) as long,
        running(path, work=WorkSettings(lease_s=1), **options) as short,
    ):
        await publish(long)
        lease = await pull(long)
        assert await pull(short) is None
        now_s[0] += 299
        assert await pull(short) is None
        assert (await within(long.work.acknowledge("t", "g", lease.token, ACCEPT))).accepted == 1


@pytest_twisted.ensureDeferred
async def test_a_disk_that_does_not_answer_leaves_the_outcome_open(path, disk):
    clock = Clock()
    async with running(path, clock=clock, response_timeout_s=15) as broker:
        publishing = broker.publish(record("t"))
        await eventually(lambda: clock.advance(0.01) or publishing.called)
        lease = await pull(broker)
        disk.hang("work")
        calls = [broker.work.acknowledge("t", "g", lease.token, ACCEPT)]
        await eventually(lambda: disk.asked["work"])
        # These wait for the first one, and more than one transaction could take.
        calls += [broker.work.extend("t", "g", lease.token) for _ in range(20)]
        calls += [broker.work.backlog("t", "g") for _ in range(20)]
        clock.advance(15)
        errors = await outcomes(calls)
        # Nothing was done of those that had to wait.
        assert [type(each) for each in errors] == [OutcomeUnknown] + [BrokerUnavailable] * 40
        assert all("/" not in str(each) for each in errors)
        disk.answer()
        # It was done all the same.
        (lost,) = await outcomes([broker.work.acknowledge("t", "g", lease.token, ACCEPT)])
        assert isinstance(lost, LeaseLost)
        assert await within(broker.work.backlog("t", "g")) == 0
        assert disk.asked["work"] == 3


@pytest_twisted.ensureDeferred
async def test_the_outcome_of_a_read_is_never_unknown(
    path, disk, own_connection, monkeypatch, no_failure_is_lost
):
    clock = Clock()
    async with running(path, clock=clock, response_timeout_s=15) as broker:
        publishing = broker.publish(record("t"))
        await eventually(lambda: clock.advance(0.01) or publishing.called)
        lease = await pull(broker)
        # Together with a call whose commit may have been carried out.
        own_connection.fail_next_commit("disk I/O error")
        calls = [broker.work.acknowledge("t", "g", lease.token, ACCEPT), broker.work.backlog("t", "g")]
        (failed, backlog) = await outcomes(calls)
        assert (type(failed), backlog) == (OutcomeUnknown, 1)
        own_connection.fail_next_commit("disk I/O error")
        found = [await outcomes([broker.work.backlog("t", "g")])]
        with monkeypatch.context() as patch:
            patch.setattr("sampleapp.brokers.sqlite.store.run_all", None)
            found.append(await outcomes([broker.work.backlog("t", "g")]))
        no_failure_is_lost.clear()
        disk.hang("work")
        late = broker.work.backlog("t", "g")
        await eventually(lambda: disk.asked["work"])
        clock.advance(15)
        found.append(await outcomes([late]))
        assert [type(each) for (each,) in found] == [BrokerUnavailable] * 3
        disk.answer()
        assert await within(broker.work.backlog("t", "g")) == 1


@pytest_twisted.ensureDeferred
async def test_messages_that_come_too_late_for_their_pull_are_released(path, disk):
    clock = Clock()
    async with running(path, clock=clock, response_timeout_s=15) as broker:
        publishing = broker.publish(record("t"))
        await eventually(lambda: clock.advance(0.01) or publishing.called)
        disk.hang("work")
        late = broker.work.pull("t", "g", most=1, wait_s=5)
        await eventually(lambda: disk.asked["work"])
        clock.advance(19.9)
        assert not late.called
        clock.advance(0.1)
        (error,) = await outcomes([late])
        assert isinstance(error, OutcomeUnknown)
        disk.answer()
        again = pull(broker, wait_s=5)
        await eventually(lambda: clock.advance(0.01) or again.called)
        lease = await again
        assert [each.attempts for each in lease.messages] == [2]


@pytest.mark.parametrize("count", [0, 1])
@pytest_twisted.ensureDeferred
async def test_a_pull_whose_time_is_over_while_the_disk_works_gets_what_is_there(path, disk, count):
    clock = Clock()
    async with running(path, clock=clock) as broker:
        publishing = broker.publish_many([record("t") for _ in range(1 + count)])
        await eventually(lambda: clock.advance(0.01) or publishing.called)
        await pull(broker)
        disk.hang("work")
        waiting = broker.work.pull("t", "g", most=1, wait_s=5)
        await eventually(lambda: disk.asked["work"])
        clock.advance(5)
        assert not waiting.called
        disk.answer()
        lease = await within(waiting)
        assert lease is None if not count else [each.attempts for each in lease.messages] == [1]


@pytest_twisted.ensureDeferred
async def test_a_pull_has_looked_for_messages_before_its_time_is_over(path, disk):
    clock = Clock()
    async with running(path, clock=clock) as broker:
        publishing = broker.publish(record("t"))
        await eventually(lambda: clock.advance(0.01) or publishing.called)
        disk.hang("work")
        counting = broker.work.backlog("t", "g")
        await eventually(lambda: disk.asked["work"])
        waiting = broker.work.pull("t", "g", most=1, wait_s=1)
        clock.advance(1)
        assert not waiting.called
        disk.answer()
        assert offsets(await within(waiting)) == [0]
        assert await within(counting) is None


@pytest_twisted.ensureDeferred
async def test_the_messages_of_a_pull_that_is_cancelled_while_the_disk_works_are_released(path, disk):
    async with running(path) as broker:
        await publish(broker, 2)
        disk.hang("work")
        cancelled = broker.work.pull("t", "g", most=2, wait_s=0)
        await eventually(lambda: disk.asked["work"])
        cancelled.cancel()
        (error,) = await outcomes([cancelled])
        assert isinstance(error, CancelledError)
        disk.answer()
        again = await pull(broker, most=2, wait_s=30)
        assert [(each.record.offset, each.attempts) for each in again.messages] == [(0, 2), (1, 2)]


@pytest_twisted.ensureDeferred
async def test_what_is_released_goes_to_the_pull_that_has_waited_longest(path, disk):
    async with running(path) as broker:
        await publish(broker)
        lease = await pull(broker)
        disk.hang("work")
        counting = broker.work.backlog("t", "g")
        await eventually(lambda: disk.asked["work"])
        # All of these are in one transaction.
        first = broker.work.pull("t", "g", most=1, wait_s=30)
        done = broker.work.acknowledge("t", "g", lease.token, Verdicts())
        second = broker.work.pull("t", "g", most=1, wait_s=30)
        disk.answer()
        assert offsets(await within(first)) == [0]
        assert not second.called
        assert [await within(done), await within(counting)] == [
            Acknowledged(accepted=0, released=1, rejected=0),
            1,
        ]
        second.cancel()
        await outcomes([second])


@pytest.mark.parametrize(
    ("message", "error"), [("disk I/O error", OutcomeUnknown), ("database is locked", BrokerUnavailable)]
)
@pytest_twisted.ensureDeferred
async def test_a_failed_commit_changes_nothing(path, own_connection, message, error):
    async with running(path) as broker:
        await publish(broker)
        lease = await pull(broker)
        own_connection.fail_next_commit(message)
        (failed,) = await outcomes([broker.work.acknowledge("t", "g", lease.token, ACCEPT)])
        assert type(failed) is error
        assert "/" not in str(failed)
        assert (await within(broker.work.acknowledge("t", "g", lease.token, ACCEPT))).accepted == 1


@pytest_twisted.ensureDeferred
async def test_while_the_file_is_locked_nothing_is_given(path):
    async with running(path, patience_s=0.05) as broker:
        await publish(broker)
        with other_connection(path) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            waiting = [broker.work.pull("t", "g", most=1, wait_s=30) for _ in range(2)]
            errors = await outcomes(waiting)
            # Reading needs no lock.
            assert await within(broker.work.backlog("t", "g")) is None
        assert [type(each) for each in errors] == [BrokerUnavailable] * 2
        assert errors[0] is not errors[1]
        assert offsets(await pull(broker)) == [0]


@pytest_twisted.ensureDeferred
async def test_an_unexpected_fault_is_logged_and_answered(path, monkeypatch, no_failure_is_lost):
    async with running(path) as broker:
        await publish(broker)
        with monkeypatch.context() as patch:
            patch.setattr("sampleapp.brokers.sqlite.store.run_all", None)
            (error,) = await outcomes([broker.work.pull("t", "g", most=1, wait_s=0)])
        assert isinstance(error, OutcomeUnknown)
        assert [failure.type for failure in no_failure_is_lost] == [TypeError]
        no_failure_is_lost.clear()
        assert offsets(await pull(broker)) == [0]


@pytest_twisted.ensureDeferred
async def test_a_broker_that_is_not_started_gives_nothing(path):
    broker = new_broker(path)
    found = await outcomes([broker.work.pull("t", "g", most=1, wait_s=30), broker.work.backlog("t", "g")])
    assert [type(each) for each in found] == [BrokerUnavailable] * 2
    await within(broker.stop(deadline_s=1))
