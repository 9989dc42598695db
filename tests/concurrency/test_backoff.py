"""Exponential back-off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sampleapp.concurrency.rates import Backoff

BACKOFFS = st.builds(
    lambda first_s, factor: Backoff(first_s=first_s, max_s=first_s * factor),
    st.floats(min_value=0.001, max_value=10),
    st.floats(min_value=1, max_value=1000),
)


def test_the_delay_doubles_up_to_the_limit():
    backoff = Backoff(first_s=0.25, max_s=5.0)
    assert [backoff.delay_s(n) for n in range(8)] == [0, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


@given(backoff=BACKOFFS, failures=st.integers(min_value=-5, max_value=10**9))
def test_after_more_failures_the_delay_is_never_shorter_nor_beyond_the_limit(backoff, failures):
    assert 0 <= backoff.delay_s(failures) <= backoff.delay_s(failures + 1) <= backoff.max_s
    assert (backoff.delay_s(failures) == 0) is (failures < 1)
