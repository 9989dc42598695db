"""
Kafka's requests and answers as bytes.

kio's classes are generated from Kafka's own schemas: they are the oracle for what is written and read. What
is not as it should be has no oracle, and is checked for one thing: that nothing but `ProtocolError` comes
of it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import io
import re
import struct
import tracemalloc
import uuid

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampleapp.brokers.kafka.protocol import (
    EARLIEST,
    LATEST,
    REQUIRED,
    AbortedTransaction,
    Api,
    ApiVersions,
    ApiVersionsRequest,
    BrokerAddress,
    ClusterMetadata,
    Fetched,
    FetchRequest,
    InitProducerIdRequest,
    ListedOffset,
    ListOffsetsRequest,
    MetadataRequest,
    PartitionMetadata,
    ProduceAnswer,
    Produced,
    ProduceRequest,
    ProducerIdentity,
    ProtocolError,
    SaslAuthenticated,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SaslMechanisms,
    TopicMetadata,
    negotiate,
    request_frame,
    software_version,
)
from tests.support import strategies

PRODUCE = ProduceRequest(topics=[("t", [(3, b"batch")])], timeout_ms=1000)
TOPIC_ID = uuid.UUID("7d3a0e52-5b7b-4c11-9d42-0a7f6be1c5d8")
FETCH = FetchRequest(
    topics=[("t", [(3, 40), (4, 0)])],
    topic_ids={"t": TOPIC_ID},
    max_wait_ms=500,
    min_bytes=1,
    max_bytes=1 << 20,
    partition_max_bytes=1 << 18,
    read_committed=True,
)
LIST_OFFSETS = ListOffsetsRequest(topics=[("t", [(3, LATEST)])], read_committed=True)
METADATA = MetadataRequest(topics=["t"], auto_create=False)
API_VERSIONS = ApiVersionsRequest(software_name="sampleapp", software_version="0.1.0")
INIT_PRODUCER_ID = InitProducerIdRequest()
SASL_HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")
SASL_AUTHENTICATE = SaslAuthenticateRequest(token=b"\0user\0password")

REQUESTS = [
    *[PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS],
    *[INIT_PRODUCER_ID, SASL_HANDSHAKE, SASL_AUTHENTICATE],
]


def versions(api):
    return range(api.lowest, api.highest + 1)


def each_version(request_class):
    return pytest.mark.parametrize("version", versions(request_class.api))


class Oracle:
    """kio's classes for one version of one request, made from whichever of the fields they have."""

    def __init__(self, name, version):
        self._modules = [
            importlib.import_module(f"kio.schema.{name}.v{version}.{side}")
            for side in ("request", "response")
        ]

    def __getattr__(self, name):
        cls = next(getattr(module, name) for module in self._modules if hasattr(module, name))
        known = {field.name for field in dataclasses.fields(cls)}
        return lambda **fields: cls(**{key: value for key, value in fields.items() if key in known})

    def dump(self, entity):
        from kio.serial import entity_writer

        buffer = io.BytesIO()
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()

    def dump_answer(self, entity):
        """As it follows the correlation id: the tagged fields of a flexible header first."""
        from kio.schema.response_header.v1.header import ResponseHeader

        return (b"\0" if entity.__header_schema__ is ResponseHeader else b"") + self.dump(entity)

    def error(self, code):
        from kio.schema.errors import ErrorCode

        return ErrorCode(code)


@pytest.fixture(scope="module")
def oracle():
    pytest.importorskip("kio", reason="kio needs Python 3.11")
    return Oracle


def ms(milliseconds):
    return dt.timedelta(milliseconds=milliseconds)


def moment(timestamp_ms):
    if timestamp_ms == -1:
        return None
    return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.timezone.utc)


int32s = st.integers(-(2**31), 2**31 - 1)
# A partition is a number from 0 on, and so is an offset, except for -1 where there is none.
partitions = st.integers(0, 2**31 - 1)
offsets = st.integers(-1, 2**63 - 1)
durations_ms = st.integers(0, 2**31 - 1)
errors = st.sampled_from([-1, 0, 3, 6, 10, 87])
# kio has them as datetimes, which end in the year 9999.
timestamps_ms = st.just(-1) | st.integers(0, 250_000_000_000).map(lambda seconds: seconds * 1000)
few_texts = st.none() | strategies.texts
# All zeros stand for none.
topic_ids = st.uuids(allow_nil=False)


