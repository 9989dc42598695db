"""The producer against a cluster in memory: every answer is true, whatever happens to requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer import accumulator, partition_queue
from sampleapp.brokers.kafka.protocol import Produced, ProduceRequest, ProduceResponse
from sampleapp.errors import (
    BrokerUnavailable,
    OutcomeUnknown,
    PublishTimedOut,
    RecordTooLarge,
)
from sampleapp.model import RecordMetadata
from tests.support.examples import examples
from tests.support.kafka_simulator import Fate, SimulatedClient, reason
from tests.support.kafka_simulator.publishing import (
    TIMEOUT_S,
    ProducerSetup,
    assert_true,
    publish_now,
    publish_one_by_one,
    warm,
)

# Some in a row, so that there are records whose time is over in each state.
FATES = st.lists(
    st.tuples(st.sampled_from([*Fate, Fate.ANSWERED, Fate.ANSWERED]), st.integers(1, 12)),
    min_size=3,
    max_size=12,
).map(lambda runs: [fate for fate, length in runs for _ in range(length)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([b"a", b"b", b"c", None]), st.integers(1, 5)),
        st.tuples(st.just("publish many"), st.sampled_from([b"a", b"b", None]), st.sampled_from([1, 4, 150])),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]), st.none()),
    ),
    min_size=8,
    max_size=40,
)


@examples(120)
@given(steps=STEPS, fates=FATES, idempotence=st.booleans(), before=st.sampled_from([0, 12]))
def test_every_answer_is_true_whatever_happens_to_the_requests(steps, fates, idempotence, before):
    world = ProducerSetup(idempotence=idempotence)
    publish_one_by_one(world, before)
    plan = iter(fates)
    world.decide(lambda: next(plan, Fate.ANSWERED))
    number = before
    for step, what, count in steps:
        if step == "wait":
            world.advance(what)
        elif step == "publish many":
            world.publish_many([b"%d" % each for each in range(number, number + count)], keys=[what, b"c"])
            number += count
        else:
            for _ in range(count):
                world.publish(b"%d" % number, key=what)
                number += 1
    # All deadlines, and the requests that arrive late.
    world.advance(5 * TIMEOUT_S, step_s=0.05)

    assert_true(world)
    for values in world.cluster.values():
        numbers = {}
        for value in values:
            key = world.published[int(value)][1]
            if key is not None:
                numbers.setdefault(key, []).append(int(value))
        if idempotence:
            # Also of those whose callers could not be told.
            assert all(each == sorted(each) for each in numbers.values())
    assert world.producer.buffered_bytes == 0


@examples(50)
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=30), limit=st.integers(400, 3000))
def test_batches_that_are_too_large_are_split_until_only_the_culprits_are_rejected(sizes, limit):
    world = warm(partitions=1)
    world.cluster.batch_limit = limit
    for number, size in enumerate(sizes):
        world.publish(b"%d:" % number + b"x" * size)
    world.advance(TIMEOUT_S)
    answers = world.settled()[1:]
    for (value, _, _), answer in zip(world.published[1:], answers, strict=True):
        if isinstance(answer, RecordMetadata):
            assert world.cluster.values()[0][answer.offset] == value
        else:
            assert type(answer) is RecordTooLarge
            assert len(value) > limit - 200
    assert world.cluster.values()[0][1:] == [
        value
        for (value, _, _), answer in zip(world.published[1:], answers, strict=True)
        if isinstance(answer, RecordMetadata)
    ]


@pytest.mark.parametrize(
    "fate", [Fate.ANSWER_LOST, Fate.LOST_ON_THE_WAY, Fate.TIMED_OUT, Fate.LEADER_RESIGNED]
)
def test_a_batch_whose_outcome_is_unknown_is_sent_again_as_it_was(fate):
    world = warm()
    fates = iter([fate])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    sent = len(world.cluster.produces)
    outcome = world.publish(b"1")
    world.advance(0.005)
    # A new record does not join the batch that the broker may have.
    later = world.publish(b"2")
    world.advance(1)
    assert isinstance(outcome[0], RecordMetadata)
    assert isinstance(later[0], RecordMetadata)
    first, second = world.cluster.produces[sent : sent + 2]
    assert first.topics == second.topics
    assert_true(world)


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.LOST_ON_THE_WAY, Fate.TIMED_OUT])
def test_without_idempotence_a_batch_whose_outcome_is_unknown_is_not_sent_again(fate):
    world = warm(idempotence=False)
    fates = iter([fate])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    sent = len(world.cluster.produces)
    outcome = world.publish(b"1")
    world.advance(TIMEOUT_S)
    assert type(outcome[0].value) is OutcomeUnknown
    assert len(world.cluster.produces) == sent + 1


@pytest.mark.parametrize(
    ("fate", "error"),
    [
        (Fate.NOT_SENT, BrokerUnavailable),
        (Fate.TOO_FEW_REPLICAS, BrokerUnavailable),
        (Fate.NOT_LEADER, BrokerUnavailable),
        (Fate.TIMED_OUT, PublishTimedOut),
        (Fate.LOST_ON_THE_WAY, PublishTimedOut),
        (Fate.TOO_FEW_REPLICAS_AFTER_APPEND, PublishTimedOut),
        (Fate.LATE, PublishTimedOut),
    ],
)
def test_at_the_deadline_a_caller_is_told_whether_the_record_may_have_been_published(fate, error):
    world = warm()
    world.decide(lambda: fate)
    outcome = world.publish(b"1")
    world.advance(TIMEOUT_S - 0.2)
    assert outcome == []
    world.advance(0.4)
    assert type(outcome[0].value) is error


def test_a_batch_that_was_given_up_is_rejected_when_it_arrives_after_all():
    world = warm(partitions=1)
    fates = iter([Fate.LATE, Fate.LATE])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    given_up = world.publish(b"given up")
    world.advance(TIMEOUT_S + 0.5)
    assert type(given_up[0].value) is PublishTimedOut
    later = world.publish(b"later")
    world.advance(1)
    assert isinstance(later[0], RecordMetadata)
    world.advance(5 * TIMEOUT_S, step_s=0.1)
    assert world.cluster.values()[0] == [b"first", b"later"]


@pytest.mark.parametrize(
    ("fate", "error"), [(Fate.ANSWER_LOST, PublishTimedOut), (Fate.FAULT, OutcomeUnknown)]
)
def test_a_record_after_one_whose_outcome_stayed_unknown_is_not_taken_for_it(fate, error):
    world = warm(partitions=1)
    world.decide(lambda: fate)
    unknown = world.publish(b"unknown")
    world.advance(TIMEOUT_S + 0.5)
    assert type(unknown[0].value) is error
    world.decide(lambda: Fate.ANSWERED)
    publish_now(world, b"next")
    assert world.cluster.values()[0] == [b"first", b"unknown", b"next"]
    assert_true(world)


def test_a_record_that_may_be_stored_is_not_said_not_to_be_when_its_leader_cannot_be_used_any_more():
    world = warm(partitions=1, brokers=(1, 2))
    fates = iter([Fate.ANSWER_LOST])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    unknown = world.publish(b"unknown")
    world.advance(0.02)
    world.cluster.cut_off(reason(lasting=True), brokers={1})
    behind = world.publish(b"behind")
    world.advance(0.5)
    assert type(behind[0].value) is BrokerUnavailable
    world.advance(TIMEOUT_S)
    assert type(unknown[0].value) is PublishTimedOut
    assert world.cluster.values()[0] == [b"first", b"unknown"]


def test_a_batch_that_is_rejected_after_some_of_its_callers_were_answered_goes_on_with_the_others():
    world = warm(partitions=1)
    world.decide(lambda: Fate.NOT_LEADER)
    early = world.publish(b"early")
    world.advance(TIMEOUT_S - 0.5)
    late = world.publish(b"late")
    world.decide(lambda: Fate.REJECTED_LATE)
    world.advance(0.7)
    world.decide(lambda: Fate.ANSWERED)
    world.advance(TIMEOUT_S)
    assert type(early[0].value) in (PublishTimedOut, BrokerUnavailable)
    assert isinstance(late[0], RecordMetadata)
    assert world.cluster.values()[0] == [b"first", b"late"]
    assert world.producer.buffered_bytes == 0


def test_a_record_is_not_rejected_for_another_one_whose_time_was_over():
    world = warm(partitions=1)
    world.cluster.batch_limit = 400
    world.decide(lambda: Fate.NOT_SENT)
    world.publish(b"x" * 300)
    world.advance(TIMEOUT_S - 0.8)
    small = world.publish(b"x" * 60)
    world.cluster.latency_s = 0.95
    world.decide(lambda: Fate.ANSWERED)
    world.advance(0.95)
    world.cluster.latency_s = 0.01
    world.advance(TIMEOUT_S)
    assert isinstance(small[0], RecordMetadata)


def test_a_batch_that_was_split_makes_later_ones_small_until_the_next_refresh_only():
    world = warm(partitions=1)
    world.cluster.batch_limit = 1500
    world.publish_many([b"x" * 500] * 8)
    world.advance(1)
    world.cluster.batch_limit = 2**31
    world.producer.cluster_reached()
    world.advance(0.5)
    requests = world.producer.requests
    world.publish_many([b"x" * 500] * 8)
    world.advance(0.5)
    assert world.producer.requests == requests + 1
    assert all(isinstance(answer, RecordMetadata) for answer in world.settled())


class SlowToFail(SimulatedClient):
    """A client whose first Produce requests fail late, without anything sent."""

    left = 0

    def request(self, node_id, request, *, timeout_s):
        if not isinstance(request, ProduceRequest) or not self.left:
            return super().request(node_id, request, timeout_s=timeout_s)
        self.left -= 1
        failed = RequestFailed(reason(), sent=False)
        return deferLater(self.cluster.clock, TIMEOUT_S + 0.5, lambda: Failure(failed))


def test_records_whose_callers_were_told_at_their_deadline_leave_when_nothing_of_them_was_sent():
    world = warm(partitions=1, client=SlowToFail)
    world.client.left = 1
    late = world.publish(b"late")
    world.advance(TIMEOUT_S + 0.2)
    assert type(late[0].value) is PublishTimedOut
    world.advance(1)
    assert world.producer.buffered_bytes == 0
    publish_now(world, b"next")
    assert world.cluster.values() == [[b"first", b"next"]]


class Refusing(SimulatedClient):
    """A client whose next Produce requests store nothing, and are answered so after a while."""

    rejections = ()

    def request(self, node_id, request, *, timeout_s):
        if not isinstance(request, ProduceRequest) or not self.rejections:
            return super().request(node_id, request, timeout_s=timeout_s)
        (delay_s, fields), *self.rejections = self.rejections
        parts = [Produced(topic, n, offset=-1, **fields) for topic, some in request.topics for n, _ in some]
        return deferLater(self.cluster.clock, delay_s, lambda: ProduceResponse(parts))


def test_records_that_the_broker_names_are_rejected_with_its_words_and_the_others_are_stored_at_once():
    world = warm(partitions=1, client=Refusing)
    named = ((2, "the third"), (0, "the first"))
    world.client.rejections = [(0.01, {"error": ErrorCode.INVALID_RECORD, "record_errors": named})]
    outcomes = world.publish_many([b"0", b"1", b"2", b"3"])
    world.advance(0.5)
    assert "the first" in str(outcomes[0][0])
    assert "the third" in str(outcomes[2][0])
    assert [outcomes[1][0].offset, outcomes[3][0].offset] == [1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"error": ErrorCode.INVALID_RECORD, "record_errors": ((1, "the second"),)},
        {"error": ErrorCode.MESSAGE_TOO_LARGE},
    ],
    ids=["named", "split"],
)
def test_records_whose_callers_were_told_leave_when_others_of_their_batch_go_back(fields):
    world = warm(partitions=1, client=Refusing)
    world.decide(lambda: Fate.NOT_LEADER)
    early = world.publish(b"early")
    world.advance(TIMEOUT_S - 0.8)
    world.publish(b"second")
    last = world.publish(b"last")
    world.client.rejections = [(1.0, fields)]
    world.decide(lambda: Fate.ANSWERED)
    world.advance(TIMEOUT_S)
    assert world.client.rejections == []
    assert type(early[0].value) is PublishTimedOut
    assert isinstance(last[0], RecordMetadata)
    assert b"early" not in world.cluster.values()[0]
    assert world.producer.buffered_bytes == 0


def test_each_caller_is_answered_if_stored_records_cannot_be_divided_among_them(
    monkeypatch, no_failure_is_lost
):
    world = warm(partitions=1)
    divide = accumulator.groupby

    def fail_at_the_second(*args):
        yield next(divide(*args))
        raise MemoryError

    monkeypatch.setattr(accumulator, "groupby", fail_at_the_second)
    outcomes = [*world.publish_many([b"of one caller"] * 2), *world.publish_many([b"of another"] * 3)]
    world.advance(0.5)
    assert [type(outcome) for (outcome,) in outcomes] == [RecordMetadata] * 2 + [OutcomeUnknown] * 3
    assert world.producer.buffered_bytes == 0
    assert no_failure_is_lost.pop().check(MemoryError)


def test_records_behind_a_batch_that_cannot_be_encoded_are_sent(monkeypatch, no_failure_is_lost):
    world = warm(partitions=1)
    encode, faults = partition_queue.encode_batch, [MemoryError()]

    def fail_once(*args, **kwargs):
        if faults:
            raise faults.pop()
        return encode(*args, **kwargs)

    monkeypatch.setattr(partition_queue, "encode_batch", fail_once)
    first, second = world.publish_many([b"x" * 100_000] * 2)
    world.advance(0.5)
    assert type(first[0]) is BrokerUnavailable
    assert second[0].offset == 1
    assert no_failure_is_lost.pop().check(MemoryError)
