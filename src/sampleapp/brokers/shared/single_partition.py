"""Brokers whose topics have one partition, on the only node that there is."""

from __future__ import annotations

from typing import Final

from sampleapp.model import PartitionDescription, TopicDescription

__all__ = ["NO_SUCH_PARTITION", "single_partition"]

NO_SUCH_PARTITION: Final = "The topic has one partition only, which is number 0."
"""The message of a `sampleapp.errors.UnknownPartition`."""

_PARTITION: Final = PartitionDescription(partition=0, leader=0, replicas=(0,), in_sync=(0,))


def single_partition(topic: str) -> TopicDescription:
    """Describe a topic: its one partition, whose one replica is on node 0."""
    return TopicDescription(name=topic, partitions=(_PARTITION,))
