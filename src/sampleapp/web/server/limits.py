"""
Limits for each client, for all clients together, and on the open files of the process.

Without a free descriptor, the process cannot accept a connection, not even to refuse it, and cannot reach its
broker or its files.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

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


_LEAST_HANDSHAKES: Final = 32


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of a server's connections."""

    max_body: int = 1024 * 1024
    """The greatest length of the body of a request with one message, in bytes."""
    max_batch_body: int = 16 * 1024 * 1024
    """The greatest length of a body with many messages, in bytes."""
    max_body_memory: int = 256 * 1024 * 1024
    """The memory for all bodies together, and for their records until they are published, in bytes."""
    header_timeout_s: float = 10.0
    """The longest time for a header, from its first byte on, in seconds."""
    body_rate: int = 1024
    """The lowest average rate of a body, in bytes a second."""
    body_grace_s: float = 10.0
    """The time after the header in which a body may be slower than `body_rate`, in seconds."""
    body_idle_timeout_s: float = 30.0
    """The longest time without a byte of a body, in seconds."""
    idle_timeout_s: float = 75.0
    """The longest time of a connection without a request, in seconds."""
    send_timeout_s: float = 30.0
    """The longest time in which the client's system acknowledges no byte of a response, in seconds."""
    max_connections: int = 10_000
    """The most connections that are open at once."""
    kept_for_loopback: int = 32
    """Additional connections for clients on this machine."""
    kept_for_admin: int = 0
    """Additional connections to the endpoint for operators, if there is one."""
    max_rejected: int = 256
    """The most clients at once that are told that all connections are in use; others are only closed."""
    max_waiting: int = 10_000
    """The most requests that wait for their responses at once."""

    max_streams: int = 10_000
    """The most streams that are open at once, and the most pages that wait for a record. 0: none."""
    max_streams_per_caller: int = 5_000
    """The most streams, and the most waiting pages, of a caller without a limit of its own."""

    max_leases: int = 200
    """The most leases of this instance that workers may have at once."""

    max_followed_topics: int = 1_000
    """The most topics that streams and waiting pages read at once."""

    @property
    def max_handshakes(self) -> int:
        """The most TLS handshakes at once, each of which takes about 70 kB: a tenth of the connections."""
        return max(_LEAST_HANDSHAKES, self.max_connections // 10)

    @property
    def descriptors(self) -> int:
        """The most descriptors that connections use at once."""
        return self.max_connections + self.kept_for_loopback + self.kept_for_admin + self.max_rejected

    def within(self, descriptors: int) -> Limits:
        """
        Reduce the numbers of connections to the descriptors of the process.

        :param descriptors: the number for all connections together.
        """
        if self.descriptors <= descriptors:
            return self
        share = max(1, descriptors // 8)
        kept = min(self.kept_for_loopback, share)
        kept_for_admin = min(self.kept_for_admin, share)
        rejected = min(self.max_rejected, share)
        left = descriptors - kept - kept_for_admin - rejected
        max_connections = min(self.max_connections, max(1, left))
        return replace(
            self,
            max_connections=max_connections,
            # Streams last long: some connections must be left for requests.
            max_streams=min(self.max_streams, max_connections - max_connections // 8),
            kept_for_loopback=kept,
            kept_for_admin=kept_for_admin,
            max_rejected=rejected,
        )

    def for_admin(self) -> Limits:
        """Return the limits of the endpoint for operators: its own connections, and the same times."""
        return replace(
            self,
            max_connections=self.kept_for_admin,
            kept_for_loopback=0,
            kept_for_admin=0,
            max_rejected=0,
        )
