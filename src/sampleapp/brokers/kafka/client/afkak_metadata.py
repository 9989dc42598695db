"""What afkak wants: metadata in its own form, and a word about its log."""

from __future__ import annotations

import logging

from afkak.common import BrokerMetadata, PartitionMetadata, TopicMetadata

from sampleapp.brokers.kafka.protocol import ClusterMetadata

__all__ = ["afkak_brokers", "afkak_topics", "quieten_afkak"]

_NOBODY = -1


def afkak_brokers(metadata: ClusterMetadata) -> dict[int, BrokerMetadata]:
    """The brokers that are alive, by their node ids."""
    return {
        broker.node_id: BrokerMetadata(broker.node_id, broker.host, broker.port)
        for broker in metadata.brokers
    }


def afkak_topics(metadata: ClusterMetadata) -> dict[str, TopicMetadata]:
    """The topics that were asked about. A leader that is not alive is none: afkak looks for its address."""
    alive = {broker.node_id for broker in metadata.brokers}
    return {
        topic.topic: TopicMetadata(
            topic.topic,
            topic.error,
            {
                each.partition: PartitionMetadata(
                    topic.topic,
                    each.partition,
                    each.error,
                    each.leader if each.leader in alive else _NOBODY,
                    each.replicas,
                    each.isr,
                )
                for each in topic.partitions
            },
        )
        for topic in metadata.topics
    }


def quieten_afkak() -> None:
    """Let afkak not warn of what its callers here are told, and log, themselves; unless somebody wants it."""
    logger = logging.getLogger("afkak")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
