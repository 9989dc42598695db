"""
Sends batches: from queues that are ready to Produce requests.

The sender works in slices, one for each turn of the reactor. In each slice it takes the queues that are
ready, assigns them to the leaders of their partitions, and sends one request to each leader, with one batch
of each partition. Large batches have requests of their own, after the others, so that a single record does
not wait for thousands. `response_handler` settles the responses. Every `_TICK_S`, the sender also looks for
deadlines that have passed and for retries that are due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.clock_check import ClockCheck
from sampleapp.brokers.kafka.cluster_client import ClusterClient, RequestFailed, request_failed
from sampleapp.brokers.kafka.connections.diagnostics import FailureReason
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.idempotence import ProducerIds
from sampleapp.brokers.kafka.producer.partition_queue import MAY_BE_SENT, PartitionQueue, QueueState
from sampleapp.brokers.kafka.producer.produce_requests import (
    LARGE_BYTES,
    BatchToSend,
    Node,
    ProduceRequests,
    Window,
)
from sampleapp.brokers.kafka.producer.response_handler import DeliveryLog, ResponseHandler, Responses
from sampleapp.brokers.kafka.producer.topic_metadata import TopicMetadata
from sampleapp.brokers.kafka.protocol import ProduceResponse

_SLICE_S: Final = 0.0005
"""Maximum duration of a slice, in seconds, except for one large batch. The rest waits for the next slice."""
_TICK_S: Final = 0.1
"""The time between two checks of deadlines and retries, in seconds."""
_LONE_RECORDS: Final = 10
"""After this many records in a row that had no other in flight, there seems to be a single caller."""
_NO_LEADER: Final = FailureReason(
    sentence="There is no leader.",
    public="The topic's partition has no leader at the moment.",
    lasting=False,
)


class Sender:
    """Sends to each leader one request with one batch of each of its partitions."""

    _log = Logger()

    def __init__(
        self,
        *,
        client: ClusterClient,
        accumulator: Accumulator,
        producer_ids: ProducerIds,
        metadata: TopicMetadata,
        requests: ProduceRequests,
        codec: Codec,
        clock_check: ClockCheck,
        clock: IReactorTime,
    ) -> None:
        """:param client: for this sender alone."""
        self._client = client
        self._accumulator = accumulator
        self._producer_ids = producer_ids
        self._metadata = metadata
        self._requests = requests
        self._codec = codec
        self._clock = clock
        self._nodes: dict[int, Node] = {}
        self._without_producer_id: dict[PartitionQueue, None] = {}
        """Queues that are ready, and wait for a producer id."""
        self._delivery_log = DeliveryLog(clock=clock)
        self._responses = ResponseHandler(
            accumulator=accumulator,
            producer_ids=producer_ids,
            metadata=metadata,
            delivery_log=self._delivery_log,
            clock_check=clock_check,
            clock=clock,
        )
        self._slice_call: IDelayedCall | None = None
        self._slice_ends_s = 0.0
        """The end of this slice, in seconds of the reactor's clock."""
        self._tick_call: IDelayedCall | None = None
        self._stopped = False
        self._in_flight = 0
        """
        The number of requests whose answers are not settled completely.

        `Node.in_flight` goes down before that: a record published while a response is settled is not alone.
        """
        self._lone_records = 0
        """The number of records in a row that were published while nothing else was in flight."""
        self.is_awake = False
        """``True`` while the next slice is scheduled."""
        self.retries = 0
        """The number of batches sent again, or to be sent again, because an attempt had failed."""

    def send_or_wake(self) -> None:
        """
        Send the record that was just published, now or in the next slice.

        It is sent now if there seems to be a single caller, who waits for the response before publishing the
        next record. Otherwise it waits for the records that arrive in the same turn of the reactor.
        """
        if self._in_flight:
            self._lone_records = 0
        elif self._lone_records < _LONE_RECORDS:
            self._lone_records += 1
        elif not self._stopped:
            self._schedule_tick()
            self._run_slice()
            return
        self.wake()

    def wake(self) -> None:
        """Schedule a slice for the next turn of the reactor. Records that arrive before it share requests."""
        if self.is_awake or self._stopped:
            return
        self.is_awake = True
        self._slice_call = self._clock.callLater(0, self._run_slice)
        if self._tick_call is None:
            self._schedule_tick()

    def stop(self) -> None:
        """Cancel everything that is scheduled."""
        self._stopped = True
        self._delivery_log.write(at_once=True)
        for call in (self._slice_call, self._tick_call):
            if call is not None and call.active():
                call.cancel()

    def refresh(self) -> None:
        """Load the partitions and leaders of all topics in use again."""
        self._metadata.refresh()
        self._delivery_log.forget(set(self._accumulator.topics))

    def retry(self) -> None:
        """Send from queues whose back-off after a failed attempt is over, or that have a new leader."""
        self._responses.for_each(
            self._accumulator.active, partial(self._retry_queue, now_s=self._clock.seconds())
        )
        if self._accumulator.has_work:
            self.wake()
        self._check_nodes()

    # A slice: from queues to requests

    def _run_slice(self) -> None:
        self.is_awake = False
        self._slice_ends_s = self._clock.seconds() + _SLICE_S
        self._responses.for_each(self._accumulator.drain(), self._assign)
        if self._accumulator.has_new_topic:
            self._accumulator.has_new_topic = False
            self._metadata.load_now()
        self._send_ready(list(self._nodes.values()))

    def _is_slice_over(self) -> bool:
        return self._clock.seconds() >= self._slice_ends_s

    def _assign(self, queue: PartitionQueue) -> None:
        """Assign a queue to the leader of its partition."""
        if queue.state not in MAY_BE_SENT:
            # All of its records have been given up since it became ready.
            return
        leader = self._client.leader_of(queue.topic, queue.partition)
        if leader is None:
            self._metadata.invalidate(queue.topic)
            queue.try_again_after(self._clock.seconds(), reason=_NO_LEADER)
            return
        if queue.needs_producer_id and not self._producer_ids.assign_to(queue):
            self._wait_for_producer_id(queue)
            return
        node = self._nodes.get(leader)
        if node is None:
            node = self._nodes[leader] = Node(leader)
        node.add(queue)

    def _wait_for_producer_id(self, queue: PartitionQueue) -> None:
        is_first = not self._without_producer_id
        self._without_producer_id[queue] = None
        if is_first:
            self._producer_ids.load().addCallback(self._producer_id_loaded).addErrback(self._log_fault)

    def _producer_id_loaded(self, _: None) -> None:
        queues, self._without_producer_id = self._without_producer_id, {}
        self._assign_again(queues)

    def _assign_again(self, queues: Iterable[PartitionQueue]) -> None:
        for queue in queues:
            self._accumulator.mark_ready(queue)
        self.wake()

    def _send_ready(self, nodes: Sequence[Node]) -> None:
        """Send from ready queues: small batches to each broker, then large ones until the slice is over."""
        for node in nodes:
            if node.small.ready:
                self._send_from(node, node.small)
        for node in nodes:
            if node.large.ready and self._send_from(node, node.large) and self._is_slice_over():
                if self._nodes.get(node.node_id) is node:
                    # Behind the other brokers in the next slice.
                    self._nodes[node.node_id] = self._nodes.pop(node.node_id)
                self.wake()
                break

    def _send_from(self, node: Node, window: Window) -> bool:
        """:return: ``True`` if a request was sent."""
        if window.in_flight >= window.requests:
            return False
        try:
            is_connected = self._client.is_connected(node.node_id)
        except Exception:  # noqa: BLE001 -- any fault; the other brokers are not affected
            self._log.failure("Sending to broker {node_id} failed", node_id=node.node_id)
            self._responses.for_each(node.take_ready(), self._responses.recover)
            return False
        if not is_connected:
            self._connect(node)
            return False
        if self._clock.seconds() < node.throttled_until_s:
            # The broker would only delay the request. A record that is not sent is certainly not published,
            # which its caller can be told.
            return False
        has_sent = False
        while window.ready and window.in_flight < window.requests:
            if has_sent and self._is_slice_over():
                self.wake()
                break
            batches = self._take_batches(node, window)
            if not batches:
                break
            self._send(node, batches, window)
            has_sent = True
        return has_sent

    def _connect(self, node: Node) -> None:
        if node.is_connecting:
            return
        node.is_connecting = True

        def connected(_: None) -> None:
            node.is_connecting = False
            # Their batches may have grown, and other brokers may lead them.
            self._responses.for_each(node.take_ready(), self._assign)
            self._slice_ends_s = self._clock.seconds() + _SLICE_S
            self._send_ready(list(self._nodes.values()))

        def failed(failure: Failure) -> None:
            node.is_connecting = False
            ready = node.take_ready()
            if node.in_flight == 0:
                self._nodes.pop(node.node_id, None)
            waiting = [queue for queue in ready if queue.state in MAY_BE_SENT]
            reason = request_failed(failure).reason
            self._responses.for_each(
                waiting, partial(self._responses.not_sent, node_id=node.node_id, reason=reason)
            )

        connecting: Deferred[None] = maybeDeferred(self._client.when_connected, node.node_id)
        connecting.addCallbacks(connected, failed).addErrback(self._log_fault)

    def _take_batches(self, node: Node, window: Window) -> list[BatchToSend]:
        """Begin the attempts of one request: at least one, if a queue is ready."""
        batches: list[BatchToSend] = []
        total = 0
        ready, window.ready = window.ready, {}
        for queue, size_before in ready.items():
            if queue.state not in MAY_BE_SENT:
                # All of its records have been given up since it became ready.
                continue
            # It may have grown since the queue became ready.
            size = queue.next_bytes() if len(ready) > 1 else size_before
            if size > LARGE_BYTES and window is node.small:
                node.large.ready[queue] = size
                continue
            if batches and (total + size > window.request_bytes or self._is_slice_over()):
                window.ready[queue] = size
                continue
            try:
                batch = queue.begin_attempt(self._codec)
            except Exception:  # noqa: BLE001 -- anything that aiokafka may raise; other queues are not affected
                self._log.failure("Records for {topic} could not be encoded", topic=queue.topic)
                self._responses.not_encoded(queue)
                continue
            total += len(batch.data)
            batches.append((queue, batch))
        return batches

    def _send(self, node: Node, batches: list[BatchToSend], window: Window) -> None:
        self._in_flight += 1
        if len(batches) > 1 or len(batches[0][1].records) > 1:
            self._lone_records = 0
        window.in_flight += 1
        self._requests.send(node.node_id, batches).addBoth(
            self._responded, node, batches, window, self._clock.seconds()
        )

    # Answers

    def _responded(
        self,
        response: ProduceResponse | Failure,
        node: Node,
        batches: list[BatchToSend],
        window: Window,
        sent_s: float,
    ) -> None:
        responses: Responses | RequestFailed
        try:
            if isinstance(response, Failure):
                responses = request_failed(response)
            else:
                now_s = self._clock.seconds()
                self._requests.acknowledgement_s.add(now_s - sent_s)
                if response.throttle_ms > 0:
                    self._requests.throttled_s += response.throttle_ms / 1000
                    node.throttled_until_s = now_s + response.throttle_ms / 1000
                responses = {(each.topic, each.partition): each for each in response.partitions}
        except Exception:  # noqa: BLE001 -- whatever arrived, it is not a response
            responses = request_failed(Failure())
        window.in_flight -= 1
        self._responses.settle(batches, node.node_id, responses)
        self._in_flight -= 1
        if node.has_ready:
            # Before the queues that became ready since: these have waited.
            self._responses.for_each(node.take_ready(), self._assign)
            self._lone_records = 0
            self.wake()
        elif self._accumulator.has_work:
            self._lone_records = 0
            self.wake()

    # Ticks

    def _tick(self) -> None:
        self._tick_call = None
        accumulator = self._accumulator
        for step in (self._expire, self._delivery_log.write, self.retry):
            try:
                step()
            except Exception:  # noqa: BLE001 -- any fault; the other steps go on
                self._log.failure("A step of the sender failed")
            if accumulator.is_expiring:
                self._tick_at_once()
                return
        if accumulator.buffered_bytes or accumulator.unknown or self._delivery_log.is_waiting():
            self._schedule_tick()

    def _tick_at_once(self) -> None:
        self._schedule_tick()
        if self._tick_call is not None:
            self._tick_call.reset(0)

    def _schedule_tick(self) -> None:
        # It may be scheduled already: a step of the tick may have woken the sender.
        if self._tick_call is None and not self._stopped:
            self._tick_call = self._clock.callLater(_TICK_S, self._tick)

    def _expire(self) -> None:
        for queue in self._accumulator.expire(reason=self._metadata.reason):
            self._delivery_log.failed(queue.topic, queue.partition, queue.reason or self._accumulator.outage)

    def _retry_queue(self, queue: PartitionQueue, *, now_s: float) -> None:
        state = queue.state
        if state is not QueueState.WAITING_RETRY and state is not QueueState.UNRESOLVED:
            return
        leader = self._client.leader_of(queue.topic, queue.partition)
        if queue.may_retry(now_s, leader=leader):
            queue.retry()
            self.retries += 1
            self._accumulator.mark_ready(queue)

    def _check_nodes(self) -> None:
        """Assign queues that wait for a broker again: it may accept requests again, or not be the leader."""
        for node in list(self._nodes.values()):
            if node.has_ready:
                ready = node.take_ready()
                if node.is_connecting:
                    for queue in ready:
                        self._metadata.invalidate(queue.topic)
                self._responses.for_each(ready, self._assign)
                self.wake()

    def _log_fault(self, failure: Failure) -> None:
        self._log.failure("A slice of the sender failed", failure=failure)
