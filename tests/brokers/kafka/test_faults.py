"""The Kafka broker when the cluster, or the way to it, fails: what callers are told, and what comes of it."""

from __future__ import annotations

import logging
import struct
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import pytest
import pytest_twisted
from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import LogLevel

from sampleapp.brokers import from_url
from sampleapp.errors import (
    BrokerStopped,
    BrokerUnavailable,
    BufferFull,
    IllegalTopic,
    OutcomeUnknown,
    PublishTimedOut,
    RecordRefused,
    RecordTooLarge,
    TopicNotAuthorized,
    UnknownTopic,
)
from sampleapp.model import RecordMetadata
from tests.support.brokers import Recorder, eventually, outcomes, record, settled, turns, within
from tests.support.kafka_log import log_of, topics_of
from tests.support.logs import logged
from tests.support.mock_cluster import (
    DROP_CONNECTION,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    MockCluster,
    Tap,
)

# https://kafka.apache.org/protocol#protocol_error_codes
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
MESSAGE_TOO_LARGE = 10
COORDINATOR_LOAD_IN_PROGRESS = 14
INVALID_TOPIC_EXCEPTION = 17
NOT_ENOUGH_REPLICAS = 19
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
TOPIC_AUTHORIZATION_FAILED = 29
CLUSTER_AUTHORIZATION_FAILED = 31
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
KAFKA_STORAGE_ERROR = 56
UNKNOWN_PRODUCER_ID = 59
INVALID_RECORD = 87

FOR_EVER = 10_000
"""More attempts than there is time for."""


@pytest.fixture
def mock():
    """A cluster with a topic of one partition, ``t``."""
    with MockCluster() as cluster:
        cluster.create_topic("t")
        yield cluster


@asynccontextmanager
async def running(bootstrap, *, stop_within_s=20, **options):
    query = f"?{urlencode(options)}" if options else ""
    broker = from_url(f"kafka://{bootstrap}{query}", reactor=reactor)
    broker.check()
    broker.start()
    try:
        yield broker
    finally:
        await within(broker.stop(deadline_s=stop_within_s))


def soon(deferred):
    """The same Deferred, for what must not wait for anything: half of the default delivery timeout."""
    return deferred.addTimeout(5, reactor)


async def soon_failed(deferred):
    try:
        await soon(deferred)
    except Exception as error:  # noqa: BLE001 -- the test looks at it
        return error
    raise AssertionError("it succeeded")


async def values_in(mock, topic="t"):
    """What the topic holds, by partition and offset."""
    return [each.value for each in await log_of(mock.bootstrap, topic)]


def numbered(count, *, start=0, topic="t", key=b"k"):
    return [record(topic, b"%d" % n, key=key) for n in range(start, start + count)]


def assert_published(answers, log, sent):
    """Each record is in the log exactly once, where its answer says."""
    assert all(isinstance(answer, RecordMetadata) for answer in answers), answers
    places = {(each.partition, each.offset): each.value for each in log}
    assert {(a.partition, a.offset): s.value for a, s in zip(answers, sent, strict=True)} == places
    assert len(log) == len(sent)


class _Counted(Factory):
    """Counts the connections to it."""

    def __init__(self, on_connection=None, answer=None):
        self.connections = 0
        self.open = set()
        self._on_connection = on_connection
        self._answer = answer

    def buildProtocol(self, address):
        self.connections += 1
        return _Peer(self, self._on_connection, self._answer)


class _Peer(Protocol):
    def __init__(self, counted, on_connection, answer):
        self._counted = counted
        self._on_connection = on_connection
        self._answer = answer

    def connectionMade(self):
        self._counted.open.add(self)
        if self._on_connection is not None:
            self._on_connection(self.transport)

    def dataReceived(self, data):
        if self._answer is not None:
            self.transport.write(self._answer)
            self.transport.loseConnection()

    def connectionLost(self, reason=None):
        self._counted.open.discard(self)


@asynccontextmanager
async def listening(**behaviour):
    """Something that is not Kafka, on a port of its own."""
    factory = _Counted(**behaviour)
    port = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(factory)
    factory.address = f"127.0.0.1:{port.getHost().port}"
    try:
        yield factory
    finally:
        await port.stopListening()
        for peer in list(factory.open):
            peer.transport.abortConnection()
        await eventually(lambda: not factory.open)


@asynccontextmanager
async def nothing_listening():
    async with listening() as closed:
        pass
    yield closed.address


# --- topics --------------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_an_unknown_topic_is_refused_within_two_seconds_and_not_made(mock):
    async with running(mock.bootstrap) as broker:
        with pytest.raises(UnknownTopic):
            await broker.publish(record("absent")).addTimeout(2, reactor)
        assert broker.health().ready
    assert set(await topics_of(mock.bootstrap)) == {"t"}


