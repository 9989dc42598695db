"""
Group commit: records that are published while a transaction runs share the next one.

So throughput grows with the number of publishers, without a timer. Each call costs the reactor's thread a
Deferred and an append, for any number of records. Each transaction costs a switch to the private thread and
back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, ParamSpec, TypeAlias, TypeVar, cast

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.shared.health import WRITING, HealthTracker
from sampleapp.brokers.sqlite.database import PrivateThread
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.store import Store
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

RECORD_OVERHEAD_BYTES: Final = 256
"""Counted for each waiting record besides its key and value, so that empty ones are bounded as well."""
_HEADER_OVERHEAD_BYTES: Final = 160
"""Counted for each header besides its name and value, so that empty ones are bounded as well."""

_SLICE_RECORDS: Final = 100
_SLICE_BYTES: Final = 256 * 1024
"""Maximum records and bytes of one call in a row. Then records of other calls follow."""
_WEIGHED_RECORDS: Final = 50
_WEIGHED_BYTES: Final = 4 * 1024 * 1024
"""One call of `PublishMany.weigh` ends after this many bytes, in about 2 ms; checked every 50 records."""


class PublishOne:
    """A pending call with a single record."""

    __slots__ = ("_record", "_weight", "is_taken", "result")

    def __init__(self, record: Record, weight_bytes: int) -> None:
        self._record = record
        self._weight = weight_bytes
        self.is_taken = False
        # A Deferred without a canceller ignores the result after it is cancelled: the caller stops waiting,
        # and the record is stored all the same.
        self.result: Deferred[RecordMetadata] = Deferred()

    def take(self) -> tuple[int, Sequence[Record], int]:
        """
        Take the next records, at least one, for a transaction.

        :return: the index of the first one, the records, and their bytes of the buffer.
        """
        self.is_taken = True
        return 0, (self._record,), self._weight

    def left(self) -> tuple[int, int, int]:
        """
        Take all remaining records.

        :return: the index of the first one, their count, and their bytes of the buffer.
        """
        self.is_taken = True
        return 0, 1, self._weight

    def settle(self, first: int, outcomes: Sequence[Outcome]) -> None:  # noqa: ARG002 -- it is 0
        """
        Set the outcomes of some records. The caller is answered when all records have one.

        :param first: the index of the first one.
        """
        (outcome,) = outcomes
        if isinstance(outcome, PublishError):
            self.result.errback(outcome)
        else:
            self.result.callback(outcome)


class PublishMany:
    """
    A pending call with many records.

    They are taken slice by slice. Records of other calls may come between two slices, so that they do not
    wait for a whole batch.
    """

    __slots__ = (
        "_outcomes",
        "_taken",
        "_taken_bytes",
        "_unknown",
        "records",
        "result",
        "weighed",
        "weight_bytes",
    )

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.weighed = 0
        """The number of records that `weigh` has counted."""
        self.weight_bytes = 0
        """The bytes of the buffer for these records."""
        self._taken = self._taken_bytes = 0
        self._unknown = len(records)
        self._outcomes: list[Outcome | None] = [None] * len(records)
        # Without a canceller, like the Deferred of `PublishOne`.
        self.result: Deferred[list[Outcome]] = Deferred()

    def weigh(self, most_records: int) -> None:
        """Count the bytes of the next records; of fewer if they are large or have many headers."""
        end, until_bytes = self.weighed + most_records, self.weight_bytes + _WEIGHED_BYTES
        while self.weighed < min(end, len(self.records)) and self.weight_bytes < until_bytes:
            some = self.records[self.weighed : min(end, self.weighed + _WEIGHED_RECORDS)]
            self.weighed += len(some)
            self.weight_bytes += sum(map(weight, some))

    @property
    def is_taken(self) -> bool:
        """True if all records are taken."""
        return self._taken == len(self.records)

    def take(self) -> tuple[int, Sequence[Record], int]:
        """See `PublishOne.take`."""
        first = end = self._taken
        size = 0
        for record in self.records[first : first + _SLICE_RECORDS]:
            size += weight(record)
            end += 1
            if size >= _SLICE_BYTES:
                break
        some = self.records[first:end]
        # Only now, since the lines above may raise.
        self._taken, self._taken_bytes = end, self._taken_bytes + size
        return first, some, size

    def left(self) -> tuple[int, int, int]:
        """See `PublishOne.left`."""
        first, self._taken = self._taken, len(self.records)
        size, self._taken_bytes = self.weight_bytes - self._taken_bytes, self.weight_bytes
        return first, self._taken - first, size

    def settle(self, first: int, outcomes: Sequence[Outcome]) -> None:
        """See `PublishOne.settle`."""
        self._outcomes[first : first + len(outcomes)] = outcomes
        self._unknown -= len(outcomes)
        if not self._unknown and not self.result.called:
            self.result.callback(cast("list[Outcome]", self._outcomes))


Publish: TypeAlias = "PublishOne | PublishMany"
"""A pending call: accepted, and not yet answered."""


def weight(record: Record) -> int:
    """Return the bytes of the buffer for a waiting record; approximately if header names are not ASCII."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += _HEADER_OVERHEAD_BYTES + len(name) + len(value or b"")
    return size


