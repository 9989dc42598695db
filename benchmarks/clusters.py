"""What is published to: librdkafka's mock cluster, or Apache Kafka itself, as the tests have them."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["PARTITIONS", "TOPIC", "NotAvailable", "mock_cluster", "one_node", "three_nodes"]

PROJECT = str(Path(__file__).parent.parent)
TOPIC = "bench"
ELSEWHERE = "bench-elsewhere"
PARTITIONS = 6


class NotAvailable(Exception):
    """It cannot be had here; the message says why."""


@contextlib.contextmanager
def mock_cluster() -> Iterator[Any]:
    """Three brokers in a process of their own, with the topics that are published to."""
    sys.path.append(PROJECT)
    from tests.support.mock_cluster import PRODUCE, MockCluster

    with MockCluster(brokers=3) as mock:
        mock.create_topic("readings")
        mock.create_topic(TOPIC, partitions=PARTITIONS)
        mock.create_topic(ELSEWHERE, partitions=1)
        # afkak speaks no other version than 0, which Kafka 4 has taken away.
        mock.set_api_version(PRODUCE, 0, 10)
        yield mock


@contextlib.contextmanager
def one_node() -> Iterator[Any]:
    """
    The newest Apache Kafka as one node, with the topics that are published to.

    :raise NotAvailable: there is no Java, or no Maven to get Kafka with.
    """
    with _kafka(nodes=1) as cluster:
        cluster.admin.create("readings", partitions=1)
        cluster.admin.create(TOPIC, partitions=PARTITIONS)
        yield cluster


@contextlib.contextmanager
def three_nodes() -> Iterator[Any]:
    """
    The newest Apache Kafka, with three replicas of everything.

    :raise NotAvailable: there is no Java, or no Maven to get Kafka with.
    """
    with _kafka(nodes=3) as cluster:
        yield cluster


@contextlib.contextmanager
def _kafka(*, nodes: int) -> Iterator[Any]:
    sys.path.append(PROJECT)
    from tests.real_kafka.cluster import Cluster
    from tests.real_kafka.distribution import VERSIONS, KafkaNotAvailable, why_not

    reason = why_not()
    if reason is not None:
        raise NotAvailable(reason)
    with tempfile.TemporaryDirectory(prefix="sampleapp-bench-") as directory:
        try:
            cluster = Cluster(version=VERSIONS[-1], nodes=nodes, directory=Path(directory))
        except KafkaNotAvailable as error:
            raise NotAvailable(str(error)) from error
        with cluster:
            yield cluster
