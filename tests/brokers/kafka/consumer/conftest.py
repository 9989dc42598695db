"""Followings on a cluster that is simulated."""

from __future__ import annotations

import pytest

from tests.support.kafka_simulator import FollowingSetup


@pytest.fixture
def setup():
    """Makes subscriptions of a cluster, and stops them at the end."""
    made = []

    def make(cluster, **options):
        made.append(FollowingSetup(cluster, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()