_TRANSACTION_RECORDS = 500
_TRANSACTION_BYTES = 4 * 1024 * 1024
"""
Limits of a transaction, which takes some milliseconds. A record that arrives during one waits for its end.
With twice as many records, each would cost a tenth less.
"""
_WEIGHED_AT_ONCE = 2000
"""Records whose sizes are added up in one turn of the reactor, in less than a millisecond."""
_PROBE_S = 1.0
_NOT_STARTED = "The broker has not been started yet."
_STOPPING = "The broker is stopping."
_LEFT_OUT = (
    "An earlier record of the same batch was not stored, or its outcome is unknown; this one was not "
    "published."
)

P = ParamSpec("P")
T = TypeVar("T")
_NOT_KNOWN = "It is not known whether the record was stored."
_NOT_TAKEN = "The service could not take the record; it was not published."
_Part = tuple[Publish, int, int, int]
"""The part of one call in a transaction: the index of its first record, the count, and the bytes."""


class Writer:
    """Queues records, appends them in transactions, and answers each caller with the outcomes."""

    _log = Logger()

    def __init__(
        self,
        *,
        store: Store,
        thread: PrivateThread,
        clock: IReactorTime,
        health_tracker: HealthTracker,
        buffer_bytes: int,
        response_timeout_s: float,
        stored: Callable[[Sequence[Record]], None],
    ) -> None:
        """
        :param buffer_bytes: the maximum bytes of waiting records; beyond, `publish` fails with `BufferFull`.
        :param response_timeout_s: seconds after which callers no longer wait for a disk that does not
            respond.
        :param stored: is called with the records of each transaction that was committed.
        """
        self._store = store
        self._thread = thread
        self._clock = clock
        self._health_tracker = health_tracker
        self._buffer_bytes = buffer_bytes
        self._response_timeout_s = response_timeout_s
        self._stored = stored
        self._queue: deque[Publish] = deque()
        self._transaction: list[_Part] = []
        self._weighing: list[PublishMany] = []
        self._waiting_records = 0
        self._waiting_bytes = 0
        self._running = False
        self._busy = True
        self._stopping = False
        self._hanging = False
        self._idle: Deferred[None] | None = None
        self._probe: IDelayedCall | None = None
        self._commit_records = Distribution(RECORDS)
        self._commit_s = Distribution(SECONDS)
        self._failed_commits = 0
        health_tracker.expect(WRITING, _NOT_STARTED, public_reason=_NOT_STARTED)

    def start(self) -> None:
        """Open the file, and begin to store the records that have been published."""
        self._health_tracker.expect(
            WRITING,
            f"{self._store.path} has not been opened yet.",
            public_reason="The file with the records has not been opened yet.",
        )
        self._running = True
        # Busy with the probe, which opens the file, so that a failure to open is met and logged once.
        Deferred.fromCoroutine(self._begin())

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `IBroker.publish`."""
        if self._stopping:
            return fail(BrokerStopped("The service is stopping; the record was not published."))
        if self._hanging:
            return fail(BrokerUnavailable("The broker does not respond; the record was not published."))
        size = weight(record)
        if self._waiting_bytes + size > self._buffer_bytes:
            if size > self._buffer_bytes:
                # It would not fit into an empty buffer either, so a retry is useless.
                return fail(RecordTooLarge("The record is larger than the broker takes."))
            return fail(BufferFull("Too many records are waiting to be stored; this one was not published."))
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
        """Reject new records. Fires when none is waiting any more."""
        self._stopping = True
        for publish in self._weighing.copy():
            self._weighed(publish)
        if not self._running:
            self.give_up()
            return succeed(None)
        self._health_tracker.expect(WRITING, _STOPPING, public_reason=_STOPPING)
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None
        if not self._busy:
            return succeed(None)
        self._idle = Deferred()
        return self._idle

    def give_up_queue(self) -> None:
        """Fail the calls that are not in a transaction, now."""
        self._fail_queue(BrokerStopped, "The service stopped; the record was not published.")

    def give_up(self) -> None:
        """Fail all waiting calls, now."""
        self.give_up_queue()
        self._fail_transaction(
            lambda: OutcomeUnknown(
                "The service stopped before the outcome was known; the record may be stored."
            )
        )
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.callback(None)

    async def _begin(self) -> None:
        await self._probe_store()
        self._start_writing()

    def _weigh(self, publish: PublishMany) -> None:
        """Add up the bytes of a batch, in several turns of the reactor if needed, and accept all or none."""
        if publish not in self._weighing:
            return
        try:
            publish.weigh(_WEIGHED_AT_ONCE)
        except Exception:  # noqa: BLE001 -- after any error, the caller gets a response
            self._log.failure("Computing the size of {count} records failed", count=len(publish.records))
            self._weighing.remove(publish)
            _fail(publish, BrokerUnavailable(_NOT_TAKEN))
            return
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
                BrokerUnavailable("The broker does not respond; none of the records was published.")
            )
        elif size > self._buffer_bytes:
            publish.result.errback(
                RecordTooLarge(
                    "The records together are larger than the broker takes at once; publish fewer at a time."
                )
            )
        elif self._waiting_bytes + size > self._buffer_bytes:
            publish.result.errback(
                BufferFull("Too many records are waiting to be stored; none of these was published.")
            )
        else:
            self._accept(publish, len(publish.records), size)

    def _accept(self, publish: Publish, count: int, size: int) -> None:
        self._waiting_records += count
        self._waiting_bytes += size
        self._queue.append(publish)
        if not self._busy:
            self._busy = True
            # In the next turn of the reactor, so that records from other connections join the transaction.
            self._clock.callLater(0, self._start_writing)

    def _start_writing(self) -> None:
        Deferred.fromCoroutine(self._write_all())

    async def _write_all(self) -> None:
        # Records that callers publish when they are answered are in the queue before the next transaction.
        while self._queue:
            try:
                await self._write()
            except Exception:  # noqa: BLE001 -- nothing cancels this, and the next transaction must run
                self._log.failure("Storing records in {path} failed unexpectedly", path=str(self._store.path))
                self._fail_transaction(lambda: OutcomeUnknown(_NOT_KNOWN))
        self._busy = False
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.callback(None)

    async def _write(self) -> None:
        """Do one transaction, and answer its callers."""
        records = self._next_transaction()
        began_s = self._clock.seconds()
        try:
            outcomes = await self._on_thread(self._store.append, records)
        except StoreError as error:
            self._failed_commits += 1
            self._mark_failed(error)
            self._fail_transaction(error.publish_error)
            return
        except Exception:
            self._failed_commits += 1
            raise
        if len(outcomes) != len(records):
            raise RuntimeError(f"{len(records)} records have {len(outcomes)} outcomes")
        self._commit_records.add(len(records))
        self._commit_s.add(self._clock.seconds() - began_s)
        self._mark_healthy()
        self._settle(outcomes)
        self._stored(records)

    def _next_transaction(self) -> list[Record]:
        """
        Take the records of the next transaction: slices of the waiting calls, in order and round-robin.

        If it has all records of a small call, it ends after the first round.
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
            try:
                first, some, of_some = publish.take()
            except Exception:  # noqa: BLE001 -- after any error, the records of other calls are stored
                self._log.failure(
                    "Taking records of a call for {path} failed unexpectedly", path=str(self._store.path)
                )
                self._fail_rest(publish, BrokerUnavailable(_NOT_TAKEN))
                continue
            self._transaction.append((publish, first, len(some), of_some))
            records += some
            size += of_some
            if not publish.is_taken:
                self._queue.append(publish)
            elif first == 0:
                has_few = True
        return records

    def _end_transaction(self) -> list[_Part]:
        """Return the parts of the transaction; none if its callers have been answered before its end."""
        parts, self._transaction = self._transaction, []
        for _, _, count, size in parts:
            self._waiting_records -= count
            self._waiting_bytes -= size
        return parts

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        at = 0
        for publish, first, count, _ in self._end_transaction():
            self._settle_part(publish, first, outcomes[at : at + count])
            at += count

    def _settle_part(self, publish: Publish, first: int, outcomes: Sequence[Outcome]) -> None:
        """Settle a part of one call. An error does not keep other calls from their responses."""
        try:
            publish.settle(first, outcomes)
        except Exception:  # noqa: BLE001 -- see above
            self._log.failure(
                "Answering a publisher of records in {path} failed unexpectedly", path=str(self._store.path)
            )
            self._drop(publish)
            _fail(publish, OutcomeUnknown(_NOT_KNOWN))

    def _drop(self, publish: Publish) -> None:
        """Remove the rest of an answered call from the queue: its records belong to the caller again."""
        with suppress(ValueError):
            self._queue.remove(publish)
            _, count, size = publish.left()
            self._waiting_records -= count
            self._waiting_bytes -= size

    def _fail_transaction(self, make_error: Callable[[], PublishError]) -> None:
        parts = self._end_transaction()
        for publish in {publish for publish, *_ in parts if not publish.is_taken}:
            # Later records of a key must not be stored before earlier ones, which the caller must send again.
            with suppress(ValueError):
                self._queue.remove(publish)
            self._fail_rest(publish, BrokerUnavailable(_LEFT_OUT))
        for publish, first, count, _ in parts:
            # One error for each caller, which may raise and chain it.
            self._settle_part(publish, first, [make_error()] * count)

    def _fail_queue(self, error: type[PublishError], detail: str) -> None:
        queue, self._queue = self._queue, deque()
        for publish in queue:
            self._fail_rest(publish, error(detail))

    def _fail_rest(self, publish: Publish, error: PublishError) -> None:
        first, count, size = publish.left()
        self._waiting_records -= count
        self._waiting_bytes -= size
        self._settle_part(publish, first, [error] * count)

    async def _on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the store on its thread. If it does not respond in time, fail the waiting calls."""
        late = self._clock.callLater(self._response_timeout_s, self._timed_out)
        try:
            return await self._thread.run(work, *args, **kwargs)
        finally:
            self._hanging = False
            if late.active():
                late.cancel()

    def _timed_out(self) -> None:
        self._hanging = True
        self._health_tracker.mark_failed(
            WRITING,
            f"{self._store.path} has not been written to for {self._response_timeout_s:g} seconds.",
            public_reason=f"The disk has not responded for {self._response_timeout_s:g} seconds.",
        )
        self._fail_queue(BrokerUnavailable, "The broker does not respond; the record was not published.")
        self._fail_transaction(
            lambda: PublishTimedOut("The broker did not respond in time; the record may be stored.")
        )

    def _mark_healthy(self) -> None:
        if self._stopping:
            return
        self._health_tracker.mark_healthy(WRITING)
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    def _mark_failed(self, error: StoreError) -> None:
        if self._stopping:
            return
        self._health_tracker.mark_failed(
            WRITING,
            error.reason,
            public_reason=error.public_storing_reason,
            needs_restart=error.needs_restart,
        )
        self._probe_later()

    def _probe_later(self) -> None:
        if self._probe is None:
            # Callers may stop publishing while the broker fails, and then no publish would show its recovery.
            self._probe = self._clock.callLater(_PROBE_S, self._probe_now)

    def _probe_now(self) -> None:
        self._probe = None
        Deferred.fromCoroutine(self._probe_store())

    async def _probe_store(self) -> None:
        try:
            await self._on_thread(self._store.probe)
            self._mark_healthy()
        except StoreError as error:
            self._mark_failed(error)
        except Exception:  # noqa: BLE001 -- nothing cancels this, and the next probe may tell more
            self._log.failure("Probing {path} failed unexpectedly", path=str(self._store.path))
            if not self._stopping:
                self._probe_later()


def _fail(publish: Publish, error: PublishError) -> None:
    if not publish.result.called:
        publish.result.errback(error)
