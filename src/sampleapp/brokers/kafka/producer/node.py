"""One Kafka broker, as the sender sees it: queues that are ready for it, and requests in flight."""

from __future__ import annotations

from typing import Final, TypeAlias

from sampleapp.brokers.kafka.producer.partition_queue import Batch, PartitionQueue

__all__ = ["BatchToSend", "Node", "Window"]

BatchToSend: TypeAlias = tuple[PartitionQueue, Batch]
"""A queue, and the batch that it has begun to send."""

_LARGE_BYTES: Final = 16 * 1024
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
        """Requests with batches of up to `_LARGE_BYTES`."""
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
        (self.large if size > _LARGE_BYTES else self.small).ready[queue] = size

    def take_ready(self) -> list[PartitionQueue]:
        """Remove and return all queues that are ready."""
        ready = [*self.small.ready, *self.large.ready]
        self.small.ready = {}
        self.large.ready = {}
        return ready
