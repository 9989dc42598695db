"""Streams and waiting pages have limits, and end soon after their caller has lost its right."""

from __future__ import annotations

import json
from collections import Counter
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.access import AccessError, InvalidCredentials, NotGranted, TooManyStreamsOfCaller
from sampleapp.web.access_control import TO_CONSUME, AccessControl
from sampleapp.web.errors import TooManyStreams
from sampleapp.web.read.registry import EventStream, OpenStream, OpenStreams, StreamKind
from sampleapp.web.responses import Event, Response
from sampleapp.web.routing import AccessPolicy, App
from tests.support.callers import by, caller
from tests.support.clocks import ClockInTurns
from tests.support.event_streams import RecordingSink
from tests.support.in_memory import InMemoryService, PromptBroker

ONE = caller("one", 'consume = ["t.*"]', "read = true")
TWO = caller("two", 'consume = ["t.*"]', "read = true", "max_streams = 2")


class Stream(OpenStream):
    """A stream that ends when its caller loses the right, and keeps the error."""

    def __init__(self, errors, streams, kind, request, topic=None):
        super().__init__(streams, kind=kind, request=request, topic=topic)
        self.errors = errors

    def right_lost(self, error):
        assert isinstance(error, AccessError)
        self.errors.append(error)
        self.close("client")


class Opener:
    """Routes that open streams and leave them open."""

    app = App()
    access = AccessPolicy()

    def __init__(self):
        self.service = None
        self.open = []
        self.request = None
        self.errors = []

    def _open(self, kind, request, topic=None):
        self.request = request
        self.open.append(Stream(self.errors, self.service.gateway.streams, kind, request, topic))
        return Response(HTTPStatus.OK)

    @app.route("/records/<topic>", methods=["GET"], topic_use=TO_CONSUME)
    def records(self, request, *, topic):
        return self._open(StreamKind.RECORDS, request, topic)

    @app.route("/pages/<topic>", methods=["GET"], topic_use=TO_CONSUME)
    def page(self, request, *, topic):
        return self._open(StreamKind.PAGE, request, topic)

    @app.route("/changing", methods=["GET"])
    def changes(self, request):
        return self._open(StreamKind.CHANGES, request)


def service_with(opener, callers=ONE, **limits):
    others = [opener.app]
    service = opener.service = InMemoryService(
        broker=PromptBroker(), callers=callers, others=others, **limits
    )
    return service


def get(service, target, name=None):
    return service.request("GET", target, [] if name is None else [by(name)])


def said(answer, status, kind, *, retry_after=b"30"):
    assert answer.status == status
    assert answer.headers.get(b"retry-after") == retry_after
    document = json.loads(answer.body)
    assert document["type"] == f"urn:sampleapp:problem:{kind}"
    return document["detail"]


def test_a_place_is_given_back_once_and_the_reason_is_counted():
    service = service_with(opener := Opener(), callers=None, max_streams=1)
    streams = service.gateway.streams
    assert get(service, "/records/t").status == 200
    detail = said(get(service, "/changing"), 503, "too-many-streams")
    assert detail.startswith("1 streams are open, the maximum of this service. Send the request again")
    opener.open[0].close("drain")
    opener.open[0].close("age")
    assert streams.numbers[StreamKind.RECORDS].ended == {"drain": 1}
    assert get(service, "/changing").status == 200
    assert get(service, "/records/t").status == 503
    assert {kind.value: numbers.open for kind, numbers in streams.numbers.items()} == {
        "records": 0,
        "changes": 1,
        "page": 0,
        "pull": 0,
    }
    assert +streams.rejections == {"max-streams": 2}


def test_pages_that_wait_have_places_of_their_own():
    service = service_with(Opener(), callers=None, max_streams=1)
    assert [get(service, target).status for target in ("/records/t", "/pages/t")] == [200, 200]
    assert "1 waiting pages and pulls are open" in said(get(service, "/pages/t"), 503, "too-many-streams")


def test_no_stream_at_all_may_be_permitted():
    service = service_with(Opener(), callers=None, max_streams=0)
    detail = said(get(service, "/records/t"), 503, "too-many-streams")
    assert detail == "This service permits no streams: their maximum is 0."


def test_a_caller_that_may_open_none_is_told_so_in_plain_words():
    none = caller("none", 'consume = ["t.*"]', "max_streams = 0")
    service = service_with(Opener(), callers=none)
    for target, what in (("/records/t.1", "streams"), ("/pages/t.1", "waiting pages and pulls")):
        detail = said(get(service, target, "none"), 429, "too-many-streams-of-caller")
        assert detail == f"This caller may not have {what}: its maximum is 0."


