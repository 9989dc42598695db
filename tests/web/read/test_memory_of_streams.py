"""The memory of streams: what their clients have not taken is counted, and nothing of them stays."""

from __future__ import annotations

import gc
import json
from collections import Counter
from http import HTTPStatus

import pytest

from sampleapp.web.read.registry import StreamKind
from sampleapp.web.responses import Event, Response
from sampleapp.web.server import BodyMemory, MemoryReservation
from sampleapp.web.server.stream import ResponseStream
from tests.support.callers import FULL, by, caller
from tests.support.event_streams import EventReader
from tests.support.in_memory import InMemoryService, PromptBroker, request_bytes
from tests.support.record_pages import PATH, PageService
from tests.support.simulated_socket import Link
from tests.support.streams import Source, body_of, unchunked

STREAM = (b"Accept", b"text/event-stream")
MIB = 1024 * 1024


def opened(service, query="", *headers, target=PATH, method="GET", room=float("inf"), settle_s=0.3):
    """A stream whose client reads nothing more once ``room`` bytes have come."""
    link = Link(service.site, service.clock, room=room)
    link.send(request_bytes(method, target + query, [STREAM, *headers]))
    pass_time(service, settle_s)
    return link


def pass_time(service, seconds):
    for _ in range(int(seconds * 100)):
        service.clock.advance(0.01)


def values_of(link):
    events = EventReader.of(unchunked(body_of(link.read_all()))[0]).events
    return [json.loads(event.data)["content"] for event in events]


def read_everything(service, links):
    for _ in range(25):
        for link in links:
            link.socket.room = float("inf")
            link.read_all()
        pass_time(service, 1)


