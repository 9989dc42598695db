"""The semaphore."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError, Deferred

from sampleapp.concurrency.semaphore import Semaphore


def waiter(semaphore, log, name):
    """Acquire the semaphore, and log when that is done."""
    return semaphore.acquire().addCallback(lambda _: log.append(name))


def test_as_many_as_the_count_hold_it_and_the_others_follow_in_their_order():
    semaphore, log = Semaphore(2), []
    for name in range(5):
        waiter(semaphore, log, name)
    assert log == [0, 1]
    semaphore.release()
    assert log == [0, 1, 2]
    semaphore.release()
    semaphore.release()
    assert log == [0, 1, 2, 3, 4]


def test_a_released_semaphore_can_be_acquired_at_once():
    semaphore, log = Semaphore(1), []
    waiter(semaphore, log, 0)
    semaphore.release()
    waiter(semaphore, log, 1)
    assert log == [0, 1]


def test_a_waiter_that_is_cancelled_is_left_out():
    semaphore, log = Semaphore(1), []
    waiter(semaphore, log, 0)
    waiting = semaphore.acquire()
    waiter(semaphore, log, 1)
    waiting.cancel()
    assert isinstance(_failure(waiting), CancelledError)
    semaphore.release()
    assert log == [0, 1]


@pytest.mark.parametrize("count", [1, 8])
def test_ten_thousand_waiters_that_release_at_once_take_their_turns(count):
    semaphore, done, held = Semaphore(count), [], []

    async def hold_briefly():
        await semaphore.acquire()
        held.append(None)
        assert len(held) <= count
        held.pop()
        semaphore.release()
        done.append(None)

    for _ in range(count):
        semaphore.acquire()
    for _ in range(10_000):
        Deferred.fromCoroutine(hold_briefly())
    assert done == []
    semaphore.release()
    assert len(done) == 10_000


def test_who_asks_while_others_take_their_turns_comes_after_them():
    semaphore, log = Semaphore(1), []
    waiter(semaphore, log, 0)

    def ask_again(_):
        log.append(1)
        waiter(semaphore, log, 3)
        semaphore.release()

    semaphore.acquire().addCallback(ask_again)
    waiter(semaphore, log, 2)
    semaphore.release()
    semaphore.release()
    assert log == [0, 1, 2, 3]


def _failure(deferred):
    found = []
    deferred.addErrback(found.append)
    return found[0].value
