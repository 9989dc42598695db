"""Bodies of any bytes, tombstones, headers and timestamps in Kafka, read by a consumer that is not ours."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote_from_bytes

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import connect
from tests.real_kafka.versions import parsed

pytestmark = pytest.mark.one_version

EVERY_BYTE = bytes(range(256))
EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/a%20b", "ce-type": "%C3%A4"}
DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def service(one_node, start_service):
    return start_service(one_node)


def ask(service, method, target, body=None, headers=()):
    """Make one request on a connection of its own; returns the status and the body of the answer."""
    connection = connect(service)
    try:
        connection.request(method, target, body, dict(headers))
        response = connection.getresponse()
        return response.status, json.load(response)
    finally:
        connection.close()


def message(topic, **members):
    body = json.dumps({"topic": topic, "content": "c", **members})
    return "POST", "/messages", body, {"Content-Type": "application/json"}


def test_bodies_tombstones_and_headers_arrive_as_they_were_sent(one_node, service):
    topic = one_node.admin.create(new_topic("of-path"), partitions=1)
    key = quote_from_bytes(EVERY_BYTE)
    # librdkafka, which reads them, ends names at a NUL.
    headers = {
        "b": "1",
        "": "empty name",
        "a": "",
        "\N{GRINNING FACE}": "\N{LATIN SMALL LETTER A WITH DIAERESIS}\0",
    }
    requests = [
        ("POST", f"/topics/{topic}?key={key}", EVERY_BYTE),
        ("POST", f"/topics/{topic}", b""),
        ("POST", f"/topics/{topic}?key=", b"of an event", EVENT),
        ("DELETE", f"/topics/{topic}?key={key}"),
        message(topic, headers=headers, timestamp="2026-03-01T12:00:00.5+01:00"),
        message(topic, headers={}, timestamp="1970-01-01T00:00:00Z"),
    ]
    for offset, request in enumerate(requests):
        assert ask(service, *request) == (200, {"topic": topic, "partition": 0, "offset": offset})
    stored = read_all(one_node.bootstrap, topic)
    assert [(each.key, each.value) for each in stored] == [
        (EVERY_BYTE, EVERY_BYTE),
        (None, b""),
        (b"", b"of an event"),
        (EVERY_BYTE, None),
        (None, b"c"),
        (None, b"c"),
    ]
    assert [dict(each.headers) for each in stored] == [
        {},
        {},
        {"ce_specversion": b"1.0", "ce_id": b"1", "ce_source": b"/a b", "ce_type": b"\xc3\xa4"},
        {},
        {name: value.encode() for name, value in headers.items()},
        {},
    ]
    assert [name for name, _ in stored[4].headers] == list(headers)
    assert [each.timestamp_ms for each in stored[4:]] == [1_772_362_800_500, 0]


def test_a_timestamp_that_the_topic_does_not_take_takes_no_others_with_it(version, one_node, service):
    # The first has had a new name since 3.6, and is gone since 4.0 (KIP-937).
    limit = "before" if parsed(version) >= (3, 6) else "difference"
    topic = one_node.admin.create(
        new_topic("recent"), partitions=1, **{f"message_timestamp_{limit}_max_ms": DAY_MS}
    )
    requests = [
        message(
            topic, key="k", content=f"{n}", **({"timestamp": "1970-01-01T00:00:00Z"} if n % 10 == 3 else {})
        )
        for n in range(60)
    ]
    with ThreadPoolExecutor(len(requests)) as threads:
        answers = list(threads.map(lambda request: ask(service, *request), requests))
    assert [status for status, _ in answers] == [422 if n % 10 == 3 else 200 for n in range(60)]
    rejected = {body["type"] for status, body in answers if status == 422}
    assert rejected == {"urn:sampleapp:problem:record-refused"}
    stored = {each.offset: each.value.decode() for each in read_all(one_node.bootstrap, topic)}
    assert stored == {body["offset"]: f"{n}" for n, (status, body) in enumerate(answers) if status == 200}
