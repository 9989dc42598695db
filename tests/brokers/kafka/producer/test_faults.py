"""An exception anywhere in the producer ends the work for one batch, and nothing else."""

from __future__ import annotations

from collections import Counter
from functools import partial, wraps
from itertools import product

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from twisted.internet.defer import AlreadyCalledError, CancelledError, fail, succeed
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.cluster_client import RequestFailed
from sampleapp.brokers.kafka.connections.diagnostics import ConnectionFailed
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer import (
    accumulator,
    partition_queue,
    pending_batch,
    produce_requests,
    response_handler,
)
from sampleapp.brokers.kafka.producer.accumulator import Accumulator
from sampleapp.brokers.kafka.producer.idempotence import ProducerIds
from sampleapp.brokers.kafka.producer.partition_queue import (
    IllegalTransition,
    PartitionQueue,
    QueueEvent,
    QueueState,
)
from sampleapp.brokers.kafka.producer.response_handler import DeliveryLog
from sampleapp.brokers.kafka.protocol import (
    Produced,
    ProduceRequest,
    ProduceResponse,
    ProducerIdentity,
    ProtocolError,
)
from sampleapp.errors import BrokerUnavailable, IllegalTopic, PublishError, RecordRefused
from sampleapp.model import RecordMetadata
from tests.support.brokers import record
from tests.support.examples import examples
from tests.support.kafka_simulator import Fate, SimulatedClient, reason
from tests.support.kafka_simulator.publishing import TIMEOUT_S, ProducerSetup, keys_of

ENQUEUED_AT_ONCE = 1000
SLACK_S = 1.0
"""How much later than at its deadline a caller may be answered."""
KINDS = {
    "KeyError": lambda: KeyError("k"),
    "TypeError": lambda: TypeError("not that"),
    "ValueError": lambda: ValueError("nor that"),
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "OSError": lambda: OSError(28, "No space left on device"),
    "AssertionError": AssertionError,
    "UnicodeEncodeError": lambda: UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    "CancelledError": CancelledError,
    "AlreadyCalledError": AlreadyCalledError,
    "IllegalTransition": lambda: IllegalTransition(QueueState.IDLE, QueueEvent.LOST),
    "ProtocolError": lambda: ProtocolError("damaged"),
    "ConnectionFailed": lambda: ConnectionFailed(reason()),
    "PublishError": lambda: BrokerUnavailable("An error that is for callers."),
    "RequestFailed, sent": lambda: RequestFailed(reason(), sent=True),
    "RequestFailed, not sent": lambda: RequestFailed(reason(), sent=False),
}
OF_CLIENT = (
    "request raises",
    "request fails",
    "request fails when it was handled",
    "producer id raises",
    "producer id fails",
    "when_connected raises",
    "when_connected fails",
    "load_metadata raises",
    "load_metadata fails",
    "is_connected",
    "leader_of",
    "node_ids",
    "partitions_of",
    "topic_error",
    "forget_topic",
)
PATCHED = {
    # The seam: where the name is looked up.
    "encoding": (partition_queue, "encode_batch"),
    "the meaning of an answer": (response_handler, "decide"),
    "making the request": (produce_requests, "ProduceRequest"),
    "the error for a caller": (response_handler, "rejection"),
    "hashing of keys": (pending_batch, "hash_keys"),
    "sizes of records": (pending_batch, "record_sizes"),
    "reserving room": (Accumulator, "reserve"),
    "numbering": (ProducerIds, "assign_to"),
    "beginning an attempt": (PartitionQueue, "begin_attempt"),
    "noting that a batch is stored": (PartitionQueue, "stored"),
    "noting that a batch is lost": (PartitionQueue, "lost"),
    "splitting a batch": (PartitionQueue, "split"),
    "beginning a retry": (PartitionQueue, "retry"),
    "looking at deadlines": (PartitionQueue, "expire"),
    "making an answer": (accumulator, "RecordMetadata"),
    "logging failures": (DeliveryLog, "failed"),
    "logging successes": (DeliveryLog, "acknowledged"),
    "writing the log": (DeliveryLog, "write"),
}
SEAMS = (*OF_CLIENT, *PATCHED)


