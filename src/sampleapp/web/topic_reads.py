"""Counts the reads of topics that requests cause."""

from __future__ import annotations

from typing import TypeVar

from twisted.internet.defer import Deferred

from sampleapp.interfaces import IBroker
from sampleapp.model import ReadRequest, ReadResult

__all__ = ["TopicReads"]

T = TypeVar("T")


class TopicReads:
    """`IBroker.read`, with its numbers for metrics. What all listeners of a topic share is not counted."""

    def __init__(self, broker: IBroker) -> None:
        self._broker = broker
        self.in_progress = 0
        """Reads that the broker has not answered yet."""
        self.ended = 0
        """Reads that were answered, that failed, or whose reader has gone, since the start."""
        self.records = 0
        """Records that were read since the start, those with other keys than the wanted one included."""

    def read(self, request: ReadRequest) -> Deferred[ReadResult]:
        """Read a topic; see `IBroker.read`."""
        self.in_progress += 1
        reading: Deferred[ReadResult] = self._broker.read(request)
        return reading.addCallback(self._count).addBoth(self._end)

    def _count(self, result: ReadResult) -> ReadResult:
        self.records += len(result.records)
        return result

    def _end(self, result: T) -> T:
        self.in_progress -= 1
        self.ended += 1
        return result
