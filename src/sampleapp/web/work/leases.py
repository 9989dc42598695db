"""Leases that workers have from this instance, with their limit, and counts of their messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from sampleapp.model import Acknowledged
from sampleapp.web.errors import TooManyLeases

_MOST_GROUPS: Final = 100
_OTHER: Final = ("other", "other")
"""The labels of all groups after the first hundred."""
_LOOK_S: Final = 0.5
"""How often the ends of leases are checked while the service stops."""


class Leases:
    """
    The leases that this instance has given, until they are answered here, or their time is over.

    A pull counts as one as well: it may get messages at any moment.
    """

    def __init__(self, limit: int, *, now: Callable[[], float]) -> None:
        """
        :param limit: the most leases.
        :param now: returns the time of day, in seconds since the epoch.
        """
        self.limit: Final = limit
        self.rejections = 0
        """Pulls that were rejected since the start, because of the limit."""
        self._now = now
        self._pulls = 0
        self._ends: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return the number of leases, without pulls."""
        now_ms = self._now() * 1000
        self._ends = {token: ends_ms for token, ends_ms in self._ends.items() if ends_ms > now_ms}
        return len(self._ends)

    @contextmanager
    def pulling(self) -> Iterator[None]:
        """
        Count a pull while it may get a lease.

        :raise TooManyLeases: there are too many.
        """
        if len(self._ends) + self._pulls >= self.limit and len(self) + self._pulls >= self.limit:
            self.rejections += 1
            raise TooManyLeases(self.limit)
        self._pulls += 1
        try:
            yield
        finally:
            self._pulls -= 1

    def add(self, token: bytes, ends_ms: int) -> None:
        """Add a lease with its end, in milliseconds since the epoch."""
        self._ends[token] = ends_ms

    def discard(self, token: bytes) -> None:
        """Remove a lease, if it is there."""
        self._ends.pop(token, None)

    async def wait_until_ended(self, clock: IReactorTime) -> None:
        """Wait until no lease is left, and no pull that may get one."""
        while len(self) or self._pulls:
            await deferLater(clock, _LOOK_S)


class WorkCounts:
    """The numbers of messages by topic, group and result, for metrics."""

    _log = Logger()

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str, str]] = Counter()
        """Since the start, by topic, group and result: given, accepted, released or rejected."""
        self.groups: set[tuple[str, str]] = set()
        """The groups with labels of their own."""

    def add(self, topic: str, group: str, **counts: int) -> None:
        """Count messages by result."""
        labels = (topic, group)
        if len(self.groups) < _MOST_GROUPS:
            self.groups.add(labels)
        for result, count in counts.items():
            self.messages[(*(labels if labels in self.groups else _OTHER), result)] += count

    def add_done(self, topic: str, group: str, done: Acknowledged) -> None:
        """Count the results of a lease. Brokers count and log the messages that are given up."""
        self.add(topic, group, accepted=done.accepted, released=done.released, rejected=done.rejected)
        if done.rejected:
            self._log.warn(
                "{count} messages of topic {topic} are rejected by a worker of group {group}. They stay in "
                "the topic.",
                count=done.rejected,
                topic=topic,
                group=group,
            )