def by_topic(partition):
    return st.lists(st.tuples(strategies.topics, st.lists(partition, max_size=3)), max_size=3)


def grouped(answer):
    """The answer's parts, by topic, as they stand in it: each part on its own."""
    return [(part.topic, [part]) for part in answer]


class TestRequestsAgainstKafkasSchemas:
    @each_version(ProduceRequest)
    def test_produce(self, oracle, version):
        kio = oracle("produce", version)

        @settings(max_examples=40)
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

        @settings(max_examples=40)
        @given(
            by_topic(st.tuples(partitions, offsets)),
            durations_ms,
            st.tuples(int32s, int32s, int32s),
            st.booleans(),
            st.data(),
        )
        def same_bytes(topics, max_wait_ms, limits, read_committed, data):
            min_bytes, max_bytes, partition_max_bytes = limits
            ids = {topic: data.draw(topic_ids) for topic, _ in topics}
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
                                current_leader_epoch=-1,
                                fetch_offset=offset,
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
            )
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(ListOffsetsRequest)
    def test_list_offsets(self, oracle, version):
        kio = oracle("list_offsets", version)
        moments = st.sampled_from([EARLIEST, LATEST]) | offsets

        @settings(max_examples=40)
        @given(by_topic(st.tuples(partitions, moments)), st.booleans())
        def same_bytes(topics, read_committed):
            expected = kio.ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(read_committed),
                topics=tuple(
                    kio.ListOffsetsTopic(
                        name=topic,
                        partitions=tuple(
                            kio.ListOffsetsPartition(
                                partition_index=partition, current_leader_epoch=-1, timestamp=timestamp
                            )
                            for partition, timestamp in parts
                        ),
                    )
                    for topic, parts in topics
                ),
            )
            request = ListOffsetsRequest(topics=topics, read_committed=read_committed)
            assert request.encode(version) == kio.dump(expected)

        same_bytes()

    @each_version(MetadataRequest)
    def test_metadata(self, oracle, version):
        kio = oracle("metadata", version)

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

    @each_version(InitProducerIdRequest)
    def test_init_producer_id(self, oracle, version):
        kio = oracle("init_producer_id", version)
        expected = kio.InitProducerIdRequest(transactional_id=None, transaction_timeout=ms(2**31 - 1))
        assert InitProducerIdRequest().encode(version) == kio.dump(expected)

    @each_version(SaslHandshakeRequest)
    def test_sasl_handshake(self, oracle, version):
        kio = oracle("sasl_handshake", version)
        expected = kio.SaslHandshakeRequest(mechanism="SCRAM-SHA-512")
        assert SaslHandshakeRequest(mechanism="SCRAM-SHA-512").encode(version) == kio.dump(expected)

    @each_version(SaslAuthenticateRequest)
    def test_sasl_authenticate(self, oracle, version):
        kio = oracle("sasl_authenticate", version)

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


