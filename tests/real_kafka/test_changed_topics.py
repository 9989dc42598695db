"""Requests that come a moment after a topic was changed, and probes while a topic cannot be read."""

from __future__ import annotations

import json
from contextlib import closing
from http import HTTPStatus

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import connect, post, wait_for_line
from tests.real_kafka.writing import open_transaction

ROUNDS = 5
REST_PROXY = "application/vnd.kafka.json.v2+json"


@pytest.fixture
def service(one_node, start_service):
    return start_service(one_node)


def ask(service, method, target, body=b"", **fields):
    with closing(connect(service)) as connection:
        connection.request(
            method, target, body, {name.replace("_", "-"): each for name, each in fields.items()}
        )
        response = connection.getresponse()
        return response.status, response.read()


def publish_lines(service, *topics):
    lines = "".join(json.dumps({"topic": topic, "content": "x"}) + "\n" for topic in topics)
    status, body = ask(service, "POST", "/messages", lines.encode(), Content_Type="application/x-ndjson")
    return status, body.decode()


def test_of_a_batch_for_several_topics_nothing_is_published_if_one_was_just_deleted(one_node, service):
    for _ in range(ROUNDS):
        kept, deleted = (one_node.admin.create(new_topic("batch"), partitions=3) for _ in range(2))
        assert publish_lines(service, kept, deleted, kept)[0] == HTTPStatus.OK
        one_node.admin.delete(deleted)
        status, body = publish_lines(service, kept, deleted, kept)
        assert (status, json.loads(body)["type"]) == (404, "urn:sampleapp:problem:unknown-topic")
        assert len(read_all(one_node.bootstrap, kept)) == 2
        assert publish_lines(service, kept, kept)[0] == HTTPStatus.OK
        status, body = publish_lines(service, *[deleted] * 9)
        assert (status, json.loads(body)["type"]) == (404, "urn:sampleapp:problem:unknown-topic")


def test_a_partition_that_was_just_added_takes_and_gives_records(one_node, service):
    topic = one_node.admin.create(new_topic("more"), partitions=1)
    for partition in range(1, 1 + ROUNDS):
        target = f"/topics/{topic}/partitions/{partition}"
        assert post(service, topic, "known")[0] == HTTPStatus.OK
        assert ask(service, "GET", f"/topics/{topic}/records?partition=0")[0] == HTTPStatus.OK
        one_node.admin.add_partitions(topic, partition + 1)
        body = json.dumps({"records": [{"value": 1}, {"value": 2, "partition": 0}]}).encode()
        status, answer = ask(service, "POST", target, body, Content_Type=REST_PROXY)
        assert status == HTTPStatus.OK, answer
        assert [each["partition"] for each in json.loads(answer)["offsets"]] == [partition, 0]
        status, page = ask(service, "GET", f"/topics/{topic}/records?partition={partition}")
        assert status == HTTPStatus.OK, page


def broker_ready(service):
    [value] = [
        line.split()[-1]
        for line in ask(service, "GET", "/metrics")[1].decode().splitlines()
        if line.startswith("sampleapp_broker_ready ")
    ]
    return float(value)


def test_a_topic_that_cannot_be_read_on_does_not_make_the_broker_unready(one_node, service):
    topic = one_node.admin.create(new_topic("open"))
    with closing(connect(service)) as connection:
        connection.request(
            "GET", f"/topics/{topic}/records?from=latest", headers={"Accept": "text/event-stream"}
        )
        connection.getresponse()
        producer = open_transaction(one_node, topic, b"1")
        wait_for_line(service, topic, "open transaction", "blocks reading")
        assert post(service, topic, "2")[0] == HTTPStatus.OK
        assert broker_ready(service) == 1
        assert ask(service, "GET", "/ready")[0] == HTTPStatus.OK
        producer.abort_transaction(30)
