"""The producer in a world of faults: what holds on the wire, in the buffer, and of every answer."""

from __future__ import annotations

from hashlib import sha256
from itertools import product
from struct import unpack_from

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import record_size
from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.protocol import ProduceRequest
from sampleapp.errors import PublishError
from sampleapp.model import RecordIdentity, RecordMetadata
from tests.support.brokers import record
from tests.support.examples import examples
from tests.support.kafka_simulator import Fate, SimulatedClient, reason
from tests.support.kafka_simulator.publishing import TIMEOUT_S, ProducerSetup, Slow, keys_of

BUFFER_BYTES = 400_000
KEYS = [b"a", b"b", b"c", None]
KINDS = ["plain", "plain", "plain", "identified", "large", "of no topic", "of no partition"]
TAKEN_IN_AT_ONCE = 1000
"""Calls that come after one with more records may overtake it."""
OWN_IDS = 2**62
"""Producer ids from here on are made from the identities of records."""


class Wire:
    """The batches that are sent to each partition, and the rules that they keep to."""

    def __init__(self):
        self.under_way = set()
        self.was_made_again = False
        """Whether a topic may have given its place to another: its last batches may still be under way."""
        self._last = {}
        """Of each partition, without batches of identities: producer id, epoch, number, count, bytes, end."""

    def send(self, topic, partition, data):
        """Check a batch; return a function to be called with its outcome."""
        enqueue = topic, partition
        if not self.was_made_again:
            assert enqueue not in self.under_way, "two batches of a partition are under way"
        self.under_way.add(enqueue)
        producer_id, epoch, first, count = unpack_from(">qhii", data, 43)
        if producer_id >= OWN_IDS:
            assert (epoch, first, count) == (0, 0, 1)
        elif producer_id >= 0:
            self._check(enqueue, (producer_id, epoch, first, count, data))

        def responded(outcome):
            self.under_way.discard(enqueue)
            last = self._last.get(enqueue)
            if last is not None and last[:5] == (producer_id, epoch, first, count, data):
                # A later attempt that was rejected tells nothing of an earlier one.
                was_unknown = last[5] == "unknown" and outcome == "not stored"
                self._last[enqueue] = (*last[:5], "unknown" if was_unknown else outcome)

        return responded

    def _check(self, enqueue, batch):
        producer_id, epoch, first, _, data = batch
        last = self._last.get(enqueue)
        outcome = None
        if last is None or producer_id != last[0]:
            assert first == 0
        elif epoch != last[1]:
            assert (epoch, first) == (last[1] + 1, 0)
        else:
            outcome = last[5]
            if outcome == "unknown":
                assert data == last[4], "another batch has the number of one that may be stored"
            else:
                assert first == last[2] + last[3] * (outcome == "stored")
        self._last[enqueue] = (*batch, outcome if outcome == "unknown" else "under way")


class WatchedClient(SimulatedClient):
    """A client of which each Produce request is checked."""

    wire: Wire

    def request(self, node_id, request, *, timeout_s):
        if not isinstance(request, ProduceRequest):
            return super().request(node_id, request, timeout_s=timeout_s)
        ends = {
            (topic, partition): self.wire.send(topic, partition, data)
            for topic, batches in request.topics
            for partition, data in batches
        }

        def responded(answer):
            if isinstance(answer, Failure):
                is_sent = answer.check(RequestFailed) and answer.value.sent
                outcomes = dict.fromkeys(ends, "unknown" if is_sent else "not stored")
            else:
                outcomes = {(each.topic, each.partition): outcome_of(each) for each in answer.partitions}
            for enqueue, end in ends.items():
                end(outcomes[enqueue])
            return answer

        return super().request(node_id, request, timeout_s=timeout_s).addBoth(responded)


def outcome_of(produced):
    if not produced.error:
        return "stored"
    return "not stored" if produced.offset < 0 else "unknown"


