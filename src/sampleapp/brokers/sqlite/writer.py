"""
Group commit: what is published while a transaction runs shares the next one.

So throughput grows with the number of publishers, and nobody waits for a timer. Each record costs the
reactor's thread a Deferred and an append; going to the other thread and back is paid once a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.shared.condition import WRITING, Condition
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.rows import Outcome
from sampleapp.brokers.sqlite.store import Store
from sampleapp.brokers.sqlite.thread import PrivateThread
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    BufferFull,
    OutcomeUnknown,
    PublishError,
    PublishTimedOut,
    RecordTooLarge,
)
from sampleapp.measures import RECORDS, SECONDS, Distribution, SQLiteMeasures, Waiting
from sampleapp.model import Record, RecordMetadata

__all__ = ["Writer"]

_BATCH_RECORDS = 1000
_BATCH_BYTES = 4 * 1024 * 1024
_PROBE_S = 1.0
_PATIENCE_WHEN_BAD_S = 0.1
_NOT_STARTED = "The broker was not started yet."
_STOPPING = "The broker is stopping."

RECORD_OVERHEAD_BYTES = 256
"""What a waiting record takes besides its key and value: so that empty ones are bounded, too."""

P = ParamSpec("P")
T = TypeVar("T")
_Waiting = tuple[Record, int, Deferred[RecordMetadata]]


class Writer:
    """Takes records, has them appended in batches, and tells each publisher what became of its own."""

    _log = Logger()

    def __init__(
        self,
        *,
        store: Store,
        thread: PrivateThread,
        clock: IReactorTime,
        condition: Condition,
        buffer_bytes: int,
        answer_timeout_s: float,
        stored: Callable[[Sequence[Record]], None],
    ) -> None:
        """
        :param buffer_bytes: how much may wait; beyond that `publish` fails with `BufferFull`.
        :param answer_timeout_s: seconds after which a disk that does not answer is not waited for any more.
        :param stored: is told of each batch that was committed.
        """
        self._store = store
        self._thread = thread
        self._clock = clock
        self._condition = condition
        self._buffer_bytes = buffer_bytes
        self._answer_timeout_s = answer_timeout_s
        self._stored = stored
        self._queue: deque[_Waiting] = deque()
        self._batch: list[_Waiting] = []
        self._waiting_bytes = 0
        self._running = False
        self._busy = True
        self._stopping = False
        self._failing = False
        self._hanging = False
        self._idle: Deferred[None] | None = None
        self._probe: IDelayedCall | None = None
        self._commit_records = Distribution(RECORDS)
        self._commit_s = Distribution(SECONDS)
        self._failed_commits = 0
        condition.expect(WRITING, _NOT_STARTED, obstacle=_NOT_STARTED)

    def start(self) -> None:
        """Begin with what has been published so far, and see whether the file can be opened."""
        self._condition.expect(
            WRITING,
            f"{self._store.path} has not been opened yet.",
            obstacle="The file with the records has not been opened yet.",
        )
        self._running = True
        # Busy with the probe: it opens the file, which must not fail twice to be said once.
        Deferred.fromCoroutine(self._begin())

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `IBroker.publish`."""
        if self._stopping:
            return fail(BrokerStopped("The service is stopping; the record was not published."))
        if self._hanging:
            return fail(BrokerUnavailable("The broker does not answer; the record was not published."))
        weight = _weight(record)
        if self._waiting_bytes + weight > self._buffer_bytes:
            if weight > self._buffer_bytes:
                # It would not fit into an empty buffer either: no use in trying again.
                return fail(RecordTooLarge("The record is larger than the broker takes."))
            return fail(BufferFull("Too many records are waiting to be stored; this one was not kept."))
        self._waiting_bytes += weight
        # When a Deferred without a canceller is cancelled, it ignores the result that comes later: the
        # waiting stops, and the record goes its way.
        waiting: Deferred[RecordMetadata] = Deferred()
        self._queue.append((record, weight, waiting))
        if not self._busy:
            self._busy = True
            # Not at once: what the reactor reads from other connections in this turn comes along.
            self._clock.callLater(0, self._work)
        return waiting

    def measures(self) -> SQLiteMeasures:
        """See `sampleapp.interfaces.IMeasured.measures`."""
        return SQLiteMeasures(
            waiting=Waiting(
                records=len(self._queue) + len(self._batch),
                bytes=self._waiting_bytes,
                limit_bytes=self._buffer_bytes,
            ),
            commit_records=self._commit_records,
            commit_s=self._commit_s,
            failed_commits=self._failed_commits,
            file_bytes=self._store.file_bytes,
            wal_bytes=self._store.wal_bytes,
        )

    def drain(self) -> Deferred[None]:
        """Take nothing more. Fires when nothing is waiting any more."""
        self._stopping = True
        if not self._running:
            self.give_up()
            return succeed(None)
        self._condition.expect(WRITING, _STOPPING, obstacle=_STOPPING)
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None
        if not self._busy:
            return succeed(None)
        self._idle = Deferred()
        return self._idle

    def give_up_queue(self) -> None:
        """Fail what has not begun, now."""
        self._fail_queue(BrokerStopped, "The service stopped; the record was not published.")

    def give_up(self) -> None:
        """Fail whatever is still waiting, now."""
        self.give_up_queue()
        self._fail_batch(
            OutcomeUnknown, "The service stopped before the record was stored for certain; it may be."
        )
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.callback(None)

    async def _begin(self) -> None:
        await self._see()
        self._work()

    def _work(self) -> None:
        Deferred.fromCoroutine(self._write_all())

    async def _write_all(self) -> None:
        # What is published by those who are told of one batch is in the queue before the next begins.
        while self._queue:
            self._batch = self._take()
            records = [record for record, _, _ in self._batch]
            outcomes: Sequence[Outcome]
            began_s = self._clock.seconds()
            try:
                # While nothing can be stored, callers are told so without the usual patience.
                patience_s = _PATIENCE_WHEN_BAD_S if self._failing else None
                outcomes = await self._on_thread(self._store.append, records, patience_s)
            except StoreError as error:
                self._failed_commits += 1
                self._failed(error)
                outcomes = [error.publish_error() for _ in records]
            except Exception:  # noqa: BLE001 -- nothing cancels this, and every publisher gets an answer
                self._failed_commits += 1
                self._log.failure("Appending to {path} failed unexpectedly", path=str(self._store.path))
                outcomes = [OutcomeUnknown("Whether the record was stored is not known.") for _ in records]
            else:
                self._commit_records.add(len(records))
                self._commit_s.add(self._clock.seconds() - began_s)
                self._works()
                self._stored(records)
            self._settle(outcomes)
        self._busy = False
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.callback(None)

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue and len(batch) < _BATCH_RECORDS and size < _BATCH_BYTES:
            waiting = self._queue.popleft()
            size += waiting[1]
            batch.append(waiting)
        return batch

    def _fail_queue(self, error: type[PublishError], detail: str) -> None:
        queue, self._queue = self._queue, deque()
        self._waiting_bytes -= sum(weight for _, weight, _ in queue)
        for _, _, waiting in queue:
            waiting.errback(error(detail))

    def _fail_batch(self, error: type[PublishError], detail: str) -> None:
        self._settle([error(detail) for _ in self._batch])

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        # Empty if the waiting was given up meanwhile.
        batch, self._batch = self._batch, []
        self._waiting_bytes -= sum(weight for _, weight, _ in batch)
        for (_, _, waiting), outcome in zip(batch, outcomes, strict=False):
            if isinstance(outcome, PublishError):
                waiting.errback(outcome)
            else:
                waiting.callback(outcome)

    async def _on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have the store do something, and let nobody wait for ever if it does not come back from it."""
        late = self._clock.callLater(self._answer_timeout_s, self._not_answered)
        try:
            return await self._thread.run(work, *args, **kwargs)
        finally:
            self._hanging = False
            if late.active():
                late.cancel()

    def _not_answered(self) -> None:
        self._hanging = True
        self._condition.bad(
            WRITING,
            f"{self._store.path} has not been written to for {self._answer_timeout_s:g} seconds.",
            obstacle=f"The disk has not answered for {self._answer_timeout_s:g} seconds.",
        )
        self._fail_batch(PublishTimedOut, "The broker did not answer in time; the record may be stored.")
        self._fail_queue(BrokerUnavailable, "The broker does not answer; the record was not published.")

    def _works(self) -> None:
        if self._stopping:
            return
        self._failing = False
        self._condition.good(WRITING)
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def _failed(self, error: StoreError) -> None:
        if self._stopping:
            return
        self._failing = True
        self._condition.bad(WRITING, error.reason, obstacle=error.obstacle_to_storing)
        if self._probe is None:
            # Callers that are told that the broker does not work may send nothing more, and then no publish
            # would show that it works again.
            self._probe = self._clock.callLater(_PROBE_S, self._probe_now)

    def _probe_now(self) -> None:
        self._probe = None
        Deferred.fromCoroutine(self._see())

    async def _see(self) -> None:
        try:
            await self._on_thread(self._store.probe)
        except StoreError as error:
            self._failed(error)
        except Exception:  # noqa: BLE001 -- nothing cancels this, and the next publish will show more
            self._log.failure("Looking at {path} failed unexpectedly", path=str(self._store.path))
        else:
            self._works()


def _weight(record: Record) -> int:
    """What a record that waits takes of the buffer, in bytes; nearly, where a name is not ASCII."""
    weight = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        weight += len(name) + len(value)
    return weight
