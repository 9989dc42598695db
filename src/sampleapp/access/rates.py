"""Rate limits for callers, as token buckets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sampleapp.access.errors import RateExceeded
from sampleapp.concurrency.rates import Bucket, Rate


class RateLimiter:
    """Limits one caller to its rates."""

    def __init__(
        self,
        *,
        requests: Rate | None,
        bytes_: Rate | None,
        now_s: float,
        rejections: Counter[str] | None = None,
    ) -> None:
        """
        :param requests: the rate of requests.
        :param bytes_: the rate of the bytes of their bodies.
        :param now_s: the time, in seconds.
        :param rejections: counts rejected requests by the rate that they exceeded, as the callers file names
            it. Several limiters may share it.
        """
        self._rejections: Counter[str] = Counter() if rejections is None else rejections
        self.rates = (requests, bytes_)
        self._requests = None if requests is None else Bucket(requests, now_s=now_s)
        self._bytes = None if bytes_ is None else Bucket(bytes_, now_s=now_s)

    def admit(self, length: int | None, *, now_s: float) -> None:
        """
        Charge a request to the rates, or reject it without charging it.

        :param length: of its body, in bytes; ``None`` if it is not known yet, and is charged with `charge`.
        :raise RateExceeded: one of the rates does not allow it now.
        """
        self.require(length, now_s=now_s)
        if self._requests is not None:
            self._requests.take(1, now_s=now_s)
        if length is not None:
            self.charge(length, now_s=now_s)

    def require(self, length: int | None, *, now_s: float) -> None:
        """
        Check whether the rates allow a request, without charging it.

        :param length: as for `admit`.
        :raise RateExceeded: one of the rates does not allow it now.
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
            self._rejections[f"{what}_per_second"] += 1
            raise RateExceeded(what, retry_after_s=wait_s)

    def charge(self, length: int, *, now_s: float) -> None:
        """Charge bytes of a body that `admit` has not charged. A negative length is refunded."""
        if self._bytes is not None:
            self._bytes.take(length, now_s=now_s)

    def require_no_debt(self, *, now_s: float) -> None:
        """
        Check that the rate of bytes has no debt, before more of a body is read.

        :raise RateExceeded: it has one. The error has the delay for a whole burst, since the length of the
            rest is unknown.
        """
        if self._bytes is not None and self._bytes.wait_s(0, now_s=now_s) > 0:
            self._rejections["bytes_per_second"] += 1
            raise RateExceeded("bytes", retry_after_s=self._bytes.wait_s(self._bytes.rate.burst, now_s=now_s))


class BodyCharge:
    """
    Charges the bytes of one body to its caller's rate as they arrive.

    A declared length is charged in advance, so that bodies that arrive at the same time do not all use the
    same allowance. Bytes that do not arrive are refunded.
    """

    __slots__ = ("_arrived", "_is_paid_in_advance", "_limiter", "_paid", "_seconds")

    def __init__(self, limiter: RateLimiter, *, paid: int | None, seconds: Callable[[], float]) -> None:
        """
        :param paid: the length that was charged in advance, in bytes; ``None`` if it was not known.
        :param seconds: the clock of the rate, in seconds.
        """
        self._limiter = limiter
        self._is_paid_in_advance = paid is not None
        self._paid = paid or 0
        self._arrived = 0
        self._seconds = seconds

    def add(self, length: int) -> None:
        """Charge bytes that have arrived now, unless they were charged in advance."""
        self.charge_up_to(self._arrived + length)

    def charge_up_to(self, length: int) -> None:
        """Charge a body up to a length, in bytes: its present size, encoded or decoded."""
        self._arrived = max(self._arrived, length)
        if self._arrived > self._paid:
            self._limiter.charge(self._arrived - self._paid, now_s=self._seconds())
            self._paid = self._arrived

    def require_room(self) -> None:
        """
        Check that more of a body may be read. A body that was charged in advance always may.

        :raise RateExceeded: the caller has a debt of bytes.
        """
        if not self._is_paid_in_advance:
            self._limiter.require_no_debt(now_s=self._seconds())

    def end(self) -> None:
        """Refund the bytes that were charged and have not arrived."""
        self._limiter.charge(self._arrived - self._paid, now_s=self._seconds())
        self._paid = self._arrived
