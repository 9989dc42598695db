"""
The sender: from queues to requests, and from answers back to queues.

It runs in turns. In each it takes the queues that are ready, gives them to the leaders of their
partitions, and sends to each leader one request with one batch of each partition. Large batches go apart,
after the others, so that a record by itself does not wait for very many. What an answer means is
decided in `results`, what may happen to a queue then in `partition_queue`. Besides, it has the partitions
of topics learnt while that is needed, and looks now and then whether the time of anything is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.client import ClusterClient, reason_of
from sampleapp.brokers.kafka.connections.failure_reason import FailureReason
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.delivery_log import DeliveryLog
from sampleapp.brokers.kafka.producer.idempotence import ProducerIds
from sampleapp.brokers.kafka.producer.partition_queue import PartitionQueue, State
from sampleapp.brokers.kafka.producer.results import Action, decide, refusal, unavailable
from sampleapp.brokers.kafka.producer.topic_metadata import TopicMetadata
from sampleapp.brokers.kafka.protocol import ProduceAnswer, Produced, ProduceRequest
from sampleapp.brokers.shared.pause import Pause
from sampleapp.errors import OutcomeUnknown, RecordRefused
from sampleapp.measures import BYTES, RECORDS, SECONDS, Distribution

__all__ = ["Sender", "Timeouts"]

_REQUESTS: Final = 3
"""In flight to one broker: it takes them one by one, and the next one should be there when it is done."""
_REQUEST_BYTES: Final = 1024 * 1024
_LARGE_BYTES: Final = 16 * 1024
"""A batch of more is large. It goes in other requests, and neither kind takes the place of the other."""
_LARGE_REQUESTS: Final = 2
_LARGE_REQUEST_BYTES: Final = 256 * 1024
"""Less, since the broker takes all of it before what comes next."""
_TURN_S: Final = 0.0005
"""How long one turn may take, in seconds, but for one large batch: what is left is for the next one."""
_TICK_S: Final = 0.1
"""How often deadlines are looked at, and queues whose last attempt failed."""
_LEARN_AGAIN_S: Final = 0.15
_ONE_CALLER: Final = 10
"""So many records that come one after the other, each after the answer to the last, are of one caller."""
_NO_LEADER: Final = FailureReason(
    sentence="There is no leader.",
    public="The topic's partition has no leader at the moment.",
    lasting=False,
)


# Looked for with every batch, for which a member of an Enum is slow to look up before Python 3.12.
_MAY_BE_SENT: Final = frozenset({State.READY, State.RESEND})
_GIVEN_UP: Final = frozenset({State.ABANDONED, State.CLOSED})
_READY: Final = State.READY
_STORED: Final = int(ErrorCode.NONE)

_Taken: TypeAlias = tuple[PartitionQueue, bytes]
"""A queue, and the bytes of its batch."""


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long a Produce request may take, in seconds."""

    answer_s: float
    """Until the connection is given up."""
    replicas_s: float
    """Until the leader gives up waiting for its followers, which it should do first."""


class _Window:
    """Requests of one kind to one broker, and the queues whose turn comes with them."""

    __slots__ = ("in_flight", "ready", "request_bytes", "requests")

    def __init__(self, requests: int, request_bytes: int) -> None:
        self.requests = requests
        """How many there may be at once."""
        self.request_bytes = request_bytes
        """How large one may become, unless a single batch is larger."""
        self.in_flight = 0
        self.ready: dict[PartitionQueue, None] = {}

    @property
    def may_send(self) -> bool:
        """Whether there is something to send, and no request has to be answered before."""
        return bool(self.ready) and self.in_flight < self.requests


class _Node:
    """One broker, and what it gets."""

    __slots__ = ("connecting", "node_id", "not_before_s", "of_large", "of_others")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.of_others = _Window(_REQUESTS, _REQUEST_BYTES)
        self.of_large = _Window(_LARGE_REQUESTS, _LARGE_REQUEST_BYTES)
        self.not_before_s = 0.0
        """Until when the broker wants nothing more, by the reactor's clock."""
        self.connecting = False

    @property
    def in_flight(self) -> int:
        """How many requests it has not answered."""
        return self.of_others.in_flight + self.of_large.in_flight

    @property
    def has_ready(self) -> bool:
        """Whether a queue's turn comes at it."""
        return bool(self.of_others.ready or self.of_large.ready)

    def add(self, queue: PartitionQueue) -> None:
        """Note that it is a queue's turn."""
        window = self.of_large if queue.next_bytes() > _LARGE_BYTES else self.of_others
        window.ready[queue] = None

    def take_ready(self) -> list[PartitionQueue]:
        """Take all of those queues."""
        ready = [*self.of_others.ready, *self.of_large.ready]
        self.of_others.ready = {}
        self.of_large.ready = {}
        return ready