def changed(**fields):
    """Change each part of an answer."""
    return lambda answer: ProduceResponse(
        [
            Produced(
                **{
                    **{name: getattr(each, name) for name in each.__struct_fields__},
                    **fields,
                }
            )
            for each in answer.partitions
        ]
    )


NONSENSE = {
    "None": lambda _: None,
    "a number": lambda _: 17,
    "nothing of any partition": lambda _: ProduceResponse([]),
    "no list of partitions": lambda _: ProduceResponse(None),
    "None for a partition": lambda _: ProduceResponse([None]),
    "other partitions": changed(partition=99),
    "another topic": changed(topic="other"),
    "a topic that is no text": changed(topic=["t"]),
    "partitions besides": lambda answer: ProduceResponse([*answer.partitions, Produced("t", 99, 0, 5)]),
    "a partition twice": lambda answer: ProduceResponse([*answer.partitions, *answer.partitions]),
    "an offset before the first": changed(offset=-5),
    "an offset that is no number": changed(offset="x"),
    "no offset": changed(offset=None),
    "no error code": changed(error=None, offset=-1),
    "an unknown error code": changed(error=9999, offset=-1),
    "an error code that is no number": changed(error=["x"], offset=-1),
    "a throttle time that is no number": lambda answer: ProduceResponse(answer.partitions, "x"),
    "wrong numbers of records": changed(
        error=ErrorCode.INVALID_RECORD, offset=-1, record_errors=((99, "no"), (-7, None))
    ),
    "numbers of records that are none": changed(
        error=ErrorCode.INVALID_RECORD, offset=-1, record_errors=(("x", "no"),)
    ),
    "record errors that are none": changed(error=ErrorCode.INVALID_RECORD, offset=-1, record_errors=7),
}
NO_IDENTITIES = {
    "None": None,
    "a number": 17,
    "no error code": ProducerIdentity(error=None, producer_id=1, epoch=0),
    "an unknown error code": ProducerIdentity(error=9999, producer_id=1, epoch=0),
    "an error code that is no number": ProducerIdentity(error=["x"], producer_id=1, epoch=0),
}
NOT_HANDLED = frozenset(name for name in NONSENSE if "record" in name)
"""Those that say that nothing was stored, which then has to be so."""


class Faults:
    """The faults of an example: the seam, the exception, and the call."""

    def __init__(self):
        self.plan = {}
        """For each seam: what is raised at its next calls; ``None`` for nothing."""
        self.raised = []
        """What was, with its seam."""
        self.nonsense = []
        """What the next answers are changed into."""
        self.identities = []
        """The next producer ids."""

    def add(self, seam, kind, *, after=0, times=1):
        self.plan.setdefault(seam, []).extend([None] * after + [kind] * times)

    def next(self, seam):
        kinds = self.plan.get(seam)
        kind = kinds.pop(0) if kinds else None
        if kind is None:
            return None
        error = KINDS[kind]()
        self.raised.append((seam, error))
        return error

    def at(self, seam):
        error = self.next(seam)
        if error is not None:
            raise error

    def end(self):
        self.plan.clear()
        self.nonsense.clear()
        self.identities.clear()


class FaultyClient(SimulatedClient):
    """A client of which every method may fail in any way."""

    faults: Faults

    def request(self, node_id, request, *, timeout_s):
        is_produce = isinstance(request, ProduceRequest)
        name = "request" if is_produce else "producer id"
        self.faults.at(f"{name} raises")
        error = self.faults.next(f"{name} fails")
        if error is not None:
            return fail(error)
        if is_produce and self.faults.nonsense:
            return self._answer_nonsense(self.faults.nonsense.pop(0), node_id, request, timeout_s)
        if not is_produce and self.faults.identities:
            return succeed(NO_IDENTITIES[self.faults.identities.pop(0)])
        answer = super().request(node_id, request, timeout_s=timeout_s)
        error = self.faults.next(f"{name} fails when it was handled")
        if error is not None:
            answer.addBoth(lambda _: Failure(error))
        return answer

    def _answer_nonsense(self, name, node_id, request, timeout_s):
        if name in NOT_HANDLED:
            parts = [
                Produced(topic, number, 0, -1) for topic, batches in request.topics for number, _ in batches
            ]
            return self._ask(node_id, request, lambda: NONSENSE[name](ProduceResponse(parts)), timeout_s)
        return super().request(node_id, request, timeout_s=timeout_s).addCallback(NONSENSE[name])

    def when_connected(self, node_id):
        self.faults.at("when_connected raises")
        error = self.faults.next("when_connected fails")
        return super().when_connected(node_id) if error is None else fail(error)

    def load_metadata(self, topics, *, auto_create=False):
        self.faults.at("load_metadata raises")
        error = self.faults.next("load_metadata fails")
        return super().load_metadata(topics, auto_create=auto_create) if error is None else fail(error)


