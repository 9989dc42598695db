"""Every answer carries an id by which its request is known: the client's own, if it can be repeated."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.logger import capturedLogs, formatEvent
from twisted.web.server import Site

from tests.support.in_memory import (
    Connection,
    InMemoryService,
    ManualBroker,
    MemoryTransport,
    PromptBroker,
    request_bytes,
)
from tests.support.strategies import field_bytes
from tests.web.http import JSON, MESSAGE

OWN = (b"X-Request-Id", b"!own~")
NEW = re.compile(rb"[!-~]{1,128}")
ID = re.compile(rb"\r\nX-Request-Id: ([^\r\n]*)\r\n", re.IGNORECASE)


def ids_in(connection):
    """The id in the head of each answer."""
    heads = re.findall(rb"HTTP/1\.1 \d{3} .*?\r\n\r\n", connection.sent, re.DOTALL)
    found = [ID.findall(head) for head in heads]
    assert all(len(ids) == 1 for ids in found)
    return [ids[0] for ids in found]


def own_and_klein(service):
    """The service's own server, and its resource in a site of twisted.web."""
    return service.site, Site(service.gateway.app.resource())


ANSWERED = {
    "200": request_bytes("GET", "/", [OWN]),
    "HEAD": request_bytes("HEAD", "/", [OWN]),
    "200 for a message": request_bytes("POST", "/messages", [*JSON, OWN], MESSAGE),
    "304": request_bytes("GET", "/", [OWN, (b"If-None-Match", b"*")]),
    "404": request_bytes("GET", "/nothing", [OWN]),
    "405": request_bytes("GET", "/messages", [OWN]),
    "415": request_bytes("POST", "/messages", [OWN], MESSAGE),
    "422": request_bytes("POST", "/messages", [*JSON, OWN], b"{}"),
    "OPTIONS": request_bytes("OPTIONS", "/", [OWN]),
}
REJECTED = {
    "413 by its length": request_bytes("POST", "/messages", [*JSON, OWN, (b"Content-Length", b"1001")]),
    "413 in chunks": (
        request_bytes("POST", "/messages", [*JSON, OWN, (b"Transfer-Encoding", b"chunked")])
        + (b"100\r\n" + b"x" * 256 + b"\r\n") * 4
    ),
    "400 for a header": b"GET / HTTP/1.1\r\nX-Request-Id: !own~\r\nHost: a b\r\n\r\n",
    "400 for a line": b"nonsense\r\nX-Request-Id: !own~\r\n\r\n",
    "417": request_bytes("POST", "/messages", [*JSON, OWN, (b"Expect", b"x"), (b"Content-Length", b"3")]),
    "431": request_bytes("GET", "/", [OWN, (b"Long", b"x" * 20_000)]),
    "501": request_bytes("POST", "/messages", [*JSON, OWN, (b"Transfer-Encoding", b"gzip, chunked")]),
}


@pytest.mark.parametrize("data", ANSWERED.values(), ids=ANSWERED)
def test_an_answer_has_the_id_that_the_client_has_given(service, data):
    for site in own_and_klein(service):
        connection = Connection(site)
        connection.send(data)
        assert ids_in(connection) == [b"!own~"]


