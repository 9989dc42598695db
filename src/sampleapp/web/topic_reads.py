"""Counts the reads of topics that requests cause, and shares them fairly between callers."""

from __future__ import annotations

from typing import Final, NoReturn, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from sampleapp.concurrency.failures import forget_frames_of
from sampleapp.concurrency.semaphore import Semaphore
from sampleapp.errors import BrokerUnavailable, SampleAppError, UnknownPartition
from sampleapp.interfaces import IBroker
from sampleapp.model import ReadRequest, ReadResult
from sampleapp.records.place import Place
from sampleapp.web.server import Request

__all__ = ["ReadTurn", "ReadTurns", "TopicReads"]

_READS_AT_ONCE: Final = 8
_LONG_READ_S: Final = 0.5
"""A turn is given to others after this time: it probably waits for a broker that is frozen."""
_LONGEST_WAIT_S: Final = 30.0

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


class ReadTurns:
    """
    Turns to read a topic and to encode its records: a few at one time; the others wait.

    Callers alternate, and without credentials the addresses of clients. So many requests of one of them delay
    a request of another by a few turns only.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._places = Semaphore(_READS_AT_ONCE)

    def turn(self, request: Request) -> ReadTurn:
        """Return the turns of a request, to be used one after the other."""
        exchange = request.exchange
        return ReadTurn(self._places, self._clock, exchange.caller or exchange.peer.host)


class ReadTurn:
    """A turn to read; see `ReadTurns`. Its owner must call `end`."""

    def __init__(self, places: Semaphore, clock: IReactorTime, group: str) -> None:
        self._places = places
        self._clock = clock
        self._group = group
        self._timer: IDelayedCall | None = None

    @property
    def is_over(self) -> bool:
        """True if `begin` must be called before more work is done."""
        return self._timer is None

    def begin(self) -> Deferred[None]:
        """
        Wait for the next turn, after ending the present one.

        :return: fires with ``None``, or fails with `BrokerUnavailable` after 30 s. Cancelling it ends the
            waiting.
        """
        self.end()
        waiting = self._places.acquire(self._group)
        if not waiting.called:
            waiting.addTimeout(_LONGEST_WAIT_S, self._clock, onTimeoutCancel=_raise_too_many)
        return waiting.addCallback(self._begun)

    def end(self) -> None:
        """Give the turn to others. Does nothing if it is over."""
        if self._timer is not None:
            if self._timer.active():
                self._timer.cancel()
            self._timer = None
            self._places.release()

    def _begun(self, _: None) -> None:
        self._timer = self._clock.callLater(_LONG_READ_S, self.end)


def _raise_too_many(_: object, timeout_s: float) -> NoReturn:
    raise BrokerUnavailable(f"Too many reads wait: this one has waited {timeout_s:g} seconds.")
