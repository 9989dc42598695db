"""Work in slices, and rounds through a set that changes while they go on."""

from __future__ import annotations

from weakref import WeakSet

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from twisted.internet.task import Clock

from sampleapp.concurrency.slices import Rounds, SlicedWork
from tests.support.clocks import ClockInTurns
from tests.support.examples import examples


def worker(clock, delays, **rest):
    """Work whose steps return these delays, and the times of its steps."""
    delays, times = list(delays), []

    def step():
        times.append(clock.seconds())
        return delays.pop(0) if delays else None

    return SlicedWork(clock, step, fault="A fault.", **rest), times


def test_steps_follow_at_once_until_there_is_nothing_to_do():
    clock = Clock()
    work, times = worker(clock, [0.0] * 3)
    work.run()
    assert len(times) == 4
    # What comes in this turn waits for the next one.
    work.run()
    assert len(times) == 4
    clock.advance(0)
    assert len(times) == 5
    assert clock.getDelayedCalls() == []


def test_a_slice_has_a_few_steps_and_a_few_milliseconds():
    for slow_s, most in ((0.0, 8), (0.0011, 2), (0.01, 1)):
        clock = ClockInTurns()
        times = []

        def step(clock=clock, times=times, slow_s=slow_s):
            times.append(clock.seconds())
            clock.rightNow += slow_s
            return 0.0

        work = SlicedWork(clock, step, fault="A fault.")
        work.run_later()
        before = 0
        for _ in range(5):
            clock.take()
            assert len(times) - before == most
            before = len(times)
        work.stop()
        assert clock.getDelayedCalls() == []


def test_a_step_may_ask_for_a_pause():
    clock = Clock()
    work, times = worker(clock, [0.5, 0.5])
    work.run_later(1.0)
    clock.pump([0.25] * 20)
    assert times == [1.0, 1.5, 2.0]


def test_a_step_may_stop_the_work_and_start_it_again():
    clock = Clock()
    calls = []

    def step():
        calls.append(clock.seconds())
        work.stop()
        if len(calls) < 3:
            work.run_later(1.0)
        return 0.0

    work = SlicedWork(clock, step, fault="A fault.")
    work.run()
    clock.pump([0.5] * 10)
    assert calls == [0.0, 1.0, 2.0]
    assert clock.getDelayedCalls() == []


def test_after_a_fault_the_work_goes_on_also_if_handling_the_fault_fails(no_failure_is_lost):
    clock = Clock()
    steps = iter([ValueError, 0.0, ValueError, ValueError, ValueError, None, None])
    handled = []

    def step():
        result = next(steps)
        if result is ValueError:
            raise ValueError
        return result

    def on_fault():
        handled.append(clock.seconds())
        raise KeyError

    work = SlicedWork(clock, step, fault="A fault.", on_fault=on_fault)
    work.run()
    clock.pump([0.11] * 5)
    assert [failure.type for failure in no_failure_is_lost] == [ValueError, KeyError] * 4
    no_failure_is_lost.clear()
    # Those that follow one another have pauses in between.
    assert handled == pytest.approx([0.0, 0.0, 0.0, 0.11])
    assert clock.getDelayedCalls() == []


class RoundsMachine(RuleBasedStateMachine):
    """Members come, go, fail, and remove others in their visits: all that stay are visited in every round."""

    every_s = 1.0

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.visits = {}
        self.actions = {}
        self.faults = []
        self.number = 0
        self.rounds = Rounds(
            self.clock,
            self.visit,
            fault="A fault.",
            on_fault=self.faults.append,
            every_s=self.every_s,
        )

    def visit(self, member):
        assert member in self.rounds
        # Each visit takes time, so that a round has several slices.
        self.clock.rightNow += 0.0007
        self.visits[member] = self.clock.seconds()
        action, others = self.actions[member]
        if action == "fail":
            raise ValueError
        if action == "remove":
            for other in list(self.rounds)[:others]:
                self.rounds.discard(other)
        if action == "remove all and add":
            for other in list(self.rounds):
                self.rounds.discard(other)
            self.add("nothing", 0, 1)
        if action == "add" and len(self.rounds) < 30:
            self.add("nothing", 0, others)

    @rule(
        action=st.sampled_from(["nothing", "nothing", "fail", "remove", "add", "remove all and add"]),
        others=st.integers(1, 20),
        count=st.integers(1, 12),
    )
    def add(self, action, others, count):
        for _ in range(count):
            self.number += 1
            self.actions[self.number] = action, others
            self.visits[self.number] = self.clock.seconds()
            self.rounds.add(self.number)

    @rule(place=st.integers(0, 50))
    def discard(self, place):
        members = list(self.rounds)
        if members:
            self.rounds.discard(members[place % len(members)])

    @rule(number=st.integers(0, 50))
    def begin(self, number):
        """Begin a round, and visit a member again, also if there is none."""
        self.rounds.begin()
        self.rounds.visit_again(number)
        self.clock.advance(0)

    @rule(steps=st.lists(st.sampled_from([0.0, 0.001, 0.3, 1.0]), min_size=1, max_size=10))
    def wait(self, steps):
        self.clock.pump(steps)

    @rule()
    def wait_for_some_rounds(self):
        self.clock.pump([0.05] * 60)
        for member in self.rounds:
            assert self.clock.seconds() - self.visits[member] < 2.0

    @invariant()
    def there_is_one_timer_while_there_are_members(self):
        assert len(self.clock.getDelayedCalls()) == (1 if self.rounds else 0)


def test_members_that_stay_are_visited_whatever_happens(no_failure_is_lost):
    run_state_machine_as_test(RoundsMachine, settings=examples(60, stateful_step_count=25))
    assert {failure.type for failure in no_failure_is_lost} <= {ValueError}
    no_failure_is_lost.clear()


@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_a_round_that_is_begun_visits_every_member_once(count):
    clock, visited = Clock(), []
    rounds = Rounds(clock, visited.append, fault="A fault.", on_fault=print)
    for number in range(count):
        rounds.add(number)
    clock.advance(5)
    assert visited == []
    rounds.begin()
    rounds.begin()
    clock.pump([0] * 10)
    assert sorted(visited) == list(range(count))
    assert clock.getDelayedCalls() == []


def test_a_round_that_is_begun_during_another_one_follows_it():
    clock, visited = ClockInTurns(), []
    rounds = Rounds(clock, visited.append, fault="A fault.", on_fault=print)
    for number in range(500):
        rounds.add(number)
    rounds.begin()
    clock.take()
    assert 0 < len(visited) < 500
    rounds.begin()
    for _ in range(10):
        clock.take()
    assert sorted(visited) == sorted([*range(500)] * 2)


def test_one_member_may_be_visited_again():
    clock, visited = Clock(), []
    rounds = Rounds(clock, visited.append, fault="A fault.", on_fault=print)
    rounds.add("a")
    rounds.add("b")
    rounds.visit_again("a")
    clock.pump([0] * 5)
    assert visited == ["a"]


def test_members_that_have_all_gone_during_a_round_are_not_kept():
    class Member:
        """Something that can be referred to weakly."""

    clock = ClockInTurns()
    rounds = Rounds(clock, lambda _: None, fault="A fault.", on_fault=print)
    members = [Member() for _ in range(500)]
    for member in members:
        rounds.add(member)
    rounds.begin()
    clock.take()
    kept = WeakSet(members)
    while members:
        rounds.discard(members.pop())
    del member
    assert not kept
    assert clock.getDelayedCalls() == []
