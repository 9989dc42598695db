"""
What becomes of messages, alone and in batches, that are published over HTTP all the time while brokers fail.

In every test: what was answered 200 is in the topic exactly once and where the answer says, what was answered
503 is not there, nothing is there twice, and the records of a key are in order. In an answer to a batch of
which not all is published, that goes for the result of each message.
"""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.publishers import CLIENTS, Publishers, check_answers, figures, report_recovery
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import post
from tests.real_kafka.versions import ELECT_LEADERS, needs
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.one_version, pytest.mark.release]

PARTITIONS = 6
SOON_S = 20


@pytest.fixture
def publishing(three_nodes, start_service, request):
    """A context manager in which messages are published all the time, and which checks them at its end."""

    @contextmanager
    def publishing(fault, **options):
        admin = three_nodes.admin
        topic = admin.create(new_topic("faults"), partitions=PARTITIONS)
        admin.wait_until_in_sync(topic, 3)
        # The leaders may not be where they were made, if nodes have just come back.
        service = start_service(three_nodes, **options)
        with Publishers(service.url, topic) as publishers:
            publishers.until_all_are_accepted()
            yield topic, publishers
            publishers.until_all_are_accepted()
        three_nodes.restore()
        admin.wait_until_in_sync(topic, 3)
        assert publishers.broken == []
        for kind, is_alone in (("", True), (", batches", False)):
            found = figures([each for each in publishers.answers if (each.sent == 1) is is_alone])
            report_recovery(request.node, three_nodes.version, fault + kind, found)
            assert found.accepted > CLIENTS
        check_answers(publishers.answers, read_all(three_nodes.bootstrap, topic))
        assert (
            len({each.body["partition"] for each in publishers.answers if each.status == 200}) == PARTITIONS
        )
        assert "Traceback" not in service.output
        assert service.stop() == -15

    return publishing


def leader_that_is_no_controller(cluster, topic):
    controller = cluster.controller().number
    return cluster.node(next(each for each in cluster.admin.leaders(topic).values() if each != controller))


def test_a_leader_is_killed_and_comes_back(three_nodes, publishing):
    with publishing("kill -9 a leader") as (topic, publishers):
        node = leader_that_is_no_controller(three_nodes, topic)
        node.kill9()
        publishers.until_all_are_accepted()
        node.start()
        three_nodes.wait_until_ready()
        three_nodes.admin.wait_until_in_sync(topic, 3)


def test_a_leader_that_is_the_controller_too_is_killed_and_comes_back(three_nodes, publishing):
    with publishing("kill -9 the controller") as (topic, publishers):
        node = three_nodes.controller()
        node.kill9()
        publishers.until_all_are_accepted()
        node.start()
        three_nodes.wait_until_ready()
        three_nodes.admin.wait_until_in_sync(topic, 3)


def test_a_leader_is_frozen_for_15_seconds(three_nodes, publishing):
    with publishing("SIGSTOP for 15 s") as (topic, _):
        node = leader_that_is_no_controller(three_nodes, topic)
        node.freeze()
        time.sleep(15)
        node.thaw()
        three_nodes.admin.wait_until_in_sync(topic, 3)


def test_the_nodes_are_restarted_one_after_the_other(three_nodes, publishing):
    with publishing("rolling restart") as (topic, publishers):
        for node in three_nodes.nodes:
            node.stop()
            node.start()
            three_nodes.wait_until_ready()
            three_nodes.admin.wait_until_in_sync(topic, 3)
            publishers.until_all_are_accepted(1)


@needs(ELECT_LEADERS)
def test_other_leaders_are_elected(three_nodes, publishing):
    with publishing("leader election") as (topic, publishers):
        admin = three_nodes.admin
        preferred = admin.leaders(topic)
        # Stopped in order, a node hands over what it leads; it gets that back when somebody says so.
        for node in three_nodes.nodes[:2]:
            node.stop()
            node.start()
            three_nodes.wait_until_ready()
            admin.wait_until_in_sync(topic, 3)
        assert admin.leaders(topic) != preferred
        publishers.until_all_are_accepted()
        begun = len(publishers.answers)
        admin.elect(topic, partitions=range(PARTITIONS))
        publishers.until_all_are_accepted()
        assert admin.leaders(topic) == preferred
        # Nobody was down, so that nobody has to be told of it.
        assert {each.status for each in publishers.answers[begun:]} == {200}


def test_all_brokers_are_down_for_20_seconds(three_nodes, publishing, start_service):
    with publishing("all down for 20 s") as (topic, publishers):
        three_nodes.kill9()
        back_at_s = time.monotonic() + 20
        # One that is started meanwhile comes up all the same, and says so.
        late = start_service(three_nodes, delivery_timeout=2)
        status, body = post(late, topic, "early", key="late")
        assert (status, body["type"]) == (503, "urn:sampleapp:problem:broker-unavailable")
        time.sleep(max(0, back_at_s - time.monotonic()))
        three_nodes.start()
        ready_at_s = time.monotonic()
        publishers.until_all_are_accepted(1)
        assert time.monotonic() - ready_at_s < SOON_S
        numbers = itertools.count()
        wait_until(
            lambda: post(late, topic, f"late:{next(numbers)}", key="late")[0] == 200, "the late one publishes"
        )


def test_the_only_broker_that_the_service_was_told_of_is_killed(three_nodes, publishing):
    # By then it has told of the others.
    with publishing("kill -9 the one known", addresses=three_nodes.address(1)) as (_, publishers):
        three_nodes.node(1).kill9()
        publishers.until_all_are_accepted()
