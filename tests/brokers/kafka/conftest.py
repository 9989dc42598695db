"""Fixtures that the tests on librdkafka's mock cluster share."""

from __future__ import annotations

import pytest

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
