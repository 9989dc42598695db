"""The registry of subscriptions: whatever the order, each begins and stops as the broker does."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from twisted.internet.defer import Deferred, succeed

from sampleapp.brokers.shared.following import Subscriptions
from tests.support.examples import examples


class Subscription:
    """Takes a while to stop once it has begun."""

    def __init__(self, ended):
        self._ended = ended
        self.begun = 0
        self.stops = []

    @property
    def is_stopped(self):
        return bool(self.stops)

    def begin(self):
        self.begun += not self.is_stopped

    def stop(self):
        self.stops.append(Deferred() if self.begun else succeed(None))
        if not self.begun:
            self._ended(self)
        return self.stops[-1]

    def let_end(self):
        self._ended(self)
        for each in self.stops:
            if not each.called:
                each.callback(None)


class FollowingsMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.registry = Subscriptions()
        self.all = []
        self.is_started = False
        self.stopping = None

    @rule()
    def add(self):
        self.all.append(Subscription(self.registry.ended))
        self.registry.add(self.all[-1])

    @rule()
    def start(self):
        self.registry.start()
        self.is_started = True

    @rule()
    def stop(self):
        if self.stopping is None:
            self.stopping = Deferred.fromCoroutine(self.registry.stop())

    @rule(data=st.data())
    def one_ends(self, data):
        running = [each for each in self.all if each.is_stopped and each in self.registry.current()]
        if running:
            data.draw(st.sampled_from(running)).let_end()

    @rule(data=st.data())
    def one_is_stopped(self, data):
        if self.registry:
            data.draw(st.sampled_from(self.registry.current())).stop()

    @invariant()
    def each_has_begun_once_the_broker_has_unless_it_was_stopped(self):
        for each in self.all:
            assert each.is_stopped or bool(each.begun) is self.is_started

    @invariant()
    def none_goes_on_after_the_broker_was_stopped(self):
        if self.stopping is not None:
            assert all(each.is_stopped for each in self.all)
            assert not self.registry.is_running

    @invariant()
    def stopping_ends_with_the_last_of_them(self):
        if self.stopping is not None:
            assert self.stopping.called is all(stop.called for each in self.all for stop in each.stops)


TestFollowingsMachine = FollowingsMachine.TestCase
TestFollowingsMachine.settings = examples(50, stateful_step_count=20)


def test_the_list_of_those_that_run_is_the_callers_own():
    registry = Subscriptions()
    registry.add(Subscription(registry.ended))
    registry.current().clear()
    assert len(registry.current()) == 1
