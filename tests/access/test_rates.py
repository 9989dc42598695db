"""Rate limits, compared with an independent model."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampleapp.access.errors import RateExceeded
from sampleapp.access.rates import RateLimiter
from sampleapp.concurrency.rates import Rate

START_S = 1_700_000_000.0

# Sums and products of these are exact as floats, so that the model can be compared.
eighths = st.integers(0, 80).map(lambda n: n / 8)
powers = st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0, 64.0])
rates = st.builds(Rate, powers, st.integers(1, 40).map(float))
lengths = st.integers(0, 100)


class Schedule:
    """
    The same rate, as a schedule: when all that has come would have come, had it come evenly (ITU-T I.371, the
    generic cell rate algorithm).
    """

    def __init__(self, rate):
        self.per_second = Fraction(rate.per_second)
        self.burst = Fraction(rate.burst)
        self.even_s = Fraction(0)

    def is_early(self, amount, now_s):
        """Return the seconds until an amount is allowed; 0 if it is allowed now."""
        ahead_s = max(self.even_s - now_s, 0)
        allowed_s = (self.burst - min(amount, self.burst)) / self.per_second
        return max(ahead_s - allowed_s, 0)

    def take(self, amount, now_s):
        self.even_s = max(self.even_s, now_s) + Fraction(amount) / self.per_second


steps = st.lists(st.tuples(eighths, st.none() | lengths, lengths), max_size=40)


@given(st.none() | rates, st.none() | rates, steps)
@example(Rate(1.0, 1.0), None, [(0.0, 0, 0), (0.875, 0, 0), (0.125, 0, 0)])
def test_a_request_is_admitted_when_the_schedule_has_room(requests, bytes_, taken):
    limiter = RateLimiter(requests=requests, bytes_=bytes_, now_s=START_S)
    requests_schedule = None if requests is None else Schedule(requests)
    bytes_schedule = None if bytes_ is None else Schedule(bytes_)
    now_s = Fraction(0)
    for elapsed_s, length, found_later in taken:
        now_s += Fraction(elapsed_s)
        wanted = [(requests_schedule, 1), (bytes_schedule, 1 if length is None else length)]
        early_s = max(
            (schedule.is_early(amount, now_s) for schedule, amount in wanted if schedule and amount),
            default=0,
        )
        clock_s = START_S + float(now_s)
        if early_s:
            with pytest.raises(RateExceeded) as caught:
                limiter.admit(length, now_s=clock_s)
            assert caught.value.retry_after_s == float(early_s)
            continue
        limiter.admit(length, now_s=clock_s)
        if length is None:
            limiter.charge(found_later, now_s=clock_s)
        if requests_schedule:
            requests_schedule.take(1, now_s)
        if bytes_schedule:
            bytes_schedule.take(found_later if length is None else length, now_s)


@given(rates, st.lists(st.tuples(eighths, lengths), max_size=40))
def test_in_no_stretch_of_time_more_is_admitted_than_the_rate_and_one_burst(rate, taken):
    limiter = RateLimiter(requests=None, bytes_=rate, now_s=START_S)
    admitted = []
    now_s = 0.0
    for elapsed_s, length in taken:
        now_s += elapsed_s
        try:
            limiter.admit(length, now_s=START_S + now_s)
        except RateExceeded:
            continue
        # An empty body takes nothing, and never waits.
        if length:
            admitted.append((now_s, length))
    for first, (start_s, _) in enumerate(admitted):
        for last in range(first, len(admitted)):
            end_s = admitted[last][0]
            # One that is larger than a burst waits for a whole one, and the rest is missing afterwards.
            excess = max(0, admitted[last][1] - rate.burst)
            total = sum(length for _, length in admitted[first : last + 1])
            assert total <= rate.burst + rate.per_second * (end_s - start_s) + excess


@given(rates, lengths.filter(bool))
def test_after_the_time_that_a_rejection_says_the_request_is_admitted(rate, length):
    limiter = RateLimiter(requests=None, bytes_=rate, now_s=START_S)
    limiter.admit(length, now_s=START_S)
    limiter.charge(50, now_s=START_S)
    try:
        limiter.admit(length, now_s=START_S)
    except RateExceeded as error:
        limiter.admit(length, now_s=START_S + error.retry_after_s)


def test_a_clock_that_is_set_back_takes_nothing_away_and_gives_nothing():
    limiter = RateLimiter(requests=Rate(1.0, 2.0), bytes_=None, now_s=START_S)
    limiter.admit(0, now_s=START_S)
    limiter.admit(0, now_s=START_S - 1000)
    with pytest.raises(RateExceeded) as caught:
        limiter.admit(0, now_s=START_S - 1000)
    assert caught.value.retry_after_s == 1
    limiter.admit(0, now_s=START_S - 999)
