"""
How much a caller may ask of the service: token buckets.

A bucket holds as much as may come at once, and is filled at the rate that is allowed on average. What comes
is taken out of it, or has to wait. Something that is larger than a whole bucket waits until that is full, and
leaves it in debt, so that the average holds all the same.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from sampleapp.access.errors import RateExceeded

__all__ = ["Bucket", "Rate", "RateLimiter"]


class Rate(Struct, frozen=True):
    """How much may come."""

    per_second: float
    """On average."""
    burst: float
    """At once."""


class Bucket:
    """What is left of a rate."""

    __slots__ = ("_at_s", "_level", "rate")

    def __init__(self, rate: Rate, *, now_s: float) -> None:
        """
        Make a full bucket.

        :param now_s: the time, in seconds; of a clock that may be set back.
        """
        self.rate = rate
        self._level = rate.burst
        self._at_s = now_s

    def wait_s(self, amount: float, *, now_s: float) -> float:
        """Return in how many seconds so much may be taken, if nothing else is; 0 if it may be taken now."""
        self._fill(now_s)
        missing = min(amount, self.rate.burst) - self._level
        return missing / self.rate.per_second if missing > 0 else 0.0

    def take(self, amount: float, *, now_s: float) -> None:
        """Take something out, even if it is more than there is."""
        self._fill(now_s)
        self._level -= amount

    def _fill(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        if elapsed_s > 0:
            self._level = min(self._level + elapsed_s * self.rate.per_second, self.rate.burst)


class RateLimiter:
    """Holds one caller to its rates."""

    def __init__(
        self,
        *,
        requests: Rate | None,
        bytes_: Rate | None,
        now_s: float,
        refusals: Counter[str] | None = None,
    ) -> None:
        """
        :param requests: of requests.
        :param bytes_: of the bytes of their bodies.
        :param now_s: the time, in seconds.
        :param refusals: where those are counted that are refused, by the rate that they were over, as a file
            of callers names it. Several limiters may share it.
        """
        self._refusals: Counter[str] = Counter() if refusals is None else refusals
        self.rates = (requests, bytes_)
        self._requests = None if requests is None else Bucket(requests, now_s=now_s)
        self._bytes = None if bytes_ is None else Bucket(bytes_, now_s=now_s)

    def admit(self, length: int | None, *, now_s: float) -> None:
        """
        Count a request, or refuse it; what is refused is not counted.

        :param length: of its body, in bytes; ``None`` if that is not known yet: `sent` says it later.
        :raise RateExceeded: it is one too many, or too much.
        """
        amount = 1 if length is None else length
        waits = [
            (bucket.wait_s(wanted, now_s=now_s), what)
            for bucket, wanted, what in (
                (self._requests, 1, "requests"),
                (self._bytes, amount, "bytes"),
            )
            if bucket is not None and wanted
        ]
        wait_s, what = max(waits, default=(0.0, ""))
        if wait_s > 0:
            self._refusals[f"{what}_per_second"] += 1
            raise RateExceeded(what, retry_after_s=wait_s)
        if self._requests is not None:
            self._requests.take(1, now_s=now_s)
        if length is not None:
            self.sent(length, now_s=now_s)

    def sent(self, length: int, *, now_s: float) -> None:
        """Count the bytes of a body whose length was not known before."""
        if self._bytes is not None:
            self._bytes.take(length, now_s=now_s)
