"""Logs that were cut, as by an unclean election, and have grown past the position since (KIP-320)."""

from __future__ import annotations

import pytest

from sampleapp.brokers.kafka.protocol import FetchRequest, SessionFetchRequest
from sampleapp.model import FromEnd, FromOffset, FromTime, OffsetAndEpoch
from sampleapp_testing import PositionRecorder, Recorder
from tests.support.kafka_simulator import Cluster, values

LATER = 100

pytestmark = pytest.mark.usefixtures("bytes_on_the_wire")


def filled(count=5, **options):
    cluster = Cluster(**options)
    append(cluster.logs[0], values(count))
    return cluster


def append(log, some):
    """Append each record in a batch of its own, between which a log may be cut."""
    for each in some:
        log.append(each)


def cut(cluster, offset, *, leader=2, new=20):
    """Have a log cut, and grow past where it was."""
    log = cluster.logs[0]
    log.cut(offset)
    log.leader = leader
    append(log, values(new, LATER))


# Followings


@pytest.mark.parametrize("leader", [1, 2])
def test_a_log_that_was_cut_and_has_grown_again_is_read_again(setup, leader):
    cluster = filled()
    following = setup(cluster)
    following.catch_up()
    cut(cluster, 3, leader=leader)
    cluster.until(lambda: following.recorder.reset_at)
    following.until(23)
    following.assert_each_exactly_once()
    assert following.values == [*values(3), *values(20, LATER)]
    assert following.recorder.caught_up_at == [5, 28]
    cluster.run(60)
    assert following.recorder.reset_at == [5]
    assert following.reasons == ()


def test_it_is_noticed_by_one_that_began_at_the_end_and_has_read_nothing(setup):
    cluster = filled()
    following = setup(cluster, start=FromEnd(0))
    following.catch_up()
    cut(cluster, 3)
    cluster.until(lambda: following.recorder.reset_at)
    following.until(23)
    following.assert_each_exactly_once()


def test_it_is_noticed_by_one_that_begins_at_a_position_from_before(setup):
    cluster = filled()
    cut(cluster, 3)
    following = setup(cluster, start=FromOffset(OffsetAndEpoch(5, 0)))
    following.until(23)
    following.assert_each_exactly_once()


def test_each_that_shares_a_request_is_judged_by_its_own_position(setup):
    cluster = filled()
    followings = [setup(cluster)]
    first = followings[0]
    observers = [PositionRecorder() for _ in range(3)]
    others = [
        first.follow(observer, start=start)
        for observer, start in zip(
            observers,
            (FromEnd(0), FromOffset(OffsetAndEpoch(2, 0)), FromOffset(5)),
            strict=True,
        )
    ]
    cluster.until(lambda: first.caught_up and all(each.caught_up_at for each in observers))
    cluster.run(5)
    cut(cluster, 3)
    for each in (first.recorder, *observers):
        cluster.until(lambda each=each: each.reset_at)
    cluster.run(5)
    for each in (first.recorder, *observers):
        assert len(each.reset_at) == 1
        assert [record.value for record in each.records][each.reset_at[0] :] == [
            *values(3),
            *values(20, LATER),
        ]
    for each in others:
        each.stop()


def beside_one_that_waits(setup, count):
    """:return: a following of another topic, whose Fetch waits at the broker, and the log of a second one."""
    cluster = Cluster(brokers=(1,))
    log = cluster.add_partitions(1, topic="cut")[0]
    append(log, values(count))
    first = setup(cluster)
    first.catch_up()
    cluster.until(lambda: isinstance(cluster.fetches[-1][1], SessionFetchRequest))
    return first, log


def follow_from(first, position):
    """Follow the second topic; return the observer when there is nothing more for it."""
    observer, fetches = PositionRecorder(), len(first.cluster.fetches)
    first.follow(observer, topic="cut", start=FromOffset(position))
    first.cluster.until(lambda: len(first.cluster.fetches) > fetches, within_s=0.03)
    first.cluster.run(0.005)
    return observer


def have_all_named_by_one_request(first):
    first.cluster.logs[0].append(b"x")
    first.until(1)
    first.cluster.run(0.1)


def test_one_of_before_a_cut_does_not_wait_at_the_position_of_one_of_after_it(setup):
    first, log = beside_one_that_waits(setup, 7)
    old = follow_from(first, OffsetAndEpoch(7, 0))
    log.cut(3)
    append(log, values(2, LATER))
    new = follow_from(first, OffsetAndEpoch(5, 1))
    have_all_named_by_one_request(first)
    append(log, values(5, LATER + 2))
    first.cluster.until(lambda: old.reset_at and len(new.records) == 5)
    first.cluster.run(1)
    assert old.values() == [*values(3), *values(7, LATER)]
    assert new.reset_at == []


