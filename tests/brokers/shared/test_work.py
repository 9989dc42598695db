"""Waiting pulls and their timers, with the memory broker."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.brokers.shared.deliveries import GivenLeases, WorkSettings
from sampleapp.brokers.shared.work import Work
from sampleapp.errors import BrokerUnavailable
from sampleapp.model import ALL, Verdicts
from tests.support.brokers import record


def working(*, count=0, attempts=5):
    """Return a broker, and its clock."""
    clock = Clock()
    broker = MemoryBroker(clock=clock, work=WorkSettings(attempts=attempts))
    broker.start()
    broker.publish(record("t", b"first"))
    broker.publish_many([record("t") for _ in range(count)])
    return broker, clock


def pull(broker, *, most=1, wait_s=0.0, group="g"):
    return broker.work.pull("t", group, most=most, wait_s=wait_s)


def value(pulling):
    (message,) = pulling.result.messages
    return message.record.value


def test_nothing_is_scheduled_while_no_pull_waits():
    broker, clock = working()
    lease = pull(broker, wait_s=60).result
    assert pull(broker).result is None
    assert clock.getDelayedCalls() == []
    waiting = pull(broker, wait_s=60)
    assert len(clock.getDelayedCalls()) == 3
    broker.work.acknowledge("t", "g", lease.token, Verdicts(release=ALL))
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
    lost = broker.work.extend("t", "g", lease.token)
    lost.addErrback(lambda failure: type(failure.value).__name__)
    assert lost.result == "LeaseLost"


def test_a_worker_may_call_the_broker_from_the_callback_of_a_pull():
    broker, _ = working(count=99)
    accepted = []

    def work(lease):
        if lease is not None:
            accepted.extend(each.record.offset for each in lease.messages)
            broker.work.acknowledge("t", "g", lease.token, Verdicts(accept=ALL))
            pull(broker, most=2).addCallback(work)

    pull(broker, most=2).addCallback(work)
    assert accepted == list(range(100))
    assert broker.work.backlog("t", "g").result == 0


def test_each_message_that_is_given_up_is_counted_once():
    broker, clock = working(count=2, attempts=1)
    ended, released = pull(broker, most=2).result, pull(broker).result
    clock.advance(29)
    broker.work.acknowledge("t", "g", released.token, Verdicts())
    assert broker.work.given_up == 1
    clock.advance(1)
    # This is found out by a pull.
    assert broker.work.given_up == 1
    assert [pull(broker).result for _ in range(3)] == [None] * 3
    assert broker.work.given_up == 1 + len(ended.messages)


def test_a_lease_takes_no_more_messages_after_a_mebibyte():
    broker, _ = working()
    broker.publish_many([record("t", bytes(400_000)) for _ in range(5)])
    first = pull(broker, most=500).result
    second = pull(broker, most=500).result
    assert [[each.record.offset for each in lease.messages] for lease in (first, second)] == [
        [0, 1, 2],
        [3, 4],
    ]
    broker.work.acknowledge("t", "g", first.token, Verdicts())
    broker.work.acknowledge("t", "g", second.token, Verdicts())
    assert [each.record.offset for each in pull(broker, most=500).result.messages] == [0, 1, 2, 3]


def test_calls_share_a_transaction_and_each_has_its_own_error():
    transactions = []

    def run(operations):
        transactions.append((len(operations), Deferred()))
        return transactions[-1][1]

    work = Work(run, Clock(), GivenLeases(WorkSettings(), Clock().seconds))
    calls = [work.backlog("t", "g") for _ in range(19)]
    errors = []
    for call in calls:
        call.addErrback(lambda failure: errors.append(failure.value))
    for count in (1, 16, 2):
        assert transactions[-1][0] == count
        transactions[-1][1].errback(BrokerUnavailable("It is locked."))
    assert len(transactions) == 3
    assert [str(each) for each in errors] == ["It is locked."] * 19
    assert len({id(each) for each in errors}) == 19
