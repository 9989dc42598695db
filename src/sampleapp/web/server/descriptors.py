"""
The limit on the open files of the process, of which each connection is one.

Without a free descriptor, the process cannot accept a connection, not even to refuse it, and cannot reach its
broker or its files.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from typing import Final

__all__ = ["Descriptors"]

_MAX_KEPT_FREE: Final = 128


class Descriptors:
    """The descriptors of the process, and the part of them that connections may use."""

    def __init__(self, limit: int) -> None:
        """:param limit: the most files that the process may have open."""
        self._kept_free = min(_MAX_KEPT_FREE, limit // 2)
        self.for_connections = limit - self._kept_free
        """The most descriptors for connections; the others are for the broker, files, and the log."""
        # The system assigns the lowest number that is free (open(2)).
        self._lowest_too_high = limit - self._kept_free // 2

    @classmethod
    def of_process(cls, *, for_connections: int) -> Descriptors:
        """
        Raise the process's own limit to the number that is needed, or to the hard limit.

        :param for_connections: the descriptors that connections need.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = for_connections + _MAX_KEPT_FREE
        if hard != resource.RLIM_INFINITY:
            needed = min(needed, hard)
        if soft == resource.RLIM_INFINITY:
            return cls(needed)
        if soft < needed:
            # A sandbox may forbid this, whatever the hard limit is (systemd's SystemCallFilter=~@resources).
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
                soft = needed
        return cls(soft)

    def are_short(self) -> bool:
        """Return whether the next descriptor must be kept for other uses than connections."""
        try:
            next_one = os.dup(0)
        except OSError as error:
            return error.errno in (errno.EMFILE, errno.ENFILE)
        os.close(next_one)
        return next_one >= self._lowest_too_high
