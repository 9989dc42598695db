"""The client as a worker, against the real service, all in memory."""

from __future__ import annotations

import json

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.client import Lease, LeaseLost, ProblemError, Rejected, Released
from sampleapp.errors import InvalidMessage
from sampleapp.model import Acknowledged, ConsumerRecord, LeasedRecord
from tests.client.test_service import Service
from tests.support.client_servers import PROBLEM, V1, canned, problem
from tests.support.logs import logged_lines

GROUP = {"topic": "orders", "group": "billing"}


class WorkService(Service):
    """A service with some messages, and its client."""

    def __init__(self, *contents):
        clock = Clock()
        super().__init__(MemoryBroker(clock=clock), clock)
        for content in contents:
            self.result_of(self.client.publish(topic="orders", content=content, key="k"))

    def pull(self, **arguments):
        return self.result_of(self.client.pull(**GROUP, **arguments))

    def run(self, seconds, *, step=0.1):
        for _ in range(int(seconds / step)):
            self.agent.flush()
            self.clock.advance(step)

    def until(self, condition):
        for _ in range(1000):
            if condition():
                return
            self.run(0.1)
        raise AssertionError("it has not come about")

    @property
    def backlog(self):
        return self.result_of(self.broker.backlog("orders", "billing"))


class Handling:
    """A handler whose every outcome is up to the test."""

    def __init__(self):
        self.messages = []
        self.results = []

    def __call__(self, message):
        self.messages.append(message)
        self.results.append(Deferred())
        return self.results[-1]

    @property
    def contents(self):
        return [message.record.value for message in self.messages]


def test_a_worker_pulls_messages_and_acknowledges_them():
    service = WorkService("a", "b")
    lease = service.pull(most=5)
    first, second = lease.messages
    assert (first.record.offset, first.attempts, first.record.value) == (0, 1, b"a")
    acknowledging = service.client.ack(**GROUP, lease=lease, accept=[first], release=[second])
    assert service.result_of(acknowledging) == Acknowledged(accepted=1, released=1, rejected=0)
    assert service.pull().messages == (LeasedRecord(second.record, 2),)


def test_a_pull_without_messages_is_none():
    service = WorkService("a")
    service.pull()
    assert service.pull() is None
    assert service.pull(wait_s=2) is None


def test_a_result_may_be_for_all_messages():
    service = WorkService("a", "b")
    acknowledging = service.client.ack(**GROUP, lease=service.pull(most=2), reject="all")
    assert service.result_of(acknowledging) == Acknowledged(accepted=0, released=0, rejected=2)


def test_a_lease_that_is_extended_has_the_same_messages_and_replaces_the_old_one():
    service = WorkService("a")
    lease = service.pull()
    extended = service.result_of(service.client.extend(**GROUP, lease=lease))
    assert (extended.messages, extended.token != lease.token) == (lease.messages, True)
    lost = service.result_of(service.client.ack(**GROUP, lease=lease, accept="all"))
    assert isinstance(lost, LeaseLost)
    assert not lost.retriable


def test_a_lease_that_is_lost_names_what_is_done():
    body = problem(409, type="urn:sampleapp:problem:lease-lost", done=["0-1"])
    failing = canned(409, PROBLEM, body).ack(**GROUP, lease=Lease(token="t", lasts_s=1))
    errors = []
    failing.addErrback(lambda failure: errors.append(failure.value))
    assert [(type(error), error.done) for error in errors] == [(LeaseLost, ("0-1",))]


@pytest.mark.parametrize(
    ("fields", "lasts_s"),
    [
        ([("Date", "Tue, 24 Nov 2026 10:00:00 GMT")], 30.5),
        # By the clock of the client, which is another day.
        ([("Date", "today")], None),
    ],
)
def test_how_long_a_lease_lasts_is_told_by_the_clock_of_the_service(fields, lasts_s):
    line = {"id": "1-2", "attempts": 3, "topic": "t", "partition": 1, "offset": 2, "timestamp": 5}
    document = {"lease": "x", "expires": "2026-11-24T10:00:30.500Z", "messages": [{**line, "content": "c"}]}
    found = []
    canned(200, V1, json.dumps(document).encode(), fields).pull(**GROUP).addCallback(found.append)
    (lease,) = found
    record = ConsumerRecord(topic="t", partition=1, offset=2, timestamp_ms=5, key=None, value=b"c")
    assert lease.messages == (LeasedRecord(record, 3),)
    assert (lease.lasts_s == lasts_s) == (lasts_s is not None)


def test_an_illegal_name_of_a_group_is_an_error_before_anything_is_sent():
    error = WorkService().result_of(WorkService().client.pull(topic="t", group="a/b"))
    assert isinstance(error, InvalidMessage)
    assert error.faults[0].pointer == "/group"


# Client.work


