"""Topics that are unknown, rejected, or without a leader: what callers are told."""

from __future__ import annotations

import struct

import pytest
import pytest_twisted
from twisted.internet import reactor

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.errors import (
    BrokerUnavailable,
    IllegalTopic,
    TopicNotAuthorized,
    UnknownTopic,
)
from tests.brokers.kafka.faults.running import (
    assert_published,
    numbered,
    running,
    soon,
    soon_failed,
    values_in,
)
from tests.support.brokers import eventually, outcomes, record, settled, turns
from tests.support.faster_time import FasterReactor
from tests.support.kafka_log import log_of, topics_of
from tests.support.mock_cluster import (
    METADATA,
    Tap,
)


@pytest_twisted.ensureDeferred
async def test_an_unknown_topic_is_rejected_within_two_seconds_and_not_made(mock):
    async with running(mock.bootstrap) as broker:
        with pytest.raises(UnknownTopic):
            await broker.publish(record("absent")).addTimeout(2, reactor)
        assert broker.health().ready
    assert set(await topics_of(mock.bootstrap)) == {"t"}


@pytest_twisted.ensureDeferred
async def test_unknown_topics_neither_hold_up_others_nor_make_a_storm_of_questions(mock):
    async with running(mock.bootstrap, reactor=FasterReactor()) as broker:
        mock.track_requests()
        absent = [broker.publish(record(f"absent-{n}")) for n in range(200)]
        await soon(broker.publish(record("t")))
        assert {type(each) for each in await outcomes(absent)} == {UnknownTopic}
        assert len(mock.requests(METADATA)) < 30
    assert set(await topics_of(mock.bootstrap)) == {"t"}


@pytest_twisted.ensureDeferred
async def test_with_auto_create_an_unknown_topic_is_made(mock):
    async with running(mock.bootstrap, auto_create="true") as broker:
        sent = numbered(5, topic="new")
        answers = await settled(broker, sent)
    assert_published(answers, await log_of(mock.bootstrap, "new"), sent)


@pytest_twisted.ensureDeferred
async def test_a_topic_that_was_unknown_can_be_published_to_once_it_exists(mock):
    async with running(mock.bootstrap, reactor=FasterReactor()) as broker:
        [rejected] = await settled(broker, [record("later")])
        assert isinstance(rejected, UnknownTopic)
        mock.create_topic("later")
        await soon(broker.publish(record("later", b"now")))
    assert await values_in(mock, "later") == [b"now"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, TopicNotAuthorized),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, IllegalTopic),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_topic_that_metadata_rejects_is_rejected_at_once(mock, code, error):
    unknown, rejected = (
        struct.pack(">hB3s", each, 4, b"new") for each in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, code)
    )
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        # The mock itself names the partitions of a topic that it rejects.
        tap.alter = lambda _, answer: answer.replace(unknown, rejected)
        assert type(await soon_failed(broker.publish(record("new")))) is error
        mock.create_topic("new")
        await soon(broker.publish(record("new", b"now")))
    assert await values_in(mock, "new") == [b"now"]


@pytest_twisted.ensureDeferred
async def test_the_order_holds_while_leaders_move(mock):
    mock.create_topic("moving", partitions=3)
    keys = [b"a", b"b", b"c", b"d", b"e"]
    sent = [record("moving", b"%d" % n, key=keys[n % 5]) for n in range(1000)]
    answers = []
    async with running(mock.bootstrap) as broker:
        waiting = []
        for turn in range(20):
            waiting += [broker.publish(each) for each in sent[turn * 50 : turn * 50 + 50]]
            mock.set_leader("moving", turn % 3, 1 + (turn // 3 + turn) % 3)
            await turns(5)
        answers = await outcomes(waiting)
    log = await log_of(mock.bootstrap, "moving")
    assert_published(answers, log, sent)
    for key in keys:
        numbers = [int(each.value) for each in log if each.key == key]
        assert numbers == sorted(numbers)


@pytest_twisted.ensureDeferred
async def test_a_partition_without_a_leader_waits_for_one_until_the_deadline(mock):
    mock.set_leader("t", 0, -1)
    async with running(mock.bootstrap, delivery_timeout="0.5") as broker:
        assert type(await soon_failed(broker.publish(record("t", b"too early")))) is BrokerUnavailable
    async with running(mock.bootstrap) as broker:
        waiting = broker.publish(record("t", b"in time"))
        mock.track_requests()
        await eventually(lambda: len(mock.requests(METADATA)) >= 2)
        mock.set_leader("t", 0, 2)
        await soon(waiting)
    assert await values_in(mock) == [b"in time"]
