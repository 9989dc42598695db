"""What ``GET /`` serves of a topic in Kafka, and in which order."""

from __future__ import annotations

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import get_readings, post, wait_for_line, wait_for_readings
from tests.real_kafka.writing import produce
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.one_version, pytest.mark.release]

PARTITIONS = 6
KEYS = 600


def test_a_topic_that_does_not_exist_is_said_to_be_missing_and_is_followed_once_it_exists(
    one_node, start_service
):
    topic = new_topic("missing")
    service = start_service(one_node, service_options=["--readings-topic", topic])
    wait_for_line(service, topic, "does not exist")
    answer = get_readings(service)
    assert (answer.status, answer.body) == (200, b"[]") or (
        answer.status == 503 and "still being read" not in answer.detail
    )
    assert not one_node.admin.exists(topic)
    one_node.admin.create(topic, partitions=3)
    # The topic is known to those who follow it before it is to those who publish, or the other way round.
    wait_until(lambda: post(service, topic, "21.5", key="kitchen")[0] == 200, "it is published to")
    wait_for_readings(service, {"kitchen": 21.5})


def test_services_on_one_topic_serve_the_same_bytes_also_after_a_restart(three_nodes, start_service):
    admin = three_nodes.admin
    topic = admin.create(new_topic("order"), partitions=PARTITIONS)
    admin.wait_until_in_sync(topic, 3)
    options = {"service_options": ["--readings-topic", topic]}
    live = [start_service(three_nodes, **options) for _ in range(2)]
    keys = [b"%d" % n for n in range(KEYS)]
    # Twice: what comes later of an id is not what decides on its place.
    for values in (keys, keys[::-1]):
        produce(three_nodes, topic, values, key=lambda value: value)
    expected = {key.decode(): float(key) for key in in_order(read_all(three_nodes.bootstrap, topic))}
    answers = [wait_for_readings(service, expected) for service in live]
    live[0].stop()
    answers += [wait_for_readings(start_service(three_nodes, **options), expected) for _ in range(3)]
    assert [list(each.readings) for each in answers] == [list(expected)] * len(answers)
    assert len({each.body for each in answers}) == 1
    assert len({each.etag for each in answers}) == 1


def in_order(stored):
    """The ids, by the time, the partition and the offset of the first record of each."""
    first = {}
    for each in sorted(stored, key=lambda each: (each.partition, each.offset)):
        first.setdefault(each.key, (each.timestamp_ms, each.partition, each.offset))
    return sorted(first, key=first.get)
