"""The condition of a broker: what `health` says, and which lines are worth the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from sampleapp.brokers.shared.health import WRITING, HealthTracker
from tests.support.logs import logged_lines

READING = ("reading", "readings")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def health_tracker(clock):
    return HealthTracker(clock)


def test_a_reason_is_logged_once_however_often_it_is_given(health_tracker, clock):
    with logged_lines() as lines:
        for _ in range(100):
            health_tracker.mark_failed(WRITING, "refused")
            clock.advance(10)
        health_tracker.mark_healthy(WRITING)
        health_tracker.mark_healthy(WRITING)
    assert lines == [
        "The broker is not ready; still trying: refused",
        "The broker is ready again. Before: refused",
    ]


def test_another_reason_of_the_same_part_is_logged_too(health_tracker, clock):
    with logged_lines() as lines:
        health_tracker.mark_failed(WRITING, "refused the connection")
        clock.advance(300)
        health_tracker.mark_failed(WRITING, "refused the credentials")
        health_tracker.mark_healthy(WRITING)
    assert lines == [
        "The broker is not ready; still trying: refused the connection",
        "The broker is not ready; still trying: refused the credentials",
        "The broker is ready again. Before: refused the credentials",
    ]


def test_reasons_that_alternate_are_a_line_a_minute_and_not_a_storm(health_tracker, clock):
    with logged_lines() as lines:
        for turn in range(1000):
            health_tracker.mark_failed(WRITING, f"reason {turn % 2}")
            clock.advance(0.7)
    assert 10 <= len(lines) <= 12


def test_a_reason_that_came_too_soon_is_logged_when_it_lasts(health_tracker, clock):
    with logged_lines() as lines:
        health_tracker.mark_failed(WRITING, "one")
        for _ in range(100):
            clock.advance(1)
            health_tracker.mark_failed(WRITING, "other")
    assert lines == [
        "The broker is not ready; still trying: one",
        "The broker is not ready; still trying: other",
    ]


def test_one_reason_of_several_parts_is_one_line_until_none_has_it(health_tracker):
    with logged_lines() as lines:
        health_tracker.mark_failed(WRITING, "refused")
        health_tracker.mark_failed(READING, "refused")
        assert health_tracker.health().reasons == ("refused",)
        health_tracker.mark_healthy(WRITING)
        assert not health_tracker.health().ready
        health_tracker.mark_healthy(READING)
    assert lines == [
        "The broker is not ready; still trying: refused",
        "The broker is ready again. Before: refused",
    ]


def test_what_is_expected_is_not_logged_but_known(health_tracker):
    with logged_lines() as lines:
        health_tracker.expect(WRITING, "not started")
        assert health_tracker.health().reasons == ("not started",)
        health_tracker.mark_healthy(WRITING)
        health_tracker.mark_failed(READING, "damage")
        health_tracker.forget(READING)
        assert health_tracker.health().ready
    assert lines == ["The broker is not ready; still trying: damage"]


def test_only_what_keeps_records_from_being_stored_has_a_public_reason(health_tracker):
    with logged_lines():
        health_tracker.mark_failed(READING, "/var/lib/file is damaged")
        assert not health_tracker.health().ready
        assert health_tracker.health().public_reasons == ()
        health_tracker.mark_failed(WRITING, "/var/lib/file is full", public_reason="The disk is full.")
        assert health_tracker.health().public_reasons == ("The disk is full.",)
        health_tracker.mark_failed(WRITING, "/var/lib/file is gone")
        (public_reason,) = health_tracker.health().public_reasons
        assert "/" not in public_reason
        health_tracker.mark_healthy(WRITING)
        assert health_tracker.health().public_reasons == ()


def test_without_a_clock_it_is_the_systems():
    with logged_lines() as lines:
        health_tracker = HealthTracker()
        health_tracker.mark_failed(WRITING, "one")
        health_tracker.mark_failed(WRITING, "other")
    assert lines == ["The broker is not ready; still trying: one"]
    assert health_tracker.health().reasons == ("other",)


@given(
    st.lists(
        st.tuples(st.sampled_from([WRITING, READING]), st.sampled_from([None, "a", "b"]), st.floats(0, 100))
    )
)
def test_health_is_what_was_said_last_of_each_part_and_what_was_logged_as_bad_is_logged_as_good(steps):
    clock = Clock()
    health_tracker = HealthTracker(clock)
    last = {}
    with logged_lines() as lines:
        for part, reason, seconds in steps:
            clock.advance(seconds)
            if reason is None:
                last.pop(part, None)
                health_tracker.mark_healthy(part)
            else:
                last[part] = reason
                health_tracker.mark_failed(part, reason)
            assert set(health_tracker.health().reasons) == set(last.values())
        for part in (WRITING, READING):
            health_tracker.mark_healthy(part)
    if lines:
        assert "ready again" in lines[-1]
