"""Metadata: which brokers there are, and which of them leads which partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import ClassVar
from uuid import UUID

import msgspec

from sampleapp.brokers.kafka.protocol.reading import Reader
from sampleapp.brokers.kafka.protocol.request import Api, Request

__all__ = ["BrokerAddress", "ClusterMetadata", "MetadataRequest", "PartitionMetadata", "TopicMetadata"]

_OFFLINE_REPLICAS_SINCE = 5
_LEADER_EPOCH_SINCE = 7
_RIGHTS_SINCE = 8
_TOPIC_IDS_SINCE = 10
_RIGHTS_OF_CLUSTER_UNTIL = 10

_PARTITION = Struct(">hii")
# What an element takes at least, in any version: its numbers, and the lengths of its strings and arrays.
_SMALLEST_BROKER = 4 + 1 + 4 + 1
_SMALLEST_TOPIC = 2 + 1 + 1 + 1
_SMALLEST_PARTITION = _PARTITION.size + 1 + 1
_NO_TOPIC_ID = bytes(16)
_MANY = 126
"""Counts from here on take two bytes in a flexible version."""


class BrokerAddress(msgspec.Struct, frozen=True, gc=False):
    """Where a broker can be reached."""

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


class TopicMetadata(msgspec.Struct, frozen=True, gc=False):
    """A topic, or why there is none."""

    error: int
    topic: str
    partitions: tuple[PartitionMetadata, ...]
    topic_id: UUID | None = None
    """Another one for a topic that is made again under the same name; since v10 (Kafka 2.8, KIP-516)."""
    is_internal: bool = False
    """Whether it is one of Kafka's own."""


class ClusterMetadata(msgspec.Struct, frozen=True, gc=False):
    """What one broker knew of the cluster when it was asked."""

    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicMetadata, ...]
    controller_id: int
    cluster_id: str | None


class MetadataRequest(Request[ClusterMetadata], frozen=True, kw_only=True):
    """
    Ask for the brokers and the leaders. Asking can create topics; since version 4 it says whether it may.

    Kafka 0.11 speaks v4.
    """

    api: ClassVar[Api] = Api(key=3, name="Metadata", lowest=4, highest=12, flexible=9)

    topics: Sequence[str] | None
    """``None`` for all of them; none at all asks for the brokers only."""
    auto_create: bool
    """Whether a topic that is not there is created, if the broker is configured to."""

    def _parts(self, version: int) -> Iterable[bytes]:
        fields = self._fields(version)
        parts = [fields.count(None if self.topics is None else len(self.topics))]
        for topic in self.topics or ():
            if version >= _TOPIC_IDS_SINCE:
                parts.append(_NO_TOPIC_ID)
            parts += (fields.string(topic), fields.tags)
        parts.append(b"\1" if self.auto_create else b"\0")
        if version >= _RIGHTS_SINCE:
            # Nobody here wants to know what may be done with a topic, or with the cluster (KIP-430).
            parts.append(b"\0\0" if version <= _RIGHTS_OF_CLUSTER_UNTIL else b"\0")
        parts.append(fields.tags)
        return parts

    def _read(self, version: int, reader: Reader) -> ClusterMetadata:
        reader.int32()  # throttle time
        brokers = tuple(_broker(reader) for _ in range(reader.count(_SMALLEST_BROKER)))
        cluster_id = reader.nullable_string()
        controller_id = reader.int32()
        topics = tuple(_topic(version, reader) for _ in range(reader.count(_SMALLEST_TOPIC)))
        if _RIGHTS_SINCE <= version <= _RIGHTS_OF_CLUSTER_UNTIL:
            reader.int32()
        reader.tags()
        return ClusterMetadata(brokers, topics, controller_id, cluster_id)


def _broker(reader: Reader) -> BrokerAddress:
    address = BrokerAddress(reader.int32(), reader.string(), reader.int32())
    reader.nullable_string()  # rack
    reader.tags()
    return address


def _topic(version: int, reader: Reader) -> TopicMetadata:
    # Since v12 the name is null where an unknown id was asked for, which is never done here.
    error, name = reader.int16(), reader.string()
    topic_id = reader.uuid() if version >= _TOPIC_IDS_SINCE else None
    is_internal = bool(reader.int8())
    partitions = _partitions(version, reader, reader.count(_SMALLEST_PARTITION))
    if version >= _RIGHTS_SINCE:
        reader.int32()
    reader.tags()
    return TopicMetadata(error, name, partitions, topic_id, is_internal)


def _partitions(version: int, reader: Reader, count: int) -> tuple[PartitionMetadata, ...]:
    """
    Read the partitions of a topic: one after another, but most in one step, as they look like the one before.

    Field by field it takes six times as long, and a large cluster has ten thousand of them.
    """
    partitions: list[PartitionMetadata] = []
    is_compact = MetadataRequest.api.is_flexible(version)
    for _ in range(count):
        partition = _like(partitions[-1], reader) if partitions and is_compact else None
        partitions.append(_partition(version, reader) if partition is None else partition)
    return tuple(partitions)


def _like(last: PartitionMetadata, reader: Reader) -> PartitionMetadata | None:
    """
    Read a partition with as many replicas as the last one, in a flexible version.

    :return: ``None``, with nothing read, if it has others, or some are offline, or it has tagged fields.
    """
    replicas, in_sync = len(last.replicas), len(last.isr)
    # A count of up to 126 is one byte, and one more than it says; a count of tagged fields says what it is.
    layout = _layout(replicas, in_sync)
    if reader.end - reader.at < layout.size or replicas >= _MANY or in_sync >= _MANY:
        return None
    error, partition, leader, _, first, *numbers = layout.unpack_from(reader.body, reader.at)
    second, third, tags = numbers[replicas], numbers[-2], numbers[-1]
    if (first, second, third, tags) != (replicas + 1, in_sync + 1, 1, 0):
        return None
    reader.at += layout.size
    return PartitionMetadata(
        error, partition, leader, tuple(numbers[:replicas]), tuple(numbers[replicas + 1 : -2])
    )


@lru_cache(maxsize=64)
def _layout(replicas: int, in_sync: int) -> Struct:
    return Struct(f">hiiiB{replicas}iB{in_sync}iBB")


def _partition(version: int, reader: Reader) -> PartitionMetadata:
    error, partition, leader = reader.fields(_PARTITION)
    if version >= _LEADER_EPOCH_SINCE:
        reader.int32()
    replicas, isr = reader.int32s(), reader.int32s()
    if version >= _OFFLINE_REPLICAS_SINCE:
        reader.int32s()
    reader.tags()
    return PartitionMetadata(error, partition, leader, replicas, isr)
