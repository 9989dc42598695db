"""Fixtures of the tests of the protocol."""

from __future__ import annotations

import pytest

from tests.support.kafka_protocol import Oracle


@pytest.fixture(scope="module")
def oracle():
    pytest.importorskip("kio", reason="kio needs Python 3.11")
    return Oracle
