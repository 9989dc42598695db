"""
The reference broker: a minimal implementation of `IBroker`, in memory.

For tests, for demonstrations, and as an example of the interface. It keeps all records until the process
ends.
"""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from sampleapp.brokers.shared.deliveries import Deliveries, GivenLeases, WorkSettings
from sampleapp.brokers.shared.following import (
    NO_SUCH_PARTITION,
    NO_SUCH_TOPIC,
    LogSubscriptions,
    Page,
    single_partition,
    start_of,
)
from sampleapp.brokers.shared.health import WRITING, HealthTracker
from sampleapp.brokers.shared.idempotency import IdempotencySettings, replayed
from sampleapp.brokers.shared.work import MOST_GROUPS, TOO_MANY_GROUPS, Operation, Work, run_all
from sampleapp.concurrency.waiting import Waiters
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    IdempotencyKeyReused,
    OutcomeUnknown,
    PublishError,
    UnknownPartition,
    UnknownTopic,
)
from sampleapp.interfaces import IBroker, IMeasured, IRecordObserver, ISubscription, Outcome
from sampleapp.measures import Measures, Waiting
from sampleapp.model import (
    EARLIEST,
    ConsumerRecord,
    FromEnd,
    FromOffset,
    FromOffsets,
    Health,
    ReadRequest,
    ReadResult,
    ReadStart,
    Record,
    RecordIdentity,
    RecordMetadata,
    ReplayedRecord,
    Start,
    TopicDescription,
)

_PAGE_RECORDS = 500
"""Maximum records that are delivered in one turn of the reactor, so that a long replay does not block it."""
_APPENDED_AT_ONCE = 250
"""Maximum records of a batch that are appended in one turn: up to 20 µs each with an identity."""
_REMEMBERED_IDS = 100_000
"""Maximum ids that are remembered, in about 40 MB."""


