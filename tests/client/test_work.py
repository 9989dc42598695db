"""The client as a worker, against the real service, all in memory."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.task import Clock

from sampleapp.brokers.memory import MemoryBroker
from sampleapp.client import Lease, LeaseLost, ProblemError, Rejected, Released, ServiceUnreachable
from sampleapp.errors import InvalidMessage, TooManyLeases
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
        return self.result_of(self.broker.work.backlog("orders", "billing"))


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
    results = []
    working = service.client.work(
        **GROUP, handler=lambda message: seen.append(message.record.value), most=2, on_result=results.append
    )
    assert service.result_of(working) is None
    one = Acknowledged(accepted=1, released=0, rejected=0)
    assert (seen, results, service.backlog) == ([b"a", b"b"], [one, one], 0)


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
    working = service.client.work(**GROUP, handler=handler, most=2)
    service.until(lambda: handler.results)
    handler.results[0].errback(Rejected())
    service.until(lambda: len(handler.results) == 2)
    handler.results[1].callback(None)
    service.result_of(working)
    assert (handler.contents, service.backlog) == ([b"a", b"b"], 0)


def test_a_message_whose_handler_fails_is_given_again(no_failure_is_lost):
    service = WorkService("a")
    handler = Handling()
    working = service.client.work(**GROUP, handler=handler, most=2)
    service.until(lambda: handler.results)
    handler.results[0].errback(ZeroDivisionError())
    service.until(lambda: len(handler.results) == 2)
    handler.results[1].callback(None)
    service.result_of(working)
    assert [message.attempts for message in handler.messages] == [1, 2]
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()


def test_a_message_that_the_handler_releases_is_given_again():
    service = WorkService("a")
    handler = Handling()
    working = service.client.work(**GROUP, handler=handler, most=2)
    service.until(lambda: handler.results)
    handler.results[0].errback(Released())
    service.until(lambda: len(handler.results) == 2)
    handler.results[1].callback(None)
    service.result_of(working)
    assert [message.attempts for message in handler.messages] == [1, 2]


def test_errors_that_may_pass_are_told_and_the_worker_goes_on():
    told = []
    working = canned(503, PROBLEM, problem(503)).work(**GROUP, handler=Handling(), on_trouble=told.append)
    assert told == ["Cannot pull messages now; trying again: Title (503): Detail."]
    assert not working.called
    working.cancel()
    working.addErrback(lambda failure: failure.trap(CancelledError))
    assert told[1:] == []


def test_a_lease_is_extended_while_its_message_is_handled():
    service = WorkService("a")
    handler = Handling()
    working = service.client.work(**GROUP, handler=handler, most=1)
    service.until(lambda: handler.results)
    # Its first lease ends after 30 seconds.
    service.run(60)
    assert service.pull() is None
    handler.results[0].callback(None)
    service.result_of(working)
    assert (len(handler.messages), service.backlog) == (1, 0)


def test_a_message_that_is_handled_is_acknowledged_though_its_lease_could_not_be_extended():
    service = WorkService("a")
    handler, results = Handling(), []
    service.broker.work.extend = lambda *_: fail(TooManyLeases(200))
    working = service.client.work(**GROUP, handler=handler, most=1, on_result=results.append)
    service.until(lambda: handler.results)
    service.run(15)
    handler.results[0].callback(None)
    service.run(0.5)
    assert [each.accepted for each in results] == [1]
    service.result_of(working)


def test_a_handler_is_cancelled_when_its_lease_is_lost():
    service = WorkService("a")
    handler = Handling()
    working = service.client.work(**GROUP, handler=handler, most=1)
    service.until(lambda: handler.results)
    with logged_lines() as lines:
        service.clock.advance(31)
        service.result_of(working)
    assert lines[-1].startswith("A message is given again: Lease has ended (409)")
    assert service.pull().messages[0].attempts == 2


def test_a_worker_that_is_cancelled_finishes_what_it_handles():
    service = WorkService("a", "b")
    handler = Handling()
    told = []
    working = service.client.work(**GROUP, handler=handler, on_trouble=told.append)
    service.until(lambda: handler.results)
    working.cancel()
    service.run(60)
    assert told == ["Ending after the messages in progress. Another interruption releases them."]
    assert service.backlog == 2
    handler.results[0].callback(None)
    assert isinstance(service.result_of(working), CancelledError)
    assert (handler.contents, service.backlog) == ([b"a"], 1)


def test_a_worker_that_has_pulled_its_last_message_finishes_it_when_it_is_cancelled():
    service = WorkService("a")
    handler = Handling()
    working = service.client.work(**GROUP, handler=handler, most=1)
    service.until(lambda: handler.results)
    working.cancel()
    service.run(1)
    handler.results[0].callback(None)
    assert isinstance(service.result_of(working), CancelledError)
    assert service.backlog == 0


def test_a_worker_that_is_cancelled_while_it_waits_is_done_at_once():
    service = WorkService("a")
    service.pull()
    told, outcomes = [], []
    working = service.client.work(**GROUP, handler=Handling(), parallel=3, on_trouble=told.append)
    service.run(1)
    working.addErrback(lambda failure: outcomes.append(failure.type))
    working.cancel()
    assert (outcomes, told) == ([CancelledError], [])


def test_a_worker_that_is_cancelled_twice_releases_what_it_handles():
    service = WorkService("a", "b")
    handler = Handling()
    working = service.client.work(**GROUP, handler=handler, parallel=2)
    service.until(lambda: len(handler.results) == 2)
    working.cancel()
    working.cancel()
    assert isinstance(service.result_of(working), CancelledError)
    assert [message.attempts for message in service.pull(most=5).messages] == [2, 2]


def test_a_worker_that_is_cancelled_a_third_time_does_not_wait():
    async def stubborn(_message):
        while True:
            with suppress(CancelledError):
                await Deferred()

    service = WorkService("a")
    working = service.client.work(**GROUP, handler=stubborn)
    outcomes = []
    working.addErrback(lambda failure: outcomes.append(failure.type))
    service.run(1)
    for expected in ([], [], [CancelledError]):
        working.cancel()
        assert outcomes == expected


def test_a_pull_that_cannot_succeed_later_ends_the_work():
    service = WorkService()
    working = service.client.work(**GROUP, handler=Handling(), parallel=2)
    error = service.result_of(working)
    assert isinstance(error, ProblemError)
    assert error.problem.status == 404


def test_one_pull_at_a_time_waits_for_all_that_may_be_handled_at_one_time():
    service = WorkService("a")
    service.pull()
    pulls = []
    service.client.pull = lambda **arguments: pulls.append(arguments) or Deferred()
    service.client.work(**GROUP, handler=Handling(), parallel=50)
    assert pulls == [{**GROUP, "wait_s": 20}]


def test_a_result_that_the_service_does_not_confirm_is_told_and_not_counted():
    service = WorkService("a")
    results, told = [], []
    service.client.ack = lambda **_: fail(ServiceUnreachable("Nothing answers."))
    working = service.client.work(
        **GROUP, handler=lambda _: None, most=1, on_result=results.append, on_trouble=told.append
    )
    service.result_of(working)
    assert (results, told) == ([], ["A result may not have reached the service: Nothing answers."])


def test_errors_that_follow_one_another_are_told_once():
    service = WorkService("a")
    told = []
    service.client.pull = lambda **_: fail(ServiceUnreachable("Nothing answers."))
    service.client.work(**GROUP, handler=Handling(), on_trouble=told.append)
    service.run(60)
    assert told == ["Cannot pull messages now; trying again: Nothing answers."]
