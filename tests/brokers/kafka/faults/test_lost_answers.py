"""Brokers that go and come, and requests whose answers are lost: what callers are told."""

from __future__ import annotations

import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import deferLater

from sampleapp.errors import (
    OutcomeUnknown,
)
from sampleapp.model import RecordMetadata
from tests.brokers.kafka.faults.running import (
    assert_published,
    keys_by_partition,
    numbered,
    running,
    soon,
    values_in,
)
from tests.support.brokers import eventually, outcomes, record, settled, within
from tests.support.faster_time import FasterReactor
from tests.support.kafka_log import log_of
from tests.support.mock_cluster import (
    DROP_CONNECTION,
    PRODUCE,
    Tap,
)


@pytest_twisted.ensureDeferred
async def test_records_wait_while_the_brokers_are_down_and_are_published_once_when_they_are_up(mock):
    async with running(mock.bootstrap, reactor=FasterReactor()) as broker:
        first = await settled(broker, numbered(20))
        mock.broker_down()
        await eventually(lambda: not broker.health().ready)
        waiting = [broker.publish(each) for each in numbered(20, start=20)]
        mock.broker_up()
        answers = first + await outcomes(waiting)
        await eventually(lambda: broker.health().ready)
        assert broker.health().reasons == ()
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log, numbered(40))
    assert [int(each.value) for each in log] == list(range(40))


@pytest_twisted.ensureDeferred
async def test_while_one_broker_is_down_its_partitions_wait_and_the_others_do_not(mock):
    mock.create_topic("three", partitions=3)
    for partition in range(3):
        mock.set_leader("three", partition, partition + 1)
    async with running(mock.bootstrap) as broker:
        keys = await keys_by_partition(broker, "three")
        mock.broker_down(3)
        waiting = broker.publish(record("three", b"waited", key=keys[2]))
        for key in (keys[0], keys[1]):
            await soon(broker.publish(record("three", b"went on", key=key)))
        assert not waiting.called
        assert broker.health().ready
        # Without the broker, it stays the leader: another one is elected by a test only.
        mock.set_leader("three", 2, 1)
        await soon(waiting)
    assert (await values_in(mock, "three")).count(b"waited") == 1


@pytest_twisted.ensureDeferred
async def test_a_request_that_the_broker_never_read_is_sent_again(mock):
    async with running(mock.bootstrap) as broker:
        await within(broker.publish(record("t", b"0", key=b"k")))
        mock.push_errors(PRODUCE, DROP_CONNECTION, DROP_CONNECTION)
        answers = await settled(broker, numbered(10, start=1))
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log[1:], numbered(10, start=1))
    assert [int(each.value) for each in log] == list(range(11))


@pytest_twisted.ensureDeferred
async def test_when_an_answer_is_lost_exactly_the_same_batch_is_sent_again(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        await within(broker.publish(record("t")))
        tap.lose_answers(PRODUCE, 2)
        waiting = [broker.publish(each) for each in numbered(7)]
        # What comes later must not get into the batch, nor before it.
        await eventually(lambda: len(tap.of(PRODUCE)) == 2)
        waiting += [broker.publish(each) for each in numbered(3, start=7)]
        answers = await outcomes(waiting)
        assert all(isinstance(each, RecordMetadata) for each in answers)
        first, *same, last = tap.batches()
        assert (first.base_sequence, first.count) == (0, 1)
        assert len(same) == 3
        assert len(set(same)) == 1
        assert len({request.body for request in tap.of(PRODUCE)[1:4]}) == 1
        assert (same[0].base_sequence, same[0].count) == (1, 7)
        # A broker would have known it again by this.
        assert same[0].producer_id == last.producer_id >= 0
        assert (last.base_sequence, last.count) == (8, 3)


@pytest_twisted.ensureDeferred
async def test_a_request_that_is_not_answered_in_half_of_the_time_is_sent_again_as_it_was(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap, delivery_timeout="8") as broker:
        await within(broker.publish(record("t")))
        mock.set_round_trip(60_000)
        waiting = [broker.publish(each) for each in numbered(3)]
        await eventually(lambda: len(tap.of(PRODUCE)) == 2)
        # Half of the time, and a moment more.
        await deferLater(reactor, 4.2)
        mock.set_round_trip(0)
        assert all(isinstance(each, RecordMetadata) for each in await outcomes(waiting))
        _, first, again = tap.of(PRODUCE)
        assert first.body == again.body


@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_cut_short_is_no_answer(mock):
    def cut_short(api_key, answer):
        return answer[:20] if api_key == PRODUCE and len(tap.of(PRODUCE)) == 2 else answer

    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        await within(broker.publish(record("t")))
        tap.alter = cut_short
        assert all(isinstance(each, RecordMetadata) for each in await settled(broker, numbered(3)))
        _, first, again = tap.batches()
        assert first == again


@pytest_twisted.ensureDeferred
async def test_without_idempotence_a_lost_answer_is_an_unknown_outcome_and_nothing_is_sent_twice(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap, idempotence="false") as broker:
        await within(broker.publish(record("t")))
        tap.lose_answers(PRODUCE)
        ends = await settled(broker, numbered(3))
        assert [isinstance(each, OutcomeUnknown) for each in ends] == [True] * 3
        await soon(broker.publish(record("t", b"next")))
        assert [each.count for each in tap.batches()] == [1, 3, 1]
    assert await values_in(mock) == [b"v", b"0", b"1", b"2", b"next"]