@implementer(IBroker, IMeasured)
class MemoryBroker:
    """A broker with one partition for each topic, and offsets from 0."""

    _log = Logger()

    def __init__(
        self,
        *,
        clock: IReactorTime,
        idempotency: IdempotencySettings = IdempotencySettings(),  # noqa: B008 -- it is immutable
        work: WorkSettings = WorkSettings(),  # noqa: B008 -- it is immutable
    ) -> None:
        """
        :param clock: for calls of observers, which never happen inside ``publish`` or ``follow``.
        :param idempotency: for records that are sent again.
        :param work: for groups of workers.
        """
        self._clock = clock
        self._remembered = _RememberedIds(clock=clock, window_s=idempotency.window_s)
        self._topics: dict[str, _Log] = {}
        self._topic_ids: dict[str, str] = {}
        self._health_tracker = HealthTracker()
        self._expect_rejections("The memory broker has not been started yet.")
        self._subscriptions = LogSubscriptions(
            read=self._page, clock=clock, health_tracker=self._health_tracker
        )
        # A time of day that is never set.
        ahead_s = time.time() - clock.seconds()
        self._leases = GivenLeases(work, lambda: ahead_s + clock.seconds())
        self._groups: dict[tuple[str, str], _GroupRows] = {}
        self.work: Final = Work(self._run, clock, self._leases)
        """See `IBroker.work`."""
        self._batches: list[_Batch] = []
        self._finished: Waiters[None] = Waiters()
        self._stopped = False

    def check(self) -> None:
        """Do nothing: there is nothing to check."""

    def start(self) -> None:
        """See `IBroker.start`."""
        if self._stopped:
            return
        self._health_tracker.mark_healthy(WRITING)
        self._subscriptions.start()
        self._log.info("Records are kept in memory, and are lost when the service ends.")

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `IBroker.publish`. The record is stored when this returns."""
        if self._stopped:
            return fail(BrokerStopped("The service is stopping; the record was not published."))
        outcome = self._append(record)
        if isinstance(outcome, PublishError):
            return fail(outcome)
        self._appended_now((record,))
        return succeed(outcome)

    def publish_many(self, records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """See `IBroker.publish_many`. The first 1,000 records are stored when this returns."""
        if self._stopped:
            return fail(BrokerStopped("The service is stopping; the records were not published."))
        batch = _Batch(records)
        self._batches.append(batch)
        self._append_some(batch)
        return batch.waiting

    def check_topics(
        self,
        topics: Collection[str],
        *,
        create: bool = True,  # noqa: ARG002 -- the first record creates it
        identified: bool = False,  # noqa: ARG002 -- every topic takes identities
    ) -> Deferred[Mapping[str, PublishError]]:
        """See `IBroker.check_topics`. Any topic can be published to, until the broker is stopped."""
        if self._stopped:
            return succeed({each: BrokerStopped("The service is stopping.") for each in topics})
        return succeed({})

    def list_topics(self) -> Deferred[Sequence[str]]:
        """See `IBroker.list_topics`."""
        if self._stopped:
            return fail(BrokerUnavailable("The service is stopping."))
        return succeed(sorted(self._topics))

    def describe_topics(self, topics: Collection[str]) -> Deferred[Sequence[TopicDescription]]:
        """See `IBroker.describe_topics`."""
        if self._stopped:
            return fail(BrokerUnavailable("The service is stopping."))
        return succeed([single_partition(each) for each in sorted(self._topics.keys() & set(topics))])

    def read(self, request: ReadRequest) -> Deferred[ReadResult]:
        """See `IBroker.read`."""
        if self._stopped:
            return fail(BrokerStopped("The service is stopping."))
        records = self._topics.get(request.topic)
        if records is None:
            return fail(UnknownTopic(NO_SUCH_TOPIC))
        try:
            start = start_of(request)
        except UnknownPartition as error:
            return fail(error)
        topic_id = self._topic_ids.setdefault(request.topic, secrets.token_urlsafe(8))
        return succeed(_read(topic_id, records, start, request))

    def follow(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start | FromOffsets = EARLIEST,
        partition: int | None = None,
    ) -> ISubscription:
        """See `IBroker.follow`."""
        return self._subscriptions.follow(topic=topic, observer=observer, start=start, partition=partition)

    def health(self) -> Health:
        """See `IBroker.health`."""
        return self._health_tracker.health()

    def measures(self) -> Measures:
        """See `IMeasured.measures`. Only the rest of large batches waits, and its bytes are not counted."""
        records = sum(len(batch.records) - len(batch.outcomes) for batch in self._batches)
        return Measures(waiting=Waiting(records=records, bytes=0, limit_bytes=None))

    def stop(self, *, deadline_s: float) -> Deferred[None]:  # noqa: ARG002 -- nothing here takes time
        """See `IBroker.stop`. The rest of large batches is stored first, in the next turns of the reactor."""
        self._stopped = True
        self._expect_rejections("The memory broker has been stopped.")
        return Deferred.fromCoroutine(self._stop())

    def records(self, topic: str) -> list[ConsumerRecord]:
        """Return a new list of all records of a topic, in order. For tests."""
        return list(self._topics.get(topic, ()))

    async def _stop(self) -> None:
        await self.work.stop()
        await self._subscriptions.stop()
        if self._batches:
            await self._finished.wait()

    def _appended_now(self, records: Sequence[Record]) -> None:
        self._subscriptions.appended({record.topic for record in records})
        self.work.stored(records)

    def _run(self, operations: Sequence[Operation]) -> Deferred[list[tuple[Any, int]]]:
        return succeed(run_all(operations, self._find))

    def _find(self, key: tuple[str, str], *, create: bool) -> Deliveries | None:
        records = self._topics.get(key[0])
        if records is None:
            raise UnknownTopic(NO_SUCH_TOPIC)
        rows = self._groups.get(key)
        if rows is None and create:
            if sum([topic == key[0] for topic, _ in self._groups]) >= MOST_GROUPS:
                raise BrokerUnavailable(TOO_MANY_GROUPS)
            rows = self._groups[key] = _GroupRows(records)
        return None if rows is None else Deliveries(rows, self._leases)

    def _append(self, record: Record) -> Outcome:
        try:
            return self._appended(record)
        except Exception:  # noqa: BLE001 -- after any error, each caller gets a response
            self._log.failure("Storing a record in the topic {topic} failed unexpectedly", topic=record.topic)
            return OutcomeUnknown("It is not known whether the record was stored.")

    def _appended(self, record: Record) -> Outcome:
        if record.partition:
            return UnknownPartition(NO_SUCH_PARTITION)
        if record.identity is not None:
            try:
                again = self._remembered.find(record)
            except IdempotencyKeyReused as rejection:
                return rejection
            if again is not None:
                return again
        records = self._topics.get(record.topic)
        if records is None:
            records = self._topics[record.topic] = _Log()
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
        if record.identity is not None:
            self._remembered.add(record.identity, offset)
        return RecordMetadata(topic=record.topic, partition=0, offset=offset)

    def _append_some(self, batch: _Batch) -> None:
        first = len(batch.outcomes)
        some = batch.records[first : first + _APPENDED_AT_ONCE]
        batch.outcomes += map(self._append, some)
        self._appended_now(some)
        if len(batch.outcomes) < len(batch.records):
            self._clock.callLater(0, self._append_some, batch)
            return
        self._batches.remove(batch)
        batch.waiting.callback(batch.outcomes)
        if not self._batches:
            self._finished.succeed(None)

    def _page(self, topic: str, start: ReadStart) -> Page:
        records = self._topics.get(topic)
        if records is None:
            return Page((), 0, 0, 0, exists=False)
        offset = start if isinstance(start, int) else _first_offset(records, start)
        some = records[offset : offset + _PAGE_RECORDS]
        return Page(some, offset, offset + len(some), len(records))

    def _expect_rejections(self, reason: str) -> None:
        self._health_tracker.expect(WRITING, reason, public_reason=reason)


class _Log(list[ConsumerRecord]):
    """The records of a topic."""

    def __init__(self) -> None:
        super().__init__()
        self._newest_ms = -(2**63)
        self._latest_ms: list[int] = []

    def append(self, record: ConsumerRecord) -> None:
        """Append the next record."""
        super().append(record)
        # The greatest time up to each record, since times come in any order.
        self._newest_ms = max(self._newest_ms, record.timestamp_ms)
        self._latest_ms.append(self._newest_ms)

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the offset of the first record that is not before a time; the end if there is none."""
        return bisect_left(self._latest_ms, timestamp_ms)


