"""Reading topics: each following reads pages until it has caught up, then waits until there is more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.brokers.shared.condition import Condition
from sampleapp.brokers.sqlite.faults import CANNOT_BE_READ, LogError
from sampleapp.brokers.sqlite.log import Log
from sampleapp.brokers.sqlite.rows import Page
from sampleapp.brokers.sqlite.thread import PrivateThread
from sampleapp.interfaces import IFollowing, IRecordObserver
from sampleapp.model import EARLIEST, Record, Start

__all__ = ["Following", "Followings"]

# A page is short, for the private thread as for the reactor's: publishes take turns with it.
_PAGE_RECORDS = 250
_PAGE_BYTES = 1024 * 1024
_POLL_S = 0.2
_BACKOFF_S = 0.25
_MAX_BACKOFF_S = 5.0


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
        # A topic has one partition.
        self._begins_at: Start | None = None if start == EARLIEST or partition not in {None, 0} else start
        self._has_partition = partition in {None, 0}
        self._find = find
        self._read = read
        self._clock = clock
        self._condition = condition
        self._ended = ended
        self._position = 0
        self._end_at_start: int | None = None
        self._caught_up = False
        self._more = False
        self._stopped = False
        self._obstacle: str | None = None
        self._is_lasting = False
        self._exists: bool | None = None
        self._running: Deferred[None] | None = None
        self._pause: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None
        self._stop_waiters: list[Deferred[None]] = []

    def begin(self) -> None:
        """Begin to read, unless it was stopped already. What is read arrives later."""
        if not self._stopped and self._running is None:
            self._running = Deferred.fromCoroutine(self._run())

    def wake(self) -> None:
        """There may be more to read."""
        self._more = True
        if self._timer is None:
            self._go_on()

    def stop(self) -> Deferred[None]:
        """See `IFollowing.stop`."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running is None:
            self._ended(self)
            return succeed(None)
        # Each caller waits for itself: what one does with its Deferred is nothing to the others.
        waiter: Deferred[None] = Deferred()
        self._stop_waiters.append(waiter)
        self._go_on()
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

    async def _run(self) -> None:
        # The first page must not arrive while `follow` is still running: reading takes a thread hop.
        backoff_s = _BACKOFF_S
        while not self._stopped:
            self._more = False
            try:
                page = await self._next_page()
            except LogError as error:
                reason, obstacle = error.reason, error.obstacle
                self._is_lasting = error.is_lasting
            except Exception:  # noqa: BLE001 -- nothing cancels this, and reading has to go on
                self._log.failure("Reading topic {topic} failed unexpectedly", topic=self.topic)
                self._is_lasting = False
                reason, obstacle = f"The topic {self.topic} could not be read; see the log.", CANNOT_BE_READ
            else:
                backoff_s = _BACKOFF_S
                await self._page_read(page)
                continue
            if not self._stopped:
                self._condition.bad(self, reason)
                self._obstacle = obstacle
                await self._sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
        self._condition.forget(self)
        self._obstacle = None
        self._running = None
        self._ended(self)
        waiters, self._stop_waiters = self._stop_waiters, []
        for waiter in waiters:
            waiter.callback(None)

    async def _next_page(self) -> Page:
        if self._begins_at is not None:
            self._position = await self._find(self.topic, self._begins_at)
            self._begins_at = None
        page = await self._read(self.topic, self._position)
        self._exists = page.exists and self._has_partition
        return page if self._has_partition else Page([], 0, 0)

    async def _page_read(self, page: Page) -> None:
        if self._stopped:
            return
        self._condition.good(self)
        self._obstacle = None
        self._deliver(page)
        if self._position >= page.end and not self._more:
            await self._sleep(None)

    async def _sleep(self, delay_s: float | None) -> None:
        """Wait until there is more to read, or for a time that only `stop` shortens."""
        if self._stopped:
            return
        self._pause = Deferred()
        if delay_s is not None:
            self._timer = self._clock.callLater(delay_s, self._timed_out)
        await self._pause

    def _timed_out(self) -> None:
        self._timer = None
        self._go_on()

    def _go_on(self) -> None:
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.callback(None)

    def _deliver(self, page: Page) -> None:
        if self._end_at_start is None:
            self._end_at_start = page.end
        for record in page.records:
            # Kept up here, since the observer may stop the following at any record.
            self._position = record.offset + 1
            try:
                self._observer.record_received(record)
            except Exception:  # noqa: BLE001 -- whatever it was, the next record is delivered
                self._log.failure(
                    "An observer failed on record {offset} of {topic}", offset=record.offset, topic=self.topic
                )
            if self._stopped:
                return
        self._position = page.next_offset
        if not self._caught_up and self._position >= self._end_at_start:
            self._caught_up = True
            try:
                self._observer.caught_up()
            except Exception:  # noqa: BLE001 -- whatever it was, the following goes on
                self._log.failure("An observer failed on catching up with {topic}", topic=self.topic)


class Followings:
    """All followings of a broker; sees to it that each learns of new records, whoever has written them."""

    def __init__(self, *, log: Log, thread: PrivateThread, clock: IReactorTime, condition: Condition) -> None:
        """:param thread: the one on which the log is read."""
        self._file = log
        self._thread = thread
        self._clock = clock
        self._condition = condition
        self._all: list[Following] = []
        self._started = False
        self._stopped = False
        self._changes: tuple[int, int] | None = None
        self._poll: IDelayedCall | None = None
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
            find=lambda topic, start: self._thread.run(self._file.first_offset, topic, start),
            read=self._read,
            clock=self._clock,
            condition=self._condition,
            ended=self._forget,
        )
        if self._stopped:
            following.stop()
            return following
        self._all.append(following)
        if self._started:
            self._begin(following)
        return following

    def start(self) -> None:
        """Begin to read for those who follow already, and for those to come."""
        self._started = True
        for following in list(self._all):
            self._begin(following)

    def stored(self, records: Sequence[Record]) -> None:
        """This process has stored records."""
        if self._all:
            topics = {record.topic for record in records}
            for following in list(self._all):
                if following.topic in topics:
                    following.wake()

    async def stop(self) -> None:
        """Stop all of them, for ever."""
        self._stopped = True
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None
        for stopping in [following.stop() for following in list(self._all)]:
            await stopping
        if self._polling is not None:
            await self._polling

    def _begin(self, following: Following) -> None:
        following.begin()
        if self._poll is None and self._polling is None:
            self._poll = self._clock.callLater(_POLL_S, self._look)

    def _read(self, topic: str, offset: int) -> Deferred[Page]:
        return self._thread.run(
            self._file.read, topic, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
        )

    def _forget(self, following: Following) -> None:
        if following in self._all:
            self._all.remove(following)

    def _look(self) -> None:
        self._poll = None
        self._polling = Deferred.fromCoroutine(self._look_for_changes())

    async def _look_for_changes(self) -> None:
        """Wake everybody if another process has written since the last look."""
        try:
            changes = await self._thread.run(self._file.changes)
        except Exception:  # noqa: BLE001 -- the followings meet the same when they read, and report it
            changes = None
        if changes is None or changes != self._changes:
            self._changes = changes
            for following in list(self._all):
                following.wake()
        self._polling = None
        if self._all and not self._stopped:
            self._poll = self._clock.callLater(_POLL_S, self._look)
