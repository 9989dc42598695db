"""A model of groups of workers: in memory, and in a file that several stores share, with faults."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from twisted.internet.defer import CancelledError, fail, succeed
from twisted.internet.task import Clock

from sampleapp.brokers import memory
from sampleapp.brokers.memory import MemoryBroker
from sampleapp.brokers.shared.deliveries import WorkSettings
from sampleapp.brokers.shared.work import Work
from sampleapp.brokers.sqlite import store
from sampleapp.brokers.sqlite.faults import StoreError
from sampleapp.brokers.sqlite.store import Store
from sampleapp.errors import BrokerUnavailable, LeaseLost, UnknownIds
from sampleapp.model import ALL, Acknowledged, Verdicts
from sampleapp_testing import failures_collected
from tests.support.brokers import record
from tests.support.examples import examples
from tests.support.sqlite import OwnConnection, other_connection

ATTEMPTS = 3
START_S = 1_700_000_000
TOPIC = "t"

groups = st.sampled_from(["g", "h"])
workers = st.integers(0, 2)
counts = st.integers(1, 5)
picks = st.integers(0, 100)


class Group:
    """The expected state of a group: the messages that were given and are not done, and the leases."""

    def __init__(self):
        self.next_offset = 0
        self.longest_s = 0
        self.attempts = {}
        self.leases = {}
        """By token: when it ends, in ms, and the offsets of its messages."""

    def is_live(self, token, now_ms):
        ends_ms, offsets = self.leases.get(token, (0, ()))
        return ends_ms > now_ms and len(offsets) > 0

    def held(self, now_ms):
        return {each for ends_ms, offsets in self.leases.values() if ends_ms > now_ms for each in offsets}

    def free(self, now_ms):
        """Return the messages that were given, that no lease holds, and that may be given again."""
        given = self.attempts.keys() - self.held(now_ms)
        return {each for each in given if self.attempts[each] < ATTEMPTS}

    def left(self, now_ms):
        return self.held(now_ms) | self.free(now_ms)


class WorkMachine(RuleBasedStateMachine):
    """The rules for every broker; a subclass makes the brokers."""

    def __init__(self):
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._clock = Clock()
        self._clock.advance(START_S)
        self._records = set()
        self._end = 0
        self._groups = {}
        self._tokens = []
        """All tokens that there ever were, with their group."""
        self._events = []
        self._waiting = []
        self._lost = failures_collected()
        self._failures = self._lost.__enter__()
        self.set_up()
        self._publish(0, 1)

    def set_up(self):
        raise NotImplementedError

    def worker(self, at):
        raise NotImplementedError

    def lease_s(self, at):
        raise NotImplementedError

    def now_ms(self):
        return round(1000 * self._clock.seconds())

    def publish(self, at, count):
        raise NotImplementedError

    def teardown(self):
        try:
            self._drain()
        finally:
            self._lost.__exit__(None, None, None)
            self._patch.undo()
        assert self._failures == []

    def _publish(self, at, count):
        self._records |= set(range(self._end, self._end + count))
        self._end += count
        self.publish(at, count)

    def _call(self, check, call, *arguments):
        """Call a broker, which answers at once: pulls that this wakes have their messages after it."""
        event = [check, arguments, self.now_ms()]
        self._events.append(event)
        call().addBoth(lambda result: event.append(self._value(result)))
        self._settle()

    @staticmethod
    def _value(result):
        return getattr(result, "value", result)

    def _settle(self):
        """Compare the calls that have ended with the model, in their order."""
        self._clock.advance(0.25)
        while self._events:
            check, arguments, now_ms, result = self._events.pop(0)
            check(*arguments, result, now_ms=now_ms)
        self._waiting = [each for each in self._waiting if not each[1].called]
        now_ms = self.now_ms()
        for name, _ in self._waiting:
            group = self._groups[name]
            assert not group.free(now_ms) & self._records
            assert group.next_offset >= self._end

    def _pulled(self, name, at, most, lease, *, now_ms):
        if isinstance(lease, (BrokerUnavailable, CancelledError)):
            return
        group = self._groups.setdefault(name, Group())
        group.longest_s = max(group.longest_s, self.lease_s(at))
        group.leases = {
            token: (min(ends_ms, now_ms + 1000 * group.longest_s), offsets)
            for token, (ends_ms, offsets) in group.leases.items()
        }
        again = group.free(now_ms) & self._records
        new = [each for each in sorted(self._records) if each >= group.next_offset]
        offsets = [] if lease is None else [each.record.offset for each in lease.messages]
        assert len(offsets) == len(set(offsets)) == min(most, len(again) + len(new))
        count = min(most, len(again))
        assert set(offsets[:count]) <= again
        assert offsets[count:] == new[: most - count]
        if len(offsets) < most:
            group.next_offset = self._end
            # Those that were free, and were not given, are never given again, also if the clock is set back.
            held = group.held(now_ms) | set(offsets)
            group.attempts = {each: group.attempts[each] for each in held & group.attempts.keys()}
            group.leases = {token: each for token, each in group.leases.items() if each[0] > now_ms}
        if lease is None:
            return
        group.next_offset = max(group.next_offset, max(offsets) + 1)
        assert lease.ends_ms == now_ms + 1000 * self.lease_s(at)
        assert lease.token not in {token for _, token in self._tokens}
        self._tokens.append((name, lease.token))
        for each in lease.messages:
            group.attempts[each.record.offset] = group.attempts.get(each.record.offset, 0) + 1
            assert each.attempts == group.attempts[each.record.offset] <= ATTEMPTS
            assert each.record.value == b"%d" % each.record.offset
        # A lease that has ended would hold its messages again if the clock is set back, but not these.
        for _, others in group.leases.values():
            others.difference_update(offsets)
        group.leases[lease.token] = (lease.ends_ms, set(offsets))

    def _acknowledged(self, name, token, verdicts, result, *, now_ms):
        if isinstance(result, BrokerUnavailable):
            return
        group = self._groups.get(name, Group())
        if not group.is_live(token, now_ms):
            assert isinstance(result, LeaseLost)
            return
        _, offsets = group.leases[token]
        named = {
            each for ids in (verdicts.accept, verdicts.release, verdicts.reject) if ids != ALL for each in ids
        }
        unknown = named - {(0, each) for each in offsets}
        if unknown:
            assert isinstance(result, UnknownIds)
            assert result.ids == unknown
            return
        rest = {(0, each) for each in offsets} - named
        accepted, rejected = (rest if ids == ALL else ids for ids in (verdicts.accept, verdicts.reject))
        released = offsets - {each for _, each in accepted | rejected}
        spent = {each for each in released if group.attempts[each] >= ATTEMPTS}
        assert result == Acknowledged(accepted=len(accepted), released=len(released), rejected=len(rejected))
        del group.leases[token]
        for each in (offsets - released) | spent:
            del group.attempts[each]

    def _extended(self, name, at, token, result, *, now_ms):
        if isinstance(result, BrokerUnavailable):
            return
        group = self._groups.get(name, Group())
        if not group.is_live(token, now_ms):
            assert isinstance(result, LeaseLost)
            return
        assert result.ends_ms == now_ms + 1000 * self.lease_s(at)
        assert result.token not in {each for _, each in self._tokens}
        self._tokens.append((name, result.token))
        _, offsets = group.leases.pop(token)
        group.leases[result.token] = (result.ends_ms, offsets)

    def _counted(self, name, result, *, now_ms):
        if isinstance(result, BrokerUnavailable):
            return
        group = self._groups.get(name)
        if group is None:
            assert result is None
        else:
            new = {each for each in self._records if each >= group.next_offset}
            assert result == len(group.left(now_ms) & self._records) + len(new)

    def _token(self, pick):
        """Return any token, mostly one of the newest, and its group."""
        if pick % 10 and self._tokens:
            return self._tokens[-1 - pick % min(len(self._tokens), 4)]
        return self._tokens[pick % len(self._tokens)] if self._tokens else ("g", b"none")

    def _drain(self):
        """No message is lost: whatever is not done can be accepted, after the leases have ended."""
        self._settle()
        for _, waiting in self._waiting:
            waiting.cancel()
        self._settle()
        for name in self._groups:
            self.let_time_pass(self.lease_s(0) + self.lease_s(1))
            while (left := self._groups[name].left(self.now_ms()) & self._records) or (
                self._groups[name].next_offset < self._end
            ):
                self.pull(0, name, 5, 0)
                group, token = self._tokens[-1]
                if group == name:
                    self._acknowledge(0, name, token, Verdicts(accept=ALL))
                assert (self._groups[name].left(self.now_ms()) & self._records) < left or not left
            self.count(0, name)

    @rule(at=workers, count=counts)
    def publish_some(self, at, count):
        self._publish(at, count)
        self._settle()

    @rule(at=workers, name=groups, most=counts, wait_s=st.sampled_from([0, 0, 10_000]))
    def pull(self, at, name, most, wait_s):
        calling = self.worker(at).pull(TOPIC, name, most=most, wait_s=wait_s)
        if not calling.called:
            self._pulled(name, at, most, None, now_ms=self.now_ms())
            self._waiting.append((name, calling))
        calling.addBoth(
            lambda result: self._events.append(
                (self._pulled, (name, at, most), self.now_ms(), self._value(result))
            )
        )
        self._settle()

    @rule(
        at=workers,
        pick=picks,
        count=counts,
        how=st.sampled_from(["accept", "release", "reject"]),
        rest=st.sampled_from(["accept", "release", "reject", None]),
        wrong=st.integers(0, 9),
    )
    def acknowledge(self, *, at, pick, count, how, rest, wrong):
        name, token = self._token(pick)
        _, offsets = self._groups.get(name, Group()).leases.get(token, (0, set()))
        named = {(0, each) for each in sorted(offsets)[:count]}
        if wrong == 0:
            named |= {(0, self._end - 1), (1, 0)}
        verdicts = {how: frozenset(named)}
        if rest is not None and rest != how:
            verdicts[rest] = ALL
        verdicts = Verdicts(**verdicts)
        self._acknowledge(at, name, token, verdicts)

    def _acknowledge(self, at, name, token, verdicts):
        self._call(
            self._acknowledged,
            lambda: self.worker(at).acknowledge(TOPIC, name, token, verdicts),
            name,
            token,
            verdicts,
        )

    @rule(at=workers, pick=picks)
    def extend(self, at, pick):
        name, token = self._token(pick)
        self._call(self._extended, lambda: self.worker(at).extend(TOPIC, name, token), name, at, token)

    @rule(at=workers, name=groups)
    def count(self, at, name):
        self._call(self._counted, lambda: self.worker(at).backlog(TOPIC, name), name)

    @rule(seconds=st.sampled_from([1, 10, 29, 30, 61]))
    def let_time_pass(self, seconds):
        self._clock.advance(seconds)
        self._settle()

    @precondition(lambda self: self._waiting)
    @rule(pick=picks)
    def cancel(self, pick):
        _, waiting = self._waiting[pick % len(self._waiting)]
        waiting.cancel()
        self._settle()


class MemoryMachine(WorkMachine):
    def set_up(self):
        self._patch.setattr(memory, "time", SimpleNamespace(time=self._clock.seconds))
        self._broker = MemoryBroker(clock=self._clock, work=WorkSettings(attempts=ATTEMPTS))
        self._broker.start()

    def worker(self, at):
        return self._broker.work

    def lease_s(self, at):
        return 30

    def publish(self, at, count):
        first = self._end - count
        self._broker.publish_many([record(TOPIC, b"%d" % (first + n)) for n in range(count)])


class Process:
    """A process with the file: one store, and the calls of its workers."""

    def __init__(self, machine, at):
        self.store = Store(
            path=machine.path,
            patience_s=0,
            work=WorkSettings(lease_s=machine.lease_s(at), attempts=ATTEMPTS),
            now=lambda: machine.now_ms() / 1000,
        )
        self.work = Work(self._run, machine.clock, self.store.leases)

    def _run(self, operations):
        try:
            return succeed(self.store.work(operations))
        except StoreError:
            return fail(BrokerUnavailable("made up"))


class SQLiteMachine(WorkMachine):
    def set_up(self):
        self.clock = self._clock
        self._ahead_s = 0
        self._connections = OwnConnection(self._patch)
        self._open = store.open_file
        self._patch.setattr(store, "open_file", self._open_without_syncs)
        self._directory = tempfile.TemporaryDirectory()
        self.path = Path(self._directory.name, "log")
        self._processes = [Process(self, at) for at in range(3)]

    def teardown(self):
        try:
            super().teardown()
        finally:
            for each in self._processes:
                each.store.close()
            self._directory.cleanup()

    def _open_without_syncs(self, *arguments, **options):
        """No example loses power, and hundreds of syncs take long on a busy disk."""
        connection = self._open(*arguments, **options)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def now_ms(self):
        return round(1000 * (self._clock.seconds() + self._ahead_s))

    def worker(self, at):
        return self._processes[at].work

    def lease_s(self, at):
        return (30, 60, 30)[at]

    def publish(self, at, count):
        process, first = self._processes[at], self._end - count
        sent = [record(TOPIC, b"%d" % (first + n)) for n in range(count)]
        process.store.append(sent)
        process.work.stored(sent)

    @rule(at=workers)
    def kill(self, at):
        """Kill a process, and start it again. What it was asked is not answered."""
        process = self._processes[at]
        for line in process.work._waiting.values():  # noqa: SLF001 -- nobody is answered
            self._waiting = [each for each in self._waiting if each[1] not in [call.result for call in line]]
            line.clear()
        process.store.close()
        self._processes[at] = Process(self, at)

    @rule(
        at=workers,
        name=groups,
        most=counts,
        pick=picks,
        statement=st.sampled_from(
            ["COMMIT", "UPDATE work_group", "INSERT OR REPLACE", "DELETE", "UPDATE work_d"]
        ),
        message=st.sampled_from(["disk I/O error", "database or disk is full", "database is locked"]),
    )
    def fail(self, *, at, name, most, pick, statement, message):
        self._connections.fail_next(statement, message)
        if pick % 2:
            self.pull(at, name, most, 0)
        else:
            self.acknowledge(at=at, pick=pick, count=most, how="accept", rest=None, wrong=1)
        self._connections.fail_no_more()
        self._settle()

    @rule(seconds=st.sampled_from([-1000, -20, -1, 100]))
    def set_clock(self, seconds):
        for name in self._groups:
            # If the clock is set back, leases that have ended would hold messages that no other lease has.
            self.pull(0, name, 1000, 0)
        self._ahead_s += seconds
        for name in self._groups:
            self.pull(0, name, 1, 0)

    @rule(pick=picks)
    def delete_first(self, pick):
        """Delete the first records, as an operator or a retention does."""
        until = pick % (self._end + 1)
        with other_connection(self.path) as connection:
            connection.execute("DELETE FROM record WHERE offset < ?", (until,))
        self._records = {each for each in self._records if each >= until}

    @rule(count=counts)
    def make_again(self, count):
        """Delete the topic by hand, and create it again."""
        with other_connection(self.path) as connection:
            connection.execute("DELETE FROM record")
            connection.execute("DELETE FROM topic")
        for each in self._processes:
            each.store._last = None  # noqa: SLF001 -- it would be a file that has lost records
        self._records, self._end, self._groups = set(), 0, {name: Group() for name, _ in self._waiting}
        self._publish(0, count)
        self._settle()


TestMemory = MemoryMachine.TestCase
TestMemory.settings = examples(30, stateful_step_count=40)
TestSQLite = SQLiteMachine.TestCase
TestSQLite.settings = examples(30, stateful_step_count=30)
