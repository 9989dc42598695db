"""The connections of share sessions, on a clock."""

from __future__ import annotations

from twisted.internet.defer import succeed
from twisted.internet.task import Clock

from sampleapp.brokers.kafka.work.connections import ConnectionPool


class Connected:
    """A connection that counts how often it is closed."""

    is_expiring = False
    closed = 0

    def close(self):
        self.closed += 1
        return succeed(None)


class Client:
    def new_connection(self, node_id):
        return Connected()


def test_each_connection_is_closed_a_minute_after_its_last_session():
    clock = Clock()
    pool = ConnectionPool(client=Client(), most=10, clock=clock)
    first, second, third = (pool.take(node_id) for node_id in (1, 2, 3))
    pool.give_back(first)
    clock.advance(20)
    pool.give_back(second)
    pool.give_back(third)
    clock.advance(39)
    assert pool.take(3) is third
    clock.advance(1)
    assert [each.closed for each in (first, second, third)] == [1, 0, 0]
    clock.advance(20)
    assert [each.closed for each in (first, second, third)] == [1, 1, 0]
    pool.give_back(third)
    clock.advance(60)
    assert third.closed == 1
    assert clock.getDelayedCalls() == []