@pytest_twisted.ensureDeferred
async def test_unknown_topics_neither_hold_up_others_nor_make_a_storm_of_questions(mock):
    async with running(mock.bootstrap) as broker:
        mock.track_requests()
        absent = [broker.publish(record(f"absent-{n}")) for n in range(200)]
        await soon(broker.publish(record("t")))
        assert {type(each) for each in await outcomes(absent)} == {UnknownTopic}
        assert len(mock.requests(METADATA)) < 30
    assert set(await topics_of(mock.bootstrap)) == {"t"}


@pytest_twisted.ensureDeferred
async def test_with_auto_create_an_unknown_topic_is_made(mock):
    async with running(mock.bootstrap, auto_create="true") as broker:
        sent = numbered(5, topic="new")
        answers = await settled(broker, sent)
    assert_published(answers, await log_of(mock.bootstrap, "new"), sent)


@pytest_twisted.ensureDeferred
async def test_a_topic_that_was_unknown_can_be_published_to_once_it_exists(mock):
    async with running(mock.bootstrap) as broker:
        [refused] = await settled(broker, [record("later")])
        assert isinstance(refused, UnknownTopic)
        mock.create_topic("later")
        await soon(broker.publish(record("later", b"now")))
    assert await values_in(mock, "later") == [b"now"]


@pytest.mark.parametrize(
    ("code", "error"),
    [(TOPIC_AUTHORIZATION_FAILED, TopicNotAuthorized), (INVALID_TOPIC_EXCEPTION, IllegalTopic)],
)
@pytest_twisted.ensureDeferred
async def test_a_topic_that_metadata_refuses_is_refused_at_once(mock, code, error):
    unknown, refused = (struct.pack(">hB3s", each, 4, b"new") for each in (UNKNOWN_TOPIC_OR_PARTITION, code))
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        # The mock itself names the partitions of a topic that it refuses.
        tap.alter = lambda _, answer: answer.replace(unknown, refused)
        assert type(await soon_failed(broker.publish(record("new")))) is error
        mock.create_topic("new")
        await soon(broker.publish(record("new", b"now")))
    assert await values_in(mock, "new") == [b"now"]


@pytest_twisted.ensureDeferred
async def test_the_order_holds_while_leaders_move(mock):
    mock.create_topic("moving", partitions=3)
    keys = [b"a", b"b", b"c", b"d", b"e"]
    sent = [record("moving", b"%d" % n, key=keys[n % 5]) for n in range(1000)]
    answers = []
    async with running(mock.bootstrap) as broker:
        waiting = []
        for turn in range(20):
            waiting += [broker.publish(each) for each in sent[turn * 50 : turn * 50 + 50]]
            mock.set_leader("moving", turn % 3, 1 + (turn // 3 + turn) % 3)
            await turns(5)
        answers = await outcomes(waiting)
    log = await log_of(mock.bootstrap, "moving")
    assert_published(answers, log, sent)
    for key in keys:
        numbers = [int(each.value) for each in log if each.key == key]
        assert numbers == sorted(numbers)


@pytest_twisted.ensureDeferred
async def test_a_partition_without_a_leader_waits_for_one_until_the_deadline(mock):
    mock.set_leader("t", 0, -1)
    async with running(mock.bootstrap, delivery_timeout="0.5") as broker:
        assert type(await soon_failed(broker.publish(record("t", b"too early")))) is BrokerUnavailable
    async with running(mock.bootstrap) as broker:
        waiting = broker.publish(record("t", b"in time"))
        mock.track_requests()
        await eventually(lambda: len(mock.requests(METADATA)) >= 2)
        mock.set_leader("t", 0, 2)
        await soon(waiting)
    assert await values_in(mock) == [b"in time"]


# --- connections ---------------------------------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_new_records_are_refused_soon_while_no_broker_can_be_reached_and_older_ones_wait_on(mock):
    async with running(mock.bootstrap, stop_within_s=0.1) as broker:
        await within(broker.publish(record("t", b"stored")))
        mock.broker_down()
        older, newer = broker.publish(record("t", b"older")), []
        older.addErrback(lambda failure: failure.value)

        def one_is_refused():
            answer = broker.publish(record("t", b"newer"))
            answer.addErrback(lambda failure: failure.value).addCallback(newer.append)
            return bool(newer)

        await eventually(one_is_refused)
        assert type(newer[0]) is BrokerUnavailable
        assert not older.called


@pytest_twisted.ensureDeferred
async def test_records_wait_while_the_brokers_are_down_and_are_published_once_when_they_are_up(mock):
    async with running(mock.bootstrap) as broker:
        first = await settled(broker, numbered(20))
        mock.broker_down()
        await eventually(lambda: not broker.health().ready)
        waiting = [broker.publish(each) for each in numbered(20, start=20)]
        mock.broker_up()
        answers = first + await outcomes(waiting)
        await eventually(lambda: broker.health().ready)
        assert broker.health().reasons == ()
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log, numbered(40))
    assert [int(each.value) for each in log] == list(range(40))


@pytest_twisted.ensureDeferred
async def test_while_one_broker_is_down_its_partitions_wait_and_the_others_do_not(mock):
    mock.create_topic("three", partitions=3)
    for partition in range(3):
        mock.set_leader("three", partition, partition + 1)
    async with running(mock.bootstrap) as broker:
        keys = await keys_by_partition(broker, "three")
        mock.broker_down(3)
        waiting = broker.publish(record("three", b"waited", key=keys[2]))
        for key in (keys[0], keys[1]):
            await soon(broker.publish(record("three", b"went on", key=key)))
        assert not waiting.called
        assert broker.health().ready
        # Without the broker, it stays the leader: another one is elected by a test only.
        mock.set_leader("three", 2, 1)
        await soon(waiting)
    assert (await values_in(mock, "three")).count(b"waited") == 1


async def keys_by_partition(broker, topic, partitions=3):
    """A key for each partition."""
    keys = {}
    for n in range(100):
        key = b"%d" % n
        keys.setdefault((await within(broker.publish(record(topic, b"", key=key)))).partition, key)
        if len(keys) == partitions:
            break
    return keys


@pytest_twisted.ensureDeferred
async def test_a_request_that_the_broker_never_read_is_sent_again(mock):
    async with running(mock.bootstrap) as broker:
        await within(broker.publish(record("t", b"0", key=b"k")))
        mock.push_errors(PRODUCE, DROP_CONNECTION, DROP_CONNECTION)
        answers = await settled(broker, numbered(10, start=1))
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log[1:], numbered(10, start=1))
    assert [int(each.value) for each in log] == list(range(11))


