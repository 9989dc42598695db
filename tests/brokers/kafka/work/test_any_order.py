"""Rules of leases in Kafka that hold for any order of calls of several instances."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sampleapp.brokers.kafka.protocol import ShareAcknowledgeRequest, ShareFetchRequest
from sampleapp.errors import LeaseLost, PublishError
from sampleapp.model import ALL
from tests.brokers.kafka.work.setup import GROUP, Instance, new_cluster
from tests.support.examples import examples
from tests.support.kafka_simulator import Fate, values

KINDS = (ShareAcknowledgeRequest, ShareFetchRequest)
FATES = (Fate.ANSWERED, Fate.LOST_ON_THE_WAY, Fate.ANSWER_LOST, Fate.NOT_SENT)
verdicts = st.sampled_from(("accept", "release", "reject"))
positions = st.integers(0, 20)


class Held:
    """A lease as its worker knows it."""

    def __init__(self, lease, owner):
        self.token, self.ends_ms, self.owner = lease.token, lease.ends_ms, owner
        self.ids = frozenset((each.record.partition, each.record.offset) for each in lease.messages)
        self.has_ended = False
        self.is_unsure = False
        """Whether a request about it has failed: it may have ended, and what it has may be done."""


class Workers(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 3), brokers=st.integers(1, 2))
    def begin(self, partitions, brokers):
        self.cluster = new_cluster(partitions, brokers=tuple(range(1, brokers + 1)))
        self.instances = [Instance(self.cluster), Instance(self.cluster)]
        self.leases = []
        self.done = set()
        self.fates = []

    def now_ms(self):
        return 1000 * (1_700_000_000 + self.cluster.clock.seconds())

    def goes_on(self, held):
        return not held.has_ended and not held.is_unsure and held.ends_ms > self.now_ms()

    def is_lost(self, held, found, *, goes_on):
        """Check an answer, and return whether the lease is lost, or that is unknown."""
        if isinstance(found, LeaseLost):
            assert not goes_on
            return True
        if isinstance(found, PublishError):
            assert self.fates
            held.is_unsure = True
            return True
        assert goes_on or held.is_unsure
        return False

    @rule(fates=st.lists(st.sampled_from(FATES), max_size=6), kind=st.sampled_from(KINDS))
    def fail(self, fates, kind):
        """Let the next requests of a kind have these fates."""
        left = iter(fates)
        self.cluster.fates[kind] = lambda: next(left, Fate.ANSWERED)
        self.fates += fates

    @rule(partition=positions, count=st.integers(1, 6), marker=st.booleans())
    def publish(self, partition, count, marker):
        log = self.cluster.logs[partition % len(self.cluster.logs)]
        log.append(*values(count))
        if marker:
            log.append_marker(commit=True)

    @rule(at=st.booleans(), most=st.integers(1, 8), wait_s=st.sampled_from((0.0, 0.5)))
    def pull(self, at, most, wait_s):
        instance = self.instances[at]
        lease = instance.pull(most, wait_s=wait_s)
        if lease is None or isinstance(lease, PublishError):
            assert lease is None or self.fates
            return
        held = Held(lease, instance)
        assert len(held.ids) == len(lease.messages) <= most
        assert not held.ids & self.done
        for other in self.leases:
            # Kafka's lock outlasts a lease.
            assert not self.goes_on(other) or not other.ids & held.ids
        self.leases.append(held)

    @precondition(lambda self: self.leases)
    @rule(lease=positions, at=st.booleans(), verdict=verdicts)
    def acknowledge(self, lease, at, verdict):
        held = self.leases[lease % len(self.leases)]
        goes_on = self.goes_on(held)
        found = self.instances[at].acknowledge(held.token, **{verdict: ALL})
        if self.is_lost(held, found, goes_on=goes_on):
            return
        counts = {"accept": found.accepted, "release": found.released, "reject": found.rejected}
        assert counts[verdict] == len(held.ids)
        held.has_ended = True
        if verdict != "release":
            self.done |= held.ids

    @precondition(lambda self: self.leases)
    @rule(lease=positions, at=st.booleans(), checks=st.booleans())
    def extend(self, lease, at, checks):
        held = self.leases[lease % len(self.leases)]
        goes_on = self.goes_on(held)
        found = self.instances[at].extend(held.token)
        if self.is_lost(held, found, goes_on=goes_on):
            return
        former = held.token
        held.token, held.ends_ms, held.owner = found.token, found.ends_ms, self.instances[at]
        # An instance learns from it that a lease has another owner.
        for each in self.instances if checks else ():
            found = each.acknowledge(former)
            assert isinstance(found, LeaseLost) or (self.fates and isinstance(found, PublishError))
            held.is_unsure = held.is_unsure or not isinstance(found, LeaseLost)

    @rule(at=st.booleans())
    def cancel(self, at):
        waiting = self.instances[at].begin_pull(2, wait_s=1)
        waiting.addErrback(lambda _: None)
        if not waiting.called:
            waiting.cancel()
        self.cluster.run(2)

    @rule(at=st.booleans(), gently=st.booleans())
    def replace(self, at, gently):
        instance = self.instances[at]
        instance.stop() if gently else instance.die()
        for held in self.leases:
            held.has_ended = held.has_ended or held.owner is instance
        self.instances[at] = Instance(self.cluster)

    @rule(seconds=st.sampled_from((0.1, 3.0, 20.0, 31.0)))
    def wait(self, seconds):
        self.cluster.run(seconds)

    @invariant()
    def no_session_is_lost(self):
        if not hasattr(self, "cluster"):
            return
        owned = sum(
            not connection.closed for client in self.cluster.clients for connection in client.connections
        )
        assert len(self.cluster.share_groups.sessions) <= owned

    def teardown(self):
        if not hasattr(self, "cluster"):
            return
        self.cluster.fates.clear()
        self.cluster.run(100)
        assert self.cluster.share_groups.sessions == {}
        # Nothing is stuck, and nothing comes twice.
        while (lease := self.instances[0].pull(100)) is not None:
            held = Held(lease, self.instances[0])
            assert not held.ids & self.done
            self.done |= held.ids
            self.instances[0].acknowledge(lease.token)
        assert self.instances[0].backlog() in (0, None)
        for each in self.instances:
            each.stop()
        assert self.cluster.clock.getDelayedCalls() == []
        assert self.cluster.share_groups.held(GROUP) == []


Workers.TestCase.settings = examples(150, stateful_step_count=30)
TestAnyOrder = Workers.TestCase
