"""Counts the reads of topics that requests cause, and shares them fairly between callers."""

from __future__ import annotations

from typing import Final, NoReturn, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from sampleapp.concurrency.failures import forget_frames_of
from sampleapp.concurrency.waiting import Semaphore
from sampleapp.errors import BrokerUnavailable, SampleAppError, UnknownPartition
from sampleapp.interfaces import IBroker
from sampleapp.model import ReadRequest, ReadResult
from sampleapp.records.positions import Cursor
from sampleapp.web.server import Request

_READS_AT_ONCE: Final = 16
_READS_OF_ONE: Final = 8
_LONG_READ_S: Final = 0.5
"""A read that takes longer gives its turn to others: it probably waits for a broker that is frozen."""
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

    def read_on(
        self, cursor: Cursor, *, limit: int, max_bytes: int, caller: str, key: bytes | None = None
    ) -> Deferred[ReadResult]:
        """
        Read a topic from a cursor, which does not move; see `ReadRequest`.

        :return: fires with the result. If a position names partitions that the topic does not have, it has no
            records, and is a problem of the cursor. Fails as `IBroker.read` does.
        """
        reading = self.read(cursor.request(limit=limit, max_bytes=max_bytes, caller=caller, key=key))
        # No coroutine: if its caller goes away, a failure inside another one is a cycle.
        return reading if cursor.partitions is not None else reading.addErrback(self._look, cursor)

    def _look(self, failure: Failure, cursor: Cursor) -> Deferred[ReadResult]:
        if failure.check(UnknownPartition) is None:
            return fail(failure)

        def judge(look: ReadResult) -> ReadResult:
            if cursor.problem(look) is None:
                # They have been added since the first read.
                failure.raiseException()
            return look

        return self.read(cursor.look()).addCallback(judge)

    def _count(self, result: ReadResult) -> ReadResult:
        self.records += len(result.records) + result.left_out
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

    Callers alternate, and without credentials the addresses of clients; one has half of the turns. So many
    requests of one of them hardly delay a request of another.
    """

    def __init__(self, reads: TopicReads, clock: IReactorTime) -> None:
        self._reads = reads
        self._clock = clock
        self._slots = Semaphore(_READS_AT_ONCE, most_of_group=_READS_OF_ONE)

    def turn(self, request: Request) -> ReadTurn:
        """Return the turns of a request, to be used one after the other."""
        exchange = request.exchange
        caller = exchange.caller or exchange.peer.host
        return ReadTurn(self._reads, self._slots, self._clock, caller)


class ReadTurn:
    """A turn to read; see `ReadTurns`. Its owner must call `end`."""

    def __init__(self, reads: TopicReads, slots: Semaphore, clock: IReactorTime, caller: str) -> None:
        self._reads = reads
        self._slots = slots
        self._clock = clock
        self._caller = caller
        self._is_over = True

    def begin(self) -> Deferred[None]:
        """
        Wait for the turn, unless it has begun.

        :return: fires with ``None``, or fails with `BrokerUnavailable` after 30 s. Cancelling it ends the
            waiting.
        """
        if not self._is_over:
            return succeed(None)
        waiting = self._slots.acquire(self._caller)
        if not waiting.called:
            waiting.addTimeout(_LONGEST_WAIT_S, self._clock, onTimeoutCancel=_raise_too_many)
        return waiting.addCallback(self._begun)

    def read(
        self, cursor: Cursor, *, limit: int, max_bytes: int, key: bytes | None = None
    ) -> Deferred[ReadResult]:
        """Read a topic as `TopicReads.read_on` does. If that takes long, the turn ends before it."""
        timer = self._clock.callLater(_LONG_READ_S, self.end)

        def is_read(result: T) -> T:
            if timer.active():
                timer.cancel()
            return result

        reading = self._reads.read_on(cursor, limit=limit, max_bytes=max_bytes, caller=self._caller, key=key)
        return reading.addBoth(is_read)

    def end(self) -> None:
        """Give the turn to others. Does nothing if it is over."""
        if not self._is_over:
            self._is_over = True
            self._slots.release(self._caller)

    def _begun(self, _: None) -> None:
        self._is_over = False


def _raise_too_many(_: object, timeout_s: float) -> NoReturn:
    raise BrokerUnavailable(f"Too many reads wait: this one has waited {timeout_s:g} seconds.")
