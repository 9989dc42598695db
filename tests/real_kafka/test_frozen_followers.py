"""Followers that do not answer: every request is answered in time, and nothing of it stays behind."""

from __future__ import annotations

import re
import threading
import time
from urllib.request import urlopen

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.publishers import BATCH_KEYS, Publishers, check_answers
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import post
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.one_version, pytest.mark.release]

DELIVERY_TIMEOUT_S = 3
DRAIN_TIMEOUT_S = 3
SLACK_S = 5
"""For a machine that is busy with three nodes."""
FROZEN_S = 10
LINES = (10, 100, 1000, 2500, 5000)
ASSIGNMENT = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [3, 1, 2]]
"""Of each partition the leader, and then its followers."""


@pytest.fixture
def topic(three_nodes):
    topic = three_nodes.admin.create(new_topic("frozen"), assignment=ASSIGNMENT, min_insync_replicas=2)
    three_nodes.admin.wait_until_in_sync(topic, 3)
    return topic


def waiting(service, unit):
    with urlopen(f"{service.url}metrics") as response:
        page = response.read().decode()
    return int(float(re.search(rf"^sampleapp_broker_waiting_{unit} (\S+)$", page, re.MULTILINE).group(1)))


def test_batches_of_every_size_are_answered_in_time_while_followers_are_frozen(
    three_nodes, topic, start_service
):
    service = start_service(three_nodes, delivery_timeout=DELIVERY_TIMEOUT_S)
    batches = [lines // BATCH_KEYS for lines in LINES]
    with Publishers(service.url, topic, batches=batches) as publishers:
        publishers.until_all_are_accepted(1)
        followers = [three_nodes.node(number) for number in (2, 3)]
        for node in followers:
            node.freeze()
        time.sleep(FROZEN_S)
        for node in followers:
            node.thaw()
        publishers.until_all_are_accepted(1)
    assert publishers.broken == []
    slowest_s = max(each.answered_at_s - each.asked_at_s for each in publishers.answers)
    assert slowest_s < DELIVERY_TIMEOUT_S + SLACK_S
    assert {each.status for each in publishers.answers} > {200, 504}
    wait_until(lambda: waiting(service, "bytes") == 0, "the buffer is empty")
    three_nodes.admin.wait_until_in_sync(topic, 3)
    check_answers(publishers.answers, read_all(three_nodes.bootstrap, topic))
    assert "Traceback" not in service.output
    assert service.stop() == -15


def test_the_service_ends_in_time_while_followers_are_frozen(three_nodes, topic, start_service):
    service = start_service(
        three_nodes, delivery_timeout=60, service_options=["--drain-timeout", str(DRAIN_TIMEOUT_S)]
    )
    assert post(service, topic, "before")[0] == 200
    for number in (2, 3):
        three_nodes.node(number).freeze()
    answers = []
    clients = [
        threading.Thread(target=lambda n=n: answers.append(post(service, topic, "x", key=str(n))[0]))
        for n in range(20)
    ]
    for client in clients:
        client.start()
    wait_until(lambda: waiting(service, "records") == len(clients), "records wait for the followers")
    began_s = time.monotonic()
    assert service.stop() == -15
    assert time.monotonic() - began_s < DRAIN_TIMEOUT_S + SLACK_S
    for client in clients:
        client.join()
    assert set(answers) <= {200, 503, 504}
    assert len(answers) == len(clients)
