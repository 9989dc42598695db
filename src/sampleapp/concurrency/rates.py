"""
Rate limits as token buckets, and exponential back-off between attempts.

A bucket holds a burst, and is filled at the average rate. Each request takes its amount out of the bucket, or
is rejected until there is enough. An amount larger than the burst needs a full bucket and leaves it in debt.
So the average holds.
"""

from __future__ import annotations

from msgspec import Struct

_MAX_EXPONENT = 30
"""The number of failures is not bounded, but a float is."""


class Backoff(Struct, frozen=True, kw_only=True):
    """Exponential back-off: the delay doubles with each failure in a row, up to a limit."""

    first_s: float
    """After the first failure, in seconds."""
    max_s: float
    """The limit, in seconds."""

    def delay_s(self, failures: int) -> float:
        """
        Return the seconds to wait.

        :param failures: the number of attempts that have failed in a row; after none the delay is 0.
        """
        if failures < 1:
            return 0.0
        return min(self.first_s * 2.0 ** min(failures - 1, _MAX_EXPONENT), self.max_s)


class Rate(Struct, frozen=True, gc=False):
    """An average rate and a burst."""

    per_second: float
    """The average."""
    burst: float
    """The most at once."""


class Bucket:
    """A token bucket."""

    __slots__ = ("_at_s", "_level", "rate")

    def __init__(self, rate: Rate, *, now_s: float) -> None:
        """
        Make a full bucket.

        :param now_s: the time, in seconds, of a clock that may be set back.
        """
        self.rate = rate
        self._level = rate.burst
        self._at_s = now_s

    def wait_s(self, amount: float, *, now_s: float) -> float:
        """Return the seconds until an amount may be taken, if nothing else is taken before; 0 if now."""
        self._fill(now_s)
        missing = min(amount, self.rate.burst) - self._level
        return missing / self.rate.per_second if missing > 0 else 0.0

    def take(self, amount: float, *, now_s: float) -> None:
        """Take an amount out, even if the level falls below zero. A negative amount is put back."""
        self._fill(now_s)
        self._level = min(self._level - amount, self.rate.burst)

    def _fill(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        if elapsed_s > 0:
            self._level = min(self._level + elapsed_s * self.rate.per_second, self.rate.burst)
