"""Following topics: calls of observers, the registry of subscriptions, and those of one partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.brokers.shared.health import HealthTracker
from sampleapp.concurrency.rates import Backoff
from sampleapp.concurrency.waiting import Waiters
from sampleapp.errors import UnknownPartition
from sampleapp.interfaces import IPositionObserver, IRecordBatchObserver, IRecordObserver, ISubscription
from sampleapp.model import (
    EARLIEST,
    ConsumerRecord,
    FromOffsets,
    PartitionDescription,
    ReadRequest,
    ReadStart,
    Start,
    TopicDescription,
)

NO_SUCH_PARTITION: Final = "The topic has only one partition, with the number 0."
"""The message of a `sampleapp.errors.UnknownPartition`."""

NO_SUCH_TOPIC: Final = "The topic does not exist. It is created by its first record; check its name."
"""The message of a `sampleapp.errors.UnknownTopic`."""

_PARTITION: Final = PartitionDescription(partition=0, leader=0, replicas=(0,), in_sync=(0,))

CANNOT_BE_READ: Final = "The stored records cannot be read at the moment."
"""The reason why records cannot be read, for callers, if there is no more exact one."""

_log = Logger()

_SLICE_RECORDS: Final = 500
"""Maximum records that are delivered in one turn of the reactor, in about a millisecond."""
_BACKOFF: Final = Backoff(first_s=0.25, max_s=5.0)


def batch_observer(observer: IRecordObserver) -> IRecordBatchObserver | None:
    """Return the observer if it takes batches of records, else ``None``."""
    found: IRecordBatchObserver | None = IRecordBatchObserver(observer, None)
    return found


def position_observer(observer: IRecordObserver) -> IPositionObserver | None:
    """Return the observer if it is told of positions, else ``None``."""
    found: IPositionObserver | None = IPositionObserver(observer, None)
    return found


def deliver(observer: IRecordObserver, record: ConsumerRecord) -> None:
    """Call `IRecordObserver.record_received`, and log an exception."""
    try:
        observer.record_received(record)
    except Exception:  # noqa: BLE001 -- after any error, the next record is delivered
        _log.failure(
            "Observer failed on record {offset} of partition {partition} of {topic}",
            offset=record.offset,
            partition=record.partition,
            topic=record.topic,
        )


def deliver_batch(observer: IRecordBatchObserver, records: Sequence[ConsumerRecord]) -> None:
    """Call `IRecordBatchObserver.records_received`, and log an exception."""
    try:
        observer.records_received(records)
    except Exception:  # noqa: BLE001 -- after any error, the next records are delivered
        _log.failure(
            "Observer failed on records {first} to {last} of partition {partition} of {topic}",
            first=records[0].offset,
            last=records[-1].offset,
            partition=records[0].partition,
            topic=records[0].topic,
        )


def tell_begun_at(observer: IPositionObserver | None, partition: int, offset: int) -> None:
    """Call `IPositionObserver.begun_at`, if there is such an observer, and log an exception."""
    if observer is None:
        return
    try:
        observer.begun_at(partition, offset)
    except Exception:  # noqa: BLE001 -- after any error, the records are delivered
        _log.failure("Observer failed on the start of partition {partition}", partition=partition)


def tell_passed(observer: IPositionObserver | None, partition: int, offset: int) -> None:
    """Call `IPositionObserver.passed`, if there is such an observer, and log an exception."""
    if observer is None:
        return
    try:
        observer.passed(partition, offset)
    except Exception:  # noqa: BLE001 -- after any error, the records are delivered
        _log.failure("Observer failed on the position of partition {partition}", partition=partition)


def tell_caught_up(observer: IRecordObserver, *, topic: str) -> None:
    """Call `IRecordObserver.caught_up`, and log an exception."""
    try:
        observer.caught_up()
    except Exception:  # noqa: BLE001 -- after any error, the following continues
        _log.failure("Observer failed while catching up with {topic}", topic=topic)


def tell_reset(observer: IRecordObserver, *, topic: str) -> None:
    """Call `IRecordObserver.reset`, and log an exception."""
    try:
        observer.reset()
    except Exception:  # noqa: BLE001 -- after any error, the records of the new topic are delivered
        _log.failure("Observer failed while resetting {topic}", topic=topic)


F = TypeVar("F", bound="RunningSubscription")
T = TypeVar("T")


class RunningSubscription(Protocol):
    """The methods that the registry calls."""

    def begin(self) -> None:
        """Begin to read, unless it has begun or was stopped."""

    def stop(self) -> Deferred[None]:
        """See `sampleapp.interfaces.ISubscription.stop`."""


class Subscriptions(Generic[F]):
    """The subscriptions that have not ended."""

    def __init__(self) -> None:
        self._all: list[F] = []
        self._is_started = False
        self._is_stopped = False

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def is_running(self) -> bool:
        """True between the start and the stop of the broker."""
        return self._is_started and not self._is_stopped

    def current(self) -> list[F]:
        """Return a new list of the subscriptions that have not ended."""
        return list(self._all)

    def add(self, subscription: F) -> None:
        """Add a subscription. Begin it if the broker has started; stop it if the broker has stopped."""
        if self._is_stopped:
            subscription.stop()
            return
        self._all.append(subscription)
        if self._is_started:
            subscription.begin()

    def ended(self, subscription: F) -> None:
        """Remove a subscription that has ended."""
        if subscription in self._all:
            self._all.remove(subscription)

    def start(self) -> None:
        """Begin all subscriptions, and from now on each that is added."""
        self._is_started = True
        for subscription in self.current():
            subscription.begin()

    async def stop(self) -> None:
        """Stop all subscriptions for good. Returns after they have ended."""
        self._is_stopped = True
        for stopping in [subscription.stop() for subscription in self.current()]:
            await stopping


def single_partition(topic: str) -> TopicDescription:
    """Return the description of a topic with one partition and one replica, on node 0."""
    return TopicDescription(name=topic, partitions=(_PARTITION,))


def start_of(request: ReadRequest) -> ReadStart | None:
    """
    Return where to read the only partition.

    :return: ``None`` if it is not asked for.
    :raise UnknownPartition: another partition is asked for by its number.
    """
    if request.starts.keys() - {0}:
        raise UnknownPartition(NO_SUCH_PARTITION)
    return request.starts.get(0, request.others)


class Page(Struct, frozen=True, gc=False):
    """Some records of a log with one partition, in order."""

    records: Sequence[ConsumerRecord]
    offset: int
    """The offset from which on it was read."""
    next_offset: int
    """The offset at which to continue."""
    end: int
    """The offset of the log's next record, at the time of this reading."""
    exists: bool = True
    """Whether the topic exists."""
    size: int = 0
    """The bytes of the keys, values and headers of the records; 0 if they are not counted."""


