"""Followings: each reads pages of its topic until it has caught up, then waits for new records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.brokers.shared import subscriptions
from sampleapp.brokers.shared.health import WRITING, HealthTracker
from sampleapp.brokers.shared.observers import (
    batch_observer,
    deliver,
    deliver_batch,
    position_observer,
    tell_begun_at,
    tell_caught_up,
)
from sampleapp.brokers.sqlite.faults import CANNOT_BE_READ, StoreError
from sampleapp.brokers.sqlite.rows import StoredPage
from sampleapp.brokers.sqlite.store import Store
from sampleapp.brokers.sqlite.thread import PrivateThread
from sampleapp.concurrency.backoff import Backoff
from sampleapp.concurrency.pause import Pause
from sampleapp.concurrency.waiters import Waiters
from sampleapp.interfaces import IRecordObserver, ISubscription
from sampleapp.model import EARLIEST, ConsumerRecord, FromOffsets, Record, Start

__all__ = ["Subscription", "Subscriptions"]

# Reading a page takes about 2 ms, since publishes wait for it on the private thread. Delivering a slice of it
# to the observer, in one turn of the reactor, takes less.
_PAGE_RECORDS = 2000
_PAGE_BYTES = 2 * 1024 * 1024
_SLICE_RECORDS = 250
_SLICE_BATCH_RECORDS = 500
_POLL_S = 0.2
_BACKOFF = Backoff(first_s=0.25, max_s=5.0)


@implementer(ISubscription)
class Subscription:
    """A subscription of one topic."""

    _log = Logger()

    def __init__(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start,
        partition: int | None,
        find: Callable[[str, Start], Deferred[int]],
        read: Callable[[str, int], Deferred[StoredPage]],
        clock: IReactorTime,
        health_tracker: HealthTracker,
        ended: Callable[[Subscription], None],
    ) -> None:
        """
        :param find: returns the offset at which to begin.
        :param read: reads a page of the topic from an offset on.
        :param health_tracker: receives errors of reading; this subscription is the part.
        :param ended: is called after the following has stopped.
        """
        self.topic = topic
        self._observer = observer
        self._batch_observer = batch_observer(observer)
        # A topic has one partition.
        self._begins_at: Start | None = None if start == EARLIEST or partition not in {None, 0} else start
        self._has_partition = partition in {None, 0}
        self._find = find
        self._read = read
        self._health_tracker = health_tracker
        self._ended = ended
        self._position = 0
        self._end: int | None = None
        self._end_at_start: int | None = None
        self._caught_up = False
        self._told_begun = False
        self._more = False
        self._stopped = False
        self._unavailable_reason: str | None = None
        self._is_lasting = False
        self._exists: bool | None = None
        self._running: Deferred[None] | None = None
        self._ahead: Deferred[StoredPage] | None = None
        """The page that is read while the one before is delivered."""
        self._clock = clock
        self._failures = 0
        self._pause = Pause(clock)
        self._stop_waiters: Waiters[None] = Waiters()

    def begin(self) -> None:
        """Begin to read, unless it has been stopped. Records arrive later."""
        if not self._stopped and self._running is None:
            self._running = Deferred.fromCoroutine(self._run())

    def wake(self) -> None:
        """Read again, since there may be new records."""
        self._more = True
        # After a failure, keep the delay of the back-off.
        if not self._failures:
            self._pause.wake()

    def stop(self) -> Deferred[None]:
        """See `ISubscription.stop`."""
        self._stopped = True
        if self._running is None:
            self._ended(self)
            return succeed(None)
        waiter = self._stop_waiters.wait()
        self._pause.end()
        return waiter

    def unavailable_reason(self) -> str | None:
        """See `ISubscription.unavailable_reason`."""
        return self._unavailable_reason

    def is_lasting(self) -> bool:
        """See `ISubscription.is_lasting`."""
        return self._unavailable_reason is not None and self._is_lasting

    def exists(self) -> bool | None:
        """See `ISubscription.exists`."""
        return self._exists

    def lag(self) -> int | None:
        """See `ISubscription.lag`."""
        return None if self._end is None else max(0, self._end - self._position)

    async def _run(self) -> None:
        # The first page arrives after `follow` has returned, since it is read on another thread.
        while not self._stopped:
            self._more = False
            try:
                await self._page_read(await self._next_page())
            except StoreError as error:
                self._is_lasting = error.is_lasting
                if error.needs_restart and not self._stopped:
                    # Nothing can be stored either. Without a publish, the writer does not notice it.
                    self._health_tracker.mark_failed(
                        WRITING,
                        error.reason,
                        public_reason=error.public_storing_reason,
                        needs_restart=error.needs_restart,
                    )
                await self._failed(error.reason, error.public_reason)
            except Exception:  # noqa: BLE001 -- nothing cancels this, and reading must continue
                self._log.failure(
                    "Reading the topic {topic} failed unexpectedly; trying again", topic=self.topic
                )
                self._is_lasting = False
                # Continue after the last delivered record, which may be before the page that was read ahead.
                await self._finish_reading_ahead()
                reason = f"The topic {self.topic} could not be read; see the log."
                await self._failed(reason, CANNOT_BE_READ)
        await self._finish_reading_ahead()
        self._health_tracker.forget(self)
        self._unavailable_reason = None
        self._running = None
        self._ended(self)
        self._stop_waiters.succeed(None)

    async def _failed(self, reason: str, public_reason: str) -> None:
        if self._stopped:
            return
        self._health_tracker.mark_failed(self, reason)
        self._unavailable_reason = public_reason
        self._failures += 1
        await self._pause.sleep(_BACKOFF.delay_s(self._failures))

    async def _next_page(self) -> StoredPage:
        if self._begins_at is not None:
            self._position = await self._find(self.topic, self._begins_at)
            self._begins_at = None
        reading, self._ahead = self._ahead or self._read(self.topic, self._position), None
        page = await reading
        self._exists = page.exists and self._has_partition
        return page if self._has_partition else StoredPage([], 0, 0)

    async def _finish_reading_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            # Ignore an error of a page that is dropped. The next reading meets it again.
            await ahead.addErrback(lambda _: None)

    async def _page_read(self, page: StoredPage) -> None:
        if self._stopped:
            return
        self._failures = 0
        self._health_tracker.mark_healthy(self)
        self._unavailable_reason = None
        self._end = page.end
        if page.next_offset < page.end:
            self._ahead = self._read(self.topic, page.next_offset)
        await self._deliver(page)
        if self._position >= page.end and not self._more:
            await self._pause.sleep(None)

    async def _deliver(self, page: StoredPage) -> None:
        if self._end_at_start is None:
            self._end_at_start = page.end
        if self._exists and not self._told_begun:
            self._told_begun = True
            tell_begun_at(position_observer(self._observer), 0, self._position)
        records = iter(page.records)
        at_once = _SLICE_RECORDS if self._batch_observer is None else _SLICE_BATCH_RECORDS
        for start in range(0, len(page.records), at_once):
            if start:
                # The private thread can read the next page.
                await self._next_turn()
            # The following may be stopped between two turns of the reactor.
            if self._stopped:
                return
            self._deliver_slice(list(islice(records, at_once)))
        if self._stopped:
            return
        self._position = page.next_offset
        if not self._caught_up and self._position >= self._end_at_start:
            self._caught_up = True
            tell_caught_up(self._observer, topic=self.topic)

    def _deliver_slice(self, records: Sequence[ConsumerRecord]) -> None:
        if self._batch_observer is not None:
            self._position = records[-1].offset + 1
            deliver_batch(self._batch_observer, records)
            return
        for record in records:
            self._position = record.offset + 1
            deliver(self._observer, record)
            # The observer may stop the following after any record.
            if self._stopped:
                return

    def _next_turn(self) -> Deferred[None]:
        turn: Deferred[None] = Deferred()
        self._clock.callLater(0, turn.callback, None)
        return turn


class Subscriptions:
    """All subscriptions of a broker. Wakes them for new records of this process and of others."""

    def __init__(
        self, *, store: Store, thread: PrivateThread, clock: IReactorTime, health_tracker: HealthTracker
    ) -> None:
        """:param thread: the thread of the store."""
        self._store = store
        self._thread = thread
        self._clock = clock
        self._health_tracker = health_tracker
        self._registry: subscriptions.Subscriptions[Subscription] = subscriptions.Subscriptions()
        self._pause = Pause(clock)
        self._changes: tuple[int, int] | None = None
        self._polling: Deferred[None] | None = None

    def follow(
        self, *, topic: str, observer: IRecordObserver, start: Start | FromOffsets, partition: int | None
    ) -> Subscription:
        """See `IBroker.follow`."""
        subscription = Subscription(
            topic=topic,
            observer=observer,
            start=start.start_in(0) if isinstance(start, FromOffsets) else start,
            partition=partition,
            find=lambda topic, start: self._thread.run(self._store.first_offset, topic, start),
            read=self._read,
            clock=self._clock,
            health_tracker=self._health_tracker,
            ended=self._registry.ended,
        )
        self._registry.add(subscription)
        self._begin_to_poll()
        return subscription

    def start(self) -> None:
        """Begin all present subscriptions, and each new one."""
        self._registry.start()
        self._begin_to_poll()

    def stored(self, records: Sequence[Record]) -> None:
        """Wake the subscriptions of these records, which this process has stored."""
        if self._registry:
            topics = {record.topic for record in records}
            for subscription in self._registry.current():
                if subscription.topic in topics:
                    subscription.wake()

    async def stop(self) -> None:
        """Stop all subscriptions for good."""
        polling = self._polling
        self._pause.end()
        await self._registry.stop()
        if polling is not None:
            await polling

    def _wake_all(self) -> None:
        for subscription in self._registry.current():
            subscription.wake()

    def _read(self, topic: str, offset: int) -> Deferred[StoredPage]:
        return self._thread.run(
            self._store.read, topic, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
        )

    def _begin_to_poll(self) -> None:
        if self._polling is None and self._registry and self._registry.is_running:
            self._polling = Deferred.fromCoroutine(self._poll())

    async def _poll(self) -> None:
        """Check regularly for records of other processes, and wake all subscriptions when there are some."""
        while True:
            await self._pause.sleep(_POLL_S)
            if not self._registry or not self._registry.is_running:
                break
            try:
                changes = await self._thread.run(self._store.changes)
            except Exception:  # noqa: BLE001 -- the subscriptions meet the same error when they read, and report it
                changes = None
            if changes is None or changes != self._changes:
                self._changes = changes
                self._wake_all()
        self._polling = None
