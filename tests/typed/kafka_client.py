"""
Checked by mypy, never run: Kafka's client, and what stands for it in the tests, are of one Protocol.

A fake whose methods are not those of the client would let tests pass that say nothing.
"""

from __future__ import annotations

from sampleapp.brokers.kafka.cluster_client import AfkakClient, ClusterClient, ConnectionListener
from sampleapp.brokers.kafka.cluster_health import ClusterHealth
from tests.support.connection_listener import Connections
from tests.support.kafka_simulator import SimulatedClient


def is_a_client(client: AfkakClient) -> ClusterClient:
    return client


def is_a_simulated_client(client: SimulatedClient) -> ClusterClient:
    return client


def is_told_of_connections(cluster_health: ClusterHealth) -> ConnectionListener:
    return cluster_health


def remembers_connections(connections: Connections) -> ConnectionListener:
    return connections