class _GroupRows:
    """Implements `sampleapp.brokers.shared.deliveries.GroupRows`."""

    def __init__(self, records: _Log) -> None:
        self._records = records
        self._next_offset = 0
        self._free: dict[int, int] = {}
        self._leases: dict[bytes, tuple[int, dict[int, int]]] = {}
        """By token: when it ends, and the attempts of its messages by offset."""

    def free(self, now_ms: int) -> Generator[tuple[int, int, ConsumerRecord], None, None]:
        """See `GroupRows.free`."""
        for token in [token for token, (ends_ms, _) in self._leases.items() if ends_ms <= now_ms]:
            self._free |= self._leases.pop(token)[1]
        for offset, attempts in sorted(self._free.items()):
            yield offset, attempts, self._records[offset]

    def take_new(self, most: int, max_bytes: int) -> Sequence[ConsumerRecord]:
        """See `GroupRows.take_new`."""
        found = _up_to(self._records, self._next_offset, most, max_bytes)
        self._next_offset += len(found)
        return found

    def give(self, token: bytes, ends_ms: int, attempts: Mapping[int, int]) -> None:
        """See `GroupRows.give`."""
        self.remove(attempts.keys())
        self._leases[token] = ends_ms, {**attempts}

    def given(self, token: bytes, now_ms: int) -> Mapping[int, int]:
        """See `GroupRows.given`."""
        ends_ms, attempts = self._leases.get(token, (0, {}))
        return attempts if ends_ms > now_ms else {}

    def is_given(self, token: bytes, now_ms: int) -> bool:  # noqa: ARG002 -- no other process ends it
        """See `GroupRows.is_given`."""
        return True

    def replace(self, token: bytes, new_token: bytes, ends_ms: int) -> None:
        """See `GroupRows.replace`."""
        self._leases[new_token] = ends_ms, self._leases.pop(token)[1]

    def remove(self, offsets: Collection[int]) -> None:
        """See `GroupRows.remove`."""
        for attempts in (self._free, *[attempts for _, attempts in self._leases.values()]):
            for offset in attempts.keys() & offsets:
                del attempts[offset]

    def backlog(self, now_ms: int, attempts: int) -> int:
        """See `GroupRows.backlog`."""
        count = len(self._records) - self._next_offset
        for ends_ms, given in ((0, self._free), *self._leases.values()):
            count += sum([ends_ms > now_ms or each < attempts for each in given.values()])
        return count


