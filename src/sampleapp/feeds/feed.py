"""The shared subscription of each topic: its positions, its last records, and those who wait for more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

from sampleapp.concurrency.slices import SlicedWork
from sampleapp.feeds.broadcast import WORK_AT_ONCE, Selection, Subscriber, Subscribers
from sampleapp.feeds.waits import Wait, Waits
from sampleapp.interfaces import IBroker, IPositionObserver, ISubscription
from sampleapp.model import ConsumerRecord, FromEnd

_MAX_RECORDS: Final = 500
_MAX_BYTES: Final = 256 * 1024
_OVERHEAD: Final = 200
"""Bytes of an object for a record, or for one of its headers."""


class Recent:
    """
    The last records of a topic, of all partitions together: up to 500, in about 256 KiB of memory.

    Without them, a subscriber could not join a busy topic: while it reads, the feed goes on.
    """

    def __init__(self, begins_at: Mapping[int, int] | None = None) -> None:
        """:param begins_at: the first offset that is known, by partition."""
        self.records: deque[ConsumerRecord] = deque()
        """In the order in which they came."""
        self._bytes = 0
        self._begins_at: dict[int, int] = {} if begins_at is None else dict(begins_at)

    def begins_at(self, partition: int, end: int) -> int:
        """Return the offset from which on all records of a partition up to ``end`` are here."""
        return self._begins_at.get(partition, end)

    def begin_at(self, partition: int, offset: int) -> None:
        """Note that records before an offset are missing."""
        self._begins_at[partition] = offset

    def add(self, records: Sequence[ConsumerRecord]) -> None:
        """Add the next records of a partition, and drop the oldest ones."""
        self._begins_at.setdefault(records[0].partition, records[0].offset)
        self.records.extend(records)
        self._bytes += sum(map(memory_of, records))
        while self.records and (len(self.records) > _MAX_RECORDS or self._bytes > _MAX_BYTES):
            dropped = self.records.popleft()
            self._bytes -= memory_of(dropped)
            if self._begins_at[dropped.partition] <= dropped.offset:
                self._begins_at[dropped.partition] = dropped.offset + 1


def memory_of(record: ConsumerRecord) -> int:
    """Return about how many bytes of memory a record takes."""
    size = _OVERHEAD + len(record.value or b"") + len(record.key or b"")
    if record.headers:
        size += sum(_OVERHEAD + len(value or b"") for _, value in record.headers)
    return size


_WRITES_IN_A_STEP: Final = 40
_ENDED_IN_A_STEP: Final = 8
_RECORDS_IN_A_STEP: Final = 64
_BYTES_IN_A_STEP: Final = 64 * 1024
_MAX_QUEUED_BYTES: Final = 8 * 1024 * 1024
_LATE_S: Final = 0.02
"""A wait that is due when it begins is answered after this time, so that no caller asks in a tight loop."""

_Step: TypeAlias = "Callable[[], None] | tuple[int, Sequence[ConsumerRecord]]"


class Joining(Enum):
    """The result of comparing positions with those of the feed."""

    JOINED = "the listener gets everything from its positions on"
    BEHIND = "the feed does not have all records from the positions on any more: read first"
    AHEAD = "the feed is not there yet: try again soon"


@implementer(IPositionObserver)
class Feed:
    """
    Follows one topic for all who wait for its new records.

    Everything is done in short slices of the reactor's time, however many subscribers and waits there are.
    Records that come faster than they can be passed on are dropped, together with all subscribers, who then
    read by themselves.
    """

    def __init__(
        self,
        topic: str,
        *,
        broker: IBroker,
        clock: IReactorTime,
        subscribers: Subscribers,
        unused: Callable[[Feed], None],
    ) -> None:
        """
        :param subscribers: the subscribers.
        :param unused: called when the last subscriber or wait has ended.
        """
        self.topic: Final = topic
        self._clock = clock
        self._work = SlicedWork(
            clock, self._step, fault=f"Passing on the records of {topic} failed", on_fault=self._failed
        )
        self._unused = unused
        self._vector: dict[int, int] = {}
        """The offset of each partition from which on records are passed on."""
        self._recent = Recent()
        self._waits = Waits()
        self._subscribers = subscribers
        self._queue: deque[_Step] = deque()
        self._queued_bytes = 0
        self._is_stopped = False
        self.epoch = object()
        """Another one after each `reset`: positions from before it are those of a former topic."""
        self.overruns = 0
        """How often records came faster than they could be passed on."""
        self._subscription: ISubscription = broker.follow(topic=topic, observer=self, start=FromEnd(0))

    @property
    def is_used(self) -> bool:
        """True if there is a subscriber or a wait."""
        return bool(self._subscribers) or bool(self._waits)

    def unavailable_reason(self) -> str | None:
        """See `ISubscription.unavailable_reason`."""
        return self._subscription.unavailable_reason()

    def wait(
        self, positions: Mapping[int, int], *, key: bytes | None, others: bool, skipped: frozenset[int]
    ) -> Deferred[bool]:
        """See `Feeds.wait`."""
        wait = Wait(positions, key=key, others=others, skipped=skipped, cancelled=self._cancelled)
        if self._may_concern(wait):
            late = self._clock.callLater(_LATE_S, self._fire_late, wait)
            wait.deferred = Deferred(lambda _: late.cancel())
        else:
            self._waits.add(wait)
        return wait.deferred

    def _may_concern(self, wait: Wait) -> bool:
        """Return whether a record that the feed has passed may be the one that is waited for."""
        passed = {
            partition: wait.positions.get(partition, 0)
            for partition, end in self._vector.items()
            if wait.concerns(partition, end)
        }
        if wait.key is None or any(
            self._recent.begins_at(partition, self._vector[partition]) > position
            for partition, position in passed.items()
        ):
            return bool(passed)
        # In a busy topic, records with other keys come between reading and waiting all the time.
        return bool(passed) and any(
            record.key == wait.key and record.offset >= passed.get(record.partition, record.offset + 1)
            for record in self._recent.records
        )

    def join(
        self, subscriber: Subscriber, positions: Mapping[int, int], selection: Selection
    ) -> tuple[Joining, Sequence[ConsumerRecord]]:
        """
        Let a subscriber get all records from its positions on, if the feed still has them.

        :param positions: the offset to read next, of each partition that the subscriber reads; 0 for others.
        :return: if the subscriber has joined: the last records, which it must handle first, in order.
        """
        if self._subscribers.is_taking:
            return Joining.AHEAD, ()
        wanted = selection.partitions
        if wanted is None:
            wanted = frozenset(self._vector.keys() | positions.keys()) - selection.skipped
        found = Joining.JOINED
        for partition in wanted:
            end, position = self._vector.get(partition), positions.get(partition, 0)
            if end is None or position > end:
                found = Joining.AHEAD
            elif position < self._recent.begins_at(partition, end):
                return Joining.BEHIND, ()
        if found is not Joining.JOINED:
            return found, ()
        missed = [
            record
            for record in self._recent.records
            if record.partition in wanted
            and record.offset >= positions.get(record.partition, 0)
            and record.matches(selection.key, selection.headers)
        ]
        self._subscribers.join(subscriber, self._vector, selection)
        return found, missed

    def heartbeat(self, subscriber: Subscriber) -> Any:
        """
        Return the event with nothing but the position of a subscriber that has joined, and set it.

        :return: ``None`` if it has not got all events yet.
        """
        group = subscriber.group
        if group is None or group.has_unsent or self._subscribers.is_taking:
            return None
        subscriber.position = group.broadcast.position
        return self._subscribers.heartbeat(group.broadcast)

    def leave(self, subscriber: Subscriber) -> None:
        """Let a subscriber get nothing more. Does nothing if it has not joined."""
        self._subscribers.leave(subscriber)
        self._check_use()

    def stop(self) -> Deferred[None]:
        """Stop following; all waits fire with false."""
        if self._is_stopped:
            return succeed(None)
        self._is_stopped = True
        self._work.stop()
        self._queue.clear()
        self._waits.find_all()
        while self._waits.is_busy:
            self._waits.end_some(_ENDED_IN_A_STEP, is_worth_it=False)
        return self._subscription.stop()

    # IPositionObserver

    def record_received(self, record: ConsumerRecord) -> None:
        """See `IRecordObserver`."""
        self.records_received((record,))

    def records_received(self, records: Sequence[ConsumerRecord]) -> None:
        """See `IRecordBatchObserver`."""
        for some in _parts(records):
            self._queue.append((sum(map(memory_of, some)), some))
            self._queued_bytes += self._queue[-1][0]  # type: ignore[index]
        if self._queued_bytes > _MAX_QUEUED_BYTES:
            self._overrun()
        self._work.run()

    def caught_up(self) -> None:
        """See `IRecordObserver`."""

    def begun_at(self, partition: int, offset: int) -> None:
        """See `IPositionObserver`."""
        self._queue.append(lambda: self._begun_at(partition, offset))
        self._work.run()

    def passed(self, partition: int, offset: int) -> None:
        """See `IPositionObserver`."""
        self._queue.append(lambda: self._passed(partition, offset))
        self._work.run()

    def reset(self) -> None:
        """See `IRecordObserver`: the subscribers find out by reading what there is now."""
        self._queue.clear()
        self._queued_bytes = 0
        self._vector.clear()
        self._recent = Recent()
        self.epoch = object()
        self._subscribers.retire_all(is_reset=True)
        self._waits.find_all()
        self._work.run()

    # Passing on

    def _step(self) -> float | None:
        """Do something of what there is to do; see `SlicedWork`."""
        if self._subscribers.is_taking:
            self._subscribers.take_some()
        elif self._subscribers.is_busy:
            self._subscribers.pass_on(_WRITES_IN_A_STEP)
            self._check_use()
        elif self._waits.is_busy:
            self._waits.end_some(_ENDED_IN_A_STEP)
            self._check_use()
        elif self._queue:
            self._take()
        else:
            return None
        return 0.0

    def _take(self) -> None:
        """Take records from the queue, up to some bytes and some work, and what else is in between."""
        room, work = _BYTES_IN_A_STEP, 0
        while self._queue and room > 0 and work < WORK_AT_ONCE:
            # It stays in the queue until it is done, for `_failed`.
            step = self._queue[0]
            if not isinstance(step, tuple):
                step()
                self._queue.popleft()
                continue
            size, records = step
            work += self._take_records(records)
            self._queue.popleft()
            self._queued_bytes -= size
            room -= size

    def _take_records(self, records: Sequence[ConsumerRecord]) -> int:
        """:return: the work; see `Subscribers.take_some`."""
        partition = records[0].partition
        position = self._vector.get(partition, 0)
        if records[0].offset < position:
            records = [record for record in records if record.offset >= position]
            if not records:
                return 0
        self._vector[partition] = records[-1].next_offset
        self._recent.add(records)
        work = self._subscribers.take(partition, records)
        self._waits.found(partition, records)
        return work

    def _begun_at(self, partition: int, offset: int) -> None:
        position = self._vector.get(partition)
        if position is not None and offset <= position:
            return
        self._vector[partition] = offset
        self._recent.begin_at(partition, offset)
        self._subscribers.begin_at(partition, offset, is_new=position is None)
        self._waits.moved(partition, offset)

    def _passed(self, partition: int, offset: int) -> None:
        if self._vector.get(partition, offset) < offset:
            self._vector[partition] = offset
            self._subscribers.passed(partition, offset)

    def _overrun(self) -> None:
        self.overruns += 1
        self._failed()

    def _cancelled(self, wait: Wait) -> None:
        self._waits.remove(wait)
        self._check_use()

    @staticmethod
    def _fire_late(wait: Wait) -> None:
        wait.end(is_worth_it=True)

    def _check_use(self) -> None:
        if not self.is_used and not self._is_stopped:
            self._unused(self)

    def _failed(self) -> None:
        # All subscribers read by themselves, and join again after the queued records.
        self._subscribers.retire_all(is_reset=False)
        for step in self._queue:
            if isinstance(step, tuple):
                last = step[1][-1]
                self._vector[last.partition] = max(last.next_offset, self._vector.get(last.partition, 0))
            else:
                step()
        self._queue.clear()
        self._queued_bytes = 0
        self._recent = Recent(self._vector)
        self._waits.find_all()


def _parts(records: Sequence[ConsumerRecord]) -> Iterator[Sequence[ConsumerRecord]]:
    if len(records) <= _RECORDS_IN_A_STEP and sum(map(memory_of, records)) <= _BYTES_IN_A_STEP:
        yield records
        return
    some: list[ConsumerRecord] = []
    size = 0
    for record in records:
        some.append(record)
        size += memory_of(record)
        if len(some) >= _RECORDS_IN_A_STEP or size >= _BYTES_IN_A_STEP:
            yield some
            some, size = [], 0
    if some:
        yield some


_LINGER_S: Final = 30.0
"""A feed is kept for this time after its last use: long polls come back."""


class Feeds:
    """The shared subscription of each topic; created when it is first used."""

    def __init__(
        self,
        broker: IBroker,
        clock: IReactorTime,
        *,
        make_event: Callable[[bytes], Any] = bytes,
        most: int = 100,
    ) -> None:
        """
        :param make_event: makes the event that subscribers receive, from the bytes of whole events. Called
            once for all subscribers of a group.
        :param most: with this number of feeds, an unused one is ended before another is created. Those that
            are used are not limited here.
        """
        self._broker = broker
        self._clock = clock
        self._make_event = make_event
        self._feeds: dict[str, Feed] = {}
        self._ending: dict[str, IDelayedCall] = {}
        self._most = most
        self._is_stopped = False
        self._former_overruns = 0

    def __len__(self) -> int:
        """Return the number of topics that are followed."""
        return len(self._feeds)

    @property
    def overruns(self) -> int:
        """How often the records of a topic came faster than they could be passed on."""
        return self._former_overruns + sum(feed.overruns for feed in self._feeds.values())

    def wait(
        self,
        topic: str,
        positions: Mapping[int, int],
        *,
        topic_id: str = "_",  # noqa: ARG002 -- a topic that was made again ends all waits
        key: bytes | None = None,
        others: bool = True,
        skipped: frozenset[int] = frozenset(),
    ) -> Deferred[bool]:
        """
        Wait for a record. While it waits, nothing is asked of the broker for it.

        :param topic: a topic that exists.
        :param positions: the offset to read next of each partition.
        :param topic_id: the topic's id in the result that the positions are from.
        :param key: the only key to wait for; ``None`` for any record.
        :param others: true to wait also for records of partitions that are not in ``positions``: new ones,
        :param skipped: but for these.
        :return: fires with true when reading again is worth it: there is such a record at or after the
            positions, or there may be, or the topic was made again. Fires with false when the service
            stops. Never fails; cancel it to stop waiting.
        """
        feed = self.feed(topic)
        if feed is None:
            return succeed(False)  # noqa: FBT003 -- see above
        return feed.wait(positions, key=key, others=others, skipped=skipped)

    def epoch(self, topic: str) -> object:
        """Return `Feed.epoch` of a topic's feed; ``None`` if there is none at the moment."""
        feed = self._feeds.get(topic)
        return None if feed is None else feed.epoch

    def feed(self, topic: str) -> Feed | None:
        """
        Return the feed of a topic; create it if there is none, and keep it for half a minute.

        :return: ``None`` after `stop`.
        """
        if self._is_stopped:
            return None
        feed = self._feeds.get(topic)
        if feed is None:
            if len(self._feeds) >= self._most:
                self._end_an_unused_one()
            subscribers = Subscribers(make_event=self._make_event)
            feed = Feed(
                topic, broker=self._broker, clock=self._clock, subscribers=subscribers, unused=self._unused
            )
            self._feeds[topic] = feed
        self._unused(feed)
        return feed

    def stop(self) -> Deferred[None]:
        """Stop all feeds, for good. Waits fire with false; subscribers get nothing more."""
        self._is_stopped = True
        for ending in self._ending.values():
            ending.cancel()
        self._ending.clear()
        feeds, self._feeds = list(self._feeds.values()), {}
        return Deferred.fromCoroutine(_stop_all(feeds))

    def _unused(self, feed: Feed) -> None:
        if self._is_stopped:
            return
        ending = self._ending.get(feed.topic)
        if ending is None:
            self._ending[feed.topic] = self._clock.callLater(_LINGER_S, self._end, feed)
        else:
            ending.reset(_LINGER_S)

    def _end_an_unused_one(self) -> None:
        for feed in self._feeds.values():
            if not feed.is_used and feed.topic in self._ending:
                self._ending[feed.topic].cancel()
                self._end(feed)
                return

    def _end(self, feed: Feed) -> None:
        del self._ending[feed.topic]
        if not feed.is_used and self._feeds.get(feed.topic) is feed:
            del self._feeds[feed.topic]
            self._former_overruns += feed.overruns
            feed.stop()


async def _stop_all(feeds: list[Feed]) -> None:
    for stopping in [feed.stop() for feed in feeds]:
        await stopping
