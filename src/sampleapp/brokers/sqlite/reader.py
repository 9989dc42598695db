"""Reads and followings of topics, in short steps on the private thread, between which records are stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.shared.following import (
    CANNOT_BE_READ,
    NO_SUCH_TOPIC,
    LogSubscriptions,
    Page,
    ReadError,
    start_of,
)
from sampleapp.brokers.shared.health import WRITING, HealthTracker
from sampleapp.brokers.sqlite.database import PrivateThread
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.rows import BLOCK_OFFSETS, Section, TimeSearch
from sampleapp.brokers.sqlite.store import Store
from sampleapp.concurrency.waiting import Pause, Semaphore
from sampleapp.errors import BrokerStopped, BrokerUnavailable, PublishError, UnknownPartition, UnknownTopic
from sampleapp.interfaces import IRecordObserver, ISubscription
from sampleapp.model import (
    EARLIEST,
    FromOffset,
    FromOffsets,
    FromTime,
    GoneRecords,
    ReadRequest,
    ReadResult,
    ReadStart,
    Record,
    Start,
)

# A step takes up to about 2 ms of the private thread, and its records about 1 ms of the reactor.
_STEP_RECORDS = 500
_STEP_BYTES = 512 * 1024
_STEP_KEYS = 2000
"""Records whose keys are compared in one step, in 0.15 us each, or 1 us where values are large."""
_SHORT_KEY = 1024
"""The length of a key, in bytes, above which a step compares fewer."""
_READS_AT_ONCE, _READS_OF_ONE_CALLER = 4, 3
"""The most reads that have records already: what they have read is not counted before all of it is there."""
# A page of a following takes about 2 ms, since publishes wait for it.
_PAGE_RECORDS = 2000
_PAGE_BYTES = 2 * 1024 * 1024
_POLL_S = 0.2
_BLOCKS_AT_ONCE = 500
"""The blocks of a search for a time whose latest times are stored in one transaction, in about 1 ms."""

_NOT_STARTED = "The broker has not been started yet."
_STOPPED = "The service is stopping."

T = TypeVar("T")


class _Step(Struct, eq=False):
    work: Callable[[], Any]
    waiting: Deferred[Any]


class Reader:
    """
    All reads of a broker.

    One step is at the private thread at a time, so that a transaction waits for one at most, however many
    callers read. The steps of different reads take turns, and only a few reads collect records at one time.
    """

    _log = Logger()

    def __init__(
        self,
        *,
        store: Store,
        thread: PrivateThread,
        clock: IReactorTime,
        health_tracker: HealthTracker,
        response_timeout_s: float,
    ) -> None:
        """
        :param thread: the thread of the store.
        :param health_tracker: receives the errors of subscriptions.
        :param response_timeout_s: seconds to wait for the disk in each step of a read.
        """
        self._store = store
        self._thread = thread
        self._clock = clock
        self._health_tracker = health_tracker
        self._response_timeout_s = response_timeout_s
        self._collecting = Semaphore(_READS_AT_ONCE, most_of_group=_READS_OF_ONE_CALLER)
        self._steps: deque[_Step] = deque()
        self._current: _Step | None = None
        self._is_started = False
        self._is_stopped = False
        self._subscriptions = LogSubscriptions(
            read=self._read_page, clock=clock, health_tracker=health_tracker
        )
        self._pause = Pause(clock)
        self._changes: tuple[int, int] | None = None
        self._polling: Deferred[None] | None = None

    def start(self) -> None:
        """Take reads from now on, and begin the subscriptions: the thread is running."""
        self._is_started = True
        self._subscriptions.start()
        self._begin_to_poll()

    async def stop(self) -> None:
        """
        Reject reads from now on, end those that are waiting, and stop all subscriptions.

        No further step is begun. Returns after the subscriptions have ended.
        """
        self._is_stopped = True
        polling = self._polling
        self._pause.end()
        stopping = Deferred.fromCoroutine(self._subscriptions.stop())
        steps, self._steps = self._steps, deque()
        for step in (self._current, *steps):
            if step is not None and not step.waiting.called:
                step.waiting.errback(BrokerStopped(_STOPPED))
        await stopping
        if polling is not None:
            await polling

    def follow(
        self, *, topic: str, observer: IRecordObserver, start: Start | FromOffsets, partition: int | None
    ) -> ISubscription:
        """See `sampleapp.interfaces.IBroker.follow`."""
        subscription = self._subscriptions.follow(
            topic=topic, observer=observer, start=start, partition=partition
        )
        self._begin_to_poll()
        return subscription

    def stored(self, records: Sequence[Record]) -> None:
        """Wake the subscriptions of these records, which this process has stored."""
        if self._subscriptions:
            self._subscriptions.appended({record.topic for record in records})

    def read(self, request: ReadRequest) -> Deferred[ReadResult]:
        """See `sampleapp.interfaces.IBroker.read`."""
        return Deferred.fromCoroutine(self._guarded(request))

    async def _guarded(self, request: ReadRequest) -> ReadResult:
        try:
            return await self._read(request)
        except (PublishError, CancelledError):
            raise
        except StoreError as error:
            raise BrokerUnavailable(error.public_reason) from error
        except Exception as error:
            self._log.failure("Reading the topic {topic} failed unexpectedly", topic=request.topic)
            raise BrokerUnavailable(CANNOT_BE_READ) from error

    async def _read(self, request: ReadRequest) -> ReadResult:
        topic = request.topic
        try:
            start = start_of(request)
        except UnknownPartition:
            # Unless there is no such topic, which is reported first.
            await self._section(topic, EARLIEST, 0, 1)
            raise
        if start is None:
            section = await self._section(topic, EARLIEST, 0, 1)
            return ReadResult(topic_id=section.topic_id, records=(), positions={}, ends={}, partitions=1)
        if isinstance(start, FromTime):
            section = await self._section(topic, EARLIEST, 0, 1)
            start = FromOffset(
                await self._search(topic, section.topic_id, start.timestamp_ms, section.earliest)
            )
        await self._collecting.acquire(request.caller).addTimeout(
            self._response_timeout_s, self._clock, onTimeoutCancel=self._raise_too_many
        )
        try:
            section = await self._section(topic, start, request.limit, request.max_bytes, request.key)
            return await self._collect(request, section)
        finally:
            self._collecting.release(request.caller)

    async def _collect(self, request: ReadRequest, section: Section) -> ReadResult:
        """Read on after a first section until the limits or the end are reached."""
        asked, end = section.position, section.page.end
        if not section.earliest <= asked <= end:
            return ReadResult(
                topic_id=section.topic_id,
                records=(),
                positions={0: asked},
                ends={0: end},
                gone=[GoneRecords(0, asked, section.earliest)] if asked < section.earliest else (),
                beyond={0: end} if asked > end else {},
                partitions=1,
            )
        topic_id = section.topic_id
        position = section.page.next_offset
        records = list(section.page.records)
        size = section.page.size
        limit, max_bytes = request.limit, request.max_bytes
        while request.key is None and position < end and len(records) < limit and size < max_bytes:
            section = await self._section(request.topic, position, limit - len(records), max_bytes - size)
            if section.topic_id != topic_id or not section.earliest <= position <= section.page.end:
                # An operator has deleted the rest, or the topic. The next read reports it.
                break
            position, end = section.page.next_offset, section.page.end
            records += section.page.records
            size += section.page.size
        return ReadResult(
            topic_id=topic_id,
            records=records,
            positions={0: position},
            ends={0: end},
            partitions=1,
            left_out=0 if request.key is None else position - asked - len(records),
        )

    def _read_page(self, topic: str, start: ReadStart) -> Deferred[Page]:
        if isinstance(start, int):
            page = self._thread.run(
                self._store.read, topic, start, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
            )
        else:
            page = Deferred.fromCoroutine(self._first_page(topic, start))
        return page.addErrback(self._raise_read_error)

    async def _first_page(self, topic: str, start: Start) -> Page:
        try:
            found = await self._read(ReadRequest(topic=topic, others=start, limit=0, max_bytes=1))
        except UnknownTopic:
            return await self._read_page(topic, 0)
        return await self._read_page(topic, found.positions[0])

    def _raise_read_error(self, failure: Failure) -> NoReturn:
        error = failure.value
        if isinstance(error, StoreError):
            if error.needs_restart and not self._is_stopped:
                # Nothing can be stored either. Without a publish, the writer does not notice it.
                self._health_tracker.mark_failed(
                    WRITING, error.reason, public_reason=error.public_storing_reason, needs_restart=True
                )
            raise ReadError(error.reason, error.public_reason, is_lasting=error.is_lasting) from error
        failure.trap(BrokerUnavailable)
        raise ReadError(str(error)) from error

    def _begin_to_poll(self) -> None:
        if self._polling is None and self._subscriptions and self._subscriptions.is_running:
            self._polling = Deferred.fromCoroutine(self._poll())

    async def _poll(self) -> None:
        """Check regularly for records of other processes, and wake all subscriptions when there are some."""
        while True:
            await self._pause.sleep(_POLL_S)
            if not self._subscriptions or not self._subscriptions.is_running:
                break
            try:
                changes = await self._thread.run(self._store.changes)
            except Exception:  # noqa: BLE001 -- the subscriptions meet the same error when they read, and report it
                changes = None
            if changes is None or changes != self._changes:
                self._changes = changes
                for subscription in self._subscriptions.current():
                    subscription.wake()
        self._polling = None

    async def _section(
        self, topic: str, start: ReadStart, limit: int, max_bytes: int, key: bytes | None = None
    ) -> Section:
        most = _STEP_RECORDS if key is None else max(1, _STEP_KEYS * _SHORT_KEY // max(_SHORT_KEY, len(key)))
        section = await self._step(
            lambda: self._store.section(
                topic,
                start,
                max_records=min(limit, most),
                max_bytes=min(max_bytes, _STEP_BYTES),
                key=key,
            )
        )
        if section is None:
            raise UnknownTopic(NO_SUCH_TOPIC)
        return section

    async def _search(self, topic: str, topic_id: str, timestamp_ms: int, first: int) -> int:
        """Return the offset of the first record from an offset on that is not before a time, or the end."""
        searched: list[TimeSearch] = []
        while True:
            found = await self._step(
                partial(self._store.search_time, topic, topic_id, timestamp_ms, first=first)
            )
            first = found.until
            is_last = found.at is not None or found.until > found.end
            if not is_last and found.until - found.first == BLOCK_OFFSETS:
                searched.append(found)
            if len(searched) == _BLOCKS_AT_ONCE or (is_last and searched):
                # Otherwise, a later search looks at these blocks again.
                with suppress(StoreError):
                    await self._step(partial(self._store.keep_times, topic_id, searched))
                searched = []
            if is_last:
                return max(found.first, found.end) if found.at is None else found.at

    def _step(self, work: Callable[[], T]) -> Deferred[T]:
        """Call a function of the store on the thread, after the steps that wait already."""
        if not self._is_started:
            raise BrokerUnavailable(_NOT_STARTED)
        if self._is_stopped:
            raise BrokerStopped(_STOPPED)
        # Cancelling it does not stop a step that has begun, which must end before the next one begins.
        waiting: Deferred[T] = Deferred()
        self._steps.append(_Step(work, waiting))
        self._next()
        return waiting.addTimeout(
            self._response_timeout_s, self._clock, onTimeoutCancel=self._raise_timed_out
        )

    def _next(self) -> None:
        while self._steps and self._current is None:
            step = self._steps.popleft()
            if not step.waiting.called:
                self._current = step
                maybeDeferred(self._thread.run, step.work).addBoth(self._stepped, step.waiting)

    def _stepped(self, result: object, waiting: Deferred[Any]) -> None:
        self._current = None
        if isinstance(result, Failure) and not result.check(StoreError):
            # Also a CancelledError: only that of `waiting` is the caller's.
            self._log.failure(
                "Reading {path} failed unexpectedly", failure=result, path=str(self._store.path)
            )
            result = Failure(BrokerUnavailable(CANNOT_BE_READ))
        if not waiting.called:
            if isinstance(result, Failure):
                waiting.errback(result)
            else:
                waiting.callback(result)
        self._next()

    def _raise_too_many(self, _: object, timeout_s: float) -> NoReturn:
        raise BrokerUnavailable(
            f"Too many reads wait for the disk: this one has waited {timeout_s:g} seconds."
        )

    def _raise_timed_out(self, _: object, timeout_s: float) -> NoReturn:
        raise BrokerUnavailable(f"The disk has not responded for {timeout_s:g} seconds.")
