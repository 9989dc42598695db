"""The connections to a cluster, and what it says of itself: afkak's client, with the protocol of today."""

from sampleapp.brokers.kafka.client.client import Client
from sampleapp.brokers.kafka.client.failures import RequestFailed, reason_of
from sampleapp.brokers.kafka.client.hedging import ask_one_of

__all__ = ["Client", "RequestFailed", "ask_one_of", "reason_of"]
