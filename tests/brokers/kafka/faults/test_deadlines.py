"""Deadlines, the buffer, and the end."""

from __future__ import annotations

import pytest_twisted
from twisted.internet import reactor

from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    BufferFull,
    OutcomeUnknown,
    PublishTimedOut,
    RecordTooLarge,
)
from sampleapp.model import RecordMetadata
from tests.brokers.kafka.faults.running import (
    assert_published,
    keys_by_partition,
    numbered,
    running,
    soon,
    soon_failed,
    values_in,
)
from tests.support.brokers import Recorder, eventually, outcomes, record, settled, turns, within
from tests.support.faster_time import FasterReactor
from tests.support.kafka_log import log_of
from tests.support.mock_cluster import (
    PRODUCE,
)


@pytest_twisted.ensureDeferred
async def test_what_could_not_be_sent_is_unavailable_at_the_deadline(mock):
    async with running(mock.bootstrap, delivery_timeout="2") as broker:
        await within(broker.publish(record("t", b"before")))
        mock.broker_down()
        # Until then, what is written to a connection that is gone may have been sent.
        await eventually(lambda: not broker.health().ready)
        began_s = reactor.seconds()
        ends = await settled(broker, numbered(3))
        assert 1.95 <= reactor.seconds() - began_s < 8
        assert {type(each) for each in ends} == {BrokerUnavailable}
    mock.broker_up()
    assert await values_in(mock) == [b"before"]


@pytest_twisted.ensureDeferred
async def test_what_was_sent_and_not_answered_has_timed_out_at_the_deadline(mock):
    async with running(mock.bootstrap, delivery_timeout="2") as broker:
        await within(broker.publish(record("t", b"before")))
        mock.set_round_trip(60_000)
        began_s = reactor.seconds()
        ends = await settled(broker, numbered(3))
        assert 1.95 <= reactor.seconds() - began_s < 8
        assert {type(each) for each in ends} == {PublishTimedOut}
        assert all(each.possibly_published for each in ends)


@pytest_twisted.ensureDeferred
async def test_a_full_buffer_rejects_at_once_and_is_free_again_later(mock):
    async with running(
        mock.bootstrap, reactor=FasterReactor(), delivery_timeout="5", buffer_bytes="100000"
    ) as broker:
        await within(broker.publish(record("t", b"before")))
        mock.broker_down()
        await eventually(lambda: not broker.health().ready)
        publishes = [broker.publish(record("t", bytes(1000), key=b"%d" % n)) for n in range(200)]
        rejected = [each for each in publishes if each.called]
        assert 100 <= len(rejected) < 180
        ends = await outcomes(publishes)
        assert [type(each) for each in ends] == [BrokerUnavailable] * (200 - len(rejected)) + [
            BufferFull
        ] * len(rejected)
        mock.broker_up()
        await eventually(lambda: broker.health().ready)
        await settled(broker, [record("t", bytes(1000)) for _ in range(30)])
    assert len(await values_in(mock)) == 31


@pytest_twisted.ensureDeferred
async def test_records_of_an_unknown_topic_count_in_the_buffer(mock):
    mock.broker_down()
    async with running(mock.bootstrap, delivery_timeout="0.5", buffer_bytes="100000") as broker:
        publishes = [broker.publish(record(f"{n % 3}", bytes(1000))) for n in range(200)]
        assert sum(each.called for each in publishes) >= 100
        assert {type(each) for each in await outcomes(publishes)} == {BufferFull, BrokerUnavailable}


@pytest_twisted.ensureDeferred
async def test_a_record_larger_than_the_buffer_is_too_large(mock):
    async with running(mock.bootstrap, buffer_bytes="1000") as broker:
        assert type(await soon_failed(broker.publish(record("t", bytes(2000))))) is RecordTooLarge


@pytest_twisted.ensureDeferred
async def test_a_leader_that_does_not_answer_neither_holds_up_the_others_nor_fills_the_buffer(mock):
    mock.create_topic("three", partitions=3)
    for partition in range(3):
        mock.set_leader("three", partition, partition + 1)
    async with running(
        mock.bootstrap,
        reactor=FasterReactor(),
        delivery_timeout="7.5",
        buffer_bytes="200000",
        stop_within_s=0,
    ) as broker:
        keys = await keys_by_partition(broker, "three")
        mock.set_round_trip(60_000, broker=3)
        stuck = [broker.publish(record("three", bytes(1000), key=keys[2])) for _ in range(200)]
        assert any(each.called for each in stuck)
        for n in range(40):
            await soon(broker.publish(record("three", bytes(1000), key=keys[n % 2])))
        # Without a key, a partition is chosen that is not behind.
        for _ in range(20):
            await soon(broker.publish(record("three", bytes(1000))))
        kinds = {type(each) for each in await outcomes(stuck)}
        assert kinds == {BufferFull, PublishTimedOut}
        assert broker.health().ready


@pytest_twisted.ensureDeferred
async def test_a_leader_that_did_not_answer_gets_hardly_any_more_records_without_a_key(mock):
    mock.create_topic("three", partitions=3)
    for partition in range(3):
        mock.set_leader("three", partition, partition + 1)
    async with running(mock.bootstrap, delivery_timeout="2", stop_within_s=0) as broker:
        await keys_by_partition(broker, "three")
        mock.set_round_trip(60_000, broker=3)
        ends = []
        while not ends or isinstance(ends[-1], RecordMetadata):
            ends += await settled(broker, [record("three")])
        # One after the other, so that no queue is ever longer than another.
        ends = [(await settled(broker, [record("three")]))[0] for _ in range(20)]
        assert sum(not isinstance(each, RecordMetadata) for each in ends) <= 2


@pytest_twisted.ensureDeferred
async def test_stop_waits_for_what_was_accepted(mock):
    async with running(mock.bootstrap) as broker:
        await within(broker.publish(record("t", b"0", key=b"k")))
        mock.set_round_trip(200)
        waiting = [broker.publish(each) for each in numbered(5, start=1)]
        await turns()
        waiting += [broker.publish(each) for each in numbered(5, start=6)]
        await within(broker.stop(deadline_s=10))
        assert all(each.called for each in waiting)
        answers = await outcomes(waiting)
        mock.set_round_trip(0)
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log[1:], numbered(10, start=1))


@pytest_twisted.ensureDeferred
async def test_stop_at_once_tells_what_was_never_sent_from_what_may_be_stored(mock):
    async with running(mock.bootstrap) as broker:
        await within(broker.publish(record("t", b"before", key=b"k")))
        mock.set_round_trip(60_000)
        mock.track_requests()
        sent = broker.publish(record("t", b"sent", key=b"k"))
        await eventually(lambda: mock.requests(PRODUCE))
        waiting = broker.publish(record("t", b"waiting", key=b"k"))
        await broker.stop(deadline_s=0).addTimeout(5, reactor)
        unknown, stopped = await outcomes([sent, waiting])
        assert isinstance(unknown, OutcomeUnknown)
        assert type(stopped) is BrokerStopped
        mock.set_round_trip(0)
    assert await values_in(mock) == [b"before", b"sent"]


@pytest_twisted.ensureDeferred
async def test_stop_ends_by_its_deadline_when_nothing_can_be_reached(mock):
    mock.broker_down()
    async with running(mock.bootstrap) as broker:
        broker.follow(topic="t", observer=Recorder())
        waiting = [broker.publish(each) for each in numbered(3)]
        await broker.stop(deadline_s=0.3).addTimeout(5, reactor)
        assert {type(each) for each in await outcomes(waiting)} == {BrokerStopped}
