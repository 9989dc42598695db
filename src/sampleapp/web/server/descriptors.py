"""
The files that the process may have open, of which each connection is one.

Without one left, the process can accept no connection, not even to refuse it, and reaches neither its broker
nor its files.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from typing import Final

__all__ = ["Descriptors"]

_MOST_KEPT_FREE: Final = 128


class Descriptors:
    """How many files the process may have open, and how many of them are for connections."""

    def __init__(self, limit: int) -> None:
        """:param limit: how many files the process may have open."""
        self._kept_free = min(_MOST_KEPT_FREE, limit // 2)
        self.for_connections = limit - self._kept_free
        """How many of them connections may have; the others are for the broker, files, and the log."""
        # The system gives out the lowest number that is free (open(2)).
        self._lowest_too_high = limit - self._kept_free // 2

    @classmethod
    def of_process(cls, *, for_connections: int) -> Descriptors:
        """
        Raise the process's own limit as far as is needed, and allowed.

        :param for_connections: how many files connections are to have.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = for_connections + _MOST_KEPT_FREE
        if hard != resource.RLIM_INFINITY:
            needed = min(needed, hard)
        if soft == resource.RLIM_INFINITY:
            return cls(needed)
        if soft < needed:
            # A sandbox may forbid it, whatever the hard limit is (systemd's SystemCallFilter=~@resources).
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
                soft = needed
        return cls(soft)

    def are_short(self) -> bool:
        """Whether the next one should be left to what is no connection."""
        try:
            next_one = os.dup(0)
        except OSError as error:
            return error.errno in (errno.EMFILE, errno.ENFILE)
        os.close(next_one)
        return next_one >= self._lowest_too_high
