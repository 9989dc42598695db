"""Topics that are deleted and created again, and logs that are cut: the records that are read again."""

from __future__ import annotations

from uuid import UUID

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from sampleapp.brokers.kafka.error_code import ErrorCode
from tests.support.kafka_simulator import Cluster, Log, values


def warnings(events):
    return [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]


def test_a_log_that_became_shorter_is_not_waited_for_for_ever(setup):
    cluster = Cluster()
    log = cluster.logs[0]
    log.append(b"a")
    log.stable = 1
    log.append(*values(9), attributes=0x10)
    following = setup(cluster)
    following.until(1)
    del log.batches[1:]
    log.shown = {0: b"a"}
    log.end, log.stable = 1, None
    assert following.catch_up() == [b"a"]


def test_an_answer_about_a_topic_that_is_gone_comes_too_late(setup):
    cluster = Cluster(partitions=1)
    following = setup(cluster)
    following.catch_up()
    cluster.slow[1] = 4.0
    cluster.logs[0].errors = [ErrorCode.KAFKA_STORAGE_ERROR]
    cluster.run(4.6)
    # The next answer has a record, and is in flight when the topic is deleted.
    cluster.logs[0].append(b"old")
    cluster.run(0.2)
    cluster.delete()
    cluster.run(2.5)
    cluster.slow.clear()
    cluster.make(1)[0].append(b"new")
    cluster.run(10)
    assert following.values == [b"new"]


def test_records_that_were_deleted_before_they_were_read_are_passed_over_with_a_warning(setup):
    cluster = Cluster()
    log = cluster.logs[0]
    following = setup(cluster)
    following.catch_up()
    cluster.down = {1}
    cluster.run(1)
    for number in range(10):
        log.append(b"%d" % number)
    log.delete_before(7)
    cluster.down = set()
    with capturedLogs() as events:
        following.until(3)
    (warning,) = warnings(events)
    assert "offsets 0 to 6 of partition 0. Reading goes on after them" in warning
    following.assert_each_exactly_once()


def test_a_topic_whose_records_were_all_deleted_is_caught_up_with(setup):
    cluster = Cluster()
    cluster.logs[0].append(b"a", b"b")
    cluster.silent = {1}
    following = setup(cluster)
    cluster.run(1)
    cluster.logs[0].delete_before(2)
    cluster.silent = set()
    assert following.catch_up() == []


def test_a_log_that_was_replaced_is_read_again_with_a_warning(setup):
    cluster = Cluster()
    cluster.logs[0].append(*values(5))
    following = setup(cluster)
    following.catch_up()
    cluster.logs[0] = Log(1)
    cluster.logs[0].append(b"other")
    with capturedLogs() as events:
        cluster.until(lambda: following.recorder.reset_at)
        following.until(1)
    assert following.recorder.reset_at == [5]
    assert following.values == [b"other"]
    (warning,) = warnings(events)
    assert "Partition 0 was cut at offset 1, before the position 5e0" in warning
    cluster.logs[0].append(b"more")
    following.until(2)
    assert following.recorder.caught_up_at == [5, 6]


def test_a_log_that_was_replaced_before_it_was_read_is_caught_up_with(setup):
    cluster = Cluster()
    for number in range(3):
        cluster.logs[0].append(b"%d" % number)
    following = setup(cluster)
    following.until(1)
    # One of three is enough for the position to be beyond the end of the new one.
    cluster.logs[0] = Log(1)
    following.catch_up()


def test_a_broker_that_lags_behind_is_no_reason_to_read_everything_again(setup):
    cluster = Cluster()
    cluster.elect(1)
    cluster.logs[0].append(*values(5))
    following = setup(cluster)
    following.catch_up()
    # For a moment another one seems to lead.
    real, stale = cluster.logs[0], Log(2)
    stale.append(*values(2))
    cluster.logs[0] = stale
    cluster.run(0.8)
    cluster.logs[0] = real
    real.append(b"5")
    following.until(6)
    cluster.run(20)
    assert following.recorder.reset_at == []
    following.assert_each_exactly_once()
    assert following.reasons == ()


def test_a_topic_that_is_deleted_is_empty_and_read_from_its_first_record_when_it_is_made_again(setup):
    cluster = Cluster(partitions=2)
    cluster.logs[0].append(b"old")
    following = setup(cluster)
    following.catch_up()
    cluster.delete()
    with capturedLogs() as events:
        cluster.run(10)
    (warning,) = warnings(events)
    assert warning.startswith("The topic t does not exist in Kafka. Create it")
    assert following.recorder.reset_at == [1]
    assert following.recorder.caught_up_at == [1, 1]
    assert following.reasons == ()
    for log in cluster.make(3).values():
        log.append(b"new", b"newer")
    following.until(6)
    assert following.values == [b"new", b"newer"] * 3
    assert following.recorder.caught_up_at == [1, 1]


@pytest.mark.parametrize("count", [1, 5, 12])
def test_one_that_is_made_again_at_once_is_read_from_its_first_record_whatever_its_length(setup, count):
    cluster = Cluster(partitions=2)
    cluster.logs[0].append(*values(5))
    following = setup(cluster)
    following.catch_up()
    new = cluster.make_again(2)
    new[0].append(*values(count, 100))
    with capturedLogs() as events:
        cluster.until(lambda: following.recorder.reset_at)
        following.until(count)
    following.assert_each_exactly_once()
    assert following.recorder.reset_at == [5]
    assert following.recorder.caught_up_at == [5, 5 + count]
    assert warnings(events) == [
        "The topic was deleted and created again. The topic t is read again from its first record on"
    ]
    cluster.run(1)
    assert following.reasons == ()