def test_one_of_after_a_cut_is_not_read_again_with_one_of_before_it(setup):
    first, log = beside_one_that_waits(setup, 5)
    # As during an upgrade from a version without them, so leaders do not say that they are others.
    first.cluster.tells_epochs = False
    old = follow_from(first, OffsetAndEpoch(5, 0))
    log.cut(3)
    append(log, values(2, LATER))
    new = follow_from(first, OffsetAndEpoch(5, 1))
    have_all_named_by_one_request(first)
    first.cluster.until(lambda: old.reset_at)
    first.cluster.run(1)
    assert old.values() == [*values(3), *values(2, LATER)]
    assert new.reset_at == []


@pytest.mark.parametrize("count", [5, 7])
def test_the_position_of_one_that_must_send_its_own_again_is_sent_before_it_shares_another(setup, count):
    first, log = beside_one_that_waits(setup, count)
    cluster = first.cluster
    for each in list(cluster.add_partitions(3, topic="slow").values())[1:]:
        each.append(b"x")
    old = follow_from(first, OffsetAndEpoch(count - 1, 0))
    log.cut(3)
    append(log, values(2, LATER))
    # Its request is rejected, because it has the epoch of the former leader.
    cluster.run(0.06)
    new = follow_from(first, OffsetAndEpoch(5, 1))
    # The response with the end of the other one is handled in several slices: the first ends after that.
    cluster.slow[1] = 0.1
    fetches = len(cluster.fetches)
    first.follow(Recorder(on_record=cluster.take(0.05)), topic="slow")
    cluster.until(lambda: len(cluster.fetches) > fetches)
    cluster.run(0.003)
    cluster.logs[0].append(b"x")
    cluster.run(0.2)
    cluster.slow.clear()
    append(log, values(5, LATER + 2))
    cluster.until(lambda: old.reset_at and len(new.records) == 5)
    cluster.run(1)
    assert old.values()[1:] == [*values(3), *values(7, LATER)]
    assert new.reset_at == []


def test_its_position_is_sent_again_if_a_quota_has_left_the_first_response_empty(setup):
    first, log = beside_one_that_waits(setup, 7)
    cluster = first.cluster
    old = follow_from(first, OffsetAndEpoch(7, 0))
    log.cut(3)
    append(log, values(2, LATER))
    cluster.run(0.06)
    # The other loop is busy with the new one for so long that the Fetch that waits names the old one.
    cluster.slow[1] = 0.2
    new = PositionRecorder()
    first.follow(new, topic="cut", start=FromOffset(OffsetAndEpoch(5, 1)))
    cluster.run(0.01)
    cluster.slow[1] = 0
    cluster.run(0.1)
    cluster.logs[0].append(b"x")
    while not isinstance(cluster.fetches[-1][1], SessionFetchRequest):
        cluster.run(0.001)
    assert ("cut", [(0, 7)]) in cluster.fetches[-1][1].topics
    cluster.throttled = 1
    cluster.run(0.5)
    append(log, values(5, LATER + 2))
    cluster.until(lambda: old.reset_at and len(new.records) == 5)
    cluster.run(1)
    assert old.values() == [*values(3), *values(7, LATER)]
    assert new.reset_at == []


def test_one_that_is_cut_at_the_position_goes_on(setup):
    cluster = filled()
    following = setup(cluster)
    following.catch_up()
    cut(cluster, 5)
    following.until(25)
    cluster.run(10)
    assert following.recorder.reset_at == []


@pytest.mark.parametrize("count", [1, 4])
def test_clean_elections_are_no_cut_even_if_nothing_was_written_between_them(setup, count):
    cluster = filled()
    following = setup(cluster)
    at_the_end = Recorder()
    other = following.follow(at_the_end, start=FromEnd(0))
    following.catch_up()
    cluster.run(1)
    for leader in range(count):
        cluster.elect(1 + leader % 3)
        cluster.run(15)
    cluster.logs[0].append(*values(5, LATER))
    following.until(10)
    cluster.run(10)
    assert following.recorder.reset_at == at_the_end.reset_at == []
    assert at_the_end.values() == values(5, LATER)
    other.stop()


def test_an_epoch_of_which_compaction_has_left_no_record_is_no_cut(setup):
    cluster = filled()
    log = cluster.logs[0]
    cluster.elect(2)
    log.append(*values(5, 5))
    following = setup(cluster)
    following.catch_up()
    # A new replica has only the epochs of the records that are left.
    log.lose_epoch(1)
    cluster.elect(3)
    log.append(*values(5, 10))
    following.until(15)
    assert following.recorder.reset_at == []


def test_a_leader_of_an_older_epoch_has_another_log(setup):
    cluster = filled()
    cluster.elect(1)
    cluster.elect(1)
    cluster.logs[0].append(*values(5))
    following = setup(cluster)
    following.catch_up()
    # All brokers were restored from copies.
    log = cluster.logs[0]
    cut(cluster, 3)
    log.epoch = 1
    cluster.until(lambda: following.recorder.reset_at)
    following.until(23)
    following.assert_each_exactly_once()


def test_a_leader_without_epochs_is_read_on(setup):
    cluster = filled()
    following = setup(cluster)
    following.catch_up()
    log = cluster.logs[0]
    log.has_epochs = False
    log.append(*values(5, 5))
    following.until(10)
    cluster.run(10)
    assert following.recorder.reset_at == []


