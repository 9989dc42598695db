"""A cluster of librdkafka's, for faults."""

from __future__ import annotations

import pytest


@pytest.fixture
def mock(clusters):
    """A cluster with a topic of one partition, ``t``."""
    with clusters.new() as cluster:
        cluster.create_topic("t")
        yield cluster
