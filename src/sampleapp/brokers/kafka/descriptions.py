"""Which topics there are, and where their partitions are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.client import ClusterClient, RequestFailed, reason_of
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import TopicMetadata
from sampleapp.errors import BrokerUnavailable
from sampleapp.messages import is_legal_topic
from sampleapp.model import PartitionDescription, TopicDescription

__all__ = ["describe_topics"]


def describe_topics(
    client: ClusterClient, topics: Collection[str] | None
) -> Deferred[Sequence[TopicDescription]]:
    """See `sampleapp.interfaces.IBroker.describe_topics`."""
    if topics is None:
        return client.describe_topics(None).addCallbacks(_without_internal, _unavailable)
    # A broker would say no more of the others than that they are not legal.
    legal = sorted({name for name in topics if is_legal_topic(name)})
    if not legal:
        return succeed([])
    return client.describe_topics(legal).addCallbacks(_descriptions, _unavailable)


def _without_internal(topics: Sequence[TopicMetadata]) -> list[TopicDescription]:
    return _descriptions([topic for topic in topics if not topic.is_internal])


def _descriptions(topics: Sequence[TopicMetadata]) -> list[TopicDescription]:
    described = [_description(topic) for topic in topics if topic.error == ErrorCode.NONE]
    return sorted(described, key=lambda topic: topic.name)


def _description(topic: TopicMetadata) -> TopicDescription:
    partitions = [
        PartitionDescription(
            partition=each.partition,
            leader=each.leader if each.leader >= 0 else None,
            replicas=each.replicas,
            in_sync=each.isr,
        )
        for each in topic.partitions
    ]
    return TopicDescription(
        name=topic.topic, partitions=tuple(sorted(partitions, key=lambda each: each.partition))
    )


def _unavailable(failure: Failure) -> Failure:
    failure.trap(RequestFailed)
    return Failure(BrokerUnavailable(reason_of(failure).public))
