"""
Encoding and decoding of Kafka's requests and answers, without I/O.

Source: https://kafka.apache.org/protocol and the message schemas in Kafka's own repository. Kafka 0.11 to 4.x
support the chosen versions (KIP-896 removed older ones); flexible versions (KIP-482) are used only where
they are needed. From the bottom up: `decoder` and `writing` have the types, `request` the base of all
requests, and each request has its own module.
"""

from sampleapp.brokers.kafka.protocol.api_versions import ApiVersions, ApiVersionsRequest, software_version
from sampleapp.brokers.kafka.protocol.decoder import ProtocolError
from sampleapp.brokers.kafka.protocol.describe_configs import (
    OF_BROKER,
    OF_TOPIC,
    DescribeConfigsRequest,
    DescribedConfig,
)
from sampleapp.brokers.kafka.protocol.describe_quorum import DescribeQuorumRequest, Quorum
from sampleapp.brokers.kafka.protocol.fetch import (
    AbortedTransaction,
    Fetched,
    FetchRequest,
    SessionFetched,
    SessionFetchRequest,
    follow_divergence,
)
from sampleapp.brokers.kafka.protocol.init_producer_id import InitProducerIdRequest, ProducerIdentity
from sampleapp.brokers.kafka.protocol.list_offsets import EARLIEST, LATEST, ListedOffset, ListOffsetsRequest
from sampleapp.brokers.kafka.protocol.metadata import (
    BrokerAddress,
    ClusterMetadata,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
    TopicsRequest,
)
from sampleapp.brokers.kafka.protocol.produce import Produced, ProduceRequest, ProduceResponse
from sampleapp.brokers.kafka.protocol.request import Api, Request, negotiate, request_frame
from sampleapp.brokers.kafka.protocol.sasl_authenticate import SaslAuthenticated, SaslAuthenticateRequest
from sampleapp.brokers.kafka.protocol.sasl_handshake import SaslHandshakeRequest, SaslMechanisms

__all__ = [
    "EARLIEST",
    "LATEST",
    "OF_BROKER",
    "OF_TOPIC",
    "REQUIRED",
    "AbortedTransaction",
    "Api",
    "ApiVersions",
    "ApiVersionsRequest",
    "BrokerAddress",
    "ClusterMetadata",
    "DescribeConfigsRequest",
    "DescribeQuorumRequest",
    "DescribedConfig",
    "FetchRequest",
    "Fetched",
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
    "TopicMetadata",
    "TopicsRequest",
    "follow_divergence",
    "negotiate",
    "request_frame",
    "software_version",
]

REQUIRED = (MetadataRequest.api, ProduceRequest.api, FetchRequest.api, ListOffsetsRequest.api)
"""The APIs that a broker must support."""
