"""``sampleapp consume | sampleapp publish --messages`` with Kafka."""

from __future__ import annotations

import json

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.service import kafka_url
from tests.support.command import sampleapp
from tests.support.copies import KINDS, copied, pipe
from tests.support.live_service import LiveService

pytestmark = pytest.mark.release

# Kafka 4 takes no time that is more than an hour ahead.
LINES = [each for each in KINDS if each.get("key") != "late"]


@pytest.fixture(scope="module")
def services(one_node, tmp_path_factory):
    """A service on SQLite and one on Kafka, by the kind of broker."""
    with (
        LiveService(directory=tmp_path_factory.mktemp("sqlite")) as sqlite,
        LiveService(
            broker=kafka_url(one_node),
            directory=tmp_path_factory.mktemp("kafka"),
            options=["--idempotent-topic=*", "--idempotency-rate=1000"],
        ) as kafka,
    ):
        yield {"sqlite": sqlite, "kafka": kafka}


@pytest.fixture(scope="module")
def original(one_node, services):
    """The name of a topic that each broker has, with records of every kind; they have one partition."""
    topic = one_node.admin.create(new_topic("original"))
    lines = "".join([json.dumps({"topic": topic, **each}) + "\n" for each in LINES]).encode()
    for service in services.values():
        sampleapp(service, "publish", "--messages", "-", stdin=lines)
    return topic


def records(service, topic, *, through="url"):
    printed, _ = sampleapp(service, "consume", topic, f"--{through}", getattr(service, through))
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize(
    "route",
    [
        ("kafka", "kafka", "url"),
        ("kafka", "kafka", "broker"),
        ("kafka", "sqlite", "broker"),
        ("sqlite", "kafka", "url"),
        ("sqlite", "sqlite", "broker"),
    ],
    ids="-".join,
)
def test_a_topic_is_copied_between_brokers_record_for_record(one_node, services, original, route):
    source, target, through = route
    before, after = services[source], services[target]
    copy = one_node.admin.create(new_topic("copy"))
    pipe(
        [original, f"--{through}", getattr(before, through)],
        [copy, "--messages", "-"],
        source=before,
        target=after,
    )
    expected = [copied(record) for record in records(before, original)]
    assert len(expected) == len(LINES)
    assert [copied(record) for record in records(after, copy)] == expected


def test_idempotency_keys_add_a_header_of_text_and_change_no_other(one_node, services):
    kafka = services["kafka"]
    topic = one_node.admin.create(new_topic("keys"))
    line = json.dumps({"topic": topic, "key": "k", "content": "c", "headers": {"source": "shop"}})
    for _ in range(2):
        sampleapp(kafka, "publish", "--messages", "-", "--idempotent", stdin=f"{line}\n".encode())
    for record in records(kafka, topic) + records(kafka, topic, through="broker"):
        assert set(record["headers"]) == {"source", "idempotency-fingerprint"}
        assert record["headers"]["source"] == "shop"
        assert "headers_base64" not in record
    copy = one_node.admin.create(new_topic("copy"))
    pipe([topic, "--url", kafka.url], [copy, "--messages", "-", "--idempotent"], source=kafka, target=kafka)
    assert [record["headers"]["source"] for record in records(kafka, copy)] == ["shop", "shop"]


def test_the_topics_of_the_broker_and_of_its_service_are_listed_alike(one_node, services):
    topic = one_node.admin.create(new_topic("listed"))
    of_broker, _ = sampleapp(services["kafka"], "topics", "--broker", kafka_url(one_node))
    of_service, _ = sampleapp(services["kafka"], "topics", "--url", services["kafka"].url)
    assert topic in of_broker.splitlines()
    assert of_broker == of_service