class _RememberedIds:
    """The ids of the latest records. The oldest is forgotten first."""

    def __init__(self, *, clock: IReactorTime, window_s: float) -> None:
        """:param window_s: each id is remembered for this time from its record, in seconds."""
        self._clock = clock
        self._window_s = window_s
        # By id: the fingerprint, the offset, and the time until which it counts. In a dict, finding the first
        # one takes as long as the number that were deleted before it.
        self._known: OrderedDict[bytes, tuple[bytes, int, float]] = OrderedDict()

    def find(self, record: Record) -> ReplayedRecord | None:
        """
        Return the outcome of a record that was published before; ``None`` if its id is new.

        :raise IdempotencyKeyReused: another record was published with its id.
        """
        identity = record.identity
        found = None if identity is None else self._known.get(identity.id)
        if found is None:
            return None
        fingerprint, offset, until_s = found
        if until_s <= self._clock.seconds():
            return None
        return replayed(record, fingerprint=fingerprint, partition=0, offset=offset)

    def add(self, identity: RecordIdentity, offset: int) -> None:
        """Remember the id of a record that was appended now, and forget those that expired."""
        now_s = self._clock.seconds()
        self._known[identity.id] = (identity.fingerprint, offset, now_s + self._window_s)
        self._known.move_to_end(identity.id)
        while self._known:
            *_, until_s = next(iter(self._known.values()))
            if until_s > now_s and len(self._known) <= _REMEMBERED_IDS:
                break
            self._known.popitem(last=False)


class _Batch:
    """Records that were published in one call."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.outcomes: list[Outcome] = []
        # Without a canceller, it ignores the result after it is cancelled, and the records are stored.
        self.waiting: Deferred[list[Outcome]] = Deferred()


def _first_offset(records: _Log, start: Start) -> int:
    end = len(records)
    if isinstance(start, FromOffset):
        return min(start.offset, end)
    if isinstance(start, FromEnd):
        return max(0, end - start.count)
    return records.offset_at(start.timestamp_ms)


def _read(topic_id: str, records: _Log, start: ReadStart | None, request: ReadRequest) -> ReadResult:
    if start is None:
        return ReadResult(topic_id=topic_id, records=(), positions={}, ends={}, partitions=1)
    end = len(records)
    position = start if isinstance(start, int) else _first_offset(records, start)
    found = _up_to(records, position, request.limit, request.max_bytes)
    return ReadResult(
        topic_id=topic_id,
        records=found,
        positions={0: position + len(found)},
        ends={0: end},
        beyond={0: end} if position > end else {},
        partitions=1,
    )


def _up_to(records: _Log, offset: int, most: int, max_bytes: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    size = 0
    for each in records[offset : offset + most]:
        size += each.size
        if found and size > max_bytes:
            break
        found.append(each)
    return found
