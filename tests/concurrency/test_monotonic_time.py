"""A reactor on a clock that is never set."""

from __future__ import annotations

import time

import pytest
from twisted.internet.base import ReactorBase

from sampleapp.concurrency.monotonic_time import use_monotonic_time


class Reactor(ReactorBase):
    """Twisted's timers without its sockets."""

    def installWaker(self):
        pass


@pytest.fixture
def reactor():
    return Reactor()


def test_the_time_of_the_reactor_is_monotonic(reactor):
    use_monotonic_time(reactor)
    before_s = time.monotonic()
    assert before_s <= reactor.seconds() <= time.monotonic()


def test_a_call_that_was_scheduled_before_comes_when_it_should(reactor):
    early, late = reactor.callLater(0, list), reactor.callLater(100, list)
    use_monotonic_time(reactor)
    assert 99 < late.getTime() - time.monotonic() <= 100
    assert reactor.timeout() == 0
    reactor.runUntilCurrent()
    assert early.called
    assert 99 < reactor.timeout() <= 100
    late.reset(50)
    assert 49 < reactor.timeout() <= 50


def test_a_call_that_is_scheduled_later_comes_when_it_should(reactor):
    use_monotonic_time(reactor)
    call = reactor.callLater(100, list)
    assert 99 < reactor.timeout() <= 100
    call.delay(100)
    reactor.runUntilCurrent()
    assert 199 < call.getTime() - time.monotonic() <= 200
