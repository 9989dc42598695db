"""Topics with one partition on one node: their description, and the start of a read."""

from __future__ import annotations

from typing import Final

from sampleapp.errors import UnknownPartition
from sampleapp.model import PartitionDescription, ReadRequest, ReadStart, TopicDescription

__all__ = ["NO_SUCH_PARTITION", "NO_SUCH_TOPIC", "single_partition", "start_of"]

NO_SUCH_PARTITION: Final = "The topic has only one partition, with the number 0."
"""The message of a `sampleapp.errors.UnknownPartition`."""

NO_SUCH_TOPIC: Final = "The topic does not exist. It is created by its first record; check its name."
"""The message of a `sampleapp.errors.UnknownTopic`."""

_PARTITION: Final = PartitionDescription(partition=0, leader=0, replicas=(0,), in_sync=(0,))


def single_partition(topic: str) -> TopicDescription:
    """Return the description of a topic with one partition and one replica, on node 0."""
    return TopicDescription(name=topic, partitions=(_PARTITION,))


def start_of(request: ReadRequest) -> ReadStart | None:
    """
    Return where to read the only partition.

    :return: ``None`` if it is not asked for.
    :raise UnknownPartition: another partition is asked for by its number.
    """
    if request.starts.keys() - {0}:
        raise UnknownPartition(NO_SUCH_PARTITION)
    return request.starts.get(0, request.others)
