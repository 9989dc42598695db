"""
The service on one page: the promises of its two first routes.

Every request is made twice: to the service's own HTTP server, and to a stock site of twisted.web whose root
is the resource of the Klein application.
"""

from __future__ import annotations

import json

import pytest
import pytest_twisted
from hypothesis import given
from hypothesis import strategies as st
from treq.testing import StubTreq
from twisted.internet.defer import Deferred

from tests.support import strategies
from tests.support.in_memory import InMemoryService, ManualBroker, PromptBroker

V1, V2 = "application/json", "application/vnd.sampleApp.v2+json"
ABSENT = object()


class Service:
    """A service in memory with its client."""

    def __init__(self, way, broker=PromptBroker):
        self.inside = InMemoryService(broker=broker())
        self.broker = self.inside.broker
        self.client = StubTreq(self.inside.gateway.app.resource())
        if way == "own server":
            self.client._agent._serverFactory = self.inside.site  # noqa: SLF001 -- instead of a stock site

    def result_of(self, coroutine):
        """Return the result of a request that waits for nothing but bytes."""
        responding = Deferred.fromCoroutine(coroutine)
        self.client.flush()
        return responding.result

    async def get(self, **headers):
        response = await self.client.get("http://service.example/", headers=headers)
        return response.code, response.headers.getRawHeaders("Content-Type"), await response.json()

    async def post(self, message):
        body = json.dumps(message).encode()
        response = await self.client.post(
            "http://service.example/messages", body, headers={"Content-Type": "application/json"}
        )
        return response.code, response.headers.getRawHeaders("Content-Type"), await response.json()


WAYS = ["own server", "stock site"]
ways = st.sampled_from(WAYS)


@given(way=ways, readings=strategies.collections)
def test_both_versions_have_the_same_readings_in_the_same_order(way, readings):
    service = Service(way)
    for key, value in readings.items():
        service.inside.read(key.encode(), repr(value).encode())
    _, first_type, first = service.result_of(service.get(Accept=V1))
    _, second_type, second = service.result_of(service.get(Accept=V2))
    assert (first_type, second_type) == ([V1], [V2])
    assert second == [{"id": key, "value": value} for key, value in readings.items()]
    assert first == list(readings.values())


@given(
    way=ways,
    accept=st.none() | st.sampled_from(["", "*/*", "text/html", "application/vnd.sampleApp.v3+json", ";;"]),
)
def test_who_does_not_name_version_2_gets_version_1(way, accept):
    headers = {} if accept is None else {"Accept": accept}
    service = Service(way)
    assert service.result_of(service.get(**headers)) == (200, [V1], [])


@given(
    way=ways,
    topic=strategies.topics,
    content=strategies.texts,
    key=st.sampled_from([ABSENT, None, ""]) | strategies.texts,
)
def test_a_message_becomes_one_record_with_its_key_or_with_none(way, topic, content, key):
    service = Service(way)
    message = {"topic": topic, "content": content} | ({} if key is ABSENT else {"key": key})
    assert service.result_of(service.post(message)) == (
        200,
        [V1],
        {"topic": topic, "partition": 0, "offset": 0},
    )
    (record,) = service.broker.records
    assert (record.topic, record.value) == (topic, content.encode())
    assert record.key == (None if key in (ABSENT, None) else key.encode())


@given(way=ways, content=strategies.json_values.filter(lambda value: not isinstance(value, str)))
def test_a_message_with_faults_publishes_nothing_and_the_answer_names_them_all(way, content):
    service = Service(way)
    status, media_type, problem = service.result_of(
        service.post({"topic": "t", "Key": "k", "content": content})
    )
    assert (status, media_type) == (422, ["application/problem+json"])
    assert {fault["pointer"] for fault in problem["errors"]} == {"/Key", "/content"}
    assert service.broker.records == []


@pytest.mark.parametrize("way", WAYS)
@pytest_twisted.ensureDeferred
async def test_the_answer_waits_until_the_broker_has_the_record(way):
    service = Service(way, ManualBroker)
    answering = Deferred.fromCoroutine(service.post({"topic": "t", "content": "c"}))
    assert not answering.called
    service.broker.acknowledge(partition=7, offset=42)
    service.client.flush()
    status, _, answer = await answering
    assert (status, answer) == (200, {"topic": "t", "partition": 7, "offset": 42})