for each in ("is_connected", "leader_of", "node_ids", "partitions_of", "topic_error", "forget_topic"):

    def failing(self, *args, name=each):
        self.faults.at(name)
        return getattr(super(FaultyClient, self), name)(*args)

    setattr(FaultyClient, each, failing)


@pytest.fixture
def patched(monkeypatch):
    """Make the producer's internal calls fail, too; return a list whose last item has the faults."""
    holder = []

    def patch(seam, owner, name):
        original = getattr(owner, name)

        @wraps(original)
        def failing(*args, **kwargs):
            holder[-1].at(seam)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, failing)

    for seam, (owner, name) in PATCHED.items():
        patch(seam, owner, name)
    return holder


class FaultyProducer(ProducerSetup):
    """A producer whose every call may raise."""

    def __init__(self, faults, **settings):
        FaultyClient.faults = faults
        self.faults = faults
        self.is_idempotent = settings["idempotence"]
        super().__init__(client=FaultyClient, **settings)
        self.told = []
        """For each record: value, key, when it was published, when its caller was told, and what."""
        self.answers = []
        """The Deferreds."""
        self.gradual = []
        """The values of each call that is enqueued gradually: calls that come later may overtake it."""

    def publish_and_note(self, values, key, *, then=None, together=False):
        """Publish some records; what each caller does when it is told is up to the test."""
        began_s = self.clock.seconds()
        records = [record("t", value, key=key) for value in values]
        told = [[value, key, began_s, None, None] for value in values]
        self.told += told

        def note(some, result):
            results = result if isinstance(result, list) else [result] * len(some)
            for each, one in zip(some, results, strict=True):
                assert each[4] is None, "told twice"
                each[3:] = [self.clock.seconds(), one.value if isinstance(one, Failure) else one]
            if isinstance(result, list):
                # It is the caller's own.
                result.clear()
            if then is not None:
                then()

        if together and len(values) > ENQUEUED_AT_ONCE:
            self.gradual.append(set(values))
        if together:
            answers = [(told, self.producer.publish_many(records))]
        else:
            answers = [([each], self.producer.publish(one)) for each, one in zip(told, records, strict=True)]
        for some, answer in answers:
            self.answers.append(answer)
            answer.addBoth(partial(note, some)).addErrback(lambda _: None)

    def assert_all_told_in_time(self):
        for value, _, began_s, told_s, _ in self.told:
            assert told_s is not None, f"the caller of {value} was not answered"
            assert told_s - began_s <= TIMEOUT_S + SLACK_S

    def assert_true(self, *, in_order):
        found = Counter(value for values in self.cluster.values() for value in values)
        for value, _, _, _, outcome in self.told:
            assert found[value] <= 1, f"{value} was published twice"
            if isinstance(outcome, RecordMetadata):
                assert self.cluster.values()[outcome.partition][outcome.offset] == value
            else:
                assert isinstance(outcome, PublishError | CancelledError)
                if isinstance(outcome, PublishError) and not outcome.possibly_published:
                    assert found[value] == 0, f"{value} is there, in spite of {outcome!r}"
        if in_order:
            keys = {value: key for value, key, *_ in self.told}
            direct = keys.keys() - set().union(*self.gradual)
            for values in self.cluster.values():
                for key, call in product(set(keys.values()) - {None}, [direct, *self.gradual]):
                    numbers = [int(value) for value in values if keys[value] == key and value in call]
                    assert numbers == sorted(numbers)

    def assert_goes_on(self):
        """Every partition takes records, nothing counts as in flight, and the end comes."""
        requests = self.producer.requests
        for number, key in enumerate(keys_of(len(self.cluster.logs)) * 12):
            self.publish_and_note([b"%d" % (10**6 + number)], key)
            self.advance(0.5 if number < 12 else 0.02)
            assert isinstance(self.told[-1][4], RecordMetadata), self.told[-1]
            if number > 12:
                # A record goes at once where nothing is in flight.
                assert self.producer.requests == requests + 1
            requests = self.producer.requests
        assert self.producer.buffered_bytes == 0
        waiting = self.producer.measures(requests={}).waiting
        assert (waiting.records, waiting.bytes) == (0, 0)
        drained = self.producer.drain()
        assert drained.called
        self.producer.stop()
        # Requests that are still in flight arrive at the brokers.
        self.advance(3 * TIMEOUT_S, step_s=0.5)
        assert self.clock.getDelayedCalls() == []