def test_nothing_but_fetches_is_sent_for_it(setup):
    cluster = filled()
    following = setup(cluster)
    following.catch_up()
    cluster.run(1)
    before = len(cluster.asked)
    for number in range(50):
        cluster.logs[0].append(b"%d" % number)
        cluster.run(1)
    sent = [request for _, request in cluster.asked[before:]]
    assert {type(each) for each in sent} == {SessionFetchRequest}
    # Two for each record: one brings it, and the next waits.
    assert len(sent) <= 50 * 3


# Pages


def test_a_page_from_a_position_is_told(new_reader):
    cluster = filled()
    reading = new_reader(cluster)
    position = reading.read({0: 0}).positions[0]
    assert repr(position) == "5e0"
    cut(cluster, 3)
    result = reading.read({0: position})
    assert result.records == []
    assert repr(result.beyond[0]) == "3e0"
    assert repr(result.positions[0]) == "5e0"


@pytest.mark.parametrize("limit", [0, 1, 500])
def test_whatever_its_limit(new_reader, limit):
    cluster = filled()
    cut(cluster, 3)
    assert new_reader(cluster).read({0: OffsetAndEpoch(5, 0)}, limit=limit).beyond == {0: 3}


@pytest.mark.parametrize("limit", [0, 500])
def test_a_position_that_the_log_still_has_is_read_on(new_reader, limit):
    cluster = filled()
    cut(cluster, 3)
    result = new_reader(cluster).read({0: OffsetAndEpoch(3, 0)}, limit=limit)
    assert result.beyond == {}
    assert [each.value for each in result.records] == values(20, LATER)[:limit]


def test_a_position_without_an_epoch_does_not_tell(new_reader):
    cluster = filled()
    cut(cluster, 3)
    result = new_reader(cluster).read({0: 5})
    assert [each.value for each in result.records] == values(18, LATER + 2)


@pytest.mark.parametrize("start", [FromEnd(0), FromEnd(1), FromTime(2**50)])
@pytest.mark.parametrize("limit", [0, 500])
def test_positions_at_the_end_have_the_epoch_of_the_leader(new_reader, start, limit):
    cluster = filled()
    cluster.elect(2)
    reading = new_reader(cluster)
    position = reading.read(others=start, limit=limit).positions[0]
    assert isinstance(position, OffsetAndEpoch)
    cluster.elect(3)
    cluster.logs[0].append(b"new")
    assert reading.read({0: position}).beyond == {}
    cut(cluster, 3, leader=1)
    assert reading.read({0: position}).beyond == {0: 3}


def test_a_page_that_ends_inside_a_batch_has_its_epoch(new_reader):
    cluster = filled()
    reading = new_reader(cluster)
    position = reading.read({0: 0}, limit=4).positions[0]
    assert repr(position) == "4e0"
    cut(cluster, 2)
    assert reading.read({0: position}).beyond == {0: 2}


def test_a_page_has_no_records_from_after_a_cut_that_happens_while_it_is_read(new_reader):
    cluster = filled()
    log = cluster.logs[0]
    for _ in range(3):
        log.append(b"x" * 100_000)
    reading = new_reader(cluster)
    page = reading.begin({0: 0})
    fetches = len(cluster.fetches)
    cluster.until(lambda: len(cluster.fetches) > fetches + 1)
    cut(cluster, 3)
    result = reading.result_of(page)
    assert {each.leader_epoch for each in result.records} == {0}
    assert reading.read(result.positions).beyond == {0: 3}


def test_a_page_goes_on_after_an_epoch_of_which_compaction_has_left_no_record(new_reader):
    cluster = filled()
    cluster.elect(2)
    append(cluster.logs[0], values(5, 5))
    cluster.logs[0].lose_epoch(1)
    cluster.elect(3)
    append(cluster.logs[0], values(5, 10))
    result = new_reader(cluster).read({0: OffsetAndEpoch(10, 1)})
    assert [each.value for each in result.records] == values(5, 10)


@pytest.mark.parametrize("limit", [0, 500])
def test_a_page_of_a_leader_without_epochs_goes_on(new_reader, limit):
    cluster = filled()
    cluster.logs[0].has_epochs = False
    result = new_reader(cluster).read({0: OffsetAndEpoch(3, 0)}, limit=limit)
    assert [each.value for each in result.records] == values(2, 3)[:limit]
    assert result.beyond == {}


@pytest.mark.parametrize("limit", [0, 500])
def test_a_page_of_a_leader_of_an_older_epoch_is_told(new_reader, limit):
    cluster = filled()
    assert new_reader(cluster).read({0: OffsetAndEpoch(3, 4)}, limit=limit).beyond == {0: 5}


def test_a_page_takes_one_fetch(new_reader):
    cluster = filled()
    reading = new_reader(cluster)
    reading.read({0: 0})
    before = len(cluster.asked)
    reading.read({0: OffsetAndEpoch(2, 0)})
    assert [type(request) for _, request in cluster.asked[before:]] == [FetchRequest]
