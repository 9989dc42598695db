"""The trace of a request goes on in the headers of its record, through each broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.web.server import Site

from sampleapp.brokers.memory import MemoryBroker
from tests.support.brokers import Recorder
from tests.support.in_memory import Connection, InMemoryService, PromptBroker, request_bytes
from tests.support.strategies import field_bytes
from tests.web.http import JSON, MESSAGE

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = b"congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
TRACE = [
    (b"Traceparent", PARENT),
    (b"tracestate", b"congo=t61rcWkgMzE"),
    (b"TraceState", b"rojo=00f067aa0ba902b7"),
]
HEADERS = (("traceparent", PARENT), ("tracestate", STATE))


@pytest.fixture
def sites(service):
    return service.site, Site(service.gateway.app.resource())


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        (TRACE, HEADERS),
        (TRACE[:1], HEADERS[:1]),
        ([], ()),
        (TRACE[1:], ()),
        ([(b"traceparent", PARENT.upper()), *TRACE[1:]], ()),
        ([TRACE[0], *TRACE], ()),
        ([TRACE[0], (b"tracestate", b"no state")], HEADERS[:1]),
    ],
)
def test_a_valid_trace_becomes_headers_of_the_record(service, sites, fields, headers):
    for site in sites:
        connection = Connection(site)
        connection.send(request_bytes("POST", "/messages", [*JSON, *fields], MESSAGE))
        assert connection.sent.startswith(b"HTTP/1.1 200 ")
        assert service.broker.records[-1].headers == headers


def test_a_trace_among_the_message_s_own_headers_wins(service, sites):
    body = b'{"topic":"t","content":"c","headers":{"traceparent":"own","unit":"K"}}'
    for site in sites:
        Connection(site).send(request_bytes("POST", "/messages", [*JSON, *TRACE], body))
        assert service.broker.records[-1].headers == (("traceparent", b"own"), ("unit", b"K"))


@given(st.lists(st.tuples(st.sampled_from([b"traceparent", b"tracestate"]), field_bytes), max_size=4))
def test_no_trace_keeps_a_message_from_being_taken(fields):
    service = InMemoryService(broker=PromptBroker())
    response = service.request("POST", "/messages", [*JSON, *fields], MESSAGE)
    assert (response.status, len(service.broker.records)) == (200, 1)


def test_a_trace_comes_back_from_memory():
    clock = Clock()
    broker = MemoryBroker(clock=clock)
    broker.start()
    InMemoryService(broker=broker).request("POST", "/messages", [*JSON, *TRACE], MESSAGE)
    observer = Recorder()
    broker.follow(topic="t", observer=observer)
    clock.pump([0.1] * 10)
    assert [record.headers for record in observer.records] == [HEADERS]
    broker.stop(deadline_s=0)
