"""The numbers of streams, of waiting pages, and of the reads that they cause."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from sampleapp.model import ReadRequest
from sampleapp.web.read.registry import StreamKind
from tests.metrics.service import MeasuredService, of


def test_streams_are_counted_by_their_kind_and_the_reason_of_their_end():
    service = MeasuredService(max_streams=7)
    numbers = service.gateway.streams.numbers
    numbers[StreamKind.CHANGES].open = 2
    numbers[StreamKind.PAGE].open = 3
    numbers[StreamKind.RECORDS].behind = 1
    numbers[StreamKind.RECORDS].events = 40
    numbers[StreamKind.RECORDS].bytes = 4000
    numbers[StreamKind.RECORDS].ended["age"] += 1
    found = service.counted()
    assert of(found, "sampleapp_streams") == {"records": 0, "changes": 2}
    assert of(found, "sampleapp_streams_limit") == {(): 7}
    assert of(found, "sampleapp_waiting_pages") == {(): 3}
    assert of(found, "sampleapp_streams_behind") == {"records": 1, "changes": 0}
    assert of(found, "sampleapp_stream_events_total") == {"records": 40, "changes": 0}
    assert of(found, "sampleapp_stream_bytes_total") == {"records": 4000, "changes": 0}
    assert of(found, "sampleapp_streams_ended_total") == {("records", "age"): 1}
    assert of(found, "sampleapp_refusals_total")["max-streams"] == 0


def test_reads_are_counted_while_and_after_the_broker_answers_also_if_it_fails_or_the_reader_goes():
    service = MeasuredService()
    answers = [Deferred() for _ in range(3)]
    waiting = iter(answers)
    service.broker.read = lambda _: next(waiting)
    request = ReadRequest(topic="t", limit=1, max_bytes=1)
    reads = [service.gateway.reads.read(request).addErrback(lambda _: None) for _ in answers]

    def numbers():
        found = service.counted()
        return (
            of(found, "sampleapp_topic_reads_in_progress")[()],
            of(found, "sampleapp_topic_reads_total")[()],
            of(found, "sampleapp_topic_read_records_total")[()],
        )

    assert numbers() == (3, 0, 0)
    answers[0].errback(OSError())
    reads[1].cancel()
    assert numbers() == (1, 2, 0)
    answers[2].callback(type("Result", (), {"records": [1, 2, 3], "left_out": 2}))
    assert numbers() == (0, 3, 5)
