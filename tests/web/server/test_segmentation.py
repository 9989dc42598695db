"""Answers do not depend on how requests are cut, when the client reads, and when the broker answers."""

from __future__ import annotations

import re
from collections import deque
from functools import partial
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed

from sampleapp.model import RecordMetadata
from tests.support.examples import examples
from tests.support.in_memory import InMemoryService, ManualBroker
from tests.support.requests import pipelines, segments
from tests.support.simulated_socket import Link

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Broker(ManualBroker):
    """A broker whose offsets do not depend on the order of records."""

    answers_at_once = True

    def publish(self, record):
        self.records.append(record)
        metadata = RecordMetadata(topic=record.topic, partition=0, offset=crc32(record.value))
        if self.answers_at_once:
            return succeed(metadata)
        waiting = Deferred()
        self.waiting.append((waiting, metadata))
        return waiting

    def answer(self, index):
        waiting, metadata = self.waiting.pop(index)
        waiting.callback(metadata)


class LateBroker(Broker):
    answers_at_once = False


def service_with(broker):
    service = InMemoryService(broker=broker)
    service.give_same_request_ids()
    for n in range(100):
        service.read(b"%d" % n, b"1.5")
    return service


def comparable(received, requests):
    """The bytes that a client reads, without the parts that may differ."""
    received = re.sub(rb"\r\nDate: [^\r]*", b"", received)
    if b"expect:" not in requests[-1].data.lower():
        return received
    # A server may omit this when it has got some of the body already (RFC 9110, section 10.1.1). If it has
    # not, and does not want the body, it closes the connection instead of reading the body.
    if requests[-1].damage is not None and received.endswith(_CONTINUE):
        # No answer follows to a request that is not whole.
        received = received.removesuffix(_CONTINUE)
    received = received.replace(_CONTINUE + b"HTTP/1.1", b"HTTP/1.1")
    return re.sub(rb"\r\n(?:Connection|Keep-Alive): [^\r]*", b"", received)


def answers_to_whole_requests(requests):
    service = service_with(Broker())
    link = Link(service.site, service.clock)
    link.send(*[request.data for request in requests])
    return comparable(link.read_all(), requests), [record.value for record in service.broker.records]


@st.composite
def clients(draw):
    """The requests of some clients, and their segments."""
    plans = []
    for _ in range(draw(st.integers(1, 3))):
        requests = draw(pipelines())
        data = b"".join(request.data for request in requests)
        takes = draw(st.lists(st.integers(0, 300), max_size=20))
        room = draw(st.sampled_from([float("inf"), 1000, 7]))
        plans.append(
            (requests, draw(segments(data)), {"is_known": draw(st.booleans()), "takes": takes, "room": room})
        )
    return plans


def send_some(link, left, chance):
    """Send as many segments as arrive before the server looks."""
    link.send(*[left.popleft() for _ in range(chance.randint(1, len(left)))])


@examples(50)
@given(clients(), st.sampled_from([Broker, LateBroker]), st.randoms(use_true_random=False))
def test_however_requests_are_cut_and_answers_taken_and_published_the_answers_are_the_same(
    plans, broker, chance
):
    broker = broker()
    service = service_with(broker)
    links = [(Link(service.site, service.clock, **way), deque(pieces)) for _, pieces, way in plans]
    while True:
        acts = [partial(send_some, link, left, chance) for link, left in links if left]
        acts += [partial(link.read, chance.randint(1, 1000)) for link, _ in links if link.socket.unread]
        if broker.waiting:
            acts.append(partial(broker.answer, chance.randint(0, len(broker.waiting) - 1)))
        if not acts:
            break
        chance.choice(acts)()
        for link, _ in links:
            link.turn()
    published = sorted(record.value for record in broker.records)
    expected = []
    for (link, _), (requests, _, _) in zip(links, plans, strict=True):
        answers, records = answers_to_whole_requests(requests)
        assert answers == comparable(link.read_all(), requests)
        expected += records
    assert sorted(expected) == published


@examples(20)
@given(pipelines())
def test_requests_that_come_byte_by_byte_are_answered_as_whole_ones(requests):
    answers, records = answers_to_whole_requests(requests)
    service = service_with(Broker())
    link = Link(service.site, service.clock)
    data = b"".join(request.data for request in requests)
    # A long head is all the same from some point on.
    link.send(*[data[n : n + 1] for n in range(min(len(data), 3000))], data[3000:])
    assert answers == comparable(link.read_all(), requests)
    assert records == [record.value for record in service.broker.records]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("takes", [[], [0], [7, 0]])
def test_a_client_is_told_to_go_on_before_it_is_answered_even_if_it_has_gone_on_already(is_known, takes):
    service = service_with(Broker())
    link = Link(service.site, service.clock, is_known=is_known, takes=takes)
    head = b"POST /messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 27\r\n"
    link.send(head + b"Expect: 100-continue\r\n\r\n", b'{"topic":"t","content":"c"}')
    received = link.read_all()
    assert received.startswith(_CONTINUE + b"HTTP/1.1 200 OK\r\n")
    assert received.count(b"HTTP/1.1") == 2
    link.send(b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n")
    assert link.read_all().count(b"HTTP/1.1 404") == 1
