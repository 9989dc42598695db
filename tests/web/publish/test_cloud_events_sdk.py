"""CloudEvents as the official SDK for Python sends them over HTTP, and reads them from Kafka."""

from __future__ import annotations

import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tests.support.in_memory import InMemoryService, PromptBroker

ATTRIBUTES = {
    "id": "1",
    "source": "/doors/7",
    "type": "com.example.opened",
    "subject": '\N{EURO SIGN} "%41" ä',
}
EVENTS = [
    CloudEvent(attributes={**ATTRIBUTES, "partitionkey": "ä b"}, data={"by": "key"}),
    CloudEvent(attributes={**ATTRIBUTES, "datacontenttype": "image/jpeg", "size": 2}, data=b"\xff\xd8"),
    CloudEvent(attributes={**ATTRIBUTES, "datacontenttype": "text/plain"}, data="a, b"),
    CloudEvent(attributes=ATTRIBUTES),
]


@pytest.fixture
def service():
    return InMemoryService(broker=PromptBroker())


def posted(service, headers, body):
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    return service.request("POST", "/topics/t", fields, body)


def read_back(record):
    return kafka.from_kafka_event(kafka.KafkaMessage(dict(record.headers), record.key, record.value))


def assert_same(event, other):
    # In binary mode, all attributes are strings.
    assert {name: str(value) for name, value in other.get_attributes().items()} == {
        name: str(value) for name, value in event.get_attributes().items()
    }
    assert other.get_data() == event.get_data()


@pytest.mark.parametrize("send", [http.to_binary_event, http.to_structured_event])
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_is_read_from_its_record_as_it_was_sent(service, event, send):
    message = send(event)
    assert posted(service, message.headers, message.body).status == 200
    (record,) = service.broker.records
    key = event.get_attributes().get("partitionkey")
    assert record.key == (None if key is None else key.encode())
    assert_same(event, read_back(record))


def test_each_event_of_a_batch_is_read_from_its_record(service):
    # The SDK has no batches; its JSON format has their members.
    body = b"[" + b",".join(JSONFormat().write(event) for event in EVENTS) + b"]"
    response = posted(service, {"Content-Type": "application/cloudevents-batch+json"}, body)
    assert (response.status, len(response.body.splitlines())) == (200, len(EVENTS))
    assert [record.key for record in service.broker.records] == ["ä b".encode(), None, None, None]
    for event, record in zip(EVENTS, service.broker.records, strict=True):
        assert_same(event, read_back(record))
