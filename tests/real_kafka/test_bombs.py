"""Records that are small in the topic and large when they are decompressed (decompression bombs)."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from tests.real_kafka.admin import new_topic
from tests.real_kafka.service import consume, post, wait_for_line, wait_for_readings
from tests.real_kafka.versions import SKIPS_VALUES, needs
from tests.real_kafka.writing import produce

MIB = 2**20
# Of the whole address space, as `prlimit --as` sets it: less than what the bombs come to, thrice.
MEMORY_LIMIT = 1200 * MIB
MOST_MORE = 64 * MIB
LARGEST = 1_000_000_000
# zstd makes 21 kB of it, gzip a thousandth, lz4 a 255th and snappy, which Kafka cuts into blocks, a 20th.
SIZES = {"zstd": 700_000_000, "gzip": 100_000_000, "lz4": 100_000_000, "snappy": 100_000_000}
pytestmark = [
    pytest.mark.one_version,
    pytest.mark.release,
    pytest.mark.parametrize("codec", SIZES),
    needs(SKIPS_VALUES),
]


def write(cluster, topic, value, *, codec="none"):
    """Write one record, whose key is one as well; one after the other, each in a batch of its own."""
    # Ten seconds are enough for what takes one, on a machine with much else to do.
    options = {"compression.type": codec, "message.max.bytes": LARGEST, "message.timeout.ms": 25_000}
    produce(cluster, topic, [value], key=lambda _: value[:1], **options)


def topic_with_room(cluster):
    """A topic that takes what snappy makes of a bomb."""
    return cluster.admin.create(new_topic("bomb"), max_message_bytes=16 * MIB)


def memory_peak(service):
    """The most that the process has had in memory, in bytes."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    [line] = [each for each in status.splitlines() if each.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def test_it_is_skipped_by_a_service_that_runs(one_node, start_service, codec):
    topic = topic_with_room(one_node)
    other = one_node.admin.create(new_topic("other"))
    service = start_service(one_node, service_options=["--readings-topic", topic])
    write(one_node, topic, b"1")
    wait_for_readings(service, {"1": 1.0})
    assert post(service, other, "x")[0] == 200
    resource.prlimit(service.process.pid, resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    before = memory_peak(service)
    write(one_node, topic, bytes(SIZES[codec]), codec=codec)
    write(one_node, topic, b"3")
    wait_for_readings(service, {"1": 1.0, "3": 3.0})
    wait_for_line(service, topic, "partition 0", "offset 1")
    assert memory_peak(service) - before <= MOST_MORE
    assert post(service, other, "x")[0] == 200
    assert "Traceback" not in service.output


def test_it_is_skipped_by_a_service_that_starts(one_node, start_service, codec):
    topic = topic_with_room(one_node)
    write(one_node, topic, b"1")
    # A service without it, for comparison.
    without = start_service(one_node, service_options=["--readings-topic", topic])
    wait_for_readings(without, {"1": 1.0})
    before = memory_peak(without)
    without.stop()
    write(one_node, topic, bytes(SIZES[codec]), codec=codec)
    write(one_node, topic, b"3")
    service = start_service(one_node, service_options=["--readings-topic", topic])
    wait_for_line(service, topic, "partition 0", "offset 1")
    wait_for_readings(service, {"1": 1.0, "3": 3.0})
    assert memory_peak(service) - before <= MOST_MORE


def test_the_command_says_so_and_goes_on(one_node, codec):
    topic = topic_with_room(one_node)
    write(one_node, topic, b"1")
    write(one_node, topic, bytes(SIZES[codec]), codec=codec)
    write(one_node, topic, b"3")
    found = consume(one_node, topic)
    assert found.returncode == 0, found.stderr
    assert [json.loads(line)["offset"] for line in found.stdout.splitlines()] == [0, 2]
    assert "partition 0" in found.stderr.lower()
    assert "offset 1" in found.stderr.lower()
