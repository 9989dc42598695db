"""Batches that cannot be read: damaged ones, which are never passed over, and those that are too large."""

from __future__ import annotations

from struct import pack_into

import pytest
from aiokafka.record.util import calc_crc32c
from twisted.logger import capturedLogs, formatEvent

from sampleapp.brokers.kafka.batches import Codec
from sampleapp_testing import BatchRecorder, Recorder
from tests.support.kafka_simulator import Cluster, values


def test_a_corrupt_batch_is_told_and_never_passed_over(setup):
    cluster = Cluster(partitions=2)
    log = cluster.logs[0]
    log.append(b"good")
    log.append(b"bad")
    log.append(b"after")
    first, last, data = log.batches[1]
    log.batches[1] = (first, last, data[:-1] + b"!")
    cluster.logs[1].append(b"other")
    following = setup(cluster)
    cluster.run(20)
    assert sorted(following.values) == [b"good", b"other"]
    assert not following.caught_up
    (reason,) = following.reasons
    assert reason == "Partition 0 of the topic t cannot be read on at offset 1: its checksum is wrong."
    assert following.unavailable_reason == "Partition 0 cannot be read on at offset 1: its checksum is wrong."
    cluster.asked.clear()
    cluster.run(60)
    assert sum(node_id == 1 for node_id, _ in cluster.asked) <= 14
    log.batches[1] = (first, last, data)
    following.catch_up()
    following.assert_each_exactly_once()
    assert following.reasons == ()


def test_a_codec_that_is_not_known_is_told(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a", attributes=5)
    following = setup(cluster)
    cluster.run(5)
    (reason,) = following.reasons
    assert "codec 5" in reason


def test_an_answer_without_a_whole_batch_is_told(setup):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(b"a")
    first, last, data = log.batches[0]
    log.batches[0] = (first, last, data[:-5])
    following = setup(cluster)
    cluster.run(5)
    assert following.reasons == (
        "Partition 0 of the topic t cannot be read on at offset 0: Kafka has not sent a whole batch.",
    )


def test_a_length_that_cannot_be_is_told(setup):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(b"a")
    first, last, data = log.batches[0]
    log.batches[0] = (first, last, data[:8] + b"\xff\xff\xff\xff" + data[12:])
    following = setup(cluster)
    cluster.run(5)
    assert len(following.reasons) == 1


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_is_too_large_is_passed_over_and_told(setup, codec):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(b"before")
    log.append(b"x" * 2_000, b"y" * 2_000, codec=codec)
    log.append(b"after", codec=codec)
    following = setup(cluster, max_batch_bytes=3_000)
    with capturedLogs() as events:
        assert following.catch_up() == [b"before", b"after"]
    (warning,) = [formatEvent(event) for event in events]
    assert warning == (
        "Skipped 1 batch(es) of the topic t: after decompression they are larger than max_batch_bytes, 3000 "
        "bytes. Their records are not read. The last one is in partition 0, from offset 1 to 2"
    )
    assert following.reasons == ()
    assert following.unavailable_reason is None


def test_a_batch_that_is_large_and_not_compressed_is_read(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"x" * 2_000)
    assert setup(cluster, max_batch_bytes=1_000).catch_up() == [b"x" * 2_000]


def test_a_topic_that_holds_nothing_but_batches_that_are_too_large_does_not_flood_the_log(setup):
    cluster = Cluster()
    following = setup(cluster, max_batch_bytes=1_000)
    with capturedLogs() as events:
        for _ in range(100):
            cluster.logs[0].append(b"x" * 2_000, codec=Codec.GZIP)
            cluster.run(0.25)
        cluster.run(20)
    assert following.caught_up
    assert sum(event["count"] for event in events) == 100
    assert len(events) == 4


@pytest.mark.parametrize("recorder", [Recorder, BatchRecorder])
def test_what_is_damaged_inside_of_a_batch_is_told_and_what_stands_before_it_is_delivered_once(
    setup, recorder
):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(*values(3))
    first, last, data = log.batches[0]
    broken = bytearray(data)
    # The length of the last record's value; the checksum is right.
    broken[-3] = 0x7F
    pack_into(">I", broken, 17, calc_crc32c(bytes(broken[21:])))
    log.batches[0] = (first, last, bytes(broken))
    following = setup(cluster, recorder=recorder)
    cluster.run(30)
    assert following.values == values(2)
    assert following.unavailable_reason is not None
    assert following.unavailable_reason.startswith("Partition 0 cannot be read on at offset 2: ")
    log.batches[0] = (first, last, data)
    following.catch_up()
    following.assert_each_exactly_once()
