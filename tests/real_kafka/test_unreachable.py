"""All brokers are down: who publishes is told so soon, and who reads is told so as well."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import get_readings, post, wait_for_readings, wait_until_ready
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.one_version, pytest.mark.release]

# Far from both the 2 s that an answer takes then, and the 30 s for which a record waits otherwise.
SOON_S = 8
DOWN_DEADLINE_S = 90


@contextmanager
def all_down(cluster):
    """All brokers are down inside, and are back afterwards."""
    cluster.kill9()
    try:
        yield
    finally:
        cluster.restore()


@pytest.fixture
def timed_post():
    """A function that publishes; returns the status, and how long the answer took."""

    def timed_post(service, topic, content):
        begun_s = time.monotonic()
        status, body = post(service, topic, content)
        assert status == 200 or body["type"] == "urn:sampleapp:problem:broker-unavailable", body
        return status, time.monotonic() - begun_s

    return timed_post


def test_after_a_while_records_are_rejected_soon_and_soon_after_it_they_are_taken(
    one_node, start_service, timed_post
):
    topic = one_node.admin.create(new_topic("down"))
    service = start_service(one_node)
    assert post(service, topic, "before", key="k")[0] == 200
    with all_down(one_node):
        # The first ones may have to wait for those seconds in which it may still come back.
        wait_until(
            lambda: (answer := timed_post(service, topic, "x"))[0] == 503 and answer[1] < SOON_S,
            "503 soon",
            deadline_s=DOWN_DEADLINE_S,
        )
        answers = [timed_post(service, topic, "y") for _ in range(3)]
        assert {status for status, _ in answers} == {503}
        assert max(took_s for _, took_s in answers) < SOON_S
    wait_until(lambda: one_node.admin.leaders(topic), "the topic has a leader")
    wait_until(
        lambda: timed_post(service, topic, "after")[0] == 200, "they are taken again", deadline_s=SOON_S
    )
    assert [each.value for each in read_all(one_node.bootstrap, topic)] == [b"before", b"after"]


def test_a_leader_that_is_missed_for_long_costs_nobody_an_answer(one_node, start_service):
    """Within the default time for delivery, a broker may be killed and started again."""
    topic = one_node.admin.create(new_topic("missed"))
    service = start_service(one_node)
    assert post(service, topic, "before", key="k")[0] == 200
    one_node.node(1).stop()
    one_node.start()
    # On a slow machine, the start takes longer than the seconds after which Kafka counts as unreachable.
    wait_until(lambda: one_node.admin.leaders(topic), "the topic has a leader")
    wait_until_ready(service)
    assert post(service, topic, "after", key="k")[0] == 200


def test_readings_that_cannot_be_read_at_the_start_are_not_said_to_be_under_way(one_node, start_service):
    topic = one_node.admin.create(new_topic("down"))
    options = {"service_options": ["--readings-topic", topic]}
    assert post(start_service(one_node, **options), topic, "1", key="1")[0] == 200
    with all_down(one_node):
        service = start_service(one_node, **options)
        service.wait_for_output("still trying")
        answer = get_readings(service)
        assert answer.status == 503
        assert "still being read" not in answer.detail
        assert "127.0.0.1" not in answer.detail
    wait_for_readings(service, {"1": 1.0})
