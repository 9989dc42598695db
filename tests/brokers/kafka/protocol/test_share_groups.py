"""Requests and answers of share groups, against classes that were generated from Kafka's own schemas."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sampleapp.brokers.kafka.protocol import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRecords,
    Coordinator,
    DescribeShareGroupOffsetsRequest,
    FindCoordinatorRequest,
    SetGroupConfigsRequest,
    ShareAcknowledged,
    ShareAcknowledgeRequest,
    ShareFetched,
    ShareFetchRequest,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatRequest,
    ShareGroupOffsets,
    SharePartition,
)
from tests.brokers.kafka.protocol.requests import (
    DESCRIBE_SHARE_GROUP_OFFSETS,
    FIND_COORDINATOR,
    SET_GROUP_CONFIGS,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_HEARTBEAT,
    durations_ms,
    each_version,
    errors,
    few_texts,
    int32s,
    offsets,
    partitions,
    topic_ids,
)
from tests.support import strategies
from tests.support.examples import examples
from tests.support.kafka_simulator.wire import encode_response, ms

batches = st.builds(Acknowledgement, offsets, offsets, st.sampled_from(AcknowledgeType))
acknowledgements = st.dictionaries(partitions, st.lists(batches, min_size=1, max_size=3), max_size=3)


class TestRequestsAgainstKafkasSchemas:
    @each_version(FindCoordinatorRequest)
    def test_find_coordinator(self, oracle, version):
        kio = oracle("find_coordinator", version)

        @examples(40)
        @given(strategies.texts)
        def same_bytes(group):
            expected = kio.FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))
            assert FindCoordinatorRequest(group=group).encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(ShareGroupHeartbeatRequest)
    def test_share_group_heartbeat(self, oracle, version):
        kio = oracle("share_group_heartbeat", version)

        @examples(40)
        @given(strategies.texts, strategies.texts, int32s, st.none() | strategies.topics)
        def same_bytes(group, member_id, epoch, topic):
            expected = kio.ShareGroupHeartbeatRequest(
                group_id=group,
                member_id=member_id,
                member_epoch=epoch,
                rack_id=None,
                subscribed_topic_names=None if topic is None else (topic,),
            )
            request = ShareGroupHeartbeatRequest(
                group=group, member_id=member_id, member_epoch=epoch, topic=topic
            )
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(ShareFetchRequest)
    def test_share_fetch(self, oracle, version):
        kio = oracle("share_fetch", version)

        @examples(40)
        @given(
            st.tuples(strategies.texts, strategies.texts, int32s),
            st.tuples(topic_ids, st.lists(partitions, max_size=3)),
            st.tuples(durations_ms, int32s, int32s),
        )
        def same_bytes(session, topic, limits):
            group, member_id, epoch = session
            topic_id, numbers = topic
            max_wait_ms, max_records, max_bytes = limits
            parts = tuple(
                kio.FetchPartition(partition_index=each, acknowledgement_batches=()) for each in numbers
            )
            expected = kio.ShareFetchRequest(
                group_id=group,
                member_id=member_id,
                share_session_epoch=epoch,
                max_wait=ms(max_wait_ms),
                min_bytes=1,
                max_bytes=max_bytes,
                max_records=max_records,
                batch_size=max_records,
                share_acquire_mode=1,
                is_renew_ack=False,
                topics=(kio.FetchTopic(topic_id=topic_id, partitions=parts),) if parts else (),
                forgotten_topics_data=(),
            )
            request = ShareFetchRequest(
                group=group,
                member_id=member_id,
                session_epoch=epoch,
                topic_id=topic_id,
                partitions=numbers,
                max_wait_ms=max_wait_ms,
                max_records=max_records,
                max_bytes=max_bytes,
            )
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(ShareAcknowledgeRequest)
    def test_share_acknowledge(self, oracle, version):
        kio = oracle("share_acknowledge", version)

        def batch(each):
            return kio.AcknowledgementBatch(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                acknowledge_types=(int(each.type),),
            )

        @examples(80)
        @given(st.tuples(strategies.texts, strategies.texts, int32s), topic_ids, acknowledgements)
        def same_bytes(session, topic_id, named):
            group, member_id, epoch = session
            parts = tuple(
                kio.AcknowledgePartition(
                    partition_index=number, acknowledgement_batches=tuple(map(batch, each))
                )
                for number, each in named.items()
            )
            renews = any(each.type is AcknowledgeType.RENEW for each in chain(*named.values()))
            expected = kio.ShareAcknowledgeRequest(
                group_id=group,
                member_id=member_id,
                share_session_epoch=epoch,
                is_renew_ack=renews,
                topics=(kio.AcknowledgeTopic(topic_id=topic_id, partitions=parts),) if parts else (),
            )
            request = ShareAcknowledgeRequest(
                group=group,
                member_id=member_id,
                session_epoch=epoch,
                topic_id=topic_id,
                acknowledgements=named,
            )
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(DescribeShareGroupOffsetsRequest)
    def test_describe_share_group_offsets(self, oracle, version):
        kio = oracle("describe_share_group_offsets", version)

        @examples(40)
        @given(strategies.texts)
        def same_bytes(group):
            of_group = kio.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
            expected = kio.DescribeShareGroupOffsetsRequest(groups=(of_group,))
            request = DescribeShareGroupOffsetsRequest(group=group)
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(SetGroupConfigsRequest)
    def test_set_group_configs(self, oracle, version):
        kio = oracle("incremental_alter_configs", version)

        @examples(40)
        @given(strategies.texts, st.dictionaries(strategies.texts, strategies.texts, max_size=3))
        def same_bytes(group, values):
            configs = tuple(
                kio.AlterableConfig(name=name, config_operation=0, value=value)
                for name, value in values.items()
            )
            resource = kio.AlterConfigsResource(resource_type=32, resource_name=group, configs=configs)
            expected = kio.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
            assert SetGroupConfigsRequest(group=group, values=values).encode(version) == kio.dump(expected)

        same_bytes()


class TestAnswersAgainstKafkasSchemas:
    @each_version(FindCoordinatorRequest)
    def test_find_coordinator(self, version):
        @examples(40)
        @given(st.builds(Coordinator, errors, int32s), few_texts)
        def same_fields(answer, text):
            assert_same(FIND_COORDINATOR, version, answer, text)

        same_fields()

    @each_version(ShareGroupHeartbeatRequest)
    def test_share_group_heartbeat(self, version):
        numbers = st.lists(int32s, max_size=3).map(tuple)
        assignments = st.none() | st.dictionaries(topic_ids, numbers, max_size=3)

        @examples(40)
        @given(st.builds(ShareGroupHeartbeat, errors, int32s, assignments), few_texts)
        def same_fields(answer, text):
            assert_same(SHARE_GROUP_HEARTBEAT, version, answer, text)

        same_fields()

    @each_version(ShareFetchRequest)
    def test_share_fetch(self, version):
        acquired = st.builds(AcquiredRecords, offsets, offsets, st.integers(-(2**15), 2**15 - 1))
        fetched = st.builds(
            SharePartition, partitions, errors, st.lists(acquired, max_size=3).map(tuple), st.binary()
        )

        @examples(80)
        @given(
            st.builds(ShareFetched, errors, durations_ms, st.lists(fetched, max_size=4).map(tuple)),
            topic_ids,
            few_texts,
        )
        def same_fields(answer, topic_id, text):
            assert_same(replace(SHARE_FETCH, topic_id=topic_id), version, answer, text)

        same_fields()

    @each_version(ShareAcknowledgeRequest)
    def test_share_acknowledge(self, version):
        of_partitions = st.dictionaries(partitions, errors, max_size=3)

        @examples(40)
        @given(st.builds(ShareAcknowledged, errors, of_partitions, durations_ms), topic_ids, few_texts)
        def same_fields(answer, topic_id, text):
            assert_same(replace(SHARE_ACKNOWLEDGE, topic_id=topic_id), version, answer, text)

        same_fields()

    @each_version(DescribeShareGroupOffsetsRequest)
    def test_describe_share_group_offsets(self, version):
        states = st.dictionaries(partitions, offsets, max_size=3)
        by_topic = st.dictionaries(strategies.topics, states, max_size=3)

        @examples(40)
        @given(st.builds(ShareGroupOffsets, errors, by_topic), few_texts)
        def same_fields(answer, text):
            assert_same(DESCRIBE_SHARE_GROUP_OFFSETS, version, answer, text)

        same_fields()

    @each_version(SetGroupConfigsRequest)
    def test_set_group_configs(self, version):
        @examples(40)
        @given(errors, few_texts)
        def same_fields(error, text):
            assert_same(SET_GROUP_CONFIGS, version, error, text)

        same_fields()


def assert_same(request, version, answer, text):
    assert request.decode(version, encode_response(request, version, answer, text=text)) == answer
