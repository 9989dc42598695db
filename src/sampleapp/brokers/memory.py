"""
The reference broker: everything `IBroker` promises, in memory, and nothing more.

For tests, for demonstrations, and for reading: what the interface means is easiest to see here. It
keeps every record until the process ends, and forgets it all then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.brokers.shared.followings import Followings
from sampleapp.brokers.shared.observers import batch_observer, deliver, deliver_batch, tell_caught_up
from sampleapp.brokers.shared.single_partition import NO_SUCH_PARTITION, single_partition
from sampleapp.brokers.shared.waiters import Waiters
from sampleapp.errors import BrokerStopped, BrokerUnavailable, PublishError, UnknownPartition
from sampleapp.interfaces import IBroker, IFollowing, IMeasured, IRecordObserver, Outcome
from sampleapp.measures import Measures, Waiting
from sampleapp.model import (
    EARLIEST,
    ConsumerRecord,
    FromEnd,
    FromOffset,
    Health,
    Record,
    RecordMetadata,
    Start,
    TopicDescription,
)

__all__ = ["MemoryBroker"]

_PAGE_RECORDS = 500
"""Records that are delivered in one turn of the reactor, so that a long replay holds nothing up."""
_APPENDED_AT_ONCE = 1000
"""Records of a batch that are appended in one turn, so that a large one holds nothing up."""


@implementer(IBroker, IMeasured)
class MemoryBroker:
    """A broker with one partition for each topic, and offsets from 0."""

    _log = Logger()

    def __init__(self, *, clock: IReactorTime) -> None:
        """:param clock: calls the observers, always later and never inside ``publish`` or ``follow``."""
        self._clock = clock
        self._topics: dict[str, list[ConsumerRecord]] = {}
        self._followings: Followings[_Following] = Followings()
        self._batches: list[_Batch] = []
        self._finished: Waiters[None] = Waiters()
        self._started = False
        self._stopped = False

    def check(self) -> None:
        """There is nothing that could be wrong."""

    def start(self) -> None:
        """Begin to be ready."""
        self._started = True
        self._followings.start()
        self._log.info("Records are kept in memory, and lost when the service ends.")

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `IBroker.publish`. The record is in its topic when this returns."""
        if self._stopped:
            return fail(BrokerStopped("The service is stopping; the record was not published."))
        outcome = self._append(record)
        if isinstance(outcome, PublishError):
            return fail(outcome)
        self._wake({record.topic})
        return succeed(outcome)

    def publish_many(self, records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """See `IBroker.publish_many`. The first records are in their topics when this returns."""
        if self._stopped:
            return fail(BrokerStopped("The service is stopping; the records were not published."))
        batch = _Batch(records)
        self._batches.append(batch)
        self._append_some(batch)
        return batch.waiting

    def check_topics(self, topics: Collection[str]) -> Deferred[Mapping[str, PublishError]]:
        """See `IBroker.check_topics`. Any topic can be published to, until the broker is stopped."""
        if self._stopped:
            return succeed({each: BrokerStopped("The service is stopping.") for each in topics})
        return succeed({})

    def describe_topics(self, topics: Collection[str] | None = None) -> Deferred[Sequence[TopicDescription]]:
        """See `IBroker.describe_topics`."""
        if self._stopped:
            return fail(BrokerUnavailable("The service is stopping."))
        names = self._topics.keys() if topics is None else self._topics.keys() & set(topics)
        return succeed([single_partition(each) for each in sorted(names)])

    def follow(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start = EARLIEST,
        partition: int | None = None,
    ) -> IFollowing:
        """See `IBroker.follow`."""
        following = _Following(
            topic=topic,
            observer=observer,
            start=start,
            clock=self._clock,
            records=lambda: self._topics.get(topic) if partition in {None, 0} else None,
            ended=self._followings.ended,
        )
        self._followings.add(following)
        return following

    def health(self) -> Health:
        """See `IBroker.health`."""
        if self._stopped:
            return _not_ready("The memory broker was stopped.")
        if not self._started:
            return _not_ready("The memory broker was not started yet.")
        return Health(ready=True)

    def measures(self) -> Measures:
        """See `IMeasured.measures`. What waits is the rest of large batches, whose bytes nobody counts."""
        records = sum(len(batch.records) - len(batch.outcomes) for batch in self._batches)
        return Measures(waiting=Waiting(records=records, bytes=0, limit_bytes=None))

    def stop(self, *, deadline_s: float) -> Deferred[None]:  # noqa: ARG002 -- nothing here takes time
        """See `IBroker.stop`. What is left of large batches is in its topics a few turns later."""
        self._stopped = True
        return Deferred.fromCoroutine(self._stop())

    def records(self, topic: str) -> list[ConsumerRecord]:
        """Everything that is in a topic, in order; the list is the caller's own. For tests."""
        return list(self._topics.get(topic, ()))

    async def _stop(self) -> None:
        await self._followings.stop()
        if self._batches:
            await self._finished.wait()

    def _append(self, record: Record) -> Outcome:
        if record.partition:
            return UnknownPartition(NO_SUCH_PARTITION)
        records = self._topics.setdefault(record.topic, [])
        offset = len(records)
        records.append(
            ConsumerRecord(
                topic=record.topic,
                partition=0,
                offset=offset,
                timestamp_ms=record.timestamp_ms,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
        )
        return RecordMetadata(topic=record.topic, partition=0, offset=offset)

    def _append_some(self, batch: _Batch) -> None:
        first = len(batch.outcomes)
        some = batch.records[first : first + _APPENDED_AT_ONCE]
        batch.outcomes += map(self._append, some)
        self._wake({record.topic for record in some})
        if len(batch.outcomes) < len(batch.records):
            self._clock.callLater(0, self._append_some, batch)
            return
        self._batches.remove(batch)
        batch.waiting.callback(batch.outcomes)
        if not self._batches:
            self._finished.succeed(None)

    def _wake(self, topics: set[str]) -> None:
        for following in self._followings.current():
            if following.topic in topics:
                following.wake()


class _Batch:
    """Records that were published in one call."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.outcomes: list[Outcome] = []
        # It has no canceller: when it is cancelled, it ignores the result, and the records go their way.
        self.waiting: Deferred[list[Outcome]] = Deferred()


@implementer(IFollowing)
class _Following:
    def __init__(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start,
        clock: IReactorTime,
        records: Callable[[], Sequence[ConsumerRecord] | None],
        ended: Callable[[_Following], None],
    ) -> None:
        self.topic = topic
        self._observer = observer
        self._batch_observer = batch_observer(observer)
        self._clock = clock
        self._records = records
        self._ended = ended
        now = records() or ()
        self._position = _first_offset(now, start)
        self._end_at_start = len(now)
        self._caught_up = False
        self._is_begun = False
        self._stopped = False
        self._next: IDelayedCall | None = None

    def begin(self) -> None:
        """Begin to read. The first records arrive later, not while `follow` is running."""
        self._is_begun = True
        self.wake()

    def wake(self) -> None:
        """Have the next records delivered soon, once."""
        if self._is_begun and self._next is None and not self._stopped:
            self._next = self._clock.callLater(0, self._turn)

    def _turn(self) -> None:
        self._next = None
        records = self._records() or ()
        some = records[self._position : self._position + _PAGE_RECORDS]
        if self._batch_observer is not None and some:
            self._position += len(some)
            deliver_batch(self._batch_observer, some)
            if self._stopped:
                return
        else:
            for record in some:
                self._position += 1
                deliver(self._observer, record)
                if self._stopped:
                    return
        if not self._caught_up and self._position >= self._end_at_start:
            self._caught_up = True
            tell_caught_up(self._observer, topic=self.topic)
        if self._position < len(records):
            self.wake()

    def stop(self) -> Deferred[None]:
        """See `IFollowing.stop`."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._ended(self)
        return succeed(None)

    def obstacle(self) -> str | None:
        """See `IFollowing.obstacle`: there is none to what is in memory."""
        return None

    def is_lasting(self) -> bool:
        """See `IFollowing.is_lasting`."""
        return False

    def exists(self) -> bool:
        """See `IFollowing.exists`."""
        return self._records() is not None

    def lag(self) -> int:
        """See `IFollowing.lag`."""
        return len(self._records() or ()) - self._position


def _first_offset(records: Sequence[ConsumerRecord], start: Start) -> int:
    end = len(records)
    if isinstance(start, FromOffset):
        return min(start.offset, end)
    if isinstance(start, FromEnd):
        return max(0, end - start.count)
    return next((each.offset for each in records if each.timestamp_ms >= start.timestamp_ms), end)


def _not_ready(reason: str) -> Health:
    return Health(ready=False, reasons=(reason,), obstacles=(reason,))
