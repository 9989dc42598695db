"""Answers as bytes, against classes that were generated from Kafka's own schemas."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from kio.static.constants import EntityType
from msgspec import structs

from sampleapp.brokers.kafka.protocol import (
    AbortedTransaction,
    ApiVersions,
    ApiVersionsRequest,
    BrokerAddress,
    ClusterMetadata,
    DescribeConfigsRequest,
    DescribedConfig,
    DescribeQuorumRequest,
    Fetched,
    FetchRequest,
    InitProducerIdRequest,
    ListedOffset,
    ListOffsetsRequest,
    MetadataRequest,
    PartitionMetadata,
    Produced,
    ProduceRequest,
    ProduceResponse,
    ProducerIdentity,
    Quorum,
    SaslAuthenticated,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SaslMechanisms,
    TopicMetadata,
)
from sampleapp.model import OffsetAndEpoch
from tests.brokers.kafka.protocol.requests import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    durations_ms,
    each_version,
    errors,
    few_texts,
    grouped,
    int32s,
    offsets,
    partitions,
    timestamps_ms,
    topic_ids,
)
from tests.support import strategies
from tests.support.examples import examples
from tests.support.kafka_simulator.wire import encode_response, moment, ms

epochs = st.integers(0, 2**31 - 1)


class TestAnswersAgainstKafkasSchemas:
    @each_version(ProduceRequest)
    def test_produce(self, oracle, version):
        kio = oracle("produce", version)
        log_starts = offsets if version >= 5 else st.just(-1)
        produced = st.builds(
            Produced,
            topic=strategies.topics,
            partition=partitions,
            error=errors,
            offset=offsets,
            timestamp_ms=timestamps_ms,
            log_start_offset=log_starts,
            record_errors=st.lists(st.tuples(int32s, few_texts), max_size=3).map(tuple)
            if version >= 8
            else st.just(()),
            message=few_texts if version >= 8 else st.none(),
        )

        def entity(part):
            return kio.PartitionProduceResponse(
                index=part.partition,
                error_code=kio.error(part.error),
                base_offset=part.offset,
                log_append_time=moment(part.timestamp_ms),
                log_start_offset=part.log_start_offset,
                record_errors=tuple(
                    kio.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                    for index, message in part.record_errors
                ),
                error_message=part.message,
            )

        # As nearly all are: about one topic, and without a word. An empty one takes as many bytes as none.
        plain = st.builds(
            Produced,
            topic=st.just("t"),
            partition=partitions,
            error=errors,
            offset=offsets,
            timestamp_ms=timestamps_ms,
            log_start_offset=log_starts,
            message=st.sampled_from([None, ""]) if version >= 8 else st.none(),
        )

        about_t = plain | produced.map(lambda part: structs.replace(part, topic="t"))

        @examples(80)
        @given(
            st.lists(produced, max_size=4).map(grouped)
            | st.lists(about_t, max_size=4).map(grouped)
            | st.lists(about_t, min_size=1, max_size=4).map(lambda answer: [("t", answer)])
        )
        def same_fields(groups):
            answer = [part for _, parts in groups for part in parts]
            response = kio.ProduceResponse(
                responses=tuple(
                    kio.TopicProduceResponse(name=topic, partition_responses=tuple(map(entity, parts)))
                    for topic, parts in groups
                ),
                throttle_time=ms(7),
            )
            assert PRODUCE.decode(version, kio.dump_answer(response)) == ProduceResponse(
                answer, 7 if version >= 6 else 0
            )

        same_fields()

    @each_version(FetchRequest)
    def test_fetch(self, oracle, version):
        kio = oracle("fetch", version)
        fetched = st.builds(
            Fetched,
            topic=strategies.topics,
            partition=partitions,
            error=errors,
            high_watermark=offsets,
            last_stable_offset=offsets,
            log_start_offset=offsets if version >= 5 else st.just(-1),
            aborted=st.lists(st.builds(AbortedTransaction, offsets, offsets), max_size=3).map(tuple),
            records=st.binary(),
            diverging=st.none() | st.builds(OffsetAndEpoch, offsets, epochs) if version >= 12 else st.none(),
        )

        @examples(40)
        @given(st.lists(fetched, max_size=4), st.booleans(), st.data())
        def same_fields(answer, null, data):
            # An id says which topic it is, so no two have the same one.
            names = sorted({part.topic for part in answer})
            ids = data.draw(st.lists(topic_ids, min_size=len(names), max_size=len(names), unique=True))
            known = dict(zip(names, ids, strict=True))

            def entity(part):
                aborted = tuple(
                    kio.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                    for each in part.aborted
                )
                end = part.diverging
                diverging = (
                    {}
                    if end is None
                    else {"diverging_epoch": kio.EpochEndOffset(epoch=end.leader_epoch, end_offset=int(end))}
                )
                return kio.PartitionData(
                    **diverging,
                    partition_index=part.partition,
                    error_code=kio.error(part.error),
                    high_watermark=part.high_watermark,
                    last_stable_offset=part.last_stable_offset,
                    log_start_offset=part.log_start_offset,
                    # Nothing is written in two ways.
                    aborted_transactions=aborted or (None if null else ()),
                    preferred_read_replica=-1,
                    records=part.records or (None if null else b""),
                )

            response = kio.FetchResponse(
                throttle_time=ms(7),
                error_code=kio.error(0),
                session_id=0,
                responses=tuple(
                    kio.FetchableTopicResponse(
                        topic=topic, topic_id=known[topic], partitions=tuple(map(entity, parts))
                    )
                    for topic, parts in grouped(answer)
                ),
            )
            request = msgspec.structs.replace(FETCH, topic_ids=known)
            found = request.decode(version, kio.dump_answer(response))
            assert list(map(repr, found)) == list(map(repr, answer))

        same_fields()

    @each_version(ListOffsetsRequest)
    def test_list_offsets(self, version):
        listed = st.builds(
            ListedOffset,
            topic=strategies.topics,
            partition=partitions,
            error=errors,
            timestamp_ms=offsets,
            offset=offsets,
            leader_epoch=epochs if version >= 4 else st.just(-1),
        )

        @examples(40)
        @given(st.lists(listed, max_size=4))
        def same_fields(answer):
            assert LIST_OFFSETS.decode(version, encode_response(LIST_OFFSETS, version, answer)) == answer

        same_fields()

    @each_version(MetadataRequest)
    def test_metadata(self, version):
        # Often as many as before, since that is read in another way; and some take a count of two bytes.
        node_lists = st.one_of(
            st.lists(int32s, max_size=3).map(tuple),
            st.tuples(int32s, int32s),
            st.tuples(int32s, int32s),
            st.integers(124, 128).map(lambda count: tuple(range(count))),
        )
        addresses = st.builds(BrokerAddress, int32s, strategies.texts, int32s)
        epochs = int32s if version >= 7 else st.just(-1)
        infos = st.builds(PartitionMetadata, errors, partitions, int32s, node_lists, node_lists, epochs)
        topics = st.builds(
            TopicMetadata,
            errors,
            strategies.topics,
            st.lists(infos, max_size=6).map(tuple),
            st.none() | topic_ids if version >= 10 else st.none(),
            st.booleans(),
        )
        clusters = st.builds(
            ClusterMetadata,
            st.lists(addresses, max_size=3).map(tuple),
            st.lists(topics, max_size=3).map(tuple),
            int32s,
            few_texts,
        )

        @examples(40)
        @given(clusters, few_texts)
        def same_fields(cluster, rack):
            body = encode_response(METADATA, version, cluster, text=rack)
            assert METADATA.decode(version, body) == cluster

        same_fields()

    @each_version(ApiVersionsRequest)
    def test_api_versions(self, version):
        int16s = st.integers(-(2**15), 2**15 - 1)

        @examples(40)
        @given(errors, st.dictionaries(int16s, st.tuples(int16s, int16s)))
        def same_fields(error, ranges):
            answer = ApiVersions(error, ranges)
            assert API_VERSIONS.decode(version, encode_response(API_VERSIONS, version, answer)) == answer

        same_fields()

    @each_version(DescribeConfigsRequest)
    def test_describe_configs(self, oracle, version):
        kio = oracle("describe_configs", version)
        values = st.dictionaries(strategies.texts, few_texts, max_size=3)
        int8s = st.integers(-128, 127)
        described = st.builds(DescribedConfig, errors, int8s, strategies.texts, values)

        @examples(40)
        @given(st.lists(described, max_size=3), few_texts, st.booleans(), st.sampled_from((1, 8)) | int8s)
        def same_fields(answer, message, flag, source):
            if source in (1, 8):
                answer = [structs.replace(each, own=frozenset(each.values)) for each in answer]
            response = kio.DescribeConfigsResponse(
                throttle_time=ms(7),
                results=tuple(
                    kio.DescribeConfigsResult(
                        error_code=kio.error(each.error),
                        error_message=message,
                        resource_type=each.resource_type,
                        resource_name=each.name,
                        configs=tuple(
                            kio.DescribeConfigsResourceResult(
                                name=name,
                                value=value,
                                read_only=flag,
                                config_source=source,
                                is_sensitive=not flag,
                                synonyms=(kio.DescribeConfigsSynonym(name=name, value=value, source=source),)
                                * flag,
                            )
                            for name, value in each.values.items()
                        ),
                    )
                    for each in answer
                ),
            )
            assert DESCRIBE_CONFIGS.decode(version, kio.dump_answer(response)) == answer

        same_fields()

    @each_version(InitProducerIdRequest)
    def test_init_producer_id(self, version):
        answer = ProducerIdentity(14, 2**40, 3)
        body = encode_response(INIT_PRODUCER_ID, version, answer)
        assert INIT_PRODUCER_ID.decode(version, body) == answer

    @each_version(DescribeQuorumRequest)
    def test_describe_quorum(self, oracle, version):
        kio = oracle("describe_quorum", version, [EntityType.response])

        def answer(*, error=0, of_partition=0, leader=2):
            states = [
                kio.ReplicaState(
                    replica_id=number,
                    log_end_offset=7,
                    last_fetch_timestamp=1000 + number,
                    last_caught_up_timestamp=500,
                )
                for number in (1, 2, 3)
            ]
            partition = kio.PartitionData(
                partition_index=0,
                error_code=kio.error(of_partition),
                leader_id=leader,
                leader_epoch=4,
                high_watermark=7,
                current_voters=tuple(states[:2]),
                observers=tuple(states[2:]),
            )
            topic = kio.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
            return kio.dump_answer(kio.DescribeQuorumResponse(error_code=kio.error(error), topics=(topic,)))

        def decoded(**fields):
            return DESCRIBE_QUORUM.decode(version, answer(**fields))

        # The leader's own entry has the time.
        assert decoded() == Quorum(0, 1002)
        assert decoded(leader=3) == Quorum(0, 1003)
        assert decoded(leader=-1) == Quorum(0, None)
        assert decoded(error=31) == Quorum(31, None)
        assert decoded(of_partition=6) == Quorum(6, None)

    @each_version(SaslHandshakeRequest)
    def test_sasl_handshake(self, version):
        answer = SaslMechanisms(33, ("PLAIN", "GSSAPI"))
        assert SASL_HANDSHAKE.decode(version, encode_response(SASL_HANDSHAKE, version, answer)) == answer

    @each_version(SaslAuthenticateRequest)
    def test_sasl_authenticate(self, version):
        lifetimes_ms = durations_ms if version >= 1 else st.just(0)

        @examples(40)
        @given(st.builds(SaslAuthenticated, errors, few_texts, st.binary(), lifetimes_ms))
        def same_fields(answer):
            body = encode_response(SASL_AUTHENTICATE, version, answer)
            assert SASL_AUTHENTICATE.decode(version, body) == answer

        same_fields()