def assert_each_was_logged_once(faults, logged):
    """Every exception that was raised, but for those that are none of ours, has its traceback in the log."""
    seen = Counter(id(failure.value) for failure in logged)
    for seam, error in faults.raised:
        times = seen[id(error)]
        may_be_expected = isinstance(error, RequestFailed) or (
            seam == "sizes of records" and isinstance(error, UnicodeEncodeError)
        )
        assert times == 1 or (may_be_expected and not times), f"{error!r} at {seam} was logged {times} times"
    logged.clear()


def run(world, steps, *, fates=()):
    """Run all steps of a scenario."""
    fates = iter(fates)
    world.decide(lambda: next(fates, Fate.ANSWERED))
    number = 0
    for step, what, count in steps:
        if step == "wait":
            world.advance(what)
        elif step in ("freeze", "thaw"):
            world.cluster.silent = {1} if step == "freeze" else set()
        elif step == "cancel":
            for answer in world.answers[-count:]:
                answer.cancel()
        else:
            values = [b"%d" % (number + each) for each in range(count)]
            number += count
            world.publish_and_note(
                values, what, together=step == "many", then=CALLBACKS[(number + count) % 3](world)
            )


def _raise(_):
    def then():
        raise KeyError("a caller's own")

    return then


def _publish(world):
    def then():
        world.producer.publish(record("u", b"from a callback")).addErrback(lambda _: None)

    return then


CALLBACKS = (lambda _: None, _raise, _publish)


IDEMPOTENT = {
    "producer id raises": True,
    "producer id fails": True,
    "node_ids": True,
    "numbering": True,
    "logging failures": True,
    "logging successes": True,
    "when_connected raises": False,
    "when_connected fails": False,
}
"""Where a seam is met only with idempotence, or only without."""
STEPS = [
    ("one", b"a", 3),
    ("many", b"b", 4),
    ("wait", 0.05, 0),
    ("one", b"c", 1),
    ("wait", 0.3, 0),
    ("many", None, 30),
    ("wait", 0.3, 0),
    ("one", b"a", 5),
    ("wait", 1.0, 0),
    ("many", b"a", 3),
    ("wait", 0.5, 0),
    ("freeze", None, 0),
    ("one", b"a", 2),
    ("many", b"b", 3),
    ("wait", TIMEOUT_S + 0.3, 0),
    ("thaw", None, 0),
    ("one", b"a", 1),
    ("many", b"b", 2),
    ("wait", 1.0, 0),
]
"""Enough for every seam."""
FATES = [
    Fate.TOO_LARGE,
    Fate.TOO_LARGE,
    Fate.ANSWERED,
    Fate.NOT_LEADER,
    Fate.TOO_LARGE,
    Fate.ANSWER_LOST,
    Fate.FAULT,
    Fate.NOT_SENT,
]


