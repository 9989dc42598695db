"""Following a log with one partition: nothing is lost or repeated, whenever records and pages arrive."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from sampleapp.brokers.shared import following
from sampleapp.brokers.shared.following import LogSubscriptions, Page, ReadError
from sampleapp.brokers.shared.health import HealthTracker
from sampleapp.model import EARLIEST, ConsumerRecord, FromEnd, FromOffset
from sampleapp_testing import PositionRecorder, Recorder
from tests.support.examples import examples

PAGE, SLICE = 5, 2


@pytest.fixture(autouse=True, scope="module")
def short_slices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_SLICE_RECORDS", SLICE)
        yield


class Log:
    """Pages of a log, which are there at once, or when they are asked to arrive."""

    def __init__(self):
        self.end = 0
        self.records = []
        self.is_at_once = False
        self.arriving = []

    def append(self, count, *, deleted):
        for _ in range(count):
            record = ConsumerRecord(
                topic="t", partition=0, offset=self.end, timestamp_ms=0, key=None, value=b"", headers=()
            )
            self.end += 1
            if not deleted:
                self.records.append(record)

    def read(self, _topic, start):
        if self.is_at_once:
            return self._page(start, SLICE)
        self.arriving.append((Deferred(), self._page(start, PAGE)))
        return self.arriving[-1][0]

    def arrive(self, error=None):
        arriving, page = self.arriving.pop(0)
        arriving.errback(error) if error else arriving.callback(page)

    def _page(self, start, most):
        if isinstance(start, FromEnd):
            start = max(0, self.end - start.count)
        elif isinstance(start, FromOffset):
            start = min(start.offset, self.end)
        rest = [each for each in self.records if each.offset >= start]
        next_offset = rest[most].offset if len(rest) > most else self.end
        return Page(rest[:most], start, next_offset, self.end, exists=self.end > 0)


class FollowingMachine(RuleBasedStateMachine):
    @initialize(
        is_at_once=st.booleans(),
        recorder=st.sampled_from([Recorder, PositionRecorder]),
        before=st.integers(0, 12),
        start=st.sampled_from([EARLIEST, FromEnd(0), FromEnd(3), FromOffset(4)]),
    )
    def follow(self, is_at_once, recorder, before, start):
        self.clock, self.log, self.health = Clock(), Log(), HealthTracker()
        self.log.is_at_once = is_at_once
        self.log.append(before, deleted=False)
        self.subscriptions = LogSubscriptions(
            read=self.log.read, clock=self.clock, health_tracker=self.health
        )
        self.recorder = recorder()
        self.subscription = self.subscriptions.follow(
            topic="t", observer=self.recorder, start=start, partition=None
        )
        self.start, self.first = start, None
        self.stopping = None
        self.subscriptions.start()
        assert not self.recorder.records

    @rule(count=st.integers(1, 12), deleted=st.booleans())
    def append(self, count, deleted):
        self.log.append(count, deleted=deleted)
        self.subscriptions.appended({"t"})

    @rule()
    def another_topic_grows(self):
        self.subscriptions.appended({"u"})

    @precondition(lambda self: self.log.arriving)
    @rule(error=st.sampled_from([None, None, None, ReadError("made up", "public", is_lasting=True)]))
    def a_page_arrives(self, error):
        self.log.arrive(error)

    @rule(seconds=st.sampled_from([0, 0, 10]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    @precondition(lambda self: self.stopping is None)
    @rule()
    def stop(self):
        self.told = list(self.recorder.records)
        self.stopping = self.subscription.stop()

    @invariant()
    def at_most_one_page_is_read_ahead(self):
        assert len(self.log.arriving) <= 1

    @invariant()
    def after_stop_nothing_is_told_and_it_ends_with_the_last_reading(self):
        if self.stopping is not None:
            assert self.recorder.records == self.told
            assert self.stopping.called is not bool(self.log.arriving)
            assert not self.clock.getDelayedCalls()
            assert bool(self.subscriptions) is not self.stopping.called

    def teardown(self):
        if not hasattr(self, "log"):
            return
        for _ in range(200):
            self.clock.advance(10)
            if self.log.arriving:
                self.log.arrive()
        assert self.health.health().ready
        if self.stopping is not None:
            return
        assert self.subscription.unavailable_reason() is None
        assert self.subscription.lag() == 0
        assert self.subscription.exists() is (self.log.end > 0)
        assert self.recorder.caught_up_at
        found = self.recorder.records
        assert found == self.log.records[len(self.log.records) - len(found) :]
        if self.start == EARLIEST:
            assert len(found) == len(self.log.records)
        if isinstance(self.recorder, PositionRecorder) and self.log.end:
            begun = self.recorder.begun[0]
            assert found == [each for each in self.log.records if each.offset >= begun]


TestFollowingMachine = FollowingMachine.TestCase
TestFollowingMachine.settings = examples(150, stateful_step_count=30)


def followed(log, observer, *, partition=None):
    clock = Clock()
    subscriptions = LogSubscriptions(read=log.read, clock=clock, health_tracker=HealthTracker())
    subscriptions.start()
    subscription = subscriptions.follow(topic="t", observer=observer, start=EARLIEST, partition=partition)
    return clock, subscriptions, subscription


def test_records_that_are_appended_after_the_last_page_was_read_ahead_are_delivered():
    log, recorder = Log(), Recorder()
    log.append(PAGE + 1, deleted=False)
    clock, subscriptions, _ = followed(log, recorder)
    clock.advance(0)
    log.arrive()
    log.arrive()
    # The last page is there, and the page before it is still being delivered.
    assert len(recorder.records) == SLICE
    log.append(1, deleted=False)
    subscriptions.appended({"t"})
    for _ in range(9):
        clock.advance(0)
    log.arrive()
    for _ in range(9):
        clock.advance(0)
    assert recorder.records == log.records


def test_a_fault_amid_a_page_delays_the_rest_of_it(no_failure_is_lost):
    class Faulty(list):
        faults = 1

        def __iter__(self):
            for position, each in enumerate(super().__iter__()):
                if position == SLICE and Faulty.faults:
                    Faulty.faults = 0
                    raise MemoryError
                yield each

    log, recorder = Log(), Recorder()
    log.append(PAGE + 1, deleted=False)
    clock, _, subscription = followed(log, recorder)
    clock.advance(0)
    arriving, page = log.arriving.pop()
    arriving.callback(Page(Faulty(page.records), page.offset, page.next_offset, page.end))
    clock.advance(0)
    assert subscription.unavailable_reason() == following.CANNOT_BE_READ
    # A page that arrives during that delivery is delivered after it.
    log.arrive()
    assert len(recorder.records) == SLICE
    for _ in range(9):
        clock.advance(10)
    assert recorder.records == log.records
    assert subscription.unavailable_reason() is None
    assert [failure.type for failure in no_failure_is_lost] == [MemoryError]
    no_failure_is_lost.clear()


@pytest.mark.parametrize("told", ["begun_at", "caught_up"])
def test_an_observer_may_stop_when_it_is_told_of_a_position(told):
    log = Log()
    log.is_at_once = True
    log.append(1, deleted=False)
    recorder = PositionRecorder()
    clock, subscriptions, subscription = followed(log, recorder)
    setattr(recorder, told, lambda *_: subscription.stop())
    clock.advance(0)
    subscriptions.appended({"t"})
    assert len(recorder.records) == (told == "caught_up")
    assert not clock.getDelayedCalls()


def test_another_partition_than_the_first_is_empty_and_not_read():
    recorder = Recorder()
    clock, _, subscription = followed(Log(), recorder, partition=7)
    clock.advance(0)
    assert recorder.caught_up_at == [0]
    assert subscription.exists() is False
