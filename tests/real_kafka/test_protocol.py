"""What Kafka itself takes and answers of the flexible versions, asked over a plain socket."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import (
    ApiVersionsRequest,
    FetchRequest,
    MetadataRequest,
)
from tests.real_kafka.admin import new_topic
from tests.real_kafka.versions import FETCH_BY_ID, needs
from tests.real_kafka.wire import connected
from tests.support.waiting import wait_until

pytestmark = needs(FETCH_BY_ID)

VERSIONS = ApiVersionsRequest(software_name="sampleapp", software_version="0.1.0")


@pytest.mark.parametrize("api_version", range(VERSIONS.api.lowest, VERSIONS.api.highest + 1))
def test_every_version_of_the_first_question_is_answered(one_node, api_version):
    with connected(one_node.bootstrap) as wire:
        answer = wire.ask(VERSIONS, api_version)
    assert answer.error == ErrorCode.NONE
    assert answer.ranges[MetadataRequest.api.key][1] >= MetadataRequest.api.highest
    assert answer.ranges[FetchRequest.api.key][1] >= FetchRequest.api.highest


@pytest.mark.parametrize("api_version", range(MetadataRequest.api.lowest, MetadataRequest.api.highest + 1))
def test_every_version_of_metadata_says_the_same(one_node, api_version):
    topic = one_node.admin.create(new_topic("same"), partitions=3)
    request = MetadataRequest(topics=[topic], auto_create=False)
    with connected(one_node.bootstrap) as wire:
        answers = [wire.ask(request, each).topics[0] for each in (MetadataRequest.api.highest, api_version)]
    newest, asked = answers
    assert asked.error == ErrorCode.NONE
    has_epochs = api_version >= 7
    assert asked.partitions == tuple(
        each if has_epochs else replace(each, leader_epoch=-1) for each in newest.partitions
    )
    assert min(each.leader_epoch for each in newest.partitions) >= 0
    assert newest.topic_id is not None
    assert asked.topic_id == (newest.topic_id if api_version >= 10 else None)


def test_a_topic_that_is_made_again_has_another_id_and_is_not_read_by_the_old_one(one_node):
    topic = one_node.admin.create(new_topic("again"), partitions=1)
    with connected(one_node.bootstrap) as wire:

        def topic_id():
            request = MetadataRequest(topics=[topic], auto_create=False)
            return wire.ask(request, MetadataRequest.api.highest).topics[0].topic_id

        def fetched(ids):
            request = FetchRequest(
                topics=[(topic, [(0, 0)])],
                topic_ids=ids,
                max_wait_ms=1,
                min_bytes=1,
                max_bytes=1000,
                partition_max_bytes=1000,
                read_committed=True,
            )
            version = request.version_for({FetchRequest.api.key: (4, 17)})
            [answer] = wire.ask(request, version)
            assert (answer.topic, answer.partition) == (topic, 0)
            return answer.error

        first = topic_id()
        wait_until(lambda: fetched({topic: first}) == ErrorCode.NONE, "the new topic can be read")
        one_node.admin.delete(topic)
        wait_until(lambda: topic_id() is None, "it is deleted")
        one_node.admin.create(topic, partitions=1)
        wait_until(lambda: topic_id() not in {None, first}, "it is there again")
        wait_until(lambda: fetched({}) == ErrorCode.NONE, "it can be read again")
        assert fetched({topic: first}) in {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
        assert fetched({topic: topic_id()}) == ErrorCode.NONE
