"""How values are counted by their size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.measures import BYTES, RECORDS, SECONDS, Distribution

BOUNDS = st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True).map(sorted)


@given(bounds=BOUNDS, values=st.lists(st.integers(0, 30)))
def test_each_value_is_counted_with_the_least_bound_that_it_does_not_exceed(bounds, values):
    distribution = Distribution(bounds)
    for value in values:
        distribution.add(value)
    for index, bound in enumerate(bounds):
        assert sum(distribution.counts[: index + 1]) == sum(value <= bound for value in values)
    assert sum(distribution.counts) == len(values)
    assert distribution.total == sum(values)


def test_time_that_runs_backwards_takes_nothing_away():
    distribution = Distribution([1, 2])
    distribution.add(-5)
    assert (distribution.counts, distribution.total) == ([1, 0, 0], 0)


@pytest.mark.parametrize("bounds", [SECONDS, RECORDS, BYTES])
def test_bounds_are_ascending(bounds):
    assert list(bounds) == sorted(set(bounds))


def test_durations_are_told_apart_from_half_a_millisecond_to_half_a_minute():
    assert (SECONDS[0], SECONDS[-1]) == (0.0005, 30)
