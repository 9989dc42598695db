"""Requests and answers of share groups, against classes that were generated from Kafka's own schemas."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

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
from tests.support.kafka_simulator.wire import ms

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
    def test_find_coordinator(self, oracle, version):
        kio = oracle("find_coordinator", version)

        @examples(40)
        @given(errors, int32s, few_texts)
        def same_fields(error, node_id, message):
            found = kio.Coordinator(
                key="g",
                node_id=node_id,
                host="localhost",
                port=9092,
                error_code=kio.error(error),
                error_message=message,
            )
            response = kio.FindCoordinatorResponse(throttle_time=ms(7), coordinators=(found,))
            assert FIND_COORDINATOR.decode(version, kio.dump_answer(response)) == Coordinator(error, node_id)

        same_fields()

    @each_version(ShareGroupHeartbeatRequest)
    def test_share_group_heartbeat(self, oracle, version):
        kio = oracle("share_group_heartbeat", version)
        numbers = st.lists(int32s, max_size=3).map(tuple)
        assignments = st.none() | st.dictionaries(topic_ids, numbers, max_size=3)

        @examples(40)
        @given(st.builds(ShareGroupHeartbeat, errors, int32s, assignments), durations_ms, few_texts)
        def same_fields(answer, interval_ms, text):
            topics = tuple(
                kio.TopicPartitions(topic_id=topic_id, partitions=each)
                for topic_id, each in (answer.assignment or {}).items()
            )
            response = kio.ShareGroupHeartbeatResponse(
                throttle_time=ms(7),
                error_code=kio.error(answer.error),
                error_message=text,
                member_id=text,
                member_epoch=answer.member_epoch,
                heartbeat_interval=ms(interval_ms),
                assignment=None if answer.assignment is None else kio.Assignment(topic_partitions=topics),
            )
            assert SHARE_GROUP_HEARTBEAT.decode(version, kio.dump_answer(response)) == answer

        same_fields()

    @each_version(ShareFetchRequest)
    def test_share_fetch(self, oracle, version):
        kio = oracle("share_fetch", version)
        acquired = st.builds(AcquiredRecords, offsets, offsets, st.integers(-(2**15), 2**15 - 1))
        fetched = st.builds(
            SharePartition, partitions, errors, st.lists(acquired, max_size=3).map(tuple), st.binary()
        )

        def entity(part, text):
            return kio.PartitionData(
                partition_index=part.partition,
                error_code=kio.error(part.error),
                error_message=text,
                acknowledge_error_code=6,
                acknowledge_error_message=text,
                current_leader=kio.LeaderIdAndEpoch(leader_id=7, leader_epoch=5),
                records=part.records,
                acquired_records=tuple(
                    kio.AcquiredRecords(
                        first_offset=each.first_offset,
                        last_offset=each.last_offset,
                        delivery_count=each.delivery_count,
                    )
                    for each in part.acquired
                ),
            )

        @examples(80)
        @given(
            st.builds(ShareFetched, errors, durations_ms, st.lists(fetched, max_size=4).map(tuple)),
            topic_ids,
            few_texts,
            st.integers(0, 2),
        )
        def same_fields(answer, topic_id, text, nodes):
            topic = kio.ShareFetchableTopicResponse(
                topic_id=topic_id, partitions=tuple(entity(each, text) for each in answer.partitions)
            )
            node = kio.NodeEndpoint(node_id=7, host="localhost", port=9092, rack=text)
            response = kio.ShareFetchResponse(
                throttle_time=ms(7),
                error_code=kio.error(answer.error),
                error_message=text,
                acquisition_lock_timeout=ms(answer.lock_ms),
                responses=(topic,) if answer.partitions else (),
                node_endpoints=(node,) * nodes,
            )
            assert SHARE_FETCH.decode(version, kio.dump_answer(response)) == answer

        same_fields()

    @each_version(ShareAcknowledgeRequest)
    def test_share_acknowledge(self, oracle, version):
        kio = oracle("share_acknowledge", version)

        @examples(40)
        @given(
            st.builds(
                ShareAcknowledged,
                errors,
                st.dictionaries(partitions, errors, max_size=3),
                st.integers(0, 2**31 - 1),
            ),
            topic_ids,
            few_texts,
        )
        def same_fields(answer, topic_id, text):
            parts = tuple(
                kio.PartitionData(
                    partition_index=number,
                    error_code=kio.error(error),
                    error_message=text,
                    current_leader=kio.LeaderIdAndEpoch(leader_id=7, leader_epoch=5),
                )
                for number, error in answer.errors.items()
            )
            response = kio.ShareAcknowledgeResponse(
                throttle_time=ms(7),
                error_code=kio.error(answer.error),
                error_message=text,
                acquisition_lock_timeout=ms(answer.lock_ms),
                responses=(kio.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=parts),),
                node_endpoints=(kio.NodeEndpoint(node_id=7, host="localhost", port=9092, rack=text),),
            )
            assert SHARE_ACKNOWLEDGE.decode(version, kio.dump_answer(response)) == answer

        same_fields()

    @each_version(DescribeShareGroupOffsetsRequest)
    def test_describe_share_group_offsets(self, oracle, version):
        kio = oracle("describe_share_group_offsets", version)
        states = st.dictionaries(partitions, offsets, max_size=3)

        by_topic = st.dictionaries(strategies.topics, states, max_size=3)

        @examples(40)
        @given(st.builds(ShareGroupOffsets, errors, by_topic), errors, topic_ids, few_texts)
        def same_fields(answer, error, topic_id, text):
            topics = tuple(
                kio.DescribeShareGroupOffsetsResponseTopic(
                    topic_name=name,
                    topic_id=topic_id,
                    partitions=tuple(
                        kio.DescribeShareGroupOffsetsResponsePartition(
                            partition_index=number,
                            start_offset=17,
                            leader_epoch=5,
                            lag=lag,
                            error_code=kio.error(error if lag < 0 else 0),
                            error_message=text,
                        )
                        for number, lag in of_topic.items()
                    ),
                )
                for name, of_topic in answer.lags.items()
            )
            group = kio.DescribeShareGroupOffsetsResponseGroup(
                group_id="g", topics=topics, error_code=kio.error(answer.error), error_message=text
            )
            response = kio.DescribeShareGroupOffsetsResponse(throttle_time=ms(7), groups=(group,))
            assert DESCRIBE_SHARE_GROUP_OFFSETS.decode(version, kio.dump_answer(response)) == answer

        same_fields()

    @each_version(SetGroupConfigsRequest)
    def test_set_group_configs(self, oracle, version):
        kio = oracle("incremental_alter_configs", version)

        @examples(40)
        @given(errors, few_texts)
        def same_fields(error, message):
            result = kio.AlterConfigsResourceResponse(
                error_code=kio.error(error), error_message=message, resource_type=32, resource_name="g"
            )
            response = kio.IncrementalAlterConfigsResponse(throttle_time=ms(7), responses=(result,))
            assert SET_GROUP_CONFIGS.decode(version, kio.dump_answer(response)) == error

        same_fields()
