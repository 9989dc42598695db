"""Topics in old formats: what cannot be done there, and what is said then."""

from __future__ import annotations

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.reading import read_all
from tests.real_kafka.service import post, wait_for_line
from tests.real_kafka.versions import OLD_FORMATS, needs


@needs(OLD_FORMATS)
@pytest.mark.parametrize("version_of_format", ["0.9.0", "0.10.2"])
def test_a_topic_in_an_old_format_takes_records_without_idempotence_and_the_log_says_so(
    one_node, start_service, version_of_format
):
    topic = one_node.admin.create(new_topic("old"), message_format_version=version_of_format)
    service = start_service(one_node)
    assert post(service, topic, "x", key="k") == (200, {"topic": topic, "partition": 0, "offset": 0})
    wait_for_line(service, topic, "without idempotence", "message.format.version")
    unnumbered = start_service(one_node, idempotence="false")
    assert post(unnumbered, topic, "y", key="k") == (200, {"topic": topic, "partition": 0, "offset": 1})
    assert "message.format.version" not in unnumbered.output
    assert [(each.key, each.value) for each in read_all(one_node.bootstrap, topic)] == [
        (b"k", b"x"),
        (b"k", b"y"),
    ]
