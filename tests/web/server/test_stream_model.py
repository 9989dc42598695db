"""
One connection with streams, its client, its sources and the clock, in any order, against a model.

The model is made from the promises alone: events arrive whole and in order, each source hears once that it
has ended and why, a client that reads is never cut off, and requests are answered one after the other.
"""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sampleapp_testing import failures_collected
from tests.support.examples import examples
from tests.support.simulated_socket import Link, unread_by_client
from tests.support.streams import GET, GET_1_0, GET_WHOLE, Source, StreamingServer, unchunked

UNREAD_S = 30.0
UNREAD_AT_SHUTDOWN_S = 2.0
# All connections are looked at once a second, and some times are noted as of the next look.
LATE_S = 2.0
SPREAD_S = 5.0
STEP_S = 0.5
MOST_UNSENT = 256 * 1024

SIZES = st.sampled_from([1, 20, 300, 5000, 70_000, 300_000])


class Request:
    """A request of the client, with what its source has written, as the model has it."""

    def __init__(self, kind):
        self.kind = kind
        self.body = b"whole" if kind == "whole" else b""
        self.source = None
        self.reason = None
        """Why the source has ended; ``None`` before it has."""


def parsed(data, requests):
    """
    The answers to requests in the bytes that were sent.

    :return: the body of each answer that has begun, and whether all of it is there.
    """
    answers = []
    for request in requests:
        head, found, data = data.partition(b"\r\n\r\n")
        if not found:
            assert b"HTTP/1.1 200 OK".startswith(head[:15]) or head.startswith(b"HTTP/1.1 200 OK")
            return answers
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        if request.kind == "whole":
            assert b"Content-Length: 5" in head
            answers.append((data[:5], len(data) >= 5))
            data = data[5:]
        elif request.kind == "1.0":
            assert b"chunked" not in head
            answers.append((data, False))
            return answers
        else:
            body, rest = unchunked(data)
            answers.append((body, rest is not None))
            if rest is None:
                return answers
            data = rest
    assert data == b"", "more was sent than asked for"
    return answers


