"""When the service counts as ready."""

from __future__ import annotations

from twisted.internet.defer import succeed
from zope.interface import implementer

from sampleapp.interfaces import ISubscription
from sampleapp.model import Health
from sampleapp.readings.follower import ReadingsFollower
from sampleapp.service.application import Readiness
from tests.support.in_memory import InMemoryService, ManualBroker


@implementer(ISubscription)
class Subscription:
    def __init__(self):
        self.held_up_by = None

    def stop(self):
        return succeed(None)

    def unavailable_reason(self):
        return self.held_up_by


class Broker(ManualBroker):
    """A broker whose health, and whose only following, are up to the test."""

    def __init__(self):
        super().__init__()
        self.now = Health(ready=True)
        self.following = Subscription()

    def follow(self, *, topic, observer):
        self.observer = observer
        return self.following

    def health(self):
        return self.now


def setup():
    broker = Broker()
    clock = InMemoryService().clock
    follower = ReadingsFollower(broker=broker, topic="readings", clock=clock)
    follower.start()
    return broker, Readiness(broker=broker, follower=follower)


def test_it_is_ready_once_the_broker_works_and_all_readings_are_read():
    broker, readiness = setup()
    broker.now = Health(ready=False, reasons=("/file is closed",), public_reasons=("The file is closed.",))
    assert readiness.reasons() == [
        "The file is closed.",
        "The stored readings are still being read; ask again.",
    ]
    broker.now = Health(ready=True)
    broker.following.held_up_by = "The disk is slow."
    (reason,) = readiness.reasons()
    assert reason.startswith("The disk is slow. ")
    broker.observer.caught_up()
    assert readiness.reasons() == []


def test_it_stays_ready_while_reading_is_held_up_that_was_complete_before():
    broker, readiness = setup()
    broker.observer.caught_up()
    broker.following.held_up_by = "An open transaction holds up reading."
    broker.now = Health(ready=False, reasons=("An open transaction holds up reading.",))
    assert readiness.reasons() == []


def test_it_is_ready_no_more_when_the_topic_is_made_again_until_that_is_read():
    broker, readiness = setup()
    broker.observer.caught_up()
    broker.observer.reset()
    assert readiness.reasons() != []
    broker.observer.caught_up()
    assert readiness.reasons() == []


def test_it_is_ready_no_more_when_it_stops():
    broker, readiness = setup()
    broker.observer.caught_up()
    readiness.stop()
    assert readiness.reasons() == ["The service is stopping."]
