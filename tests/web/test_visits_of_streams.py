"""The visits of all open streams go on, whatever one of them does to the others, and to itself."""

from __future__ import annotations

from functools import partial

import pytest
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from sampleapp.web.read.registry import StreamKind
from tests.support.callers import FULL, by, caller
from tests.support.in_memory import request_bytes
from tests.support.record_pages import PATH, PageService
from tests.support.simulated_socket import Link

OTHER = caller("other", 'consume = ["*"]', "read = true")
NOBODY = caller("nobody")
COUNT = 60
"""More than are visited in one slice."""


class Streams:
    """Open streams of records and of changes, of which each may do something when it is sent something."""

    def __init__(self):
        self.service = PageService(callers=FULL + OTHER)
        self.service.read(b"a", b"1")
        self.links, self.added = [], []
        self.links = [self.open(by("full"), target) for target in (PATH, "/changes") * (COUNT // 2)]
        self.pass_time(1)
        assert self.open_ones == COUNT

    def open(self, caller_, target):
        link = Link(self.service.site, self.service.clock)
        link.protocol.dataReceived(request_bytes("GET", target, [(b"Accept", b"text/event-stream"), caller_]))
        return link

    def pass_time(self, seconds, *, step_s=0.01):
        for number in range(int(seconds / step_s)):
            self.service.clock.advance(step_s)
            if number % 10 == 0:
                for link in self.links + self.added:
                    link.read()

    @property
    def open_ones(self):
        numbers = self.service.gateway.streams.numbers
        return sum(numbers[kind].open for kind in (StreamKind.RECORDS, StreamKind.CHANGES))

    def do_in_visits(self, act, *, at_end):
        """Let each third stream do something once, when it is sent something, or its end."""

        def once(link, data):
            if not at_end or data.endswith(b"0\r\n\r\n"):
                link.socket.on_send = None
                act(self, link)

        for link in self.links[1::3]:
            link.socket.on_send = partial(once, link)


def lose(link):
    link.transport.connectionLost(Failure(ConnectionLost()))


def remove_others(streams, link):
    place = streams.links.index(link)
    for other in (streams.links[place - 1], streams.links[(place + 1) % COUNT]):
        if not other.is_lost:
            lose(other)


def remove_all_others(streams, link):
    for other in streams.links:
        if other is not link and not other.is_lost:
            lose(other)


def add(streams, _link):
    streams.added += [streams.open(by("other"), target) for target in (PATH, "/changes")]


def remove_all_others_and_add(streams, link):
    remove_all_others(streams, link)
    add(streams, link)


def fail(_streams, _link):
    raise ZeroDivisionError


ACTS = [remove_others, remove_all_others, add, remove_all_others_and_add, fail]


def be_quiet(streams):
    before = [bytes(link.read_all()) for link in streams.links]
    streams.pass_time(20)
    for link, sent in zip(streams.links, before, strict=True):
        assert link.is_lost or len(link.read_all()) > len(sent)


def lose_the_right(streams):
    streams.service.use_callers(OTHER)
    streams.pass_time(5)
    require_end(streams, "right")


def get_old(streams):
    streams.pass_time(661, step_s=0.5)
    require_end(streams, "age")


def drain(streams):
    streams.service.site.streams.drain(1.0)
    streams.pass_time(2)
    require_end(streams, "drain")


def require_end(streams, reason):
    numbers = streams.service.gateway.streams.numbers
    reasons = set(numbers[StreamKind.RECORDS].ended) | set(numbers[StreamKind.CHANGES].ended)
    assert reason in reasons
    assert reasons <= {reason, "client", "fault"}
    for link in streams.links:
        assert link.is_lost or link.read_all().endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("cause", [be_quiet, lose_the_right, get_old, drain])
def test_each_stream_is_sent_its_heartbeat_or_ends_whatever_another_one_does(cause, act, no_failure_is_lost):
    streams = Streams()
    streams.do_in_visits(act, at_end=cause is not be_quiet)
    cause(streams)
    assert {failure.type for failure in no_failure_is_lost} == ({ZeroDivisionError} if act is fail else set())
    no_failure_is_lost.clear()
    assert bool(streams.added) is (act in (add, remove_all_others_and_add))
    left = [link for link in streams.links if not link.is_lost] if cause is be_quiet else []
    assert streams.open_ones == len(left) + len(streams.added)
    # Those that were added are visited, too.
    for link in streams.added:
        assert not link.is_lost
        assert b"200 OK" in link.read_all()
    streams.service.use_callers(FULL)
    streams.pass_time(5)
    assert streams.open_ones == len(left)
    # And so is one that comes when all others have ended.
    streams.service.use_callers(NOBODY)
    streams.pass_time(5)
    assert streams.open_ones == 0
    streams.service.use_callers(OTHER)
    streams.open(by("other"), PATH)
    streams.pass_time(1)
    assert streams.open_ones == 1
    streams.service.use_callers(NOBODY)
    streams.pass_time(5)
    assert streams.open_ones == 0
    assert len(streams.service.gateway.streams) == 0
