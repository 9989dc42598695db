"""
The producer, on afkak's client: a Deferred for each record, one batch of each partition in flight.

From afkak it has the client, `sampleapp.brokers.kafka.cluster_client.AfkakClient`: the leaders of partitions
and a connection for each broker. afkak's own producer is not used. It has one batch in flight for all
partitions, gives each record of a batch the offset of the first, and lets an unknown topic delay the others
for 20 seconds; the page of decisions has the figures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime

from sampleapp.brokers.kafka.batches import Codec, record_size
from sampleapp.brokers.kafka.clock_check import ClockCheck
from sampleapp.brokers.kafka.cluster_client import ClusterClient
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.idempotence import ProducerIds
from sampleapp.brokers.kafka.producer.long_keys import LongKeys
from sampleapp.brokers.kafka.producer.partitioner import HASHED_AT_ONCE
from sampleapp.brokers.kafka.producer.pending_batch import PendingBatch
from sampleapp.brokers.kafka.producer.produce_requests import ProduceRequests, Timeouts
from sampleapp.brokers.kafka.producer.replays import ReplayDetection, fingerprint_of, with_fingerprint
from sampleapp.brokers.kafka.producer.results import illegal_header
from sampleapp.brokers.kafka.producer.sender import Sender
from sampleapp.brokers.kafka.producer.topic_metadata import TopicMetadata
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import BrokerStopped, OutcomeUnknown, PublishError
from sampleapp.interfaces import Outcome
from sampleapp.measures import KafkaMeasures
from sampleapp.model import Record, RecordMetadata

_BATCH_BYTES: Final = 128 * 1024
_ATTEMPT_S: Final = 5.0
"""
Maximum duration of one attempt, in seconds.

A leader that is frozen is given up then, even if the delivery timeout is longer.
"""
_UNREACHABLE_WAIT_S: Final = 1.5
"""
The time that a record waits for a broker while none can be reached, in seconds.

Its caller gets 503 within 2 s, including a tick of the sender. A broker that comes back is noticed within
1 s, so that the record can still be sent.
"""
_FEW: Final = 20
"""
Up to this number of records are accepted one after the other, which takes less than to group them.

They have no more headers than are counted in one slice.
"""
_CHECKED: Final = 1000
"""Maximum topics checked at the same time: callers may invent names, and each takes memory until then."""


class ProducerSettings(Struct, frozen=True, kw_only=True):
    """The operator's settings; `sampleapp.brokers.kafka.config.KafkaConfig` has their defaults."""

    buffer_bytes: int
    """Maximum bytes of records that are accepted and not answered yet."""
    delivery_timeout_s: float
    """Maximum time until a caller is answered, in seconds."""
    codec: Codec
    idempotence: bool
    auto_create: bool
    """Let brokers create a topic that is published to."""


