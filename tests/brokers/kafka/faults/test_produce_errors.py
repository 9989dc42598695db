"""Errors in the answers to Produce and InitProducerId."""

from __future__ import annotations

import struct

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.logger import LogLevel

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.errors import (
    BrokerUnavailable,
    OutcomeUnknown,
    RecordRefused,
    RecordTooLarge,
    TopicNotAuthorized,
)
from tests.brokers.kafka.faults.running import (
    FOR_EVER,
    assert_published,
    numbered,
    running,
    soon,
    soon_failed,
    values_in,
)
from tests.support.brokers import eventually, outcomes, record, settled, within
from tests.support.kafka_log import log_of
from tests.support.logs import logged
from tests.support.mock_cluster import (
    DROP_CONNECTION,
    INIT_PRODUCER_ID,
    PRODUCE,
    Tap,
)

COORDINATOR_LOAD_IN_PROGRESS = 14
"""Not among those that this service knows."""

PASSING = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
]


@pytest.mark.parametrize("code", PASSING)
@pytest_twisted.ensureDeferred
async def test_an_error_that_passes_is_waited_for_in_order(mock, code):
    mock.push_errors(PRODUCE, code, code)
    async with running(mock.bootstrap) as broker:
        mock.track_requests()
        waiting = [broker.publish(each) for each in numbered(10)]
        await eventually(lambda: mock.requests(PRODUCE))
        waiting += [broker.publish(each) for each in numbered(10, start=10)]
        answers = await outcomes(waiting)
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log, numbered(20))
    assert [int(each.value) for each in log] == list(range(20))


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS])
@pytest_twisted.ensureDeferred
async def test_what_was_never_stored_is_unavailable_at_the_deadline_and_not_published_later(mock, code):
    mock.push_errors(PRODUCE, *[code] * FOR_EVER)
    async with running(mock.bootstrap, delivery_timeout="3") as broker:
        ends = await settled(broker, numbered(3))
        assert {type(each) for each in ends} == {BrokerUnavailable}
        mock.clear_errors(PRODUCE)
        await soon(broker.publish(record("t", b"next", key=b"k")))
    assert await values_in(mock) == [b"next"]


@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
@pytest_twisted.ensureDeferred
async def test_what_may_have_been_stored_is_unknown_at_the_deadline_and_cannot_come_later(mock, code):
    mock.push_errors(PRODUCE, *[code] * FOR_EVER)
    async with Tap(mock, reactor) as tap, running(tap.bootstrap, delivery_timeout="3") as broker:
        ends = await settled(broker, numbered(3))
        assert all(isinstance(each, OutcomeUnknown) for each in ends)
        given_up = tap.batches()
        assert len(set(given_up)) == 1
        mock.clear_errors(PRODUCE)
        await soon(broker.publish(record("t", b"next", key=b"k")))
        *_, last = tap.batches()
        # What is of an earlier epoch, and still on its way somewhere, is rejected (KIP-360).
        assert (last.producer_id, last.epoch) > (given_up[0].producer_id, given_up[0].epoch)
        assert last.base_sequence == 0
    assert await values_in(mock) == [b"next"]


@pytest_twisted.ensureDeferred
async def test_what_is_not_authorized_is_rejected_at_once(mock):
    mock.push_errors(PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with running(mock.bootstrap) as broker:
        mock.track_requests()
        assert type(await soon_failed(broker.publish(record("t")))) is TopicNotAuthorized
        assert len(mock.requests(PRODUCE)) == 1
        await soon(broker.publish(record("t", b"next")))
    assert await values_in(mock) == [b"next"]


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD])
@pytest.mark.parametrize("rejections", [1, 3])
@pytest_twisted.ensureDeferred
async def test_a_batch_that_is_rejected_for_a_record_is_split_and_the_order_holds(mock, code, rejections):
    mock.push_errors(PRODUCE, *[code] * rejections)
    sent = numbered(64)
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        answers = await settled(broker, sent)
        counts = [each.count for each in tap.batches()]
    assert counts[0] == 64
    assert sorted(counts[: rejections + 1], reverse=True) == counts[: rejections + 1]
    assert len(set(counts[: rejections + 1])) == rejections + 1
    assert sum(counts[rejections:]) == 64
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log, sent)
    assert [int(each.value) for each in log] == list(range(64))


