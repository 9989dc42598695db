"""Produce requests: those in flight to each broker; building, sending and measuring them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from twisted.internet.defer import Deferred, fail

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.cluster_client import ClusterClient
from sampleapp.brokers.kafka.producer.partition_queue import Batch, PartitionQueue
from sampleapp.brokers.kafka.protocol import ProduceRequest, ProduceResponse
from sampleapp.measures import BYTES, RECORDS, SECONDS, Distribution

BatchToSend: TypeAlias = tuple[PartitionQueue, Batch]
"""A queue, and the batch that it has begun to send."""

LARGE_BYTES: Final = 16 * 1024
"""A larger batch goes in other requests, so that neither kind delays the other."""
_REQUESTS: Final = 3
"""In flight to one broker: it handles one after the other, and the next should be there when one is done."""
_REQUEST_BYTES: Final = 1024 * 1024
_LARGE_REQUESTS: Final = 2
_LARGE_REQUEST_BYTES: Final = 256 * 1024
"""Smaller, since the broker reads all of such a request before the one behind it."""


class Window:
    """Requests of one kind, small or large batches, to one broker: their limits, and the ready queues."""

    __slots__ = ("in_flight", "ready", "request_bytes", "requests")

    def __init__(self, requests: int, request_bytes: int) -> None:
        self.requests = requests
        """Maximum requests in flight."""
        self.request_bytes = request_bytes
        """Maximum size of a request, unless a single batch is larger."""
        self.in_flight = 0
        self.ready: dict[PartitionQueue, int] = {}
        """The queues to send from, in order, with the sizes of their batches when they were added."""


class Node:
    """The queues that are ready for one broker, and its requests in flight. Only the sender changes it."""

    __slots__ = ("is_connecting", "large", "node_id", "small", "throttled_until_s")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.small = Window(_REQUESTS, _REQUEST_BYTES)
        """Requests with batches of up to `LARGE_BYTES`."""
        self.large = Window(_LARGE_REQUESTS, _LARGE_REQUEST_BYTES)
        self.throttled_until_s = 0.0
        """End of the pause that the broker asked for, in seconds of the reactor's clock."""
        self.is_connecting = False

    @property
    def in_flight(self) -> int:
        """The number of requests that the broker has not answered."""
        return self.small.in_flight + self.large.in_flight

    @property
    def has_ready(self) -> bool:
        """Check for queues that are ready."""
        return bool(self.small.ready or self.large.ready)

    def add(self, queue: PartitionQueue) -> None:
        """Add a queue that is ready, by the size of its next batch."""
        size = queue.next_bytes()
        (self.large if size > LARGE_BYTES else self.small).ready[queue] = size

    def take_ready(self) -> list[PartitionQueue]:
        """Remove and return all queues that are ready."""
        ready = [*self.small.ready, *self.large.ready]
        self.small.ready = {}
        self.large.ready = {}
        return ready


class Timeouts(Struct, frozen=True, kw_only=True):
    """The time that a Produce request may take, in seconds."""

    response_s: float
    """Until the connection is closed."""
    replicas_s: float
    """Until the leader stops waiting for its followers. Shorter than `response_s`, so that it can answer."""


class ProduceRequests:
    """Sends batches to brokers with ``acks=all``, and measures requests and batches."""

    def __init__(self, *, client: ClusterClient, codec: Codec, timeouts: Timeouts) -> None:
        """:param codec: the compression of the batches; zstd needs a newer version of the request."""
        self._client = client
        self._may_have_zstd = codec is Codec.ZSTD
        self._response_s = timeouts.response_s
        self._replicas_ms = int(timeouts.replicas_s * 1000)
        self.count = 0
        """The number of requests sent."""
        self.throttled_s = 0.0
        """The sum of the pauses that brokers asked for, in seconds."""
        self.batch_records = Distribution(RECORDS)
        """The records of each batch sent."""
        self.batch_bytes = Distribution(BYTES)
        """The size of each batch sent."""
        self.acknowledgement_s = Distribution(SECONDS)
        """The time from each request to its response, in seconds."""

    def send(self, node_id: int, batches: Sequence[BatchToSend]) -> Deferred[ProduceResponse]:
        """
        Send one request.

        :param batches: at least one, and one of each partition at most.
        :return: fires with the response, or fails. The method itself never raises.
        """
        add_records, add_bytes = self.batch_records.add, self.batch_bytes.add
        topics: dict[str, list[tuple[int, bytes]]] = {}
        self.count += 1
        try:
            for queue, batch in batches:
                data = batch.data
                add_records(len(batch.records))
                add_bytes(len(data))
                topics.setdefault(queue.topic, []).append((queue.partition, data))
            request = ProduceRequest(
                topics=list(topics.items()),
                timeout_ms=self._replicas_ms,
                acks=-1,
                may_have_zstd=self._may_have_zstd,
            )
            response: Deferred[ProduceResponse] = self._client.request(
                node_id, request, timeout_s=self._response_s
            )
        except Exception:  # noqa: BLE001 -- the batches are in flight already: the caller settles them
            return fail()
        return response
