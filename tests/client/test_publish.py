"""Publishing messages to a service that answers as the contract says."""

from __future__ import annotations

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.client import Message
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
async def test_bytes_are_sent_as_base64():
    service = ContractResource()
    client = in_memory(service)
    await client.publish(topic="t", content=b"\0\xff", key=b"", headers={"a": "1"}, timestamp=1795363727918)
    await client.publish_many(
        [Message(topic="t", content=b"", key="k"), Message(topic="t", content="c", key=b"\xff")]
    )
    assert service.records == [
        {
            "topic": "t",
            "content_base64": "AP8=",
            "key_base64": "",
            "headers": {"a": "1"},
            "timestamp": 1795363727918,
        },
        {"topic": "t", "content_base64": "", "key": "k"},
        {"topic": "t", "content": "c", "key_base64": "/w=="},
    ]


@pytest_twisted.ensureDeferred
async def test_text_beside_bytes_that_utf8_cannot_carry_is_rejected():
    with pytest.raises(InvalidMessage) as caught:
        await in_memory(ContractResource()).publish(topic="t", content=b"c", key="\udfff")
    assert [fault.pointer for fault in caught.value.faults] == ["/key"]


@pytest_twisted.ensureDeferred
async def test_text_that_utf8_cannot_carry_is_rejected_before_anything_is_sent():
    service = ContractResource()
    with pytest.raises(InvalidMessage) as caught:
        await in_memory(service).publish(topic="t", content="\ud800", key="\udfff")
    assert [fault.pointer for fault in caught.value.faults] == ["/content", "/key"]
    assert service.records == []


@pytest_twisted.ensureDeferred
async def test_headers_and_a_timestamp_go_with_a_message():
    service = ContractResource()
    await in_memory(service).publish(
        topic="t", content="c", headers={"b": "1", "a": "ä"}, timestamp=1795363727918
    )
    assert service.records == [
        {"topic": "t", "content": "c", "headers": {"b": "1", "a": "ä"}, "timestamp": 1795363727918}
    ]
    assert list(service.records[0]["headers"]) == ["b", "a"]


@given(
    messages=st.lists(
        st.builds(
            Message,
            topic=strategies.topics,
            content=strategies.texts,
            key=strategies.keys,
            headers=st.none() | st.dictionaries(strategies.texts, strategies.texts, max_size=3),
            timestamp=st.none() | strategies.numbers_of_time,
        ),
        max_size=5,
    )
)
@pytest_twisted.ensureDeferred
async def test_any_messages_arrive_unchanged_and_in_order(messages):
    service = ContractResource()
    results = await in_memory(service).publish_many(iter(messages))
    assert results == [
        RecordMetadata(topic=message.topic, partition=0, offset=offset)
        for offset, message in enumerate(messages)
    ]
    members = {
        "topic": "topic",
        "content": "content",
        "key": "key",
        "headers": "headers",
        "timestamp": "timestamp",
    }
    assert service.records == [
        {name: value for field, name in members.items() if (value := getattr(message, field)) is not None}
        for message in messages
    ]


@pytest_twisted.ensureDeferred
async def test_each_of_many_messages_that_utf8_cannot_carry_is_named_before_anything_is_sent():
    service = ContractResource()
    messages = [
        Message(topic="t", content="\ud800"),
        Message(topic="t", content="c"),
        Message(topic="t", content="c", key="\udfff", headers={"h": "\ud800"}),
        Message(topic="t", content="c", headers=[("\ud800", None)]),
    ]
    with pytest.raises(InvalidMessage) as caught:
        await in_memory(service).publish_many(messages)
    assert [fault.pointer for fault in caught.value.faults] == [
        *["/0/content", "/2/key", "/2/headers", "/3/headers"]
    ]
    assert service.records == []


@given(topic=strategies.topics, body=st.binary(), key=st.none() | st.binary(max_size=20))
@pytest_twisted.ensureDeferred
async def test_any_bytes_arrive_unchanged(topic, body, key):
    service = ContractResource()
    metadata = await in_memory(service).publish_raw(topic=topic, body=body, key=key, content_type="image/png")
    assert metadata == RecordMetadata(topic=topic, partition=0, offset=0)
    record = {"topic": topic, "value": body, "type": "image/png"}
    assert service.records == [record if key is None else {**record, "key": key}]


@given(topic=strategies.topics, key=strategies.texts)
@pytest_twisted.ensureDeferred
async def test_a_tombstone_has_its_key_and_no_value(topic, key):
    service = ContractResource()
    await in_memory(service).delete(topic=topic, key=key)
    assert service.records == [{"topic": topic, "value": None, "type": None, "key": key.encode()}]


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "ä", "\ud800", "a" * 250])
@pytest_twisted.ensureDeferred
async def test_a_topic_that_there_cannot_be_is_rejected_before_a_path_is_made_of_it(topic):
    service = ContractResource()
    for publish in [
        lambda client: client.publish_raw(topic=topic, body=b"b"),
        lambda client: client.delete(topic=topic, key="\udfff"),
    ]:
        with pytest.raises(InvalidMessage) as caught:
            await publish(in_memory(service))
        assert caught.value.faults[0].pointer == "/topic"
    assert [fault.pointer for fault in caught.value.faults] == ["/topic", "/key"]
    assert service.records == []
