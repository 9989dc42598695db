"""Records with an identity: once in the log, however often they are sent, and every answer is true."""

from __future__ import annotations

import gc
import sys
import time
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.clock_check import ClockCheck
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.producer import Producer, ProducerSettings, ReplayDetection, replays
from sampleapp.brokers.kafka.producer.partitioner import HASHED_AT_ONCE
from sampleapp.brokers.kafka.producer.pending_batch import PendingBatch
from sampleapp.brokers.kafka.producer.replays import fingerprint_of, with_fingerprint
from sampleapp.brokers.kafka.protocol import Fetched, FetchRequest, ListOffsetsRequest, ProduceRequest
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    IdempotencyKeyReused,
    IdempotencyNotSupported,
    OutcomeUnknown,
    PublishError,
    PublishTimedOut,
    RecordRefused,
    RecordTooLarge,
)
from sampleapp.messages.idempotency_key import IdempotencyScope
from sampleapp.model import FINGERPRINT_HEADER, RecordMetadata, ReplayedRecord
from tests.support.brokers import record
from tests.support.examples import examples
from tests.support.kafka_simulator import Cluster, Fate, SimulatedClient
from tests.support.kafka_simulator.publishing import SETTINGS, TIMEOUT_S, keys_of

KEYS = [b"a", b"b", None]


class Instance:
    """One of several instances of the service, with its own connections to the cluster."""

    def __init__(self, cluster, **options):
        self.replays = ReplayDetection(new_client=lambda: SimulatedClient(cluster), clock=cluster.clock)
        self.clock_check = ClockCheck(
            new_client=lambda: SimulatedClient(cluster), clock=cluster.clock, now=time.time
        )
        self.producer = Producer(
            client=SimulatedClient(cluster),
            replays=self.replays,
            clock_check=self.clock_check,
            settings=ProducerSettings(**{**SETTINGS, **options}),
            clock=cluster.clock,
        )

    def publish(self, each):
        return told(self.producer.publish(each))

    def publish_many(self, records):
        return told(self.producer.publish_many(records))


def told(answer):
    found = []
    answer.addBoth(lambda result: found.append(result.value if isinstance(result, Failure) else result))
    return found


class Instances:
    """Two instances, one cluster, and the time that they live in."""

    def __init__(self, *, partitions=2, **options):
        self.cluster = Cluster(partitions, brokers=(1,), latency_s=0.01)
        # Several fetches are under way at once.
        self.cluster.has_readers = True
        self.clock = self.cluster.clock
        self.one, self.two = self.both = [Instance(self.cluster, **options) for _ in range(2)]

    def advance(self, seconds, step_s=0.01):
        self.clock.pump([step_s] * max(1, round(seconds / step_s)))

    def now(self, instance, each):
        found = instance.publish(each)
        self.advance(1)
        [answer] = found
        return answer

    def decide(self, fates, *kinds):
        """Have these be the fates of the next requests of some kinds."""
        plan = iter(fates)
        for kind in kinds or (ProduceRequest, FetchRequest, ListOffsetsRequest):
            self.cluster.fates[kind] = lambda: next(plan, Fate.ANSWERED)

    def value_at(self, metadata):
        return self.cluster.logs[metadata.partition].shown[metadata.offset]

    def stored(self):
        return sorted(value for values in self.cluster.values() for value in values)


def identified(name, value=b"value", *, key=b"a"):
    identity = IdempotencyScope(caller="", key=name).identity(0, topic="t", key=key, value=value)
    return replace(record("t", value, key=key), identity=identity)


def test_nothing_is_left_of_many_records_for_which_there_is_no_room():
    instances = Instances(buffer_bytes=1000)
    instances.now(instances.one, identified("first"))
    records = [identified(f"{number}", bytes(500)) for number in range(4)]
    [error] = instances.one.publish_many(records)
    assert isinstance(error, RecordTooLarge)
    del records, error
    gc.collect()
    assert not any(type(each) is PendingBatch for each in gc.get_objects())


def test_a_record_is_not_kept_while_the_first_one_with_its_key_is_fetched():
    instances = Instances()
    value = bytes(1000)
    instances.now(instances.one, identified("k", value))
    before = sys.getrefcount(value)
    instances.decide([Fate.LOST_ON_THE_WAY] * 999, FetchRequest)
    found = instances.two.publish(identified("k", value))
    instances.advance(1)
    assert not found
    assert sys.getrefcount(value) == before
    instances.advance(30)
    assert found


