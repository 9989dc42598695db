"""A readings topic that was deleted and made again, however long it is now."""

from __future__ import annotations

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.service import get_readings, wait_for_line, wait_for_readings
from tests.real_kafka.versions import TOPIC_IDS, needs
from tests.real_kafka.writing import produce

pytestmark = pytest.mark.release


def write(cluster, topic, name, count):
    """Write that many readings, and return them."""
    readings = {f"{name}{n}": float(n) for n in range(count)}
    keys = iter(readings)
    produce(cluster, topic, [str(v).encode() for v in readings.values()], key=lambda _: next(keys).encode())
    return readings


# With fewer records than before, the log that ends too early gives it away, without any topic id.
@pytest.mark.parametrize("count", [pytest.param(12, marks=needs(TOPIC_IDS)), 3])
def test_the_readings_are_those_of_the_new_topic_alone(one_node, start_service, count):
    topic = one_node.admin.create(new_topic("again"))
    service = start_service(one_node, service_options=["--readings-topic", topic])
    wait_for_readings(service, write(one_node, topic, "old", 5))
    one_node.admin.delete(topic)
    one_node.admin.create(topic)
    new = write(one_node, topic, "new", count)
    wait_for_readings(service, new)
    wait_for_line(service, topic, "deleted")
    # And it is followed on.
    wait_for_readings(service, new | write(one_node, topic, "later", 2))
    again = start_service(one_node, service_options=["--readings-topic", topic])
    expected = wait_for_readings(again, new | {"later0": 0.0, "later1": 1.0})
    assert get_readings(service) == expected
    assert "Traceback" not in service.output
