"""Records with long keys: their partitions, their order, and the work of one turn of the reactor."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.producer import long_keys, partitioner
from sampleapp.brokers.kafka.producer.partitioner import HASHED_AT_ONCE, partition_for_key
from sampleapp.errors import BrokerStopped, BrokerUnavailable
from sampleapp.model import RecordMetadata
from tests.support.brokers import record
from tests.support.examples import examples
from tests.support.kafka_simulator import Fate
from tests.support.kafka_simulator.publishing import (
    ProducerSetup,
    assert_true,
    stop_and_assert_nothing_is_left,
    warm,
)

LINE_S = 1e-7
"""By the clock, each line of the code that hashes keys takes this time, as it does on a real one."""
MOST_S = 0.008
LONG = HASHED_AT_ONCE + 1


@contextmanager
def work(clock):
    """Let hashing take time by a clock; the lines of code are counted, so that it is always the same."""
    before = sys.gettrace()

    def of_line(_frame, event, _argument):
        if event == "line":
            clock.rightNow += LINE_S
        return of_line

    def of_call(frame, _event, _argument):
        return of_line if frame.f_code.co_filename == partitioner.__file__ else None

    sys.settrace(of_call)
    try:
        yield
    finally:
        sys.settrace(before)


def turn(clock):
    """Run one turn of the reactor: what a call schedules comes in a later one."""
    for call in [call for call in clock.calls if call.getTime() <= clock.seconds()]:
        if call.active():
            clock.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


def longest_turn_s(world, requests):
    """Publish records, some of which come together, and return the time of the longest turn."""
    longest_s = 0.0
    for publish in [*requests, *[lambda: None] * 2000]:
        began_s = world.clock.seconds()
        with work(world.clock):
            publish()
            turn(world.clock)
        longest_s = max(longest_s, world.clock.seconds() - began_s)
        world.clock.rightNow += 0.001
        if all(outcome for _, _, outcome in world.published):
            break
    return longest_s


lengths = st.one_of(
    st.none(),
    st.integers(0, 100),
    st.integers(100, 3000),
    st.sampled_from([HASHED_AT_ONCE - 1, HASHED_AT_ONCE, LONG, 30_000, 100_000]),
)


@examples(30)
@given(
    requests=st.lists(
        st.tuples(st.lists(lengths, min_size=1, max_size=8), st.sampled_from([1, 1, 7, 100])),
        min_size=1,
        max_size=5,
    ),
    is_known=st.booleans(),
)
@example(requests=[([300_000], 1)], is_known=True)
@example(requests=[([300_000], 1)], is_known=False)
@example(requests=[([100_000], 1)] * 16, is_known=True)
@example(requests=[([100_000 + n for n in range(5)], 1)], is_known=True)
@example(requests=[(list(range(1, 1500)), 1)], is_known=True)
@example(requests=[([15_000], 10), ([None, 15_000, 14_999], 5)], is_known=False)
def test_whatever_the_lengths_of_keys_are_little_of_them_is_hashed_in_one_turn(requests, is_known):
    # More would not be stored in time: a partition takes one batch after the other.
    assume(sum((length or 0) * times for of_keys, times in requests for length in of_keys) <= 8_000_000)
    world = warm(partitions=3) if is_known else ProducerSetup(partitions=3)
    numbers = iter(range(1_000_000))

    def publishing(of_keys, times):
        keys = [None if length is None else b"%d" % length + b"k" * length for length in of_keys * times]
        values = [b"%d" % next(numbers) for _ in keys]
        if len(values) == 1:
            return lambda: world.publish(values[0], key=keys[0])
        return lambda: world.publish_many(values, keys=keys)

    assert longest_turn_s(world, [publishing(*each) for each in requests]) < MOST_S
    world.advance(1)
    assert all(isinstance(answer, RecordMetadata) for answer in world.settled())
    for (_, key, _), answer in zip(world.published, world.settled(), strict=True):
        if key is not None:
            assert answer.partition == partition_for_key(key, 3)
    assert_true(world)


@given(
    st.lists(st.tuples(st.sampled_from([5, LONG, 3 * LONG]), st.integers(0, 1), st.booleans()), max_size=20)
)
def test_records_of_one_long_key_keep_the_order_of_the_calls(calls):
    world = warm(partitions=2)
    keys = {}
    for number, (length, which, is_batch) in enumerate(calls):
        key = b"%d" % which * length
        keys.setdefault(key, []).append(b"%d" % number)
        if is_batch:
            world.publish_many([b"%d" % number], keys=[key])
        else:
            world.publish(b"%d" % number, key=key)
        if number % 3 == 0:
            turn(world.clock)
    world.advance(1)
    assert_true(world)
    stored = [value for values in world.cluster.values() for value in values]
    for values in keys.values():
        assert [value for value in stored if value in values] == values


def test_a_long_key_delays_no_record_of_another_key():
    world = warm(partitions=1)
    world.publish(b"long", key=b"k" * 10 * LONG)
    world.publish_many([b"longer"], keys=[b"l" * 20 * LONG])
    world.publish(b"short", key=b"s")
    world.advance(1)
    assert world.cluster.values() == [[b"first", b"short", b"long", b"longer"]]


def test_a_record_that_names_its_partition_need_not_wait_for_the_hash_of_its_key():
    world = warm(partitions=2)
    found = []
    world.producer.publish(record("t", b"v", key=b"k" * 9 * LONG, partition=1)).addCallback(found.append)
    turn(world.clock)
    assert world.producer.buffered_bytes > 9 * LONG
    world.advance(1)
    assert found[0].partition == 1


def test_draining_waits_for_records_whose_keys_are_still_hashed():
    world = warm()
    waiting = [world.publish(b"1", key=b"k" * 5 * LONG), *world.publish_many([b"2"], keys=[b"l" * 5 * LONG])]
    drained = []
    world.producer.drain().addCallback(drained.append)
    assert drained == []
    world.advance(1)
    assert drained == [None]
    assert all(isinstance(answer[0], RecordMetadata) for answer in waiting)


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_records_whose_keys_are_still_hashed_are_given_up_with_the_others(turns):
    world = warm()
    key = b"k" * 50 * LONG
    waiting = [world.publish(b"1", key=key), world.publish(b"2", key=key)]
    waiting += world.publish_many([b"3", b"4"], keys=[key, b"k"])
    for _ in range(turns):
        turn(world.clock)
    world.producer.give_up()
    assert [type(answer[0].value) for answer in waiting] == [BrokerStopped] * 4
    stop_and_assert_nothing_is_left(world)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_cancelling_stops_the_waiting_for_a_long_key_only(is_given_up):
    world = warm(partitions=1)
    key = b"k" * 5 * LONG
    found = []
    for value in (b"1", b"2"):
        answer = world.producer.publish(record("t", value, key=key))
        answer.addBoth(found.append)
        answer.cancel()
    if is_given_up:
        world.producer.give_up()
        stop_and_assert_nothing_is_left(world)
    world.advance(1)
    assert [type(each.value) for each in found] == [CancelledError] * 2
    assert world.cluster.values() == [[b"first"] if is_given_up else [b"first", b"1", b"2"]]


def test_a_fault_while_a_long_key_is_hashed_fails_its_records_only(monkeypatch, no_failure_is_lost):
    def fail(_key):
        raise MemoryError

    world = warm()
    with monkeypatch.context() as patched:
        patched.setattr(long_keys, "hash_in_steps", fail)
        failed = [world.publish(b"1", key=b"k" * LONG), *world.publish_many([b"2"], keys=[b"k" * LONG])]
        world.advance(0.1)
    assert [no_failure_is_lost.pop().type, no_failure_is_lost.pop().type] == [MemoryError] * 2
    assert [type(answer[0].value) for answer in failed] == [BrokerUnavailable] * 2
    later = world.publish(b"3", key=b"k" * LONG)
    world.advance(1)
    assert isinstance(later[0], RecordMetadata)
    assert_true(world)


def test_records_that_wait_for_their_topic_are_distributed_without_hashing_their_keys_again():
    world = ProducerSetup(partitions=3)
    for number in range(30):
        world.publish(b"%d" % number, key=b"%d" % number + b"k" * (HASHED_AT_ONCE - 100))
    assert longest_turn_s(world, []) < LINE_S * 3 * HASHED_AT_ONCE
    world.advance(1)
    assert all(isinstance(answer, RecordMetadata) for answer in world.settled())


def test_a_record_with_a_long_key_is_sent_again_like_any_other():
    world = warm(partitions=2)
    fates = iter([Fate.NOT_SENT])
    world.decide(lambda: next(fates, Fate.ANSWERED))
    outcome = world.publish(b"1", key=b"k" * LONG)
    world.advance(1.5)
    assert not isinstance(outcome[0], Failure)
    assert_true(world)