class StreamMachine(RuleBasedStateMachine):
    @initialize(is_known=st.booleans(), room=st.sampled_from([float("inf"), 1_000_000, 40_000, 700]))
    def connect(self, is_known, room):
        self.stack = ExitStack()
        self.stack.enter_context(failures_collected())
        self.stack.enter_context(patch("sampleapp.web.server.writer.unacknowledged", unread_by_client))
        self.server = StreamingServer()
        self.server.new_source = self.new_source
        self.link = Link(self.server.site, self.server.clock, is_known=is_known, room=room)
        self.requests = []
        self.sources = []
        self.ends_at_begin = self.ends_at_resumed = False
        self.has_said_all = self.has_finished = self.has_reset = False
        self.drained_s = None
        self.is_aborted = False
        self.read_s = self.now

    # What sources do when the connection calls them.

    def new_source(self):
        source = Source()
        request = [each for each in self.requests if each.kind != "whole"][len(self.sources)]
        request.source = source
        source.request = request
        self.sources.append(source)
        source.at_begin = self.begun
        source.at_resumed = self.resumed
        source.at_drain = lambda source: self.finish_stream_of(source, "drain")
        return source

    def begun(self, source):
        self.write_to(source, 30)
        if self.ends_at_begin:
            self.finish_stream_of(source, "age")

    def resumed(self, source):
        assert source.sink.unsent == 0
        self.write_to(source, 30)
        if self.ends_at_resumed:
            self.finish_stream_of(source, "age")

    def write_to(self, source, size):
        data = bytes([65 + len(source.request.body) % 26]) * size
        source.request.body += data
        source.write(data)
        if source.is_closed:
            return
        assert source.may_write == (source.sink.unsent <= MOST_UNSENT)

    def finish_stream_of(self, source, reason):
        source.request.reason = reason
        source.sink.finish(reason)
        assert source.calls[-1] == f"closed: {reason}"

    # The state, as the promises have it.

    @property
    def now(self):
        return self.server.clock.seconds()

    @property
    def is_over(self):
        return self.link.socket.is_shut_down or self.link.socket.is_closed

    @property
    def current(self):
        """The source of the answer that is being sent."""
        return next((each for each in reversed(self.sources) if not each.is_closed), None)

    @property
    def may_send(self):
        return not (self.has_finished or self.has_reset or self.has_said_all or self.is_over)

    # Steps of the client.

    @precondition(lambda self: self.may_send)
    @rule(kinds=st.lists(st.sampled_from(["stream", "stream", "whole"]), min_size=1, max_size=3))
    def send_requests(self, kinds):
        self.requests += [Request(kind) for kind in kinds]
        self.link.send(b"".join(GET if kind == "stream" else GET_WHOLE for kind in kinds))

    @precondition(lambda self: self.may_send)
    @rule()
    def send_the_last_request(self):
        self.has_said_all = True
        self.requests.append(Request("1.0"))
        self.link.send(GET_1_0)

    @precondition(lambda self: self.link.socket.unread)
    @rule(count=st.integers(1, 2000) | st.just(10**9))
    def read(self, count):
        self.link.read(count)
        self.read_s = self.now

    @precondition(lambda self: self.link.socket.unread or self.link.socket.room < 10**9)
    @rule()
    def read_everything(self):
        self.link.read_all()
        self.read_s = self.now

    # Steps of the sources, the clock and the operator.

    @precondition(lambda self: self.current is not None and self.current.may_write)
    @rule(sizes=st.lists(SIZES, min_size=1, max_size=5))
    def write(self, sizes):
        source = self.current
        for size in sizes:
            if not source.may_write or source.is_closed:
                break
            self.write_to(source, size)
        self.link.turn()

    @precondition(lambda self: self.current is not None)
    @rule()
    def finish_stream(self):
        self.finish_stream_of(self.current, "age")
        self.link.turn()

    @precondition(lambda self: self.sources and self.sources[0].is_closed)
    @rule()
    def write_late(self):
        source = next(each for each in self.sources if each.is_closed)
        if source.sink is not None:
            assert source.write(b"late") is False
            source.sink.finish("late")
            source.sink.abort("late")
            self.link.turn()

    @rule(at_begin=st.booleans(), at_resumed=st.booleans())
    def sources_change(self, at_begin, at_resumed):
        self.ends_at_begin, self.ends_at_resumed = at_begin, at_resumed

    @rule(seconds=st.sampled_from([1, 10, 35, 80]))
    def time_passes(self, seconds):
        self.link.advance(seconds, step_s=STEP_S)

    @precondition(lambda self: self.requests)
    @rule(how=st.sampled_from(["finish", "reset", "abort", "drain"]))
    def somebody_ends_it(self, how):
        """The client closes its side, or goes away; the source cuts the connection; the service stops."""
        if how == "finish" and not self.has_finished and not self.has_reset:
            self.has_finished = True
            self.link.finish()
        elif how == "reset":
            self.has_reset = True
            self.link.reset()
        elif how == "abort" and self.current is not None:
            source = self.current
            self.is_aborted = True
            source.request.reason = "broken"
            source.sink.abort("broken")
            assert source.calls[-1] == "closed: broken"
        elif how == "drain" and self.drained_s is None:
            self.drained_s = self.now
            self.server.site.drain(streams_within_s=SPREAD_S)
        self.link.turn()

    # Checks of the outcome.

    @invariant()
    def the_client_gets_what_the_sources_wrote(self):
        if not hasattr(self, "link"):
            return
        received = bytes(self.link.received + self.link.socket.unread)
        answers = parsed(received, self.requests)
        for (body, is_whole), request in zip(answers, self.requests, strict=False):
            assert request.body.startswith(body)
            if is_whole:
                assert body == request.body
                assert request.kind == "whole" or request.source.is_closed
        # Nothing is held back while there is room.
        if self.current is not None and len(self.link.socket.unread) < self.link.socket.room:
            assert answers[-1][0] == self.current.request.body
            assert self.current.sink.unsent == 0
            assert self.current.may_write

    @invariant()
    def requests_are_answered_one_after_the_other(self):
        if not hasattr(self, "link"):
            return
        assert sum(not each.is_closed for each in self.sources) <= 1
        assert self.server.site.streams.open == (self.current is not None)
        assert len(self.server.answers) <= len(self.requests)
        states = self.server.site.connections_by_state()
        assert states["streaming"] <= (not self.link.is_lost)

    @invariant()
    def each_source_hears_once_why_it_has_ended(self):
        if not hasattr(self, "link"):
            return
        for source in self.sources:
            reason = source.request.reason
            if not source.is_closed:
                assert reason is None
                assert not self.link.is_lost
                continue
            ended_by = source.calls[-1].removeprefix("closed: ")
            if reason is not None:
                assert ended_by == reason
            elif ended_by == "client":
                assert self.has_finished or self.has_reset or self.link.is_lost
            else:
                assert ended_by == "send-timeout"
                limit_s = UNREAD_S if self.drained_s is None else UNREAD_AT_SHUTDOWN_S
                assert self.now - self.read_s >= limit_s
            # What happens later does not matter.
            source.request.reason = ended_by
        assert self.server.reasons == [
            each.calls[-1].removeprefix("closed: ") for each in self.sources if each.is_closed
        ]

    @invariant()
    def a_client_that_has_gone_and_one_that_does_not_read_are_not_kept(self):
        if not hasattr(self, "link") or self.link.is_lost:
            return
        assert not self.is_aborted
        assert not self.has_reset
        if self.has_finished and self.current is not None:
            # It has sent more before, so that its end was not read.
            assert len(self.requests) > len(self.server.answers) or self.link.protocol._reader.buffer  # noqa: SLF001
        if not self.link.socket.unread:
            self.read_s = self.now
        elif self.current is not None:
            limit_s = UNREAD_S if self.drained_s is None else UNREAD_AT_SHUTDOWN_S
            since_s = self.read_s if self.drained_s is None else max(self.read_s, self.drained_s)
            assert self.now - since_s < limit_s + LATE_S + STEP_S
        if self.current is not None and self.drained_s is not None:
            assert self.now - self.drained_s < SPREAD_S + STEP_S

    def teardown(self):
        if not hasattr(self, "link"):
            return
        self.ends_at_begin = True
        while self.current is not None:
            self.finish_stream()
            self.read_everything()
        was_cut = self.link.is_lost
        if not was_cut:
            self.read_everything()
            if self.may_send and self.drained_s is None:
                # It was not the end: another request is answered as well.
                self.send_requests(["whole"])
                assert bytes(self.link.read_all()).endswith(b"whole")
                answers = parsed(bytes(self.link.received), self.requests)
                assert [body for body, _ in answers] == [each.body for each in self.requests]
        for _ in range(60):
            if self.link.is_lost:
                break
            self.link.advance(5)
        assert self.link.is_lost, "the connection stays for ever"
        self.server.clock.advance(1)
        assert not self.server.clock.getDelayedCalls()
        self.stack.close()


def test_a_stream_keeps_its_promises_whatever_client_source_and_clock_do():
    run_state_machine_as_test(
        StreamMachine,
        # A history that fails is printed as it is: to make it smaller takes longer than a test may.
        settings=examples(40, stateful_step_count=25, phases=[Phase.explicit, Phase.reuse, Phase.generate]),
    )
