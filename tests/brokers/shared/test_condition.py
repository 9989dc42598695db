"""The condition of a broker: what `health` says, and which lines are worth the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from sampleapp.brokers.shared.condition import WRITING, Condition
from tests.support.logs import logged_lines

READING = ("reading", "readings")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def condition(clock):
    return Condition(clock)


def test_a_reason_is_logged_once_however_often_it_is_given(condition, clock):
    with logged_lines() as lines:
        for _ in range(100):
            condition.mark_failed(WRITING, "refused")
            clock.advance(10)
        condition.mark_healthy(WRITING)
        condition.mark_healthy(WRITING)
    assert lines == [
        "The broker is not ready; still trying: refused",
        "The broker is ready again. Before: refused",
    ]


def test_another_reason_of_the_same_part_is_logged_too(condition, clock):
    with logged_lines() as lines:
        condition.mark_failed(WRITING, "refused the connection")
        clock.advance(300)
        condition.mark_failed(WRITING, "refused the credentials")
        condition.mark_healthy(WRITING)
    assert lines == [
        "The broker is not ready; still trying: refused the connection",
        "The broker is not ready; still trying: refused the credentials",
        "The broker is ready again. Before: refused the credentials",
    ]


def test_reasons_that_alternate_are_a_line_a_minute_and_not_a_storm(condition, clock):
    with logged_lines() as lines:
        for turn in range(1000):
            condition.mark_failed(WRITING, f"reason {turn % 2}")
            clock.advance(0.7)
    assert 10 <= len(lines) <= 12


def test_a_reason_that_came_too_soon_is_logged_when_it_lasts(condition, clock):
    with logged_lines() as lines:
        condition.mark_failed(WRITING, "one")
        for _ in range(100):
            clock.advance(1)
            condition.mark_failed(WRITING, "other")
    assert lines == [
        "The broker is not ready; still trying: one",
        "The broker is not ready; still trying: other",
    ]


def test_one_reason_of_several_parts_is_one_line_until_none_has_it(condition):
    with logged_lines() as lines:
        condition.mark_failed(WRITING, "refused")
        condition.mark_failed(READING, "refused")
        assert condition.health().reasons == ("refused",)
        condition.mark_healthy(WRITING)
        assert not condition.health().ready
        condition.mark_healthy(READING)
    assert lines == [
        "The broker is not ready; still trying: refused",
        "The broker is ready again. Before: refused",
    ]


def test_what_is_expected_is_not_logged_but_known(condition):
    with logged_lines() as lines:
        condition.expect(WRITING, "not started")
        assert condition.health().reasons == ("not started",)
        condition.mark_healthy(WRITING)
        condition.mark_failed(READING, "damage")
        condition.forget(READING)
        assert condition.health().ready
    assert lines == ["The broker is not ready; still trying: damage"]


def test_only_what_keeps_records_from_being_stored_is_an_obstacle_and_in_words_for_everybody(condition):
    with logged_lines():
        condition.mark_failed(READING, "/var/lib/file is damaged")
        assert not condition.health().ready
        assert condition.health().obstacles == ()
        condition.mark_failed(WRITING, "/var/lib/file is full", obstacle="The disk is full.")
        assert condition.health().obstacles == ("The disk is full.",)
        condition.mark_failed(WRITING, "/var/lib/file is gone")
        (obstacle,) = condition.health().obstacles
        assert "/" not in obstacle
        condition.mark_healthy(WRITING)
        assert condition.health().obstacles == ()


def test_without_a_clock_it_is_the_systems():
    with logged_lines() as lines:
        condition = Condition()
        condition.mark_failed(WRITING, "one")
        condition.mark_failed(WRITING, "other")
    assert lines == ["The broker is not ready; still trying: one"]
    assert condition.health().reasons == ("other",)


@given(
    st.lists(
        st.tuples(st.sampled_from([WRITING, READING]), st.sampled_from([None, "a", "b"]), st.floats(0, 100))
    )
)
def test_health_is_what_was_said_last_of_each_part_and_what_was_logged_as_bad_is_logged_as_good(steps):
    clock = Clock()
    condition = Condition(clock)
    last = {}
    with logged_lines() as lines:
        for part, reason, seconds in steps:
            clock.advance(seconds)
            if reason is None:
                last.pop(part, None)
                condition.mark_healthy(part)
            else:
                last[part] = reason
                condition.mark_failed(part, reason)
            assert set(condition.health().reasons) == set(last.values())
        for part in (WRITING, READING):
            condition.mark_healthy(part)
    if lines:
        assert "ready again" in lines[-1]
