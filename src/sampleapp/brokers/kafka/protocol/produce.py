"""Produce: appends batches of records to partitions; and the producer id to do so once (KIP-98)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.codec import INT32, NULL_STRING, Api, Decoder, Request, string

_IDENTITY = Struct(">ihqh")
# As Java's producer does: without transactions, the transaction timeout is ignored.
_NO_TIMEOUT = INT32.pack(0x7FFFFFFF)


class ProducerIdentity(msgspec.Struct, frozen=True, gc=False):
    """The identity of a producer, for every broker of the cluster."""

    error: int
    producer_id: int
    epoch: int


class InitProducerIdRequest(Request[ProducerIdentity], frozen=True, kw_only=True):
    """Ask any broker for a new producer id, for idempotence without transactions."""

    api: ClassVar[Api] = Api(key=22, name="InitProducerId", lowest=0, highest=1)

    def _parts(self, version: int) -> Iterable[bytes]:  # noqa: ARG002 - the same in both
        return (NULL_STRING, _NO_TIMEOUT)  # no transactional id

    def _read(self, version: int, reader: Decoder) -> ProducerIdentity:  # noqa: ARG002 - the same in both
        _, error, producer_id, epoch = reader.fields(_IDENTITY)
        return ProducerIdentity(error, producer_id, epoch)


_LOG_START_OFFSET_SINCE = 5
_RECORD_ERRORS_SINCE = 8
# In older versions the broker waits before it answers (KIP-219).
_THROTTLES_AFTERWARDS_SINCE = 6

_ZSTD_SINCE = 7

_ACKS_AND_TIMEOUT = Struct(">hi")
_PARTITION_AND_LENGTH = Struct(">ii")
_APPENDED = Struct(">ihqq")
_APPENDED_WITH_START = Struct(">ihqqq")
_APPENDED_WITHOUT_ERRORS = Struct(">ihqqqih")
_NO_ERRORS = (0, -1)
"""The end of an element in v8: an empty array and a null string."""
# The smallest size of an element: its numbers, and the lengths of its strings and arrays.
_SMALLEST_TOPIC = 2 + 4
_SMALLEST_RECORD_ERROR = 4 + 2


class Produced(msgspec.Struct, frozen=True, gc=False):
    """The result of the batch for one partition."""

    topic: str
    partition: int
    error: int
    offset: int
    """The offset of the first record of the batch; -1 if there was an error."""
    timestamp_ms: int = -1
    """The broker's time, now that of all records of the batch; -1 if they keep their own."""
    log_start_offset: int = -1
    """The first offset that the partition still has; -1 if the version does not say (before v5)."""
    record_errors: tuple[tuple[int, str | None], ...] = ()
    """
    The records that caused a rejection, by index in the batch, each with the reason (since v8, KIP-467).
    """
    message: str | None = None
    """The reason for a rejection of the batch (since v8)."""


class ProduceResponse(msgspec.Struct, frozen=True, gc=False):
    """The results of all batches of a request."""

    partitions: list[Produced]
    throttle_ms: int = 0
    """The time to wait before the next request, because of a quota (KIP-219)."""


class ProduceRequest(Request[ProduceResponse], frozen=True, kw_only=True):
    """
    Append batches, one for each partition. Idempotence is a property of the batch, not of the request.

    Kafka 0.11 supports v3; batches compressed with zstd need v7 (KIP-110).
    """

    api: ClassVar[Api] = Api(key=0, name="Produce", lowest=3, highest=8)

    topics: Sequence[tuple[str, Sequence[tuple[int, bytes]]]]
    """Topics, each with partitions and the result of `encode_batch`."""
    timeout_ms: int
    """The time that the leader may wait for the other replicas."""
    acks: int = -1
    """
    Which replicas must have the batch: all in-sync replicas (-1), the leader (1), none (0: no response).
    """
    may_have_zstd: bool = False
    """True if a batch may be compressed with zstd."""

    def unsupported_reason(self, version: int) -> str | None:
        """See `Request.unsupported_reason`."""
        if self.may_have_zstd and version < _ZSTD_SINCE:
            return "The broker does not support compression with zstd, which needs Kafka 2.1 or newer."
        return None

    def decode(self, version: int, body: bytes | memoryview) -> ProduceResponse:
        """See `Request.decode`."""
        if version >= _RECORD_ERRORS_SINCE and len(self.topics) == 1:
            response = _read_one_topic(self.topics[0][0], body)
            if response is not None:
                return response
        return super().decode(version, body)

    def _parts(self, version: int) -> Iterable[bytes]:  # noqa: ARG002 - the same in all of them
        head = _ACKS_AND_TIMEOUT.pack(self.acks, self.timeout_ms)
        parts = [NULL_STRING, head, INT32.pack(len(self.topics))]  # no transactional id
        for topic, partitions in self.topics:
            parts += (string(topic), INT32.pack(len(partitions)))
            for partition, batch in partitions:
                parts += (_PARTITION_AND_LENGTH.pack(partition, len(batch)), batch)
        return parts

    def _read(self, version: int, reader: Decoder) -> ProduceResponse:
        partitions: list[Produced] = []
        start = -1
        for _ in range(reader.count(_SMALLEST_TOPIC)):
            topic = reader.string()
            for _ in range(reader.count(_APPENDED.size)):
                if version >= _LOG_START_OFFSET_SINCE:
                    partition, error, offset, timestamp_ms, start = reader.fields(_APPENDED_WITH_START)
                else:
                    partition, error, offset, timestamp_ms = reader.fields(_APPENDED)
                errors, message = _rejection(reader) if version >= _RECORD_ERRORS_SINCE else ((), None)
                partitions.append(
                    Produced(topic, partition, error, offset, timestamp_ms, start, errors, message)
                )
        throttle_ms = reader.int32()
        return ProduceResponse(partitions, throttle_ms if version >= _THROTTLES_AFTERWARDS_SINCE else 0)


def _read_one_topic(topic: str, body: bytes | memoryview) -> ProduceResponse | None:
    """
    Decode the usual response, about one topic and without errors of records, in two steps.

    :return: ``None`` if the response is about other topics, or has errors of records.
    """
    head = INT32.pack(1) + string(topic)
    end = len(body) - INT32.size
    count, rest = divmod(end - len(head) - INT32.size, _APPENDED_WITHOUT_ERRORS.size)
    head += INT32.pack(count)
    if rest or count < 1 or body[: len(head)] != head:
        return None
    partitions: list[Produced] = []
    for each in _APPENDED_WITHOUT_ERRORS.iter_unpack(body[len(head) : end]):
        if each[5:] != _NO_ERRORS:
            return None
        partitions.append(Produced(topic, *each[:5]))
    return ProduceResponse(partitions, *INT32.unpack_from(body, end))


def _rejection(reader: Decoder) -> tuple[tuple[tuple[int, str | None], ...], str | None]:
    count = reader.count(_SMALLEST_RECORD_ERROR)
    errors = tuple((reader.int32(), reader.nullable_string()) for _ in range(count)) if count else ()
    return errors, reader.nullable_string()
