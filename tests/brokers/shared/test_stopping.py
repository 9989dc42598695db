"""Stopping once, with a deadline, for several callers."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from sampleapp.brokers.shared.stopping import Stopping


class Broker:
    """A broker that stops when the test says so."""

    def __init__(self):
        self.clock = Clock()
        self.begun = 0
        self.given_up_at = []
        self.work = Deferred()
        self.stopping = Stopping(
            clock=self.clock,
            work=self.stop,
            deadline_passed=lambda: self.given_up_at.append(self.clock.seconds()),
        )

    async def stop(self):
        self.begun += 1
        await self.work


@pytest.fixture
def broker():
    return Broker()


def test_the_work_is_done_once_and_each_caller_is_told_of_its_end(broker):
    assert not broker.stopping.is_requested
    one, other, cancelled = (broker.stopping.request(deadline_s=5) for _ in range(3))
    assert broker.stopping.is_requested
    one.addCallback(lambda _: "changed")
    cancelled.addErrback(lambda _: None)
    cancelled.cancel()
    assert broker.begun == 1
    assert not one.called
    broker.work.callback(None)
    assert (one.result, other.result) == ("changed", None)
    assert broker.stopping.request(deadline_s=5).result is None
    assert broker.begun == 1


def test_each_deadline_counts_until_the_end_and_none_after_it(broker):
    for deadline_s in (5, 1, 9):
        broker.stopping.request(deadline_s=deadline_s)
    broker.stopping.later(7, lambda: broker.given_up_at.append("later"))
    broker.clock.pump([1] * 7)
    assert broker.given_up_at == [1, 5, "later"]
    broker.work.callback(None)
    assert broker.clock.getDelayedCalls() == []


def test_work_that_does_not_end_may_be_left_behind(broker):
    waiter = broker.stopping.request(deadline_s=1)
    broker.stopping.finish()
    assert waiter.called
    broker.work.callback(None)
    assert broker.clock.getDelayedCalls() == []


def test_work_that_fails_is_logged_and_keeps_nobody_waiting(broker, no_failure_is_lost):
    waiter = broker.stopping.request(deadline_s=1)
    broker.work.errback(ZeroDivisionError("on purpose"))
    assert waiter.result is None
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()


def test_a_deadline_that_fails_is_logged_and_keeps_nobody_waiting(broker, no_failure_is_lost):
    broker.stopping = Stopping(clock=broker.clock, work=broker.stop, deadline_passed=lambda: 1 / 0)
    waiter = broker.stopping.request(deadline_s=1)
    broker.clock.advance(1)
    assert waiter.result is None
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()
