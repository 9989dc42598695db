"""
Group commit: what is published while a transaction runs shares the next one.

So throughput grows with the number of publishers, and nobody waits for a timer. Each publish costs the
reactor's thread a Deferred and an append, however many records it has; going to the other thread and back is
paid once a transaction.
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
from sampleapp.brokers.sqlite.publishes import Publish, PublishMany, PublishOne, weight
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
from sampleapp.interfaces import Outcome
from sampleapp.measures import RECORDS, SECONDS, Distribution, SQLiteMeasures, Waiting
from sampleapp.model import Record, RecordMetadata

__all__ = ["Writer"]

_TRANSACTION_RECORDS = 500
_TRANSACTION_BYTES = 4 * 1024 * 1024
"""
A transaction that has so much takes no more. It lasts some milliseconds, and so long a record waits that
comes when one has just begun. With twice as many, a record would cost a tenth less.
"""
_WEIGHED_AT_ONCE = 2000
"""Records whose sizes are added up in one turn of the reactor, in less than a millisecond."""
_PROBE_S = 1.0
_PATIENCE_WHEN_BAD_S = 0.1
_NOT_STARTED = "The broker was not started yet."
_STOPPING = "The broker is stopping."
_LEFT_OUT = "Earlier records of the same batch were not stored, or may not be; this one was not published."

P = ParamSpec("P")
T = TypeVar("T")
_Part = tuple[Publish, int, int]
"""What a transaction has of one publish: the number of the first record of it, and how many there are."""


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
        self._queue: deque[Publish] = deque()
        self._transaction: list[_Part] = []
        self._transaction_bytes = 0
        self._weighing: list[PublishMany] = []
        self._waiting_records = 0
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
        size = weight(record)
        if self._waiting_bytes + size > self._buffer_bytes:
            if size > self._buffer_bytes:
                # It would not fit into an empty buffer either: no use in trying again.
                return fail(RecordTooLarge("The record is larger than the broker takes."))
            return fail(BufferFull("Too many records are waiting to be stored; this one was not kept."))
        publish = PublishOne(record, size)
        self._accept(publish, 1, size)
        return publish.result

    def publish_many(self, records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """See `IBroker.publish_many`."""
        if not records:
            return succeed([])
        publish = PublishMany(records)
        self._weighing.append(publish)
        self._weigh(publish)
        return publish.result

    def measures(self) -> SQLiteMeasures:
        """See `sampleapp.interfaces.IMeasured.measures`."""
        return SQLiteMeasures(
            waiting=Waiting(
                records=self._waiting_records,
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
        for publish in self._weighing.copy():
            self._weighed(publish)
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
        self._fail_transaction(
            lambda: OutcomeUnknown("The service stopped before the record was stored for certain; it may be.")
        )
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.callback(None)

    async def _begin(self) -> None:
        await self._see()
        self._work()

    def _weigh(self, publish: PublishMany) -> None:
        """Add up what many records take, which for very many takes several turns, and accept all or none."""
        if publish not in self._weighing:
            return
        publish.weigh(_WEIGHED_AT_ONCE)
        if publish.weighed < len(publish.records) and publish.weight_bytes <= self._buffer_bytes:
            self._clock.callLater(0, self._weigh, publish)
        else:
            self._weighed(publish)

    def _weighed(self, publish: PublishMany) -> None:
        self._weighing.remove(publish)
        size = publish.weight_bytes
        if self._stopping:
            publish.result.errback(
                BrokerStopped("The service is stopping; none of the records was published.")
            )
        elif self._hanging:
            publish.result.errback(
                BrokerUnavailable("The broker does not answer; none of the records was published.")
            )
        elif size > self._buffer_bytes:
            publish.result.errback(
                RecordTooLarge(
                    "The records are larger together than the broker takes at once; publish fewer at a time."
                )
            )
        elif self._waiting_bytes + size > self._buffer_bytes:
            publish.result.errback(
                BufferFull("Too many records are waiting to be stored; none of these was kept.")
            )
        else:
            self._accept(publish, len(publish.records), size)

    def _accept(self, publish: Publish, count: int, size: int) -> None:
        self._waiting_records += count
        self._waiting_bytes += size
        self._queue.append(publish)
        if not self._busy:
            self._busy = True
            # Not at once: what the reactor reads from other connections in this turn comes along.
            self._clock.callLater(0, self._work)

    def _work(self) -> None:
        Deferred.fromCoroutine(self._write_all())

    async def _write_all(self) -> None:
        # What is published by those who are told of one batch is in the queue before the next begins.
        while self._queue:
            records = self._take()
            outcomes: Sequence[Outcome]
            began_s = self._clock.seconds()
            try:
                # While nothing can be stored, callers are told so without the usual patience.
                patience_s = _PATIENCE_WHEN_BAD_S if self._failing else None
                outcomes = await self._on_thread(self._store.append, records, patience_s)
            except StoreError as error:
                self._failed_commits += 1
                self._failed(error)
                self._fail_transaction(error.publish_error)
            except Exception:  # noqa: BLE001 -- nothing cancels this, and every publisher gets an answer
                self._failed_commits += 1
                self._log.failure("Appending to {path} failed unexpectedly", path=str(self._store.path))
                self._fail_transaction(lambda: OutcomeUnknown("Whether the record was stored is not known."))
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

    def _take(self) -> list[Record]:
        """
        Begin with a transaction of what waits: first come, first served, and large batches by turns.

        If it has all records of somebody who published few, it ends when each of the others has had a turn.
        """
        records: list[Record] = []
        size = 0
        in_first_round = len(self._queue)
        has_few = False
        while self._queue and len(records) < _TRANSACTION_RECORDS and size < _TRANSACTION_BYTES:
            if in_first_round == 0 and has_few:
                break
            in_first_round -= 1
            publish = self._queue.popleft()
            first, some, of_some = publish.take()
            self._transaction.append((publish, first, len(some)))
            records += some
            size += of_some
            if not publish.is_taken:
                self._queue.append(publish)
            elif first == 0:
                has_few = True
        self._transaction_bytes = size
        return records

    def _end_transaction(self) -> list[_Part]:
        """:return: what it was; nothing if the waiting for it was given up meanwhile."""
        parts, self._transaction = self._transaction, []
        if parts:
            self._waiting_records -= sum([count for _, _, count in parts])
            self._waiting_bytes -= self._transaction_bytes
        return parts

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        at = 0
        for publish, first, count in self._end_transaction():
            publish.settle(first, outcomes[at : at + count])
            at += count

    def _fail_transaction(self, make_error: Callable[[], PublishError]) -> None:
        parts = self._end_transaction()
        for publish in {publish for publish, _, _ in parts if not publish.is_taken}:
            # Later records of a key must not overtake those that are not stored, and have to be sent again.
            self._queue.remove(publish)
            self._fail_left(publish, BrokerUnavailable(_LEFT_OUT))
        for publish, first, count in parts:
            # One for each publisher, which may raise and chain it as it likes.
            publish.settle(first, [make_error()] * count)

    def _fail_queue(self, error: type[PublishError], detail: str) -> None:
        queue, self._queue = self._queue, deque()
        for publish in queue:
            self._fail_left(publish, error(detail))

    def _fail_left(self, publish: Publish, error: PublishError) -> None:
        first, records, size = publish.left()
        self._waiting_records -= len(records)
        self._waiting_bytes -= size
        publish.settle(first, [error] * len(records))

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
        self._fail_queue(BrokerUnavailable, "The broker does not answer; the record was not published.")
        self._fail_transaction(
            lambda: PublishTimedOut("The broker did not answer in time; the record may be stored.")
        )

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
