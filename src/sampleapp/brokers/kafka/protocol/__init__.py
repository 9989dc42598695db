"""
Kafka's protocol as bytes: pure, and without any I/O.

Source: https://kafka.apache.org/protocol and the message schemas in Kafka's own repository. The versions
were chosen so that Kafka 0.11 to 4.x take them (KIP-896 removed the older ones); flexible ones (KIP-482) are
spoken only where they bring something. From the bottom up: `reading` and `writing` know the types, `request`
what all requests share, and one module for each request the rest.
"""

from sampleapp.brokers.kafka.protocol.api_versions import ApiVersions, ApiVersionsRequest, software_version
from sampleapp.brokers.kafka.protocol.fetch import AbortedTransaction, Fetched, FetchRequest
from sampleapp.brokers.kafka.protocol.init_producer_id import InitProducerIdRequest, ProducerIdentity
from sampleapp.brokers.kafka.protocol.list_offsets import EARLIEST, LATEST, ListedOffset, ListOffsetsRequest
from sampleapp.brokers.kafka.protocol.metadata import (
    BrokerAddress,
    ClusterMetadata,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
)
from sampleapp.brokers.kafka.protocol.produce import ProduceAnswer, Produced, ProduceRequest
from sampleapp.brokers.kafka.protocol.reading import ProtocolError
from sampleapp.brokers.kafka.protocol.request import Api, Request, negotiate, request_frame
from sampleapp.brokers.kafka.protocol.sasl_authenticate import SaslAuthenticated, SaslAuthenticateRequest
from sampleapp.brokers.kafka.protocol.sasl_handshake import SaslHandshakeRequest, SaslMechanisms

__all__ = [
    "EARLIEST",
    "LATEST",
    "REQUIRED",
    "AbortedTransaction",
    "Api",
    "ApiVersions",
    "ApiVersionsRequest",
    "BrokerAddress",
    "ClusterMetadata",
    "FetchRequest",
    "Fetched",
    "InitProducerIdRequest",
    "ListOffsetsRequest",
    "ListedOffset",
    "MetadataRequest",
    "PartitionMetadata",
    "ProduceAnswer",
    "ProduceRequest",
    "Produced",
    "ProducerIdentity",
    "ProtocolError",
    "Request",
    "SaslAuthenticateRequest",
    "SaslAuthenticated",
    "SaslHandshakeRequest",
    "SaslMechanisms",
    "TopicMetadata",
    "negotiate",
    "request_frame",
    "software_version",
]

REQUIRED = (MetadataRequest.api, ProduceRequest.api, FetchRequest.api, ListOffsetsRequest.api)
"""What a broker has to speak: nothing works without these."""
