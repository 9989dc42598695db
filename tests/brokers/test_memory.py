"""The memory broker passes the contract."""

from __future__ import annotations

from contextlib import contextmanager

import pytest_twisted
from twisted.internet import reactor
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.errors import OutcomeUnknown
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