def test_messages_are_accepted_when_their_handler_is_done():
    service = WorkService("a", "b")
    seen = []
    worker = service.client.work(**GROUP, handler=lambda message: seen.append(message.record.value), most=2)
    service.result_of(worker.done)
    assert (seen, worker.accepted, service.backlog) == ([b"a", b"b"], 2, 0)


def test_a_worker_waits_for_messages_that_come_later():
    service = WorkService("a")
    handler = Handling()
    service.client.work(**GROUP, handler=handler)
    service.until(lambda: handler.results)
    handler.results[0].callback(None)
    service.run(30)
    service.result_of(service.client.publish(topic="orders", content="b"))
    service.until(lambda: len(handler.results) == 2)
    assert handler.contents == [b"a", b"b"]


@pytest.mark.parametrize("parallel", [1, 2])
def test_so_many_messages_are_handled_at_one_time(parallel):
    service = WorkService("a", "b", "c")
    handler = Handling()
    service.client.work(**GROUP, handler=handler, parallel=parallel)
    service.run(5)
    assert len(handler.messages) == parallel


def test_a_message_that_the_handler_rejects_is_never_given_again():
    service = WorkService("a", "b")
    handler = Handling()
    worker = service.client.work(**GROUP, handler=handler, most=2)
    service.until(lambda: handler.results)
    handler.results[0].errback(Rejected())
    service.until(lambda: len(handler.results) == 2)
    handler.results[1].callback(None)
    service.result_of(worker.done)
    assert (handler.contents, worker.accepted, service.backlog) == ([b"a", b"b"], 1, 0)


def test_a_message_whose_handler_fails_is_given_again(no_failure_is_lost):
    service = WorkService("a")
    handler = Handling()
    worker = service.client.work(**GROUP, handler=handler, most=2)
    service.until(lambda: handler.results)
    handler.results[0].errback(ZeroDivisionError())
    service.until(lambda: len(handler.results) == 2)
    handler.results[1].callback(None)
    service.result_of(worker.done)
    assert [message.attempts for message in handler.messages] == [1, 2]
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()


def test_a_message_that_the_handler_releases_is_given_again():
    service = WorkService("a")
    handler = Handling()
    worker = service.client.work(**GROUP, handler=handler, most=2)
    service.until(lambda: handler.results)
    handler.results[0].errback(Released())
    service.until(lambda: len(handler.results) == 2)
    handler.results[1].callback(None)
    service.result_of(worker.done)
    assert [message.attempts for message in handler.messages] == [1, 2]


def test_errors_that_may_pass_are_told_and_the_worker_goes_on():
    told = []
    worker = canned(503, PROBLEM, problem(503)).work(**GROUP, handler=Handling(), on_trouble=told.append)
    assert told == ["Cannot pull messages now; trying again: Title (503): Detail."]
    assert not worker.done.called
    worker.stop()
    assert worker.done.called


def test_a_lease_is_extended_while_its_message_is_handled():
    service = WorkService("a")
    handler = Handling()
    worker = service.client.work(**GROUP, handler=handler, most=1)
    service.until(lambda: handler.results)
    # Its first lease ends after 30 seconds.
    service.run(60)
    assert service.pull() is None
    handler.results[0].callback(None)
    service.result_of(worker.done)
    assert (len(handler.messages), worker.accepted, service.backlog) == (1, 1, 0)


def test_a_handler_is_cancelled_when_its_lease_is_lost():
    service = WorkService("a")
    handler = Handling()
    worker = service.client.work(**GROUP, handler=handler, most=1)
    service.until(lambda: handler.results)
    with logged_lines() as lines:
        service.clock.advance(31)
        service.result_of(worker.done)
    assert lines[-1].startswith("A message is given again: Lease has ended (409)")
    assert worker.accepted == 0
    assert service.pull().messages[0].attempts == 2


def test_a_worker_that_is_stopped_finishes_what_it_handles():
    service = WorkService("a", "b")
    handler = Handling()
    worker = service.client.work(**GROUP, handler=handler)
    service.until(lambda: handler.results)
    worker.stop()
    service.run(1)
    assert not worker.done.called
    handler.results[0].callback(None)
    service.result_of(worker.done)
    assert (handler.contents, service.backlog) == ([b"a"], 1)


def test_a_worker_that_is_stopped_while_it_waits_is_done_at_once():
    service = WorkService("a")
    service.pull()
    worker = service.client.work(**GROUP, handler=Handling(), parallel=3)
    service.run(1)
    worker.stop()
    assert worker.done.called


def test_a_worker_that_is_aborted_releases_what_it_handles():
    service = WorkService("a")
    handler = Handling()
    worker = service.client.work(**GROUP, handler=handler)
    service.until(lambda: handler.results)
    worker.abort()
    service.result_of(worker.done)
    assert service.pull().messages[0].attempts == 2


def test_a_pull_that_cannot_succeed_later_ends_the_work():
    service = WorkService()
    worker = service.client.work(**GROUP, handler=Handling(), parallel=2)
    error = service.result_of(worker.done)
    assert isinstance(error, ProblemError)
    assert error.problem.status == 404