def test_one_that_is_made_again_is_read_once_though_brokers_hear_of_it_late(setup):
    cluster = Cluster(partitions=3)
    for log in cluster.logs.values():
        log.append(*values(5))
    following = setup(cluster)
    following.catch_up()
    for number, log in cluster.make_again(3).items():
        log.append(*values(9, 100 * number))
    cluster.lagging = {2, 3}
    cluster.run(12)
    cluster.lagging = set()
    following.until(27)
    cluster.run(30)
    following.assert_each_exactly_once()
    assert len(following.recorder.reset_at) == 1
    assert following.recorder.caught_up_at == [15, 42]


def test_without_ids_a_longer_one_that_is_made_again_at_once_is_not_told_from_the_old(setup):
    cluster = Cluster()
    cluster.topic_id = None
    cluster.logs[0].append(*values(5))
    following = setup(cluster)
    following.catch_up()
    cluster.make_again(1)[0].append(*values(7, 100))
    following.until(7)
    assert following.values == [*values(5), *values(2, 105)]
    assert following.recorder.reset_at == []


def test_without_ids_one_that_is_shorter_or_has_fewer_partitions_is_read_anew(setup):
    cluster = Cluster(partitions=3)
    cluster.topic_id = None
    for log in cluster.logs.values():
        log.append(*values(5))
    following = setup(cluster)
    following.catch_up()
    cluster.make_again(3)[1].append(b"new")
    cluster.until(lambda: following.recorder.reset_at)
    following.until(1)
    cluster.make_again(2)[0].append(*values(7))
    cluster.until(lambda: len(following.recorder.reset_at) == 2)
    following.until(7)
    following.assert_each_exactly_once()


def test_brokers_that_learn_of_ids_are_no_reason_to_read_anew(setup):
    cluster = Cluster()
    cluster.topic_id = None
    cluster.logs[0].append(b"a")
    following = setup(cluster)
    following.catch_up()
    for topic_id in (UUID(int=1), None, UUID(int=1)):
        cluster.topic_id = topic_id
        cluster.run(11)
    cluster.logs[0].append(b"b")
    following.until(2)
    following.assert_each_exactly_once()
    assert following.recorder.reset_at == []


def test_what_was_fetched_of_the_old_topic_is_not_delivered_any_more(setup):
    cluster = Cluster(partitions=2, brokers=(1, 2))
    cluster.logs[0].append(*values(5000))

    def make_again(received):
        cluster.clock.rightNow += 0.001
        if received.value == b"100":
            cluster.make_again(2)[1].append(b"new")

    following = setup(cluster, on_record=make_again)
    cluster.until(lambda: following.recorder.reset_at)
    following.until(1)
    cluster.run(5)
    assert following.values == [b"new"]
    assert 100 < following.recorder.reset_at[0] < 5000
    assert following.recorder.caught_up_at == [following.recorder.reset_at[0] + 1]


def test_an_observer_that_raises_when_told_to_begin_anew_is_logged(setup, no_failure_is_lost):
    cluster = Cluster()
    cluster.logs[0].append(b"old")
    following = setup(cluster, on_reset=lambda: 1 / 0)
    following.catch_up()
    cluster.make_again(1)[0].append(b"new")
    cluster.until(lambda: following.recorder.reset_at)
    following.until(1)
    assert [failure.type for failure in no_failure_is_lost] == [ZeroDivisionError]
    no_failure_is_lost.clear()


def test_a_topic_that_is_deleted_before_it_was_read_is_caught_up_with(setup):
    cluster = Cluster(partitions=2)
    cluster.logs[0].append(b"a")
    cluster.logs[1].leader = None
    following = setup(cluster)
    following.until(1)
    assert not following.caught_up
    cluster.delete()
    following.catch_up()


def test_a_topic_with_fewer_partitions_than_before_is_read(setup):
    cluster = Cluster(partitions=3)
    following = setup(cluster)
    following.catch_up()
    del cluster.logs[1], cluster.logs[2]
    cluster.run(10)
    cluster.logs[0].append(b"a")
    following.until(1)
    assert following.reasons == ()


def test_brokers_that_forget_the_topic_for_a_while_do_not_make_it_read_twice(setup):
    cluster = Cluster(partitions=2)
    cluster.logs[0].append(b"a")
    following = setup(cluster)
    following.catch_up()
    cluster.ignorant = 30
    cluster.run(11)
    for log in cluster.logs.values():
        log.append(b"b")
    following.until(3)
    cluster.run(30)
    assert cluster.ignorant == 0
    following.assert_each_exactly_once()


def test_a_partition_that_waits_for_another_one_is_not_taken_for_gone(setup):
    cluster = Cluster(partitions=2, brokers=(1,))
    cluster.logs[1].append(b"once")
    take = cluster.take(0.5)
    following = setup(cluster, on_record=lambda each: take(each) if each.partition == 0 else None)
    following.catch_up()
    cluster.run(9)
    cluster.logs[0].append(*values(20))
    cluster.ignorant = 12
    cluster.run(30)
    assert cluster.ignorant == 0
    following.assert_each_exactly_once()