@pytest.mark.parametrize("length", [1, HASHED_AT_ONCE + 1])
def test_a_record_with_a_key_and_an_illegal_header_is_refused(length):
    instances = Instances()
    illegal = replace(identified("k", key=b"k" * length), headers=(("\ud800", b""),))
    assert isinstance(instances.now(instances.one, illegal), RecordRefused)
    assert instances.stored() == []


def enqueue(metadata):
    return metadata.partition, metadata.offset


FATES = st.lists(
    st.tuples(st.sampled_from([*Fate, Fate.ANSWERED, Fate.ANSWERED]), st.integers(1, 6)), max_size=12
).map(lambda runs: [fate for fate, length in runs for _ in range(length)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("identified"), st.integers(0, 3), st.integers(0, 1)),
        st.tuples(st.just("identified together"), st.integers(1, 4), st.integers(0, 1)),
        st.tuples(st.just("ordinary"), st.sampled_from(KEYS), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0, 3.0]), st.none()),
    ),
    min_size=6,
    max_size=30,
)


@examples(120)
@given(steps=STEPS, fates=FATES, idempotence=st.booleans())
def test_whatever_happens_a_record_with_an_identity_is_there_once_and_all_answers_name_its_place(
    steps, fates, idempotence
):
    world = Instances(idempotence=idempotence)
    world.decide(fates)
    names = [identified(f"k{number}", b"%d" % number, key=KEYS[number % 3]) for number in range(4)]
    answers, ordinary, together = defaultdict(list), [], []
    for step, what, which in steps:
        instance = world.both[which or 0]
        if step == "wait":
            world.advance(what)
        elif step == "identified":
            answers[what].append(instance.publish(names[what]))
        elif step == "identified together":
            together.append((what, instance.publish_many(names[:what])))
        else:
            value = b"ordinary %d" % len(ordinary)
            ordinary.append((value, what, which, instance.publish(record("t", value, key=what))))
    # All deadlines, and the requests that arrive late.
    world.advance(5 * TIMEOUT_S, step_s=0.05)
    world.decide([])
    for count, found in together:
        for number, outcome in enumerate(found[0][:count]):
            answers[number].append([outcome])
    for number, each in enumerate(names):
        answers[number].append([world.now(world.one, each)])

    stored = world.stored()
    for number, each in enumerate(names):
        assert stored.count(each.value) == 1
        found = [answer for [answer] in answers[number]]
        assert all(isinstance(answer, RecordMetadata | PublishError) for answer in found)
        known = [answer for answer in found if isinstance(answer, RecordMetadata)]
        assert {world.value_at(answer) for answer in known} == {each.value}
        assert len({enqueue(answer) for answer in known}) == 1
        # The last one is repeated if any was stored, whatever was answered.
        assert sum(not isinstance(answer, ReplayedRecord) for answer in known) <= 1
    assert_ordinary_records_are_once_and_in_order(world, ordinary, idempotence=idempotence)
    assert all(instance.producer.buffered_bytes == 0 for instance in world.both)


def assert_ordinary_records_are_once_and_in_order(world, ordinary, *, idempotence):
    stored = world.stored()
    for value, _, _, [answer] in ordinary:
        assert stored.count(value) <= 1
        if isinstance(answer, RecordMetadata):
            assert world.value_at(answer) == value
        elif not answer.possibly_published:
            assert stored.count(value) == 0
    if idempotence:
        by_caller = defaultdict(list)
        keys = {value: (key, which) for value, key, which, _ in ordinary}
        for values in world.cluster.values():
            for value in values:
                if value in keys and keys[value][0] is not None:
                    by_caller[keys[value]].append(int(value.split()[1]))
        assert all(numbers == sorted(numbers) for numbers in by_caller.values())


@pytest.mark.parametrize("key", KEYS)
def test_the_first_is_told_from_the_same_again_and_from_another(key):
    world = Instances(partitions=5)
    first = world.now(world.one, identified("k", b"1", key=key))
    world.now(world.one, record("t", b"between", key=key))
    again = world.now(world.two, identified("k", b"1", key=key))
    other = world.now(world.two, identified("k", b"2", key=key))
    assert type(first) is RecordMetadata
    assert again == ReplayedRecord(topic="t", partition=first.partition, offset=first.offset)
    assert type(other) is IdempotencyKeyReused
    assert world.stored() == [b"1", b"between"]


