"""Cooperative scheduling of long work, one slice in each turn of the reactor."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import CancelledError, Deferred

from sampleapp.concurrency.time_slices import TimeSlices
from tests.support.clocks import ClockInTurns


def test_the_coroutine_that_has_waited_longest_gets_the_next_slice():
    clock, taken = ClockInTurns(), []
    slices = TimeSlices(clock)

    async def work(name, pieces):
        for _ in range(pieces):
            await slices.next()
            taken.append(name)

    for name, pieces in (("a", 3), ("b", 2), ("c", 1)):
        Deferred.fromCoroutine(work(name, pieces))
    # No slice was taken before the first one.
    assert taken == ["a"]
    counts = []
    while len(taken) < 6:
        clock.take()
        counts.append(len(taken))
    assert taken == ["a", "a", "b", "c", "a", "b"]
    assert counts == [2, 3, 4, 5, 6]


def test_a_cancelled_wait_gets_no_slice():
    clock = ClockInTurns()
    slices = TimeSlices(clock)
    slices.next()
    gone, next_one = slices.next(), slices.next()
    gone.addErrback(lambda failure: failure.trap(CancelledError))
    gone.cancel()
    clock.take()
    assert next_one.called


def test_a_long_list_is_freed_in_several_turns_of_the_reactor():
    clock = ClockInTurns()
    slices = TimeSlices(clock)
    many, few = list(range(5001)), [1, 2]
    slices.free_gradually(many)
    slices.free_gradually(few)
    lengths = [len(many)]
    while many:
        clock.take()
        lengths.append(len(many))
    assert all(0 < before - after <= 2000 for before, after in pairwise(lengths))
    # A short list is not changed.
    assert few == [1, 2]


def test_values_that_are_slow_to_free_are_freed_in_smaller_slices():
    clock = ClockInTurns()

    class Slow:
        def __del__(self):
            clock.rightNow += 0.0001

    many = [Slow() for _ in range(500)]
    TimeSlices(clock).free_gradually(many)
    lengths = [len(many)]
    while many and len(lengths) < 20:
        clock.take()
        lengths.append(len(many))
    assert lengths == list(range(450, -1, -50))
