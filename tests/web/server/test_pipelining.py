"""Requests that come in pieces, and one after another without waiting."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.examples import examples
from tests.support.in_memory import InMemoryService, PromptBroker, request_bytes
from tests.web.http import CHUNKED, JSON, MESSAGE, chunked


class Exchange:
    """Requests that are sent, and the expected answer to each."""

    def __init__(self, requests):
        self.data = b"".join(data for data, _, _ in requests)
        self.methods = [method for _, method, _ in requests]
        self.statuses = [status for _, _, status in requests]


def _exchange(method, target, status, headers=(), body=None):
    return request_bytes(method, target, headers, body), method, status


good_requests = st.one_of(
    st.sampled_from(
        [
            _exchange("GET", "/", 200),
            _exchange("GET", "/", 200, [(b"Accept", b"application/vnd.sampleApp.v2+json")]),
            _exchange("HEAD", "/", 200),
            _exchange("OPTIONS", "/", 204),
            _exchange("GET", "/nothing", 404),
            _exchange("PUT", "/messages", 405, (), b"ignored"),
            _exchange("POST", "/messages", 415, (), MESSAGE),
            _exchange("POST", "/messages", 400, JSON, b"{"),
        ]
    ),
    st.tuples(strategies.texts, st.booleans(), st.integers(1, 50)).map(
        lambda drawn: _posting(*drawn),
    ),
)


def _posting(content, in_chunks, size):
    body = json.dumps({"topic": "t", "content": content}).encode()
    data = CHUNKED + chunked(body, size) if in_chunks else request_bytes("POST", "/messages", JSON, body)
    return data, "POST", 200


def without_dates(data):
    return re.sub(rb"\r\nDate: [^\r]*", b"", data)


@examples(60)
@given(st.lists(good_requests, min_size=1, max_size=5).map(Exchange), st.data())
def test_requests_are_answered_alike_whole_byte_by_byte_and_cut_anywhere(exchange, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(exchange.data)), max_size=8)))
    ways = [
        [exchange.data],
        [exchange.data[n : n + 1] for n in range(len(exchange.data))],
        [exchange.data[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)],
    ]
    answers, records = [], []
    for pieces in ways:
        service = InMemoryService(broker=PromptBroker())
        service.give_same_request_ids()
        service.read(b"a", b"1")
        connection = service.connect()
        connection.send(*[piece for piece in pieces if piece])
        # Many chunks are read in several turns.
        service.clock.pump([0] * 50)
        answers.append(without_dates(connection.sent))
        records.append([record.value for record in service.broker.records])
        assert exchange.statuses == [response.status for response in connection.responses(exchange.methods)]
    assert answers[0] == answers[1] == answers[2]
    assert records[0] == records[1] == records[2]


def test_pipelined_messages_are_answered_in_their_order_one_after_the_other():
    service = InMemoryService()
    connection = service.connect()
    posts = [request_bytes("POST", "/messages", JSON, b'{"topic":"t","content":"%d"}' % n) for n in range(3)]
    connection.send(b"".join(posts) + request_bytes("GET"))
    for n in range(3):
        assert [b"%d" % m for m in range(n + 1)] == [record.value for record in service.broker.records]
        service.broker.acknowledge()
    responses = connection.responses(["POST", "POST", "POST", "GET"])
    assert [json.loads(response.body)["offset"] for response in responses[:3]] == [0, 1, 2]


def test_many_pipelined_requests_are_answered_in_turns_with_those_of_others():
    service = InMemoryService(broker=PromptBroker())
    greedy, modest = service.connect(), service.connect()
    greedy.send(request_bytes("GET") * 1000)
    assert greedy.sent.count(b"HTTP/1.1 200 OK") < 100
    modest.send(request_bytes("GET"))
    assert modest.sent.count(b"HTTP/1.1 200 OK") == 1
    greedy.channel.readConnectionLost()
    for _ in range(100):
        service.clock.advance(0)
    greedy.settle()
    assert greedy.sent.count(b"HTTP/1.1 200 OK") == 1000
    assert greedy.is_lost


@pytest.mark.parametrize("size", [1, 2, 7])
def test_tiny_chunks_make_the_same_body(size):
    service = InMemoryService(broker=PromptBroker())
    connection = service.connect()
    content = "0123456789" * 500
    body = json.dumps({"topic": "t", "content": content}).encode()
    connection.send(CHUNKED + chunked(body, size))
    # Many small chunks are parsed in several turns of the reactor.
    service.clock.pump([0] * 20)
    (response,) = connection.responses(["POST"])
    assert response.status == 200
    assert [record.value for record in service.broker.records] == [content.encode()]