class ProducerMachine(RuleBasedStateMachine):
    """Callers publish and cancel, requests and brokers fail, topics are made again, the producer ends."""

    @initialize(
        idempotence=st.sampled_from([True, True, False]),
        partitions=st.integers(1, 3),
        may_be_made_again=st.sampled_from([True, False, False, False]),
        end=st.sampled_from(["wait", "drain", "give up"]),
    )
    def begin(self, idempotence, partitions, may_be_made_again, end):
        self.idempotence = idempotence
        self.may_be_made_again = may_be_made_again
        self.end = end
        WatchedClient.wire = self.wire = Wire()
        self.world = ProducerSetup(
            partitions=partitions,
            brokers=(1, 2),
            client=WatchedClient,
            idempotence=idempotence,
            buffer_bytes=BUFFER_BYTES,
        )
        self.producer, self.cluster = self.world.producer, self.world.cluster
        # A record of each identity is fetched by itself.
        self.cluster.has_readers = True
        self.fates = []
        self.world.decide(lambda: self.fates.pop(0) if self.fates else Fate.ANSWERED)
        self.records, self.told, self.answers = [], [], []
        self.taken_in_gradually = []
        self.calls = []
        """The records of each call with many."""

    # Callers

    def make(self, kind, key):
        number = len(self.records)
        value = b"%d:" % number + b"x" * (3000 if kind == "large" else 90)
        made = record("absent" if kind == "of no topic" else "t", value, key=key)
        if kind == "identified":
            digest = sha256(value).digest()
            made = replace(made, identity=RecordIdentity(id=digest, fingerprint=digest))
        elif kind == "of no partition":
            made = replace(made, partition=7)
        self.records.append(made)
        self.told.append([])
        return made

    @rule(kind=st.sampled_from(KINDS), key=st.sampled_from(KEYS), count=st.integers(1, 6))
    def publish(self, kind, key, count):
        for _ in range(count):
            made = self.make(kind, key)
            answer = self.producer.publish(made)
            answer.addBoth(self.told[-1].append)
            self.answers.append((answer, kind == "identified"))

    @rule(
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3),
        count=st.sampled_from([1, 3, 5, 40, 40, 1100]),
    )
    def publish_together(self, kinds, keys, count):
        first = len(self.records)
        if count > TAKEN_IN_AT_ONCE:
            self.taken_in_gradually += [range(first, first + count)]
            kinds = [kind for kind in kinds if kind != "large"] or ["plain"]
        self.calls += [range(first, first + count)]
        some = [self.make(kinds[n % len(kinds)], keys[n % len(keys)]) for n in range(count)]

        def tell(result):
            results = [result] * count if isinstance(result, Failure) else result
            for told, one in zip(self.told[first : first + count], results, strict=True):
                told.append(one)

        answer = self.producer.publish_many(Slow(some, self.world.clock))
        answer.addBoth(tell)
        self.answers.append((answer, "identified" in kinds))

    @precondition(lambda self: self.answers)
    @rule(count=st.integers(1, 4))
    def cancel(self, count):
        for answer, _ in self.answers[-count:]:
            answer.cancel()

    # The cluster

    @rule(
        seconds=st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]),
        fates=st.lists(st.tuples(st.sampled_from([*Fate]), st.integers(1, 8)), max_size=3),
    )
    def proceed(self, seconds, fates):
        """Let time pass, with faults of the next requests."""
        self.fates = [fate for fate, length in fates for _ in range(length)] or self.fates
        self.world.advance(seconds)

    @rule(
        what=st.sampled_from(["silent", "down", "throttled", "mended", "elected", "unreachable", "reached"]),
        broker=st.sampled_from([1, 2, None]),
    )
    def change_the_cluster(self, what, broker):
        if what == "elected":
            self.elect(broker)
        elif what == "unreachable":
            self.producer.cluster_unreachable(reason())
        elif what == "reached":
            self.producer.cluster_reached()
        else:
            self.cluster.silent = {broker} if what == "silent" else set()
            self.cluster.throttle_ms = 300 if what == "throttled" else 0
            self.cluster.mend()
            if what == "down":
                self.cluster.cut_off(reason(), brokers=broker and {broker})

    def elect(self, broker):
        self.cluster.elect(broker)
        # As a probe does, or another partition that was asked for.
        self.world.client.load_metadata(["t"]).addErrback(lambda _: None)

    @precondition(lambda self: self.may_be_made_again and self.records)
    @rule(partitions=st.integers(1, 3))
    def make_the_topic_again(self, partitions):
        self.wire.was_made_again = True
        self.cluster.make_again(partitions)
        self.producer.cluster_reached()
        self.world.advance(1.2)
        self.producer.cluster_reached()
        self.world.advance(0.1)

    # The end

    def teardown(self):
        if not hasattr(self, "producer"):
            return
        drained = []
        if self.end == "give up":
            # The end comes while they are taken in, if there is room for them.
            self.publish_together(["plain"], [b"a"], 1100)
            self.world.advance(0.002, step_s=0.001)
        if self.end != "wait":
            self.producer.drain().addBoth(lambda _: drained.append(self.count_untold()))
        if self.end == "give up":
            self.producer.give_up()
            assert all(self.told)
            assert self.producer.buffered_bytes == 0
            assert drained == [0]
        self.fates = []
        self.cluster.silent, self.cluster.throttle_ms = set(), 0
        self.cluster.mend()
        self.elect(1)
        self.producer.cluster_reached()
        # All deadlines, of which those of large batches are a tenth later, and requests that arrive late.
        self.world.advance(6 * TIMEOUT_S, step_s=0.05)
        assert all(len(told) == 1 for told in self.told)
        waiting = self.producer.measures(requests={}).waiting
        assert (waiting.records, waiting.bytes) == (0, 0)
        if self.end == "wait":
            self.has_its_room_again()
        else:
            assert drained == [0]
        assert self.producer.drain().called
        self.producer.stop()
        self.world.advance(3 * TIMEOUT_S, step_s=0.5)
        assert self.world.clock.getDelayedCalls() == []
        assert not self.wire.under_way
        if not self.wire.was_made_again:
            self.answers_are_true()
            self.keys_are_in_order()

    def count_untold(self):
        """The calls without an answer. One with an identity may be answered right after the drain."""
        return sum(not answer.called for answer, has_identities in self.answers if not has_identities)

    def has_its_room_again(self):
        """Each partition takes the half of the buffer: nothing is held or reserved any more."""
        size = record_size(self.make("large", b"a"))
        self.told.pop(), self.records.pop()
        for key in keys_of(len(self.cluster.logs)):
            self.publish_together(["large"], [key], BUFFER_BYTES // 2 // size)
            self.world.advance(1)
            assert all(isinstance(outcome, RecordMetadata) for [outcome] in self.told[-2:])

    # What holds

    @invariant()
    def the_buffer_is_bounded(self):
        if hasattr(self, "producer"):
            waiting = self.producer.measures(requests={}).waiting
            assert 0 <= waiting.bytes <= BUFFER_BYTES
            assert waiting.records >= 0
            assert all(len(told) <= 1 for told in self.told)

    def answers_are_true(self):
        stored = {}
        for partition, log in self.cluster.logs.items():
            for offset, value in log.shown.items():
                assert value not in stored, "a record was published twice"
                stored[value] = partition, offset
        for made, [told] in zip(self.records, self.told, strict=True):
            outcome = told.value if isinstance(told, Failure) else told
            if isinstance(outcome, RecordMetadata):
                assert stored[made.value] == (outcome.partition, outcome.offset)
            else:
                assert isinstance(outcome, PublishError | CancelledError)
                assert getattr(outcome, "possibly_published", True) or made.value not in stored

    def keys_are_in_order(self):
        """Also of records whose callers were told nothing, but for an identity that arrives late."""
        if not self.idempotence:
            return
        for log in self.cluster.logs.values():
            stored = [int(value.partition(b":")[0]) for value in log.values]
            kept = [n for n in stored if self.records[n].identity is None or is_told_of(self.told[n])]
            alone = {*kept}.difference(*self.taken_in_gradually)
            plain = {n for n in kept if self.records[n].identity is None}
            gradually = [{*call} & plain for call in self.taken_in_gradually]
            identified = [{*call} - plain for call in self.calls]
            for key, call in product(KEYS[:3], [alone & plain, *gradually, *identified]):
                numbers = [n for n in kept if n in call and self.records[n].key == key]
                assert numbers == sorted(numbers)


def is_told_of(told):
    return isinstance(told[0], RecordMetadata)


TestProducerMachine = ProducerMachine.TestCase
TestProducerMachine.settings = examples(200, stateful_step_count=40, derandomize=True)
