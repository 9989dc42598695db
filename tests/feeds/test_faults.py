"""A fault at any line of the feeds loses no record for any stream, and sends none twice."""

from __future__ import annotations

import pytest

from sampleapp.feeds.feed import Feed
from tests.support.faults import require_for_faults
from tests.support.stream_clients import StreamService

FILES = {"feed.py", "broadcast.py", "waits.py"}


def run_with(fault, monkeypatch):
    """Let streams of several kinds read, join, and get records; check what each has got in the end."""
    fault.watch(monkeypatch, Feed, "_step", "join")
    service = StreamService(partitions=2)
    topic, clients = service.topic, []

    def come(query="", **of):
        clients.append(service.client(query, settle_s=0.05, **of))

    topic.deliver_at_once = 4
    topic.append(0, b"before all", b"a")
    come()
    come()
    come("key=a", key=b"a")
    come("partition=0", partitions={0})
    for number in range(6):
        topic.append(number % 2, b"%d" % number, (None, b"a", b"b")[number % 3])
    service.run(0.05)
    topic.end_transaction(1)
    topic.append(0, b"large" * 2000, b"b")
    topic.add_partition()
    topic.append(2, b"of a new partition", b"a")
    service.run(0.05)
    topic.append(1)
    come()
    topic.append(1, key=b"a")
    for records in (1, 1, 0):
        service.run(3, step=0.2)
        for client in clients:
            if not client.read().is_connected:
                client.connect()
        for partition in range(3 * records):
            topic.append(partition, b"after the fault", b"a")
    service.run(3, step=0.2)
    for client in clients:
        client.read().require_everything()
        client.cut()
    for numbers in service.places.numbers.values():
        assert (numbers.open, numbers.behind) == (0, 0)
    service.run(100, step=1)
    assert len(service.feeds) == 0
    assert service.clock.getDelayedCalls() == []


@pytest.mark.slow
def test_a_fault_at_any_line_loses_no_record_and_sends_none_twice(no_failure_is_lost):
    assert require_for_faults(FILES, run_with, no_failure_is_lost) > 200


@pytest.mark.slow
def test_a_fault_at_many_times_loses_no_record_and_sends_none_twice(no_failure_is_lost):
    count = require_for_faults(
        FILES, run_with, no_failure_is_lost, lambda lines: range(1, len(lines) + 1, 13)
    )
    assert count > 200
