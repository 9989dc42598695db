"""``sampleapp consume`` with Kafka."""

from __future__ import annotations

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.service import consume
from tests.real_kafka.writing import produce


def test_a_topic_that_does_not_exist_is_a_failure(one_node):
    topic = new_topic("absent")
    found = consume(one_node, topic)
    assert (found.returncode, found.stdout) == (1, "")
    assert topic in found.stderr
    assert "There is no topic" in found.stderr
    assert not one_node.admin.exists(topic)


@pytest.mark.parametrize("topic", ["..", "bad name"])
def test_a_name_that_no_topic_can_have_is_a_failure(one_node, topic):
    found = consume(one_node, topic)
    assert found.returncode in (1, 2)
    assert found.stdout == ""


def test_an_empty_topic_is_none(one_node):
    found = consume(one_node, one_node.admin.create(new_topic("empty")))
    assert (found.returncode, found.stdout) == (0, "")


def test_what_is_in_a_topic_is_printed(one_node):
    topic = one_node.admin.create(new_topic("full"))
    produce(one_node, topic, [b"1", b"2"], key=lambda value: value)
    found = consume(one_node, topic)
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 2
