"""The memory budget counts what requests and responses hold, whichever route they are of."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import succeed

from sampleapp import errors
from sampleapp.model import PartitionDescription, RecordMetadata, TopicDescription
from tests.support.callers import FULL, by
from tests.support.examples import examples
from tests.support.in_memory import InMemoryService, ManualBroker, PromptBroker, request_bytes
from tests.support.planned_outcomes import Plan, PlannedBroker
from tests.support.record_pages import PageService
from tests.support.simulated_socket import Link
from tests.support.streams import body_of
from tests.support.work import WorkService, lease_of, leased
from tests.web.http import JSON, NDJSON, assert_problem

MIB = 1024 * 1024
ROOM = 1000


def pass_time(service, seconds=0.3):
    for _ in range(int(seconds * 100)):
        service.clock.advance(0.01)


def unread(service, method, target, headers=(), body=b""):
    """The connection of a client that reads only the beginning of its response."""
    link = Link(service.site, service.clock, room=ROOM)
    link.send(request_bytes(method, target, headers, body))
    pass_time(service)
    return link


def reserved(service):
    return service.site.body_memory.reserved


def acknowledge(service):
    (waiting,) = service.broker.waiting
    waiting.callback(RecordMetadata(topic="t", partition=0, offset=0))


def assert_counted(service, links, *, shared=0):
    """Check that what is counted is what the clients are sent, and that nothing is once they have it."""
    counted = reserved(service)
    total = 0
    for link in links:
        link.socket.room = float("inf")
        total += len(body_of(link.read_all()))
        pass_time(service, 0.1)
    assert total > len(links) * 2 * ROOM
    assert 0.9 * total <= counted + shared <= 1.1 * total
    assert reserved(service) == 0


VALUES = {
    "control characters": b"\x01" * (MIB // 2),
    "no UTF-8": b"\xff" * (MIB // 2),
    "letters": b"x" * (MIB // 2),
    "next lines": "\x85".encode() * (MIB // 4),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_lease_that_is_not_read_counts_as_long_as_it_is(value):
    service = WorkService()
    links = []
    for offset in range(5):
        links.append(unread(service, "POST", "/topics/orders/groups/g/pull"))
        service.broker.asked[-1].answer.callback(lease_of(leased(offset, value=value)))
        pass_time(service)
    assert_counted(service, links)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_page_that_is_not_read_counts_as_long_as_it_is(value):
    service = PageService()
    service.topic.append(0, value)
    assert_counted(service, [unread(service, "GET", "/topics/t/records") for _ in range(5)])


def test_a_lease_that_does_not_fit_once_it_is_encoded_is_given_back():
    service = WorkService(max_body_memory=4 * MIB)
    links = [unread(service, "POST", "/topics/orders/groups/g/pull") for _ in range(3)]
    for offset, pull in enumerate(list(service.broker.asked)):
        pull.answer.callback(lease_of(leased(offset, value=b"\x01" * (MIB // 4))))
        pass_time(service)
        assert reserved(service) <= 4 * MIB
    statuses = [int(link.read_all()[9:12]) for link in links]
    assert statuses.count(200) == 2
    assert statuses.count(503) == 1
    assert [each.method for each in service.broker.asked].count("acknowledge") == 1


class ManyTopics(PromptBroker):
    """Many topics with long names, the first of which has many partitions."""

    def list_topics(self):
        return succeed([f"{number:04}" + "n" * 200 for number in range(5000)])

    def describe_topics(self, topics):
        partitions = [
            PartitionDescription(partition=number, leader=1, replicas=(1, 2, 3), in_sync=(1, 2))
            for number in range(3000)
        ]
        return succeed([TopicDescription(name=name, partitions=tuple(partitions)) for name in topics])


@pytest.mark.parametrize("target", ["/topics", "/topics/t", "/topics/t/partitions"])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_descriptions_of_topics_that_are_not_read_count(target, is_guarded):
    callers = FULL if is_guarded else None
    headers = [by("full")] if is_guarded else []
    service = InMemoryService(broker=ManyTopics(), callers=callers)
    assert_counted(service, [unread(service, "GET", target, headers) for _ in range(3)])


def test_a_response_that_only_reads_and_does_not_fit_is_rejected():
    service = InMemoryService(broker=ManyTopics(), max_body_memory=3 * MIB)
    links = [unread(service, "GET", "/topics") for _ in range(4)]
    assert reserved(service) <= 3 * MIB
    statuses = [int(link.read_all()[9:12]) for link in links]
    assert statuses == [200, 200, 503, 503]


def test_a_document_that_all_clients_share_counts_for_none_of_them():
    service = InMemoryService(broker=PromptBroker())
    for _ in range(5):
        unread(service, "GET", "/openapi.json")
    assert reserved(service) == 0


@pytest.mark.parametrize(
    "plans",
    [
        [],
        [Plan(errors.RecordTooLarge, is_stored=False)],
        [Plan(errors.PublishTimedOut, is_stored=False)] * 4000,
    ],
    ids=["stored", "one rejected", "none known"],
)
def test_a_response_to_a_batch_that_is_not_read_counts_and_is_never_replaced(plans):
    service = InMemoryService(broker=PlannedBroker(plans), max_body_memory=4 * MIB)
    body = b'{"topic":"t","content":""}\n' * 4000
    links = [unread(service, "POST", "/messages", NDJSON, body)]
    pass_time(service, 2)
    assert_counted(service, links)
    assert len(service.broker.records("t")) >= 4000 - len(plans)


@examples(20)
@given(st.integers(1, 200_000), st.booleans())
def test_a_record_counts_until_it_is_settled_however_its_body_comes(length, has_key):
    service = InMemoryService(broker=ManualBroker(), max_body_memory=4 * MIB)
    message = {"topic": "t", "content": "x" * length} | ({"key": "k"} if has_key else {})
    body = json.dumps(message).encode()
    connection = service.connect()
    connection.send(request_bytes("POST", "/messages", JSON, body))
    # A small body is covered by the memory of its connection.
    assert reserved(service) == (0 if len(body) <= 4096 else len(body))
    acknowledge(service)
    assert reserved(service) == 0


def test_headers_of_a_record_count_until_it_is_settled():
    service = InMemoryService(broker=ManualBroker())
    headers = {f"n{number}": "v" for number in range(1000)}
    connection = service.connect()
    connection.send(
        request_bytes(
            "POST", "/messages", JSON, json.dumps({"topic": "t", "content": "", "headers": headers}).encode()
        )
    )
    assert reserved(service) >= 192 * 1000
    acknowledge(service)
    assert reserved(service) == 0


def test_records_that_wait_are_rejected_once_the_memory_is_full():
    service = InMemoryService(broker=ManualBroker(), max_body_memory=MIB)
    body = json.dumps({"topic": "t", "content": "x" * 50_000}).encode()
    connections = []
    for _ in range(30):
        connections.append(service.connect())
        connections[-1].send(request_bytes("POST", "/messages", JSON, body))
        assert reserved(service) <= MIB
    assert len(service.broker.waiting) == MIB // len(body)
    (rejected,) = connections[-1].responses(["POST"])
    assert_problem(rejected, 503)