class Producer:
    """Publishes records, for each partition in the order of the calls, and returns their offsets."""

    def __init__(
        self,
        *,
        client: ClusterClient,
        replays: ReplayDetection,
        clock_check: ClockCheck,
        settings: ProducerSettings,
        clock: IReactorTime,
    ) -> None:
        """
        :param client: for this producer alone; the caller closes it.
        :param replays: for records with an identity; the caller stops it.
        :param clock_check: is told the times in responses; the caller starts and stops it.
        """
        self._replays = replays
        self._clock_check = clock_check
        self._accumulator = Accumulator(
            limit_bytes=settings.buffer_bytes,
            delivery_timeout_s=settings.delivery_timeout_s,
            batch_bytes=_BATCH_BYTES,
            clock=clock,
        )
        self._producer_ids = ProducerIds(client=client, is_wanted=settings.idempotence, clock=clock)
        self._metadata = TopicMetadata(
            client=client,
            accumulator=self._accumulator,
            producer_ids=self._producer_ids,
            auto_create=settings.auto_create,
            loaded=self._retry,
            clock=clock,
        )
        # Half, so that there is time for a second attempt, perhaps at another leader.
        response_s = min(_ATTEMPT_S, settings.delivery_timeout_s / 2)
        self._requests = ProduceRequests(
            client=client,
            codec=settings.codec,
            timeouts=Timeouts(response_s=response_s, replicas_s=0.8 * response_s),
        )
        self._sender = Sender(
            client=client,
            accumulator=self._accumulator,
            producer_ids=self._producer_ids,
            metadata=self._metadata,
            requests=self._requests,
            codec=settings.codec,
            clock_check=clock_check,
            clock=clock,
        )
        self._slices = TimeSlices(clock)
        self._long_keys = LongKeys(self._slices)
        self._pending_batches: set[PendingBatch] = set()
        self._clock = clock
        self._stopping = False

    @property
    def requests(self) -> int:
        """The number of Produce requests sent."""
        return self._requests.count

    @property
    def buffered_bytes(self) -> int:
        """The bytes of records in the buffer."""
        return self._accumulator.buffered_bytes

    def measures(self, *, requests: Mapping[tuple[str, int], int]) -> KafkaMeasures:
        """
        See `sampleapp.interfaces.IMeasured.measures`.

        :param requests: the counts of all requests to brokers, including those of other components.
        """
        sent = self._requests
        return KafkaMeasures(
            waiting=self._accumulator.waiting,
            requests=requests,
            retries=self._sender.retries,
            batch_records=sent.batch_records,
            batch_bytes=sent.batch_bytes,
            throttled_s=sent.throttled_s,
            acknowledgement_s=sent.acknowledgement_s,
            clock_ahead_s=self._clock_check.ahead_s,
        )

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `sampleapp.interfaces.IBroker.publish`."""
        if self._stopping:
            return fail(BrokerStopped("The service is stopping; the record was not published."))
        size = 0
        if record.identity is not None:
            record = with_fingerprint(record)
            try:
                size = record_size(record)
            except UnicodeEncodeError:
                return fail(illegal_header())
        key = record.key
        if key is not None and len(key) > HASHED_AT_ONCE and record.partition is None:
            response = self._hash_and_append(record, key)
        else:
            response = self._accumulator.append(record)
        if self._accumulator.has_work and not self._sender.is_awake:
            self._sender.send_or_wake()
        if record.identity is not None:
            # Without the record: once it is acknowledged, its room in the buffer is released.
            response.addCallback(
                self._replays.resolve,
                fingerprint=fingerprint_of(record.headers),
                size=size,
                deadline_s=self._clock.seconds() + self._accumulator.delivery_timeout_s,
            )
        return response

    def _hash_and_append(self, record: Record, key: bytes) -> Deferred[RecordMetadata]:
        def append(key_hash: int) -> Deferred[RecordMetadata]:
            response = self._accumulator.append(record, key_hash=key_hash)
            self._wake_sender()
            return response

        def end(result: Any) -> Any:
            self._accumulator.end_batch()
            return result

        # As for a batch: `drain` waits for it.
        self._accumulator.begin_batch()
        # Cancelling the response stops the waiting only.
        response: Deferred[RecordMetadata] = Deferred()
        self._long_keys.hash(key).addCallback(append).addBoth(end).chainDeferred(response)
        return response

    def publish_many(self, records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """
        See `sampleapp.interfaces.IBroker.publish_many`.

        Records that fail together share one exception.
        """
        if self._stopping:
            return fail(BrokerStopped("The service is stopping; none of the records was published."))
        if not records:
            return succeed([])
        if len(records) <= _FEW:
            outcomes = self._accumulator.append_all(records)
            if outcomes is not None:
                self._wake_sender()
                return outcomes.done
        pending_batch = PendingBatch(
            records,
            accumulator=self._accumulator,
            long_keys=self._long_keys,
            replays=self._replays,
            slices=self._slices,
            progressed=self._wake_sender,
            ended=self._pending_batches.discard,
            clock=self._clock,
        )
        self._pending_batches.add(pending_batch)
        return pending_batch.begin()

    def check_topics(self, topics: Collection[str]) -> Deferred[Mapping[str, PublishError]]:
        """See `sampleapp.interfaces.IBroker.check_topics`."""
        unknown = list(topics) if self._stopping else self._accumulator.to_check(topics)
        return Deferred.fromCoroutine(self._check_topics(unknown)) if unknown else succeed({})

    async def _check_topics(self, names: Sequence[str]) -> Mapping[str, PublishError]:
        for start in range(0, len(names), _CHECKED):
            some = names[start : start + _CHECKED]
            if self._stopping:
                return {name: BrokerStopped("The service is stopping.") for name in some}
            response = self._accumulator.check(some)
            self._wake_sender()
            errors = await response
            if errors:
                return errors
        return {}

    def _wake_sender(self) -> None:
        if self._accumulator.has_work:
            self._sender.wake()

    def _retry(self) -> None:
        self._sender.retry()

    def cluster_unreachable(self, reason: FailureReason) -> None:
        """
        Note that no broker can be reached.

        Records that are not sent within 1.5 s from now on, or from when they are accepted, fail with
        `BrokerUnavailable`. Records that have been sent keep their whole time.

        :param reason: the reason to give for records that no attempt was made for.
        """
        self._accumulator.shorten_deadlines(_UNREACHABLE_WAIT_S, reason=reason)

    def cluster_reached(self) -> None:
        """
        Note that a broker can be reached.

        It ends the effect of `cluster_unreachable`, and loads partitions and leaders again.
        """
        self._accumulator.restore_deadlines()
        self._sender.refresh()

    def drain(self) -> Deferred[None]:
        """
        Accept no more records.

        :return: fires with ``None`` when the callers of all accepted records have been answered.
        """
        self._stopping = True
        self._accumulator.fail_checks(BrokerStopped("The service is stopping."))
        # An acknowledged record is resolved before its room is released.
        return self._accumulator.when_empty().addCallback(lambda _: self._replays.when_idle())

    def give_up(self) -> None:
        """Answer all callers now: `BrokerStopped` for records not sent, `OutcomeUnknown` for the others."""
        self._stopping = True
        for pending_batch in list(self._pending_batches):
            pending_batch.give_up(BrokerStopped("The service was stopped before the records were sent."))
        self._long_keys.give_up(BrokerStopped("The service was stopped before the record was sent."))
        self._accumulator.fail_unsent(BrokerStopped("The service was stopped before the record was sent."))
        self._accumulator.fail_sent(
            OutcomeUnknown("The service was stopped before the broker said whether the record is stored.")
        )
        self._replays.give_up()

    def stop(self) -> None:
        """Cancel everything that is scheduled. To be called after `drain` or `give_up`."""
        self._stopping = True
        self._sender.stop()
        self._metadata.stop()
        self._producer_ids.stop()
