"""Exponential back-off between attempts."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Backoff"]

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
