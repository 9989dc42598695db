"""Several callers that wait for one event."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError

from sampleapp.concurrency.waiting import Waiters


def ends(deferreds):
    found = []
    for each in deferreds:
        each.addBoth(found.append)
    return [getattr(each, "value", each) for each in found]


def test_each_waiter_has_a_deferred_of_its_own_and_all_are_told():
    waiters = Waiters()
    one, other = waiters.wait(), waiters.wait()
    one.addCallback(lambda _: "changed")
    waiters.succeed("value")
    assert ends([one, other]) == ["changed", "value"]


def test_each_waiter_fails_with_an_error_of_its_own():
    waiters = Waiters()
    waiting = [waiters.wait() for _ in range(3)]
    waiters.fail(lambda: ValueError("why"))
    errors = ends(waiting)
    assert [type(each) for each in errors] == [ValueError] * 3
    assert len({id(each) for each in errors}) == 3


def test_who_waits_from_within_the_event_waits_for_the_next_one():
    waiters = Waiters()
    again = []
    waiters.wait().addCallback(lambda _: again.append(waiters.wait()))
    waiters.succeed(1)
    assert waiters
    assert not again[0].called
    waiters.succeed(2)
    assert ends(again) == [2]
    assert not waiters


@given(cancelled=st.lists(st.booleans(), max_size=8), failing=st.booleans())
def test_cancelling_ends_one_wait_only(cancelled, failing):
    waiters = Waiters()
    waiting = [waiters.wait() for _ in cancelled]
    for deferred, is_cancelled in zip(waiting, cancelled, strict=True):
        if is_cancelled:
            deferred.cancel()
    if failing:
        waiters.fail(KeyError)
    else:
        waiters.succeed(None)
    other = KeyError if failing else type(None)
    assert [type(each) for each in ends(waiting)] == [CancelledError if each else other for each in cancelled]
