"""Metadata: the brokers of a cluster, and the topics with the leaders of their partitions."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import ClassVar, TypeVar
from uuid import UUID

import msgspec

from sampleapp.brokers.kafka.protocol.codec import Api, Decoder, FlexibleDecoder, ProtocolError, Request

_OFFLINE_REPLICAS_SINCE = 5
_LEADER_EPOCH_SINCE = 7
_RIGHTS_SINCE = 8
_TOPIC_IDS_SINCE = 10
_RIGHTS_OF_CLUSTER_UNTIL = 10

_PARTITION = Struct(">hii")
# The smallest size of an element in any version: its numbers, and the lengths of its strings and arrays.
_SMALLEST_BROKER = 4 + 1 + 4 + 1
_SMALLEST_TOPIC = 2 + 1 + 1 + 1
_SMALLEST_PARTITION = _PARTITION.size + 1 + 1
_NO_TOPIC_ID = bytes(16)
_AT_ONCE = 500
"""Topics and partitions that are decoded between two pauses: a millisecond."""
_MANY = 126
"""Counts from here on take two bytes in a flexible version."""


class BrokerAddress(msgspec.Struct, frozen=True, gc=False):
    """The address of a broker."""

    node_id: int
    host: str
    port: int


class PartitionMetadata(msgspec.Struct, frozen=True, gc=False):
    """The leader and the replicas of a partition."""

    error: int
    partition: int
    leader: int
    """A node id; -1 while there is none."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """The replicas that are in sync."""
    leader_epoch: int = -1
    """Grows with each election of a leader (KIP-320); -1 before v7 (Kafka 2.1)."""


class TopicMetadata(msgspec.Struct, frozen=True, gc=False):
    """A topic with its partitions, or the error for its name."""

    error: int
    topic: str
    partitions: tuple[PartitionMetadata, ...]
    topic_id: UUID | None = None
    """Changes when a topic is deleted and made again; since v10 (Kafka 2.8, KIP-516)."""
    is_internal: bool = False
    """True for a topic of Kafka itself."""


class ClusterMetadata(msgspec.Struct, frozen=True, gc=False):
    """The response of one broker about the cluster."""

    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicMetadata, ...]
    controller_id: int
    cluster_id: str | None


R_co = TypeVar("R_co", covariant=True)


class _Metadata(Request[R_co], frozen=True, kw_only=True):
    """
    Ask for the brokers and the leaders. This can create topics, unless ``auto_create`` is false (since v4).

    Kafka 0.11 supports v4.
    """

    api: ClassVar[Api] = Api(key=3, name="Metadata", lowest=4, highest=12, flexible=9)

    topics: Sequence[str] | None
    """``None`` for all topics; empty for the brokers only."""
    auto_create: bool
    """True to create missing topics, if the broker is configured to."""

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        parts = [fields.count(None if self.topics is None else len(self.topics))]
        for topic in self.topics or ():
            if version >= _TOPIC_IDS_SINCE:
                parts.append(_NO_TOPIC_ID)
            parts += (fields.string(topic), fields.tags)
        parts.append(b"\1" if self.auto_create else b"\0")
        if version >= _RIGHTS_SINCE:
            # The operations allowed on topics and the cluster (KIP-430) are not requested.
            parts.append(b"\0\0" if version <= _RIGHTS_OF_CLUSTER_UNTIL else b"\0")
        parts.append(fields.tags)
        return parts


class MetadataRequest(_Metadata[ClusterMetadata], frozen=True, kw_only=True):
    """Asks for the brokers and the leaders, and decodes the response at once."""

    def _read(self, version: int, reader: Decoder) -> ClusterMetadata:
        brokers, controller_id, cluster_id = _cluster(reader)
        topics = tuple(_topic(version, reader) for _ in range(reader.count(_SMALLEST_TOPIC)))
        _end(version, reader)
        return ClusterMetadata(brokers, topics, controller_id, cluster_id)


class TopicsRequest(_Metadata[Iterator["TopicMetadata | None"]], frozen=True, kw_only=True):
    """
    Asks for topics, and decodes the response while it is iterated over.

    The response of a large cluster takes tens of milliseconds. The iterator yields ``None`` after each
    millisecond of work, for a pause.
    """

    def decode(self, version: int, body: bytes | memoryview) -> Iterator[TopicMetadata | None]:
        """See `Request.decode`. The iterator raises the `ProtocolError`."""
        self._check(version)
        return self._decode(
            version, FlexibleDecoder(body) if self.api.is_flexible(version) else Decoder(body)
        )

    def _decode(self, version: int, reader: Decoder) -> Iterator[TopicMetadata | None]:
        try:
            reader.tags()
            _cluster(reader)
            left = _AT_ONCE
            for _ in range(reader.count(_SMALLEST_TOPIC)):
                partitions: list[PartitionMetadata] = []
                error, name, topic_id, is_internal = _topic_head(version, reader)
                count = reader.count(_SMALLEST_PARTITION)
                while len(partitions) + left <= count:
                    _read_partitions(version, reader, partitions, len(partitions) + left)
                    left = _AT_ONCE
                    yield None
                left -= 1 + count - len(partitions)
                _read_partitions(version, reader, partitions, count)
                _topic_end(version, reader)
                yield TopicMetadata(error, name, tuple(partitions), topic_id, is_internal)
                if left <= 0:
                    left = _AT_ONCE
                    yield None
            _end(version, reader)
            reader.finish()
        except (struct.error, UnicodeDecodeError, ProtocolError) as error:
            raise ProtocolError(f"The answer to {self.api.name} v{version} is invalid: {error}") from error


def _cluster(reader: Decoder) -> tuple[tuple[BrokerAddress, ...], int, str | None]:
    reader.int32()  # throttle time
    brokers = tuple(_broker(reader) for _ in range(reader.count(_SMALLEST_BROKER)))
    cluster_id = reader.nullable_string()
    return brokers, reader.int32(), cluster_id


def _end(version: int, reader: Decoder) -> None:
    if _RIGHTS_SINCE <= version <= _RIGHTS_OF_CLUSTER_UNTIL:
        reader.int32()
    reader.tags()


def _broker(reader: Decoder) -> BrokerAddress:
    address = BrokerAddress(reader.int32(), reader.string(), reader.int32())
    reader.nullable_string()  # rack
    reader.tags()
    return address


def _topic(version: int, reader: Decoder) -> TopicMetadata:
    error, name, topic_id, is_internal = _topic_head(version, reader)
    partitions: list[PartitionMetadata] = []
    _read_partitions(version, reader, partitions, reader.count(_SMALLEST_PARTITION))
    _topic_end(version, reader)
    return TopicMetadata(error, name, tuple(partitions), topic_id, is_internal)


def _topic_head(version: int, reader: Decoder) -> tuple[int, str, UUID | None, bool]:
    # Since v12 the name is null for an unknown id; ids are never requested here.
    error, name = reader.int16(), reader.string()
    topic_id = reader.uuid() if version >= _TOPIC_IDS_SINCE else None
    return error, name, topic_id, bool(reader.int8())


def _topic_end(version: int, reader: Decoder) -> None:
    if version >= _RIGHTS_SINCE:
        reader.int32()
    reader.tags()


def _read_partitions(version: int, reader: Decoder, partitions: list[PartitionMetadata], count: int) -> None:
    """
    Decode partitions of a topic until there are ``count``.

    Most are decoded in one step, with the layout of the partition before. Field by field, the 10,000
    partitions of a large cluster take 100 ms instead of 15 ms.
    """
    is_compact = MetadataRequest.api.is_flexible(version)
    while len(partitions) < count:
        partition = _like(partitions[-1], reader) if partitions and is_compact else None
        partitions.append(_partition(version, reader) if partition is None else partition)


def _like(last: PartitionMetadata, reader: Decoder) -> PartitionMetadata | None:
    """
    Decode a partition with as many replicas as the last one, in a flexible version.

    :return: ``None``, without moving on, if it has another number, offline replicas, or tagged fields.
    """
    replicas, in_sync = len(last.replicas), len(last.isr)
    # A count of up to 126 is one byte with the count plus 1; that of tagged fields is the count itself.
    layout = _layout(replicas, in_sync)
    if reader.end - reader.at < layout.size or replicas >= _MANY or in_sync >= _MANY:
        return None
    error, partition, leader, epoch, first, *numbers = layout.unpack_from(reader.body, reader.at)
    second, third, tags = numbers[replicas], numbers[-2], numbers[-1]
    if (first, second, third, tags) != (replicas + 1, in_sync + 1, 1, 0):
        return None
    reader.at += layout.size
    return PartitionMetadata(
        error, partition, leader, tuple(numbers[:replicas]), tuple(numbers[replicas + 1 : -2]), epoch
    )


@lru_cache(maxsize=64)
def _layout(replicas: int, in_sync: int) -> Struct:
    return Struct(f">hiiiB{replicas}iB{in_sync}iBB")


def _partition(version: int, reader: Decoder) -> PartitionMetadata:
    error, partition, leader = reader.fields(_PARTITION)
    epoch = reader.int32() if version >= _LEADER_EPOCH_SINCE else -1
    replicas, isr = reader.int32s(), reader.int32s()
    if version >= _OFFLINE_REPLICAS_SINCE:
        reader.int32s()
    reader.tags()
    return PartitionMetadata(error, partition, leader, replicas, isr, epoch)