def test_the_header_has_as_text_a_nonce_of_each_attempt_and_the_beginning_of_the_fingerprint():
    world = Instances(partitions=1)
    each = identified("k")
    world.now(world.one, each)
    world.now(world.two, each)
    sent = [data for request in world.cluster.produces for _, parts in request.topics for _, data in parts]
    found = [data[data.index(FINGERPRINT_HEADER.encode()) :] for data in sent]
    # Its length is a varint of two bytes, and hexadecimal digits follow.
    (first, second) = (bytes.fromhex(data[len(FINGERPRINT_HEADER) + 2 :].decode("ascii")) for data in found)
    assert (len(first), len(second)) == (32, 32)
    assert first[:8] != second[:8]
    assert first[8:] == second[8:] == each.identity.fingerprint[:24]


def test_a_batch_that_was_cut_in_half_is_completed():
    world = Instances(partitions=3)
    names = [identified(f"k{number}", b"%d" % number, key=None) for number in range(300)]
    [[*firsts]] = publish_together(world, world.one, names[:150])
    [[*outcomes]] = publish_together(world, world.two, names)
    assert {type(each) for each in firsts} == {RecordMetadata}
    assert [enqueue(each) for each in outcomes[:150]] == [enqueue(each) for each in firsts]
    assert [type(each) for each in outcomes] == [ReplayedRecord] * 150 + [RecordMetadata] * 150
    assert world.stored() == sorted(each.value for each in names)
    assert all(outcomes[number].partition == world_partition(names[number], 3) for number in range(300))


def world_partition(each, count):
    return int.from_bytes(each.identity.id, "big") % count


def publish_together(world, instance, records):
    found = instance.publish_many(records)
    # Each is alone in its batch, so some take several requests after one another.
    world.advance(TIMEOUT_S, step_s=0.005)
    return found


def test_records_with_and_without_identity_are_published_together_in_order():
    world = Instances(partitions=1)
    records = [
        identified(f"k{number}", b"%d" % number) if number % 3 == 1 else record("t", b"%d" % number, key=b"a")
        for number in range(20)
    ]
    [outcomes] = publish_together(world, world.one, records)
    [stored] = world.cluster.values()
    assert [stored[each.offset] for each in outcomes] == [b"%d" % number for number in range(20)]
    for some in (outcomes[1::3], outcomes[0::3], outcomes[2::3]):
        assert [each.offset for each in some] == sorted(each.offset for each in some)


def begin_many_identified(world, *, requests):
    """Publish more than a queue should have before others, and wait until some of them are stored."""
    for name in range(requests):
        many = [identified(f"{name}-{number}", b"%d-%d" % (name, number)) for number in range(1200)]
        world.one.publish_many(many)
    world.advance(0.5)
    [stored] = world.cluster.values()
    assert 10 < len(stored) < 100
    return len(stored)


@pytest.mark.parametrize("requests", [1, 3])
def test_a_single_record_waits_for_one_record_of_large_requests_with_a_key(requests):
    world = Instances(partitions=1)
    stored = begin_many_identified(world, requests=requests)
    plain = [world.one.publish(record("t", b"plain%d" % number, key=b"a")) for number in range(50)]
    of_a_key = world.one.publish(identified("single"))
    of_another = world.one.publish(identified("another"))
    world.advance(0.2)
    # One is under way, and one may be sent before the records without a key.
    assert [each[0].offset for each in plain] == [*range(plain[0][0].offset, plain[0][0].offset + 50)]
    assert plain[0][0].offset <= stored + 2
    # After that, one record of each request is sent in turn.
    assert of_a_key[0].offset <= stored + 50 + 2 + requests
    assert of_another[0].offset <= stored + 50 + 3 + requests


