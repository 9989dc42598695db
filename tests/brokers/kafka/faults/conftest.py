"""A cluster of librdkafka's, for faults."""

from __future__ import annotations

import pytest

from tests.support.mock_cluster import (
    MockCluster,
)


@pytest.fixture
def mock():
    """A cluster with a topic of one partition, ``t``."""
    with MockCluster() as cluster:
        cluster.create_topic("t")
        yield cluster