@pytest_twisted.ensureDeferred
async def test_when_an_answer_is_lost_exactly_the_same_batch_is_sent_again(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        await within(broker.publish(record("t")))
        tap.lose_answers(PRODUCE, 2)
        waiting = [broker.publish(each) for each in numbered(7)]
        # What comes later must not get into the batch, nor before it.
        await eventually(lambda: len(tap.of(PRODUCE)) == 2)
        waiting += [broker.publish(each) for each in numbered(3, start=7)]
        answers = await outcomes(waiting)
        assert all(isinstance(each, RecordMetadata) for each in answers)
        first, *same, last = tap.batches()
        assert (first.base_sequence, first.count) == (0, 1)
        assert len(same) == 3
        assert len(set(same)) == 1
        assert len({request.body for request in tap.of(PRODUCE)[1:4]}) == 1
        assert (same[0].base_sequence, same[0].count) == (1, 7)
        # A broker would have known it again by this.
        assert same[0].producer_id == last.producer_id >= 0
        assert (last.base_sequence, last.count) == (8, 3)


@pytest_twisted.ensureDeferred
async def test_a_request_that_is_not_answered_in_half_of_the_time_is_sent_again_as_it_was(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap, delivery_timeout="2") as broker:
        await within(broker.publish(record("t")))
        mock.set_round_trip(60_000)
        waiting = [broker.publish(each) for each in numbered(3)]
        await eventually(lambda: len(tap.of(PRODUCE)) == 2)
        connections = tap.connections
        await eventually(lambda: tap.connections > connections)
        mock.set_round_trip(0)
        assert all(isinstance(each, RecordMetadata) for each in await outcomes(waiting))
        _, first, again = tap.of(PRODUCE)
        assert first.body == again.body


@pytest_twisted.ensureDeferred
async def test_an_answer_that_is_cut_short_is_no_answer(mock):
    def cut_short(api_key, answer):
        return answer[:20] if api_key == PRODUCE and len(tap.of(PRODUCE)) == 2 else answer

    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        await within(broker.publish(record("t")))
        tap.alter = cut_short
        assert all(isinstance(each, RecordMetadata) for each in await settled(broker, numbered(3)))
        _, first, again = tap.batches()
        assert first == again


@pytest_twisted.ensureDeferred
async def test_without_idempotence_a_lost_answer_is_an_unknown_outcome_and_nothing_is_sent_twice(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap, idempotence="false") as broker:
        await within(broker.publish(record("t")))
        tap.lose_answers(PRODUCE)
        ends = await settled(broker, numbered(3))
        assert [isinstance(each, OutcomeUnknown) for each in ends] == [True] * 3
        await soon(broker.publish(record("t", b"next")))
        assert [each.count for each in tap.batches()] == [1, 3, 1]
    assert await values_in(mock) == [b"v", b"0", b"1", b"2", b"next"]


@pytest_twisted.ensureDeferred
async def test_without_any_broker_it_starts_and_says_so_and_works_once_there_is_one(mock):
    mock.broker_down()
    async with running(mock.bootstrap) as broker:
        waiting = broker.publish(record("t", b"early"))
        host, port = mock.addresses[1]
        await eventually(lambda: f"{host}:{port}" in " ".join(broker.health().reasons))
        assert not broker.health().ready
        mock.broker_up()
        await within(waiting)
        await eventually(lambda: broker.health().ready)
    assert await values_in(mock) == [b"early"]


@pytest_twisted.ensureDeferred
async def test_one_broker_out_of_those_in_the_url_is_enough(mock):
    async with nothing_listening() as dead:
        host, port = mock.addresses[3]
        async with running(f"{dead},{host}:{port}") as broker:
            await soon(broker.publish(record("t")))
            await eventually(lambda: broker.health().ready)


@pytest_twisted.ensureDeferred
async def test_an_address_that_refuses_connections_is_named_with_what_to_check():
    async with nothing_listening() as address, running(address, delivery_timeout="0.5") as broker:
        error = await soon_failed(broker.publish(record("t")))
        assert type(error) is BrokerUnavailable
        assert address not in str(error)
        [reason] = broker.health().reasons
        assert address in reason
        assert "refused" in reason


@pytest_twisted.ensureDeferred
async def test_an_http_server_is_told_from_kafka():
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with listening(answer=answer) as server, running(server.address, delivery_timeout="1.5") as broker:
        error = await soon_failed(broker.publish(record("t")))
        assert isinstance(error, BrokerUnavailable)
        assert not error.possibly_published
        [reason] = broker.health().reasons
        assert server.address in reason
        assert "HTTP" in reason


@pytest_twisted.ensureDeferred
async def test_a_peer_that_says_nothing_is_given_up():
    async with listening() as server, running(server.address, delivery_timeout="0.5") as broker:
        assert type(await soon_failed(broker.publish(record("t")))) is BrokerUnavailable
        await eventually(lambda: "did not answer" in " ".join(broker.health().reasons))


@pytest_twisted.ensureDeferred
async def test_an_advertised_address_that_cannot_be_reached_is_named(mock):
    async with nothing_listening() as dead, Tap(mock, reactor) as tap:
        host, _, port = dead.rpartition(":")
        for broker_id in tap.addresses:
            tap.addresses[broker_id] = (host, int(port))
        async with running(tap.bootstrap, delivery_timeout="0.5") as broker:
            assert type(await soon_failed(broker.publish(record("t")))) is BrokerUnavailable
            await eventually(lambda: "advertise" in " ".join(broker.health().reasons))
            [reason] = broker.health().reasons
            assert dead in reason


@pytest.mark.parametrize("behaviour", ["closes", "garbage", "silent"])
@pytest_twisted.ensureDeferred
async def test_there_is_no_storm_of_connections_to_what_does_not_work(behaviour):
    behaviours = {
        "closes": {"on_connection": lambda transport: transport.abortConnection()},
        "garbage": {"on_connection": lambda transport: transport.write(b"\xff" * 100)},
        "silent": {},
    }
    async with (
        listening(**behaviours[behaviour]) as server,
        running(server.address, delivery_timeout="1") as broker,
    ):
        broker.follow(topic="t", observer=Recorder())
        ends = await settled(broker, [record("t", key=b"%d" % n) for n in range(100)])
        assert {type(each) for each in ends} == {BrokerUnavailable}
        # Publishing and following have connections of their own, and try again after ever longer pauses.
        assert 1 <= server.connections <= 30


@pytest_twisted.ensureDeferred
async def test_there_is_no_storm_of_connections_to_a_cluster_that_drops_them(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap, delivery_timeout="1") as broker:
        tap.lose_answers(METADATA, FOR_EVER)
        assert type(await soon_failed(broker.publish(record("t")))) is BrokerUnavailable
        assert 3 <= tap.connections <= 60


@pytest_twisted.ensureDeferred
async def test_nothing_stays_connected_after_stop(mock):
    async with listening() as silent, Tap(mock, reactor) as tap:
        async with running(f"{silent.address},{tap.bootstrap}") as broker:
            broker.follow(topic="t", observer=Recorder())
            await within(broker.publish(record("t")))
        await eventually(lambda: not tap.open_connections and not silent.open)


@pytest_twisted.ensureDeferred
async def test_what_goes_wrong_is_said_by_the_broker_and_not_by_the_library_below_it(mock, caplog):
    mock.set_leader("t", 0, -1)
    async with running(mock.bootstrap, delivery_timeout="0.3") as broker:
        broker.follow(topic="absent", observer=Recorder())
        following = broker.follow(topic="t", observer=Recorder())
        await settled(broker, [record("t"), record("absent")])
        await within(following.stop())
        mock.broker_down()
        await eventually(lambda: not broker.health().ready)
    # A handler of last resort would print them.
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == []


# --- errors of Produce ---------------------------------------------------------------------------------

PASSING = [
    UNKNOWN_TOPIC_OR_PARTITION,
    LEADER_NOT_AVAILABLE,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KAFKA_STORAGE_ERROR,
]


@pytest.mark.parametrize("code", PASSING)
@pytest_twisted.ensureDeferred
async def test_an_error_that_passes_is_waited_for_in_order(mock, code):
    mock.push_errors(PRODUCE, code, code)
    async with running(mock.bootstrap) as broker:
        mock.track_requests()
        waiting = [broker.publish(each) for each in numbered(10)]
        await eventually(lambda: mock.requests(PRODUCE))
        waiting += [broker.publish(each) for each in numbered(10, start=10)]
        answers = await outcomes(waiting)
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log, numbered(20))
    assert [int(each.value) for each in log] == list(range(20))