def test_records_of_a_request_with_a_key_that_takes_too_long_are_answered_at_its_deadline():
    world = Instances(partitions=1)
    found = world.one.publish_many([identified(f"k{n}", b"%d" % n) for n in range(1200)])
    world.advance(TIMEOUT_S - 0.1)
    assert found == []
    assert world.now(world.one, record("t", b"plain")).offset > 100
    [outcomes] = found
    stored = [each.offset for each in outcomes if type(each) is RecordMetadata]
    unsent = [each for each in outcomes if isinstance(each, BrokerUnavailable)]
    assert len(stored) > 100
    unknown = [each for each in outcomes if type(each) is PublishTimedOut]
    # The last ones that were sent are stored, but were not compared in time.
    assert len(stored) + len(unsent) + len(unknown) == 1200
    assert len(unknown) < 10
    assert stored == sorted(stored)
    assert all("not published" in str(each) for each in unsent)
    assert world.one.producer.buffered_bytes == 0
    assert len(world.stored()) <= 1 + len(stored) + len(unknown)


def test_draining_waits_for_all_records_of_a_request_with_a_key():
    world = Instances(partitions=1)
    found = world.one.publish_many([identified(f"k{n}", b"%d" % n) for n in range(100)])
    drained = told(world.one.producer.drain())
    world.advance(0.5)
    assert (found, drained) == ([], [])
    world.advance(TIMEOUT_S - 0.5)
    assert drained == [None]
    assert [type(each) for each in found[0]] == [RecordMetadata] * 100


@pytest.mark.parametrize(
    "fate", [Fate.ANSWER_LOST, Fate.LOST_ON_THE_WAY, Fate.TIMED_OUT, Fate.TOO_FEW_REPLICAS_AFTER_APPEND]
)
def test_also_without_idempotence_an_attempt_whose_outcome_is_unknown_is_repeated(fate):
    world = Instances(idempotence=False)
    world.decide([fate], ProduceRequest)
    answer = world.now(world.one, identified("k"))
    # It is this attempt's own record, although the broker has recognised it.
    assert type(answer) is RecordMetadata
    assert world.stored() == [b"value"]
    first, second = world.cluster.produces
    assert first.topics == second.topics


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    ],
)
def test_a_broker_that_does_not_take_such_producer_ids_is_told_of_and_others_do_not_suffer(code):
    world = Instances(partitions=1)
    world.now(world.one, record("t", b"before", key=b"a"))
    ids_given = world.cluster.ids_given
    world.cluster.logs[0].errors.append(code)
    answer = world.now(world.one, identified("k"))
    assert type(answer) is IdempotencyNotSupported
    assert code.name in str(answer)
    assert type(world.now(world.one, record("t", b"after", key=b"a"))) is RecordMetadata
    assert world.cluster.ids_given == ids_given
    assert world.stored() == [b"after", b"before"]


def test_records_behind_one_whose_identity_is_rejected_are_sent_at_once():
    world = Instances(partitions=1)
    world.now(world.one, record("t", b"before", key=b"a"))
    world.cluster.logs[0].errors.append(ErrorCode.UNKNOWN_PRODUCER_ID)
    some = [identified("k"), record("t", b"behind", key=b"a")]
    [[rejected, behind]] = publish_together(world, world.one, some)
    assert type(rejected) is IdempotencyNotSupported
    assert behind.offset == 1


