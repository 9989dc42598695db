"""Produce requests: building, sending and measuring them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from twisted.internet.defer import Deferred, fail

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.cluster_client import ClusterClient
from sampleapp.brokers.kafka.producer.node import BatchToSend
from sampleapp.brokers.kafka.protocol import ProduceRequest, ProduceResponse
from sampleapp.measures import BYTES, RECORDS, SECONDS, Distribution

__all__ = ["ProduceRequests", "Timeouts"]


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