@pytest.mark.parametrize("code", [NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS])
@pytest_twisted.ensureDeferred
async def test_what_was_never_stored_is_unavailable_at_the_deadline_and_not_published_later(mock, code):
    mock.push_errors(PRODUCE, *[code] * FOR_EVER)
    async with running(mock.bootstrap, delivery_timeout="0.5") as broker:
        ends = await settled(broker, numbered(3))
        assert {type(each) for each in ends} == {BrokerUnavailable}
        mock.clear_errors(PRODUCE)
        await soon(broker.publish(record("t", b"next", key=b"k")))
    assert await values_in(mock) == [b"next"]


@pytest.mark.parametrize("code", [REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND])
@pytest_twisted.ensureDeferred
async def test_what_may_have_been_stored_is_unknown_at_the_deadline_and_cannot_come_later(mock, code):
    mock.push_errors(PRODUCE, *[code] * FOR_EVER)
    async with Tap(mock, reactor) as tap, running(tap.bootstrap, delivery_timeout="0.5") as broker:
        ends = await settled(broker, numbered(3))
        assert all(isinstance(each, OutcomeUnknown) for each in ends)
        given_up = tap.batches()
        assert len(set(given_up)) == 1
        mock.clear_errors(PRODUCE)
        await soon(broker.publish(record("t", b"next", key=b"k")))
        *_, last = tap.batches()
        # What is of an earlier epoch, and still on its way somewhere, is refused (KIP-360).
        assert (last.producer_id, last.epoch) > (given_up[0].producer_id, given_up[0].epoch)
        assert last.base_sequence == 0
    assert await values_in(mock) == [b"next"]


