"""The condition of a broker: what `health` says, and which lines are worth the log."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from sampleapp.brokers.shared.health import WRITING, HealthTracker
from sampleapp.model import Health
from tests.support.logs import logged_lines

READING = ("reading", "readings")
OTHER = ("reading", "other")


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


def test_reasons_that_alternate_are_a_line_each_and_not_a_storm(health_tracker, clock):
    with logged_lines() as lines:
        for turn in range(1000):
            health_tracker.mark_failed(WRITING, f"reason {turn % 2}")
            clock.advance(0.7)
    assert lines == [f"The broker is not ready; still trying: reason {turn}" for turn in range(2)]


def test_reasons_with_figures_that_change_are_no_storm(health_tracker, clock):
    with logged_lines() as lines:
        for turn in range(600):
            health_tracker.mark_failed(WRITING, f"no answer for {turn} s")
            clock.advance(0.1)
    assert len(lines) <= 10


def test_a_lasting_reason_is_logged_at_once_after_passing_ones(health_tracker, clock):
    with logged_lines() as lines:
        for reason in ("refused", "timed out", "refused", "no name", "refused", "wrong password"):
            clock.advance(0.5)
            health_tracker.mark_failed(WRITING, reason)
    assert lines[-1] == "The broker is not ready; still trying: wrong password"
    assert len(lines) == 4


def test_a_reason_that_comes_back_after_another_is_logged_again_when_it_is_a_minute_old(
    health_tracker, clock
):
    with logged_lines() as lines:
        for reason in ("one", "other", "one"):
            health_tracker.mark_failed(WRITING, reason)
            clock.advance(61)
    assert lines == [f"The broker is not ready; still trying: {reason}" for reason in ("one", "other", "one")]


def test_a_reason_of_several_topics_is_one_warning_until_none_has_it(health_tracker):
    with logged_lines() as lines:
        health_tracker.mark_failed(READING, "damage")
        health_tracker.mark_failed(OTHER, "damage")
        assert health_tracker.health().reasons == ("damage",)
        health_tracker.mark_healthy(OTHER)
        assert health_tracker.health().reasons == ("damage",)
        health_tracker.mark_healthy(READING)
    assert lines == [
        "Reading is interrupted; trying again: damage",
        "Reading continues. Before: damage",
    ]


@pytest.mark.parametrize("order", [(READING, WRITING), (WRITING, READING)])
def test_that_records_cannot_be_stored_is_logged_whatever_was_logged_about_reading(health_tracker, order):
    with logged_lines() as lines:
        for part in order:
            health_tracker.mark_failed(part, "damage")
        health_tracker.mark_healthy(WRITING)
    assert [line for line in lines if "Reading" not in line] == [
        "The broker is not ready; still trying: damage",
        "The broker is ready again. Before: damage",
    ]


def test_what_is_expected_is_not_logged_but_known(health_tracker):
    with logged_lines() as lines:
        health_tracker.expect(WRITING, "not started")
        assert health_tracker.health().reasons == ("not started",)
        health_tracker.mark_healthy(WRITING)
        health_tracker.mark_failed(READING, "damage")
        health_tracker.forget(READING)
        assert health_tracker.health().reasons == ()
    assert lines == ["Reading is interrupted; trying again: damage"]


def test_only_what_keeps_records_from_being_stored_has_a_public_reason(health_tracker):
    with logged_lines():
        health_tracker.mark_failed(READING, "/var/lib/file is damaged")
        assert health_tracker.health() == Health(ready=True, reasons=("/var/lib/file is damaged",))
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
    assert lines == [f"The broker is not ready; still trying: {reason}" for reason in ("one", "other")]
    assert health_tracker.health().reasons == ("other",)


@given(
    st.lists(
        st.tuples(st.sampled_from([WRITING, READING]), st.sampled_from([None, "a", "b"]), st.floats(0, 100))
    )
)
@example([(READING, "a", 0.0), (WRITING, "a", 0.0), (READING, None, 0.0)])
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
            health = health_tracker.health()
            assert set(health.reasons) == set(last.values())
            assert health.ready == (WRITING not in last) == (not health.public_reasons)
        for part in (WRITING, READING):
            health_tracker.mark_healthy(part)
    for failed, recovered in (("not ready", "ready again"), ("interrupted", "continues")):
        last = [line for line in lines if failed in line or recovered in line][-1:]
        assert all(recovered in line for line in last)