def test_one_caller_cannot_take_all_places():
    service = service_with(opener := Opener(), callers=ONE + TWO, max_streams_per_caller=3)
    assert [get(service, "/records/t.1", "two").status for _ in range(2)] == [200, 200]
    assert get(service, "/pages/t.1", "two").status == 200
    detail = said(get(service, "/changing", "two"), 429, "too-many-streams-of-caller")
    assert detail.startswith("This caller has 2 streams open, its maximum. Close one of them")
    assert [get(service, "/changing", "one").status for _ in range(4)] == [200, 200, 200, 429]
    opener.open[0].close("client")
    assert get(service, "/records/t.1", "two").status == 200
    assert +service.gateway.streams.rejections == {"max-streams-per-caller": 2}


def test_streams_and_waiting_pages_read_a_limited_number_of_topics():
    service = service_with(opener := Opener(), callers=None, max_followed_topics=2)
    targets = ("/records/a", "/pages/b", "/pages/a", "/changing")
    assert [get(service, target).status for target in targets] == [200] * 4
    detail = said(get(service, "/records/c"), 503, "too-many-topics")
    assert detail.startswith("Streams and waiting pages read 2 other topics, the maximum of this service.")
    opener.open[0].close("client")
    assert get(service, "/records/c").status == 503
    opener.open[2].close("client")
    assert get(service, "/records/c").status == 200
    assert +service.gateway.streams.rejections == {"max-followed-topics": 2}


OTHER_TOKEN = ONE.replace('sha256 = "', 'sha256 = "' + "0" * 64 + '"  # "')
LOST = {
    "another topic is granted": (ONE.replace("t.*", "u.*"), NotGranted),
    "no topic is granted": (ONE.replace('consume = ["t.*"]', ""), NotGranted),
    "the caller was removed": (TWO, InvalidCredentials),
    "the token was removed": (OTHER_TOKEN, InvalidCredentials),
    "the token belongs to another caller": (ONE.replace('callers."one"', 'callers."three"'), NotGranted),
}


@pytest.mark.parametrize(("callers", "error"), LOST.values(), ids=LOST)
def test_a_stream_of_records_ends_when_the_callers_file_grants_it_no_longer(callers, error):
    service = service_with(opener := Opener(), callers=ONE)
    get(service, "/records/t.1", "one")
    get(service, "/pages/t.1", "one")
    service.clock.advance(100)
    service.use_callers(callers)
    service.clock.pump([0.5] * 10)
    assert [type(each) for each in opener.errors] == [error, error]
    for each in opener.open:
        each.close("client")
    numbers = service.gateway.streams.numbers
    assert numbers[StreamKind.RECORDS].ended == numbers[StreamKind.PAGE].ended == {"right": 1}


def test_a_stream_of_readings_ends_with_the_right_to_read_them():
    service = service_with(opener := Opener(), callers=ONE)
    get(service, "/changing", "one")
    service.use_callers(ONE.replace('["t.*"]', '["u"]'))
    service.clock.pump([0.5] * 10)
    assert opener.errors == []
    service.use_callers(ONE.replace("read = true", ""))
    service.clock.pump([0.5] * 10)
    assert [type(each) for each in opener.errors] == [NotGranted]


def test_a_stream_goes_on_while_the_right_is_granted_in_another_way():
    service = service_with(opener := Opener(), callers=ONE)
    get(service, "/records/t.1", "one")
    service.use_callers(ONE.replace("t.*", "t*") + TWO)
    service.clock.pump([0.5] * 10)
    assert opener.errors == []


def event_stream(service, request):
    return EventStream(service.gateway.streams, kind=StreamKind.RECORDS, request=request, topic="t.1")


def test_a_client_that_reads_slowly_gets_nothing_more_when_its_caller_loses_the_right():
    service = service_with(opener := Opener(), callers=ONE)
    get(service, "/records/t.1", "one")
    slow, quick = (event_stream(service, opener.request) for _ in range(2))
    sinks = [RecordingSink(stream) for stream in (slow, quick)]
    slow.begin(sinks[0])
    quick.begin(sinks[1])
    sinks[0].is_full = True
    service.use_callers(TWO)
    service.clock.pump([1] * 5)
    assert [(sink.ended_by, sink.is_cut) for sink in sinks] == [("right", True), ("right", False)]


