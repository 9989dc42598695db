"""The connections to a cluster, and what it says of itself: afkak's client, with the protocol of today."""

from sampleapp.brokers.kafka.client.client import Client
from sampleapp.brokers.kafka.client.failures import RequestFailed

__all__ = ["Client", "RequestFailed"]