class ReadError(Exception):
    """A log cannot be read at the moment."""

    def __init__(self, reason: str, public_reason: str = CANNOT_BE_READ, *, is_lasting: bool = False) -> None:
        """
        :param reason: for the operator.
        :param public_reason: for callers; see `ISubscription.unavailable_reason`.
        :param is_lasting: see `ISubscription.is_lasting`.
        """
        super().__init__(reason)
        self.public_reason = public_reason
        self.is_lasting = is_lasting


ReadPage: TypeAlias = "Callable[[str, ReadStart], Page | Deferred[Page]]"
"""
Reads some records of a topic, from an offset or another start on.

A page that is returned at once, with at most 500 records, is delivered in one turn of the reactor; one that
arrives later in slices, while the next one is read. A topic that does not exist is empty. It fails with a
`ReadError` if the log cannot be read at the moment.
"""


@implementer(ISubscription)
class _LogSubscription:
    """Reads the pages of a log up to its end, and again whenever there are new records."""

    def __init__(
        self,
        owner: LogSubscriptions,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start,
        read: ReadPage,
    ) -> None:
        self.topic = topic
        self._owner = owner
        self._clock = owner.clock
        self._observer = observer
        self._batch_observer = batch_observer(observer)
        self._read = read
        self._start = None if start == EARLIEST else start
        self._position = 0
        self._end: int | None = None
        self._end_at_start: int | None = None
        self._exists: bool | None = None
        self._page: Page | None = None
        """The page that is delivered in slices."""
        self._rest: Iterator[ConsumerRecord] | None = None
        self._ahead: Page | None = None
        """The page after it, which is read meanwhile."""
        self._may_have_more = False
        """True if records may have been appended since the last reading began."""
        self._is_begun = self._is_reading = self._is_waiting = self._is_stopped = False
        self._has_told_begun = self._has_caught_up = False
        self._timer: IDelayedCall | None = None
        self._failures = 0
        self._error: ReadError | None = None
        self._stop_waiters: Waiters[None] = Waiters()

    def begin(self) -> None:
        """Begin to read, unless it has begun or was stopped. Records arrive in later turns of the reactor."""
        if not (self._is_begun or self._is_stopped):
            self._is_begun = self._is_waiting = True
            self.wake()

    def wake(self) -> None:
        """Read again, since there may be new records; after a failure, when the back-off is over."""
        self._may_have_more = True
        if self._is_waiting:
            self._is_waiting = False
            self._timer = self._clock.callLater(0, self._go_on)

    def stop(self) -> Deferred[None]:
        """See `ISubscription.stop`."""
        if not self._is_stopped:
            self._is_stopped, self._is_waiting = True, False
            if self._timer is not None:
                self._timer.cancel()
            if not self._is_reading:
                self._finish()
        return self._stop_waiters.wait() if self._is_reading else succeed(None)

    def unavailable_reason(self) -> str | None:
        """See `ISubscription.unavailable_reason`."""
        return None if self._error is None else self._error.public_reason

    def is_lasting(self) -> bool:
        """See `ISubscription.is_lasting`."""
        return self._error is not None and self._error.is_lasting

    def exists(self) -> bool | None:
        """See `ISubscription.exists`."""
        return self._exists

    def lag(self) -> int | None:
        """See `ISubscription.lag`."""
        return None if self._end is None else max(0, self._end - self._position)

    def _go_on_later(self, delay_s: float = 0) -> None:
        if not self._is_stopped:
            self._timer = self._clock.callLater(delay_s, self._go_on)

    def _go_on(self) -> None:
        """Deliver the next slice of the page, or read the next page."""
        self._timer = None
        try:
            page = self._page or self._next_page()
            if page is None:
                return
            if self._failures or not self._has_told_begun:
                self._begin_delivery(page)
            if not self._is_stopped:
                self._deliver(page)
        except Exception:  # noqa: BLE001 -- after any error, reading must continue
            self._failed(Failure())

    def _next_page(self) -> Page | None:
        """Return the page; ``None`` if it goes on when the page has arrived."""
        page = self._ahead
        if page is None:
            page = self._begin_reading(self._position if self._start is None else self._start)
            if page is None:
                return None
        else:
            self._page, self._rest, self._ahead = page, iter(page.records), None
        self._start, self._position, self._end, self._exists = None, page.offset, page.end, page.exists
        if self._end_at_start is None:
            self._end_at_start = page.end
        if self._page is not None and page.next_offset < page.end:
            self._begin_reading(page.next_offset)
        return page

    def _begin_reading(self, start: ReadStart) -> Page | None:
        self._may_have_more = False
        page = self._read(self.topic, start)
        # To look for a Deferred would take longer than all the rest.
        if isinstance(page, Page):
            return page
        self._is_reading = True
        page.addBoth(self._has_read)
        return None

    def _has_read(self, result: Page | Failure) -> None:
        self._is_reading = False
        if self._is_stopped:
            self._finish()
        elif isinstance(result, Page):
            self._ahead = result
            if self._page is None:
                self._go_on()
        elif self._page is None:
            self._failed(result)

    def _begin_delivery(self, page: Page) -> None:
        if self._failures:
            self._failures, self._error = 0, None
            self._owner.health_tracker.mark_healthy(self)
        if page.exists and not self._has_told_begun:
            self._has_told_begun = True
            tell_begun_at(position_observer(self._observer), 0, page.offset)

    def _deliver(self, page: Page) -> None:
        records = page.records if self._rest is None else list(islice(self._rest, _SLICE_RECORDS))
        if self._batch_observer is None:
            self._deliver_singly(records)
        elif records:
            self._position = records[-1].offset + 1
            deliver_batch(self._batch_observer, records)
        if self._is_stopped:
            return
        if self._rest is not None and records and self._position < page.next_offset:
            self._go_on_later()
            return
        self._page = self._rest = None
        self._position = page.next_offset
        if not self._has_caught_up and page.next_offset >= (self._end_at_start or 0):
            self._has_caught_up = True
            tell_caught_up(self._observer, topic=self.topic)
        if self._is_reading:
            # It goes on when the page has arrived.
            return
        if self._may_have_more or page.next_offset < page.end:
            self._go_on_later()
        else:
            self._is_waiting = not self._is_stopped

    def _deliver_singly(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            self._position = record.offset + 1
            deliver(self._observer, record)
            # The observer may stop the subscription after any record.
            if self._is_stopped:
                return

    def _failed(self, failure: Failure) -> None:
        if self._is_stopped:
            return
        error = failure.value
        if not isinstance(error, ReadError):
            _log.failure(
                "Reading the topic {topic} failed unexpectedly; trying again", failure, topic=self.topic
            )
            error = ReadError(f"The topic {self.topic} could not be read; see the log.")
        self._error = error
        self._failures += 1
        if self._page is not None:
            first = self._position
            self._rest = (record for record in self._page.records if record.offset >= first)
        self._owner.health_tracker.mark_failed(self, str(error))
        self._go_on_later(_BACKOFF.delay_s(self._failures))

    def _finish(self) -> None:
        self._page = self._rest = self._ahead = self._error = None
        self._owner.health_tracker.forget(self)
        self._owner.ended(self)
        self._stop_waiters.succeed(None)


class LogSubscriptions(Subscriptions[_LogSubscription]):
    """The subscriptions of a broker whose topics have one partition each."""

    def __init__(self, *, read: ReadPage, clock: IReactorTime, health_tracker: HealthTracker) -> None:
        """:param health_tracker: receives errors of reading; each subscription is a part."""
        super().__init__()
        self.clock = clock
        self.health_tracker = health_tracker
        self._read = read

    def follow(
        self, *, topic: str, observer: IRecordObserver, start: Start | FromOffsets, partition: int | None
    ) -> ISubscription:
        """See `sampleapp.interfaces.IBroker.follow`."""
        subscription = _LogSubscription(
            self,
            topic=topic,
            observer=observer,
            start=start.start_in(0) if isinstance(start, FromOffsets) else start,
            read=_read_nothing if partition else self._read,
        )
        self.add(subscription)
        return subscription

    def appended(self, topics: Collection[str]) -> None:
        """Wake the subscriptions of topics to which records were appended."""
        for subscription in self._all:
            if subscription.topic in topics:
                subscription.wake()


def _read_nothing(_topic: str, _start: ReadStart) -> Page:
    """Read a partition that a topic with one partition does not have."""
    return Page((), 0, 0, 0, exists=False)