def test_an_event_stream_ends_and_gives_its_place_back_when_its_caller_loses_the_right():
    service = service_with(opener := Opener(), callers=ONE)
    get(service, "/records/t.1", "one")
    opener.open.pop().close("client")
    places = service.gateway.streams
    stream = event_stream(service, opener.request)
    stream.begin(sink := RecordingSink(stream))
    stream.write(Event(b"data: 1\n\ndata: 2\n\n"), 2)
    service.clock.pump([1] * 60)
    assert sink.ended_by is None
    service.use_callers(TWO)
    service.clock.pump([1] * 5)
    assert sink.ended_by == "right"
    numbers = places.numbers[StreamKind.RECORDS]
    # The first event says when to come back, and some were sent because the stream was quiet.
    assert (numbers.open, numbers.ended["right"], numbers.bytes) == (0, 1, len(sink.sent))
    assert numbers.events >= 3


def test_a_stream_ends_with_its_token():
    # The clock of the service begins in November 2023.
    service = service_with(opener := Opener(), callers=caller("one", 'consume = ["t"]', until="2023-11-15"))
    get(service, "/records/t", "one")
    end_s = 1_700_092_800
    service.clock.advance(end_s - service.clock.seconds() - 2)
    service.clock.pump([0.5] * 3)
    assert opener.errors == []
    service.clock.pump([0.5] * 10)
    assert [str(each) for each in opener.errors] == ["The token is not valid any more; use a newer one."]


def test_many_streams_are_checked_in_turns_of_a_few_milliseconds():
    service = service_with(opener := Opener(), callers=ONE)
    get(service, "/records/t.1", "one")
    clock, ended = ClockInTurns(), SlowList()
    ended.clock = clock
    streams = OpenStreams(
        clock=clock, access_control=AccessControl(service.authenticator, seconds=clock.seconds)
    )
    for _ in range(1000):
        Stream(ended, streams, StreamKind.RECORDS, opener.request, "t.1")
    service.use_callers(TWO)
    clock.advance(1)
    in_each = []
    while len(ended) < 1000:
        before = len(ended)
        clock.take()
        in_each.append(len(ended) - before)
    assert max(in_each) <= 5
    assert clock.getDelayedCalls() == []


class SlowList(list):
    """A list to which it takes half a millisecond to append."""

    clock = None

    def append(self, item):
        self.clock.rightNow += 0.0005
        super().append(item)


CHANGES = st.tuples(st.sampled_from(["page", "records", "close"]), st.sampled_from(["one", "two"]))


def test_places_are_those_of_the_open_streams_whatever_happens():
    service = service_with(opener := Opener(), callers=ONE + TWO, max_streams=4, max_streams_per_caller=3)
    requests = {}
    for name in ("one", "two"):
        get(service, "/records/t.1", name)
        requests[name] = opener.request
        opener.open.pop().close("client")
    timers = service.clock.getDelayedCalls()

    @given(st.lists(CHANGES, max_size=30))
    def check(changes):
        require_right_places(service.gateway.streams, requests, changes)
        assert service.clock.getDelayedCalls() == timers

    check()


def require_right_places(streams, requests, changes):
    places, still_open = Counter(), []
    for change, name in changes:
        if change == "close":
            if still_open:
                kind, owner, stream = still_open.pop(0)
                stream.close("client")
                places[kind, owner] -= 1
            continue
        is_full = places[change, "one"] + places[change, "two"] == 4
        is_rejected = is_full or places[change, name] == {"one": 3, "two": 2}[name]
        arguments = ([], streams, StreamKind(change), requests[name], "t.1")
        if is_rejected:
            with pytest.raises(TooManyStreams if is_full else TooManyStreamsOfCaller):
                Stream(*arguments)
        else:
            places[change, name] += 1
            still_open.append((change, name, Stream(*arguments)))
    for kind in (StreamKind.PAGE, StreamKind.RECORDS):
        assert streams.numbers[kind].open == places[kind.value, "one"] + places[kind.value, "two"]
    for _, _, stream in still_open:
        stream.close("client")


def test_a_stream_that_takes_its_time_to_end_is_told_once_that_its_right_is_lost():
    service = service_with(opener := Opener())
    get(service, "/records/t.1", "one")
    opener.open[0].close = lambda _: None
    service.use_callers(caller("one"))
    for _ in range(5):
        service.clock.advance(1)
    assert len(opener.errors) == 1
