"""``sampleapp consume`` with Kafka."""

from __future__ import annotations

import json
import re

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.service import consume
from tests.real_kafka.writing import produce

pytestmark = pytest.mark.release


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


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]),
        ("latest", []),
        ("-1", [(0, 2), (1, 2), (2, 2)]),
        ("offset:2", [(0, 2), (1, 2), (2, 2)]),
        ("1795363727918000000", []),
        ("ID~1.-", [(0, 1), (0, 2), (2, 0), (2, 1), (2, 2)]),
    ],
)
def test_it_begins_where_http_would(one_node, start, expected):
    topic = one_node.admin.create(new_topic("starts"), partitions=3)
    for partition in range(3):
        produce(one_node, topic, [b"0", b"1", b"2"], partition=partition)
    if "ID" in start:
        # The sentence about another topic's position has the id of this one.
        said = consume(one_node, topic, "--from", "other~").stderr
        start = start.replace("ID", re.search(r"has the id (\S+)\. It", said)[1])
    found = consume(one_node, topic, "--from", start)
    assert found.returncode == 0, found.stderr
    records = map(json.loads, found.stdout.splitlines())
    assert sorted((each["partition"], each["offset"]) for each in records) == expected
