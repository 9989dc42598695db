"""Reads while leaders change, brokers fail, and topics are made again."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from sampleapp.brokers.kafka.batches import Codec
from sampleapp.brokers.kafka.error_code import ErrorCode
from sampleapp.brokers.kafka.protocol import Fetched, FetchRequest, ListOffsetsRequest
from sampleapp.errors import (
    BrokerIncompatible,
    BrokerStopped,
    BrokerUnavailable,
    TopicNotAuthorized,
    UnknownTopic,
)
from sampleapp.model import EARLIEST, FromEnd, FromTime, GoneRecords
from tests.brokers.kafka.consumer.conftest import PageRead
from tests.support.examples import examples
from tests.support.kafka_simulator import Cluster, Fate, reason, values


def values_of(result):
    return [each.value for each in result.records]


def filled(partitions=1, count=5, **options):
    cluster = Cluster(partitions, **options)
    for log in cluster.logs.values():
        log.append(*values(count))
    return cluster


@pytest.mark.parametrize("start", [2, EARLIEST])
def test_a_new_leader_is_asked(new_reader, start):
    cluster = filled()
    reading = new_reader(cluster)
    reading.read()
    cluster.elect(2)
    assert values_of(reading.read({0: start}))[-1] == b"4"
    assert cluster.clock.seconds() < 1


def test_metadata_of_a_broker_that_is_behind_does_not_bring_a_former_leader_back(new_reader):
    cluster = filled()
    reading = new_reader(cluster)
    cluster.elect(2)
    reading.read()
    log = cluster.logs[0]
    log.leader, log.epoch = 1, 0
    cluster.run(10)
    reading.begin({0: 5})
    cluster.run(0.01)
    assert cluster.fetches[-1][0] == 2
    log.leader, log.epoch = 2, 1
    cluster.run(5)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    ],
)
def test_an_error_that_passes_is_not_noticed(new_reader, code):
    cluster = filled()
    cluster.logs[0].errors = [code]
    assert values_of(new_reader(cluster).read({0: 0})) == values(5)
    assert cluster.clock.seconds() < 1


def test_other_partitions_are_read_while_one_has_no_leader(new_reader):
    cluster = filled(partitions=3)
    cluster.logs[1].leader = None
    reading = new_reader(cluster)
    result = reading.read(dict.fromkeys(range(3), 0))
    assert len(result.records) == 10
    assert result.positions == {0: 5, 1: 0, 2: 5}
    assert not result.is_up_to_date
    # And if there is nothing else to read, it waits for a moment only.
    result = reading.read(result.positions)
    assert not result.records
    assert not result.is_up_to_date
    # A start cannot be guessed.
    with pytest.raises(BrokerUnavailable, match="Partition 1 has no leader"):
        reading.read({1: FromEnd(0)})


def test_a_partition_without_leader_is_unavailable_alone(new_reader):
    cluster = filled()
    cluster.elect(None)
    with pytest.raises(BrokerUnavailable, match="has no leader"):
        new_reader(cluster).read({0: 0})
    assert cluster.clock.seconds() < 10


def test_it_is_read_as_soon_as_it_has_a_leader_again(new_reader):
    cluster = filled()
    reading = new_reader(cluster)
    reading.read()
    cluster.elect(None)
    waiting = reading.begin({0: 0})
    cluster.run(2)
    assert not waiting.called
    cluster.elect(3)
    assert values_of(reading.result_of(waiting)) == values(5)


def test_a_frozen_leader_delays_only_the_first_read(new_reader):
    cluster = filled(partitions=3)
    cluster.silent = {2}
    reading = new_reader(cluster)
    result = reading.read(dict.fromkeys(range(3), 0))
    assert len(result.records) == 10
    assert not result.is_up_to_date
    assert cluster.clock.seconds() < 1.5
    for _ in range(5):
        began_s = cluster.clock.seconds()
        assert len(reading.read(dict.fromkeys(range(3), 0)).records) == 10
        assert cluster.clock.seconds() - began_s < 0.1
    cluster.silent = set()
    cluster.run(6)
    assert len(reading.read(dict.fromkeys(range(3), 0)).records) == 15


@pytest.mark.parametrize("start", [0, EARLIEST])
def test_many_reads_from_a_frozen_leader_do_not_delay_those_from_others(new_reader, start):
    cluster = filled(partitions=3)
    reading = new_reader(cluster)
    reading.read()
    cluster.silent = {2}
    frozen = [reading.begin({1: start}, others=None) for _ in range(100)]
    began_s = cluster.clock.seconds()
    for number in range(40):
        assert len(reading.read({(0, 2)[number % 2]: start}, others=None).records) == 5
    assert cluster.clock.seconds() - began_s < 1
    assert not any(each.called for each in frozen)
    cluster.silent = set()
    assert all(len(reading.result_of(each).records) == 5 for each in frozen)


def test_many_large_reads_from_a_frozen_leader_do_not_delay_those_from_others(new_reader):
    cluster = filled(partitions=2, brokers=(1, 2))
    reading = new_reader(cluster)
    reading.read()
    cluster.silent = {2}
    frozen = [reading.begin({1: 0}, others=None, limit=10_000, max_bytes=2**23) for _ in range(8)]
    began_s = cluster.clock.seconds()
    assert len(reading.read({0: 0}, others=None, limit=10_000, max_bytes=2**23).records) == 5
    assert cluster.clock.seconds() - began_s < 1
    cluster.silent = set()
    assert all(len(reading.result_of(each).records) == 5 for each in frozen)


def test_what_a_late_leader_answers_after_all_is_dropped(new_reader):
    cluster = filled(partitions=2, brokers=(1, 2))
    reading = new_reader(cluster)
    reading.read()
    cluster.slow[2] = 2.0
    assert len(reading.read({0: 0, 1: 0}).records) == 5
    cluster.slow[2] = 0.0
    cluster.run(3)
    assert len(reading.read({0: 0, 1: 0}).records) == 10


def test_without_any_broker_it_is_unavailable(new_reader):
    cluster = filled()
    reading = new_reader(cluster)
    reading.read()
    cluster.down = set(cluster.brokers)
    began_s = cluster.clock.seconds()
    with pytest.raises(BrokerUnavailable, match="No broker answers"):
        reading.read({0: 0})
    assert cluster.clock.seconds() - began_s < 10
    cluster.mend()
    assert len(reading.read({0: 0}).records) == 5


def test_an_incompatible_broker_is_told(new_reader):
    cluster = filled()
    cluster.cut_off(reason(lasting=True, incompatible=True))
    with pytest.raises(BrokerIncompatible):
        new_reader(cluster).read()


@pytest.mark.parametrize("at", ["metadata", "list", "fetch"])
def test_what_the_service_may_not_read_is_rejected(new_reader, at):
    cluster = filled()
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    start = 0
    if at == "metadata":
        cluster.topic_errors["t"] = code
    elif at == "fetch":
        cluster.logs[0].errors = [code]
    else:
        start = FromEnd(1)
        cluster.logs[0].unlisted[-2] = [code]
    with pytest.raises(TopicNotAuthorized, match="READ and DESCRIBE"):
        new_reader(cluster).read({0: start})
    assert cluster.clock.seconds() < 1


def test_times_of_a_format_without_times_are_rejected(new_reader):
    cluster = filled()
    cluster.logs[0].unlisted[5] = [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT]
    with pytest.raises(BrokerIncompatible, match="without times"):
        new_reader(cluster).read({0: FromTime(5)})


def test_a_topic_that_cannot_be_used_is_unavailable(new_reader):
    cluster = filled()
    cluster.topic_errors["t"] = ErrorCode.LEADER_NOT_AVAILABLE
    with pytest.raises(BrokerUnavailable, match="LEADER_NOT_AVAILABLE"):
        new_reader(cluster).read()


def test_a_topic_that_was_made_again_has_another_id(new_reader):
    cluster = filled()
    cluster.topic_id = UUID(int=1 << 100)
    reading = new_reader(cluster)
    first = reading.read()
    cluster.make_again()
    cluster.topic_id = UUID(int=2 << 100)
    cluster.logs[0].append(b"new")
    # At once, with a Fetch that names the old id.
    second = reading.read({0: 0})
    assert second.topic_id != first.topic_id
    assert values_of(second) == [b"new"]


@pytest.mark.parametrize("limit", [0, 500])
def test_starts_are_resolved_in_the_topic_whose_id_is_told(new_reader, limit):
    cluster = filled()
    cluster.topic_id = UUID(int=1 << 100)
    reading = new_reader(cluster)
    first = reading.read()
    cluster.run(1)
    cluster.make_again()
    cluster.topic_id = UUID(int=2 << 100)
    cluster.logs[0].append(b"new")
    result = reading.read({0: FromEnd(0)}, limit=limit)
    assert result.topic_id != first.topic_id
    assert result.positions == {0: 1}


def test_without_ids_in_fetch_it_is_noticed_by_the_metadata(new_reader):
    cluster = filled(partitions=3)
    cluster.topic_id = None
    reading = new_reader(cluster)
    reading.read()
    cluster.make_again(partitions=1)
    cluster.logs[0].append(b"new")
    cluster.run(5)
    result = reading.read()
    assert values_of(result) == [b"new"]
    assert result.partitions == 1


@pytest.mark.parametrize(
    ("count", "beyond", "found"),
    [
        pytest.param(3, {0: 3}, [], id="a shorter one is noticed"),
        pytest.param(5, {}, [], id="one as long is not"),
        pytest.param(8, {}, values(8)[5:], id="a longer one is read on in"),
    ],
)
def test_without_ids_a_topic_made_again_shows_only_if_a_position_is_beyond_its_end(
    new_reader, count, beyond, found
):
    cluster = filled()
    cluster.topic_id = None
    reading = new_reader(cluster)
    positions = reading.read().positions
    assert positions == {0: 5}
    cluster.make_again()[0].append(*values(count))
    cluster.run(5)
    result = reading.read(positions)
    assert result.beyond == beyond
    assert values_of(result) == found
    assert result.topic_id == "_"


def test_a_deleted_topic_is_unknown_after_a_second(new_reader):
    cluster = filled()
    reading = new_reader(cluster)
    reading.read()
    cluster.delete()
    began_s = cluster.clock.seconds()
    with pytest.raises(UnknownTopic):
        reading.read({0: 0})
    assert cluster.clock.seconds() - began_s < 2
    cluster.make(1)[0].append(b"new")
    assert values_of(reading.read()) == [b"new"]


def test_a_leader_whose_high_watermark_is_behind_is_not_taken_for_another_log(new_reader, monkeypatch):
    cluster = filled()
    log = cluster.logs[0]
    fetched = log.fetched

    def behind(*args, **options):
        answer = fetched(*args, **options)
        return Fetched(answer.topic, answer.partition, 0, 3, 3, 0, (), b"")

    monkeypatch.setattr(log, "fetched", behind)
    result = new_reader(cluster).read({0: 5})
    assert result.positions == {0: 5}
    assert not result.beyond
    assert not result.records


def test_a_former_leader_with_a_shorter_log_is_not_believed(new_reader):
    cluster = filled()
    log = cluster.logs[0]
    reading = new_reader(cluster)
    end, log.end = log.end, 2
    waiting = reading.begin({0: 5})
    cluster.run(1)
    assert not waiting.called
    log.end = end
    result = reading.result_of(waiting)
    assert not result.beyond
    assert result.is_up_to_date


def test_records_that_are_deleted_during_a_read_are_told(new_reader):
    cluster = filled()
    cluster.logs[0].errors = [ErrorCode.OFFSET_OUT_OF_RANGE]
    cluster.logs[0].delete_before(5)
    assert new_reader(cluster).read({0: 2}).gone == (GoneRecords(0, 2, 5),)


def test_what_was_read_before_other_records_went_is_returned_and_the_next_read_tells_of_them(new_reader):
    cluster = Cluster()
    log = cluster.logs[0]
    for number in range(20):
        log.append(bytes([number]) * 20_000)
    fetched, fetches = log.fetched, []

    def fetched_and_deleted(*arguments, **more):
        fetches.append(arguments)
        if len(fetches) == 1:
            cluster.clock.callLater(0, log.delete_before, 18)
        return fetched(*arguments, **more)

    log.fetched = fetched_and_deleted
    reading = new_reader(cluster)
    result = reading.read({0: 0}, others=None)
    position = result.positions[0]
    assert [each.offset for each in result.records] == list(range(position))
    assert 0 < position < 18
    assert not result.gone
    assert not result.is_up_to_date
    assert reading.read({0: position}, others=None).gone == (GoneRecords(0, position, 18),)


def test_after_an_answer_of_a_broker_that_is_behind_the_topic_can_be_read(new_reader):
    cluster = Cluster()
    cluster.make_again()
    cluster.logs[0].append(b"x")
    reading = new_reader(cluster)
    topic_id = reading.read({0: 0}).topic_id
    cluster.lagging = {3}
    cluster.run(5.1)
    behind = reading.begin({0: 0}, others=None)
    cluster.run(1)
    cluster.lagging = set()
    assert reading.result_of(behind).topic_id == topic_id
    assert reading.read({0: 0}).topic_id == topic_id


def test_many_reads_that_fail_at_once_when_their_turn_comes_leave_their_places(new_reader):
    cluster = Cluster(3)
    for log in cluster.logs.values():
        log.append(b"x")
    reading = new_reader(cluster)
    reading.read()
    cluster.silent = {2}
    ended = []
    for number in range(116):
        starts, others = ({}, EARLIEST) if number < 16 else ({1: EARLIEST}, None)
        reading.begin(starts, others=others).addBoth(ended.append)
    cluster.run(60)
    assert len(ended) == 116
    cluster.silent = set()
    cluster.run(10)
    assert len(reading.read().records) == 3


def test_a_damaged_batch_is_told_once_there_is_nothing_before_it(new_reader):
    cluster = filled(partitions=2, brokers=(1,))
    log = cluster.logs[0]
    log.append(b"broken")
    first, last, data = log.batches[-1]
    log.batches[-1] = first, last, data[:-1] + b"\xff"
    reading = new_reader(cluster)
    result = reading.read({0: 0, 1: 0})
    assert len(result.records) == 10
    assert result.positions == {0: 5, 1: 5}
    assert not result.is_up_to_date
    with pytest.raises(BrokerUnavailable, match="Partition 0 cannot be read on at offset 5: its checksum"):
        reading.read({0: 5}, others=None)


def test_a_batch_that_is_too_large_is_told_as_gone(new_reader):
    cluster = filled()
    cluster.logs[0].append(b"x" * 300_000, codec=Codec.GZIP)
    cluster.logs[0].append(b"after")
    reading = new_reader(cluster, max_batch_bytes=200_000)
    result = reading.read({0: 0})
    assert len(result.records) == 5
    assert not result.is_up_to_date
    assert reading.read(result.positions).gone == (GoneRecords(0, 5, 6),)
    assert values_of(reading.read({0: 6})) == [b"after"]


def test_offsets_that_no_batch_has_end_the_reading_for_now(new_reader):
    cluster = filled()
    cluster.logs[0].skip(3)
    result = new_reader(cluster).read()
    assert len(result.records) == 5
    assert result.is_up_to_date


def test_a_broker_that_throttles_is_asked_again(new_reader):
    cluster = filled()
    cluster.throttled = 2
    assert len(new_reader(cluster).read({0: 0}).records) == 5


@examples(60)
@given(
    fates=st.lists(
        st.sampled_from([Fate.ANSWERED, Fate.NOT_LEADER, Fate.ANSWER_LOST, Fate.NOT_SENT]), max_size=12
    ),
    cancel_after_s=st.none() | st.floats(0, 0.5),
)
def test_whatever_happens_to_requests_a_read_returns_what_there_is(fates, cancel_after_s):
    cluster = filled(partitions=3)
    plan = iter(fates)
    cluster.fates = dict.fromkeys([FetchRequest, ListOffsetsRequest], lambda: next(plan, Fate.ANSWERED))
    reading = PageRead(cluster)
    positions, found = {}, []
    if cancel_after_s is not None:
        cancelled = reading.begin()
        cluster.run(cancel_after_s)
        cancelled.cancel()
        results = []
        cancelled.addBoth(results.append)
        assert not isinstance(results[0], Failure) or results[0].check(CancelledError)
    for _ in range(20):
        result = reading.read(positions, limit=4)
        found += result.records
        positions = result.positions
        if result.is_up_to_date:
            break
    for number, log in cluster.logs.items():
        assert [each.value for each in found if each.partition == number] == log.values
    reading.stop()


# --- limits ------------------------------------------------------------------------------------------------


def test_reads_wait_for_their_places_in_order_and_cancelled_ones_are_left_out(new_reader):
    cluster = filled()
    reading = new_reader(cluster, most_reads=1)
    reading.read()
    cluster.fetches.clear()
    done = []
    waiting = [reading.begin({0: number % 5}) for number in range(6)]
    for number, each in enumerate(waiting):
        each.addBoth(lambda result, number=number: done.append((number, isinstance(result, Failure))))
    for number in (0, 3):
        waiting[number].cancel()
    cluster.run(1)
    assert done == [(0, True), (3, True), (1, False), (2, False), (4, False), (5, False)]
    # The first one had been sent; the other never was.
    assert len(cluster.fetches) == 5


def test_no_more_are_asked_at_once_than_there_is_memory_for(new_reader):
    cluster = filled()
    reading = new_reader(cluster, most_bytes=16 * 2**20)
    reading.read()
    waiting = [reading.begin({0: 0}) for _ in range(20)]
    client = cluster.clients[0]
    most = 0
    while not all(each.called for each in waiting):
        most = max(most, len(client.open))
        cluster.run(0.001)
    assert 2 <= most <= 4


def test_reads_fail_when_it_stops_and_afterwards(new_reader):
    cluster = filled()
    reading = new_reader(cluster)
    waiting = [reading.begin() for _ in range(3)]
    reading.stop()
    for each in (*waiting, reading.begin()):
        with pytest.raises(BrokerStopped):
            reading.result_of(each)


def test_connections_are_closed_when_nothing_is_read_for_a_minute(new_reader):
    cluster = filled()
    reading = new_reader(cluster)
    reading.read()
    cluster.run(59)
    reading.read()
    cluster.run(59)
    assert [client.closed for client in cluster.clients] == [False]
    cluster.run(2)
    assert [client.closed for client in cluster.clients] == [True]
    assert len(reading.read({0: 0}).records) == 5
    assert len(cluster.clients) == 2


def test_a_bug_is_told_as_a_fault_of_the_service(new_reader, monkeypatch, no_failure_is_lost):
    reading = new_reader(filled())
    monkeypatch.setattr("sampleapp.brokers.kafka.consumer.page_read._rotated", lambda _: 1 / 0)
    with pytest.raises(BrokerUnavailable, match="has a fault"):
        reading.read()
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()