@pytest_twisted.ensureDeferred
async def test_what_is_not_authorized_is_refused_at_once(mock):
    mock.push_errors(PRODUCE, TOPIC_AUTHORIZATION_FAILED)
    async with running(mock.bootstrap) as broker:
        mock.track_requests()
        assert type(await soon_failed(broker.publish(record("t")))) is TopicNotAuthorized
        assert len(mock.requests(PRODUCE)) == 1
        await soon(broker.publish(record("t", b"next")))
    assert await values_in(mock) == [b"next"]


@pytest.mark.parametrize("code", [MESSAGE_TOO_LARGE, INVALID_RECORD])
@pytest.mark.parametrize("refusals", [1, 3])
@pytest_twisted.ensureDeferred
async def test_a_batch_that_is_refused_for_a_record_is_split_and_the_order_holds(mock, code, refusals):
    mock.push_errors(PRODUCE, *[code] * refusals)
    sent = numbered(64)
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        answers = await settled(broker, sent)
        counts = [each.count for each in tap.batches()]
    assert counts[0] == 64
    assert sorted(counts[: refusals + 1], reverse=True) == counts[: refusals + 1]
    assert len(set(counts[: refusals + 1])) == refusals + 1
    assert sum(counts[refusals:]) == 64
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log, sent)
    assert [int(each.value) for each in log] == list(range(64))


