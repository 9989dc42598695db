"""
Encoding and decoding of Kafka's requests and answers, without I/O.

Source: https://kafka.apache.org/protocol and the message schemas in Kafka's own repository. Kafka 2.1 to 4.x
support the chosen versions (KIP-896 removed older ones); flexible versions (KIP-482) are used only where
they are needed. `codec` has the types and the base of all requests, which the other modules define.
"""

from sampleapp.brokers.kafka.protocol.codec import Api, ProtocolError, Request, negotiate, request_frame
from sampleapp.brokers.kafka.protocol.describe import (
    OF_BROKER,
    OF_GROUP,
    OF_TOPIC,
    DescribeConfigsRequest,
    DescribedConfig,
    DescribeQuorumRequest,
    Quorum,
)
from sampleapp.brokers.kafka.protocol.fetch import (
    AbortedTransaction,
    Fetched,
    FetchRequest,
    SessionFetched,
    SessionFetchRequest,
    follow_divergence,
)
from sampleapp.brokers.kafka.protocol.list_offsets import EARLIEST, LATEST, ListedOffset, ListOffsetsRequest
from sampleapp.brokers.kafka.protocol.metadata import (
    BrokerAddress,
    ClusterMetadata,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
    TopicsRequest,
)
from sampleapp.brokers.kafka.protocol.produce import (
    InitProducerIdRequest,
    Produced,
    ProduceRequest,
    ProduceResponse,
    ProducerIdentity,
)
from sampleapp.brokers.kafka.protocol.session import (
    ApiVersions,
    ApiVersionsRequest,
    SaslAuthenticated,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SaslMechanisms,
    software_version,
)
from sampleapp.brokers.kafka.protocol.share_groups import (
    JOIN_GROUP,
    LEAVE_GROUP,
    Coordinator,
    DescribeShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    SetGroupConfigsRequest,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatRequest,
    ShareGroupOffsets,
)
from sampleapp.brokers.kafka.protocol.share_sessions import (
    END_SHARE_SESSION,
    Acknowledgement,
    AcknowledgeType,
    AcquiredRecords,
    ShareAcknowledged,
    ShareAcknowledgeRequest,
    ShareFetched,
    ShareFetchRequest,
    SharePartition,
)

__all__ = [
    "EARLIEST",
    "END_SHARE_SESSION",
    "JOIN_GROUP",
    "LATEST",
    "LEAVE_GROUP",
    "OF_BROKER",
    "OF_GROUP",
    "OF_TOPIC",
    "REQUIRED",
    "AbortedTransaction",
    "AcknowledgeType",
    "Acknowledgement",
    "AcquiredRecords",
    "Api",
    "ApiVersions",
    "ApiVersionsRequest",
    "BrokerAddress",
    "ClusterMetadata",
    "Coordinator",
    "DescribeConfigsRequest",
    "DescribeQuorumRequest",
    "DescribeShareGroupOffsetsRequest",
    "DescribedConfig",
    "FetchRequest",
    "Fetched",
    "FindCoordinatorRequest",
    "InitProducerIdRequest",
    "ListOffsetsRequest",
    "ListedOffset",
    "MetadataRequest",
    "PartitionMetadata",
    "ProduceRequest",
    "ProduceResponse",
    "Produced",
    "ProducerIdentity",
    "ProtocolError",
    "Quorum",
    "Request",
    "SaslAuthenticateRequest",
    "SaslAuthenticated",
    "SaslHandshakeRequest",
    "SaslMechanisms",
    "SessionFetchRequest",
    "SessionFetched",
    "SetGroupConfigsRequest",
    "ShareAcknowledgeRequest",
    "ShareAcknowledged",
    "ShareFetchRequest",
    "ShareFetched",
    "ShareGroupHeartbeat",
    "ShareGroupHeartbeatRequest",
    "ShareGroupOffsets",
    "SharePartition",
    "TopicMetadata",
    "TopicsRequest",
    "follow_divergence",
    "negotiate",
    "request_frame",
    "software_version",
]

REQUIRED = (MetadataRequest.api, ProduceRequest.api, FetchRequest.api, ListOffsetsRequest.api)
"""The APIs that a broker must support."""
