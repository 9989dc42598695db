"""A service in memory."""

from __future__ import annotations

import pytest

from tests.support.in_memory import InMemoryService, PromptBroker


@pytest.fixture
def service():
    return InMemoryService(broker=PromptBroker(), max_body=1000)
