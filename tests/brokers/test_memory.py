"""The memory broker passes the contract."""

from __future__ import annotations

from contextlib import contextmanager

import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import Clock

from sampleapp.brokers import memory
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.brokers.shared.idempotency import IdempotencySettings
from sampleapp.errors import OutcomeUnknown
from sampleapp.model import ReplayedRecord
from sampleapp.testing import identity
from sampleapp.testing.broker_contract import BrokerContract, new_topic
from tests.support.brokers import content, record, within


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
