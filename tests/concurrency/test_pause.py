"""A sleep that others may shorten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from sampleapp.concurrency.waiting import Pause


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pause(clock):
    return Pause(clock)


def sleeping(pause, delay_s):
    return Deferred.fromCoroutine(pause.sleep(delay_s))


def test_a_sleep_ends_when_its_time_is_up(clock, pause):
    sleep = sleeping(pause, 3)
    clock.advance(2.9)
    assert not sleep.called
    clock.advance(0.1)
    assert sleep.called


def test_a_sleep_without_a_time_lasts_until_it_is_woken(clock, pause):
    sleep = sleeping(pause, None)
    clock.advance(10**6)
    assert not sleep.called
    pause.wake()
    assert sleep.called


def test_waking_nobody_shortens_no_later_sleep(pause):
    pause.wake()
    assert not sleeping(pause, 1).called


@given(steps=st.lists(st.sampled_from(["sleep", "wake", "pass", "end"]), max_size=20))
def test_whatever_is_done_only_one_timer_runs_and_only_while_somebody_sleeps(steps):
    clock = Clock()
    pause = Pause(clock)
    sleep, ended = None, False
    for step in steps:
        if step == "sleep" and (sleep is None or sleep.called):
            sleep = sleeping(pause, 1)
            assert sleep.called is ended
        elif step == "wake":
            pause.wake()
            assert sleep is None or sleep.called
        elif step == "pass":
            clock.advance(1)
            assert sleep is None or sleep.called
        elif step == "end":
            pause.end()
            ended = True
            assert sleep is None or sleep.called
        assert len(clock.getDelayedCalls()) == (sleep is not None and not sleep.called)