def test_a_broker_that_knows_the_record_and_not_its_place_leaves_the_outcome_unknown():
    world = Instances(partitions=1)
    world.cluster.logs[0].errors.append(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert type(world.now(world.one, identified("k"))) is OutcomeUnknown


# --- the record is not there any longer --------------------------------------------------------------


def test_a_repeat_whose_first_was_deleted_is_answered_with_its_place():
    world = Instances(partitions=1)
    world.now(world.one, identified("k"))
    world.now(world.one, record("t", b"later"))
    world.cluster.logs[0].delete_before(1)
    answer = world.now(world.two, identified("k"))
    assert answer == ReplayedRecord(topic="t", partition=0, offset=0)


@pytest.mark.parametrize("later", [0, 1])
def test_a_repeat_whose_first_was_compacted_away_is_answered_with_its_place(later):
    world = Instances(partitions=1)
    world.now(world.one, identified("k"))
    for _ in range(later):
        world.now(world.one, record("t", b"later"))
    log = world.cluster.logs[0]
    log.batches = [each for each in log.batches if each[0] > 0]
    assert world.now(world.two, identified("k", b"not compared")) == ReplayedRecord(
        topic="t", partition=0, offset=0
    )


def test_a_leader_that_has_not_got_so_far_says_nothing_of_the_record():
    """As one that was a leader until now, which asks for nothing any longer."""
    world = Instances(partitions=1)
    found = world.one.publish(identified("k"))
    world.decide([Fate.LOST_ON_THE_WAY], FetchRequest)
    world.advance(0.05)
    log = world.cluster.logs[0]
    batches, log.batches, log.end = log.batches, [], 0
    log.errors.append(ErrorCode.OFFSET_OUT_OF_RANGE)
    world.advance(0.5)
    assert found == []
    log.batches, log.end = batches, 1
    world.advance(1)
    assert [type(each) for each in found] == [RecordMetadata]


def test_a_leader_that_does_not_know_yet_that_all_have_the_record_is_asked_again(monkeypatch):
    world = Instances(partitions=1)
    log = world.cluster.logs[0]
    fetched, empty = log.fetched, 5

    def behind(number, offset, *args, **options):
        nonlocal empty
        empty -= 1
        return fetched(number, offset, *args, **options) if empty < 0 else Fetched("t", number, 0, offset)

    monkeypatch.setattr(log, "fetched", behind)
    found = world.one.publish(identified("k"))
    world.advance(1.5)
    assert [type(each) for each in found] == [RecordMetadata]


def test_a_repeat_behind_an_open_transaction_is_answered():
    world = Instances(partitions=1)
    world.cluster.logs[0].stable = 0
    assert type(world.now(world.one, identified("k"))) is RecordMetadata
    assert type(world.now(world.one, identified("k"))) is ReplayedRecord


def test_another_record_at_the_place_of_a_topic_that_was_made_again_tells_nothing():
    world = Instances(partitions=1)
    world.cluster.topic_id = None
    world.cluster.silent.add(1)
    found = world.one.publish(identified("k"))
    world.advance(0.05)
    world.cluster.silent.clear()
    world.decide([Fate.LOST_ON_THE_WAY], FetchRequest)
    world.advance(0.07)
    world.cluster.make_again()
    world.cluster.logs[0].append(b"another")
    world.advance(1)
    assert [type(each) for each in found] == [OutcomeUnknown]


# --- it cannot be read in time -----------------------------------------------------------------------


def test_a_record_that_cannot_be_fetched_in_time_has_an_unknown_outcome_and_may_be_sent_again():
    world = Instances(partitions=1)
    world.decide([Fate.LOST_ON_THE_WAY] * 1000, FetchRequest)
    found = world.one.publish(identified("k"))
    world.advance(TIMEOUT_S - 0.1)
    assert found == []
    world.advance(0.2)
    assert [type(each) for each in found] == [PublishTimedOut]
    world.decide([])
    assert type(world.now(world.one, identified("k"))) is ReplayedRecord


def test_a_fetch_that_fails_for_a_while_is_repeated_at_the_new_leader():
    world = Instances(partitions=1)
    world.decide([Fate.NOT_LEADER, Fate.LOST_ON_THE_WAY, Fate.NOT_SENT], FetchRequest)
    assert type(world.now(world.one, identified("k"))) is RecordMetadata


def test_the_queue_does_not_wait_for_fetches():
    world = Instances(partitions=1)
    world.now(world.one, record("t", b"before"))
    world.decide([Fate.LATE] * 100, FetchRequest)
    found = world.one.publish(identified("k"))
    later = world.one.publish(record("t", b"later", key=b"a"))
    world.advance(0.2)
    assert found == []
    assert [type(each) for each in later] == [RecordMetadata]


def test_fetches_under_way_are_bounded():
    world = Instances(partitions=1)
    clients = []
    under_way = []

    def new_client():
        clients.append(SimulatedClient(world.cluster))
        return clients[-1]

    def fate():
        [client] = clients
        under_way.append(1 + sum(isinstance(request, FetchRequest) for _, request in client.open.values()))
        return Fate.ANSWERED

    replays = ReplayDetection(new_client=new_client, clock=world.clock)
    world.cluster.fates[FetchRequest] = fate
    world.now(world.two, record("t", b"there"))
    there = RecordMetadata(topic="t", partition=0, offset=0)
    fingerprint = fingerprint_of(with_fingerprint(identified("k")).headers)
    found = [
        told(replays.resolve(there, fingerprint=fingerprint, size=100, deadline_s=9.0)) for _ in range(50)
    ]
    world.advance(1)
    assert len(under_way) == 50
    assert max(under_way) == 16
    assert {type(each) for [each] in found} == {OutcomeUnknown}
    assert replays.when_idle().called


def test_records_in_several_partitions_are_fetched_together():
    world = Instances(partitions=4)
    keys = keys_of(4)
    world.now(world.one, identified("first"))
    world.cluster.asked.clear()
    found = world.one.publish_many(
        [identified(f"k{n}", b"%d" % n * (3000 if n == 5 else 1), key=keys[n % 4]) for n in range(80)]
    )
    world.advance(TIMEOUT_S)
    assert [type(each) for each in found[0]] == [RecordMetadata] * 80
    fetches = [request for _, request in world.cluster.asked if isinstance(request, FetchRequest)]
    counts = [sum(len(each) for _, each in request.topics) for request in fetches]
    assert sum(counts) == 80
    assert len(counts) <= 40
    again = world.two.publish_many([identified(f"k{n}", b"other", key=keys[n % 4]) for n in range(80)])
    world.advance(TIMEOUT_S)
    # Also where the first record is larger than the limit that the other one has.
    assert [type(each) for each in again[0]] == [IdempotencyKeyReused] * 80


def test_a_fault_in_a_request_for_several_records_delays_no_later_ones(monkeypatch, no_failure_is_lost):
    world = Instances(partitions=4)
    keys = keys_of(4)
    world.now(world.one, identified("first"))
    with monkeypatch.context() as patched:
        patched.setattr(replays, "_expected", lambda *_: 1 / 0)
        world.one.publish_many([identified(f"f{n}", key=keys[n]) for n in range(4)])
        world.advance(0.1)
    found = world.one.publish_many([identified(f"k{n}", key=keys[n]) for n in range(4)])
    world.advance(1)
    assert [type(each) for each in found[0]] == [RecordMetadata] * 4
    assert {failure.type for failure in no_failure_is_lost} == {ZeroDivisionError}
    no_failure_is_lost.clear()


@pytest.mark.parametrize("gives_up", [False, True])
def test_stopping_waits_for_fetches_until_it_gives_up(gives_up):
    world = Instances(partitions=1)
    world.now(world.one, record("t", b"before"))
    world.decide([Fate.LOST_ON_THE_WAY] * 3, FetchRequest)
    found = world.one.publish(identified("k"))
    world.advance(0.03)
    drained = told(world.one.producer.drain())
    assert (found, drained) == ([], [])
    if gives_up:
        world.one.producer.give_up()
        assert [type(each) for each in found] == [OutcomeUnknown]
    else:
        world.advance(1)
        assert [type(each) for each in found] == [RecordMetadata]
    assert drained == [None]
    stopped = told(world.one.replays.stop())
    world.one.producer.stop()
    world.advance(1)
    assert stopped == [None]
    assert [type(each) for each in world.one.publish(identified("k"))] == [BrokerStopped]


def test_cancelling_stops_the_waiting_only():
    world = Instances(partitions=1)
    answer = world.one.producer.publish(identified("k"))
    found = told(answer)
    world.advance(0.04)
    answer.cancel()
    world.advance(1)
    assert len(found) == 1
    assert world.stored() == [b"value"]
    assert world.one.replays.when_idle().called


def test_a_service_that_may_not_read_the_topic_says_so():
    world = Instances(partitions=1)
    world.now(world.one, record("t", b"before"))
    found = world.one.publish(identified("k"))
    world.advance(0.015)
    world.cluster.logs[0].errors.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    world.advance(1)
    [answer] = found
    assert type(answer) is OutcomeUnknown
    assert "not allowed to read" in str(answer)


def test_a_fault_in_comparing_is_an_unknown_outcome(no_failure_is_lost):
    world = Instances(partitions=1)

    def fail():
        raise ValueError("a bug")

    world.cluster.fates[FetchRequest] = fail
    assert type(world.now(world.one, identified("k"))) is OutcomeUnknown
    assert [each.type for each in no_failure_is_lost] == [ValueError]
    no_failure_is_lost.clear()


def test_without_identities_nothing_is_fetched_and_no_client_is_made():
    world = Instances(partitions=1)
    world.now(world.one, record("t", b"1"))
    publish_together(world, world.one, [record("t", b"2"), record("t", b"3")])
    assert world.cluster.fetches == []
    assert world.one.replays.when_idle().called
    assert told(world.one.replays.stop()) == [None]
