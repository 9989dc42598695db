"""
The records of one call: reserve room for all, then enqueue them gradually.

The records are first grouped by queue, then the room for all of them is reserved, then they are appended to
the queues. A large batch takes several turns of the reactor, so that other requests do not wait for all of
it. At first the queues are kept short, so that records of other callers for the same partitions do not wait
behind the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, TypeAlias, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import record_size, record_sizes
from sampleapp.brokers.kafka.cluster_client import SERVICE_FAULT
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.long_keys import LongKeys
from sampleapp.brokers.kafka.producer.partition_queue import BatchResult, Pending
from sampleapp.brokers.kafka.producer.partitioner import (
    HASHED_AT_ONCE,
    divided,
    hash_keys,
    remembered_hashes,
)
from sampleapp.brokers.kafka.producer.replays import ReplayDetection, fingerprint_of, with_fingerprint
from sampleapp.brokers.kafka.producer.results import illegal_header, illegal_topic, unavailable
from sampleapp.brokers.kafka.producer.topic import PartitionBatch, Topic
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import PublishError
from sampleapp.interfaces import Outcome
from sampleapp.model import Record, RecordMetadata

_ONE_SLICE_RECORDS: Final = 1000
"""Up to this number of records, one slice takes all: records published later cannot overtake them."""
_ONE_SLICE_HEADERS: Final = 20_000
"""With more headers in all, whose bytes take 2 ms to count, even fewer records take several slices."""
_ONE_SLICE_KEY_BYTES: Final = 64 * 1024
"""With more bytes of keys in all, which take 4 ms to hash, even fewer records take several slices."""
_SLICE_S: Final = 0.0005
"""Maximum duration of a slice, in seconds."""
_STEP: Final = 250
"""The number of records between two readings of the clock."""
_STEP_WITH_HEADERS: Final = 50
"""The number between two readings for records with many headers; with a thousand each, it takes 4 ms."""
_LONG_QUEUE_BYTES: Final = 64 * 1024
"""A queue that holds more, including the batch in flight, gets no records of a large batch for now."""
_PAUSE_S: Final = 0.001
"""The pause while all queues are long, in seconds."""
_PATIENCE: Final = 0.1
"""
The part of the delivery timeout for which the queues are kept short.

