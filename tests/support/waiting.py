"""Waiting without a reactor, with a deadline. With one: `tests.support.brokers.eventually`."""

from __future__ import annotations

import time

__all__ = ["wait_until"]


def wait_until(condition, what, *, deadline_s=60.0):
    """
    Wait until a condition holds, and return what it gave.

    :param what: the condition in words, for the test that fails.
    :raise AssertionError: it did not hold in time.
    """
    until = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)
