"""The memory broker passes the contract."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from twisted.internet import reactor
from twisted.internet.task import Clock

from sampleapp.brokers import memory
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.brokers.shared.deliveries import WorkSettings
from sampleapp.brokers.shared.idempotency import IdempotencySettings
from sampleapp.errors import BrokerUnavailable, OutcomeUnknown
from sampleapp.model import FromTime, ReadRequest, ReplayedRecord
from sampleapp_testing import WorkContract, identity
from sampleapp_testing.broker_contract import BrokerContract, new_topic
from tests.support.brokers import content, outcomes, record, within


class TestMemoryBroker(BrokerContract):
    one_partition = True
    first_offset = 0

    @contextmanager
    def new_broker(self):
        yield MemoryBroker(clock=reactor)

    @pytest_twisted.ensureDeferred
    async def test_its_records_can_be_looked_at_without_following(self):
        async with self.running() as broker:
            topic = new_topic()
            sent = [record(topic, b"1"), record(topic, b"2", key=b"k")]
            for each in sent:
                await within(broker.publish(each))
            assert [content(each) for each in broker.records(topic)] == [content(each) for each in sent]
            assert broker.records(new_topic()) == []


class Ahead:
    """The reactor's clock, which a test may set forward for leases, and not for timers."""

    def __init__(self):
        self.ahead_s = 0.0

    def seconds(self):
        return reactor.seconds() + self.ahead_s

    def callLater(self, delay_s, work, *arguments):
        return reactor.callLater(delay_s, work, *arguments)


class TestWorkOfMemoryBroker(WorkContract):
    @contextmanager
    def new_broker(self):
        self.clock = Ahead()
        yield MemoryBroker(clock=self.clock, work=WorkSettings(most_leases=self.most_leases))

    async def end_leases(self):
        self.clock.ahead_s += self.lease_s

    @pytest_twisted.ensureDeferred
    async def test_a_topic_has_a_limited_number_of_groups(self, monkeypatch):
        monkeypatch.setattr(memory, "MOST_GROUPS", 2)
        async with self.working(1) as (broker, topic):
            for _ in range(2):
                for group in ("a", "b"):
                    await within(broker.work.pull(topic, group, most=1, wait_s=0))
            for wait_s in (0, 1):
                (found,) = await outcomes([broker.work.pull(topic, "c", most=1, wait_s=wait_s)])
                assert isinstance(found, BrokerUnavailable)
            assert await within(broker.work.backlog(topic, "c")) is None
            another = new_topic()
            await within(broker.publish(record(another)))
            assert await within(broker.work.pull(another, "c", most=1, wait_s=0)) is not None


class Odd:
    """Fails when it is looked at."""

    def __bool__(self):
        raise ZeroDivisionError


def test_of_records_that_cannot_be_appended_it_is_not_known_whether_they_were(no_failure_is_lost):
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    odd = record("t", partition=Odd())
    publishing = broker.publish_many([record("t"), odd, record("t")])
    first, unknown, last = publishing.result
    assert (first.offset, last.offset) == (0, 1)
    assert isinstance(unknown, OutcomeUnknown)
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()
    stopping = broker.stop(deadline_s=1)
    assert stopping.called


def sends(broker, *names):
    """Publish records with these ids; return whether each was published before."""
    sent = [record("t", identity=identity("t", name)) for name in names]
    return [isinstance(broker.publish(each).result, ReplayedRecord) for each in sent]


def test_an_id_is_remembered_for_a_time_from_its_first_record_which_a_repeat_does_not_prolong():
    clock = Clock()
    broker = MemoryBroker(clock=clock, idempotency=IdempotencySettings(window_s=60))
    assert sends(broker, "a") == [False]
    clock.advance(40)
    assert sends(broker, "a", "b") == [True, False]
    clock.advance(19.5)
    assert sends(broker, "a", "b") == [True, True]
    clock.advance(0.5)
    assert sends(broker, "a", "b") == [False, True]
    # From now on, it is the id of the second one.
    clock.advance(59.5)
    assert sends(broker, "a", "b") == [True, False]
    assert len(broker.records("t")) == 4


def test_of_too_many_ids_the_oldest_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(memory, "_REMEMBERED_IDS", 3)
    broker = MemoryBroker(clock=Clock())
    assert sends(broker, "a", "b", "c", "a") == [False, False, False, True]
    assert sends(broker, "d", "b", "c", "d", "a") == [False, True, True, True, False]
    assert sends(broker, "b") == [False]


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 10))
def test_a_time_is_found_among_times_in_any_order(times, at_ms):
    broker = MemoryBroker(clock=Clock())
    for each in times:
        broker.publish(replace(record("t"), timestamp_ms=each))
    broker.publish(replace(record("t"), timestamp_ms=10))
    request = ReadRequest(topic="t", starts={0: FromTime(at_ms)}, limit=0, max_bytes=1)
    assert broker.read(request).result.positions == {
        0: next(n for n, each in enumerate([*times, 10]) if each >= at_ms)
    }


def test_a_time_is_found_without_looking_at_all_records():
    broker = MemoryBroker(clock=Clock())
    for _ in range(20_000):
        broker.publish(record("t"))
    steps = []

    def count(_frame, event, _argument):
        steps.append(event)
        return count

    sys.settrace(count)
    try:
        broker.read(ReadRequest(topic="t", starts={0: FromTime(10**14)}, limit=1, max_bytes=1))
    finally:
        sys.settrace(None)
    assert len(steps) < 1_000