The deadlines of records that wait for it do not run yet.
"""

_CHECKED_AT_ONCE: Final = 500
"""The number of batches of partitions whose queues are looked at in one step."""

_headers_of: Final = attrgetter("headers")
_Steps: TypeAlias = Generator["float | Deferred[None]", None, None]
"""
Yields the pause after each step, in seconds: 0 if the slice may go on. Or something to wait for, before which
the next step must not run.
"""


class _TopicBatches:
    """The batches of one topic."""

    __slots__ = ("by_partition", "count", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.count = len(topic.queues)
        """The number of partitions; 0 while it is not known."""
        self.by_partition: dict[int | None, PartitionBatch] = {}
        """``None`` is for records that may go to any partition: all, while the partitions are not known."""


class PendingBatch:
    """Moves the records of one `sampleapp.interfaces.IBroker.publish_many` into the queues."""

    _log = Logger()

    def __init__(
        self,
        records: Sequence[Record],
        *,
        accumulator: Accumulator,
        long_keys: LongKeys,
        replays: ReplayDetection,
        slices: TimeSlices,
        progressed: Callable[[], None],
        ended: Callable[[PendingBatch], None],
        clock: IReactorTime,
    ) -> None:
        """
        :param records: at least one.
        :param slices: for all slices but the first one.
        :param progressed: called at the end of each slice: there may be work for the sender.
        :param ended: called when all records are in the queues, or no more will be.
        """
        self._records = records
        self._accumulator = accumulator
        self._long_keys = long_keys
        self._replays = replays
        self._slices = slices
        self._progressed = progressed
        self._ended = ended
        self._clock = clock
        self._outcomes = BatchResult(len(records))
        self._by_topic: dict[str, _TopicBatches | None] = {}
        """``None`` for a topic whose name is not allowed."""
        self._batches: list[PartitionBatch] = []
        self._headers = self._key_bytes = 0
        """Of the records so far."""
        self._step = _STEP
        self._have_identities = False
        self._is_reserved = False
        self._steps: _Steps = self._work()
        self._waiting: IDelayedCall | Deferred[None] | None = None
        self._now_s = 0.0
        """When the slice began, in seconds of the reactor's clock."""

    def begin(self) -> Deferred[list[Outcome]]:
        """
        Run the first slice; the others follow in later turns of the reactor, one in each for all batches.

        :return: see `sampleapp.interfaces.IBroker.publish_many`.
        """
        self._accumulator.begin_batch()
        self._slices.take()
        self._run_slice()
        return self._outcomes.done

    def give_up(self, error: PublishError) -> None:
        """Stop, and fail the records that are not in the queues."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
        self._steps.close()
        if self._is_reserved:
            for batch in self._batches:
                self._accumulator.fail_unqueued(batch, error)
        else:
            self._reject(error)
        self._end()

    def _reject(self, error: PublishError) -> None:
        self._forget_topics()
        for batch in self._batches:
            for pending in batch.records:
                # Its callbacks refer to the record, and the garbage collector does not see this cycle.
                pending.response = self._outcomes
        self._outcomes.reject(error)

    def _run_slice(self, _: object = None) -> None:
        self._waiting = None
        clock = self._clock
        self._now_s = clock.seconds()
        until_s = self._now_s + _SLICE_S
        try:
            for pause in self._steps:
                if pause or (clock.seconds() >= until_s and self._takes_several_slices):
                    break
            else:
                self._end()
                pause = None
        except Exception:  # noqa: BLE001 -- any fault; the room is released and the caller is answered
            self._log.failure("Intake of {count} records failed", count=len(self._records))
            self.give_up(unavailable(SERVICE_FAULT))
            pause = None
        self._progressed()
        if isinstance(pause, Deferred):
            self._run_after(pause)
        elif pause:
            self._waiting = clock.callLater(pause, self._run_later)
        elif pause is not None:
            self._run_later()

    def _run_later(self) -> None:
        self._run_after(self._slices.next())

    def _run_after(self, waiting: Deferred[None]) -> None:
        self._waiting = waiting
        waiting.addCallbacks(self._run_slice, self._stopped_waiting)

    def _stopped_waiting(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, PublishError):
            self._waiting = None
            self.give_up(error)
        else:
            failure.trap(CancelledError)

    def _end(self) -> None:
        self._accumulator.end_batch()
        self._ended(self)

    @property
    def _takes_several_slices(self) -> bool:
        return (
            len(self._records) > _ONE_SLICE_RECORDS
            or self._headers > _ONE_SLICE_HEADERS
            or self._key_bytes > _ONE_SLICE_KEY_BYTES
        )

    def _work(self) -> _Steps:
        """Do all the work, in steps."""
        records, start = self._records, 0
        while start < len(records):
            some = self._records[start : start + self._step]
            # Nearly all batches have neither. This takes half of the time of any(map(…)).
            if [each for each in some if each.headers or each.identity is not None]:
                some = self._with_headers(some)
            keys = [record.key for record in some]
            hashes = remembered_hashes(keys)
            # Those that are remembered are short.
            key_bytes = sum(map(len, filter(None, keys))) if hashes is None else 0
            if key_bytes > HASHED_AT_ONCE:
                hashes = []
                yield from self._hash(keys, hashes)
            else:
                self._key_bytes += key_bytes
            self._group(
                some,
                start,
                hash_keys(keys) if hashes is None else hashes,
                keeps_hashes=key_bytes > HASHED_AT_ONCE,
            )
            start += len(some)
            yield 0
        error = self._accumulator.reserve(self._batches)
        if error is not None:
            self._reject(error)
            return
        self._is_reserved = True
        yield from self._enqueue(self._batches)

    def _with_headers(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return as many of these records as have headers for one step, with their fingerprints."""
        self._headers += sum(map(len, map(_headers_of, records)))
        if self._headers > _ONE_SLICE_HEADERS:
            self._step = _STEP_WITH_HEADERS
            records = records[:_STEP_WITH_HEADERS]
        if any(record.identity is not None for record in records):
            self._have_identities = True
            records = [with_fingerprint(each) for each in records]
        return records

    def _hash(self, keys: Sequence[bytes | None], hashes: list[int | None]) -> _Steps:
        """
        Hash keys that take more than one step.

        :param hashes: gets the hash of each key.
        """
        long: dict[bytes, int] = {}
        for some in divided(keys):
            key = some[0]
            if key is not None and len(key) > HASHED_AT_ONCE:
                if key not in long:
                    yield self._long_keys.hash(key).addCallback(partial(long.__setitem__, key))
                hashes.append(long[key])
            else:
                hashes += hash_keys(some)
                self._key_bytes += sum(map(len, filter(None, some)))
                yield 0

    def _enqueue(self, batches: Sequence[PartitionBatch]) -> _Steps:
        patient_until_s = self._now_s
        # Records with identities do not delay others in their queues.
        if self._takes_several_slices and not self._have_identities:
            patient_until_s += _PATIENCE * self._accumulator.delivery_timeout_s
        while batches:
            pause_s = _PAUSE_S
            for number, batch in enumerate(batches, 1):
                is_patient = self._now_s < patient_until_s and self._accumulator.outage is None
                if not (is_patient and batch.is_queue_longer_than(_LONG_QUEUE_BYTES)):
                    self._accumulator.enqueue(batch, _STEP, now_s=self._now_s)
                    pause_s = 0
                    yield 0
                elif number % _CHECKED_AT_ONCE == 0:
                    yield 0
            batches = [batch for batch in batches if batch.records]
            if batches and pause_s:
                yield pause_s

    def _group(
        self,
        records: Sequence[Record],
        start: int,
        hashes: Sequence[int | None],
        *,
        keeps_hashes: bool = False,
    ) -> None:
        """
        Divide records by their queues. One that cannot be published gets its outcome here.

        :param hashes: of their keys.
        :param keeps_hashes: keep them with the records, as without partitions; see `Pending.key_hash`.
        """
        outcomes, by_topic, have_identities = self._outcomes, self._by_topic, self._have_identities
        deadline_s = self._now_s + self._accumulator.delivery_timeout_s
        name, batches = None, None
        for index, record, hashed, size in zip(
            range(start, start + len(records)), records, hashes, _sizes(records), strict=True
        ):
            if record.topic != name:
                name = record.topic
                batches = by_topic[name] if name in by_topic else self._batches_of(name)
            if batches is None or size is None:
                outcomes.put((index,), (illegal_topic() if batches is None else illegal_header(),))
                continue
            partition, count = record.partition, batches.count
            if not count:
                partition = None
            elif partition is None:
                if hashed is not None or count == 1:
                    # Of one partition, records with and without a key keep their order.
                    partition = (hashed or 0) % count
            elif not 0 <= partition < count:
                # It may have been added since: the metadata is loaded again.
                partition = None
            batch = batches.by_partition.get(partition)
            if batch is None:
                batch = batches.by_partition[partition] = self._new_batch(batches.topic, partition)
            batch.size += size
            key_hash = hashed if keeps_hashes or not count else None
            pending = Pending(record, size, deadline_s, outcomes, index, None, key_hash)
            if have_identities:
                self._resolve_later(pending)
            batch.records.append(pending)

    def _resolve_later(self, pending: Pending) -> None:
        """Delay the outcome of a record with an identity until it is known whether the record is new."""
        if pending.record.identity is None:
            return

        def acknowledged(metadata: RecordMetadata) -> Deferred[RecordMetadata]:
            return self._replays.resolve(
                metadata,
                fingerprint=fingerprint_of(pending.record.headers),
                size=pending.size,
                deadline_s=pending.deadline_s,
            )

        response: Deferred[RecordMetadata] = Deferred()
        response.addCallback(acknowledged).addBoth(self._put, pending.index)
        pending.response, pending.request = response, self._outcomes

    def _put(self, result: RecordMetadata | Failure, index: int) -> None:
        outcome: object = result.value if isinstance(result, Failure) else result
        self._outcomes.put((index,), (cast("Outcome", outcome),))

    def _batches_of(self, name: str) -> _TopicBatches | None:
        topic = self._accumulator.topic(name)
        batches = self._by_topic[name] = None if topic is None else _TopicBatches(topic)
        return batches

    def _new_batch(self, topic: Topic, partition: int | None) -> PartitionBatch:
        batch = PartitionBatch(
            topic,
            None if partition is None else topic.queues[partition],
            has_identities=self._have_identities,
        )
        self._batches.append(batch)
        return batch

    def _forget_topics(self) -> None:
        for name in self._by_topic:
            self._accumulator.forget_unused(name)


def _sizes(records: Sequence[Record]) -> Sequence[int | None]:
    """Return the size of each record in bytes; ``None`` for one that cannot be encoded."""
    try:
        return record_sizes(records)
    except UnicodeEncodeError:
        return [_size(record) for record in records]


def _size(record: Record) -> int | None:
    try:
        return record_size(record)
    except UnicodeEncodeError:
        return None
