"""Answers about topics that are decoded while they are iterated over."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.brokers.kafka.protocol import MetadataRequest, PartitionMetadata, ProtocolError, TopicsRequest
from tests.brokers.kafka.protocol.requests import METADATA, versions
from tests.brokers.kafka.protocol.responses import encoded

ALL = TopicsRequest(topics=None, auto_create=False)


def varint(number):
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def answer(*counts):
    """An answer in version 12, about topics with these numbers of partitions."""
    topics = b"".join(
        b"\0\0" + b"\x06t%04d" % number + bytes(16) + b"\0" + varint(1 + count) + partitions(count) + bytes(5)
        for number, count in enumerate(counts)
    )
    return b"\0" + bytes(4) + b"\1" + b"\0" + bytes(4) + varint(1 + len(counts)) + topics + b"\0"


def partitions(count):
    after = b"\3" + struct.pack(">ii", 1, 2) + b"\2" + struct.pack(">i", 1) + b"\1" + b"\0"
    return b"".join(struct.pack(">hiii", 0, number, 1, 5) + after for number in range(count))


@pytest.mark.parametrize("version", versions(MetadataRequest.api))
def test_they_are_asked_for_and_decoded_as_by_a_request_for_metadata(version):
    body = encoded(METADATA, version)
    topics = METADATA.decode(version, body).topics
    assert tuple(filter(None, ALL.decode(version, body))) == topics
    assert tuple(filter(None, ALL.decode(version, memoryview(body)))) == topics
    at_once = MetadataRequest(topics=["t", "u"], auto_create=False).encode(version)
    assert TopicsRequest(topics=["t", "u"], auto_create=False).encode(version) == at_once


@pytest.mark.parametrize("version", versions(MetadataRequest.api))
def test_cut_short_or_too_long_they_are_rejected(version):
    body = encoded(METADATA, version)
    for damaged in (*(body[:end] for end in range(len(body))), body + b"\0\0\0\0"):
        with pytest.raises(ProtocolError, match=f"Metadata v{version}"):
            list(ALL.decode(version, damaged))


@given(st.sampled_from(versions(MetadataRequest.api)), st.binary(max_size=200))
def test_random_bytes_are_decoded_or_rejected(version, body):
    with contextlib.suppress(ProtocolError):
        list(ALL.decode(version, body))


@given(st.lists(st.integers(0, 1300), max_size=8))
def test_there_is_a_pause_after_each_500_topics_and_partitions(counts):
    decoded = list(ALL.decode(12, answer(*counts)))
    topics = [each for each in decoded if each is not None]
    assert [len(each.partitions) for each in topics] == counts
    for topic in topics:
        assert [each.partition for each in topic.partitions] == list(range(len(topic.partitions)))
    work = sum(1 + count for count in counts)
    assert decoded.count(None) >= work // 500 - len(counts)
    done = MetadataRequest(topics=None, auto_create=False).decode(12, answer(*counts))
    assert tuple(topics) == done.topics


def test_no_step_decodes_more_than_500_partitions(monkeypatch):
    made = 0

    def count(*fields):
        nonlocal made
        made += 1
        return PartitionMetadata(*fields)

    monkeypatch.setattr("sampleapp.brokers.kafka.protocol.metadata.PartitionMetadata", count)
    steps = []
    for counts in ([10_000], [1] * 5000, [400] * 20):
        made, before = 0, 0
        for each in ALL.decode(12, answer(*counts)):
            if each is None:
                steps.append(made - before)
                before = made
        assert made == sum(counts)
    assert max(steps) <= 500
