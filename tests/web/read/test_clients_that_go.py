"""A page that waits for a record does not wait for a client that may have gone."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.model import Record
from sampleapp.web.read.registry import StreamKind
from tests.support.in_memory import InMemoryService, request_bytes

WAIT = "/topics/t/records?wait=60"


@pytest.fixture
def service():
    clock = Clock()

    class Service(InMemoryService):
        make_clock = staticmethod(lambda: clock)

    broker = MemoryBroker(clock=clock)
    broker.start()
    broker.publish(Record(topic="t", key=None, value=b"v", timestamp_ms=1))
    clock.pump([0.1] * 5)
    return Service(broker=broker)


def ask(service, target):
    connection = service.connect()
    connection.send(request_bytes("GET", target))
    service.clock.pump([0.1] * 5)
    return connection


def waiting_pages(service):
    return service.gateway.streams.numbers[StreamKind.PAGE].open


def test_a_client_that_closes_its_side_gets_its_answer_at_once(service):
    connection = ask(service, f"{WAIT}&from=latest")
    assert (connection.sent, waiting_pages(service)) == (b"", 1)
    connection.channel.readConnectionLost()
    service.clock.pump([0.1] * 5)
    (answer,) = connection.responses(["GET"])
    assert (answer.status, answer.headers[b"up-to-date"]) == (204, b"true")
    assert answer.headers[b"position"].endswith(b"~1")
    assert waiting_pages(service) == 0


def test_a_client_that_closed_its_side_before_still_gets_records_but_no_wait(service):
    connection = service.connect()
    connection.send(request_bytes("GET", WAIT) + request_bytes("GET", f"{WAIT}&from=latest"))
    connection.channel.readConnectionLost()
    service.clock.pump([0.1] * 10)
    answers = connection.responses(["GET", "GET"])
    assert [answer.status for answer in answers] == [200, 204]
    connection.settle()
    assert connection.is_closed_for_reading


def test_the_place_of_a_client_that_is_gone_is_free_at_once(service):
    connection = ask(service, f"{WAIT}&from=latest")
    connection.lose()
    service.clock.pump([0.1] * 5)
    assert waiting_pages(service) == 0
    numbers = service.gateway.streams.numbers[StreamKind.PAGE]
    assert numbers.ended == {"client": 1}
