"""Fixtures of the tests on librdkafka's mock cluster, and on the simulated one."""

from __future__ import annotations

import pytest

from tests.support.kafka_simulator import Cluster
from tests.support.mock_cluster import MockClusters


@pytest.fixture(scope="package")
def clusters():
    """Makes clusters."""
    with MockClusters() as clusters:
        yield clusters


@pytest.fixture
def short_fetches(monkeypatch):
    """Have the mock asked to wait less: it never cuts a Fetch short when there is a record after all."""
    monkeypatch.setattr("sampleapp.brokers.kafka.consumer.fetcher._MAX_WAIT_MS", 100)


@pytest.fixture(scope="module")
def bytes_on_the_wire():
    """
    Have each request to a simulated cluster, and each response, sent as bytes.

    For tests from end to end, or about what is sent. It takes 20 to 55 % more CPU, which is too much for the
    state machines.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "speaks_bytes", True)
        yield
