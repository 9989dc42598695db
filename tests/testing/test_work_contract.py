"""The contract of groups of workers, used for brokers that break a promise."""

from __future__ import annotations

import pytest

from tests.testing.contracts import check_contract

BROKERS = '''
from msgspec.structs import replace
from sampleapp.brokers import memory
from sampleapp.brokers.shared.deliveries import WorkSettings
from sampleapp.errors import LeaseLost, TooManyLeases, UnknownIds
from sampleapp.model import ALL, Acknowledged, Extended, Verdicts
from twisted.internet import reactor
from twisted.internet.defer import succeed


class Ahead:
    ahead_s = 0.0

    def seconds(self):
        return reactor.seconds() + self.ahead_s

    def callLater(self, *arguments):
        return reactor.callLater(*arguments)


_AS_IT_IS = ("given_up", "stop", "stored")


class Work:
    """The groups of workers of a broker here."""

    def __init__(self, broker):
        self._broker = broker

    def __getattr__(self, name):
        return getattr(self._broker._work if name in _AS_IT_IS else self._broker, name)


class MemoryBroker(memory.MemoryBroker):
    """Passes calls on, so that the brokers here can change them."""

    leases = property(lambda self: self._work.leases)

    def __init__(self, **options):
        super().__init__(**options)
        self._work, self.work = self.work, Work(self)

    def pull(self, *arguments, **options):
        return self._work.pull(*arguments, **options)

    def acknowledge(self, *arguments):
        return self._work.acknowledge(*arguments)

    def extend(self, *arguments):
        return self._work.extend(*arguments)

    def backlog(self, *arguments):
        return self._work.backlog(*arguments)


class Right(MemoryBroker):
    """A broker of another project."""


class Changes(MemoryBroker):
    """Changes leases."""

    def pull(self, topic, group, **options):
        return super().pull(topic, group, **options).addCallback(lambda found: found and self.change(found))


class GivesToEverybody(MemoryBroker):
    calls = 0

    def pull(self, topic, group, **options):
        self.calls += 1
        return super().pull(topic, f"{group}{self.calls}", **options)


class TurnsThemRound(Changes):
    def change(self, lease):
        return replace(lease, messages=lease.messages[::-1])


class LosesHeaders(Changes):
    def change(self, lease):
        records = [replace(each.record, headers=()) for each in lease.messages]
        return replace(lease, messages=[replace(m, record=r) for m, r in zip(lease.messages, records)])


class GivesSeconds(Changes):
    def change(self, lease):
        return replace(lease, ends_ms=lease.ends_ms // 1000)


class AcceptsNothing(MemoryBroker):
    def acknowledge(self, topic, group, lease, verdicts):
        def count(found):
            return Acknowledged(accepted=len(verdicts.accept), released=0, rejected=len(verdicts.reject))
        return super().acknowledge(topic, group, lease, Verdicts()).addCallback(count)


class KeepsWhatIsReleased(MemoryBroker):
    def acknowledge(self, topic, group, lease, verdicts):
        def count(found):
            return replace(found, rejected=0, released=found.rejected)
        if verdicts.accept or verdicts.reject:
            return super().acknowledge(topic, group, lease, verdicts)
        return super().acknowledge(topic, group, lease, Verdicts(reject=ALL)).addCallback(count)


class TakesAllForEverything(MemoryBroker):
    def acknowledge(self, topic, group, lease, verdicts):
        for each in ("accept", "release", "reject"):
            if getattr(verdicts, each) == ALL:
                verdicts = Verdicts(**{each: ALL})
        return super().acknowledge(topic, group, lease, verdicts)


class LendsForEver(MemoryBroker):
    def __init__(self, **options):
        super().__init__(**options | {"work": WorkSettings(lease_s=60)})


class TakesLateResults(MemoryBroker):
    def acknowledge(self, *arguments):
        ahead_s, self._clock.ahead_s = self._clock.ahead_s, 0
        try:
            return super().acknowledge(*arguments)
        finally:
            self._clock.ahead_s = ahead_s


class IsNeverLate(MemoryBroker):
    def acknowledge(self, *arguments):
        def done(failure):
            failure.trap(LeaseLost)
            return Acknowledged(accepted=0, released=0, rejected=0)
        return super().acknowledge(*arguments).addErrback(done)


class ExtendsAnything(MemoryBroker):
    def extend(self, topic, group, lease):
        extending = super().extend(topic, group, lease)
        return extending.addErrback(lambda _: Extended(token=lease, ends_ms=0))


class LooksAtNoGroup(MemoryBroker):
    def acknowledge(self, topic, group, lease, verdicts):
        for key, rows in self._groups.items():
            if lease in rows._leases:
                topic, group = key
        return super().acknowledge(topic, group, lease, verdicts)


class EndsAtUnknownIds(MemoryBroker):
    def acknowledge(self, topic, group, lease, verdicts):
        def end(failure):
            failure.trap(UnknownIds)
            super(EndsAtUnknownIds, self).acknowledge(topic, group, lease, Verdicts())
            return failure
        return super().acknowledge(topic, group, lease, verdicts).addErrback(end)


class KeepsTheLease(MemoryBroker):
    def extend(self, topic, group, lease):
        def keep(found):
            (rows,) = [each for each in self._groups.values() if found.token in each._leases]
            rows.replace(found.token, lease, found.ends_ms)
            return replace(found, token=lease)
        return super().extend(topic, group, lease).addCallback(keep)


class NeverGivesUp(MemoryBroker):
    def __init__(self, **options):
        super().__init__(**options | {"work": WorkSettings(attempts=100)})


class GivesUpWhatIsAccepted(MemoryBroker):
    def acknowledge(self, *arguments):
        acknowledging = super().acknowledge(*arguments)
        return acknowledging.addCallback(lambda found: replace(found, given_up=found.accepted))


class CountsWhatIsGivenUp(MemoryBroker):
    def backlog(self, topic, group):
        given_up = self._work.given_up
        counting = super().backlog(topic, group)
        return counting.addCallback(lambda found: None if found is None else found + given_up)


class ForgetsToCount(MemoryBroker):
    def acknowledge(self, *arguments):
        return super().acknowledge(*arguments).addCallback(lambda found: replace(found, given_up=0))


class CountsForAnyGroup(MemoryBroker):
    def backlog(self, topic, group):
        return super().backlog(topic, next((each for _, each in self._groups), group))


class CountsWhatIsNew(MemoryBroker):
    def backlog(self, topic, group):
        rows = self._groups.get((topic, group))
        return super().backlog(topic, group) if rows is None else succeed(
            len(self._topics[topic]) - rows._next_offset
        )


class CreatesTopics(MemoryBroker):
    def pull(self, topic, group, **options):
        self._topics.setdefault(topic, type(self._topics.get("", []))())
        return succeed(None)


class WaitsForNothing(MemoryBroker):
    def pull(self, topic, group, *, most, wait_s):
        return super().pull(topic, group, most=most, wait_s=0)


class WaitsForRecordsOnly(WaitsForNothing):
    """Called for the test of releases."""


class WaitsForNoLeases(WaitsForNothing):
    """Called for the test of leases that end."""


class WorksAfterItsEnd(MemoryBroker):
    def extend(self, topic, group, lease):
        self._work._is_stopped = False
        return super().extend(topic, group, lease)


class GivesMoreThanTheMost(MemoryBroker):
    def __init__(self, **options):
        super().__init__(**options | {"work": WorkSettings(most_leases=3)})


class CountsPulls(MemoryBroker):
    pulls = 0
    leases = property(lambda self: self.pulls)

    def pull(self, *arguments, **options):
        self.pulls += 1
        return super().pull(*arguments, **options)


class KeepsLeasesForEver(MemoryBroker):
    def __init__(self, **options):
        super().__init__(**options)
        self._leases.require_room = self.require_room

    def require_room(self, now_ms, is_given):
        if len(self._leases._ends) >= self._leases.settings.most_leases:
            raise TooManyLeases(1)


class ForgetsItsLimitWhileItWaits(MemoryBroker):
    def pull(self, topic, group, *, most, wait_s):
        if wait_s == 1:
            self._leases.require_room = lambda *_: None
        return super().pull(topic, group, most=most, wait_s=wait_s)


class ForgetsLeases(MemoryBroker):
    """Keeps the records."""
'''

