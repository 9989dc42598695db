"""Answers that are sent piece by piece: their framing, slow readers, the ends of both sides, draining."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampleapp.web.responses import Event
from tests.support.examples import examples
from tests.support.simulated_socket import Link, unread_by_client
from tests.support.streams import GET, GET_1_0, GET_WHOLE, Source, StreamingServer, body_of, unchunked

KIB = 1024


@pytest.fixture
def server():
    return StreamingServer()


@pytest.fixture(params=[True, False], ids=["plain", "other"])
def link(request, server, monkeypatch):
    monkeypatch.setattr("sampleapp.web.server.writer.unacknowledged", unread_by_client)
    return Link(server.site, server.clock, is_known=request.param)


def begun(server, link, request=GET):
    link.send(request)
    return server.sources[-1]


def test_events_arrive_as_chunks_at_once_and_the_connection_goes_on_after_the_last(server, link):
    source = begun(server, link)
    head, _, rest = link.read().partition(b"\r\n\r\n")
    assert b"\r\nTransfer-Encoding: chunked" in head
    assert b"\r\nX-Request-Id: " in head
    assert b"Content-Length" not in head
    assert b"Connection: close" not in head
    assert rest == b""
    assert source.write(b"data: 1\n\n")
    link.turn()
    assert link.read() == b"9\r\ndata: 1\n\n\r\n"
    assert source.write(b"x" * 300)
    source.sink.finish("age")
    link.turn()
    assert unchunked(link.read()) == (b"x" * 300, b"")
    assert source.calls == ["begin", "closed: age"]
    link.send(GET_WHOLE)
    assert link.read().endswith(b"\r\n\r\nwhole")


def test_with_http_1_0_the_end_of_the_connection_is_the_end_of_the_answer(server, link):
    source = begun(server, link, GET_1_0)
    source.write(b"one")
    source.write(b"two")
    source.sink.finish("age")
    received = link.read_all()
    assert b"\r\nConnection: close\r\n" in received
    assert b"Transfer-Encoding" not in received
    assert body_of(received) == b"onetwo"
    assert link.is_over


def test_a_client_that_asked_for_the_end_of_the_connection_gets_it_after_the_last_event(server, link):
    source = begun(server, link, b"GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    source.write(b"one")
    source.sink.finish("age")
    assert unchunked(body_of(link.read_all())) == (b"one", b"")
    assert link.is_over


def test_head_is_answered_without_a_body_and_the_source_is_closed_at_once(server, link):
    link.send(b"HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n" + GET_WHOLE)
    received = link.read_all()
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert body_of(received).startswith(b"HTTP/1.1 200 OK")
    assert b"text/event-stream" in received
    assert server.sources[0].calls == ["closed: head"]
    assert server.ends == []
    assert len(server.answers) == 2


def test_an_event_without_a_byte_is_rejected_since_it_would_end_the_answer():
    with pytest.raises(ValueError, match="at least one byte"):
        Event(b"")
    event = Event(b"x" * 20)
    assert (event.data, event.chunk, len(event)) == (b"x" * 20, b"14\r\n" + b"x" * 20 + b"\r\n", 20)


def test_a_source_is_told_to_wait_above_256_kib_and_to_go_on_when_all_is_sent(server, link):
    source = begun(server, link)
    link.read()
    link.socket.room = 1000
    written = 0
    while source.write(b"x" * 10 * KIB):
        written += 10
        assert len(link.socket.unread) <= 1000
    # Some is in the buffers of the transport, whose length is not known.
    assert 250 <= written <= 250 + 80
    assert source.sink.unsent > 256 * KIB
    link.read(500)
    assert source.calls == ["begin"]
    content, end = unchunked(link.read_all().partition(b"\r\n\r\n")[2])
    assert (len(content), end) == ((written + 10) * KIB, None)
    assert source.calls == ["begin", "resumed"]
    assert source.sink.unsent == 0
    assert source.write(b"more")
    link.turn()
    assert link.read() == b"4\r\nmore\r\n"


def test_many_clients_that_do_not_read_share_the_memory_of_what_waits_for_them(server):
    event = Event(b"x" * 10 * KIB)
    sinks = []
    for _ in range(3):
        link = Link(server.site, server.clock, room=1000)
        sinks.append(begun(server, link).sink)
        for _ in range(10):
            sinks[-1].write(event)
    queues = [sink._queue for sink in sinks]  # noqa: SLF001 -- memory is not visible from outside
    assert all(piece is event.chunk for queue in queues for piece in queue)


def test_one_event_that_is_larger_than_the_limit_is_sent_whole(server, link):
    source = begun(server, link)
    link.socket.room = 1000
    assert not source.write(b"x" * 1024 * KIB)
    source.sink.finish("age")
    content, end = unchunked(body_of(link.read_all()))
    assert (len(content), end) == (1024 * KIB, b"")


def test_what_comes_after_a_stream_has_ended_is_dropped(server, link):
    source = begun(server, link)
    sink = source.sink
    sink.finish("age")
    link.read_all()
    assert not sink.write(Event(b"late"))
    sink.finish("again")
    sink.abort("again")
    assert link.read() == b""
    assert server.reasons == ["age"]
    assert not link.is_lost


def test_pipelined_requests_are_answered_after_the_stream(server, link):
    link.send(GET + GET_WHOLE + GET)
    first = server.sources[0]
    link.send(GET_WHOLE)
    assert len(server.sources) == 1
    first.write(b"one")
    first.sink.finish("age")
    second = server.sources[1]
    second.sink.finish("age")
    received = link.read_all()
    assert received.count(b"HTTP/1.1 200 OK") == 4
    assert received.count(b"whole") == 2
    assert [answer.source for _, answer in server.answers] == [first, None, second, None]


def test_many_pipelined_streams_that_end_at_once_are_answered_without_recursion(server, link):
    class Ending(Source):
        def begin(self, sink):
            super().begin(sink)
            self.write(b"one")
            sink.finish("age")

    server.new_source = Ending
    link.send(GET * 600)
    assert link.read_all().count(b"3\r\none\r\n0\r\n\r\n") == 600
    assert server.reasons == ["age"] * 600


def test_a_client_that_goes_away_ends_the_stream_at_once(server, link):
    source = begun(server, link)
    source.write(b"one")
    link.reset()
    assert source.is_closed
    assert server.reasons == ["client"]
    assert server.site.connections == server.site.streams.open == 0


def test_a_client_that_closes_its_side_counts_as_gone_and_gets_a_whole_answer(server, link):
    source = begun(server, link)
    source.write(b"one")
    link.finish()
    assert source.is_closed
    assert unchunked(body_of(link.read_all())) == (b"one", b"")
    assert link.is_over
    assert server.reasons == ["client"]


def test_a_client_that_goes_away_before_the_answer_begins_gets_its_source_closed(server, link):
    link.send(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n")
    link.reset()
    server.later[0].callback(None)
    assert server.sources[0].calls == ["closed: client"]
    assert server.reasons == ["client"]
    assert len(server.answers) == 1


def test_an_answer_that_comes_later_is_streamed_and_is_no_waiting_request(server, link):
    link.send(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n" + GET_WHOLE)
    assert server.site.waiting == 1
    server.later[0].callback(None)
    assert server.site.waiting == 0
    assert server.site.connections_by_state()["streaming"] == 1
    server.sources[0].write(b"one")
    server.sources[0].sink.finish("age")
    assert link.read_all().endswith(b"whole")


def test_a_source_can_cut_the_connection(server, link):
    source = begun(server, link)
    source.sink.abort("broken")
    assert source.is_closed
    link.turn()
    assert link.is_lost
    assert server.reasons == ["broken"]


class Broken(Exception):
    """The test wants it."""


def fail(*_):
    raise Broken


@pytest.fixture
def broken(no_failure_is_lost):
    """The one failure of the test, which is expected."""
    yield
    (failure,) = no_failure_is_lost
    assert failure.check(Broken)
    no_failure_is_lost.clear()


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("method", ["at_begin", "at_resumed", "at_drain"])
def test_a_source_that_fails_costs_its_connection_only(server, link, method):
    source = Source()
    setattr(source, method, fail)
    server.new_source = lambda: source
    link.send(GET + GET_WHOLE)
    if method == "at_resumed":
        link.socket.room = 1000
        while source.write(b"x" * 100 * KIB):
            pass
        link.read_all()
    elif method == "at_drain":
        server.site.drain()
    link.turn()
    assert link.is_lost
    assert source.is_closed
    assert server.reasons == ["fault"]


@pytest.mark.usefixtures("broken")
def test_a_source_is_closed_if_its_answer_cannot_begin(link, server):
    server.site.extend_response = fail
    link.send(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n")
    server.later[0].callback(None)
    link.turn()
    assert server.sources[0].calls == ["closed: fault"]
    assert link.is_lost


def test_a_client_that_reads_nothing_for_30_seconds_is_cut_off(server, link):
    source = begun(server, link)
    link.read()
    for _ in range(20):
        source.write(b"one")
        link.advance(3)
        if link.is_lost:
            break
        assert server.clock.seconds() < 1_700_000_000 + 34
    assert link.is_lost
    assert server.reasons == ["send-timeout"]
    assert server.site.rejections["send-timeout"] == 1


def test_a_client_that_reads_a_little_is_never_cut_off(server, link):
    source = begun(server, link)
    link.socket.room = 1000
    while source.write(b"x" * 10 * KIB):
        pass
    for _ in range(30):
        link.advance(20)
        link.read(1)
    assert not link.is_lost


def test_a_quiet_stream_is_never_cut_off(server, link):
    source = begun(server, link)
    link.read()
    link.advance(600, step_s=1)
    source.write(b"one")
    link.read_all()
    link.advance(600, step_s=1)
    assert not link.is_lost


def test_the_rest_of_a_stream_that_has_ended_may_take_30_seconds_without_progress(server, link):
    source = begun(server, link)
    link.socket.room = 1000
    source.write(b"x" * 200 * KIB)
    source.sink.finish("age")
    assert source.is_closed
    link.advance(20)
    link.read(500)
    link.advance(20)
    assert not link.is_lost
    link.advance(13)
    assert link.is_lost
    assert server.reasons == ["age"]


def test_at_shutdown_the_ends_of_streams_are_spread_over_the_time(server):
    links = [Link(server.site, server.clock) for _ in range(100)]
    for each in links:
        begun(server, each).at_drain = lambda source: source.sink.finish("drain")
    server.site.drain(streams_within_s=5)
    ended = []
    for _ in range(50):
        for each in links:
            each.turn()
        ended.append(server.reasons.count("drain"))
        server.clock.advance(0.1)
    assert all(abs(count - 2 * number) <= 3 for number, count in enumerate(ended))
    server.clock.advance(0.1)
    assert server.reasons.count("drain") == 100
    for each in links:
        assert unchunked(body_of(each.read_all())) == (b"", b"")
        assert each.is_over


def test_no_turn_of_the_reactor_ends_many_streams(server):
    for _ in range(100):
        source = begun(server, Link(server.site, server.clock))
        source.at_drain = lambda source: source.sink.finish("drain")
    server.site.drain()
    assert server.reasons.count("drain") == 40
    server.clock.advance(0)
    assert server.reasons.count("drain") == 100


def test_a_stream_that_begins_during_shutdown_is_told_to_end_at_once(server, link):
    link.send(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n")
    server.site.drain(streams_within_s=5)
    server.new_source = lambda: source
    source = Source()
    source.at_drain = lambda source: source.sink.finish("drain")
    server.later[0].callback(None)
    received = link.read_all()
    assert b"\r\nConnection: close" in received
    assert unchunked(body_of(received)) == (b"", b"")
    assert link.is_over
    assert source.calls == ["begin", "draining", "closed: drain"]


def test_at_shutdown_a_stream_that_is_not_read_is_not_waited_for(server, link):
    source = begun(server, link)
    source.at_drain = lambda source: source.sink.finish("drain")
    link.socket.room = 1000
    source.write(b"x" * 200 * KIB)
    link.advance(2)
    server.site.drain(streams_within_s=5)
    link.advance(4)
    assert link.is_lost
    assert not server.clock.getDelayedCalls()


def test_what_is_left_at_the_end_of_shutdown_is_cut_off(server, link):
    source = begun(server, link)
    server.site.drain(streams_within_s=5)
    assert source.calls == ["begin", "draining"]
    server.site.abort()
    link.turn()
    assert link.is_lost
    assert server.reasons == ["drain-timeout"]


def test_the_end_of_a_stream_is_reported_with_its_bytes_and_reason(server, link):
    source = begun(server, link)
    assert server.site.streams.open == 1
    source.write(b"one")
    server.clock.advance(7)
    source.sink.finish("age")
    assert server.site.streams.open == 0
    ((exchange, answer, end),) = server.ends
    assert answer.source is source
    assert exchange.head.path == b"/stream"
    assert (end.reason, end.bytes_sent) == ("age", len(b"3\r\none\r\n0\r\n\r\n"))
    assert exchange.started_s == server.clock.seconds() - 7


@pytest.mark.usefixtures("broken")
def test_an_error_at_the_end_of_a_source_is_logged_and_harms_nothing(server, link):
    class Failing(Source):
        def closed(self, reason):
            super().closed(reason)
            fail()

    server.new_source = Failing
    source = begun(server, link)
    source.sink.finish("age")
    link.send(GET_WHOLE)
    assert link.read_all().endswith(b"whole")


@examples(40)
@given(
    st.lists(st.integers(1, 3000) | st.sampled_from([65_530, 65_536, 100_000]), max_size=12),
    st.fixed_dictionaries(
        {
            "takes": st.lists(st.integers(0, 3000), max_size=20),
            "room": st.sampled_from([float("inf"), 100_000, 900]),
            "is_known": st.booleans(),
        }
    ),
    st.integers(1, len(GET) - 1),
    st.randoms(use_true_random=False),
)
def test_however_little_the_socket_takes_and_the_client_reads_every_event_arrives_once_and_in_order(
    sizes, way, cut, chance
):
    server = StreamingServer()
    link = Link(server.site, server.clock, **way)
    link.send(GET[:cut], GET[cut:] + GET_WHOLE)
    (source,) = server.sources
    events = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    left = list(events)
    while left:
        if source.may_write and chance.random() < 0.7:
            source.write(left.pop(0))
            # It counts each byte that the system has not taken, or the transport has not been given.
            assert source.sink.unsent <= sum(sizes) + 20 * len(sizes) + 1000
        else:
            link.read(chance.randint(1, 5000))
    source.sink.finish("age")
    content, rest = unchunked(body_of(link.read_all()))
    assert content == b"".join(events)
    assert rest.endswith(b"\r\n\r\nwhole")
    ((_, _, end),) = server.ends
    assert 0 <= end.bytes_sent <= sum(sizes) + 20 * (len(sizes) + 1)
