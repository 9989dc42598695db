"""Requests of Kafka's protocol to test with, and what their fields may be."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import strategies as st

from sampleapp.brokers.kafka.protocol import (
    LATEST,
    OF_BROKER,
    OF_TOPIC,
    Acknowledgement,
    AcknowledgeType,
    ApiVersionsRequest,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    DescribeShareGroupOffsetsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SetGroupConfigsRequest,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
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
DESCRIBE_CONFIGS = DescribeConfigsRequest(
    resources=[(OF_TOPIC, "t", ["retention.ms", "other"]), (OF_BROKER, "7", ["other"])]
)
INIT_PRODUCER_ID = InitProducerIdRequest()
DESCRIBE_QUORUM = DescribeQuorumRequest()
SASL_HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")
SASL_AUTHENTICATE = SaslAuthenticateRequest(token=b"\0user\0password")
FIND_COORDINATOR = FindCoordinatorRequest(group="g")
SHARE_GROUP_HEARTBEAT = ShareGroupHeartbeatRequest(group="g", member_id="m", member_epoch=0, topic="t")
SHARE_FETCH = ShareFetchRequest(
    group="g",
    member_id="m",
    session_epoch=0,
    topic_id=TOPIC_ID,
    partitions=[3, 4],
    max_wait_ms=500,
    max_records=10,
    max_bytes=1 << 20,
)
SHARE_ACKNOWLEDGE = ShareAcknowledgeRequest(
    group="g",
    member_id="m",
    session_epoch=1,
    topic_id=TOPIC_ID,
    acknowledgements={3: [Acknowledgement(40, 41, AcknowledgeType.ACCEPT)]},
)
DESCRIBE_SHARE_GROUP_OFFSETS = DescribeShareGroupOffsetsRequest(group="g")
SET_GROUP_CONFIGS = SetGroupConfigsRequest(group="g", values={"share.auto.offset.reset": "earliest"})

REQUESTS = [
    *[PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS],
    *[DESCRIBE_CONFIGS, DESCRIBE_QUORUM, INIT_PRODUCER_ID, SASL_HANDSHAKE, SASL_AUTHENTICATE],
    *[FIND_COORDINATOR, SHARE_GROUP_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE],
    *[DESCRIBE_SHARE_GROUP_OFFSETS, SET_GROUP_CONFIGS],
]


def versions(api):
    return range(api.lowest, api.highest + 1)


def each_version(request_class):
    return pytest.mark.parametrize("version", versions(request_class.api))


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
