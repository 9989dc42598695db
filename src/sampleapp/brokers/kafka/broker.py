"""The Kafka broker: wires, starts and stops its components."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from os import environ
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.clock_check import ClockCheck
from sampleapp.brokers.kafka.cluster_client import AfkakClient
from sampleapp.brokers.kafka.cluster_health import ClusterHealth
from sampleapp.brokers.kafka.config import KafkaConfig
from sampleapp.brokers.kafka.connections.diagnostics import address
from sampleapp.brokers.kafka.connections.endpoints import make_endpoint_factory
from sampleapp.brokers.kafka.connections.security import CurrentSecurity
from sampleapp.brokers.kafka.consumer import METADATA_INTERVAL_S, Consumer, Subscription, TopicReader
from sampleapp.brokers.kafka.descriptions import Descriptions
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.idempotent_topics import IdempotentTopics
from sampleapp.brokers.kafka.producer import Producer, ProducerSettings, ReplayDetection
from sampleapp.brokers.kafka.producer.results import rejection
from sampleapp.brokers.kafka.work import GroupWork
from sampleapp.brokers.shared.deliveries import WorkSettings
from sampleapp.brokers.shared.following import Subscriptions
from sampleapp.brokers.shared.health import WRITING, HealthTracker
from sampleapp.brokers.shared.idempotency import IdempotencySettings
from sampleapp.brokers.shared.stopping import Stopping
from sampleapp.concurrency.slices import TimeSlices
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    PublishError,
    PublishTimedOut,
    UnknownTopic,
)
from sampleapp.interfaces import IBroker, IMeasured, IRecordObserver, IReloadable, ISubscription, Outcome
from sampleapp.measures import BYTES, RECORDS, SECONDS, Distribution, KafkaMeasures, Waiting
from sampleapp.model import (
    EARLIEST,
    FromOffsets,
    Health,
    ReadRequest,
    ReadResult,
    Record,
    RecordMetadata,
    Start,
    TopicDescription,
)

_NOT_STARTED: Final = "The Kafka broker has not started yet."
_NOT_REACHED: Final = "Kafka has not been reached yet."
_STOPPED: Final = "The broker was stopped."
_NOT_KNOWN: Final = (
    "Kafka did not say in time whether the topic takes idempotency keys; nothing was published."
)
_NOT_ANSWERED: Final = (
    "Kafka did not answer in time. Send the same request again, with the same idempotency key."
)

CONNECT_TIMEOUT_S: Final = 5.0
_TOPIC_CREATION_S: Final = 0.1
"""Seconds until a broker is asked again about a topic that it does not know yet."""
_SEARCHED_AT_ONCE: Final = 20_000
"""Records among which those with an identity are found in one turn of the reactor: half a millisecond."""

T = TypeVar("T")


@implementer(IBroker, IMeasured, IReloadable)
class KafkaBroker:
    """
    The topics of a Kafka cluster.

    A publish is acknowledged after all in-sync replicas have the record (``acks=all``).
    """

    _log = Logger()

    def __init__(
        self,
        config: KafkaConfig,
        *,
        reactor: Any,
        environment: Mapping[str, str] = environ,
        metadata_interval_s: float = METADATA_INTERVAL_S,
        idempotency: IdempotencySettings = IdempotencySettings(),  # noqa: B008 -- it is immutable
        work: WorkSettings = WorkSettings(),  # noqa: B008 -- it is immutable
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        :param reactor: provides `IReactorTime`, and what TCP and TLS endpoints ask for.
        :param environment: may hold the credentials.
        :param metadata_interval_s: the interval of loading brokers, topics and partitions, in seconds.
        :param idempotency: for records that are sent again.
        :param work: for groups of workers.
        :param now: returns the time of day, which is compared with the timestamps of records with an
            identity, and with Kafka's: seconds since the epoch.
        """
        self._config = config
        self._reactor = reactor
        self._environment = environment
        self._security: CurrentSecurity | None = None
        self._health_tracker = HealthTracker(reactor, broker="Kafka", unavailable="Kafka is unreachable")
        self._health_tracker.expect(WRITING, _NOT_STARTED, public_reason=_NOT_STARTED)
        self._interval_s = metadata_interval_s
        self._slices = TimeSlices(reactor)
        self._subscriptions: Subscriptions[Subscription] = Subscriptions()
        self._sent: Counter[tuple[str, int]] = Counter()
        self._client: AfkakClient | None = None
        self._producer: Producer | None = None
        self._idempotent_topics = IdempotentTopics(
            settings=idempotency, new_client=self._new_client, clock=reactor, now=now
        )
        self._cluster_health = ClusterHealth(
            health_tracker=self._health_tracker,
            interval_s=metadata_interval_s,
            clock=reactor,
            changed=self._idempotent_topics.cluster_changed,
        )
        self._replays = ReplayDetection(
            new_client=self._new_client, clock=reactor, not_readable=self._idempotent_topics.forget
        )
        self._clock_check = ClockCheck(new_client=self._new_client, clock=reactor, now=now)
        self._descriptions = Descriptions(new_client=self._new_client, clock=reactor)
        self._consumer = Consumer(new_client=self._new_client, clock=reactor)
        self._reader = TopicReader(
            new_client=self._new_client, clock=reactor, max_batch_bytes=config.max_batch_bytes
        )
        self.work: GroupWork | None = None
        """See `IBroker.work`."""
        self._work_settings = work
        self._now = now
        self._stopping = Stopping(clock=reactor, work=self._stop, deadline_passed=self._deadline_passed)

    def check(self) -> None:
        """See `IBroker.check`. Reads the files with certificates and credentials."""
        self._secured()

    def start(self) -> None:
        """See `IBroker.start`."""
        if self._client is not None or self._stopping.is_requested:
            return
        config = self._config
        self._log.info(
            "Records are kept in Kafka, at {addresses}",
            addresses=", ".join(address(host, port) for host, port in config.addresses),
        )
        self._health_tracker.expect(WRITING, _NOT_REACHED, public_reason=_NOT_REACHED)
        self._client = self._new_client()
        self._producer = Producer(
            client=self._client,
            replays=self._replays,
            clock_check=self._clock_check,
            settings=ProducerSettings(
                buffer_bytes=config.buffer_bytes,
                delivery_timeout_s=config.delivery_timeout_s,
                codec=Codec[config.compression.upper()],
                idempotence=config.idempotence,
                auto_create=config.auto_create,
            ),
            clock=self._reactor,
        )
        self.work = GroupWork(
            client=self._new_client(),
            read=self._reader.read,
            clock=self._reactor,
            now=self._now,
            most_leases=self._work_settings.most_leases,
            max_batch_bytes=config.max_batch_bytes,
        )
        self._cluster_health.start(client=self._client, listener=self._producer)
        self._subscriptions.start()
        self._clock_check.start()

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `IBroker.publish`."""
        if self._stopping.is_requested:
            return fail(BrokerStopped("The service is stopping; the record was not published."))
        if self._producer is None:
            return fail(BrokerUnavailable("The service has not started; the record was not published."))
        if record.identity is not None:
            return self._publish_identified(
                [record], partial(self._producer.publish, record), timed_out=Failure
            )
        return self._producer.publish(record)

    def publish_many(self, records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """See `IBroker.publish_many`."""
        if self._stopping.is_requested:
            return fail(BrokerStopped("The service is stopping; none of the records was published."))
        if self._producer is None:
            return fail(BrokerUnavailable("The service has not started; none of the records was published."))
        if len(records) > _SEARCHED_AT_ONCE:
            return Deferred.fromCoroutine(self._publish_very_many(records, self._producer))
        identified = [record for record in records if record.identity is not None]
        return self._publish_found(records, identified, self._producer)

    async def _publish_very_many(self, records: Sequence[Record], producer: Producer) -> list[Outcome]:
        identified: list[Record] = []
        for start in range(0, len(records), _SEARCHED_AT_ONCE):
            await self._slices.next()
            some = records[start : start + _SEARCHED_AT_ONCE]
            identified += [record for record in some if record.identity is not None]
            error = self._idempotent_topics.too_many(len(identified))
            if error is not None:
                # Not later: the traceback keeps the list, whose records would be freed with it in one turn.
                raise error
        return await self._publish_found(records, identified, producer)

    def _publish_found(
        self, records: Sequence[Record], identified: Sequence[Record], producer: Producer
    ) -> Deferred[list[Outcome]]:
        if not identified:
            return producer.publish_many(records)
        error = self._idempotent_topics.too_many(len(identified))
        if error is not None:
            return fail(error)
        return self._publish_identified(
            identified,
            partial(producer.publish_many, records),
            timed_out=lambda error: [error] * len(records),
        )

    def check_topics(
        self, topics: Collection[str], *, create: bool = True, identified: bool = False
    ) -> Deferred[Mapping[str, PublishError]]:
        """See `IBroker.check_topics`."""
        if identified:
            errors = self._idempotent_topics.disabled(topics)
            if errors:
                return succeed(errors)
        if self._producer is None:
            return succeed({name: BrokerUnavailable("The service has not started.") for name in topics})
        if identified and create and not self._stopping.is_requested:
            return Deferred.fromCoroutine(self._check_identified(topics, self._producer))
        if create or self._stopping.is_requested:
            return self._producer.check_topics(topics)
        if not self._health_tracker.health().ready:
            return succeed({})
        return Deferred.fromCoroutine(self._check_without_creating(topics))

    def list_topics(self) -> Deferred[Sequence[str]]:
        """See `IBroker.list_topics`."""
        if self._client is None:
            return fail(BrokerUnavailable("The service has not started."))
        return self._descriptions.list_topics()

    def describe_topics(self, topics: Collection[str]) -> Deferred[Sequence[TopicDescription]]:
        """See `IBroker.describe_topics`."""
        if self._client is None:
            return fail(BrokerUnavailable("The service has not started."))
        return self._descriptions.describe_topics(topics)

    def read(self, request: ReadRequest) -> Deferred[ReadResult]:
        """See `IBroker.read`. Uncommitted and aborted records of transactions are not returned."""
        if self._client is None and not self._stopping.is_requested:
            return fail(BrokerUnavailable("The service has not started."))
        return self._reader.read(request)

    def follow(
        self,
        *,
        topic: str,
        observer: IRecordObserver,
        start: Start | FromOffsets = EARLIEST,
        partition: int | None = None,
    ) -> ISubscription:
        """See `IBroker.follow`. Uncommitted and aborted records of transactions are not delivered."""
        subscription = Subscription(
            topic=topic,
            observer=observer,
            start=start,
            partition=partition,
            consumer=self._consumer,
            clock=self._reactor,
            health_tracker=self._health_tracker,
            ended=self._subscriptions.ended,
            metadata_interval_s=self._interval_s,
            max_batch_bytes=self._config.max_batch_bytes,
        )
        self._subscriptions.add(subscription)
        return subscription

    @property
    def reloaded_paths(self) -> Sequence[Path]:
        """See `IReloadable.reloaded_paths`."""
        return self._secured().paths

    def reload(self) -> None:
        """See `IReloadable.reload`. Open connections keep the certificates and credentials of their start."""
        self._secured().reload()

    def health(self) -> Health:
        """See `IBroker.health`."""
        health, warning = self._health_tracker.health(), self._clock_check.warning
        return health if warning is None else replace(health, warnings=(warning,))

    def measures(self) -> KafkaMeasures:
        """See `IMeasured.measures`."""
        if self._producer is not None:
            return self._producer.measures(requests=self._sent)
        return KafkaMeasures(
            waiting=Waiting(records=0, bytes=0, limit_bytes=self._config.buffer_bytes),
            requests=self._sent,
            retries=0,
            batch_records=Distribution(RECORDS),
            batch_bytes=Distribution(BYTES),
            throttled_s=0.0,
            acknowledgement_s=Distribution(SECONDS),
            clock_ahead_s=None,
        )

    def stop(self, *, deadline_s: float) -> Deferred[None]:
        """See `IBroker.stop`. Of several calls, the earliest deadline applies."""
        return self._stopping.request(deadline_s=deadline_s)

    def _publish_identified(
        self,
        identified: Sequence[Record],
        publish: Callable[[], Deferred[T]],
        *,
        timed_out: Callable[[PublishError], T | Failure],
    ) -> Deferred[T]:
        """
        Publish records, if those with an identity may be.

        :param timed_out: returns the result if the outcome is not known at the deadline. It begins when the
            topics are asked about, before the producer's own.
        """
        topics = {record.topic for record in identified}
        if self._idempotent_topics.are_known(topics):
            error = self._idempotent_topics.admit(identified)
            return publish() if error is None else fail(error)
        deadline_s = self._reactor.seconds() + self._config.delivery_timeout_s

        def learnt(errors: Mapping[str, PublishError]) -> Deferred[T]:
            error = next(iter(errors.values()), None) or self._idempotent_topics.admit(identified)
            if error is not None:
                return fail(error)
            return publish().addTimeout(
                max(0.0, deadline_s - self._reactor.seconds()),
                self._reactor,
                onTimeoutCancel=lambda *_: timed_out(PublishTimedOut(_NOT_ANSWERED)),
            )

        # Cancelling it stops the waiting only.
        waiting: Deferred[T] = Deferred()
        self._learn(topics).addCallback(learnt).chainDeferred(waiting)
        return waiting

    async def _check_identified(
        self, topics: Collection[str], producer: Producer
    ) -> Mapping[str, PublishError]:
        known = self._idempotent_topics.are_known(topics)
        errors = self._idempotent_topics.rejections(topics) if known else await self._learn(topics)
        return errors or await producer.check_topics(topics)

    def _learn(self, topics: Collection[str]) -> Deferred[Mapping[str, PublishError]]:
        """
        Ask about topics of records with an identity, and create those that do not exist.

        :return: fires with the errors of topics that cannot be used, in time for the records. Never fails.
        """
        asking = Deferred.fromCoroutine(self._ask_about(topics))
        return asking.addTimeout(
            self._config.delivery_timeout_s,
            self._reactor,
            onTimeoutCancel=lambda *_: dict.fromkeys(topics, BrokerUnavailable(_NOT_KNOWN)),
        )

    async def _ask_about(self, topics: Collection[str]) -> Mapping[str, PublishError]:
        while self._producer is not None and not self._stopping.is_requested:
            try:
                missing = await self._idempotent_topics.learn(topics)
            except PublishError as error:
                return dict.fromkeys(topics, error)
            errors = self._idempotent_topics.rejections(topics)
            if errors or not missing:
                return errors
            errors = await self._producer.check_topics(missing)
            if errors:
                return errors
            await deferLater(self._reactor, _TOPIC_CREATION_S)
        return dict.fromkeys(topics, BrokerStopped("The service is stopping."))

    async def _check_without_creating(self, topics: Collection[str]) -> Mapping[str, PublishError]:
        errors: dict[str, PublishError] = {}
        for name, error in (await self._descriptions.topic_errors(topics)).items():
            if error in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION):
                errors[name] = rejection(error)
            elif error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not self._config.auto_create:
                errors[name] = UnknownTopic("The topic does not exist. Create it first, or check its name.")
        return errors

    def _secured(self) -> CurrentSecurity:
        if self._security is None:
            self._security = CurrentSecurity(self._config, environ=self._environment, clock=self._reactor)
        return self._security

    def _new_client(self) -> AfkakClient:
        return AfkakClient(
            addresses=self._config.addresses,
            client_id=self._config.client_id,
            endpoint_factory=make_endpoint_factory(
                security=self._secured(),
                client_id=self._config.client_id,
                timeout_s=min(CONNECT_TIMEOUT_S, self._config.delivery_timeout_s),
            ),
            reactor=self._reactor,
            listener=self._cluster_health,
            sent=self._sent,
        )

    async def _stop(self) -> None:
        subscriptions = Deferred.fromCoroutine(self._subscriptions.stop())
        descriptions = self._descriptions.stop()
        reader = self._reader.stop()
        work = succeed(None) if self.work is None else Deferred.fromCoroutine(self.work.stop())
        clock_check = self._clock_check.stop()
        self._cluster_health.stop()
        try:
            if self._producer is not None:
                await self._producer.drain()
                self._producer.stop()
            await subscriptions
            await descriptions
            await reader
            await work
            await clock_check
        finally:
            await self._replays.stop()
            await self._idempotent_topics.stop()
            if self._client is not None:
                await self._client.close()
        self._health_tracker.expect(WRITING, _STOPPED, public_reason=_STOPPED)

    def _deadline_passed(self) -> None:
        if self._producer is not None:
            self._producer.give_up()
