"""The producer: its parts put together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.client import ClusterClient
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.idempotence import ProducerIds
from sampleapp.brokers.kafka.producer.intake import Intake
from sampleapp.brokers.kafka.producer.sender import Sender, Timeouts
from sampleapp.brokers.kafka.producer.topic_metadata import TopicMetadata
from sampleapp.errors import BrokerStopped, OutcomeUnknown, PublishError
from sampleapp.interfaces import Outcome
from sampleapp.measures import KafkaMeasures
from sampleapp.model import Record, RecordMetadata

__all__ = ["Producer", "ProducerSettings"]

_BATCH_BYTES: Final = 128 * 1024
_ATTEMPT_S: Final = 5.0
"""How long one attempt may take: a leader that is frozen is noticed then, however long callers wait."""
_UNREACHABLE_WAIT_S: Final = 1.5
"""
How long a record waits for a broker while none can be reached.

So its caller has 503 within 2 s, with a tick and a turn; and a broker that comes back meanwhile, which takes
up to 1 s to be noticed, still gets it.
"""
_CHECKED: Final = 1000
"""So many topics are checked at once: the names may be made up, and each takes memory meanwhile."""


class ProducerSettings(Struct, frozen=True, kw_only=True):
    """What an operator may choose; the defaults are those of `sampleapp.brokers.kafka.config.KafkaConfig`."""

    buffer_bytes: int
    """How much may have been accepted and not be answered yet."""
    delivery_timeout_s: float
    """How long a caller waits for an answer at most, in seconds."""
    codec: Codec
    idempotence: bool
    auto_create: bool


class Producer:
    """Publishes records, in the order of the calls for each partition, and says where they are."""

    def __init__(self, *, client: ClusterClient, settings: ProducerSettings, clock: IReactorTime) -> None:
        """:param client: for this producer alone; closing it is up to the caller."""
        self._accumulator = Accumulator(
            limit_bytes=settings.buffer_bytes,
            delivery_timeout_s=settings.delivery_timeout_s,
            batch_bytes=_BATCH_BYTES,
            clock=clock,
        )
        self._producer_ids = ProducerIds(client=client, is_wanted=settings.idempotence, clock=clock)
        # Half, so that there is time for a second attempt, perhaps at another leader.
        answer_s = min(_ATTEMPT_S, settings.delivery_timeout_s / 2)
        self._sender = Sender(
            client=client,
            accumulator=self._accumulator,
            producer_ids=self._producer_ids,
            metadata=TopicMetadata(
                client=client,
                accumulator=self._accumulator,
                producer_ids=self._producer_ids,
                auto_create=settings.auto_create,
                clock=clock,
            ),
            codec=settings.codec,
            timeouts=Timeouts(answer_s=answer_s, replicas_s=0.8 * answer_s),
            clock=clock,
        )
        self._intakes: set[Intake] = set()
        self._clock = clock
        self._stopping = False

    @property
    def requests(self) -> int:
        """How many Produce requests were made."""
        return self._sender.requests

    @property
    def buffered_bytes(self) -> int:
        """How much was accepted and has not left the buffer."""
        return self._accumulator.buffered_bytes

    def measures(self, *, requests: Mapping[tuple[str, int], int]) -> KafkaMeasures:
        """
        See `sampleapp.interfaces.IMeasured.measures`.

        :param requests: to all brokers, those that the producer did not make included.
        """
        sender = self._sender
        return KafkaMeasures(
            waiting=self._accumulator.waiting,
            requests=requests,
            retries=sender.retries,
            batch_records=sender.batch_records,
            batch_bytes=sender.batch_bytes,
            throttled_s=sender.throttled_s,
            acknowledgement_s=sender.acknowledgement_s,
        )

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `sampleapp.interfaces.IBroker.publish`."""
        if self._stopping:
            return fail(BrokerStopped("The service is stopping; the record was not published."))
        answer = self._accumulator.append(record)
        if self._accumulator.has_work and not self._sender.is_awake:
            self._sender.published()
        return answer

    def publish_many(self, records: Sequence[Record]) -> Deferred[list[Outcome]]:
        """
        See `sampleapp.interfaces.IBroker.publish_many`.

        Records that failed together have one exception.
        """
        if self._stopping:
            return fail(BrokerStopped("The service is stopping; none of the records was published."))
        if not records:
            return succeed([])
        intake = Intake(
            records,
            accumulator=self._accumulator,
            worked=self._wake_sender,
            ended=self._intakes.discard,
            clock=self._clock,
        )
        self._intakes.add(intake)
        return intake.begin()

    def check_topics(self, topics: Collection[str]) -> Deferred[Mapping[str, PublishError]]:
        """See `sampleapp.interfaces.IBroker.check_topics`."""
        return Deferred.fromCoroutine(self._check_topics(list(topics)))

    async def _check_topics(self, names: Sequence[str]) -> Mapping[str, PublishError]:
        for start in range(0, len(names), _CHECKED):
            some = names[start : start + _CHECKED]
            if self._stopping:
                return {name: BrokerStopped("The service is stopping.") for name in some}
            answer = self._accumulator.check(some)
            self._wake_sender()
            errors = await answer
            if errors:
                return errors
        return {}

    def _wake_sender(self) -> None:
        if self._accumulator.has_work:
            self._sender.wake()

    def cluster_unreachable(self, reason: FailureReason) -> None:
        """
        Note that no broker can be reached.

        Records that come from now on, and are not sent within 1.5 s, fail with `BrokerUnavailable`.
        Those that were accepted before, and those that are sent, keep their whole time.

        :param reason: why, for records that no attempt was made for.
        """
        self._accumulator.hurry(_UNREACHABLE_WAIT_S, reason=reason)

    def cluster_reached(self) -> None:
        """
        Note that a broker can be reached.

        It ends what `cluster_unreachable` began, and has partitions and leaders learnt again.
        """
        self._accumulator.end_hurry()
        self._sender.refresh()

    def drain(self) -> Deferred[None]:
        """
        Accept no more.

        :return: fires with ``None`` when every accepted record has been answered.
        """
        self._stopping = True
        self._accumulator.fail_checks(BrokerStopped("The service is stopping."))
        return self._accumulator.when_empty()

    def give_up(self) -> None:
        """Answer everybody now: whose record was never sent, and whose may have been stored."""
        self._stopping = True
        for intake in list(self._intakes):
            intake.give_up(BrokerStopped("The service was stopped before the records were sent."))
        self._accumulator.fail_unsent(BrokerStopped("The service was stopped before the record was sent."))
        self._accumulator.fail_sent(
            OutcomeUnknown("The service was stopped before the broker said whether the record is stored.")
        )

    def stop(self) -> None:
        """Leave nothing running; for after `drain` or `give_up`."""
        self._stopping = True
        self._sender.stop()
        self._producer_ids.stop()
