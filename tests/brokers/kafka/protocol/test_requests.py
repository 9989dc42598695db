"""Requests as bytes, against classes that were generated from Kafka's own schemas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.protocol import (
    EARLIEST,
    LATEST,
    ApiVersionsRequest,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SessionFetchRequest,
    request_frame,
)
from sampleapp.model import epoch_of, with_epoch
from tests.brokers.kafka.protocol.requests import (
    API_VERSIONS,
    METADATA,
    by_topic,
    durations_ms,
    each_version,
    int32s,
    offsets,
    partitions,
    topic_ids,
)
from tests.support import strategies
from tests.support.examples import examples
from tests.support.kafka_simulator.wire import ms

positions = st.builds(with_epoch, offsets, st.integers(-1, 2**31 - 1))


class TestRequestsAgainstKafkasSchemas:
    @each_version(ProduceRequest)
    def test_produce(self, oracle, version):
        kio = oracle("produce", version)

        @examples(40)
        @given(by_topic(st.tuples(partitions, st.binary())), durations_ms, st.sampled_from([-1, 0, 1]))
        def same_bytes(topics, timeout_ms, acks):
            expected = kio.ProduceRequest(
                transactional_id=None,
                acks=acks,
                timeout=ms(timeout_ms),
                topic_data=tuple(
                    kio.TopicProduceData(
                        name=topic,
                        partition_data=tuple(
                            kio.PartitionProduceData(index=index, records=batch) for index, batch in parts
                        ),
                    )
                    for topic, parts in topics
                ),
            )
            request = ProduceRequest(topics=topics, timeout_ms=timeout_ms, acks=acks)
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(FetchRequest)
    def test_fetch(self, oracle, version):
        kio = oracle("fetch", version)

        @examples(40)
        @given(
            by_topic(st.tuples(partitions, positions)),
            durations_ms,
            st.tuples(int32s, int32s, int32s),
            st.booleans(),
            st.data(),
        )
        def same_bytes(topics, max_wait_ms, limits, read_committed, data):
            min_bytes, max_bytes, partition_max_bytes = limits
            ids = {topic: data.draw(topic_ids) for topic, _ in topics}
            epochs = {(topic, number): number % 7 for topic, parts in topics for number, _ in parts[1:]}
            expected = kio.FetchRequest(
                replica_id=-1,
                max_wait=ms(max_wait_ms),
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                isolation_level=int(read_committed),
                session_id=0,
                session_epoch=-1,
                topics=tuple(
                    kio.FetchTopic(
                        topic=topic,
                        topic_id=ids[topic],
                        partitions=tuple(
                            kio.FetchPartition(
                                partition=partition,
                                current_leader_epoch=epochs.get((topic, partition), -1),
                                fetch_offset=int(offset),
                                last_fetched_epoch=epoch_of(offset),
                                log_start_offset=-1,
                                partition_max_bytes=partition_max_bytes,
                            )
                            for partition, offset in parts
                        ),
                    )
                    for topic, parts in topics
                ),
                forgotten_topics_data=(),
                rack_id="",
            )
            request = FetchRequest(
                topics=topics,
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                partition_max_bytes=partition_max_bytes,
                read_committed=read_committed,
                topic_ids=ids,
                leader_epochs=epochs,
            )
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(SessionFetchRequest)
    def test_fetch_in_a_session(self, oracle, version):
        kio = oracle("fetch", version)

        @examples(40)
        @given(
            by_topic(st.tuples(partitions, positions)),
            by_topic(partitions),
            st.tuples(int32s, int32s),
            st.data(),
        )
        def same_bytes(topics, forgotten, session, data):
            ids = {topic: data.draw(topic_ids) for topic, _ in topics}
            forgotten = [(topic, data.draw(topic_ids), parts) for topic, parts in forgotten]
            expected = kio.FetchRequest(
                replica_id=-1,
                max_wait=ms(500),
                min_bytes=1,
                max_bytes=9,
                isolation_level=1,
                session_id=session[0],
                session_epoch=session[1],
                topics=tuple(
                    kio.FetchTopic(
                        topic=topic,
                        topic_id=ids[topic],
                        partitions=tuple(
                            kio.FetchPartition(
                                partition=partition,
                                current_leader_epoch=-1,
                                fetch_offset=int(offset),
                                last_fetched_epoch=epoch_of(offset),
                                log_start_offset=-1,
                                partition_max_bytes=7,
                            )
                            for partition, offset in parts
                        ),
                    )
                    for topic, parts in topics
                ),
                forgotten_topics_data=tuple(
                    kio.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=tuple(parts))
                    for topic, topic_id, parts in forgotten
                )
                if version >= 7
                else (),
                rack_id="",
            )
            request = SessionFetchRequest(
                topics=topics,
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=9,
                partition_max_bytes=7,
                read_committed=True,
                topic_ids=ids,
                session_id=session[0],
                session_epoch=session[1],
                forgotten=forgotten,
            )
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(ListOffsetsRequest)
    def test_list_offsets(self, oracle, version):
        kio = oracle("list_offsets", version)
        moments = st.sampled_from([EARLIEST, LATEST]) | offsets

        @examples(40)
        @given(by_topic(st.tuples(partitions, moments)), st.booleans())
        def same_bytes(topics, read_committed):
            epochs = {(topic, number): number % 7 for topic, parts in topics for number, _ in parts[1:]}
            expected = kio.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(read_committed),
                topics=tuple(
                    kio.ListOffsetsTopic(
                        name=topic,
                        partitions=tuple(
                            kio.ListOffsetsPartition(
                                partition_index=partition,
                                current_leader_epoch=epochs.get((topic, partition), -1),
                                timestamp=timestamp,
                            )
                            for partition, timestamp in parts
                        ),
                    )
                    for topic, parts in topics
                ),
            )
            request = ListOffsetsRequest(topics=topics, read_committed=read_committed, leader_epochs=epochs)
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(MetadataRequest)
    def test_metadata(self, oracle, version):
        kio = oracle("metadata", version)

        @examples(40)
        @given(st.none() | st.lists(strategies.topics, max_size=5), st.booleans())
        def same_bytes(topics, auto_create):
            names = (
                None
                if topics is None
                else tuple(kio.MetadataRequestTopic(name=topic, topic_id=None) for topic in topics)
            )
            expected = kio.MetadataRequest(
                topics=names,
                allow_auto_topic_creation=auto_create,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            request = MetadataRequest(topics=topics, auto_create=auto_create)
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(ApiVersionsRequest)
    def test_api_versions(self, oracle, version):
        kio = oracle("api_versions", version)
        expected = kio.ApiVersionsRequest(client_software_name="sampleapp", client_software_version="0.1.0")
        assert API_VERSIONS.encode(version) == kio.dump(expected)

    @each_version(DescribeConfigsRequest)
    def test_describe_configs(self, oracle, version):
        kio = oracle("describe_configs", version)
        names = st.lists(strategies.texts, max_size=3)

        @examples(40)
        @given(st.lists(st.tuples(st.integers(-128, 127), strategies.texts, names), max_size=3))
        def same_bytes(resources):
            expected = kio.DescribeConfigsRequest(
                resources=tuple(
                    kio.DescribeConfigsResource(
                        resource_type=kind, resource_name=name, configuration_keys=tuple(keys)
                    )
                    for kind, name, keys in resources
                ),
                include_synonyms=False,
            )
            request = DescribeConfigsRequest(resources=resources)
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(InitProducerIdRequest)
    def test_init_producer_id(self, oracle, version):
        kio = oracle("init_producer_id", version)
        expected = kio.InitProducerIdRequest(transactional_id=None, transaction_timeout=ms(2**31 - 1))
        assert InitProducerIdRequest().encode(version) == kio.dump(expected)

    @each_version(DescribeQuorumRequest)
    def test_describe_quorum(self, oracle, version):
        kio = oracle("describe_quorum", version)
        partition = kio.PartitionData(partition_index=0)
        topic = kio.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
        assert DescribeQuorumRequest().encode(version) == kio.dump(kio.DescribeQuorumRequest(topics=(topic,)))

    @each_version(SaslHandshakeRequest)
    def test_sasl_handshake(self, oracle, version):
        kio = oracle("sasl_handshake", version)
        expected = kio.SaslHandshakeRequest(mechanism="SCRAM-SHA-512")
        assert SaslHandshakeRequest(mechanism="SCRAM-SHA-512").encode(version) == kio.dump(expected)

    @each_version(SaslAuthenticateRequest)
    def test_sasl_authenticate(self, oracle, version):
        kio = oracle("sasl_authenticate", version)

        @examples(40)
        @given(st.binary())
        def same_bytes(token):
            expected = kio.SaslAuthenticateRequest(auth_bytes=token)
            assert SaslAuthenticateRequest(token=token).encode(version) == kio.dump(expected)

        same_bytes()

    def test_the_header(self, oracle):
        from kio.schema.request_header.v1.header import RequestHeader

        header = RequestHeader(
            request_api_key=3, request_api_version=4, correlation_id=-5, client_id="sampleapp"
        )
        frame = request_frame(METADATA, version=4, correlation_id=-5, client_id=b"sampleapp")
        assert frame == oracle("metadata", 4).dump(header) + METADATA.encode(4)

    def test_the_header_of_a_flexible_version(self, oracle):
        from kio.schema.request_header.v2.header import RequestHeader

        header = RequestHeader(
            request_api_key=3, request_api_version=12, correlation_id=-5, client_id="sampleapp"
        )
        frame = request_frame(METADATA, version=12, correlation_id=-5, client_id=b"sampleapp")
        assert frame == oracle("metadata", 12).dump(header) + METADATA.encode(12)
