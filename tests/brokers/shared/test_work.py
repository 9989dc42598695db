"""Waiting pulls and their timers, with the memory broker."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import ALL, Verdicts
from tests.support.brokers import record


def working(*, count=0):
    """Return a broker, and its clock."""
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    broker.publish(record("t", b"first"))
    broker.publish_many([record("t") for _ in range(count)])
    return broker, clock


def pull(broker, *, most=1, wait_s=0.0, group="g"):
    return broker.pull("t", group, most=most, wait_s=wait_s)


def value(pulling):
    (message,) = pulling.result.messages
    return message.record.value


def test_nothing_is_scheduled_while_no_pull_waits():
    broker, clock = working()
    lease = pull(broker, wait_s=60).result
    assert pull(broker).result is None
    assert clock.getDelayedCalls() == []
    waiting = pull(broker, wait_s=60)
    assert len(clock.getDelayedCalls()) == 2
    broker.acknowledge("t", "g", lease.token, Verdicts(release=ALL))
    assert value(waiting) == b"first"
    clock.advance(0.2)
    assert clock.getDelayedCalls() == []


def test_a_pull_ends_when_its_time_is_over_and_leaves_no_timer():
    broker, clock = working()
    pull(broker)
    waiting = pull(broker, wait_s=10)
    clock.advance(9.9)
    assert not waiting.called
    clock.advance(0.1)
    assert waiting.result is None
    clock.advance(0.2)
    assert clock.getDelayedCalls() == []


def test_a_cancelled_pull_leaves_no_timer_and_takes_nothing():
    broker, clock = working()
    pull(broker)
    cancelled, waiting = pull(broker, wait_s=10), pull(broker, wait_s=10)
    cancelled.cancel()
    cancelled.addErrback(lambda failure: failure.trap(CancelledError))
    assert cancelled.result is CancelledError
    broker.publish(record("t", b"next"))
    assert value(waiting) == b"next"
    clock.advance(0.2)
    assert clock.getDelayedCalls() == []


def test_a_stopped_broker_has_no_timer():
    broker, clock = working()
    pull(broker)
    waiting = [pull(broker, wait_s=10), pull(broker, wait_s=10, group="other"), pull(broker, wait_s=5)]
    assert broker.stop(deadline_s=1).called
    assert [waiting[0].result, waiting[2].result] == [None] * 2
    assert clock.getDelayedCalls() == []


def test_a_pull_that_is_first_gets_the_first_message():
    broker, _ = working()
    pull(broker)
    waiting = [pull(broker, wait_s=10) for _ in range(40)]
    for number in range(40):
        assert [each.called for each in waiting] == [True] * number + [False] * (40 - number)
        broker.publish(record("t", b"%d" % number))
        assert value(waiting[number]) == b"%d" % number


def test_a_lease_that_ends_wakes_a_pull_of_its_group():
    broker, clock = working()
    lease = pull(broker).result
    waiting = pull(broker, wait_s=60)
    clock.pump([0.1] * 298)
    assert not waiting.called
    clock.pump([0.1] * 5)
    assert waiting.result.messages[0].attempts == 2
    lost = broker.extend("t", "g", lease.token)
    lost.addErrback(lambda failure: type(failure.value).__name__)
    assert lost.result == "LeaseLost"


def test_a_worker_may_call_the_broker_from_the_callback_of_a_pull():
    broker, _ = working(count=99)
    accepted = []

    def work(lease):
        if lease is not None:
            accepted.extend(each.record.offset for each in lease.messages)
            broker.acknowledge("t", "g", lease.token, Verdicts(accept=ALL))
            pull(broker, most=2).addCallback(work)

    pull(broker, most=2).addCallback(work)
    assert accepted == list(range(100))
    assert broker.backlog("t", "g").result == 0
