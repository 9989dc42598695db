"""Requests to the leaders of partitions, and what their answers mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.client import Client, reason_of
from sampleapp.brokers.kafka.producer.numbering import Numbering
from sampleapp.brokers.kafka.producer.outcomes import Outcomes
from sampleapp.brokers.kafka.producer.pending import Batch
from sampleapp.brokers.kafka.producer.queue import PartitionQueue, State
from sampleapp.brokers.kafka.protocol import ProduceAnswer, ProduceRequest

__all__ = ["Sender"]

_REQUEST_BYTES: Final = 1024 * 1024
_IN_FLIGHT: Final = 3
"""Requests to one broker: it takes them one by one, and the next one should be there when it is done."""


_Taken: TypeAlias = tuple[PartitionQueue, Batch, bytes]


class _Node:
    """One broker, and the queues whose turn comes at it."""

    __slots__ = ("connecting", "in_flight", "node_id", "not_before_s", "ready")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.ready: deque[PartitionQueue] = deque()
        self.in_flight = 0
        self.not_before_s = 0.0
        """Until when the broker wants nothing more, by the reactor's clock."""
        self.connecting = False


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long a Produce request may take, in seconds."""

    answer_s: float
    """Until the connection is given up."""
    replicas_s: float
    """Until the leader gives up waiting for its followers, which it should do first."""


class Sender:
    """Sends what is ready: to each leader all its partitions at once, of each partition one batch."""

    _log = Logger()

    def __init__(
        self,
        *,
        client: Client,
        codec: Codec,
        numbering: Numbering,
        outcomes: Outcomes,
        timeouts: Timeouts,
        wake: Callable[[], None],
        clock: IReactorTime,
    ) -> None:
        """:param wake: has `flush` called soon."""
        self._client = client
        self._codec = codec
        self._numbering = numbering
        self._outcomes = outcomes
        self._timeouts = timeouts
        self._wake = wake
        self._clock = clock
        self._nodes: dict[int, _Node] = {}
        self.requests = 0
        """How many requests were made."""

    def ready(self, queue: PartitionQueue) -> None:
        """A queue that is not in flight has something to send."""
        leader = self._client.leader_of(queue.topic, queue.partition)
        if leader is None:
            self._outcomes.leaderless(queue)
            return
        if queue.sequence is None and not self._numbering.number(queue):
            queue.state = State.PARKED
            return
        queue.state = State.READY
        queue.tried = leader
        node = self._nodes.get(leader)
        if node is None:
            node = self._nodes[leader] = _Node(leader)
        node.ready.append(queue)
        self._wake()

    def look_again(self) -> None:
        """
        See to what waits for its broker, now and then.

        A broker that was busy may have become free; one that cannot be reached may have been replaced.
        """
        for node in list(self._nodes.values()):
            if node.ready and node.not_before_s:
                self._wake()
            if not node.ready:
                continue
            is_connected = self._client.is_connected(node.node_id)
            queues, node.ready = node.ready, deque()
            for queue in queues:
                if self._client.leader_of(queue.topic, queue.partition) == node.node_id:
                    node.ready.append(queue)
                    if not is_connected:
                        self._outcomes.waits_for_connection(queue)
                else:
                    queue.state = State.IDLE
                    self.ready(queue)

    def flush(self) -> None:
        """Send what is ready, as far as there may be more in flight."""
        for node in list(self._nodes.values()):
            if node.ready:
                self._serve(node)

    def _serve(self, node: _Node) -> None:
        if not self._client.is_connected(node.node_id):
            self._connect(node)
            return
        if self._clock.seconds() < node.not_before_s:
            # What is not sent is not published, which can be said; the broker would only let it wait.
            return
        while node.ready and node.in_flight < _IN_FLIGHT:
            taken = self._take(node)
            if taken:
                self._send(node, taken)

    def _connect(self, node: _Node) -> None:
        """Only what is written to a connection counts as sent; so there has to be one first."""
        if node.connecting:
            return
        node.connecting = True

        def connected(_: None) -> None:
            node.connecting = False
            if node.ready:
                self._serve(node)

        def failed(failure: Failure) -> None:
            node.connecting = False
            reason = reason_of(failure)
            queues, node.ready = node.ready, deque()
            if node.in_flight == 0:
                self._nodes.pop(node.node_id, None)
            for queue in queues:
                self._outcomes.not_sent(queue, reason)

        self._client.when_connected(node.node_id).addCallbacks(connected, failed)

    def _take(self, node: _Node) -> list[_Taken]:
        taken: list[_Taken] = []
        total = 0
        while node.ready:
            queue = node.ready.popleft()
            if not queue:
                # All of it was given up meanwhile.
                queue.state = State.IDLE
                continue
            if self._client.leader_of(queue.topic, queue.partition) != node.node_id:
                queue.state = State.IDLE
                self.ready(queue)
                continue
            try:
                batch, data = queue.encoded(self._codec)
            except Exception:  # noqa: BLE001 -- whatever aiokafka may raise, the other records go on
                self._log.failure("Records for {topic} could not be encoded", topic=queue.topic)
                self._outcomes.not_encoded(queue)
                continue
            if taken and total + len(data) > _REQUEST_BYTES:
                node.ready.appendleft(queue)
                break
            total += len(data)
            queue.state = State.IN_FLIGHT
            taken.append((queue, batch, data))
        return taken

    def _send(self, node: _Node, taken: list[_Taken]) -> None:
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for queue, _, data in taken:
            topics.setdefault(queue.topic, []).append((queue.partition, data))
        request = ProduceRequest(
            topics=list(topics.items()), timeout_ms=int(self._timeouts.replicas_s * 1000), acks=-1
        )
        self.requests += 1
        node.in_flight += 1
        answer: Deferred[ProduceAnswer] = self._client.request(
            node.node_id, request, timeout_s=self._timeouts.answer_s
        )
        answer.addCallbacks(
            self._answered, self._failed, callbackArgs=(node, taken), errbackArgs=(node, taken)
        ).addErrback(lambda failure: self._log.failure("Handling an answer failed", failure=failure))

    def _answered(self, answer: ProduceAnswer, node: _Node, taken: list[_Taken]) -> None:
        node.in_flight -= 1
        if answer.throttle_ms > 0:
            node.not_before_s = self._clock.seconds() + answer.throttle_ms / 1000
        by_partition = {(each.topic, each.partition): each for each in answer.partitions}
        for queue, batch, _ in taken:
            self._outcomes.answered(queue, batch, by_partition.get((queue.topic, queue.partition)))
        if node.ready:
            self._wake()

    def _failed(self, failure: Failure, node: _Node, taken: list[_Taken]) -> None:
        node.in_flight -= 1
        reason = reason_of(failure)
        sent = failure.value.sent  # type: ignore[union-attr] # a RequestFailed, as reason_of has found
        for queue, _, _ in taken:
            if sent:
                self._outcomes.unanswered(queue, reason)
            else:
                self._outcomes.not_sent(queue, reason)
        if node.ready:
            self._wake()
