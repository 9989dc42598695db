"""A transaction that nobody ends keeps readings from being served, which is said."""

from __future__ import annotations

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.service import get_readings, wait_for_line, wait_for_readings
from tests.real_kafka.writing import open_transaction, produce

pytestmark = pytest.mark.release


def test_at_the_start_the_log_and_the_503_name_where_it_begins(one_node, start_service):
    topic = one_node.admin.create(new_topic("open"))
    produce(one_node, topic, [b"1", b"2"], key=lambda value: value)
    producer = open_transaction(one_node, topic, b"3", key=b"3")
    service = start_service(one_node, service_options=["--readings-topic", topic])
    wait_for_line(service, topic, "transaction", "partition 0", "offset 2")
    answer = get_readings(service)
    assert answer.status == 503
    for words in ("transaction", "partition 0", "offset 2"):
        assert words in answer.detail.lower()
    producer.abort_transaction(30)
    wait_for_readings(service, {"1": 1.0, "2": 2.0})


def test_while_running_the_log_names_where_it_begins(one_node, start_service):
    topic = one_node.admin.create(new_topic("open"))
    service = start_service(one_node, service_options=["--readings-topic", topic])
    produce(one_node, topic, [b"1"], key=lambda value: value)
    wait_for_readings(service, {"1": 1.0})
    producer = open_transaction(one_node, topic, b"2", key=b"2")
    produce(one_node, topic, [b"3"], key=lambda value: value)
    wait_for_line(service, topic, "transaction", "partition 0", "offset 1")
    # What was read before is served.
    assert get_readings(service).readings == {"1": 1.0}
    producer.commit_transaction(30)
    wait_for_readings(service, {"1": 1.0, "2": 2.0, "3": 3.0})


def test_a_transaction_that_ends_soon_is_not_worth_a_line(one_node, start_service):
    topic = one_node.admin.create(new_topic("open"))
    service = start_service(one_node, service_options=["--readings-topic", topic])
    for n in range(3):
        producer = open_transaction(one_node, topic, b"%d" % n, key=b"%d" % n)
        producer.commit_transaction(30)
        wait_for_readings(service, {str(each): float(each) for each in range(n + 1)})
    assert "transaction" not in service.output.lower()
