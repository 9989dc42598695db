"""The common life of event streams: what any of them does whatever it tells."""

from __future__ import annotations

import json
from random import Random

import pytest
from twisted.internet.task import Clock

from sampleapp.access import TooManyStreamsOfCaller
from sampleapp.errors import ReadingsNotReady, TopicNotAuthorized, UnknownPartition, UnknownTopic
from sampleapp.records.event_stream import encode_event, encode_id
from sampleapp.web.errors import TooManyStreams, TooManyTopics
from sampleapp.web.read.registry import EventStream, OpenStreams, StreamKind, response_to_temporary_error
from sampleapp.web.responses import Event
from sampleapp.web.server.fields import Fields
from tests.support.event_streams import EventReader, RecordingSink


class Numbers(EventStream):
    """A stream whose events are numbers, the last of which is its id."""

    def __init__(self, streams):
        super().__init__(streams, kind=StreamKind.CHANGES, request=None)
        self.number = 0
        self.is_whole = True
        self.calls = []

    def started(self):
        self.calls.append("started")

    def caught_up(self):
        self.calls.append("caught_up")

    def ended(self):
        self.calls.append("ended")

    def present_id(self):
        return Event(encode_id(str(self.number))) if self.is_whole else None

    def is_between_events(self):
        return self.is_whole

    def tell(self):
        self.number += 1
        self.is_whole = True
        return self.write(Event(encode_event(b"%d" % self.number, event_id=str(self.number))))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def streams(clock):
    return OpenStreams(clock=clock, random=Random(19))


def begun(streams):
    stream = Numbers(streams)
    sink = RecordingSink(stream)
    stream.begin(sink)
    return stream, sink


def pass_time(clock, seconds):
    clock.pump([1] * seconds)


def test_clients_are_told_to_come_back_at_different_times_between_one_and_five_seconds(streams):
    times = []
    for _ in range(50):
        _, sink = begun(streams)
        times.append(EventReader.of(sink.sent).retry_ms)
    assert len(set(times)) > 40
    assert 1000 <= min(times) < 1500
    assert 4500 < max(times) <= 5000


def test_after_15_quiet_seconds_the_present_id_is_sent_alone(streams, clock):
    stream, sink = begun(streams)
    pass_time(clock, 10)
    stream.tell()
    pass_time(clock, 14)
    assert EventReader.of(sink.sent).ids == ["1"]
    stream.number = 7
    pass_time(clock, 2)
    reader = EventReader.of(sink.sent)
    assert (reader.ids, len(reader.events)) == (["1", "7"], 1)
    stream.number = 8
    pass_time(clock, 15)
    assert EventReader.of(sink.sent).ids == ["1", "7", "8"]


def test_nothing_is_sent_to_a_client_that_is_behind_until_it_has_read_everything(streams, clock):
    stream, sink = begun(streams)
    sink.is_full = True
    assert not stream.tell()
    assert not stream.can_write
    sent = sink.sent
    pass_time(clock, 40)
    assert sink.sent == sent
    sink.is_full = False
    stream.resumed()
    assert stream.can_write
    assert stream.calls == ["started", "caught_up"]


def test_a_stream_ends_after_about_ten_minutes(streams, clock):
    lives = []
    sinks = [begun(streams)[1] for _ in range(20)]
    for second in range(700):
        clock.advance(1)
        for sink in sinks:
            if sink.ended_by == "age" and sink not in lives:
                lives.append(sink)
                assert 540 <= second + 1 <= 662
    assert len(lives) == 20
    assert len(streams) == 0
    assert clock.getDelayedCalls() == []


def test_an_event_that_is_written_in_part_is_completed_before_the_end(streams):
    stream, sink = begun(streams)
    stream.is_whole = False
    stream.write(Event(b"data: "))
    stream.draining()
    assert sink.ended_by is None
    assert not stream.tell()
    assert sink.ended_by == "drain"
    assert stream.calls == ["started", "ended"]


def test_a_stream_that_ends_before_it_begins_only_says_when_to_come_back(streams):
    stream = Numbers(streams)
    sink = RecordingSink(stream)
    stream.draining()
    stream.begin(sink)
    assert sink.ended_by == "drain"
    assert stream.calls == ["ended"]
    assert len(streams) == 0


def test_a_stream_that_never_begins_releases_what_it_has(streams):
    stream = Numbers(streams)
    stream.closed("client")
    assert stream.calls == ["ended"]


def test_nothing_is_written_after_the_end(streams):
    stream, sink = begun(streams)
    stream.finish("test")
    sent = sink.sent
    assert not stream.tell()
    assert sink.sent == sent


def test_a_fault_of_one_stream_ends_no_other(streams, clock, no_failure_is_lost):
    broken, sink = begun(streams)
    broken.present_id = lambda: 1 / 0
    _, other = begun(streams)
    pass_time(clock, 17)
    assert sink.ended_by == "fault"
    assert EventReader.of(other.sent).ids == ["0"]
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()


class ClockWithShortTurns(Clock):
    """A clock on which a call after no time comes a millisecond later."""

    def callLater(self, delay, function, *args, **kwargs):
        return super().callLater(delay or 0.001, function, *args, **kwargs)


def test_many_streams_are_looked_at_in_several_turns():
    clock = ClockWithShortTurns()
    streams = OpenStreams(clock=clock)
    sinks = [begun(streams)[1] for _ in range(1200)]
    clock.pump([0.25] * 60)
    told, in_each = 0, []
    while told < len(sinks):
        before, told = told, sum(b"id: 0" in sink.sent for sink in sinks)
        in_each.append(told - before)
        clock.advance(0.001)
    assert max(in_each) == 200


@pytest.mark.parametrize(
    "field",
    [
        (b"Sec-Fetch-Mode", b"cors"),
        (b"User-Agent", b"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    ],
)
def test_a_browser_gets_an_event_instead_of_a_temporary_rejection(field):
    answer = response_to_temporary_error(Fields([field]), ReadingsNotReady("Still read.\u2028"))
    assert (answer.status, dict(answer.headers)[b"Content-Type"]) == (200, b"text/event-stream")
    reader = EventReader.of(answer.body)
    assert reader.retry_ms == 30_000
    ((event, data, event_id),) = reader.events
    assert (event, event_id, len(data.splitlines())) == ("unavailable", "", 1)
    assert json.loads(data)["status"] == 503


@pytest.mark.parametrize(
    "error",
    [
        TooManyStreams(1, what="streams"),
        TooManyTopics(1),
        TooManyStreamsOfCaller(1, what="streams", retry_after_s=30),
    ],
)
def test_the_event_for_a_browser_names_no_header_that_its_answer_does_not_have(error):
    answer = response_to_temporary_error(Fields([(b"Sec-Fetch-Mode", b"cors")]), error)
    assert b"Retry-After" not in dict(answer.headers)
    assert b"Retry-After" not in answer.body


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([], ReadingsNotReady("x")),
        ([], UnknownTopic("x")),
        ([(b"User-Agent", b"python-httpx/0.28")], UnknownTopic("x")),
        ([(b"Sec-Fetch-Mode", b"cors")], UnknownPartition("x")),
        ([(b"Sec-Fetch-Mode", b"cors")], TopicNotAuthorized("x")),
    ],
)
def test_every_other_rejection_is_the_usual_one(fields, error):
    with pytest.raises(type(error)):
        response_to_temporary_error(Fields(fields), error)
