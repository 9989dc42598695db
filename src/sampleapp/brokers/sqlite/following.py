"""Reading topics: each following reads pages until it has caught up, then waits until there is more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.brokers.shared import followings
from sampleapp.brokers.shared.backoff import Backoff
from sampleapp.brokers.shared.condition import Condition
from sampleapp.brokers.shared.observers import batch_observer, deliver, deliver_batch, tell_caught_up
from sampleapp.brokers.shared.pause import Pause
from sampleapp.brokers.shared.waiters import Waiters
from sampleapp.brokers.sqlite.faults import CANNOT_BE_READ, StoreError
from sampleapp.brokers.sqlite.rows import Page
from sampleapp.brokers.sqlite.store import Store
from sampleapp.brokers.sqlite.thread import PrivateThread
from sampleapp.brokers.sqlite.wal import WalMoved
from sampleapp.interfaces import IFollowing, IRecordObserver
from sampleapp.model import EARLIEST, ConsumerRecord, Record, Start

__all__ = ["Following", "Followings"]

# A page takes about 2 ms, because publishes take turns with it on the private thread. What is delivered of it
# in one turn of the reactor takes less.
_PAGE_RECORDS = 2000
_PAGE_BYTES = 2 * 1024 * 1024
_TURN_RECORDS = 250
_TURN_BATCH_RECORDS = 500
_POLL_S = 0.2
_BACKOFF = Backoff(first_s=0.25, max_s=5.0)


@implementer(IFollowing)
class Following:
    """One reading of one topic."""

    _log = Logger()

    def __init__(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start,
        partition: int | None,
        find: Callable[[str, Start], Deferred[int]],
        read: Callable[[str, int], Deferred[Page]],
        clock: IReactorTime,
        condition: Condition,
        ended: Callable[[Following], None],
    ) -> None:
        """
        :param find: finds the offset at which to begin.
        :param read: reads a page of the topic from an offset on.
        :param condition: learns of errors of reading; this following is the part it is told of.
        :param ended: is called when the following was stopped and nothing of it is left running.
        """
        self.topic = topic
        self._observer = observer
        self._batch_observer = batch_observer(observer)
        # A topic has one partition.
        self._begins_at: Start | None = None if start == EARLIEST or partition not in {None, 0} else start
        self._has_partition = partition in {None, 0}
        self._find = find
        self._read = read
        self._condition = condition
        self._ended = ended
        self._position = 0
        self._end: int | None = None
        self._end_at_start: int | None = None
        self._caught_up = False
        self._more = False
        self._stopped = False
        self._obstacle: str | None = None
        self._is_lasting = False
        self._exists: bool | None = None
        self._running: Deferred[None] | None = None
        self._ahead: Deferred[Page] | None = None
        """The page after the one that is being delivered."""
        self._clock = clock
        self._failures = 0
        self._pause = Pause(clock)
        self._stop_waiters: Waiters[None] = Waiters()

    def begin(self) -> None:
        """Begin to read, unless it was stopped already. What is read arrives later."""
        if not self._stopped and self._running is None:
            self._running = Deferred.fromCoroutine(self._run())

    def wake(self) -> None:
        """There may be more to read."""
        self._more = True
        # Trying again too early would only fail again.
        if not self._failures:
            self._pause.wake()

    def stop(self) -> Deferred[None]:
        """See `IFollowing.stop`."""
        self._stopped = True
        if self._running is None:
            self._ended(self)
            return succeed(None)
        waiter = self._stop_waiters.wait()
        self._pause.end()
        return waiter

    def obstacle(self) -> str | None:
        """See `IFollowing.obstacle`."""
        return self._obstacle

    def is_lasting(self) -> bool:
        """See `IFollowing.is_lasting`."""
        return self._obstacle is not None and self._is_lasting

    def exists(self) -> bool | None:
        """See `IFollowing.exists`."""
        return self._exists

    def lag(self) -> int | None:
        """See `IFollowing.lag`."""
        return None if self._end is None else max(0, self._end - self._position)

    async def _run(self) -> None:
        # The first page must not arrive while `follow` is still running: reading takes a thread hop.
        while not self._stopped:
            self._more = False
            try:
                page = await self._next_page()
            except StoreError as error:
                self._is_lasting = error.is_lasting
                await self._failed(error.reason, error.obstacle)
            except Exception:  # noqa: BLE001 -- nothing cancels this, and reading has to go on
                self._log.failure("Reading topic {topic} failed unexpectedly", topic=self.topic)
                self._is_lasting = False
                reason = f"The topic {self.topic} could not be read; see the log."
                await self._failed(reason, CANNOT_BE_READ)
            else:
                await self._page_read(page)
        await self._finish_reading_ahead()
        self._condition.forget(self)
        self._obstacle = None
        self._running = None
        self._ended(self)
        self._stop_waiters.succeed(None)

    async def _failed(self, reason: str, obstacle: str) -> None:
        if self._stopped:
            return
        self._condition.bad(self, reason)
        self._obstacle = obstacle
        self._failures += 1
        await self._pause.sleep(_BACKOFF.delay_s(self._failures))

    async def _next_page(self) -> Page:
        if self._begins_at is not None:
            self._position = await self._find(self.topic, self._begins_at)
            self._begins_at = None
        reading, self._ahead = self._ahead or self._read(self.topic, self._position), None
        page = await reading
        self._exists = page.exists and self._has_partition
        return page if self._has_partition else Page([], 0, 0)

    async def _finish_reading_ahead(self) -> None:
        if self._ahead is not None:
            # What went wrong with a page that nobody wants any more is found again by those who read it.
            await self._ahead.addErrback(lambda _: None)

    async def _page_read(self, page: Page) -> None:
        if self._stopped:
            return
        self._failures = 0
        self._condition.good(self)
        self._obstacle = None
        self._end = page.end
        if page.next_offset < page.end:
            self._ahead = self._read(self.topic, page.next_offset)
        await self._deliver(page)
        if self._position >= page.end and not self._more:
            await self._pause.sleep(None)

    async def _deliver(self, page: Page) -> None:
        if self._end_at_start is None:
            self._end_at_start = page.end
        records = iter(page.records)
        at_once = _TURN_RECORDS if self._batch_observer is None else _TURN_BATCH_RECORDS
        for start in range(0, len(page.records), at_once):
            if start:
                # The private thread begins with the next page when this one waits for the system.
                await self._next_turn()
            # Anybody may stop the following between two turns.
            if self._stopped:
                return
            self._deliver_turn(list(islice(records, at_once)))
        if self._stopped:
            return
        self._position = page.next_offset
        if not self._caught_up and self._position >= self._end_at_start:
            self._caught_up = True
            tell_caught_up(self._observer, topic=self.topic)

    def _deliver_turn(self, records: Sequence[ConsumerRecord]) -> None:
        if self._batch_observer is not None:
            self._position = records[-1].offset + 1
            deliver_batch(self._batch_observer, records)
            return
        for record in records:
            self._position = record.offset + 1
            deliver(self._observer, record)
            # The observer may stop the following at any record.
            if self._stopped:
                return

    def _next_turn(self) -> Deferred[None]:
        turn: Deferred[None] = Deferred()
        self._clock.callLater(0, turn.callback, None)
        return turn


class Followings:
    """All followings of a broker; sees to it that each learns of new records, whoever has written them."""

    _log = Logger()

    def __init__(
        self, *, store: Store, thread: PrivateThread, clock: IReactorTime, condition: Condition
    ) -> None:
        """:param thread: the one on which the store is used."""
        self._store = store
        self._thread = thread
        self._clock = clock
        self._condition = condition
        self._registry: followings.Followings[Following] = followings.Followings()
        self._pause = Pause(clock)
        self._changes: tuple[int, int] | None = None
        self._polling: Deferred[None] | None = None

    def follow(
        self, *, topic: str, observer: IRecordObserver, start: Start, partition: int | None
    ) -> Following:
        """See `IBroker.follow`."""
        following = Following(
            topic=topic,
            observer=observer,
            start=start,
            partition=partition,
            find=lambda topic, start: self._thread.run(self._store.first_offset, topic, start),
            read=self._read,
            clock=self._clock,
            condition=self._condition,
            ended=self._registry.ended,
        )
        self._registry.add(following)
        self._begin_to_poll()
        return following

    def start(self) -> None:
        """Begin to read for those who follow already, and for those to come."""
        self._registry.start()
        self._begin_to_poll()

    def stored(self, records: Sequence[Record]) -> None:
        """This process has stored records."""
        if self._registry:
            topics = {record.topic for record in records}
            for following in self._registry.current():
                if following.topic in topics:
                    following.wake()

    async def stop(self) -> None:
        """Stop all of them, for ever."""
        polling = self._polling
        self._pause.end()
        await self._registry.stop()
        if polling is not None:
            await polling

    def _read(self, topic: str, offset: int) -> Deferred[Page]:
        return self._thread.run(
            self._store.read, topic, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
        )

    def _begin_to_poll(self) -> None:
        if self._polling is None and self._registry and self._registry.is_running:
            self._polling = Deferred.fromCoroutine(self._poll())

    async def _poll(self) -> None:
        """Wake everybody when another process has written since the last look."""
        while True:
            await self._pause.sleep(_POLL_S)
            if not self._registry or not self._registry.is_running:
                break
            try:
                changes = await self._thread.run(self._store.changes)
            except WalMoved as error:
                # This look has put it back, so that nobody else meets it.
                self._log.warn("{reason}", reason=error.reason)
                changes = None
            except Exception:  # noqa: BLE001 -- the followings meet the same when they read, and report it
                changes = None
            if changes is None or changes != self._changes:
                self._changes = changes
                for following in self._registry.current():
                    following.wake()
        self._polling = None
