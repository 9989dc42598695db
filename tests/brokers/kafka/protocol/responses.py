"""A response to each request of `requests`, with a value in each of its fields."""

from __future__ import annotations

from sampleapp.brokers.kafka.protocol import (
    OF_BROKER,
    OF_TOPIC,
    AbortedTransaction,
    AcquiredRecords,
    ApiVersions,
    BrokerAddress,
    ClusterMetadata,
    Coordinator,
    DescribedConfig,
    Fetched,
    ListedOffset,
    PartitionMetadata,
    Produced,
    ProduceResponse,
    ProducerIdentity,
    Quorum,
    SaslAuthenticated,
    SaslMechanisms,
    ShareAcknowledged,
    ShareFetched,
    ShareGroupHeartbeat,
    ShareGroupOffsets,
    SharePartition,
    TopicMetadata,
)
from sampleapp.model import OffsetAndEpoch
from tests.brokers.kafka.protocol import requests
from tests.brokers.kafka.protocol.requests import TOPIC_ID
from tests.support.kafka_simulator.wire import encode_response

RESPONSES = {
    requests.PRODUCE.api: ProduceResponse([Produced("t", 3, 87, -1, -1, 5, ((2, "bad"),), "worse")], 250),
    requests.FETCH.api: [
        Fetched("t", 3, 0, 50, 48, 5, (AbortedTransaction(7, 41),), b"records", OffsetAndEpoch(38, 2))
    ],
    requests.LIST_OFFSETS.api: [ListedOffset("t", 3, 0, -1, 50, 9)],
    requests.METADATA.api: ClusterMetadata(
        (BrokerAddress(7, "localhost", 9092),),
        (TopicMetadata(0, "t", (PartitionMetadata(0, 3, 7, (7, 8), (7,), 4),), TOPIC_ID),),
        7,
        "cluster",
    ),
    requests.API_VERSIONS.api: ApiVersions(0, {0: (3, 8), 3: (4, 13)}),
    requests.DESCRIBE_CONFIGS.api: [
        DescribedConfig(
            0, OF_TOPIC, "t", {"retention.ms": "3000", "other": None}, frozenset(["retention.ms"])
        ),
        DescribedConfig(31, OF_BROKER, "7", {}),
    ],
    requests.INIT_PRODUCER_ID.api: ProducerIdentity(0, 4000, 1),
    requests.DESCRIBE_QUORUM.api: Quorum(0, 1001),
    requests.SASL_HANDSHAKE.api: SaslMechanisms(0, ("PLAIN", "GSSAPI")),
    requests.SASL_AUTHENTICATE.api: SaslAuthenticated(58, "who?", b"", 3600_000),
    requests.FIND_COORDINATOR.api: Coordinator(0, 7),
    requests.SHARE_GROUP_HEARTBEAT.api: ShareGroupHeartbeat(0, 2, {TOPIC_ID: (3, 4)}),
    requests.SHARE_FETCH.api: ShareFetched(
        0,
        30000,
        (SharePartition(3, 0, (AcquiredRecords(40, 41, 1), AcquiredRecords(43, 43, 2)), b"records"),),
    ),
    requests.SHARE_ACKNOWLEDGE.api: ShareAcknowledged(0, {3: 121}, 30000),
    requests.DESCRIBE_SHARE_GROUP_OFFSETS.api: ShareGroupOffsets(0, {"t": {3: 10, 4: -1}}),
    requests.SET_GROUP_CONFIGS.api: 30,
}
"""By the API of the request, as the newest versions have them. Earlier ones leave some fields out."""


def encoded(request, version):
    """The response to a request, as bytes."""
    return encode_response(request, version, RESPONSES[request.api], text="?")
