"""Counts the reads of topics that requests cause."""

from __future__ import annotations

from typing import TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.python.failure import Failure

from sampleapp.concurrency.failures import forget_frames_of
from sampleapp.errors import SampleAppError, UnknownPartition
from sampleapp.interfaces import IBroker
from sampleapp.model import ReadRequest, ReadResult
from sampleapp.records.place import Place

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

    def read_on(self, place: Place, *, limit: int, max_bytes: int) -> Deferred[ReadResult]:
        """
        Read a topic from a place on, which does not move; see `ReadRequest`.

        :return: fires with the result. If a position names partitions that the topic does not have, it has no
            records, and is a problem of the place. Fails as `IBroker.read` does.
        """
        reading = self.read(place.request(limit=limit, max_bytes=max_bytes))
        # No coroutine: if its caller goes away, a failure inside another one is a cycle.
        return reading if place.partitions is not None else reading.addErrback(self._look, place)

    def _look(self, failure: Failure, place: Place) -> Deferred[ReadResult]:
        if failure.check(UnknownPartition) is None:
            return fail(failure)

        def judge(look: ReadResult) -> ReadResult:
            if place.problem(look) is None:
                # They have been added since the first read.
                failure.raiseException()
            return look

        return self.read(place.look()).addCallback(judge)

    def _count(self, result: ReadResult) -> ReadResult:
        self.records += len(result.records)
        return result

    def _end(self, result: T) -> T:
        if isinstance(result, Failure) and result.check(SampleAppError, CancelledError):
            # Frames of the broker's coroutine refer to those of the reader's, and these to the failure.
            forget_frames_of(result)
        self.in_progress -= 1
        self.ended += 1
        return result
