"""The SQLite broker: wires its components, starts and stops them, and deletes expired identities."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, ParamSpec

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorFromThreads, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.brokers.shared.deliveries import WorkSettings
from sampleapp.brokers.shared.following import single_partition
from sampleapp.brokers.shared.health import WRITING, HealthTracker
from sampleapp.brokers.shared.idempotency import IdempotencySettings
from sampleapp.brokers.shared.stopping import Stopping
from sampleapp.brokers.shared.work import NOT_KNOWN, Operation, Work
from sampleapp.brokers.sqlite.database import PrivateThread
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.reader import Reader
from sampleapp.brokers.sqlite.rows import require_topic_name
from sampleapp.brokers.sqlite.store import Store
from sampleapp.brokers.sqlite.writer import Writer
from sampleapp.errors import BrokerStopped, BrokerUnavailable, IllegalTopic, OutcomeUnknown, PublishError
from sampleapp.interfaces import IBroker, IMeasured, IRecordObserver, ISubscription, Outcome
from sampleapp.measures import SQLiteMeasures
from sampleapp.model import (
    EARLIEST,
    FromOffsets,
    Health,
    ReadRequest,
    ReadResult,
    Record,
    RecordMetadata,
    Start,
    TopicDescription,
)

_INTERVAL_S = 60.0
_PAUSE_S = 0.02
"""The pause between two transactions, in which records are stored."""


class Expiry:
    """Looks for expired identities every minute, and deletes them in small transactions."""

    _log = Logger()

    def __init__(self, *, store: Store, thread: PrivateThread, clock: IReactorTime) -> None:
        """:param clock: for the intervals. Identities expire by the clock of the store."""
        self._store = store
        self._thread = thread
        self._clock = clock
        self._next: IDelayedCall | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin a minute from now: the start has other work."""
        self._later(_INTERVAL_S)

    def stop(self) -> None:
        """Begin no more transactions. One may still be running on the thread."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _later(self, delay_s: float) -> None:
        if not self._stopped:
            self._next = self._clock.callLater(delay_s, self._begin)

    def _begin(self) -> None:
        self._next = None
        Deferred.fromCoroutine(self._forget_some())

    async def _forget_some(self) -> None:
        is_more = False
        try:
            is_more = await self._thread.run(self._store.forget_some)
        except StoreError:
            # Publishing meets the same error, or a probe does, and reports it. An expired identity does not
            # count, even if it is still there.
            pass
        except Exception:  # noqa: BLE001 -- nothing cancels this, and the next time may work
            self._log.failure("Deleting expired identities from {path} failed", path=str(self._store.path))
        self._later(_PAUSE_S if is_more else _INTERVAL_S)


P = ParamSpec("P")

BUFFER_BYTES = 64 * 1024 * 1024
PATIENCE_S = 1.5
"""Callers get their 503 within 2 seconds, with the time that the other calls on the thread take."""
RESPONSE_TIMEOUT_S = 15.0

_PAGE_TOPICS = 1000
"""Topics that are read in one call on the private thread, in about a millisecond."""
_UNLOCK_S = 0.25
_LAST_WAIT_S = 5.0
_NOT_STARTED = "The broker has not been started yet."
_STOPPED = "The broker has been stopped."


@implementer(IBroker, IMeasured)
class SQLiteBroker:
    """
    Records in one SQLite file, with one partition for each topic and offsets from 0 without gaps.

    A publish is answered after its commit was synced to the disk. A topic is created by its first record.
    Several processes may use the same file at the same time.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        path: str | Path,
        clock: IReactorTime,
        threads: IReactorFromThreads,
        buffer_bytes: int = BUFFER_BYTES,
        patience_s: float = PATIENCE_S,
        response_timeout_s: float = RESPONSE_TIMEOUT_S,
        idempotency: IdempotencySettings = IdempotencySettings(),  # noqa: B008 -- it is immutable
        work: WorkSettings = WorkSettings(),  # noqa: B008 -- it is immutable
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        :param path: of the file, which is created if it is missing; its directory must exist.
        :param clock: for polling and deadlines.
        :param threads: brings results back from the private thread.
        :param buffer_bytes: the maximum bytes of records that are accepted and not yet stored.
        :param patience_s: seconds to wait for another process that has the file locked.
        :param response_timeout_s: seconds to wait for the disk; well above ``patience_s``.
        :param idempotency: for records that are sent again.
        :param work: for groups of workers.
        :param now: returns the time of day, for identities and leases: seconds since the epoch.
        """
        # Absolute, since a daemon changes its directory after its options were read.
        self._store = Store(
            path=Path(path).absolute(),
            patience_s=patience_s,
            identity_window_s=idempotency.window_s,
            work=work,
            now=now,
        )
        self._thread = PrivateThread(threads=threads)
        self._health_tracker = HealthTracker()
        self._reader = Reader(
            store=self._store,
            thread=self._thread,
            clock=clock,
            health_tracker=self._health_tracker,
            response_timeout_s=response_timeout_s,
        )
        self._writer = Writer(
            store=self._store,
            thread=self._thread,
            clock=clock,
            health_tracker=self._health_tracker,
            buffer_bytes=buffer_bytes,
            response_timeout_s=response_timeout_s,
            stored=self._stored,
        )
        self.work: Final = Work(self._run, clock, self._store.leases, timeout_s=response_timeout_s)
        """See `IBroker.work`. It is also told within 0.2 s of what other processes have stored."""
        self._expiry = Expiry(store=self._store, thread=self._thread, clock=clock)
        self._clock = clock
        self._response_timeout_s = response_timeout_s
        self._started = False
        self._stopping = Stopping(clock=clock, work=self._stop, deadline_passed=self._deadline_passed)

    def check(self) -> None:
        """See `IBroker.check`. Closes the file again, so that the process may fork afterwards."""
        self._store.check()

    def start(self) -> None:
        """See `IBroker.start`."""
        if self._started or self._stopping.is_requested:
            return
        self._started = True
        self._log.info("Records are kept in {path}", path=str(self._store.path))
        self._thread.start()
        self._writer.start()
        self._reader.start()
        self._expiry.start()

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `IBroker.publish`. A record that is published before `start` waits for it."""
        return self._writer.publish(record)

    def publish_many(self, records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """
        See `IBroker.publish_many`. A transaction has up to 500 records, and larger batches take several.

        After each 100 records of a batch, records of other calls may follow in the same transaction.
        """
        return self._writer.publish_many(records)

    def check_topics(
        self,
        topics: Collection[str],
        *,
        create: bool = True,  # noqa: ARG002 -- the first record creates it
        identified: bool = False,  # noqa: ARG002 -- every topic takes identities
    ) -> Deferred[Mapping[str, PublishError]]:
        """See `IBroker.check_topics`. A missing topic is created by its first record."""
        errors = {topic: self._error_of(topic) for topic in topics}
        return succeed({topic: error for topic, error in errors.items() if error is not None})

    def list_topics(self) -> Deferred[Sequence[str]]:
        """See `IBroker.list_topics`."""
        return Deferred.fromCoroutine(self._list())

    def describe_topics(self, topics: Collection[str]) -> Deferred[Sequence[TopicDescription]]:
        """See `IBroker.describe_topics`."""
        return Deferred.fromCoroutine(self._describe(sorted(set(topics))))

    def read(self, request: ReadRequest) -> Deferred[ReadResult]:
        """
        See `IBroker.read`. A start at a time looks at all records before it.

        It takes the private thread in steps of about 2 ms, between which records are stored.
        """
        return self._reader.read(request)

    def follow(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start | FromOffsets = EARLIEST,
        partition: int | None = None,
    ) -> ISubscription:
        """See `IBroker.follow`."""
        return self._reader.follow(topic=topic, observer=observer, start=start, partition=partition)

    def health(self) -> Health:
        """See `IBroker.health`."""
        return self._health_tracker.health()

    def measures(self) -> SQLiteMeasures:
        """See `IMeasured.measures`."""
        return self._writer.measures()

    def stop(self, *, deadline_s: float) -> Deferred[None]:
        """See `IBroker.stop`. Of several calls the earliest deadline counts."""
        return self._stopping.request(deadline_s=deadline_s)

    def _stored(self, records: Sequence[Record]) -> None:
        self._reader.stored(records)
        self.work.stored(records)

    def _run(self, operations: Sequence[Operation]) -> Deferred[list[tuple[Any, int]]]:
        if not self._started:
            return fail(BrokerUnavailable(_NOT_STARTED))
        return self._thread.run(self._store.work, operations).addErrback(_raise_work_error)

    def _error_of(self, topic: str) -> PublishError | None:
        if self._stopping.is_requested:
            return BrokerStopped("The service is stopping.")
        try:
            require_topic_name(topic)
        except IllegalTopic as error:
            return error
        return None

    async def _list(self) -> list[str]:
        names: list[str] = []
        while True:
            # Page by page, so that publishing waits for the thread only for the time of one page.
            page = await self._read(self._store.topics, after=names[-1] if names else "", count=_PAGE_TOPICS)
            names += page
            if len(page) < _PAGE_TOPICS:
                return names

    async def _describe(self, topics: Sequence[str]) -> list[TopicDescription]:
        found: list[str] = []
        for start in range(0, max(len(topics), 1), _PAGE_TOPICS):
            found += await self._read(self._store.topics_of, topics[start : start + _PAGE_TOPICS])
        return [single_partition(name) for name in found]

    async def _read(self, read: Callable[P, list[str]], *args: P.args, **kwargs: P.kwargs) -> list[str]:
        if not self._started or self._stopping.is_requested:
            raise BrokerUnavailable(_STOPPED if self._started else _NOT_STARTED)
        reading = self._thread.run(read, *args, **kwargs)
        try:
            return await reading.addTimeout(
                self._response_timeout_s, self._clock, onTimeoutCancel=_raise_timed_out
            )
        except StoreError as error:
            raise BrokerUnavailable(error.public_reason) from error

    def _deadline_passed(self) -> None:
        self._store.abandon()
        # Only the page or the transaction that is running is left now. A transaction that waited for a lock
        # soon fails as not stored, which is better than an unknown outcome.
        self._stopping.later(_UNLOCK_S, self._writer.give_up)
        # Nothing waits for a lock any more, so only a hanging disk can take longer.
        self._stopping.later(_LAST_WAIT_S, self._abandon_thread)
        self._writer.give_up_queue()

    def _abandon_thread(self) -> None:
        self._log.error(
            "{path} did not respond at shutdown; abandoning its thread.", path=str(self._store.path)
        )
        self._health_tracker.expect(WRITING, _STOPPED, public_reason=_STOPPED)
        self._stopping.finish()

    async def _stop(self) -> None:
        self._expiry.stop()
        stopping = [Deferred.fromCoroutine(each.stop()) for each in (self._reader, self.work)]
        try:
            await self._writer.drain()
            for each in stopping:
                await each
        finally:
            if self._started:
                await self._close()
        self._health_tracker.expect(WRITING, _STOPPED, public_reason=_STOPPED)

    async def _close(self) -> None:
        try:
            fault = await self._thread.run(self._store.close)
            if fault is not None:
                self._health_tracker.mark_failed(
                    WRITING,
                    fault.reason,
                    public_reason=fault.public_storing_reason,
                    needs_restart=fault.needs_restart,
                )
        finally:
            self._thread.stop()


def _raise_work_error(failure: Failure) -> NoReturn:
    error = failure.value
    if not isinstance(error, StoreError):
        failure.raiseException()
    if isinstance(error.publish_error(), OutcomeUnknown):
        raise OutcomeUnknown(NOT_KNOWN) from error
    raise BrokerUnavailable(error.public_storing_reason) from error


def _raise_timed_out(_: object, timeout_s: float) -> NoReturn:
    raise BrokerUnavailable(f"The disk has not responded for {timeout_s:g} seconds.")