@pytest_twisted.ensureDeferred
async def test_records_that_the_broker_names_are_refused_and_the_others_published_in_order(mock):
    def name_two(api_key, answer):
        if api_key != PRODUCE or len(tap.of(PRODUCE)) > 1:
            return answer
        # ProduceResponse of version 8, which names records (KIP-467).
        return b"".join(
            [
                answer[:4],
                struct.pack(">ih1siihqqq", 1, 1, b"t", 1, 0, INVALID_RECORD, -1, -1, -1),
                struct.pack(">iih5sih", 2, 1, 5, b"It is", 4, -1),
                struct.pack(">h6si", 6, b"Of all", 0),
            ]
        )

    mock.push_errors(PRODUCE, INVALID_RECORD)
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        tap.alter = name_two
        ends = await settled(broker, numbered(6))
        assert [each.count for each in tap.batches()] == [6, 4]
    assert [type(ends[index]) for index in (1, 4)] == [RecordRefused, RecordRefused]
    assert "It is" in str(ends[1])
    sent = [each for index, each in enumerate(numbered(6)) if index not in {1, 4}]
    log = await log_of(mock.bootstrap, "t")
    assert_published([each for index, each in enumerate(ends) if index not in {1, 4}], log, sent)
    assert [each.value for each in log] == [b"0", b"2", b"3", b"5"]


@pytest.mark.parametrize(
    ("code", "error"), [(MESSAGE_TOO_LARGE, RecordTooLarge), (INVALID_RECORD, RecordRefused)]
)
@pytest_twisted.ensureDeferred
async def test_a_single_record_that_is_refused_is_not_sent_again(mock, code, error):
    mock.push_errors(PRODUCE, code)
    async with running(mock.bootstrap) as broker:
        mock.track_requests()
        assert type(await soon_failed(broker.publish(record("t")))) is error
        assert len(mock.requests(PRODUCE)) == 1
        await soon(broker.publish(record("t", b"next")))
    assert await values_in(mock) == [b"next"]


@pytest.mark.parametrize("code", [OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID])
@pytest_twisted.ensureDeferred
async def test_records_whose_numbering_is_refused_are_numbered_anew_and_published_once(mock, code):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        first = await settled(broker, numbered(3))
        mock.push_errors(PRODUCE, code)
        answers = first + await settled(broker, numbered(4, start=3))
        answers += await settled(broker, numbered(2, start=7))
        before, refused, again, after = tap.batches()
    assert (refused.producer_id, refused.epoch) == (before.producer_id, before.epoch)
    assert (again.producer_id, again.epoch) != (refused.producer_id, refused.epoch)
    assert (again.base_sequence, again.count) == (0, 4)
    assert after == again._replace(base_sequence=4, count=2)
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log, numbered(9))
    assert [int(each.value) for each in log] == list(range(9))


@pytest_twisted.ensureDeferred
async def test_a_lost_answer_and_then_a_refused_number_leave_the_outcome_unknown(mock):
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        await within(broker.publish(record("t", b"0")))
        tap.lose_answers(PRODUCE)
        waiting = broker.publish(record("t", b"1"))
        await eventually(lambda: len(tap.of(PRODUCE)) == 2)
        mock.push_errors(PRODUCE, UNKNOWN_PRODUCER_ID)
        assert isinstance(await soon_failed(waiting), OutcomeUnknown)
        await soon(broker.publish(record("t", b"2")))
    assert await values_in(mock) == [b"0", b"1", b"2"]


@pytest_twisted.ensureDeferred
async def test_who_may_not_be_idempotent_goes_on_without_and_is_warned_once(mock):
    mock.push_errors(INIT_PRODUCER_ID, CLUSTER_AUTHORIZATION_FAILED)
    with logged(LogLevel.warn) as warnings:
        async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
            sent = numbered(5)
            answers = await settled(broker, sent)
            assert {each.producer_id for each in tap.batches()} == {-1}
            assert len(tap.of(INIT_PRODUCER_ID)) == 1
    assert_published(answers, await log_of(mock.bootstrap, "t"), sent)
    assert len(warnings) == 1
    assert "CLUSTER_AUTHORIZATION_FAILED" in str(warnings[0])


@pytest_twisted.ensureDeferred
async def test_a_producer_id_that_is_not_to_be_had_yet_is_waited_for(mock):
    mock.push_errors(INIT_PRODUCER_ID, COORDINATOR_LOAD_IN_PROGRESS, DROP_CONNECTION)
    async with Tap(mock, reactor) as tap, running(tap.bootstrap) as broker:
        sent = numbered(5)
        answers = await settled(broker, sent)
        assert min(each.producer_id for each in tap.batches()) >= 0
    assert_published(answers, await log_of(mock.bootstrap, "t"), sent)


# --- deadlines, the buffer, and the end ----------------------------------------------------------------


@pytest_twisted.ensureDeferred
async def test_what_could_not_be_sent_is_unavailable_at_the_deadline(mock):
    async with running(mock.bootstrap, delivery_timeout="0.6") as broker:
        await within(broker.publish(record("t", b"before")))
        mock.broker_down()
        # Until then, what is written to a connection that is gone may have been sent.
        await eventually(lambda: not broker.health().ready)
        began_s = reactor.seconds()
        ends = await settled(broker, numbered(3))
        assert 0.55 <= reactor.seconds() - began_s < 3
        assert {type(each) for each in ends} == {BrokerUnavailable}
    mock.broker_up()
    assert await values_in(mock) == [b"before"]