TESTS = """
from contextlib import contextmanager

import theirs
from sampleapp.brokers.shared.deliveries import WorkSettings
from sampleapp_testing import WorkContract
"""

TEST = """

class Test{name}(WorkContract):
    durable = "{name}" == "ForgetsLeases"
    patience_s = 0.5

    @contextmanager
    def new_broker(self):
        self.clock = theirs.Ahead()
        yield theirs.{name}(clock=self.clock, work=WorkSettings(most_leases=self.most_leases))

    def again(self, broker):
        another = theirs.{name}(clock=self.clock)
        another._topics = broker._topics
        return another

    async def end_leases(self):
        self.clock.ahead_s += self.lease_s
"""

BROKEN = {
    "GivesToEverybody": "test_each_message_is_given_to_one_worker_in_about_the_order_of_the_topic",
    "TurnsThemRound": "test_each_message_is_given_to_one_worker_in_about_the_order_of_the_topic",
    "LosesHeaders": "test_the_messages_of_a_lease_are_the_records_of_the_topic",
    "GivesSeconds": "test_a_lease_lasts_from_now_on_for_its_time",
    "AcceptsNothing": "test_what_is_accepted_or_rejected_is_never_given_again",
    "KeepsWhatIsReleased": "test_what_is_released_or_not_named_is_given_at_once_as_another_attempt",
    "TakesAllForEverything": "test_all_means_the_messages_without_another_verdict",
    "LendsForEver": "test_a_message_comes_back_when_its_lease_has_ended",
    "TakesLateResults": "test_a_lease_that_has_ended_is_lost_even_if_nobody_has_its_messages",
    "IsNeverLate": "test_a_lease_that_was_acknowledged_is_lost",
    "ExtendsAnything": "test_an_unknown_lease_is_lost",
    "LooksAtNoGroup": "test_a_lease_is_that_of_its_topic_and_group",
    "EndsAtUnknownIds": "test_an_acknowledgement_of_other_messages_changes_nothing",
    "KeepsTheLease": "test_an_extended_lease_replaces_the_one_before",
    "NeverGivesUp": "test_a_message_is_given_up_after_its_last_attempt",
    "ForgetsToCount": "test_a_message_is_given_up_after_its_last_attempt",
    "CountsWhatIsGivenUp": "test_a_message_whose_last_lease_has_ended_is_given_up",
    "GivesUpWhatIsAccepted": "test_the_last_attempt_may_be_accepted",
    "CountsForAnyGroup": "test_groups_do_not_share_messages",
    "CountsWhatIsNew": "test_the_backlog_is_what_is_not_done",
    "CreatesTopics": "test_a_topic_that_does_not_exist_is_unknown_and_is_not_created",
    "WaitsForNothing": "test_a_pull_waits_for_a_record",
    "WaitsForRecordsOnly": "test_a_pull_waits_for_a_release",
    "WaitsForNoLeases": "test_a_pull_waits_for_the_end_of_a_lease",
    "WorksAfterItsEnd": "test_a_stop_ends_pulls_that_wait_and_rejects_later_calls",
    "GivesMoreThanTheMost": "test_a_lease_more_than_the_most_is_rejected_until_one_is_acknowledged",
    "CountsPulls": "test_a_lease_more_than_the_most_is_rejected_until_one_is_acknowledged",
    "KeepsLeasesForEver": "test_a_lease_whose_time_is_over_makes_room_for_another",
    "ForgetsItsLimitWhileItWaits": "test_pulls_that_wait_get_no_more_leases_than_the_most",
    "ForgetsLeases": "test_leases_and_what_is_done_outlive_the_broker",
}


@pytest.mark.slow
def test_a_right_broker_passes_and_one_that_breaks_a_promise_fails_the_test_of_that_promise(tmp_path):
    check_contract(tmp_path, BROKERS, TESTS, TEST, BROKEN)
