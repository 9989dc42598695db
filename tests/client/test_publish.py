"""Publishing messages to a service that answers as the contract says."""

from __future__ import annotations

import pytest
import pytest_twisted
from hypothesis import given

from sampleapp.errors import InvalidMessage
from sampleapp.model import RecordMetadata
from tests.support import strategies
from tests.support.client_servers import (
    ContractResource,
    in_memory,
)


@pytest_twisted.ensureDeferred
async def test_a_message_without_a_key_has_no_member_key():
    service = ContractResource()
    metadata = await in_memory(service).publish(topic="t", content="c")
    assert metadata == RecordMetadata(topic="t", partition=0, offset=0)
    assert service.records == [{"topic": "t", "content": "c"}]


@pytest_twisted.ensureDeferred
async def test_the_empty_key_is_a_key():
    service = ContractResource()
    await in_memory(service).publish(topic="t", content="c", key="")
    assert service.records == [{"topic": "t", "content": "c", "key": ""}]


@given(topic=strategies.topics, key=strategies.keys, content=strategies.texts)
@pytest_twisted.ensureDeferred
async def test_any_text_arrives_unchanged(topic, key, content):
    service = ContractResource()
    metadata = await in_memory(service).publish(topic=topic, content=content, key=key)
    absent = {"topic": topic, "content": content}
    assert service.records == [absent if key is None else {**absent, "key": key}]
    assert metadata.topic == topic


@pytest_twisted.ensureDeferred
async def test_text_that_utf8_cannot_carry_is_refused_before_anything_is_sent():
    service = ContractResource()
    with pytest.raises(InvalidMessage) as caught:
        await in_memory(service).publish(topic="t", content="\ud800", key="\udfff")
    assert [fault.pointer for fault in caught.value.faults] == ["/content", "/key"]
    assert service.records == []
