"""What answers look like, written out: for Pythons that have no kio, and to be damaged."""

from __future__ import annotations

import struct

from sampleapp.brokers.kafka.protocol import (
    OF_BROKER,
    OF_TOPIC,
    AbortedTransaction,
    AcquiredRecords,
    ApiVersions,
    BrokerAddress,
    ClusterMetadata,
    Coordinator,
    DescribedConfig,
    Fetched,
    ListedOffset,
    PartitionMetadata,
    Produced,
    ProduceResponse,
    ProducerIdentity,
    Quorum,
    SaslAuthenticated,
    SaslMechanisms,
    ShareAcknowledged,
    ShareFetched,
    ShareGroupHeartbeat,
    ShareGroupOffsets,
    SharePartition,
    TopicMetadata,
)
from tests.support.kafka_protocol import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SET_GROUP_CONFIGS,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_HEARTBEAT,
    TOPIC_ID,
)


def packed(layout, *values):
    return struct.pack(">" + layout, *values)


def text(value):
    return packed("h", -1) if value is None else packed("h", len(value)) + value.encode()


def produce_answer(version):
    appended = packed("ihqq", 3, 87, -1, -1)
    start = packed("q", 5) if version >= 5 else b""
    rejected = packed("ii", 1, 2) + text("bad") + text("worse") if version >= 8 else b""
    body = packed("i", 1) + text("t") + packed("i", 1) + appended + start + rejected + packed("i", 250)
    expected = Produced("t", 3, 87, -1, -1, 5 if version >= 5 else -1)
    if version >= 8:
        expected = Produced("t", 3, 87, -1, -1, 5, ((2, "bad"),), "worse")
    return body, ProduceResponse([expected], 250 if version >= 6 else 0)


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
    return body, [ListedOffset("t", 3, 0, -1, 50, 9 if epoch else -1)]


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
    known = PartitionMetadata(0, 3, 7, (7, 8), (7,), 4 if version >= 7 else -1)
    expected = ClusterMetadata(
        (BrokerAddress(7, "localhost", 9092),),
        (TopicMetadata(0, "t", (known,), topic_id),),
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


def describe_configs_answer(_):
    synonym = text("log.retention.ms") + text(None) + packed("b", 5)
    known = text("retention.ms") + text("3000") + packed("bbbi", 0, 1, 0, 1) + synonym
    null = text("other") + text(None) + packed("bbbi", 1, 5, 1, 0)
    topic = packed("h", 0) + text(None) + packed("b", 2) + text("t") + packed("i", 2) + known + null
    broker = packed("h", 31) + text("No.") + packed("b", 4) + text("7") + packed("i", 0)
    return packed("ii", 0, 2) + topic + broker, [
        DescribedConfig(
            0, OF_TOPIC, "t", {"retention.ms": "3000", "other": None}, frozenset(["retention.ms"])
        ),
        DescribedConfig(31, OF_BROKER, "7", {}),
    ]


def init_producer_id_answer(_):
    return packed("ihqh", 0, 0, 4000, 1), ProducerIdentity(0, 4000, 1)


def describe_quorum_answer(_):
    states = [packed("iqqq", number, 7, 1000 + number, 500) + b"\0" for number in (1, 2)]
    # One voter, which leads, and one observer.
    partition = packed("ihiiq", 0, 0, 1, 4, 7) + b"\2" + states[0] + b"\2" + states[1] + b"\0"
    topic = b"\x13__cluster_metadata" + b"\2" + partition + b"\0"
    return b"\0" + packed("h", 0) + b"\2" + topic + b"\0", Quorum(0, 1001)


def sasl_handshake_answer(_):
    body = packed("hi", 0, 2) + text("PLAIN") + text("GSSAPI")
    return body, SaslMechanisms(0, ("PLAIN", "GSSAPI"))


def sasl_authenticate_answer(version):
    lifetime = packed("q", 3600_000) if version >= 1 else b""
    expected = SaslAuthenticated(58, "who?", b"", 3600_000 if version >= 1 else 0)
    return packed("h", 58) + text("who?") + packed("i", 0) + lifetime, expected


def find_coordinator_answer(_):
    found = compact("g") + packed("i", 7) + compact("localhost") + packed("ihb", 9092, 0, 0) + b"\0"
    return b"\0" + packed("i", 0) + b"\2" + found + b"\0", Coordinator(0, 7)


def share_group_heartbeat_answer(_):
    assigned = b"\1\2" + TOPIC_ID.bytes + b"\3" + packed("ii", 3, 4) + b"\0\0"
    body = b"\0" + packed("ihb", 0, 0, 0) + compact("m") + packed("ii", 2, 5000) + assigned + b"\0"
    return body, ShareGroupHeartbeat(0, 2, {TOPIC_ID: (3, 4)})


NODES = b"\2" + packed("i", 7) + compact("localhost") + packed("i", 9092) + b"\0\0"


def share_fetch_answer(_):
    acquired = b"\3" + packed("qqh", 40, 41, 1) + b"\0" + packed("qqh", 43, 43, 2) + b"\0"
    state = packed("ihbhbii", 3, 0, 0, 0, 0, 7, 5) + b"\0"
    topic = TOPIC_ID.bytes + b"\2" + state + b"\x08records" + acquired + b"\0\0"
    body = b"\0" + packed("ihbi", 0, 0, 0, 30000) + b"\2" + topic + NODES + b"\0"
    found = SharePartition(3, 0, (AcquiredRecords(40, 41, 1), AcquiredRecords(43, 43, 2)), b"records")
    return body, ShareFetched(0, 30000, (found,))


def share_acknowledge_answer(_):
    refused = packed("ih", 3, 121) + compact("held by another") + packed("ii", 7, 5) + b"\0\0"
    topic = TOPIC_ID.bytes + b"\2" + refused + b"\0"
    body = b"\0" + packed("ihbi", 0, 0, 0, 30000) + b"\2" + topic + NODES + b"\0"
    return body, ShareAcknowledged(0, {3: 121}, 30000)


def describe_share_group_offsets_answer(_):
    known = packed("iqiqhb", 3, 40, 5, 10, 0, 0) + b"\0"
    unused = packed("iqiqh", 4, -1, -1, -1, 3) + compact("who?") + b"\0"
    topic = compact("t") + TOPIC_ID.bytes + b"\3" + known + unused + b"\0"
    group = compact("g") + b"\2" + topic + packed("hb", 0, 0) + b"\0"
    expected = ShareGroupOffsets(0, {"t": {3: 10, 4: -1}})
    return b"\0" + packed("i", 0) + b"\2" + group + b"\0", expected


def set_group_configs_answer(_):
    return b"\0" + packed("i", 0) + b"\2" + packed("hbb", 30, 0, 32) + compact("g") + b"\0\0", 30


WRITTEN = {
    PRODUCE.api: produce_answer,
    FETCH.api: fetch_answer,
    LIST_OFFSETS.api: list_offsets_answer,
    METADATA.api: metadata_answer,
    API_VERSIONS.api: api_versions_answer,
    DESCRIBE_CONFIGS.api: describe_configs_answer,
    INIT_PRODUCER_ID.api: init_producer_id_answer,
    DESCRIBE_QUORUM.api: describe_quorum_answer,
    SASL_HANDSHAKE.api: sasl_handshake_answer,
    SASL_AUTHENTICATE.api: sasl_authenticate_answer,
    FIND_COORDINATOR.api: find_coordinator_answer,
    SHARE_GROUP_HEARTBEAT.api: share_group_heartbeat_answer,
    SHARE_FETCH.api: share_fetch_answer,
    SHARE_ACKNOWLEDGE.api: share_acknowledge_answer,
    DESCRIBE_SHARE_GROUP_OFFSETS.api: describe_share_group_offsets_answer,
    SET_GROUP_CONFIGS.api: set_group_configs_answer,
}
