"""A Kafka cluster that exists in memory and in the time of a `Clock`, for a producer and subscriptions."""

from tests.support.kafka_simulator.client import SimulatedClient
from tests.support.kafka_simulator.cluster import LATENCY_S, Cluster, reason
from tests.support.kafka_simulator.fate import Fate
from tests.support.kafka_simulator.following import FollowingSetup
from tests.support.kafka_simulator.log import TOPIC, Log, values, values_of

__all__ = [
    "LATENCY_S",
    "TOPIC",
    "Cluster",
    "Fate",
    "FollowingSetup",
    "Log",
    "SimulatedClient",
    "reason",
    "values",
    "values_of",
]