@pytest_twisted.ensureDeferred
async def test_what_was_sent_and_not_answered_has_timed_out_at_the_deadline(mock):
    async with running(mock.bootstrap, delivery_timeout="0.6") as broker:
        await within(broker.publish(record("t", b"before")))
        mock.set_round_trip(60_000)
        began_s = reactor.seconds()
        ends = await settled(broker, numbered(3))
        assert 0.55 <= reactor.seconds() - began_s < 3
        assert {type(each) for each in ends} == {PublishTimedOut}
        assert all(each.possibly_published for each in ends)


@pytest_twisted.ensureDeferred
async def test_a_full_buffer_refuses_at_once_and_is_free_again_later(mock):
    async with running(mock.bootstrap, delivery_timeout="0.6", buffer_bytes="100000") as broker:
        await within(broker.publish(record("t", b"before")))
        mock.broker_down()
        await eventually(lambda: not broker.health().ready)
        publishes = [broker.publish(record("t", bytes(1000), key=b"%d" % n)) for n in range(200)]
        refused = [each for each in publishes if each.called]
        assert 100 <= len(refused) < 180
        ends = await outcomes(publishes)
        assert [type(each) for each in ends] == [BrokerUnavailable] * (200 - len(refused)) + [
            BufferFull
        ] * len(refused)
        mock.broker_up()
        await eventually(lambda: broker.health().ready)
        await settled(broker, [record("t", bytes(1000)) for _ in range(30)])
    assert len(await values_in(mock)) == 31


@pytest_twisted.ensureDeferred
async def test_records_of_an_unknown_topic_count_in_the_buffer(mock):
    mock.broker_down()
    async with running(mock.bootstrap, delivery_timeout="0.5", buffer_bytes="100000") as broker:
        publishes = [broker.publish(record(f"{n % 3}", bytes(1000))) for n in range(200)]
        assert sum(each.called for each in publishes) >= 100
        assert {type(each) for each in await outcomes(publishes)} == {BufferFull, BrokerUnavailable}


@pytest_twisted.ensureDeferred
async def test_a_record_larger_than_the_buffer_is_too_large(mock):
    async with running(mock.bootstrap, buffer_bytes="1000") as broker:
        assert type(await soon_failed(broker.publish(record("t", bytes(2000))))) is RecordTooLarge


@pytest_twisted.ensureDeferred
async def test_a_leader_that_does_not_answer_neither_holds_up_the_others_nor_fills_the_buffer(mock):
    mock.create_topic("three", partitions=3)
    for partition in range(3):
        mock.set_leader("three", partition, partition + 1)
    async with running(
        mock.bootstrap, delivery_timeout="1.5", buffer_bytes="200000", stop_within_s=0
    ) as broker:
        keys = await keys_by_partition(broker, "three")
        mock.set_round_trip(60_000, broker=3)
        stuck = [broker.publish(record("three", bytes(1000), key=keys[2])) for _ in range(200)]
        assert any(each.called for each in stuck)
        for n in range(40):
            await soon(broker.publish(record("three", bytes(1000), key=keys[n % 2])))
        # Without a key, a partition is chosen that is not behind.
        for _ in range(20):
            await soon(broker.publish(record("three", bytes(1000))))
        kinds = {type(each) for each in await outcomes(stuck)}
        assert kinds == {BufferFull, PublishTimedOut}
        assert broker.health().ready


@pytest_twisted.ensureDeferred
async def test_a_leader_that_did_not_answer_gets_hardly_any_more_records_without_a_key(mock):
    mock.create_topic("three", partitions=3)
    for partition in range(3):
        mock.set_leader("three", partition, partition + 1)
    async with running(mock.bootstrap, delivery_timeout="0.5", stop_within_s=0) as broker:
        await keys_by_partition(broker, "three")
        mock.set_round_trip(60_000, broker=3)
        ends = []
        while not ends or isinstance(ends[-1], RecordMetadata):
            ends += await settled(broker, [record("three")])
        # One after the other, so that no queue is ever longer than another.
        ends = [(await settled(broker, [record("three")]))[0] for _ in range(20)]
        assert sum(not isinstance(each, RecordMetadata) for each in ends) <= 2


