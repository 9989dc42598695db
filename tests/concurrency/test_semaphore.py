"""The semaphore."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred

from sampleapp.concurrency.waiting import Semaphore


def waiter(semaphore, log, name, group=None):
    """Acquire the semaphore, and log when that is done."""
    return semaphore.acquire(group).addCallback(lambda _: log.append(name))


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


def test_groups_take_turns_and_each_has_its_own_order():
    semaphore, log = Semaphore(1), []
    semaphore.acquire("d")
    waiting = [waiter(semaphore, log, (group, number), group) for group in "abc" for number in range(3)]
    waiting[3].cancel()
    assert isinstance(_failure(waiting[3]), CancelledError)
    semaphore.release("d")
    for number in range(7):
        semaphore.release(log[number][0])
    assert log == [("a", 0), ("b", 1), ("c", 0), ("a", 1), ("b", 2), ("c", 1), ("a", 2), ("c", 2)]


def test_a_group_that_holds_its_part_does_not_delay_others():
    semaphore, log = Semaphore(4, most_of_group=2), []
    for number in range(4):
        waiter(semaphore, log, ("a", number), "a")
    waiter(semaphore, log, ("b", 0), "b")
    assert log == [("a", 0), ("a", 1), ("b", 0)]
    semaphore.release("a")
    assert log[3:] == [("a", 2)]


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_it_is_never_free_while_a_waiter_of_each_group_may_hold_it(asked, count, most):
    most = min(most, count)
    semaphore, log, given_up, held = Semaphore(count, most_of_group=most), [], 0, 0
    for number, (group, is_cancelled) in enumerate(asked):
        each = waiter(semaphore, log, (group, number), group)
        if is_cancelled and not each.called:
            each.addErrback(lambda _: None).cancel()
            given_up += 1
    while held < len(log):
        own = Counter(group for group, _ in log[held:])
        waiting = {group for group, _ in asked}
        assert own.total() <= count
        assert max(own.values()) <= most
        is_free = own.total() < count
        left = len(asked) - given_up - len(log)
        assert not (is_free and left and all(own[group] < most for group in waiting))
        semaphore.release(log[held][0])
        held += 1
    assert len(log) == len(asked) - given_up
    for group in "abcd":
        numbers = [number for name, number in log if name == group]
        assert numbers == sorted(numbers)


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
