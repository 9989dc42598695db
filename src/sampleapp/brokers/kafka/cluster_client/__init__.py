"""
The client of a Kafka cluster: its connections and its metadata.

It subclasses afkak's client. From afkak come the table of connections by node id, connecting and closing, and
the cache of topics, partitions and leaders. Overridden are:

- the requests and answers: afkak speaks the versions of Kafka 0.8, which Kafka 4 rejects (KIP-896);
- the table of requests in flight, their deadlines and their responses: each request carries several batches
  of records, and afkak's own table took a third of their time;
- connecting, which has a deadline, backs off, and reports why it failed; afkak retries for ever;
- the loss of a connection, which fails its requests; afkak sends them again, which would make duplicates and
  change their order;
- loading metadata: one request at a time for all callers, a second broker if the first is slow, and no topic
  created by a question.
"""

from sampleapp.brokers.kafka.cluster_client.afkak_client import AfkakClient
from sampleapp.brokers.kafka.cluster_client.broker_connection import (
    SERVICE_FAULT,
    RequestFailed,
    request_failed,
)
from sampleapp.brokers.kafka.cluster_client.interfaces import ClusterClient, Connection, ConnectionListener
from sampleapp.brokers.kafka.cluster_client.metadata_loading import MetadataLoads, ask_one_of

__all__ = [
    "SERVICE_FAULT",
    "AfkakClient",
    "ClusterClient",
    "Connection",
    "ConnectionListener",
    "MetadataLoads",
    "RequestFailed",
    "ask_one_of",
    "request_failed",
]
