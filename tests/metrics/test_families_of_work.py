"""The numbers of groups of workers."""

from __future__ import annotations

from twisted.internet.defer import succeed

from sampleapp import errors
from sampleapp.model import Acknowledged
from tests.metrics.service import MeasuredService, of
from tests.support.logs import logged_lines
from tests.support.work import WorkerBroker, WorkService, leased

LEASE = "bGVhc2U"


class MeasuredWork(MeasuredService, WorkService):
    """A `MeasuredService` with groups of workers."""


def measured(**limits):
    return MeasuredWork(broker=WorkerBroker(), starts=False, **limits)


def test_messages_are_counted_by_topic_group_and_result():
    service = measured()
    service.pull(leased(0), leased(1, attempts=2))
    service.ask("ack", {"lease": LEASE}, answer=Acknowledged(accepted=1, released=2, rejected=3))
    assert of(service.counted(), "sampleapp_work_messages_total") == {
        ("billing", "accepted", "orders"): 1,
        ("billing", "given", "orders"): 2,
        ("billing", "rejected", "orders"): 3,
        ("billing", "released", "orders"): 2,
    }


def test_groups_after_the_first_hundred_count_as_one():
    service = measured()
    for number in range(103):
        service.pull(group=f"orders/g{number}", token=b"%d" % number)
    counted = of(service.counted(), "sampleapp_work_messages_total")
    assert len(counted) == 101
    assert counted["other", "given", "other"] == 3


def test_leases_and_pulls_that_wait_are_shown_with_their_limit():
    service = measured(max_leases=3)
    service.broker.leases = 1
    service.begin("pull", {"wait": 20})
    service.begin("pull", {"wait": 20})
    assert service.ask("pull", answer=errors.TooManyLeases(3)).status == 503
    found = service.counted()
    assert of(found, "sampleapp_leases") == {(): 1}
    assert of(found, "sampleapp_leases_limit") == {(): 3}
    assert of(found, "sampleapp_waiting_pulls") == {(): 2}
    assert of(found, "sampleapp_waiting_pages") == {(): 0}
    assert of(found, "sampleapp_refusals_total")["max-leases"] == 1


def test_a_scrape_shows_the_backlogs_at_the_scrape_before_it():
    service = measured()
    service.pull()
    service.broker.backlog = lambda topic, group: succeed(17)
    assert of(service.counted(), "sampleapp_work_backlog_messages") == {}
    assert of(service.counted(), "sampleapp_work_backlog_messages") == {("billing", "orders"): 17}


def test_a_backlog_is_asked_for_again_after_the_answer_only():
    service = measured()
    service.pull()
    for _ in range(3):
        service.counted()
    assert [each.method for each in service.broker.asked] == ["pull", "backlog"]
    service.answer(17)
    assert of(service.counted(), "sampleapp_work_backlog_messages") == {("billing", "orders"): 17}
    assert [each.method for each in service.broker.asked] == ["pull", "backlog", "backlog"]


def test_a_backlog_that_is_not_known_any_more_is_not_shown():
    service = measured()
    service.pull()
    service.broker.backlog = lambda topic, group: succeed(17)
    service.counted()
    del service.broker.backlog
    service.counted()
    service.answer(errors.BrokerUnavailable("It cannot be reached."))
    assert of(service.counted(), "sampleapp_work_backlog_messages") == {}


def test_rejected_messages_are_logged_at_most_once_a_minute():
    service = measured()

    def logged(*numbers):
        with logged_lines() as lines:
            for rejected in numbers:
                done = Acknowledged(accepted=1, released=1, rejected=rejected)
                service.ask("ack", {"lease": LEASE}, answer=done)
        return lines

    rest = "messages of topic orders are rejected by a worker of group billing. They stay in the topic. More"
    assert [line.partition(" within")[0] for line in logged(0, 2, 1, 3)] == [f"2 {rest}"]
    service.clock.advance(60)
    assert [line.partition(" within")[0] for line in logged(3, 4)] == [f"3 {rest}"]
    assert of(service.counted(), "sampleapp_work_messages_total")["billing", "rejected", "orders"] == 13
