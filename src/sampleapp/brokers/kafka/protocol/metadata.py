"""Metadata: which brokers there are, and which of them leads which partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import ClassVar

import msgspec

from sampleapp.brokers.kafka.protocol.reading import Reader
from sampleapp.brokers.kafka.protocol.request import Api, Request
from sampleapp.brokers.kafka.protocol.writing import INT32, string

__all__ = ["BrokerAddress", "ClusterMetadata", "MetadataRequest", "PartitionMetadata", "TopicMetadata"]

_PARTITION = Struct(">hii")
# What an element takes at least: its numbers, and the lengths of its strings and arrays.
_SMALLEST_BROKER = 4 + 2 + 4 + 2
_SMALLEST_TOPIC = 2 + 2 + 1 + 4
_SMALLEST_PARTITION = _PARTITION.size + 4 + 4


class BrokerAddress(msgspec.Struct, frozen=True, gc=False):
    """Where a broker can be reached."""

    node_id: int
    host: str
    port: int


class PartitionMetadata(msgspec.Struct, frozen=True, gc=False):
    """Who has a partition."""

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


class ClusterMetadata(msgspec.Struct, frozen=True, gc=False):
    """What one broker knew of the cluster when it was asked."""

    brokers: tuple[BrokerAddress, ...]
    topics: tuple[TopicMetadata, ...]
    controller_id: int
    cluster_id: str | None


class MetadataRequest(Request[ClusterMetadata], frozen=True, kw_only=True):
    """Who leads what? Asking may create topics, so it says whether it is meant to (KIP-204's version 4)."""

    api: ClassVar[Api] = Api(key=3, name="Metadata", lowest=4, highest=4)

    topics: Sequence[str] | None
    """``None`` for all of them; none at all asks for the brokers only."""
    auto_create: bool
    """Whether a topic that is not there is created, if the broker is configured to."""

    def _parts(self, version: int) -> Iterable[bytes]:  # noqa: ARG002 - there is but one
        create = b"\1" if self.auto_create else b"\0"
        if self.topics is None:
            return (INT32.pack(-1), create)
        return (INT32.pack(len(self.topics)), *map(string, self.topics), create)

    def _read(self, version: int, reader: Reader) -> ClusterMetadata:  # noqa: ARG002 - there is but one
        reader.int32()  # throttle time
        brokers = tuple(_broker(reader) for _ in range(reader.count(_SMALLEST_BROKER)))
        cluster_id = reader.nullable_string()
        controller_id = reader.int32()
        topics = tuple(_topic(reader) for _ in range(reader.count(_SMALLEST_TOPIC)))
        return ClusterMetadata(brokers, topics, controller_id, cluster_id)


def _broker(reader: Reader) -> BrokerAddress:
    address = BrokerAddress(reader.int32(), reader.string(), reader.int32())
    reader.nullable_string()  # rack
    return address


def _topic(reader: Reader) -> TopicMetadata:
    error, name = reader.int16(), reader.string()
    reader.int8()  # whether it is one of Kafka's own
    partitions = tuple(_partition(reader) for _ in range(reader.count(_SMALLEST_PARTITION)))
    return TopicMetadata(error, name, partitions)


def _partition(reader: Reader) -> PartitionMetadata:
    error, partition, leader = reader.fields(_PARTITION)
    return PartitionMetadata(error, partition, leader, reader.int32s(), reader.int32s())