# Each third has every seam and, at one of them or another, every kind.
@pytest.mark.parametrize("third", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))])
@pytest.mark.parametrize("seam", SEAMS)
def test_an_exception_of_any_kind_at_any_seam_leaves_nothing_behind(seam, third, patched, no_failure_is_lost):
    numbered = list(enumerate(KINDS, SEAMS.index(seam)))
    size = -(-len(KINDS) // 3)
    first = size * ((SEAMS.index(seam) + third) % 3)
    for number, kind in numbered[first : first + size]:
        times = (1, 3, 10_000)[number % 3]
        if is_possible(seam, kind):
            faults = Faults()
            faults.add(seam, kind, times=times)
            world = begin(faults, patched, idempotence=IDEMPOTENT.get(seam, number % 2 == 0))
            run(world, STEPS, fates=FATES)
            end(world, no_failure_is_lost)
            assert faults.raised, "what is tested did not happen"


@pytest.mark.parametrize("nonsense", NONSENSE)
@pytest.mark.parametrize("idempotence", [True, False])
def test_an_answer_that_makes_no_sense_leaves_nothing_behind(
    nonsense, idempotence, patched, no_failure_is_lost
):
    for times in (1, 3, 1000):
        faults = Faults()
        faults.nonsense = [nonsense] * times
        world = begin(faults, patched, idempotence=idempotence)
        run(world, STEPS)
        end(world, no_failure_is_lost)


@pytest.mark.parametrize("nonsense", NO_IDENTITIES)
def test_a_producer_id_that_makes_no_sense_leaves_nothing_behind(nonsense, patched, no_failure_is_lost):
    for times in (1, 3, 1000):
        faults = Faults()
        faults.identities = [nonsense] * times
        world = begin(faults, patched)
        run(world, STEPS)
        end(world, no_failure_is_lost)


RULES = st.tuples(
    st.sampled_from(SEAMS),
    st.sampled_from(list(KINDS)),
    st.integers(0, 6),
    st.sampled_from([1, 1, 2, 5, 1000]),
).filter(lambda rule: is_possible(*rule[:2]))
RANDOM_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("one"), st.sampled_from([b"a", b"b", b"c", None]), st.integers(1, 5)),
        st.tuples(st.just("many"), st.sampled_from([b"a", b"b", None]), st.sampled_from([1, 4, 1200])),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]), st.just(0)),
        st.tuples(st.just("cancel"), st.none(), st.integers(1, 5)),
        st.tuples(st.sampled_from(["freeze", "thaw"]), st.none(), st.just(0)),
    ),
    min_size=4,
    max_size=16,
)


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@examples(75, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rules=st.lists(RULES, min_size=1, max_size=4),
    nonsense=st.lists(st.sampled_from(list(NONSENSE)), max_size=3),
    scenario=st.tuples(
        RANDOM_STEPS, st.lists(st.sampled_from([*Fate, Fate.ANSWERED, Fate.ANSWERED]), max_size=20)
    ),
)
def test_several_faults_together_leave_nothing_behind(rules, nonsense, scenario, patched, no_failure_is_lost):
    steps, fates = scenario
    faults = Faults()
    for seam, kind, after, times in rules:
        faults.add(seam, kind, after=after, times=times)
    faults.nonsense = list(nonsense)
    world = begin(faults, patched, idempotence=len(steps) % 2 == 0)
    run(world, steps, fates=fates)
    end(world, no_failure_is_lost)


def test_callers_are_answered_although_their_topic_cannot_be_forgotten(patched, no_failure_is_lost):
    faults = Faults()
    faults.add("forget_topic", "KeyError", after=1, times=5)
    faults.add("forget_topic", "KeyError", after=1, times=1)
    world = begin(faults, patched)
    run(world, [("one", b"a", 1)] * 4)
    end(world, no_failure_is_lost)


def is_possible(seam, kind):
    return seam != "request fails when it was handled" or kind != "RequestFailed, not sent"


def begin(faults, patched, *, idempotence=True):
    """A world of its own for an example."""
    patched.append(faults)
    return FaultyProducer(faults, idempotence=idempotence)


def end(world, logged):
    """See that all are answered in time, and that everything works when the faults are over."""
    world.advance(TIMEOUT_S + SLACK_S, step_s=0.02)
    world.assert_all_told_in_time()
    world.faults.end()
    world.decide(lambda: Fate.ANSWERED)
    world.cluster.silent = set()
    # Requests that were late when the faults ended.
    world.advance(1)
    world.assert_goes_on()
    world.assert_true(in_order=world.is_idempotent)
    assert_each_was_logged_once(world.faults, logged)


def test_a_header_that_is_no_text_is_rejected_and_leaves_nothing_behind(no_failure_is_lost):
    world = ProducerSetup()
    told = []
    for topic in ("t", "not yet known"):
        rejected = world.producer.publish(record(topic, b"1", headers=(("\ud800", b""),)))
        rejected.addErrback(lambda failure: told.append(failure.type))
    assert told == [RecordRefused, IllegalTopic]
    assert world.producer.drain().called
