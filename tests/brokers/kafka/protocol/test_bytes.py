"""Requests and answers written out as bytes, and the choice of their versions."""

from __future__ import annotations

import re
import struct
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.protocol import (
    REQUIRED,
    Api,
    ApiVersions,
    BrokerAddress,
    ClusterMetadata,
    Fetched,
    MetadataRequest,
    PartitionMetadata,
    ProtocolError,
    SessionFetched,
    SessionFetchRequest,
    negotiate,
    request_frame,
    software_version,
)
from tests.brokers.kafka.protocol.requests import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TOPIC_ID,
)
from tests.brokers.kafka.protocol.responses import encoded
from tests.support.kafka_simulator.wire import encode_response


def packed(layout, *values):
    return struct.pack(">" + layout, *values)


def text(value):
    return packed("h", -1) if value is None else packed("h", len(value)) + value.encode()


def compact(value):
    return bytes([len(value) + 1]) + value.encode()


def test_text_that_is_not_utf_8_is_rejected():
    with pytest.raises(ProtocolError, match="UTF-8"):
        SASL_HANDSHAKE.decode(1, packed("hih", 0, 1, 2) + b"\xff\xfe")


def test_null_is_rejected_where_kafka_has_none():
    with pytest.raises(ProtocolError):
        SASL_HANDSHAKE.decode(1, packed("hi", 0, 1) + text(None))
    with pytest.raises(ProtocolError):
        SASL_AUTHENTICATE.decode(0, packed("h", 0) + text(None) + packed("i", -1))
    with pytest.raises(ProtocolError):
        PRODUCE.decode(3, packed("ii", -1, 0))


@pytest.mark.parametrize("version", range(7, 14))
def test_an_error_of_the_whole_fetch_is_one_of_each_partition(version):
    body = encode_response(FETCH, version, SessionFetched(70, 0, []))
    assert FETCH.decode(version, body) == [
        Fetched("t", 3, 70),
        Fetched("t", 4, 70),
    ]


@pytest.mark.parametrize("version", range(4, 14))
def test_in_a_session_the_error_and_the_id_are_told_beside_what_was_fetched(version):
    request = SessionFetchRequest(
        topics=[],
        topic_ids={"t": TOPIC_ID},
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1,
        partition_max_bytes=1,
        read_committed=True,
        session_id=5,
        session_epoch=3,
    )
    body = encoded(FETCH, version)
    assert request.decode(version, body) == SessionFetched(0, 0, FETCH.decode(version, body))
    if version >= 7:
        body = encode_response(FETCH, version, SessionFetched(70, 5, []))
        assert request.decode(version, body) == SessionFetched(70, 5, [])


def test_a_session_with_topics_whose_ids_are_not_known_is_one_of_names():
    fields = {name: getattr(FETCH, name) for name in FETCH.__struct_fields__} | {"topics": []}
    request = SessionFetchRequest(**fields, session_id=5, session_epoch=3)
    assert request.version_for(FETCH_RANGES) == 13
    assert msgspec.structs.replace(request, uses_ids=False).version_for(FETCH_RANGES) == 12


def test_records_are_a_copy_that_does_not_keep_the_frame():
    frame = bytearray(encoded(FETCH, 11))
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


@pytest.mark.parametrize("tags", [b"\0", b"\1\7\2??"])
@pytest.mark.parametrize(
    ("replicas", "in_sync"), [((7, 8), (7,)), ((7,), (7,)), ((7,), (2, 7)), ((7, 8), (7, 8)), ((), ())]
)
def test_partitions_of_one_topic_need_not_look_alike(replicas, in_sync, tags):
    def partition(number, replicas, in_sync, tags):
        lists = [bytes([len(each) + 1]) + packed("i" * len(each), *each) for each in (replicas, in_sync, ())]
        return packed("hiii", 0, number, 7, 4) + b"".join(lists) + tags

    parts = [
        (0, (7, 8), (7,), b"\0"),
        (1, replicas, in_sync, tags),
        (2, replicas, in_sync, b"\0"),
        (3, (7, 8), (7,), tags),
    ]
    topic = packed("h", 0) + compact("t") + TOPIC_ID.bytes + b"\0\5"
    topic += b"".join(partition(*each) for each in parts) + packed("i", 0) + b"\0"
    body = b"\0" + packed("i", 0) + b"\1" + b"\0" + packed("i", 7) + b"\2" + topic + b"\0"
    [found] = METADATA.decode(12, body).topics
    assert found.partitions == tuple(
        PartitionMetadata(0, number, 7, replicas, in_sync, 4) for number, replicas, in_sync, _ in parts
    )


def test_empty_tagged_fields_that_end_a_flexible_answer_twice_are_passed_over():
    body = encoded(METADATA, 12)
    assert METADATA.decode(12, body + b"\0") == METADATA.decode(12, body)
    with pytest.raises(ProtocolError, match="left over"):
        METADATA.decode(12, body + b"\1")


def test_a_number_that_never_ends_is_rejected():
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
    with pytest.raises(ValueError, match="ids of all topics"):
        both.encode(13)


def test_fetch_speaks_names_with_a_broker_that_has_no_ids():
    assert FETCH.version_for({1: (0, 12)}) == 12
    assert FETCH.version_for({1: (0, 5)}) == 5


def test_an_answer_about_another_topic_than_was_asked_for_is_rejected():
    body = encoded(FETCH, 13)
    other = msgspec.structs.replace(FETCH, topic_ids={"t": uuid.UUID(int=1)})
    with pytest.raises(ProtocolError, match=f"{TOPIC_ID}"):
        other.decode(13, body)


def test_text_that_does_not_fit_is_rejected_before_it_is_sent():
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
        # Kafka 4 says that it speaks versions that it rejects (KAFKA-18659).
        ({0: (0, 12)}, 8),
    ],
)
def test_the_highest_version_that_both_speak_is_chosen(ranges, version):
    assert negotiate(Api(key=0, name="Produce", lowest=3, highest=8), ranges) == version


def test_what_a_broker_has_to_speak():
    assert {api.name for api in REQUIRED} == {"Metadata", "Produce", "Fetch", "ListOffsets"}
