"""The numbers of workers' messages, for metrics."""

from __future__ import annotations

from collections import Counter
from typing import Final

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from sampleapp.concurrency.failures import LogLimit
from sampleapp.model import Acknowledged

_MOST_GROUPS: Final = 100
_OTHER: Final = ("other", "other")
"""The labels of all groups after the first hundred."""


class WorkCounts:
    """The numbers of messages by topic, group and result, for metrics."""

    _log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._limit = LogLimit(clock)
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
        """Count the results of a lease, and log rejections. Brokers do so for messages that are given up."""
        self.add(topic, group, accepted=done.accepted, released=done.released, rejected=done.rejected)
        if done.rejected and self._limit.is_due((topic, group)):
            self._log.warn(
                "{count} messages of topic {topic} are rejected by a worker of group {group}. They stay in "
                "the topic. More within a minute are only counted.",
                count=done.rejected,
                topic=topic,
                group=group,
            )