@pytest.mark.parametrize("data", REJECTED.values(), ids=REJECTED)
def test_a_rejection_has_the_id_that_the_client_has_given(service, data):
    connection = service.connect()
    connection.send(data)
    assert ids_in(connection) == [b"!own~"]


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        request_bytes("GET", "/"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_an_answer_to_a_request_without_an_id_has_a_new_one(service, data):
    connection = service.connect()
    connection.send(data)
    (given_id,) = ids_in(connection)
    assert NEW.fullmatch(given_id)


def test_a_client_that_is_too_slow_is_told_its_id():
    service = InMemoryService()
    body = [*JSON, OWN, (b"Content-Length", b"9")]
    for data in (request_bytes("GET", "/", [OWN])[:-2], request_bytes("POST", "/messages", body)):
        connection = service.connect()
        connection.send(data)
        service.clock.pump([1] * 13)
        assert connection.sent.startswith(b"HTTP/1.1 408 ")
        assert ids_in(connection) == [b"!own~"]


def test_a_client_that_is_turned_away_gets_an_id():
    service = InMemoryService(max_connections=1)
    transports = []
    for _ in range(2):
        address = IPv4Address("TCP", "192.0.2.1", 40000)
        transports.append(MemoryTransport(peerAddress=address))
        service.site.buildProtocol(address).makeConnection(transports[-1])
    assert transports[1].value().startswith(b"HTTP/1.1 503 ")
    (given_id,) = ID.findall(transports[1].value())
    assert NEW.fullmatch(given_id)


def test_each_of_many_requests_has_an_id_of_its_own(service):
    seen = []
    for site in own_and_klein(service):
        for _ in range(3):
            connection = Connection(site)
            connection.send(request_bytes("GET", "/") * 20)
            seen += ids_in(connection)
    assert len(set(seen)) == len(seen) == 120


def test_requests_that_come_one_after_another_without_waiting_keep_their_ids(service):
    ids = [b"a", None, b"b", b"c", None]
    for site in own_and_klein(service):
        connection = Connection(site)
        connection.send(
            b"".join(
                request_bytes(
                    "POST", "/messages", [*JSON, *([(b"X-Request-Id", id_)] if id_ else [])], MESSAGE
                )
                for id_ in ids
            )
        )
        given_ids = ids_in(connection)
        assert [id_ for id_ in given_ids if len(id_) == 1] == [b"a", b"b", b"c"]
        assert [len(id_) == 1 for id_ in given_ids] == [id_ is not None for id_ in ids]


any_ids = st.one_of(
    field_bytes,
    st.binary(max_size=200).map(lambda value: value.translate(None, bytes(range(32)) + b"\x7f")),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=140).map(str.encode),
)


@given(st.lists(any_ids, max_size=2))
def test_an_id_is_repeated_if_it_is_the_only_one_and_1_to_128_printable_characters(ids):
    service = InMemoryService(broker=PromptBroker())
    connection = service.connect()
    connection.send(request_bytes("GET", "/", [(b"X-Request-Id", id_) for id_ in ids]))
    (given_id,) = ids_in(connection)
    values = [id_.strip(b" \t") for id_ in ids]
    is_legal = (
        len(values) == 1 and 1 <= len(values[0]) <= 128 and all(0x21 <= octet <= 0x7E for octet in values[0])
    )
    if is_legal:
        assert given_id == values[0]
    else:
        assert given_id not in values
        assert NEW.fullmatch(given_id)


class BrokenBroker(ManualBroker):
    """A broker with a fault: at once, or instead of acknowledging the record."""

    def __init__(self, *, at_once):
        super().__init__()
        self._at_once = at_once

    def publish(self, record):
        if self._at_once:
            raise ZeroDivisionError
        return super().publish(record)


@pytest.mark.parametrize("at_once", [True, False])
def test_the_log_line_of_a_fault_has_the_id(at_once, no_failure_is_lost):
    service = InMemoryService(broker=BrokenBroker(at_once=at_once))
    for site in own_and_klein(service):
        connection = Connection(site)
        with capturedLogs() as events:
            connection.send(request_bytes("POST", "/messages", [*JSON, OWN], MESSAGE))
            if not at_once:
                service.broker.waiting.pop().errback(ZeroDivisionError())
        assert connection.sent.startswith(b"HTTP/1.1 500 ")
        assert ids_in(connection) == [b"!own~"]
        (line,) = [formatEvent(event) for event in events]
        no_failure_is_lost.clear()
        assert line == "A fault in the service: a request was answered with 500. (X-Request-Id: !own~)"


def test_the_log_line_of_a_fault_has_the_id_also_when_the_client_has_gone(no_failure_is_lost):
    service = InMemoryService(broker=BrokenBroker(at_once=False))
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", [*JSON, OWN], MESSAGE))
    connection.lose()
    with capturedLogs() as events:
        service.broker.waiting.pop().errback(ZeroDivisionError())
    assert [event["request_id"] for event in events] == ["!own~"]
    no_failure_is_lost.clear()


@pytest.mark.timeout(60, method="signal")
@pytest.mark.parametrize("value", [b"%b", b"a%bb", b"%ba", b"a%b"])
@pytest.mark.parametrize("end", [b"", b"\r", b"\r\n", b"\r\nno field\r\n\r\n"])
def test_an_id_with_thousands_of_blanks_is_read_quickly(value, end):
    """Its search took seconds for 800 blanks, and eight times that for twice as many."""
    service = InMemoryService()
    connection = service.connect()
    connection.send(b"GET / HTTP/1.1\r\nX-Request-Id:" + value % (b" \t" * 8000) + end)
    service.clock.pump([1] * 12)
    assert connection.sent.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 408 "))
    assert len(ids_in(connection)) == 1