def test_streams_that_are_behind_share_what_they_are_sent_and_it_is_counted_once():
    service = PageService()
    for _ in range(2):
        service.topic.append(0, b"\0" * (MIB // 4))
    links = [opened(service, "?from=earliest", room=1000, settle_s=0.1) for _ in range(30)]
    # JSON has six bytes for each byte, and each connection hands over 64 KiB at a time.
    assert 1.5 * MIB < service.site.body_memory.reserved < 1.5 * MIB + 30 * 70_000
    read_everything(service, links)
    assert [len(values_of(link)) for link in links] == [2] * 30
    assert service.site.body_memory.reserved == 0


def test_streams_that_are_behind_share_only_what_both_of_them_want():
    service = PageService(partitions=2)
    for partition, key, header in [(0, b"k", b"a"), (0, b"l", b"b"), (0, b"k", b"b"), (1, b"l", b"a")]:
        # One page has all of them, and JSON has six bytes for each NUL.
        value = b"%d%b%b" % (partition, key, header) + bytes(14_000)
        service.topic.append(partition, value, key, headers=(("h", header),))
    wanted = {
        "": ["0ka", "0kb", "0lb", "1la"],
        "&key=k": ["0ka", "0kb"],
        "&header=h:a": ["0ka", "1la"],
        "&key=k&header=h:b": ["0kb"],
        "&partition=0": ["0ka", "0kb", "0lb"],
    }
    links = [opened(service, f"?from=earliest{query}", room=1000, settle_s=0.1) for query in wanted]
    read_everything(service, links)
    assert [sorted(value[:3] for value in values_of(link)) for link in links] == list(wanted.values())


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("kind", ["alone", "of a caller"])
def test_streams_that_are_behind_leave_half_of_the_memory_to_requests(kind, version):
    limit = 4 * MIB
    callers, headers, most = None, [], limit // 2
    if kind == "of a caller":
        callers, headers, most = FULL, [by("full")], limit // 4
    service = PageService(max_body_memory=limit, callers=callers)
    for number in range(40):
        service.topic.append(0, b"%d" % (number % 10) * (MIB // 16))
    links = []
    for number in range(40):
        link = Link(service.site, service.clock, room=1000)
        request = request_bytes("GET", f"{PATH}?from=offset:{number}", [STREAM, *headers])
        link.send(request.replace(b"HTTP/1.1", version))
        links.append(link)
        pass_time(service, 0.1)
    reserved = service.site.body_memory.reserved
    assert most // 2 < reserved <= most + 40 * 70_000
    # Each gets everything once there is room.
    read_everything(service, links)
    for number, link in enumerate(links):
        data = body_of(link.read_all())
        events = EventReader.of(unchunked(data)[0] if version == b"HTTP/1.1" else data).events
        assert len(events) == 40 - number
    assert service.site.body_memory.reserved == 0


def test_clients_that_read_former_readings_are_cut_when_these_take_half_of_the_memory():
    service = InMemoryService(max_body_memory=MIB)
    memory = service.site.body_memory
    links = []
    for number in range(8):
        for reading in range(400):
            service.read(b"%d-" % reading + b"x" * 1000, b"%d" % number)
        links.append(opened(service, target="/changes", room=3000, settle_s=3))
    ended = service.gateway.streams.numbers[StreamKind.CHANGES].ended
    assert 0 < ended["max-body-memory"] < len(links)
    assert memory.reserved < memory.limit
    for link in links:
        if not link.is_lost:
            link.reset()
    pass_time(service, 1)
    assert len(service.gateway.streams) == memory.reserved == 0


def test_a_record_larger_than_the_whole_budget_is_sent_all_the_same():
    service = PageService(max_body_memory=2 * MIB)
    service.topic.append(0, b"\0" * MIB)
    links = [opened(service, "?from=earliest") for _ in range(3)]
    read_everything(service, links)
    assert [len(values_of(link)) for link in links] == [1] * 3


def test_large_records_that_come_while_the_memory_is_full_are_sent_when_there_is_room():
    service = PageService(max_body_memory=4 * MIB)
    slow = [opened(service, room=1000) for _ in range(4)]
    for number in range(12):
        service.topic.append(0, b"%d" % (number % 10) * (MIB // 2))
        pass_time(service, 0.2)
        assert service.site.body_memory.reserved < 3 * MIB
    read_everything(service, slow)
    assert [len(values_of(link)) for link in slow] == [12] * 4
    assert service.site.body_memory.reserved == 0


def test_a_stream_that_joins_the_feed_after_a_wait_for_memory_keeps_none():
    service = PageService(max_body_memory=4 * MIB)
    memory, link = service.site.body_memory, opened(service, room=1000)
    memory.add("", 2 * MIB)
    for number in range(3):
        service.topic.append(0, b"%d" % number * 20_000)
        pass_time(service, 0.5)
    link.socket.room = float("inf")
    link.read_all()
    pass_time(service, 1)
    memory.add("", -2 * MIB)
    pass_time(service, 1)
    assert len(values_of(link)) == 3
    assert memory.reserved == 0


def test_streams_that_wait_for_memory_go_on_soon_after_there_is_room():
    service = PageService(max_body_memory=4 * MIB)
    memory, taken = service.site.body_memory, 2 * MIB
    memory.add("", taken)
    for number in range(3):
        service.topic.append(0, b"%d" % number * (MIB // 16))
    links = [opened(service, f"?from=offset:{number % 3}") for number in range(100)]
    pass_time(service, 60)
    reads = service.topic.reads
    pass_time(service, 60)
    # They read nothing in vain.
    assert service.topic.reads == reads
    assert [values_of(link) for link in links] == [[]] * 100
    memory.add("", -taken)
    pass_time(service, 2)
    assert [len(values_of(link)) for link in links] == [3 - number % 3 for number in range(100)]
    assert memory.reserved == 0


def test_streams_that_wait_for_memory_get_it_one_after_the_other():
    service = PageService(max_body_memory=4 * MIB)
    memory, taken = service.site.body_memory, 2 * MIB
    memory.add("", taken)
    for _ in range(60):
        service.topic.append(0, b"x" * 20_000)
    links = [opened(service, f"?from=offset:{number}", room=1000) for number in range(50)]
    pass_time(service, 20)
    reads = service.topic.reads
    # Room for a few pages, whose clients do not read.
    memory.add("", -MIB // 4)
    pass_time(service, 20)
    assert 0 < service.topic.reads - reads <= 8
    memory.add("", MIB // 4 - taken)
    read_everything(service, links)
    assert [len(values_of(link)) for link in links] == [60 - number for number in range(50)]
    assert memory.reserved == 0


def test_the_memory_is_free_again_as_soon_as_the_clients_have_gone():
    service = PageService()
    for number in range(3):
        service.topic.append(0, b"%d" % number * MIB)
    links = [opened(service, f"?from=offset:{number % 3}", room=1000) for number in range(30)]
    assert service.site.body_memory.reserved > 3 * MIB
    gc.disable()
    try:
        for link in links:
            link.reset()
        pass_time(service, 0.1)
        assert service.site.body_memory.reserved == 0
    finally:
        gc.enable()


def gone(service, link):
    link.reset()


def closed_its_side(service, link):
    link.finish()
    link.read_all()


def drained(service, link):
    service.site.streams.drain(0.0)
    link.read_all()
    gone(service, link)


def lost_its_right(service, link):
    service.use_callers(caller("full"))
    pass_time(service, 3)
    gone(service, link)
    service.use_callers(FULL)


def fell_behind(service, link):
    link.socket.room = 1000
    service.topic.expire()
    for _ in range(6):
        service.topic.append(0, b"x" * 60_000)
        service.read(b"id", b"%d" % len(service.topic.logs[0]))
    pass_time(service, 0.5)
    gone(service, link)


KINDS = {
    "from latest": ("", {}),
    "from earliest": ("?from=earliest", {}),
    "of a key": ("?from=earliest&key=k", {}),
    "of changes": ("", {"target": "/changes"}),
    "only the head": ("", {"method": "HEAD"}),
    "only the head of changes": ("", {"target": "/changes", "method": "HEAD"}),
}
ENDS = [gone, closed_its_side, drained, lost_its_right, fell_behind]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("query", "options"), KINDS.values(), ids=KINDS)
def test_a_stream_that_has_ended_leaves_no_object_behind(query, options, end):
    service = PageService(callers=FULL)
    service.topic.append(0, b"a", b"k")

    def open_and_end():
        end(service, opened(service, query, by("full"), **options))
        pass_time(service, 0.1)

    require_nothing_left(open_and_end)


def test_a_browser_that_is_told_that_a_stream_is_unavailable_leaves_no_object_behind():
    service = PageService(max_streams=0)

    def open_and_end():
        for target in (PATH, "/changes"):
            gone(service, opened(service, "", (b"Sec-Fetch-Mode", b"cors"), target=target))

    require_nothing_left(open_and_end)


def require_nothing_left(open_and_end, times=100):
    """Check that doing something many times makes no garbage for the collector, and nothing that stays."""
    for _ in range(3):
        open_and_end()
    gc.collect()
    before = Counter(map(type, gc.get_objects()))
    gc.disable()
    try:
        for _ in range(times):
            open_and_end()
        after = Counter(map(type, gc.get_objects()))
        left = {kind: count for kind, count in (after - before).items() if count >= times // 2}
        assert left == {}
        assert gc.collect() < times // 2
    finally:
        gc.enable()


def changes_of(service):
    connection = service.connect()
    connection.send(request_bytes("GET", "/changes"))
    settle(service)
    return connection


def settle(service):
    for _ in range(20):
        service.clock.advance(0.1)


def test_a_stream_whose_transport_takes_everything_goes_on_although_the_budget_is_full():
    service = InMemoryService(broker=PromptBroker())
    service.read(b"a", b"1")
    before, memory = changes_of(service), service.site.body_memory
    memory.add("", memory.limit // 2 + 1)
    during = changes_of(service)
    service.read(b"a", b"2")
    settle(service)
    memory.add("", -(memory.limit // 2 + 1))
    service.read(b"a", b"3")
    settle(service)
    for connection in (before, during):
        assert connection.sent.count(b"event: readings") == 1
        assert connection.sent.count(b"event: reading\n") == 2


def test_a_stream_whose_first_bytes_must_wait_begins_once_its_client_reads():
    service = InMemoryService(broker=PromptBroker())
    service.read(b"a", b"1")
    memory, connection = service.site.body_memory, service.connect()
    connection.channel._writer.pauseProducing()  # noqa: SLF001 -- the transport is full of earlier answers
    memory.add("", memory.limit // 2 + 1)
    connection.send(request_bytes("GET", "/changes"))
    memory.add("", -(memory.limit // 2 + 1))
    connection.channel._writer.resumeProducing()  # noqa: SLF001 -- the client has read them
    settle(service)
    service.read(b"a", b"2")
    settle(service)
    assert connection.sent.count(b"event: readings") == 1
    assert connection.sent.count(b"event: reading\n") == 1


class FullWriter:
    """The writer of a connection whose client reads only what `next` takes for it."""

    direct_send = socket_send = None
    is_full = True

    def write_unless_full(self, _data):
        return False

    def write_as_read(self, _stream):
        pass


def test_events_that_a_client_has_read_do_not_count_although_it_is_always_a_little_behind():
    memory = BodyMemory(64 * MIB)
    stream = ResponseStream(
        None,
        FullWriter(),
        None,
        Response(HTTPStatus.OK),
        Source(),
        is_chunked=True,
        reservation=MemoryReservation(memory),
    )
    for _ in range(3):
        assert stream.write(Event(b"x" * 32_000))
    for _ in range(1000):
        assert stream.write(Event(b"x" * 32_000))
        next(stream)
    assert memory.reserved < MIB


def test_a_client_that_reads_at_once_gets_large_events_although_the_budget_is_full():
    service = PageService()
    memory, link = service.site.body_memory, opened(service)
    memory.add("", memory.limit // 2 + 1)
    service.topic.append(0, b"x" * 10_000)
    service.topic.append(0, b"y")
    pass_time(service, 1)
    assert [len(value) for value in values_of(link)] == [10_000, 1]
    memory.add("", -(memory.limit // 2 + 1))
