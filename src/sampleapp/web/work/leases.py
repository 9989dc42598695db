"""Leases that workers have from this instance, with their limit, and counts of their messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from sampleapp.model import Acknowledged
from sampleapp.web.errors import TooManyLeases

_MOST_GROUPS: Final = 100
OTHER: Final = ("other", "other")
"""The labels of all groups after the first hundred."""
_LOOK_S: Final = 0.5
"""How often the ends of leases are checked while the service stops."""
_LOG_S: Final = 1.0


class Leases:
    """
    The leases that this instance has given, until they are answered here, or their time is over.

    A pull counts as one as well: it may get messages at any moment.
    """

    def __init__(self, limit: int, *, clock: IReactorTime, now: Callable[[], float]) -> None:
        """
        :param limit: the most leases.
        :param clock: schedules checks while the service stops.
        :param now: returns the time of day, in seconds since the epoch.
        """
        self.limit: Final = limit
        self.rejections = 0
        """Pulls that were rejected since the start, because of the limit."""
        self._clock = clock
        self._now = now
        self._pulls = 0
        self._ends: dict[bytes, int] = {}
        self._by_end: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        """Return the number of leases, without pulls."""
        now_ms = self._now() * 1000
        while self._by_end and self._by_end[0][0] <= now_ms:
            ends_ms, token = heappop(self._by_end)
            if self._ends.get(token) == ends_ms:
                del self._ends[token]
        return len(self._ends)

    @contextmanager
    def pulling(self) -> Iterator[None]:
        """
        Count a pull while it may get a lease.

        :raise TooManyLeases: there are too many.
        """
        if len(self) + self._pulls >= self.limit:
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
        heappush(self._by_end, (ends_ms, token))

    def discard(self, token: bytes) -> None:
        """Remove a lease, if it is there."""
        self._ends.pop(token, None)

    async def wait_until_ended(self) -> None:
        """Wait until no lease is left, and no pull that may get one."""
        while len(self) or self._pulls:
            await deferLater(self._clock, _LOOK_S)


class WorkCounts:
    """The numbers of messages by topic, group and result, for metrics and the log."""

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        """:param clock: schedules lines of the log."""
        self.messages: Counter[tuple[str, str, str]] = Counter()
        """Since the start, by topic, group and result: given, accepted, released or rejected."""
        self.groups: set[tuple[str, str]] = set()
        """The groups with labels of their own."""
        self._clock = clock
        self._unlogged: Counter[tuple[str, str]] = Counter()

    def add_given(self, topic: str, group: str, count: int) -> None:
        """Count messages that were given to a worker."""
        self.messages[(*self._labels(topic, group), "given")] += count

    def add_done(self, topic: str, group: str, done: Acknowledged) -> None:
        """Count the results of a lease. Brokers count and log the messages that are given up."""
        labels = self._labels(topic, group)
        self.messages[(*labels, "accepted")] += done.accepted
        self.messages[(*labels, "released")] += done.released
        self.messages[(*labels, "rejected")] += done.rejected
        if done.rejected:
            if not self._unlogged:
                self._clock.callLater(_LOG_S, self._write)
            self._unlogged[labels] += done.rejected

    def _write(self) -> None:
        for (topic, group), count in self._unlogged.items():
            self._log.warn(
                "{count} messages of topic {topic} are rejected by workers of group {group}. They stay in "
                "the topic.",
                count=count,
                topic=topic,
                group=group,
            )
        self._unlogged.clear()

    def _labels(self, topic: str, group: str) -> tuple[str, str]:
        labels = (topic, group)
        if labels not in self.groups:
            if len(self.groups) >= _MOST_GROUPS:
                return OTHER
            self.groups.add(labels)
        return labels