@pytest_twisted.ensureDeferred
async def test_records_that_the_broker_names_are_rejected_and_the_others_published_in_order(mock):
    def name_two(api_key, answer):
        if api_key != PRODUCE or len(tap.of(PRODUCE)) > 1:
            return answer
        # ProduceResponse of version 8, which names records (KIP-467).
        return b"".join(
            [
                answer[:4],
                struct.pack(">ih1siihqqq", 1, 1, b"t", 1, 0, ErrorCode.INVALID_RECORD, -1, -1, -1),
                struct.pack(">iih5sih", 2, 1, 5, b"It is", 4, -1),
                struct.pack(">h6si", 6, b"Of all", 0),
            ]
        )

    mock.push_errors(PRODUCE, ErrorCode.INVALID_RECORD)
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        tap.alter = name_two
        ends = await settled(broker, numbered(6))
        assert [each.count for each in tap.batches()] == [6, 4]
    assert [type(ends[index]) for index in (1, 4)] == [RecordRefused, RecordRefused]
    assert "It is" in str(ends[1])
    sent = [each for index, each in enumerate(numbered(6)) if index not in {1, 4}]
    log = await log_of(mock.bootstrap, "t")
    assert_published([each for index, each in enumerate(ends) if index not in {1, 4}], log, sent)
    assert [each.value for each in log] == [b"0", b"2", b"3", b"5"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, RecordTooLarge),
        (ErrorCode.INVALID_RECORD, RecordRefused),
        # The time is that of the service, not the sender's.
        (ErrorCode.INVALID_TIMESTAMP, BrokerUnavailable),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_single_record_that_is_rejected_is_not_sent_again(mock, code, error):
    mock.push_errors(PRODUCE, code)
    async with running(mock.bootstrap) as broker:
        mock.track_requests()
        assert type(await soon_failed(broker.publish(record("t")))) is error
        assert len(mock.requests(PRODUCE)) == 1
        await soon(broker.publish(record("t", b"next")))
    assert await values_in(mock) == [b"next"]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID],
)
@pytest_twisted.ensureDeferred
async def test_records_whose_numbering_is_rejected_are_numbered_anew_and_published_once(mock, code):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        first = await settled(broker, numbered(3))
        mock.push_errors(PRODUCE, code)
        answers = first + await settled(broker, numbered(4, start=3))
        answers += await settled(broker, numbered(2, start=7))
        before, rejected, again, after = tap.batches()
    assert (rejected.producer_id, rejected.epoch) == (before.producer_id, before.epoch)
    assert (again.producer_id, again.epoch) != (rejected.producer_id, rejected.epoch)
    assert (again.base_sequence, again.count) == (0, 4)
    assert after == again._replace(base_sequence=4, count=2)
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log, numbered(9))
    assert [int(each.value) for each in log] == list(range(9))


@pytest_twisted.ensureDeferred
async def test_a_lost_answer_and_then_a_rejected_number_leave_the_outcome_unknown(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        await within(broker.publish(record("t", b"0")))
        tap.lose_answers(PRODUCE)
        waiting = broker.publish(record("t", b"1"))
        await eventually(lambda: len(tap.of(PRODUCE)) == 2)
        mock.push_errors(PRODUCE, ErrorCode.UNKNOWN_PRODUCER_ID)
        assert isinstance(await soon_failed(waiting), OutcomeUnknown)
        await soon(broker.publish(record("t", b"2")))
    assert await values_in(mock) == [b"0", b"1", b"2"]


@pytest_twisted.ensureDeferred
async def test_who_may_not_be_idempotent_goes_on_without_and_is_warned_once(mock):
    mock.push_errors(INIT_PRODUCER_ID, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with logged(LogLevel.warn) as warnings:
        async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
            sent = numbered(5)
            answers = await settled(broker, sent)
            assert {each.producer_id for each in tap.batches()} == {-1}
            assert len(tap.of(INIT_PRODUCER_ID)) == 1
    assert_published(answers, await log_of(mock.bootstrap, "t"), sent)
    assert len(warnings) == 1
    assert "CLUSTER_AUTHORIZATION_FAILED" in str(warnings[0])


@pytest_twisted.ensureDeferred
async def test_a_producer_id_that_is_not_to_be_had_yet_is_waited_for(mock):
    mock.push_errors(INIT_PRODUCER_ID, COORDINATOR_LOAD_IN_PROGRESS, DROP_CONNECTION)
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        sent = numbered(5)
        answers = await settled(broker, sent)
        assert min(each.producer_id for each in tap.batches()) >= 0
    assert_published(answers, await log_of(mock.bootstrap, "t"), sent)
