"""The producer: its parts put together."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from sampleapp.brokers.kafka.batches import Codec, record_size
from sampleapp.brokers.kafka.client import Client, ask_one_of
from sampleapp.brokers.kafka.producer.answers import Answers
from sampleapp.brokers.kafka.producer.buffer import Buffer
from sampleapp.brokers.kafka.producer.leaving import Leaving
from sampleapp.brokers.kafka.producer.numbering import Numbering
from sampleapp.brokers.kafka.producer.outcomes import Outcomes
from sampleapp.brokers.kafka.producer.pending import Pending
from sampleapp.brokers.kafka.producer.queue import PartitionQueue, State
from sampleapp.brokers.kafka.producer.routing import Routing
from sampleapp.brokers.kafka.producer.sender import Sender, Timeouts
from sampleapp.brokers.kafka.protocol import InitProducerIdRequest, ProducerIdentity
from sampleapp.errors import BrokerStopped, BufferFull, IllegalTopic, OutcomeUnknown, RecordTooLarge
from sampleapp.messages import is_legal_topic
from sampleapp.model import Record, RecordMetadata

__all__ = ["Producer", "ProducerSettings"]

BATCH_BYTES: Final = 128 * 1024
_TICK_S: Final = 0.1
"""How often deadlines are looked at, and queues whose last attempt failed."""
_IDENTITY_TIMEOUT_S: Final = 5.0


class ProducerSettings(Struct, frozen=True, kw_only=True):
    """What an operator may choose."""

    buffer_bytes: int = 64 * 1024 * 1024
    """How much may have been accepted and not be answered yet."""
    delivery_timeout_s: float = 10.0
    """How long a caller waits for an answer at most, in seconds."""
    codec: Codec = Codec.NONE
    idempotence: bool = True
    auto_create: bool = False
    batch_bytes: int = BATCH_BYTES


class Producer:
    """Publishes records, in the order of the calls for each partition, and says where they are."""

    _log = Logger()

    def __init__(self, *, client: Client, settings: ProducerSettings, clock: IReactorTime) -> None:
        """:param client: for this producer alone; closing it is up to the caller."""
        self._client = client
        self._clock = clock
        self._delivery_timeout_s = settings.delivery_timeout_s
        self._buffer = Buffer(limit_bytes=settings.buffer_bytes)
        self._answers = Answers(buffer=self._buffer)
        self._numbering = Numbering(
            is_wanted=settings.idempotence, ask=self._ask_for_id, resume=self._ready, clock=clock
        )
        self._leaving = Leaving(answers=self._answers, numbering=self._numbering)
        self._outcomes = Outcomes(
            answers=self._answers,
            leaving=self._leaving,
            numbering=self._numbering,
            ready=self._ready,
            stale=self._stale,
            batch_bytes=settings.batch_bytes,
            clock=clock,
        )
        # Half, so that there is time for a second attempt, perhaps at another leader.
        answer_s = settings.delivery_timeout_s / 2
        self._sender = Sender(
            client=client,
            codec=settings.codec,
            numbering=self._numbering,
            outcomes=self._outcomes,
            timeouts=Timeouts(answer_s=answer_s, replicas_s=0.8 * answer_s),
            wake=self._wake,
            clock=clock,
        )
        self._routing = Routing(
            client=client,
            answers=self._answers,
            leaving=self._leaving,
            ready=self._ready,
            auto_create=settings.auto_create,
            batch_bytes=settings.batch_bytes,
            clock=clock,
        )
        self._active: dict[PartitionQueue, None] = {}
        self._flush_call: IDelayedCall | None = None
        self._tick_call: IDelayedCall | None = None
        self._stopping = False

    @property
    def requests(self) -> int:
        """How many Produce requests were made."""
        return self._sender.requests

    @property
    def buffered_bytes(self) -> int:
        """How much was accepted and has not left the buffer."""
        return self._buffer.used

    def publish(self, record: Record) -> Deferred[RecordMetadata]:
        """See `sampleapp.interfaces.IBroker.publish`."""
        if self._stopping:
            return fail(BrokerStopped("The service is stopping; the record was not published."))
        topic = self._routing.topics.get(record.topic)
        if topic is None:
            if not is_legal_topic(record.topic):
                return fail(IllegalTopic("Kafka does not allow a topic of this name."))
            topic = self._routing.topic(record.topic)
        topic.used_s = now_s = self._clock.seconds()
        queue = topic.queue_for(record.key, turn=self._routing.turn, now_s=now_s) if topic.queues else None
        size = record_size(record)
        if size > self._buffer.limit_bytes:
            self._routing.forget_unused(topic)
            return fail(RecordTooLarge("The record is larger than all that may wait for the broker."))
        if not self._buffer.take(size, held=topic.held if queue is None else queue.held):
            self._routing.forget_unused(topic)
            return fail(
                BufferFull("Too much is waiting for the broker already; the record was not published.")
            )
        answer: Deferred[RecordMetadata] = Deferred()
        pending = Pending(record, size, now_s + self._delivery_timeout_s, answer)
        self._answers.expect()
        if self._tick_call is None:
            self._tick_call = self._clock.callLater(_TICK_S, self._tick)
        if queue is None:
            self._routing.wait_for(topic, pending)
        else:
            queue.waiting.append(pending)
            queue.held += size
            if queue.state is State.IDLE:
                self._ready(queue)
        return answer

    def refresh(self) -> None:
        """Learn what has changed in the topics that are published to: partitions, and who leads them."""
        self._routing.refresh()

    def drain(self) -> Deferred[None]:
        """
        Accept no more.

        :return: fires with ``None`` when every accepted record has been answered.
        """
        self._stopping = True
        return self._answers.when_idle()

    def give_up(self) -> None:
        """Answer everybody now: whose record was never sent, and whose may have been stored."""
        self._stopping = True
        stopped = BrokerStopped("The service was stopped before the record was sent.")
        unknown = OutcomeUnknown(
            "The service was stopped before the broker said whether the record is stored."
        )
        self._routing.fail_all(stopped)
        for queue in list(self._active):
            self._leaving.fail_unsent(queue, stopped)
            self._leaving.fail_sent(queue, unknown)

    def stop(self) -> None:
        """Leave nothing running; for after `drain` or `give_up`."""
        self._stopping = True
        for call in (self._flush_call, self._tick_call):
            if call is not None and call.active():
                call.cancel()
        self._flush_call = self._tick_call = None
        self._numbering.stop()
        self._routing.stop()

    def _ready(self, queue: PartitionQueue) -> None:
        self._active[queue] = None
        self._sender.ready(queue)

    def _stale(self, topic: str) -> None:
        self._routing.stale(topic)

    def _wake(self) -> None:
        if self._flush_call is None:
            self._flush_call = self._clock.callLater(0, self._flush)

    def _flush(self) -> None:
        self._flush_call = None
        self._routing.turn += 1
        self._sender.flush()

    def _tick(self) -> None:
        self._tick_call = None
        now_s = self._clock.seconds()
        self._routing.expire(now_s)
        self._sender.look_again()
        for queue in list(self._active):
            self._leaving.expire(queue, now_s)
            if queue.state is State.PARKED:
                if not queue:
                    queue.state = State.IDLE
                elif queue.not_before_s <= now_s:
                    self._sender.ready(queue)
            if queue.state is State.IDLE and not queue:
                del self._active[queue]
        if self._buffer.used and self._tick_call is None:
            self._tick_call = self._clock.callLater(_TICK_S, self._tick)

    def _ask_for_id(self) -> Deferred[ProducerIdentity]:
        return Deferred.fromCoroutine(self._get_id())

    async def _get_id(self) -> ProducerIdentity:
        client = self._client
        if not client.node_ids():
            await client.load_metadata(())
        identity: ProducerIdentity = await ask_one_of(
            # Any broker gives them.
            sorted(client.node_ids(), key=lambda node_id: not client.is_connected(node_id)),
            ask=lambda node_id: client.request(
                node_id, InitProducerIdRequest(), timeout_s=_IDENTITY_TIMEOUT_S
            ),
            clock=self._clock,
        )
        return identity
