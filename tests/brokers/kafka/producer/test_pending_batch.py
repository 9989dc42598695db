"""Batch batch: records published together, with one answer and an outcome for each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from twisted.internet.defer import CancelledError

from sampleapp.brokers.kafka.batches import record_size
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    BufferFull,
    IllegalTopic,
    OutcomeUnknown,
    PublishTimedOut,
    RecordRefused,
    RecordTooLarge,
    UnknownPartition,
    UnknownTopic,
)
from sampleapp.model import RecordMetadata
from tests.support.brokers import record
from tests.support.kafka_simulator import Fate, reason
from tests.support.kafka_simulator.publishing import (
    TIMEOUT_S,
    ProducerSetup,
    Slow,
    assert_true,
    keys_of,
    publish_now,
    stop_and_assert_nothing_is_left,
    warm,
)

MANY = 5000
"""More than are taken in in one slice."""


def numbers(count):
    return [b"%d" % number for number in range(count)]


def told(answer):
    """Return the result of an answer that has fired."""
    results = []
    answer.addBoth(results.append)
    return results


def after_turns(world, count, do):
    """Call a function after a number of turns of the reactor."""
    if count:
        world.clock.callLater(0, after_turns, world, count - 1, do)
    else:
        do()


def test_no_records_are_published_at_once():
    assert told(ProducerSetup().producer.publish_many([])) == [[]]


def test_a_few_records_for_which_there_is_no_room_are_rejected_together():
    world = warm(partitions=3, buffer_bytes=1000)
    [result] = told(world.producer.publish_many([record("t", value=b"x" * 300, key=b"k") for _ in range(4)]))
    assert isinstance(result.value, RecordTooLarge)
    assert world.producer.buffered_bytes == 0


def test_each_record_of_many_has_its_own_place():
    world = warm(partitions=3)
    outcomes = world.publish_many(numbers(MANY), keys=keys_of(3))
    world.advance(1)
    assert all(isinstance(outcome[0], RecordMetadata) for outcome in outcomes)
    assert sum(map(len, world.cluster.values())) == MANY + 1
    assert_true(world)
    assert world.producer.buffered_bytes == 0


def test_records_without_a_key_spread_when_they_are_many():
    world = warm(partitions=3)
    world.publish_many([b"x" * 5000 for _ in range(200)], keys=[None])
    world.advance(1)
    assert all(len(values) > 20 for values in world.cluster.values())


def test_records_without_a_key_spread_when_they_are_few_and_large():
    world = warm(partitions=3)
    world.publish_many([b"x" * 50_000 for _ in range(20)], keys=[None])
    world.advance(1)
    assert all(len(values) > 2 for values in world.cluster.values())


def test_in_one_partition_records_with_and_without_a_key_keep_their_order():
    world = warm(partitions=1)
    world.publish_many(numbers(MANY), keys=[b"k", None, b"", None])
    world.advance(1)
    assert world.cluster.values() == [[b"first", *numbers(MANY)]]


def test_single_records_and_many_keep_the_order_of_the_calls():
    world = warm(partitions=1)
    world.publish(b"1")
    world.publish_many([b"2", b"3"])
    world.publish(b"4")
    world.publish_many([b"5"])
    world.advance(1)
    assert world.cluster.values() == [[b"first", b"1", b"2", b"3", b"4", b"5"]]


def test_nothing_overtakes_a_thousand_records_however_slowly_they_are_taken_in(monkeypatch):
    world = warm(partitions=1)
    look = world.clock.seconds

    def look_slowly():
        world.clock.rightNow += 0.1
        return look()

    monkeypatch.setattr(world.clock, "seconds", look_slowly)
    world.publish_many(numbers(1000))
    world.publish(b"later")
    monkeypatch.undo()
    world.advance(1)
    assert world.cluster.values() == [[b"first", *numbers(1000), b"later"]]


def test_many_records_for_topics_that_are_not_known_yet_wait_for_them_in_order():
    world = ProducerSetup(partitions=1)
    world.publish(b"1")
    world.publish_many([b"2", b"3"])
    world.publish(b"4")
    world.advance(1)
    assert world.cluster.values() == [[b"1", b"2", b"3", b"4"]]
    assert_true(world)


def test_what_keeps_some_records_from_being_published_does_not_keep_the_others():
    world = warm(partitions=1)
    world.cluster.batch_limit = 2000
    records = [
        record("t", b"1"),
        record("absent", b"2"),
        record("no name", b"3"),
        record("t", b"4", partition=7),
        record("t", b"5", headers=(("\ud800", b""),)),
        record("t", b"x" * 3000),
        record("t", b"6", partition=0),
        record("t", b"7", partition=-1),
    ]
    results = told(world.producer.publish_many(records))
    world.advance(1.5)
    [outcomes] = results
    assert [type(outcome) for outcome in outcomes] == [
        RecordMetadata,
        UnknownTopic,
        IllegalTopic,
        UnknownPartition,
        RecordRefused,
        RecordTooLarge,
        RecordMetadata,
        UnknownPartition,
    ]
    assert [outcomes[0].offset, outcomes[6].offset] == [1, 2]
    assert world.cluster.values() == [[b"first", b"1", b"6"]]
    assert set(world.producer._accumulator.topics) == {"t"}  # noqa: SLF001 -- it shows nowhere else


def test_many_records_for_which_there_is_no_room_are_rejected_together():
    world = warm(partitions=2, buffer_bytes=100_000)
    world.decide(lambda: Fate.NOT_LEADER)
    keys = keys_of(2)
    waiting = world.publish_many([b"x" * 1000] * 20, keys=keys)
    before = world.producer.buffered_bytes
    rejected = world.publish_many([b"y" * 1000] * 50, keys=keys)
    assert {type(outcome[0].value) for outcome in rejected} == {BufferFull}
    assert world.producer.buffered_bytes == before
    world.decide(lambda: Fate.ANSWERED)
    world.advance(1)
    assert all(isinstance(outcome[0], RecordMetadata) for outcome in waiting)
    assert not any(b"y" in value for values in world.cluster.values() for value in values)


@given(
    waiting=st.integers(0, 20),
    count=st.integers(1, 20),
    size=st.integers(1, 300),
    more=st.integers(-400, 100),
)
def test_there_is_room_for_many_records_exactly_if_there_is_for_each_of_them_one_by_one(
    waiting, count, size, more
):
    held, added = (record_size(record("t", b"x" * each, key=b"k")) for each in (100, size))
    # At about this limit, a partition has exactly its share of the buffer.
    limit = max(500, 2 * (waiting * held + count * added) + more)
    fits = []
    for publish in (
        ProducerSetup.publish_many,
        lambda world, values: [world.publish(each) for each in values],
    ):
        world = warm(partitions=1, buffer_bytes=limit)
        world.decide(lambda: Fate.NOT_LEADER)
        for _ in range(waiting):
            world.publish(b"w" * 100)
        fits.append([] in publish(world, [b"x" * size] * count)[-1:])
    assert fits[0] == fits[1]


def test_one_partition_cannot_take_all_the_room_with_many_records_at_once():
    world = warm(partitions=2, buffer_bytes=100_000)
    world.decide(lambda: Fate.NOT_LEADER)
    one, other = keys_of(2)
    for _ in range(10):
        world.publish_many([b"x" * 1000] * 10, keys=[one])
    assert 40_000 < world.producer.buffered_bytes < 60_000
    [accepted] = world.publish_many([b"x" * 1000], keys=[other])
    assert accepted == []
    world.advance(2 * TIMEOUT_S)
    assert world.producer.buffered_bytes == 0


@pytest.mark.parametrize("size", [600, 1100])
def test_many_records_that_can_never_fit_are_not_asked_to_come_again(size):
    world = warm(buffer_bytes=100_000)
    [result] = told(world.producer.publish_many([record("t", b"x" * size, key=b"k")] * 100))
    assert type(result.value) is RecordTooLarge
    world.advance(1)
    assert sum(map(len, world.cluster.values())) == 1


def test_names_that_were_made_up_for_what_is_rejected_are_not_remembered():
    world = warm(buffer_bytes=10_000)
    records = [record(f"made-up-{number}", b"x" * 200) for number in range(100)]
    [result] = told(world.producer.publish_many(records))
    assert type(result.value) is RecordTooLarge
    assert set(world.producer._accumulator.topics) == {"t"}  # noqa: SLF001 -- it shows nowhere else


def test_other_work_runs_while_very_many_records_are_taken_in():
    world = warm(partitions=1)
    many = world.publish_many(numbers(MANY))
    waiting = []
    for turns in range(12):
        after_turns(
            world, turns, lambda: waiting.append(world.producer.measures(requests={}).waiting.records)
        )
    single = []
    after_turns(world, 1, lambda: single.append(world.publish(b"single", key=b"a")))
    world.advance(1)
    # Nothing is accepted before all of them are looked at.
    assert waiting[:4] == [0, 0, 1, 1]
    assert waiting[-1] > MANY
    # It need not wait until they are.
    assert single[0][0].offset == 1
    assert all(isinstance(outcome[0], RecordMetadata) for outcome in many)
    assert_true(world)


def test_a_topic_that_is_made_again_meanwhile_gets_what_was_not_placed_yet():
    world = warm(partitions=3)
    outcomes = world.publish_many(numbers(MANY), keys=keys_of(3))
    world.cluster.make_again(partitions=1)
    world.producer.cluster_reached()
    world.advance(1.2, step_s=0.001)
    world.producer.cluster_reached()
    world.advance(3 * TIMEOUT_S)
    assert all(len(outcome) == 1 for outcome in outcomes)
    assert world.producer.buffered_bytes == 0


def test_cancelling_stops_the_waiting_only():
    world = warm(partitions=1)
    answer = world.producer.publish_many(Slow([record("t", value) for value in numbers(MANY)], world.clock))
    results = told(answer)
    answer.cancel()
    assert results[0].check(CancelledError)
    world.advance(1)
    assert world.cluster.values() == [[b"first", *numbers(MANY)]]
    assert world.producer.buffered_bytes == 0


@pytest.mark.parametrize("turns", [0, 2, 7, 9, 12])
def test_draining_finishes_many_records_wherever_they_are(turns):
    world = warm(partitions=1)
    outcomes = world.publish_many(numbers(MANY))
    drained = []
    after_turns(world, turns, lambda: drained.append(world.producer.drain()))
    world.clock.advance(0)
    [rejected] = told(world.producer.publish_many([record("t", b"late")]))
    assert type(rejected.value) is BrokerStopped
    assert not drained[0].called
    world.advance(1)
    assert drained[0].called
    world.producer.stop()
    assert all(isinstance(outcome[0], RecordMetadata) for outcome in outcomes)
    assert world.clock.getDelayedCalls() == []


def test_giving_up_while_records_are_placed_tells_those_that_were_sent_from_the_others(monkeypatch):
    world = warm(partitions=1)
    world.decide(lambda: Fate.LATE)
    outcomes = world.publish_many(numbers(MANY))
    look = world.clock.seconds

    def look_slowly():
        world.clock.rightNow += 0.0003
        return look()

    monkeypatch.setattr(world.clock, "seconds", look_slowly)
    while not world.cluster.produces[1:]:
        [call, *_] = world.clock.calls
        world.clock.calls.remove(call)
        call.func(*call.args, **call.kw)
    waiting = world.producer.measures(requests={}).waiting
    assert waiting.records == MANY
    assert waiting.bytes == world.producer.buffered_bytes
    world.producer.give_up()
    monkeypatch.undo()
    kinds = [type(outcome[0]) for outcome in outcomes]
    assert set(kinds) == {OutcomeUnknown, BrokerStopped}
    assert kinds == sorted(kinds, key=lambda kind: kind is BrokerStopped)
    assert world.producer.buffered_bytes == 0
    assert world.producer.drain().called


def test_other_work_runs_while_very_many_batches_are_sent(monkeypatch):
    world = warm(partitions=50)
    outcomes = world.publish_many(numbers(50), keys=keys_of(50))
    look = world.clock.seconds

    def look_slowly():
        world.clock.rightNow += 0.0005
        return look()

    sent = []
    for turns in range(30):
        after_turns(world, turns, lambda: sent.append(len(world.cluster.produces)))
    monkeypatch.setattr(world.clock, "seconds", look_slowly)
    world.clock.advance(0.05)
    monkeypatch.undo()
    assert len(set(sent)) > 3
    world.advance(1)
    assert all(isinstance(outcome[0], RecordMetadata) for outcome in outcomes)
    assert_true(world)


@pytest.mark.parametrize("turns", [0, 2, 7, 9, 12])
def test_giving_up_in_the_middle_tells_what_was_not_published(turns):
    world = warm(partitions=1)
    world.decide(lambda: Fate.LATE)
    outcomes = world.publish_many(numbers(MANY))
    drained = []

    def give_up():
        drained.append(world.producer.drain())
        world.producer.give_up()
        assert drained[0].called

    after_turns(world, turns, give_up)
    world.clock.advance(0)
    assert {type(error) for error in world.settled()[1:]} <= {BrokerStopped, OutcomeUnknown}
    assert all(len(outcome) == 1 for outcome in outcomes)
    stop_and_assert_nothing_is_left(world)


def test_records_that_fail_at_their_deadline_do_so_one_for_one():
    world = warm(partitions=2)
    one, other = keys_of(2)
    world.cluster.logs[1].leader = None
    world.producer.cluster_reached()
    world.advance(0.1)
    outcomes = world.publish_many(numbers(10), keys=[one, other])
    world.advance(TIMEOUT_S + 0.5)
    assert [type(world.settled()[1 + number]) for number in range(10)] == [
        RecordMetadata,
        BrokerUnavailable,
    ] * 5
    assert all(len(outcome) == 1 for outcome in outcomes)
    assert_true(world)


def test_a_single_record_goes_to_the_partition_that_it_names():
    world = warm(partitions=3)
    for partition in (2, 0, 1):
        [enqueue] = told_in(world, record("t", b"x", key=b"k", partition=partition))
        assert enqueue.partition == partition


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("partition", [3, -1])
def test_a_partition_that_the_topic_does_not_have_is_unknown(is_known, partition):
    world = warm(partitions=3) if is_known else ProducerSetup(partitions=3)
    results = told(world.producer.publish(record("t", b"x", partition=partition)))
    world.advance(0.9)
    # Brokers learn of a new partition one after another.
    assert results == []
    world.advance(0.6)
    [failure] = results
    assert type(failure.value) is UnknownPartition
    assert f"no partition {partition}: it has 3" in str(failure.value)
    assert world.producer.buffered_bytes == 0


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize("known_after_s", [0, 0.5])
def test_the_first_record_for_a_partition_that_was_added_is_published(many, known_after_s):
    world = warm(partitions=1)
    loads = len(world.cluster.loads)
    one = record("t", b"x", partition=1)
    results = told(world.producer.publish_many([one]) if many else world.producer.publish(one))
    world.advance(known_after_s)
    world.cluster.add_partitions(1)
    world.advance(0.3)
    assert (results[0][0] if many else results[0]).partition == 1
    assert len(world.cluster.loads) - loads <= 2 + known_after_s / 0.15
    publish_now(world, b"more")
    world.producer.drain()
    world.producer.stop()
    assert world.clock.getDelayedCalls() == []


def test_records_for_partitions_that_a_topic_has_do_not_wait_for_one_that_it_has_not():
    world = warm(partitions=2)
    records = [record("t", b"%d" % n, partition=n % 3) for n in range(6)]
    outcomes = told(world.producer.publish_many(records))
    world.advance(0.3)
    assert [[each for each in log if each != b"first"] for log in world.cluster.values()] == [
        [b"0", b"3"],
        [b"1", b"4"],
    ]
    world.advance(1.2)
    assert [type(each) for each in outcomes[0]] == [RecordMetadata, RecordMetadata, UnknownPartition] * 2


def told_in(world, one):
    results = told(world.producer.publish(one))
    world.advance(0.5)
    return results


def test_what_is_published_from_a_callback_of_many_is_behind_them():
    world = warm(partitions=1)
    again = []
    answer = world.producer.publish_many([record("t", b"1", key=b"k"), record("t", b"2", key=b"k")])
    answer.addCallback(lambda _: again.append(world.publish(b"3")))
    world.advance(1)
    publish_now(world, b"4")
    assert world.cluster.values() == [[b"first", b"1", b"2", b"3", b"4"]]


def test_records_with_and_without_a_key_keep_their_deadlines_when_their_topic_becomes_known():
    world = ProducerSetup(partitions=1)
    world.cluster.elect(None)
    world.cluster.cut_off(reason())
    early = world.publish(b"early", key=None)
    world.advance(0.8)
    late = world.publish(b"late")
    world.cluster.mend()
    world.advance(TIMEOUT_S - 0.8 + 0.15)
    assert type(early[0].value) is BrokerUnavailable
    assert late == []
    world.advance(0.8)
    assert type(late[0].value) is BrokerUnavailable


def test_the_outcomes_are_the_callers_own_when_their_batch_is_answered_after_the_deadline():
    world = warm(partitions=1)
    world.cluster.slow[1] = TIMEOUT_S + 0.5
    [outcomes] = told_at_the_deadline(world, [record("t", b"1"), record("t", b"2")])
    assert [type(each) for each in outcomes] == [PublishTimedOut] * 2
    # As a caller does that frees what it has read.
    outcomes.clear()
    world.advance(0.5)
    world.cluster.slow.clear()
    publish_now(world, b"later")
    assert outcomes == []
    assert world.cluster.values() == [[b"first", b"1", b"2", b"later"]]
    assert world.producer.buffered_bytes == 0


def test_the_outcomes_are_the_callers_own_when_their_batch_is_given_up_after_the_deadline():
    world = warm(partitions=1)
    world.decide(lambda: Fate.NOT_SENT)
    results = told(world.producer.publish_many([record("t", b"1"), record("t", b"2")]))
    world.advance(0.5)
    behind = world.publish(b"behind")
    world.decide(lambda: Fate.TIMED_OUT)
    world.advance(TIMEOUT_S - 0.5 + 0.2)
    [outcomes] = results
    outcomes.clear()
    world.advance(0.5)
    assert type(behind[0].value) is PublishTimedOut
    world.decide(lambda: Fate.ANSWERED)
    publish_now(world, b"later")
    assert outcomes == []
    assert world.producer.buffered_bytes == 0


def told_at_the_deadline(world, records):
    results = told(world.producer.publish_many(records))
    world.advance(TIMEOUT_S + 0.2)
    return results


def begin_many(world, *, key=b"k", callers=1):
    """Publish thousands of records for each caller, until the first are stored; return how many are."""
    for caller in range(callers):
        world.publish_many([b"%d-%05d" % (caller, n) * 30 for n in range(3000)], keys=[key])
    while not world.cluster.values()[0][1:]:
        world.advance(0.001, step_s=0.001)
    return len(world.cluster.values()[0])


class Seen(Slow):
    """Records of which it is known how many were looked at."""

    count = 0

    def __getitem__(self, which):
        found = super().__getitem__(which)
        self.count += len(found)
        return found


def test_records_with_many_headers_are_taken_in_in_several_turns_however_few_they_are():
    world = warm(partitions=1)
    headers = tuple((f"h{n}", b"") for n in range(100))
    records = Seen([replace(record("t"), headers=headers)] * 900, world.clock)
    done = world.producer.publish_many(records)
    assert records.count <= 350
    alone = world.publish(b"alone")
    world.advance(1)
    assert isinstance(alone[0], RecordMetadata)
    assert [type(outcome) for outcome in done.result] == [RecordMetadata] * 900


@pytest.mark.parametrize("key", [b"k", None])
@pytest.mark.parametrize("callers", [1, 3])
def test_a_record_of_another_caller_stands_behind_little_of_many_records(key, callers):
    world = warm(partitions=1)
    stored = begin_many(world, key=key, callers=callers)
    alone = world.publish(b"alone")
    world.advance(1, step_s=0.001)
    assert alone[0].offset < stored + 1000
    assert all(isinstance(answer, RecordMetadata) for answer in world.settled())


def test_the_same_is_true_after_a_moment_in_which_nothing_could_be_done():
    world = warm(partitions=1)
    begin_many(world)
    world.clock.advance(0.15)
    stored = len(world.cluster.values()[0])
    alone = world.publish(b"alone")
    world.advance(1, step_s=0.001)
    assert alone[0].offset < stored + 1000


def test_many_records_for_a_leader_that_is_silent_take_a_tenth_longer_than_one():
    world = warm(partitions=2, brokers=(1, 2))
    world.publish(b"first of the other", key=keys_of(2)[1])
    world.advance(0.5)
    world.cluster.slow[1] = 0.07
    world.cluster.silent.add(2)
    one, other = keys_of(2)
    many = world.publish_many([b"%05d" % n * 100 for n in range(6000)], keys=[*[one] * 9, other])
    world.advance(1.1 * TIMEOUT_S + 0.2)
    assert {type(outcome[0]) for outcome in many} > {RecordMetadata, BrokerUnavailable}
    assert_true(world)


def test_what_is_not_in_its_queue_yet_counts_for_the_share_of_its_partition():
    world = warm(partitions=2, brokers=(1, 2), buffer_bytes=4_000_000)
    one, other = keys_of(2)
    world.publish(b"first of the other", key=other)
    world.advance(0.5)
    world.cluster.silent.add(1)
    for caller in range(20):
        world.publish_many([b"%02d-%05d" % (caller, n) * 30 for n in range(1500)], keys=[one])
        world.advance(0.005, step_s=0.001)
    assert 1_000_000 < world.producer.buffered_bytes < 2_000_000
    healthy = world.publish_many([b"healthy %05d" % n * 10 for n in range(4000)], keys=[other])
    world.advance(0.5)
    assert all(isinstance(outcome[0], RecordMetadata) for outcome in healthy)
    world.advance(1.1 * TIMEOUT_S)
    # Records that were sent may still be stored.
    assert world.producer.buffered_bytes < 200_000
    assert_true(world)


def test_while_no_broker_can_be_reached_nothing_waits_for_queues_to_move():
    world = warm(partitions=1)
    world.decide(lambda: Fate.LATE)
    world.publish_many([b"%05d" % n * 20 for n in range(5000)])
    world.advance(0.05)
    [queue] = world.producer._accumulator.active  # noqa: SLF001 -- it shows nowhere else
    assert queue.records < 5000
    world.producer.cluster_unreachable(reason("gone"))
    world.advance(0.05)
    assert queue.records == 5000


@pytest.mark.parametrize("ends_after_s", [0, 0.001, 0.002, 0.005, 0.02])
def test_a_producer_that_stops_while_records_wait_for_room_tells_of_each(ends_after_s):
    world = warm(partitions=2)
    many = world.publish_many([b"%05d" % n * 20 for n in range(5000)], keys=keys_of(2))
    world.advance(ends_after_s, step_s=0.001)
    world.producer.drain()
    world.producer.give_up()
    assert all(len(outcome) == 1 for outcome in many)
    stop_and_assert_nothing_is_left(world)


def test_a_topic_that_is_made_again_gets_what_was_waiting_for_room_in_its_queue():
    world = warm(partitions=2, delivery_timeout_s=20.0)
    _, other = keys_of(2)
    publish_now(world, b"first of the other", key=other)
    world.cluster.silent.add(1)
    outcomes = world.publish_many([b"%05d" % n * 20 for n in range(MANY)], keys=[other])
    world.advance(0.1, step_s=0.001)
    [queue] = world.producer._accumulator.active  # noqa: SLF001 -- it shows nowhere else
    assert queue.records < MANY
    world.cluster.make_again(partitions=1)
    world.producer.cluster_reached()
    world.advance(1.1)
    world.producer.cluster_reached()
    world.advance(0.1)
    world.cluster.silent.clear()
    world.advance(8)
    kinds = [type(getattr(outcome[0], "value", outcome[0])) for outcome in outcomes]
    assert set(kinds) == {OutcomeUnknown, RecordMetadata}
    assert kinds.count(RecordMetadata) > MANY // 2
