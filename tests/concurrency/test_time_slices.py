"""Cooperative scheduling of long work, one slice in each turn of the reactor."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred

from sampleapp.concurrency.slices import TimeSlices
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
    # The first call of the reactor is in the turn in which the first slice was taken.
    assert counts == [1, 2, 3, 4, 5, 6]


def test_a_cancelled_wait_gets_no_slice():
    clock = ClockInTurns()
    slices = TimeSlices(clock)
    slices.next()
    gone, next_one = slices.next(), slices.next()
    gone.addErrback(lambda failure: failure.trap(CancelledError))
    gone.cancel()
    clock.take()
    clock.take()
    assert next_one.called


class Slow:
    """A value that takes a tenth of a millisecond to free."""

    def __init__(self, clock):
        self.clock = clock

    def __del__(self):
        self.clock.rightNow += 0.0001


def test_a_short_list_is_freed_at_once_although_others_wait_for_slices():
    clock = ClockInTurns()
    slices = TimeSlices(clock)
    slices.next()
    slices.next()
    lists = [[Slow(clock) for _ in range(50)] for _ in range(20)]
    freed = [Deferred.fromCoroutine(slices.free_gradually(many)) for many in lists]
    assert lists == [[]] * 20
    assert all(each.called for each in freed)


def test_whoever_frees_values_that_take_long_goes_on_once_all_are_freed():
    clock = ClockInTurns()
    slices = TimeSlices(clock)
    slices.next()
    many = [Slow(clock) for _ in range(500)]
    freed = Deferred.fromCoroutine(slices.free_gradually(many))
    clock.take()
    lengths = [len(many)]
    while not freed.called:
        assert many
        clock.take()
        lengths.append(len(many))
    assert lengths == list(range(450, -1, -50))