class Sender:
    """Sends what is ready: to each leader all its partitions at once, of each partition one batch."""

    _log = Logger()

    def __init__(
        self,
        *,
        client: ClusterClient,
        accumulator: Accumulator,
        producer_ids: ProducerIds,
        metadata: TopicMetadata,
        codec: Codec,
        timeouts: Timeouts,
        clock: IReactorTime,
    ) -> None:
        """:param client: for this sender alone."""
        self._client = client
        self._accumulator = accumulator
        self._producer_ids = producer_ids
        self._metadata = metadata
        self._codec = codec
        self._may_have_zstd = codec is Codec.ZSTD
        self._answer_s = timeouts.answer_s
        self._replicas_ms = int(timeouts.replicas_s * 1000)
        self._clock = clock
        self._nodes: dict[int, _Node] = {}
        self._unnumbered: dict[PartitionQueue, None] = {}
        """Those that are ready, and wait for a producer id."""
        self._delivery_log = DeliveryLog(clock=clock)
        self._is_learning = False
        self._learning_pause = Pause(clock)
        self._turn_call: IDelayedCall | None = None
        self._until_s = 0.0
        """Until when this turn may take, by the reactor's clock."""
        self._tick_call: IDelayedCall | None = None
        self._stopped = False
        self._in_flight = 0
        """
        How many requests were made whose answers have not been dealt with to the end.

        A node's own count goes down before: what is published while an answer is dealt with is not alone.
        """
        self._alone = 0
        """How many records in a row have come while no other one was there."""
        self.is_awake = False
        """Whether the next turn is about to come."""
        self.requests = 0
        """How many requests were made."""
        self.retries = 0
        """How many batches were to be sent again because an attempt had failed."""
        self.throttled_s = 0.0
        """How long brokers have asked for a pause, in seconds."""
        self.batch_records = Distribution(RECORDS)
        """Of each batch that was sent."""
        self.batch_bytes = Distribution(BYTES)
        """Of each batch that was sent."""
        self.acknowledgement_s = Distribution(SECONDS)
        """From each request to its answer, in seconds."""

    def published(self) -> None:
        """
        See to a record that was just published.

        It goes at once where there seems to be a single caller, who publishes the next one when this one is
        answered. Otherwise it waits for what else comes in the same turn of the reactor.
        """
        if self._in_flight:
            self._alone = 0
        elif self._alone < _ONE_CALLER:
            self._alone += 1
        elif not self._stopped:
            self._tick_soon()
            self._turn()
            return
        self.wake()

    def wake(self) -> None:
        """Have a turn soon: what comes until then goes into the same requests."""
        if self.is_awake or self._stopped:
            return
        self.is_awake = True
        self._turn_call = self._clock.callLater(0, self._turn)
        if self._tick_call is None:
            self._tick_soon()

    def stop(self) -> None:
        """Leave nothing running."""
        self._stopped = True
        self._delivery_log.write(at_once=True)
        for call in (self._turn_call, self._tick_call):
            if call is not None and call.active():
                call.cancel()
        self._learning_pause.end()

    def refresh(self) -> None:
        """Learn what has changed in the topics that are published to: partitions, and who leads them."""
        self._metadata.refresh()
        self._delivery_log.forget(set(self._accumulator.topics))
        self._learn_soon()

    # A turn: queues to requests

    def _turn(self) -> None:
        self.is_awake = False
        self._until_s = self._clock.seconds() + _TURN_S
        for queue in self._accumulator.take_ready():
            self._assign(queue)
        while self._accumulator.doubted:
            self._invalidate(self._accumulator.doubted.pop())
        if self._accumulator.has_new_topic:
            self._accumulator.has_new_topic = False
            self._learn_soon()
            self._learning_pause.wake()
        self._serve([node for node in self._nodes.values() if node.has_ready])

    def _is_time_over(self) -> bool:
        return self._clock.seconds() >= self._until_s

    def _assign(self, queue: PartitionQueue) -> None:
        """Give a queue to the leader of its partition."""
        if queue.state not in _MAY_BE_SENT:
            # All of it was given up meanwhile.
            return
        leader = self._client.leader_of(queue.topic, queue.partition)
        if leader is None:
            self._invalidate(queue.topic)
            queue.try_again_after(self._clock.seconds(), reason=_NO_LEADER)
            return
        if queue.needs_number and not self._producer_ids.number(queue):
            self._wait_for_producer_id(queue)
            return
        node = self._nodes.get(leader)
        if node is None:
            node = self._nodes[leader] = _Node(leader)
        node.add(queue)

    def _wait_for_producer_id(self, queue: PartitionQueue) -> None:
        is_first = not self._unnumbered
        self._unnumbered[queue] = None
        if is_first:
            self._producer_ids.load().addCallback(self._numbered).addErrback(self._fault)

    def _numbered(self, _: None) -> None:
        unnumbered, self._unnumbered = self._unnumbered, {}
        self._resume(unnumbered)

    def _resume(self, queues: Iterable[PartitionQueue]) -> None:
        for queue in queues:
            self._accumulator.ready(queue)
        self.wake()

    def _serve(self, nodes: Sequence[_Node]) -> None:
        """Send to brokers what is ready: small batches to each, and large ones while there is time."""
        for node in nodes:
            self._send_ready(node, node.of_others)
        for node in nodes:
            if self._send_ready(node, node.of_large) and self._is_time_over():
                if self._nodes.get(node.node_id) is node:
                    # Next time the others come first.
                    self._nodes[node.node_id] = self._nodes.pop(node.node_id)
                self.wake()
                break

    def _send_ready(self, node: _Node, window: _Window) -> bool:
        """:return: whether a request was made."""
        if not window.may_send:
            return False
        if not self._client.is_connected(node.node_id):
            self._connect(node)
            return False
        if self._clock.seconds() < node.not_before_s:
            # What is not sent is not published, which can be said; the broker would only let it wait.
            return False
        has_sent = False
        while window.may_send:
            batches = self._drain(node, window)
            if not batches:
                break
            self._send(node, batches, window)
            has_sent = True
            if self._is_time_over():
                self.wake()
                break
        return has_sent

    def _connect(self, node: _Node) -> None:
        if node.connecting:
            return
        node.connecting = True

        def connected(_: None) -> None:
            node.connecting = False
            if node.has_ready:
                self._until_s = self._clock.seconds() + _TURN_S
                self._serve([node])

        def failed(failure: Failure) -> None:
            node.connecting = False
            ready = node.take_ready()
            if node.in_flight == 0:
                self._nodes.pop(node.node_id, None)
            for queue in ready:
                if queue.state in _MAY_BE_SENT:
                    self._not_sent(queue, node, reason_of(failure))

        self._client.when_connected(node.node_id).addCallbacks(connected, failed).addErrback(self._fault)

    def _drain(self, node: _Node, window: _Window) -> list[_Taken]:
        """Take batches for one request: at least one, if there is one of this kind."""
        batches: list[_Taken] = []
        total = 0
        is_of_others = window is node.of_others
        ready, window.ready = window.ready, {}
        for queue in ready:
            if queue.state not in _MAY_BE_SENT:
                continue
            size = queue.next_bytes()
            if is_of_others and size > _LARGE_BYTES:
                # It has grown since.
                node.of_large.ready[queue] = None
            elif batches and (total + size > window.request_bytes or self._is_time_over()):
                window.ready[queue] = None
            elif self._client.leader_of(queue.topic, queue.partition) != node.node_id:
                self._resume((queue,))
            else:
                try:
                    data = queue.begin_attempt(self._codec)
                except Exception:  # noqa: BLE001 -- whatever aiokafka may raise, the other records go on
                    self._log.failure("Records for {topic} could not be encoded", topic=queue.topic)
                    refused, _ = queue.refuse()
                    self._go_on(queue)
                    self._accumulator.fail(refused, RecordRefused("The record cannot be encoded."))
                    continue
                total += len(data)
                batches.append((queue, data))
        return batches

    def _send(self, node: _Node, batches: list[_Taken], window: _Window) -> None:
        topics: dict[str, list[tuple[int, bytes]]] = {}
        add_records, add_bytes = self.batch_records.add, self.batch_bytes.add
        for queue, data in batches:
            add_records(queue.batch_records)
            add_bytes(len(data))
            topics.setdefault(queue.topic, []).append((queue.partition, data))
        request = ProduceRequest(
            topics=list(topics.items()),
            timeout_ms=self._replicas_ms,
            acks=-1,
            may_have_zstd=self._may_have_zstd,
        )
        self.requests += 1
        self._in_flight += 1
        if len(batches) > 1 or batches[0][0].batch_records > 1:
            self._alone = 0
        window.in_flight += 1
        answer: Deferred[ProduceAnswer] = self._client.request(
            node.node_id, request, timeout_s=self._answer_s
        )
        # If these raise, which would be a fault of ours, the Deferred itself logs it: nobody handles it.
        answer.addCallbacks(
            self._answered,
            self._failed,
            callbackArgs=(node, batches, window, self._clock.seconds()),
            errbackArgs=(node, batches, window),
        )

    # Answers to queues

    def _answered(
        self, answer: ProduceAnswer, node: _Node, batches: list[_Taken], window: _Window, sent_s: float
    ) -> None:
        window.in_flight -= 1
        now_s = self._clock.seconds()
        self.acknowledgement_s.add(now_s - sent_s)
        if answer.throttle_ms > 0:
            self.throttled_s += answer.throttle_ms / 1000
            node.not_before_s = now_s + answer.throttle_ms / 1000
        by_partition = {(each.topic, each.partition): each for each in answer.partitions}
        for queue, _ in batches:
            produced = by_partition.get((queue.topic, queue.partition))
            if queue.state in _GIVEN_UP:
                self._answered_late(queue)
            elif produced is not None and produced.error == _STORED and produced.offset >= 0:
                self._stored(queue, produced.offset)
            else:
                self._not_stored(queue, node, produced)
        self._in_flight -= 1
        if node.has_ready or self._accumulator.has_work:
            self._alone = 0
            self.wake()

    def _failed(self, failure: Failure, node: _Node, batches: list[_Taken], window: _Window) -> None:
        window.in_flight -= 1
        reason = reason_of(failure)
        sent = failure.value.sent  # type: ignore[union-attr] # a RequestFailed, as reason_of has found
        for queue, _ in batches:
            if queue.state in _GIVEN_UP:
                self._answered_late(queue)
            elif not sent:
                self._not_sent(queue, node, reason)
            elif queue.is_numbered:
                self._invalidate(queue.topic)
                queue.unresolved(self._clock.seconds(), reason=reason, leader=node.node_id)
            else:
                self._invalidate(queue.topic)
                self._lost(queue, "The broker did not say whether the record was stored.")
        self._in_flight -= 1
        if node.has_ready or self._accumulator.has_work:
            self.wake()

    def _stored(self, queue: PartitionQueue, offset: int) -> None:
        batch = queue.stored()
        if queue.state is _READY:
            self._accumulator.ready(queue)
        if self._delivery_log.failing:
            self._delivery_log.acknowledged(queue.topic, queue.partition)
        self._accumulator.succeed(batch, topic=queue.topic, partition=queue.partition, offset=offset)

    def _not_stored(self, queue: PartitionQueue, node: _Node, answer: Produced | None) -> None:
        decision = decide(
            answer,
            records=queue.batch_records,
            is_numbered=queue.is_numbered,
            is_resent=queue.state is State.RESENT,
        )
        if decision.has_stale_metadata:
            self._invalidate(queue.topic)
        now_s, action, reason = self._clock.seconds(), decision.action, decision.reason
        if action is Action.RESEND:
            queue.unresolved(now_s, reason=reason, leader=node.node_id)
        elif action is Action.GIVE_UP or answer is None:
            self._lost(queue, f"{reason.public} Whether it was stored cannot be known.")
            if decision.needs_new_id:
                self._renumber(queue)
        elif action is Action.SPLIT:
            self._split(queue, answer)
        elif action is Action.REFUSE:
            self._refuse(queue, answer)
        else:
            left = queue.try_again_after(now_s, reason=reason, leader=node.node_id)
            if action is Action.RENUMBER:
                self._renumber(queue)
            elif action is Action.STOP_NUMBERING:
                self._stop_numbering(queue)
            self._accumulator.fail(left, _TOLD)

    def _not_sent(self, queue: PartitionQueue, node: _Node, reason: FailureReason) -> None:
        """No byte has reached the leader."""
        self._invalidate(queue.topic)
        left = queue.try_again_after(self._clock.seconds(), reason=reason, leader=node.node_id)
        self._accumulator.fail(left, _TOLD)
        if reason.lasting:
            self._delivery_log.failed(queue.topic, queue.partition, reason)
            self._accumulator.fail(queue.give_up_unsent(), unavailable(reason))

    def _lost(self, queue: PartitionQueue, why: str) -> None:
        records = queue.lost()
        self._go_on(queue)
        self._accumulator.fail(records, OutcomeUnknown(why))

    def _split(self, queue: PartitionQueue, answer: Produced) -> None:
        """Find those records for which the whole batch was refused, and publish the others."""
        messages = {
            index: message for index, message in answer.record_errors if 0 <= index < queue.batch_records
        }
        if not messages:
            left = queue.split()
            self._go_on(queue)
            self._accumulator.fail(left, _TOLD)
            return
        refused, left = queue.refuse(messages)
        self._go_on(queue)
        self._accumulator.fail(left, _TOLD)
        for index, pending in zip(sorted(messages), refused, strict=True):
            self._accumulator.fail([pending], refusal(answer.error, messages[index]))

    def _refuse(self, queue: PartitionQueue, answer: Produced) -> None:
        message = answer.message
        if queue.batch_records == 1 and answer.record_errors:
            message = answer.record_errors[0][1] or message
        refused, _ = queue.refuse()
        self._go_on(queue)
        self._accumulator.fail(refused, refusal(answer.error, message))

    def _renumber(self, queue: PartitionQueue) -> None:
        self._producer_ids.retire(queue.forget_number())

    def _stop_numbering(self, queue: PartitionQueue) -> None:
        queue.forget_number(for_good=True)
        if self._accumulator.refuses_producer_ids(queue.topic):
            self._log.warn(
                "The topic {topic} is kept in a format of messages from before Kafka 0.11, which has no "
                "idempotence. A record for it whose request is not answered is not sent again, and its "
                "caller gets 504. Set message.format.version of the topic to 0.11.0 or newer to change that.",
                topic=queue.topic,
            )

    def _answered_late(self, queue: PartitionQueue) -> None:
        queue.answered_late()
        self._go_on(queue)

    def _go_on(self, queue: PartitionQueue) -> None:
        if queue.state is _READY:
            self._accumulator.ready(queue)

    # Time passes

    def _tick(self) -> None:
        self._tick_call = None
        for queue in self._accumulator.expire(reason=self._metadata.reason):
            self._delivery_log.failed(queue.topic, queue.partition, queue.reason or self._accumulator.outage)
        self._delivery_log.write()
        self._look_at_nodes()
        self._retry()
        accumulator = self._accumulator
        if accumulator.buffered_bytes or accumulator.unknown or self._delivery_log.is_waiting():
            self._tick_soon()

    def _tick_soon(self) -> None:
        # It may be there already: what happens in a tick may wake the sender.
        if self._tick_call is None and not self._stopped:
            self._tick_call = self._clock.callLater(_TICK_S, self._tick)

    def _retry(self) -> None:
        """Have those queues sent from that have waited long enough after an attempt that failed."""
        now_s = self._clock.seconds()
        for queue in self._accumulator.active:
            state = queue.state
            if state is not State.WAITING_RETRY and state is not State.UNRESOLVED:
                continue
            leader = self._client.leader_of(queue.topic, queue.partition)
            if queue.may_retry(now_s, leader=leader):
                queue.retry()
                self.retries += 1
                self._accumulator.ready(queue)
        if self._accumulator.has_work:
            self.wake()

    def _look_at_nodes(self) -> None:
        """A broker that was busy may have become free; one that cannot be reached may have been replaced."""
        for node in list(self._nodes.values()):
            if not node.has_ready:
                continue
            if node.not_before_s:
                self.wake()
            is_connected = self._client.is_connected(node.node_id)
            for queue in node.take_ready():
                if self._client.leader_of(queue.topic, queue.partition) != node.node_id:
                    self._resume((queue,))
                    continue
                node.add(queue)
                if not is_connected:
                    self._invalidate(queue.topic)

    # Learning of partitions and leaders

    def _invalidate(self, topic: str) -> None:
        self._metadata.invalidate(topic)
        self._learn_soon()

    def _learn_soon(self) -> None:
        if not self._is_learning and not self._stopped and self._metadata.is_needed():
            self._is_learning = True
            Deferred.fromCoroutine(self._learn()).addErrback(self._fault)

    async def _learn(self) -> None:
        try:
            while self._metadata.is_needed() and not self._stopped:
                await self._metadata.load()
                self._retry()
                if self._metadata.is_needed():
                    await self._learning_pause.sleep(_LEARN_AGAIN_S)
        finally:
            self._is_learning = False

    def _fault(self, failure: Failure) -> None:
        self._log.failure("A turn of the sender failed", failure=failure)


_TOLD: Final = OutcomeUnknown("The broker did not say in time whether the record was stored.")
"""For records whose callers were answered at their deadlines: nobody gets it."""