@pytest_twisted.ensureDeferred
async def test_stop_waits_for_what_was_accepted(mock):
    async with running(mock.bootstrap) as broker:
        await within(broker.publish(record("t", b"0", key=b"k")))
        mock.set_round_trip(200)
        waiting = [broker.publish(each) for each in numbered(5, start=1)]
        await turns()
        waiting += [broker.publish(each) for each in numbered(5, start=6)]
        await within(broker.stop(deadline_s=10))
        assert all(each.called for each in waiting)
        answers = await outcomes(waiting)
        mock.set_round_trip(0)
    log = await log_of(mock.bootstrap, "t")
    assert_published(answers, log[1:], numbered(10, start=1))


@pytest_twisted.ensureDeferred
async def test_stop_at_once_tells_what_was_never_sent_from_what_may_be_stored(mock):
    async with running(mock.bootstrap) as broker:
        await within(broker.publish(record("t", b"before", key=b"k")))
        mock.set_round_trip(60_000)
        mock.track_requests()
        sent = broker.publish(record("t", b"sent", key=b"k"))
        await eventually(lambda: mock.requests(PRODUCE))
        waiting = broker.publish(record("t", b"waiting", key=b"k"))
        await broker.stop(deadline_s=0).addTimeout(5, reactor)
        unknown, stopped = await outcomes([sent, waiting])
        assert isinstance(unknown, OutcomeUnknown)
        assert type(stopped) is BrokerStopped
        mock.set_round_trip(0)
    assert await values_in(mock) == [b"before", b"sent"]


@pytest_twisted.ensureDeferred
async def test_stop_ends_by_its_deadline_when_nothing_can_be_reached(mock):
    mock.broker_down()
    async with running(mock.bootstrap) as broker:
        broker.follow(topic="t", observer=Recorder())
        waiting = [broker.publish(each) for each in numbered(3)]
        await broker.stop(deadline_s=0.3).addTimeout(5, reactor)
        assert {type(each) for each in await outcomes(waiting)} == {BrokerStopped}


# --- following -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api_key", "code"),
    [
        (FETCH, NOT_LEADER_OR_FOLLOWER),
        (FETCH, DROP_CONNECTION),
        (LIST_OFFSETS, LEADER_NOT_AVAILABLE),
        (LIST_OFFSETS, DROP_CONNECTION),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_following_goes_on_after_an_error_and_is_told_each_record_once(mock, api_key, code):
    recorder = Recorder()
    async with running(mock.bootstrap) as broker:
        await settled(broker, numbered(20))
        mock.push_errors(api_key, code)
        broker.follow(topic="t", observer=recorder)
        await recorder.until(20)
        mock.push_errors(api_key, code)
        await settled(broker, numbered(20, start=20))
        await recorder.until(40)
    assert [int(each) for each in recorder.values()] == list(range(40))
    assert recorder.caught_up_at == [20]


@pytest_twisted.ensureDeferred
async def test_a_topic_that_may_not_be_read_is_a_reason_not_to_be_ready_until_it_may(mock):
    recorder = Recorder()
    async with running(mock.bootstrap) as broker:
        await settled(broker, numbered(3))
        mock.push_errors(FETCH, *[TOPIC_AUTHORIZATION_FAILED] * FOR_EVER)
        broker.follow(topic="t", observer=recorder)
        await eventually(lambda: "topic t" in " ".join(broker.health().reasons))
        assert recorder.caught_up_at == []
        mock.clear_errors(FETCH)
        await recorder.until(3)
        await eventually(lambda: broker.health().ready)


@pytest_twisted.ensureDeferred
async def test_a_following_goes_with_the_leader_and_outlives_its_brokers(mock):
    recorder = Recorder()
    async with running(mock.bootstrap) as broker:
        await settled(broker, numbered(10))
        broker.follow(topic="t", observer=recorder)
        await recorder.until(10)
        for turn, leader in enumerate([1, 2, 3], 1):
            mock.set_leader("t", 0, leader)
            await settled(broker, numbered(10, start=10 * turn))
            await recorder.until(10 * turn + 10)
        mock.broker_down()
        await eventually(lambda: not broker.health().ready)
        mock.broker_up()
        await settled(broker, numbered(10, start=40))
        await recorder.until(50)
        await eventually(lambda: broker.health().ready)
    assert [int(each) for each in recorder.values()] == list(range(50))


@pytest_twisted.ensureDeferred
async def test_a_following_that_is_out_of_range_begins_with_the_first_record_that_is_left(mock):
    recorder = Recorder()
    async with running(mock.bootstrap) as broker:
        # The mock keeps five megabytes of a partition, and forgets what came first.
        for n in range(10):
            await within(broker.publish(record("t", b"%d" % n + bytes(900_000), key=b"k")))
        broker.follow(topic="t", observer=recorder)
        await recorder.until(5)
    numbers = [each.offset for each in recorder.records]
    assert numbers == list(range(numbers[0], 10))
    assert numbers[0] > 0
