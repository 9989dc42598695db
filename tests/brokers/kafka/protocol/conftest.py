"""Fixtures of the tests of the protocol."""

from __future__ import annotations

import pytest

from tests.support.kafka_simulator.wire import Schema


@pytest.fixture(scope="module")
def oracle():
    return Schema