class TestAnswersAgainstKafkasSchemas:
    @each_version(ProduceRequest)
    def test_produce(self, oracle, version):
        kio = oracle("produce", version)
        produced = st.builds(
            Produced,
            topic=strategies.topics,
            partition=partitions,
            error=errors,
            offset=offsets,
            timestamp_ms=timestamps_ms,
            log_start_offset=offsets if version >= 5 else st.just(-1),
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

        @settings(max_examples=40)
        @given(st.lists(produced, max_size=4))
        def same_fields(answer):
            response = kio.ProduceResponse(
                responses=tuple(
                    kio.TopicProduceResponse(name=topic, partition_responses=tuple(map(entity, parts)))
                    for topic, parts in grouped(answer)
                ),
                throttle_time=ms(7),
            )
            assert PRODUCE.decode(version, kio.dump_answer(response)) == ProduceAnswer(
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
        )

        @settings(max_examples=40)
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
                return kio.PartitionData(
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
            assert request.decode(version, kio.dump_answer(response)) == answer

        same_fields()

    @each_version(ListOffsetsRequest)
    def test_list_offsets(self, oracle, version):
        kio = oracle("list_offsets", version)
        listed = st.builds(
            ListedOffset,
            topic=strategies.topics,
            partition=partitions,
            error=errors,
            timestamp_ms=offsets,
            offset=offsets,
        )

        def entity(part):
            return kio.ListOffsetsPartitionResponse(
                partition_index=part.partition,
                error_code=kio.error(part.error),
                timestamp=part.timestamp_ms,
                offset=part.offset,
                leader_epoch=3,
            )

        @settings(max_examples=40)
        @given(st.lists(listed, max_size=4))
        def same_fields(answer):
            response = kio.ListOffsetsResponse(
                throttle_time=ms(7),
                topics=tuple(
                    kio.ListOffsetsTopicResponse(name=topic, partitions=tuple(map(entity, parts)))
                    for topic, parts in grouped(answer)
                ),
            )
            assert LIST_OFFSETS.decode(version, kio.dump_answer(response)) == answer

        same_fields()

    @each_version(MetadataRequest)
    def test_metadata(self, oracle, version):
        kio = oracle("metadata", version)
        node_lists = st.lists(int32s, max_size=3).map(tuple)
        addresses = st.builds(BrokerAddress, int32s, strategies.texts, int32s)
        infos = st.builds(PartitionMetadata, errors, partitions, int32s, node_lists, node_lists)
        topics = st.builds(
            TopicMetadata,
            errors,
            strategies.topics,
            st.lists(infos, max_size=3).map(tuple),
            st.none() | topic_ids if version >= 10 else st.none(),
        )
        clusters = st.builds(
            ClusterMetadata,
            st.lists(addresses, max_size=3).map(tuple),
            st.lists(topics, max_size=3).map(tuple),
            int32s,
            few_texts,
        )

        def topic_entity(topic):
            return kio.MetadataResponseTopic(
                error_code=kio.error(topic.error),
                name=topic.topic,
                topic_id=topic.topic_id,
                is_internal=False,
                partitions=tuple(
                    kio.MetadataResponsePartition(
                        error_code=kio.error(info.error),
                        partition_index=info.partition,
                        leader_id=info.leader,
                        replica_nodes=info.replicas,
                        isr_nodes=info.isr,
                        offline_replicas=info.replicas[1:],
                    )
                    for info in topic.partitions
                ),
            )

        @given(clusters, few_texts)
        def same_fields(cluster, rack):
            response = kio.MetadataResponse(
                throttle_time=ms(7),
                brokers=tuple(
                    kio.MetadataResponseBroker(
                        node_id=each.node_id, host=each.host, port=each.port, rack=rack
                    )
                    for each in cluster.brokers
                ),
                cluster_id=cluster.cluster_id,
                controller_id=cluster.controller_id,
                topics=tuple(map(topic_entity, cluster.topics)),
            )
            assert METADATA.decode(version, kio.dump_answer(response)) == cluster

        same_fields()

    @each_version(ApiVersionsRequest)
    def test_api_versions(self, oracle, version):
        kio = oracle("api_versions", version)
        int16s = st.integers(-(2**15), 2**15 - 1)

        @given(errors, st.dictionaries(int16s, st.tuples(int16s, int16s)))
        def same_fields(error, ranges):
            response = kio.ApiVersionsResponse(
                error_code=kio.error(error),
                api_keys=tuple(
                    kio.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
                    for key, (lowest, highest) in ranges.items()
                ),
                throttle_time=ms(7),
            )
            assert API_VERSIONS.decode(version, kio.dump_answer(response)) == ApiVersions(error, ranges)

        same_fields()

    @each_version(InitProducerIdRequest)
    def test_init_producer_id(self, oracle, version):
        kio = oracle("init_producer_id", version)
        response = kio.InitProducerIdResponse(
            throttle_time=ms(7), error_code=kio.error(14), producer_id=2**40, producer_epoch=3
        )
        expected = ProducerIdentity(14, 2**40, 3)
        assert INIT_PRODUCER_ID.decode(version, kio.dump_answer(response)) == expected

    @each_version(SaslHandshakeRequest)
    def test_sasl_handshake(self, oracle, version):
        kio = oracle("sasl_handshake", version)
        response = kio.SaslHandshakeResponse(error_code=kio.error(33), mechanisms=("PLAIN", "GSSAPI"))
        assert SASL_HANDSHAKE.decode(version, kio.dump_answer(response)) == SaslMechanisms(
            33, ("PLAIN", "GSSAPI")
        )

    @each_version(SaslAuthenticateRequest)
    def test_sasl_authenticate(self, oracle, version):
        kio = oracle("sasl_authenticate", version)

        @given(errors, few_texts, st.binary(), durations_ms)
        def same_fields(error, message, token, lifetime_ms):
            response = kio.SaslAuthenticateResponse(
                error_code=kio.error(error),
                error_message=message,
                auth_bytes=token,
                session_lifetime=ms(lifetime_ms),
            )
            expected = SaslAuthenticated(error, message, token, lifetime_ms if version >= 1 else 0)
            assert SASL_AUTHENTICATE.decode(version, kio.dump_answer(response)) == expected

        same_fields()


# What answers look like, written out: for Pythons that have no kio, and to be damaged.


def packed(layout, *values):
    return struct.pack(">" + layout, *values)


def text(value):
    return packed("h", -1) if value is None else packed("h", len(value)) + value.encode()


def produce_answer(version):
    appended = packed("ihqq", 3, 87, -1, -1)
    start = packed("q", 5) if version >= 5 else b""
    refused = packed("ii", 1, 2) + text("bad") + text("worse") if version >= 8 else b""
    body = packed("i", 1) + text("t") + packed("i", 1) + appended + start + refused + packed("i", 250)
    expected = Produced("t", 3, 87, -1, -1, 5 if version >= 5 else -1)
    if version >= 8:
        expected = Produced("t", 3, 87, -1, -1, 5, ((2, "bad"),), "worse")
    return body, ProduceAnswer([expected], 250 if version >= 6 else 0)


def compact(value):
    return bytes([len(value) + 1]) + value.encode()


def fetch_answer(version):
    session = packed("hi", 0, 0) if version >= 7 else b""
    state = packed("ihqq", 3, 0, 50, 48) + (packed("q", 5) if version >= 5 else b"")
    rack = packed("i", -1) if version >= 11 else b""
    start = 5 if version >= 5 else -1
    expected = [Fetched("t", 3, 0, 50, 48, start, (AbortedTransaction(7, 41),), b"records")]
    if version >= 12:
        aborted = b"\2" + packed("qq", 7, 41) + b"\0"
        # Among the tagged fields is the leader, as a broker sends it that is not it any more.
        leader = b"\1\1\x09" + packed("ii", 2, 5) + b"\0"
        topic = TOPIC_ID.bytes if version >= 13 else compact("t")
        head = b"\0" + packed("i", 0) + session + b"\2" + topic + b"\2"
        return head + state + aborted + rack + b"\x08records" + leader + b"\0\0", expected
    aborted = packed("iqq", 1, 7, 41)
    records = packed("i", 7) + b"records"
    head = packed("i", 0) + session + packed("i", 1) + text("t") + packed("i", 1)
    return head + state + aborted + rack + records, expected


def list_offsets_answer(version):
    throttle = packed("i", 0) if version >= 2 else b""
    epoch = packed("i", 9) if version >= 4 else b""
    listed = packed("ihqq", 3, 0, -1, 50)
    body = throttle + packed("i", 1) + text("t") + packed("i", 1) + listed + epoch
    return body, [ListedOffset("t", 3, 0, -1, 50)]


def metadata_answer(version):
    flexible = version >= 9
    tags = b"\0" if flexible else b""
    name = compact if flexible else text

    def count(number):
        return bytes([number + 1]) if flexible else packed("i", number)

    def nodes(*numbers):
        return count(len(numbers)) + packed("i" * len(numbers), *numbers)

    no_rack = b"\0" if flexible else text(None)
    brokers = count(1) + packed("i", 7) + name("localhost") + packed("i", 9092) + no_rack + tags
    partition = packed("hii", 0, 3, 7)
    partition += packed("i", 4) if version >= 7 else b""
    partition += nodes(7, 8) + nodes(7)
    partition += nodes(8) if version >= 5 else b""
    topics = count(1) + packed("h", 0) + name("t")
    topics += TOPIC_ID.bytes if version >= 10 else b""
    topics += b"\0" + count(1) + partition + tags
    topics += packed("i", -(2**31)) if version >= 8 else b""
    rights = packed("i", -(2**31)) if 8 <= version <= 10 else b""
    body = tags + packed("i", 0) + brokers + name("cluster") + packed("i", 7) + topics + tags + rights + tags
    topic_id = TOPIC_ID if version >= 10 else None
    expected = ClusterMetadata(
        (BrokerAddress(7, "localhost", 9092),),
        (TopicMetadata(0, "t", (PartitionMetadata(0, 3, 7, (7, 8), (7,)),), topic_id),),
        7,
        "cluster",
    )
    return body, expected


def api_versions_answer(version):
    expected = ApiVersions(0, {0: (3, 8), 3: (4, 13)})
    if version >= 3:
        # Which features the cluster has stands among the tagged fields.
        ranges = b"\3" + packed("hhh", 0, 3, 8) + b"\0" + packed("hhh", 3, 4, 13) + b"\0"
        return packed("h", 0) + ranges + packed("i", 0) + b"\1\1\x08" + packed("q", 5), expected
    throttle = packed("i", 0) if version >= 1 else b""
    return packed("hihhhhhh", 0, 2, 0, 3, 8, 3, 4, 13) + throttle, expected


def init_producer_id_answer(_):
    return packed("ihqh", 0, 0, 4000, 1), ProducerIdentity(0, 4000, 1)


def sasl_handshake_answer(_):
    body = packed("hi", 0, 2) + text("PLAIN") + text("GSSAPI")
    return body, SaslMechanisms(0, ("PLAIN", "GSSAPI"))


def sasl_authenticate_answer(version):
    lifetime = packed("q", 3600_000) if version >= 1 else b""
    expected = SaslAuthenticated(58, "who?", b"", 3600_000 if version >= 1 else 0)
    return packed("h", 58) + text("who?") + packed("i", 0) + lifetime, expected


WRITTEN = {
    PRODUCE.api: produce_answer,
    FETCH.api: fetch_answer,
    LIST_OFFSETS.api: list_offsets_answer,
    METADATA.api: metadata_answer,
    API_VERSIONS.api: api_versions_answer,
    INIT_PRODUCER_ID.api: init_producer_id_answer,
    SASL_HANDSHAKE.api: sasl_handshake_answer,
    SASL_AUTHENTICATE.api: sasl_authenticate_answer,
}

each_answer = pytest.mark.parametrize(
    ("request_", "version"),
    [
        pytest.param(request, version, id=f"{request.api.name}-v{version}")
        for request in REQUESTS
        for version in versions(request.api)
    ],
)


@each_answer
class TestAnyAnswer:
    def test_what_is_written_out_is_read(self, request_, version):
        body, expected = WRITTEN[request_.api](version)
        assert request_.decode(version, body) == expected
        assert request_.decode(version, memoryview(body)) == expected

    def test_cut_short_anywhere_is_refused(self, request_, version):
        body, _ = WRITTEN[request_.api](version)
        for end in range(len(body)):
            with pytest.raises(ProtocolError):
                request_.decode(version, body[:end])

    def test_going_on_after_its_end_is_refused(self, request_, version):
        body, _ = WRITTEN[request_.api](version)
        # librdkafka's mock cluster ends what is flexible with two empty lists of tagged fields.
        one_more = [] if request_.api.is_flexible(version) else [b"\0"]
        for more in (*one_more, b"\0\0\0\0", b"\xff", body):
            with pytest.raises(ProtocolError, match=rf"{request_.api.name} v{version} .* left over"):
                request_.decode(version, body + more)

    def test_with_any_number_made_absurd_is_refused_or_read_and_takes_no_memory(self, request_, version):
        body, _ = WRITTEN[request_.api](version)
        tracemalloc.start()
        try:
            for at in range(len(body)):
                for bad in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\0\0\0", b"\xff", b"\x7f", b"\0"):
                    damaged = body[:at] + bad[: len(body) - at] + body[at + len(bad) :]
                    outcome_of(request_, version, damaged)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1_000_000

    def test_of_random_bytes_is_refused_or_read(self, request_, version):
        @settings(max_examples=50)
        @given(st.binary(max_size=200))
        def refused_or_read(body):
            outcome_of(request_, version, body)

        refused_or_read()

    def test_is_not_read_in_a_version_that_is_not_spoken(self, request_, version):
        for other in (request_.api.lowest - 1, request_.api.highest + 1):
            with pytest.raises(ValueError, match="not spoken here"):
                request_.decode(other, WRITTEN[request_.api](version)[0])
            with pytest.raises(ValueError, match="not spoken here"):
                request_.encode(other)


def outcome_of(request_, version, body):
    try:
        return request_.decode(version, body)
    except ProtocolError as error:
        return error


def test_text_that_is_not_utf_8_is_refused():
    with pytest.raises(ProtocolError, match="UTF-8"):
        SASL_HANDSHAKE.decode(1, packed("hih", 0, 1, 2) + b"\xff\xfe")


def test_null_is_refused_where_kafka_has_none():
    with pytest.raises(ProtocolError):
        SASL_HANDSHAKE.decode(1, packed("hi", 0, 1) + text(None))
    with pytest.raises(ProtocolError):
        SASL_AUTHENTICATE.decode(0, packed("h", 0) + text(None) + packed("i", -1))
    with pytest.raises(ProtocolError):
        PRODUCE.decode(3, packed("ii", -1, 0))


@pytest.mark.parametrize("version", range(7, 14))
def test_an_error_of_the_whole_fetch_is_one_of_each_partition(version):
    body = packed("ihii", 0, 70, 0, 0) if version < 12 else b"\0" + packed("ihi", 0, 70, 0) + b"\1\0"
    assert FETCH.decode(version, body) == [
        Fetched("t", 3, 70),
        Fetched("t", 4, 70),
    ]


def test_records_are_a_copy_that_does_not_keep_the_frame():
    body, _ = fetch_answer(11)
    frame = bytearray(body)
    (fetched,) = FETCH.decode(11, memoryview(frame))
    frame[:] = bytes(len(frame))
    assert fetched.records == b"records"
    assert type(fetched.records) is bytes


def test_a_frame_is_a_header_and_a_body():
    frame = request_frame(METADATA, version=4, correlation_id=258, client_id=b"me")
    assert frame == b"\0\x03\0\x04\0\0\x01\x02\0\x02me\0\0\0\x01\0\x01t\0"


def test_a_produce_request_as_bytes():
    assert PRODUCE.encode(3) == (
        b"\xff\xff"  # no transactional id
        b"\xff\xff"  # all in-sync replicas
        b"\0\0\x03\xe8"  # 1000 ms
        b"\0\0\0\x01\0\x01t"  # one topic
        b"\0\0\0\x01\0\0\0\x03"  # one partition: 3
        b"\0\0\0\x05batch"
    )


def test_a_metadata_request_as_bytes():
    assert (
        METADATA.encode(12)
        == (
            b"\x02"  # one topic
            + bytes(16)  # which is not known by its id
            + b"\x02t\0"
            b"\0"  # not to be created
            b"\0"  # rights of no interest
            b"\0"
        )
    )


def test_an_api_versions_request_as_bytes():
    frame = request_frame(API_VERSIONS, version=3, correlation_id=1, client_id=b"me")
    assert frame == b"\0\x12\0\3\0\0\0\1\0\2me\0" + b"\x0asampleapp\x060.1.0\0"


@pytest.mark.parametrize("ranges", [{}, {18: (0, 2)}])
def test_a_broker_that_does_not_know_the_version_says_which_it_knows_in_the_first_one(ranges):
    body = packed("hi", 35, len(ranges)) + b"".join(packed("hhh", key, *ends) for key, ends in ranges.items())
    assert API_VERSIONS.decode(3, body) == ApiVersions(35, ranges)


def test_that_a_broker_does_not_know_the_version_is_understood_in_whatever_form_it_says_so():
    body = b"\0\x23\1\0\x12\0\0\0\2\0\0\0\0"
    assert API_VERSIONS.decode(3, body) == ApiVersions(35, {})
    with pytest.raises(ProtocolError):
        API_VERSIONS.decode(0, body)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.1.0", "0.1.0"),
        ("1.0.dev3+g1234-dirty", "1.0.dev3-g1234-dirty"),
        ("1!2.0", "1-2.0"),
        ("-.1.", "1"),
        ("ü", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_version_of_the_software_is_told_as_brokers_take_it(version, told):
    assert software_version(version) == told


@given(st.text())
def test_any_version_of_the_software_is_told_as_brokers_take_it(version):
    assert re.fullmatch(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", software_version(version))


def test_a_number_of_more_than_one_byte_in_a_flexible_version():
    name = "t" * 300
    assert b"\xad\x02" + name.encode() in MetadataRequest(topics=[name], auto_create=False).encode(12)


def test_tagged_fields_are_passed_over_wherever_they_stand():
    brokers = b"\2" + packed("i", 7) + compact("h") + packed("i", 9092) + b"\0" + b"\1\x80\x01\2??"
    body = b"\1\0\1?" + packed("i", 0) + brokers + b"\0" + packed("i", 7) + b"\1" + b"\2\0\0\5\1!"
    assert METADATA.decode(12, body) == ClusterMetadata((BrokerAddress(7, "h", 9092),), (), 7, None)


def test_empty_tagged_fields_that_end_a_flexible_answer_twice_are_passed_over():
    body, expected = metadata_answer(12)
    assert METADATA.decode(12, body + b"\0") == expected
    with pytest.raises(ProtocolError, match="left over"):
        METADATA.decode(12, body + b"\1")


def test_a_number_that_never_ends_is_refused():
    with pytest.raises(ProtocolError, match="more than 5 bytes"):
        METADATA.decode(12, b"\xff" * 20)


FETCH_RANGES = {1: (4, 17)}


def test_fetch_knows_topics_by_their_ids_if_all_of_them_are_known():
    both = msgspec.structs.replace(FETCH, topics=[("t", [(0, 0)]), ("u", [(0, 0)])])
    assert FETCH.version_for(FETCH_RANGES) == 13
    assert both.version_for(FETCH_RANGES) == 12
    assert both.version_for({1: (13, 17)}) is None
    ids = {"t": TOPIC_ID, "u": uuid.UUID(int=1)}
    assert msgspec.structs.replace(both, topic_ids=ids).version_for(FETCH_RANGES) == 13
    with pytest.raises(ValueError, match="id of every topic"):
        both.encode(13)


def test_fetch_speaks_names_with_a_broker_that_has_no_ids():
    assert FETCH.version_for({1: (0, 12)}) == 12
    assert FETCH.version_for({1: (0, 5)}) == 5


def test_an_answer_about_another_topic_than_was_asked_for_is_refused():
    body, _ = fetch_answer(13)
    other = msgspec.structs.replace(FETCH, topic_ids={"t": uuid.UUID(int=1)})
    with pytest.raises(ProtocolError, match=f"{TOPIC_ID}"):
        other.decode(13, body)


def test_text_that_does_not_fit_is_refused_before_it_is_sent():
    with pytest.raises(ValueError, match="does not fit"):
        MetadataRequest(topics=["t" * 2**15], auto_create=False).encode(4)
    with pytest.raises(ValueError, match="does not fit"):
        MetadataRequest(topics=["t" * 2**15], auto_create=False).encode(12)
    with pytest.raises(ValueError, match="surrogates"):
        MetadataRequest(topics=["\ud800"], auto_create=False).encode(4)


def test_a_password_is_in_no_representation():
    assert "password" not in repr(SASL_AUTHENTICATE)
    assert "password" not in repr([SASL_AUTHENTICATE])


@pytest.mark.parametrize(
    ("ranges", "version"),
    [
        ({0: (0, 7)}, 7),
        ({0: (0, 11)}, 8),
        ({0: (3, 8)}, 8),
        ({0: (3, 3)}, 3),
        ({0: (8, 20)}, 8),
        ({0: (0, 2)}, None),
        ({0: (9, 20)}, None),
        ({1: (0, 11)}, None),
        ({}, None),
        # Kafka 4 says that it speaks versions that it refuses (KAFKA-18659).
        ({0: (0, 12)}, 8),
    ],
)
def test_the_highest_version_that_both_speak_is_chosen(ranges, version):
    assert negotiate(Api(key=0, name="Produce", lowest=3, highest=8), ranges) == version


def test_what_a_broker_has_to_speak():
    assert {api.name for api in REQUIRED} == {"Metadata", "Produce", "Fetch", "ListOffsets"}
